/* Vector loops over rows of FP32 logits, and the choice among them at run time. */
#ifndef PP3_PROPOSAL_SCAN_H
#define PP3_PROPOSAL_SCAN_H

#include <stddef.h>
#include <stdint.h>

/* Ways to run the loops; a build holds those of its architecture. All give the same
 * bits. */
enum pp3_scan_paths {
    PP3_SCAN_PORTABLE, /* four floats at a time: SSE2, NEON, or what there is */
    PP3_SCAN_AVX2,
    PP3_SCAN_AVX512,
    PP3_SCAN_PATHS
};

struct pp3_scan {
    /* Maxima of consecutive spans of a row of n entries z[i] + bias[i] (bias may be
     * NULL), the last span perhaps shorter. Returns whether an entry was NaN; such an
     * entry loses every comparison. */
    int (*maxima)(const float *z, const float *bias, size_t n, size_t span, float *out);

    /* How many of n keys are at least `least`, which is above INT32_MIN. */
    uint32_t (*count)(const int32_t *keys, uint32_t n, int32_t least);

    /* The ids i of entries z[i] + bias[i] that are at least `least`, in ascending order.
     * Writes at most `room` of them; returns how many there are, or more than room. */
    uint32_t (*above)(const float *z, const float *bias, uint32_t n, float least,
                      uint32_t *ids, uint32_t room);

    /* to[i] += factor[r] * from[r * stride + i] for r = 0, 1, ... below terms, in this
     * order, each operation rounded; where first, to[] is the product of r = 0 at
     * first. */
    void (*add_scaled)(float *restrict to, const float *restrict from, size_t stride,
                       const float *restrict factor, uint32_t terms, int first,
                       uint32_t n);
};

/* The loops in use: the best this CPU has, unless a path was forced. */
const struct pp3_scan *pp3_scan_here(void);

/* Their path. */
int pp3_scan_path(void);

/* For tests: use `path` from now on, in the whole process; negative goes back to the
 * best one. 0, or -ENOTSUP where build or CPU lack it. */
int pp3_scan_force(int path);

#endif
