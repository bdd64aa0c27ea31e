/* Folding 64 bytes of a CRC-32's message at once, in one register, for callers that
 * hold the bytes there anyhow. x86-64 with AVX-512 and VPCLMULQDQ; see crc.c. */
#ifndef PP3_LAYOUT_FOLD_H
#define PP3_LAYOUT_FOLD_H

/* Bits reflected, 128 bits of message d bits before the end are worth
 *   early 64 * x^(d + 32) + late 64 * x^(d - 32)   (mod the polynomial),
 * each power reflected in 32 bits and moved left by the one bit that a reflected
 * product lacks. d = 512: four lanes of 128 go ahead together. d = 1024: two registers
 * of four lanes take turns, so that neither waits for the other. d = 128 joins lanes.
 * X480 is such a form of x^480; tests/test_layout_crc.py derives all of them. */
#define PP3_X1056 0x1e88ef372LL
#define PP3_X992 0x14a7fe880LL
#define PP3_X544 0x154442bd4LL
#define PP3_X480 0x1c6e41596LL
#define PP3_X160 0x1751997d0LL
#define PP3_X096 0x0ccaa009eLL

#if defined(__x86_64__)
#include <immintrin.h>

#define PP3_WIDE __attribute__((target("avx512f,avx512dq,vpclmulqdq,pclmul")))

PP3_WIDE static inline __m512i pp3_moved(__m512i lanes, long long late, long long early,
                                         __m512i next)
{
    const __m512i powers =
        _mm512_set_epi64(late, early, late, early, late, early, late, early);
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, powers, 0x00),
                                     _mm512_clmulepi64_epi128(lanes, powers, 0x11),
                                     next, 0x96); /* xor of the three */
}

/* The 64 bytes behind those in lanes. */
PP3_WIDE static inline __m512i pp3_fold(__m512i lanes, __m512i next)
{
    return pp3_moved(lanes, PP3_X480, PP3_X544, next);
}

/* The 64 bytes that begin 128 behind those in lanes. */
PP3_WIDE static inline __m512i pp3_fold_two(__m512i lanes, __m512i next)
{
    return pp3_moved(lanes, PP3_X992, PP3_X1056, next);
}
#endif
#endif
