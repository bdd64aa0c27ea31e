/* Checks 8 to 10 for one draft as in draft.h, with its 32 entries in two registers:
 * only whether all is well. Of a draft that is not, draft.h says what. */
#ifndef PP3_LAYOUT_DRAFT_WIDE_H
#define PP3_LAYOUT_DRAFT_WIDE_H

#include "layout/draft.h"
#include "layout/fold.h"

#if defined(__x86_64__)

_Static_assert(PP3_SUPPORT == 32, "two registers of 16");

/* Whether ids in [0, vocab) are strictly ascending. */
PP3_WIDE static inline bool pp3_wide_ids_ok(__m512i a, __m512i b, uint32_t vocab)
{
    const __m512i bound = _mm512_set1_epi32((int)vocab);
    __m512i after_a = _mm512_alignr_epi32(b, a, 1), after_b = _mm512_alignr_epi32(b, b, 1);
    uint32_t inside = (uint32_t)_mm512_cmplt_epu32_mask(a, bound) &
                      (uint32_t)_mm512_cmplt_epu32_mask(b, bound);
    uint32_t rises = _mm512_cmplt_epi32_mask(a, after_a);
    uint32_t more = _mm512_cmplt_epi32_mask(b, after_b) | 0x8000u; /* none is after */
    return (inside & rises & more) == 0xffffu;
}

/* 1 + where the token is among ids that are ok, 0 where it is not. */
PP3_WIDE static inline uint32_t pp3_wide_place(__m512i a, __m512i b, int32_t token)
{
    const __m512i wanted = _mm512_set1_epi32(token);
    uint32_t found = (uint32_t)_mm512_cmpeq_epi32_mask(a, wanted) |
                     (uint32_t)_mm512_cmpeq_epi32_mask(b, wanted) << 16;
    return found ? (uint32_t)__builtin_ctz(found) + 1 : 0;
}

/* Whether every q is a multiple of 1/M in [0, 1], +0.0 or at least 1/M. Said of the
 * bits: those of -0.0, of negatives, of NaN and of what is above 1 are above those of
 * 1.0, unsigned. Below 1, q * M has at most 24 bits before the point: FP32 is exact. */
PP3_WIDE static inline bool pp3_wide_dyadic(__m512 q, __m512i *count)
{
    const __m512i one = _mm512_castps_si512(_mm512_set1_ps(1));
    const __m512i least = _mm512_set1_epi32(PP3_LEAST);
    __m512i bits = _mm512_castps_si512(q);
    __mmask16 inside = _mm512_cmple_epu32_mask(bits, one);
    __mmask16 seen = (__mmask16)(_mm512_cmpge_epu32_mask(bits, least) |
                                 _mm512_testn_epi32_mask(bits, bits));
    __m512 scaled = _mm512_mul_ps(q, _mm512_set1_ps(PP3_MASS));
    __mmask16 whole;
    *count = _mm512_cvttps_epi32(scaled);
    whole = _mm512_cmp_ps_mask(_mm512_cvtepi32_ps(*count), scaled, _CMP_EQ_OQ);
    return ((uint32_t)inside & seen & whole) == 0xffffu;
}

/* Whether the q of a draft whose token is at `place` (1 to 32) pass checks 9 and 10. */
PP3_WIDE static inline bool pp3_wide_q_ok(__m512 a, __m512 b, uint32_t place)
{
    __m512i low, high;
    uint32_t live;
    if (!pp3_wide_dyadic(a, &low) || !pp3_wide_dyadic(b, &high) || place == 0)
        return false;
    live = (uint32_t)_mm512_test_epi32_mask(low, low) |
           (uint32_t)_mm512_test_epi32_mask(high, high) << 16;
    /* 32 counts of at most 2^24 */
    return _mm512_reduce_add_epi32(_mm512_add_epi32(low, high)) == PP3_MASS &&
           (live >> (place - 1) & 1u);
}

#endif
#endif
