#include "draft.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>

#include "scan.h"
#include "top.h"

#define MASS 16777216 /* 2^24 */

void pp3_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int i = 0; i < 10; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* Index of the first largest value. */
static uint32_t argmax(const float *values, uint32_t k)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < k; i++)
        if (values[i] > values[best])
            best = i;
    return best;
}

/* One each to the `rest` largest remainders. share[] holds remainders and is spent.
 * rest is below the number of remainders above 0, so a masked token gets nothing. */
static void give_remainders(double *share, int32_t *count, uint32_t k, int32_t rest)
{
    while (rest-- > 0) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < k; i++)
            if (share[i] > share[best])
                best = i;
        count[best]++;
        share[best] = -1;
    }
}

/* Counts of a support in ascending id; one value at least is finite. 0, or -ERANGE. */
static int allocate(const float *values, uint32_t k, uint32_t tau_milli, int rule,
                    int32_t *count)
{
    double share[PP3_SUPPORT_MAX], total = 0;
    double tau = (double)tau_milli / 1000, peak = (double)values[argmax(values, k)];
    int64_t rest = MASS;
    for (uint32_t i = 0; i < k; i++) {
        share[i] = exp(((double)values[i] - peak) / tau);
        total += share[i]; /* in ascending id, like the reference */
    }
    for (uint32_t i = 0; i < k; i++) {
        share[i] = share[i] / total * MASS; /* at most MASS: total >= share */
        count[i] = (int32_t)share[i];
        share[i] -= count[i];
        rest -= count[i];
    }
    if (rest < 0 || rest >= MASS)
        return -ERANGE;
    if (rule == PP3_FLOOR_FIRST)
        count[argmax(values, k)] += (int32_t)rest;
    else
        give_remainders(share, count, k, (int32_t)rest);
    return 0;
}

/* The draw: the first entry whose cumulative count exceeds draw24. There is one: the
 * counts add up to MASS. */
static uint32_t pick(const int32_t *count, uint32_t draw24)
{
    uint32_t i = 0;
    for (uint32_t below = (uint32_t)count[0]; below <= draw24;)
        below += (uint32_t)count[++i];
    return i;
}

/* What pp3_propose does once its arguments are known to be in range. */
static int propose(const float *z, const float *bias, uint32_t vocab, uint32_t k,
                   uint32_t tau_milli, int rule, uint32_t draw24, int32_t *ids,
                   float *q, int32_t *token, float *confidence, int32_t *bad)
{
    float values[PP3_SUPPORT_MAX];
    int32_t count[PP3_SUPPORT_MAX];
    int error = pp3_top(z, bias, vocab, k, ids, values, bad);
    if (error)
        return error;
    if (values[argmax(values, k)] == -INFINITY)
        return -ENODATA;
    error = allocate(values, k, tau_milli, rule, count);
    if (error)
        return error;
    for (uint32_t i = 0; i < k; i++)
        q[i] = (float)count[i] * (1.0f / MASS); /* exact */
    uint32_t drawn = pick(count, draw24);
    *token = ids[drawn];
    *confidence = q[drawn];
    return 0;
}

int pp3_propose(const float *z, const float *bias, uint32_t vocab, uint32_t k,
                uint32_t tau_milli, int rule, uint32_t draw24, int32_t *ids, float *q,
                int32_t *token, float *confidence, struct pp3_draft_fault *fault)
{
    *fault = (struct pp3_draft_fault){-EINVAL, 0, -1, 0};
    if (tau_milli == 0 || rule < 0 || rule >= PP3_RULES || draw24 >= MASS)
        return fault->kind;
    fault->kind = propose(z, bias, vocab, k, tau_milli, rule, draw24, ids, q, token,
                          confidence, &fault->id);
    if (fault->id >= 0)
        fault->value = bias ? z[fault->id] + bias[fault->id] : z[fault->id];
    return fault->kind;
}

int pp3_draft_row(const float *z, const float *bias, uint32_t vocab, uint32_t k,
                  uint32_t tau_milli, int rule, const uint32_t key[2], uint64_t round,
                  uint64_t position, int32_t *ids, float *q, int32_t *token,
                  float *confidence, struct pp3_draft_fault *fault)
{
    const uint32_t counter[4] = {(uint32_t)round, (uint32_t)(round >> 32),
                                 (uint32_t)position, (uint32_t)(position >> 32)};
    uint32_t words[4];
    pp3_philox(counter, key, words);
    return pp3_propose(z, bias, vocab, k, tau_milli, rule, words[0] >> 8, ids, q, token,
                       confidence, fault);
}

