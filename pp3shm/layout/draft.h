/* Checks 8 to 10 for one draft: 32 ids, 32 q. Straight through in vectors of four
 * (the compiler's own, so on any CPU); only a draft that fails is looked at again,
 * entry by entry, to name the place.
 */
#ifndef PP3_LAYOUT_DRAFT_H
#define PP3_LAYOUT_DRAFT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "layout/step.h"

enum { PP3_MASS = 1 << 24 };

/* Bits of floats: those of NaN and of negative ones are above infinity's, unsigned. */
#define PP3_INFINITE 0x7f800000
#define PP3_LEAST 0x33800000 /* 1 / M */

typedef float pp3_floats __attribute__((vector_size(16)));
typedef int32_t pp3_ints __attribute__((vector_size(16)));
typedef double pp3_doubles __attribute__((vector_size(16)));
typedef int64_t pp3_longs __attribute__((vector_size(16)));
typedef float pp3_two_floats __attribute__((vector_size(8)));
typedef int32_t pp3_two_ints __attribute__((vector_size(8)));

static inline pp3_ints pp3_load_ints(const int32_t *from)
{
    pp3_ints four;
    memcpy(&four, from, sizeof four);
    return four;
}

static inline bool pp3_any(pp3_ints four)
{
    uint64_t half[2];
    memcpy(half, &four, sizeof four);
    return (half[0] | half[1]) != 0;
}

/* Elements 1 to 3 of a, then the first of b. Not a load from between the two: the
 * block was stored just now, and a load across two stores waits for both. */
static inline pp3_ints pp3_next(pp3_ints a, pp3_ints b)
{
#if defined(__clang__)
    return __builtin_shufflevector(a, b, 1, 2, 3, 4);
#else
    return __builtin_shuffle(a, b, (pp3_ints){1, 2, 3, 4});
#endif
}

/* Whether ids of a sampled row are in [0, vocab) and strictly ascending, so that the
 * two ends bound the rest. */
static inline bool pp3_ids_ok(const int32_t id[PP3_SUPPORT], uint32_t vocab)
{
    pp3_ints wrong = {0}, four = pp3_load_ints(id);
    for (int i = 4; i < PP3_SUPPORT; i += 4) {
        pp3_ints after = pp3_load_ints(id + i);
        wrong |= pp3_next(four, after) <= four;
        four = after;
    }
    wrong |= (four[1] <= four[0]) | (four[2] <= four[1]) | (four[3] <= four[2]);
    return !pp3_any(wrong) && id[0] >= 0 && (uint32_t)id[PP3_SUPPORT - 1] < vocab;
}

/* Whether ids of a row without q are 0..31. */
static inline bool pp3_ids_unused(const int32_t id[PP3_SUPPORT])
{
    pp3_ints wrong = {0}, wanted = {0, 1, 2, 3};
    for (int i = 0; i < PP3_SUPPORT; i += 4, wanted += 4)
        wrong |= pp3_load_ints(id + i) ^ wanted;
    return !pp3_any(wrong);
}

/* The first id that pp3_ids_ok or pp3_ids_unused refused. */
static inline int pp3_wrong_id(const int32_t id[PP3_SUPPORT], uint32_t vocab, bool used)
{
    for (int i = 0; i < PP3_SUPPORT; i++)
        if ((uint32_t)id[i] >= vocab || (i > 0 && id[i] <= id[i - 1]) ||
            (!used && id[i] != i))
            return i;
    return -1;
}

/* 1 + where the token is among strictly ascending ids, 0 where it is not. For ids
 * that are not ascending any number of 0..32. */
static inline uint32_t pp3_place(const int32_t id[PP3_SUPPORT], int32_t token)
{
    pp3_ints sum = {0}, number = {1, 2, 3, 4};
    for (int i = 0; i < PP3_SUPPORT; i += 4, number += 4)
        sum += (pp3_load_ints(id + i) == token) & number;
    uint32_t place = (uint32_t)(sum[0] + sum[1] + sum[2] + sum[3]);
    return place <= PP3_SUPPORT ? place : 0;
}

/* What the q of one draft add up to, and what is wrong with them. */
struct pp3_q_sum {
    uint64_t mass; /* of the counts; those above M and of what is odd left out */
    bool odd;      /* one is negative, -0.0, not finite, or its count no integer */
    bool above;    /* one is above 1 */
};

/* count[i] is that of q[i], or 0 where it is odd or above.
 *
 * q * M is exact in float64. A q above 1 is never converted: it is a multiple of
 * 2^-23, so that q * M is an integer anyway. A q below 1 / M has none; said of the
 * bits, this holds in a thread that flushes denormals to zero as well. */
static inline struct pp3_q_sum pp3_sum_q(const float q[PP3_SUPPORT],
                                         int32_t count[PP3_SUPPORT])
{
    float inside[PP3_SUPPORT]; /* q, and 0 for a NaN and beyond [0, 1] */
    pp3_ints odd = {0}, above = {0};
    for (int i = 0; i < PP3_SUPPORT; i += 4) {
        pp3_floats four;
        memcpy(&four, q + i, sizeof four);
        pp3_ints bits = (pp3_ints)four;
        odd |= (bits < 0) | (bits >= PP3_INFINITE);
        odd |= (bits > 0) & (bits < PP3_LEAST);
        above |= four > 1.0f;
        bits &= (four >= 0.0f) & (four <= 1.0f);
        memcpy(inside + i, &bits, sizeof bits);
    }
    pp3_two_ints sum = {0}; /* at most 16 x 2^24 each */
    pp3_longs broken = {0};
    for (int i = 0; i < PP3_SUPPORT; i += 2) {
        pp3_two_floats two;
        memcpy(&two, inside + i, sizeof two);
        pp3_doubles scaled = __builtin_convertvector(two, pp3_doubles) * PP3_MASS;
        pp3_two_ints whole = __builtin_convertvector(scaled, pp3_two_ints);
        broken |= __builtin_convertvector(whole, pp3_doubles) != scaled;
        sum += whole;
        memcpy(count + i, &whole, sizeof whole);
    }
    bool fraction = (broken[0] | broken[1]) != 0;
    return (struct pp3_q_sum){(uint64_t)sum[0] + (uint64_t)sum[1],
                              pp3_any(odd) || fraction, pp3_any(above)};
}

/* Whether one q is finite, not negative nor -0.0, and its count an integer. */
static inline bool pp3_dyadic(float q)
{
    uint32_t bits;
    memcpy(&bits, &q, sizeof bits);
    double scaled = (double)(q >= 0.0f && q <= 1.0f ? q : 0.0f) * (double)PP3_MASS;
    return bits < PP3_INFINITE && (bits == 0 || bits >= PP3_LEAST) &&
           scaled == (double)(int32_t)scaled;
}

/* The first q that is odd, or none is and it is above 1. */
static inline int pp3_wrong_q(const float q[PP3_SUPPORT], bool odd)
{
    for (int i = 0; i < PP3_SUPPORT; i++)
        if (odd ? !pp3_dyadic(q[i]) : q[i] > 1.0f)
            return i;
    return -1;
}

/* The first q that is not +0.0, or -1. */
static inline int pp3_used_q(const float q[PP3_SUPPORT])
{
    int32_t bits[PP3_SUPPORT];
    pp3_ints some = {0};
    memcpy(bits, q, sizeof bits);
    for (int i = 0; i < PP3_SUPPORT; i += 4)
        some |= pp3_load_ints(bits + i);
    for (int i = 0; pp3_any(some) && i < PP3_SUPPORT; i++)
        if (bits[i] != 0)
            return i;
    return -1;
}

#endif
