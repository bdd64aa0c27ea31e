/* Verification with sparse q: one pass over each target row that is needed, no dense q.
 *
 * The law is section 10 of the wire page; reference.py is its readable form. What is
 * verified against is the computed target p'. For a row of probabilities, FP32, it is the
 * row itself. For a row of logits it is a rounding of the softmax, made so that every step
 * uses the same numbers:
 *
 *     p'(x) = S_b / T * w(x) / W_b
 *
 * with the weight w(x) in FP32 (weights.h), S_b the weights of x's block as one pass
 * adds them in FP32, T the sum of all S_b, and W_b the weights of the block added in
 * FP64. It adds up to 1 over the row but for FP64's rounding, and acceptance, residual
 * and draw all use it, so that what is emitted has the law p' as exactly as FP64 adds.
 */
#ifndef PP3_VERIFY_SPARSE_H
#define PP3_VERIFY_SPARSE_H

#include <stddef.h>
#include <stdint.h>

#define PP3_VERIFY_SUPPORT 256u /* entries of a support, at most */
#define PP3_VERIFY_DEPTH 64u
#define PP3_VERIFY_THREADS 64u

enum pp3_target { PP3_TARGET_LOGITS, PP3_TARGET_PROBS };
enum pp3_verify_rule { PP3_RULE_STANDARD, PP3_RULE_BLOCK };
enum pp3_verify_mode { PP3_MODE_TARGET, PP3_MODE_GREEDY, PP3_MODE_SAMPLED,
                       PP3_MODE_TARGET_GREEDY };
enum pp3_verify_last { PP3_LAST_NONE, PP3_LAST_TARGET, PP3_LAST_CORRECTION,
                       PP3_LAST_BONUS };

/* Why a request emits nothing. */
enum pp3_verify_fault {
    PP3_FAULT_NONE,
    PP3_FAULT_TARGET, /* row, id, value: a NaN, +inf, or no probability */
    PP3_FAULT_EMPTY,  /* row: no finite logit */
    PP3_FAULT_MASS,   /* row, value: probabilities that do not add up to 1 */
    PP3_FAULT_IDS,    /* row: not ascending within the vocabulary */
    PP3_FAULT_Q,      /* row: not in [0, 1] */
    PP3_FAULT_COUNTS, /* row: not multiples of 2^-24 that add up to 1 */
    PP3_FAULT_DRAFT   /* row, id: a token that q cannot draw */
};

/* What the requests have in common. */
struct pp3_verify_batch {
    uint32_t depth, k, vocab;
    int32_t target, rule;
    uint32_t zero;
    uint64_t round;
    const int32_t *drafts; /* [slots][depth] */
    const int32_t *ids;    /* [slots][depth][k]; NULL where no request is sampled */
    const float *q;        /* the same */
};

/* One request. Rows are contiguous; strides count entries from one to the next. */
struct pp3_verify_request {
    uint64_t target;             /* address of its row 0 */
    uint64_t bias;               /* FP32, added to logits in FP32; 0: none */
    int64_t target_stride, bias_stride;
    uint64_t position;           /* of its first draft */
    uint32_t accept[2], residual[2]; /* key words */
    double temperature;          /* above 0 where logits are sampled from */
    uint32_t slot;
    int32_t mode;
};

struct pp3_verified {
    int32_t count, accepted, last, no_mass;
    int32_t fault, row, id, zero;
    double value;
};

/* Bytes of scratch for each thread. */
size_t pp3_verify_scratch(uint32_t vocab, uint32_t depth);

/* Verifies n requests. tokens[n][depth + 1] get -1 behind the last one emitted.
 * scratch: threads x pp3_verify_scratch bytes, aligned to 8. The rows of a request
 * behind the one it stops at are never read (rule block reads all of them).
 * A thread that cannot be started is done without. 0, or -EINVAL: an argument out of
 * range, and nothing was written. */
int pp3_verify(const struct pp3_verify_batch *batch, uint32_t n,
               const struct pp3_verify_request *requests, int32_t *tokens,
               struct pp3_verified *out, void *scratch, uint32_t threads);

/* One request with its uniforms given: accept[depth] are multiples of 2^-29 and
 * residual[depth + 1] of 2^-53, both in [0, 1). */
int pp3_verify_one(const struct pp3_verify_batch *batch,
                   const struct pp3_verify_request *request, const double *accept,
                   const double *residual, int32_t *tokens, struct pp3_verified *out,
                   void *scratch);

#endif
