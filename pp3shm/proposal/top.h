/* The k largest of a row of FP32 logits, in one pass and a bounded remainder.
 *
 * A row may carry a second one, its bias: then the row is z[i] + bias[i], added in FP32
 * wherever an entry is read and nowhere stored.
 */
#ifndef PP3_PROPOSAL_TOP_H
#define PP3_PROPOSAL_TOP_H

#include <stdint.h>

#define PP3_SUPPORT_MAX 256 /* the wire of version 1 has 32 */

/* The k largest entries of a row, ties to the lower id; 0.0 and -0.0 are equal.
 *
 * ids[k] come out in ascending order with values[k] beside them. -inf counts as the
 * least value, so where fewer than k entries are finite the lowest masked ids complete
 * the support. bias may be NULL.
 * 0, or -EINVAL: k is not in 1..256 or exceeds vocab, or vocab exceeds INT32_MAX;
 * or -EDOM: an entry is NaN or +inf, *bad is the first such id (else -1).
 */
int pp3_top(const float *z, const float *bias, uint32_t vocab, uint32_t k,
            int32_t *ids, float *values, int32_t *bad);

#endif
