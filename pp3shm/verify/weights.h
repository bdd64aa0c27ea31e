/* Weights 2^((z - peak) * scale) of rows of FP32 logits, summed block by block.
 *
 * A weight is computed alike wherever it is needed: in a sum over a row, or for the
 * tokens of one block. Its relative error is below 5e-7 where it is above 2^-16 of the
 * peak's, below 8e-7 above 2^-20 (see sparse.h for what follows from it); all weights of
 * a row may have one factor in common, between 1/sqrt(2) and sqrt(2). -inf has weight 0;
 * NaN has NaN. scale is a normal number above 0.
 */
#ifndef PP3_VERIFY_WEIGHTS_H
#define PP3_VERIFY_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#define PP3_BLOCK 512u /* tokens; their weights, 2 KiB, stay in L1 */

struct pp3_weights {
    /* sum[b] = the weights of block b of z[n] + bias[n] (bias may be NULL), added in
     * FP32 lanes. Infinite where a weight is above 2^127. */
    void (*sums)(const float *z, const float *bias, size_t n, float peak, float scale,
                 double *sum);

    /* The weights of n tokens, at most a block. */
    void (*block)(const float *z, const float *bias, size_t n, float peak, float scale,
                  float *weight);

    /* The sum of n weights, at most a block, in FP64. */
    double (*total)(const float *weight, size_t n);
};

/* The loops for the path that pp3_scan_path() names. */
const struct pp3_weights *pp3_weights_here(void);

#endif