/* ---- the low-rank bias ---- */

#define BLOCK 512u /* entries, and */
#define TERMS 8u   /* rows of right, that stay in L1 while all requests use them */

/* scratch[row] = left[previous[row]] @ right, for the rows that have a previous token.
 * Block by block: right is far larger than the caches, and is to pass through once. */
static void low_rank(const struct pp3_chain *c, const int32_t *previous, size_t stride,
                     const float *left, const float *right, float *scratch)
{
    const struct pp3_scan *use = pp3_scan_here();
    for (uint32_t from = 0; from < c->vocab; from += BLOCK) {
        uint32_t n = c->vocab - from < BLOCK ? c->vocab - from : BLOCK;
        for (uint32_t r = 0; r < c->rank; r += TERMS) {
            uint32_t terms = c->rank - r < TERMS ? c->rank - r : TERMS;
            for (uint32_t row = 0; row < c->rows; row++)
                if (previous[row * stride] >= 0)
                    use->add_scaled(scratch + (size_t)row * c->vocab + from,
                                    right + (size_t)r * c->vocab + from, c->vocab,
                                    left + (size_t)previous[row * stride] * c->rank + r,
                                    terms, r == 0, n);
        }
    }
}

/* ---- the chain ---- */

static int usable(const struct pp3_chain *c, const int32_t *previous, const float *left,
                  const float *right, const float *scratch)
{
    if (c->rows == 0 || c->depth == 0 || c->tau_milli == 0 || c->k < 1 ||
        c->k > PP3_SUPPORT_MAX || c->k > c->vocab || c->vocab > INT32_MAX)
        return 0;
    if (c->rule < 0 || c->rule >= PP3_RULES || (left && c->rank && !(right && scratch)))
        return 0;
    for (uint32_t row = 0; row < c->rows; row++)
        if (previous[row] < -1 || previous[row] >= (int32_t)c->vocab)
            return 0;
    return 1;
}

static void give_up(const struct pp3_chain *c, size_t row, int32_t *ids, float *q,
                    int32_t *tokens, float *confidence)
{
    for (uint32_t depth = 0; depth < c->depth; depth++) {
        size_t at = row * c->depth + depth;
        tokens[at] = -1;
        confidence[at] = 0;
        for (uint32_t i = 0; i < c->k; i++) {
            ids[at * c->k + i] = (int32_t)i;
            q[at * c->k + i] = 0;
        }
    }
}

int pp3_draft_chain(const struct pp3_chain *c, const float *logits,
                    const uint32_t *keys, const uint64_t *positions,
                    const int32_t *previous, const float *left, const float *right,
                    float *scratch, int32_t *ids, float *q, int32_t *tokens,
                    float *confidence, struct pp3_draft_fault *faults)
{
    if (!usable(c, previous, left, right, scratch))
        return -EINVAL;
    for (uint32_t row = 0; row < c->rows; row++)
        faults[row] = (struct pp3_draft_fault){0, 0, -1, 0};
    for (uint32_t depth = 0; depth < c->depth; depth++) {
        /* The tokens before this depth, one a row, `stride` apart. */
        const int32_t *before = depth ? tokens + depth - 1 : previous;
        size_t stride = depth ? c->depth : 1;
        if (left && c->rank)
            low_rank(c, before, stride, left, right, scratch);
        for (uint32_t row = 0; row < c->rows; row++) {
            struct pp3_draft_fault *fault = &faults[row];
            size_t at = (size_t)row * c->depth + depth;
            int32_t token = before[row * stride];
            const float *bias = NULL;
            if (fault->kind)
                continue;
            if (left && token >= 0)
                bias = c->rank ? scratch + (size_t)row * c->vocab
                               : left + (size_t)token * c->vocab;
            if (pp3_draft_row(logits + at * c->vocab, bias, c->vocab, c->k,
                              c->tau_milli, c->rule, keys + (size_t)row * 2, c->round,
                              positions[row] + depth, ids + at * c->k, q + at * c->k,
                              tokens + at, confidence + at, fault))
                give_up(c, row, ids, q, tokens, confidence);
            fault->depth = (int32_t)depth;
        }
    }
    return 0;
}
