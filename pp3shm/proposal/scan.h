/* The k largest of a row of FP32 logits, in one pass and a bounded remainder.
 *
 * A row may carry a second one, its bias: then the row is z[i] + bias[i], added in FP32
 * wherever an entry is read and nowhere stored.
 */
#ifndef PP3_PROPOSAL_SCAN_H
#define PP3_PROPOSAL_SCAN_H

#include <stddef.h>
#include <stdint.h>

#define PP3_SUPPORT_MAX 32

/* Ways to run the vector loops; a build holds those of its architecture. */
enum pp3_scan {
    PP3_SCAN_PORTABLE, /* plain C; the compiler's baseline: SSE2, NEON */
    PP3_SCAN_AVX2,
    PP3_SCAN_AVX512,
    PP3_SCAN_PATHS
};

/* The path in use: the best this CPU has, unless one was forced. */
int pp3_scan_path(void);

/* For tests: use `path` from now on, in the whole process; negative goes back to the
 * best one. 0, or -ENOTSUP where build or CPU lack it. */
int pp3_scan_force(int path);

/* The k largest entries of a row, ties to the lower id; 0.0 and -0.0 are equal.
 *
 * ids[k] come out in ascending order with values[k] beside them. -inf counts as the
 * least value, so where fewer than k entries are finite the lowest masked ids complete
 * the support. bias may be NULL.
 * 0, or -EINVAL: k is not in 1..32 or exceeds vocab, or vocab exceeds INT32_MAX;
 * or -EDOM: an entry is NaN or +inf, *bad is the first such id (else -1).
 */
int pp3_top(const float *z, const float *bias, uint32_t vocab, uint32_t k,
            int32_t *ids, float *values, int32_t *bad);

#endif
