/* Proposals: support, dyadic counts and their draw, for one row or a whole chain.
 *
 * The definition is section 8 of the wire page; reference.py is its readable form, and
 * says why the two agree to the bit.
 */
#ifndef PP3_PROPOSAL_DRAFT_H
#define PP3_PROPOSAL_DRAFT_H

#include <stdint.h>

/* Who gets what is left over when all shares were rounded down. */
enum pp3_rule {
    PP3_FLOOR_FIRST,       /* the largest logit, ties to the lower id: all of it */
    PP3_LARGEST_REMAINDER, /* the largest remainders, ties to the lower id: one each */
    PP3_RULES
};

/* One block of Philox4x32-10. */
void pp3_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Why a row was not drafted. */
struct pp3_draft_fault {
    int32_t kind;  /* what pp3_propose returns */
    int32_t depth; /* in a chain */
    int32_t id;    /* the first NaN or +inf, else -1 */
    float value;   /* of that id, bias included */
};

/* One position: ids[k] ascending, q[k] = count / 2^24, and the token that draw24 picks
 * with its q. z[vocab] are FP32 logits; bias[vocab] is added to them in FP32, or NULL.
 * 0, or -EINVAL: an argument out of range; -EDOM: NaN or +inf; -ENODATA: nothing
 * finite; -ERANGE: what is left over is not in [0, 2^24). *fault says the same.
 */
int pp3_propose(const float *z, const float *bias, uint32_t vocab, uint32_t k,
                uint32_t tau_milli, int rule, uint32_t draw24, int32_t *ids, float *q,
                int32_t *token, float *confidence, struct pp3_draft_fault *fault);

/* The same with the draw of `position` in `round` under a request's key. */
int pp3_draft_row(const float *z, const float *bias, uint32_t vocab, uint32_t k,
                  uint32_t tau_milli, int rule, const uint32_t key[2], uint64_t round,
                  uint64_t position, int32_t *ids, float *q, int32_t *token,
                  float *confidence, struct pp3_draft_fault *fault);

/* A chain: rows requests, each depth positions drawn one after the other. */
struct pp3_chain {
    uint32_t rows, depth, vocab, k, tau_milli;
    int32_t rule;
    uint64_t round;
    uint32_t rank; /* of the low-rank bias; 0: the bias is a dense table, or none */
};

/* Drafts all rows; a row that cannot be drafted does not touch the others.
 *
 * logits[rows][depth][vocab]; keys[rows][2]; positions[rows] of each first draft.
 * Position i of a row gets the bias of the token drawn at i - 1, position 0 that of
 * previous[row], or none where this is -1. The bias of token t is
 *   left NULL:  none;
 *   rank 0:     left[t], a row of left[vocab][vocab];
 *   rank r > 0: left[t] @ right, left[vocab][r], right[r][vocab]: r = 0, 1, ... added
 *               in this order, each product and sum rounded to FP32;
 *               scratch[rows][vocab] holds it, and right is read once a depth.
 * Out: ids, q [rows][depth][k]; tokens, confidence [rows][depth]; faults[rows]. A row
 * given up has ids 0..k-1, q 0, tokens -1, confidence 0 at every depth.
 * 0, or -EINVAL: an argument out of range, and nothing was written.
 */
int pp3_draft_chain(const struct pp3_chain *c, const float *logits,
                    const uint32_t *keys, const uint64_t *positions,
                    const int32_t *previous, const float *left, const float *right,
                    float *scratch, int32_t *ids, float *q, int32_t *tokens,
                    float *confidence, struct pp3_draft_fault *faults);

#endif
