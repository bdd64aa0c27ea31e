#include "scan.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

static float entry(const float *z, const float *bias, size_t i)
{
    return bias ? z[i] + bias[i] : z[i];
}

/* The end of a span that fills no vector. */
static inline float tail_max(const float *z, const float *bias, size_t i, size_t end,
                             float most, int *nan)
{
    for (; i < end; i++) {
        float x = entry(z, bias, i);
        most = x > most ? x : most;
        *nan |= x != x;
    }
    return most;
}

/* ---- portable ---- */

/* Four floats: a register of any architecture this is likely to meet. */
typedef float four __attribute__((vector_size(16)));
typedef int32_t four_bits __attribute__((vector_size(16)));
#define FOURS 4u /* kept apart, so that comparisons need not wait for each other */

static inline four load_four(const float *from)
{
    four x;
    memcpy(&x, from, sizeof x);
    return x;
}

static int maxima_portable(const float *z, const float *bias, size_t n, size_t span,
                           float *out)
{
    int nan = 0;
    four_bits odd[FOURS] = {{0}};
    for (size_t from = 0; from < n; from += span) {
        size_t end = n - from < span ? n : from + span;
        size_t i = from;
        four most[FOURS];
        for (unsigned j = 0; j < FOURS; j++)
            most[j] = (four){-INFINITY, -INFINITY, -INFINITY, -INFINITY};
        for (; i + 4 * FOURS <= end; i += 4 * FOURS)
            for (unsigned j = 0; j < FOURS; j++) {
                four x = load_four(z + i + 4 * j);
                if (bias)
                    x += load_four(bias + i + 4 * j);
                four_bits more = x > most[j];
                odd[j] |= x != x;
                most[j] = (four)((more & (four_bits)x) | (~more & (four_bits)most[j]));
            }
        float best = -INFINITY;
        for (unsigned j = 0; j < 4 * FOURS; j++)
            best = most[j / 4][j % 4] > best ? most[j / 4][j % 4] : best;
        *out++ = tail_max(z, bias, i, end, best, &nan);
    }
    for (unsigned j = 0; j < 4 * FOURS; j++)
        nan |= odd[j / 4][j % 4] != 0;
    return nan;
}

static uint32_t count_portable(const int32_t *keys, uint32_t n, int32_t least)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += keys[i] >= least;
    return count;
}

/* Notes the entries whose bits are set; hits are rare, so one at a time. */
static inline uint32_t note(uint32_t bits, uint32_t at, uint32_t *ids, uint32_t found,
                            uint32_t room)
{
    for (; bits && found < room; bits &= bits - 1)
        ids[found++] = at + (uint32_t)__builtin_ctz(bits);
    return found + (bits != 0);
}

static inline uint32_t tail_above(const float *z, const float *bias, uint32_t i,
                                  uint32_t n, float least, uint32_t *ids,
                                  uint32_t found, uint32_t room)
{
    for (; i < n && found <= room; i++)
        found = note(entry(z, bias, i) >= least, i, ids, found, room);
    return found;
}

static uint32_t above_portable(const float *z, const float *bias, uint32_t n,
                               float least, uint32_t *ids, uint32_t room)
{
    const four bound = {least, least, least, least};
    uint32_t found = 0, i = 0;
    for (; i + 8 <= n && found <= room; i += 8) {
        four x = load_four(z + i), y = load_four(z + i + 4);
        if (bias) {
            x += load_four(bias + i);
            y += load_four(bias + i + 4);
        }
        four_bits hit = (x >= bound) | (y >= bound);
        int64_t any[2];
        memcpy(any, &hit, sizeof any);
        if ((any[0] | any[1]) == 0)
            continue;
        for (unsigned j = 0; j < 8; j++)
            found = note(entry(z, bias, i + j) >= least, i + j, ids, found, room);
    }
    return tail_above(z, bias, i, n, least, ids, found, room);
}

/* ---- x86-64: the same with wider vectors ---- */

#if defined(__x86_64__)
#include <immintrin.h>

__attribute__((target("avx2"))) static inline float reduce_avx2(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_shuffle_ps(m, m, 1));
    return _mm_cvtss_f32(m);
}

/* max(x, m) gives m where x is NaN, so m stays a number; NaNs are noted beside it. */
__attribute__((target("avx2"))) static int
maxima_avx2(const float *z, const float *bias, size_t n, size_t span, float *out)
{
    int nan = 0;
    __m256 odd = _mm256_setzero_ps();
    for (size_t from = 0; from < n; from += span) {
        size_t end = n - from < span ? n : from + span;
        size_t i = from;
        __m256 a = _mm256_set1_ps(-INFINITY), b = a;
        for (; i + 16 <= end; i += 16) {
            __m256 x = _mm256_loadu_ps(z + i), y = _mm256_loadu_ps(z + i + 8);
            if (bias) {
                x = _mm256_add_ps(x, _mm256_loadu_ps(bias + i));
                y = _mm256_add_ps(y, _mm256_loadu_ps(bias + i + 8));
            }
            odd = _mm256_or_ps(odd, _mm256_cmp_ps(x, y, _CMP_UNORD_Q));
            a = _mm256_max_ps(x, a);
            b = _mm256_max_ps(y, b);
        }
        *out++ = tail_max(z, bias, i, end, reduce_avx2(_mm256_max_ps(a, b)), &nan);
    }
    return nan || _mm256_movemask_ps(odd);
}

__attribute__((target("avx2"))) static uint32_t count_avx2(const int32_t *keys,
                                                           uint32_t n, int32_t least)
{
    /* least > INT32_MIN: the only key equal to it is no float's. */
    __m256i below = _mm256_set1_epi32(least - 1), sum = _mm256_setzero_si256();
    uint32_t i = 0, count = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i key = _mm256_loadu_si256((const __m256i *)(const void *)(keys + i));
        sum = _mm256_sub_epi32(sum, _mm256_cmpgt_epi32(key, below));
    }
    uint32_t lane[8];
    _mm256_storeu_si256((__m256i *)(void *)lane, sum);
    for (unsigned j = 0; j < 8; j++)
        count += lane[j];
    for (; i < n; i++)
        count += keys[i] >= least;
    return count;
}

__attribute__((target("avx2"))) static uint32_t
above_avx2(const float *z, const float *bias, uint32_t n, float least, uint32_t *ids,
           uint32_t room)
{
    const __m256 bound = _mm256_set1_ps(least);
    uint32_t found = 0, i = 0;
    for (; i + 16 <= n && found <= room; i += 16) {
        __m256 x = _mm256_loadu_ps(z + i), y = _mm256_loadu_ps(z + i + 8);
        if (bias) {
            x = _mm256_add_ps(x, _mm256_loadu_ps(bias + i));
            y = _mm256_add_ps(y, _mm256_loadu_ps(bias + i + 8));
        }
        uint32_t low = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(x, bound, _CMP_GE_OQ));
        uint32_t up = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(y, bound, _CMP_GE_OQ));
        if (low | up)
            found = note(low | up << 8, i, ids, found, room);
    }
    return tail_above(z, bias, i, n, least, ids, found, room);
}

__attribute__((target("avx512f"))) static int
maxima_avx512(const float *z, const float *bias, size_t n, size_t span, float *out)
{
    int nan = 0;
    __mmask16 odd = 0;
    for (size_t from = 0; from < n; from += span) {
        size_t end = n - from < span ? n : from + span;
        size_t i = from;
        __m512 a = _mm512_set1_ps(-INFINITY), b = a;
        for (; i + 32 <= end; i += 32) {
            __m512 x = _mm512_loadu_ps(z + i), y = _mm512_loadu_ps(z + i + 16);
            if (bias) {
                x = _mm512_add_ps(x, _mm512_loadu_ps(bias + i));
                y = _mm512_add_ps(y, _mm512_loadu_ps(bias + i + 16));
            }
            odd |= _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q);
            a = _mm512_max_ps(x, a);
            b = _mm512_max_ps(y, b);
        }
        *out++ =
            tail_max(z, bias, i, end, _mm512_reduce_max_ps(_mm512_max_ps(a, b)), &nan);
    }
    return nan || odd;
}

__attribute__((target("avx512f"))) static uint32_t
count_avx512(const int32_t *keys, uint32_t n, int32_t least)
{
    __m512i bound = _mm512_set1_epi32(least), sum = _mm512_setzero_si512();
    const __m512i one = _mm512_set1_epi32(1);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __mmask16 at_least =
            _mm512_cmpge_epi32_mask(_mm512_loadu_si512(keys + i), bound);
        sum = _mm512_mask_add_epi32(sum, at_least, sum, one);
    }
    uint32_t count = (uint32_t)_mm512_reduce_add_epi32(sum);
    for (; i < n; i++)
        count += keys[i] >= least;
    return count;
}

__attribute__((target("avx512f"))) static uint32_t
above_avx512(const float *z, const float *bias, uint32_t n, float least, uint32_t *ids,
             uint32_t room)
{
    const __m512 bound = _mm512_set1_ps(least);
    uint32_t found = 0, i = 0;
    for (; i + 32 <= n && found <= room; i += 32) {
        __m512 x = _mm512_loadu_ps(z + i), y = _mm512_loadu_ps(z + i + 16);
        if (bias) {
            x = _mm512_add_ps(x, _mm512_loadu_ps(bias + i));
            y = _mm512_add_ps(y, _mm512_loadu_ps(bias + i + 16));
        }
        uint32_t low = _mm512_cmp_ps_mask(x, bound, _CMP_GE_OQ);
        uint32_t up = _mm512_cmp_ps_mask(y, bound, _CMP_GE_OQ);
        if (low | up)
            found = note(low | up << 16, i, ids, found, room);
    }
    return tail_above(z, bias, i, n, least, ids, found, room);
}
#endif

/* ---- the low-rank bias ---- */

/* Four terms a pass, so that to[] is loaded and stored once for four additions; they
 * still happen one after the other. The build forbids fused multiply-adds. */
static inline __attribute__((always_inline)) void
add_scaled(float *restrict to, const float *restrict from, size_t stride,
           const float *restrict factor, uint32_t terms, int first, uint32_t n)
{
    uint32_t r = 0;
    if (first) {
        for (uint32_t i = 0; i < n; i++)
            to[i] = factor[0] * from[i];
        r = 1;
    }
    for (; r + 4 <= terms; r += 4) {
        const float *row = from + r * stride, *f = factor + r;
        for (uint32_t i = 0; i < n; i++) {
            float sum = to[i] + f[0] * row[i];
            sum += f[1] * row[stride + i];
            sum += f[2] * row[2 * stride + i];
            to[i] = sum + f[3] * row[3 * stride + i];
        }
    }
    for (; r < terms; r++)
        for (uint32_t i = 0; i < n; i++)
            to[i] += factor[r] * from[r * stride + i];
}

static void add_scaled_portable(float *restrict to, const float *restrict from,
                                size_t stride, const float *restrict factor,
                                uint32_t terms, int first, uint32_t n)
{
    add_scaled(to, from, stride, factor, terms, first, n);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void
add_scaled_avx2(float *restrict to, const float *restrict from, size_t stride,
                const float *restrict factor, uint32_t terms, int first, uint32_t n)
{
    add_scaled(to, from, stride, factor, terms, first, n);
}

__attribute__((target("avx512f"))) static void
add_scaled_avx512(float *restrict to, const float *restrict from, size_t stride,
                  const float *restrict factor, uint32_t terms, int first, uint32_t n)
{
    add_scaled(to, from, stride, factor, terms, first, n);
}
#endif

/* ---- which of them ---- */

static const struct pp3_scan KERNELS[PP3_SCAN_PATHS] = {
    [PP3_SCAN_PORTABLE] = {maxima_portable, count_portable, above_portable, add_scaled_portable},
#if defined(__x86_64__)
    [PP3_SCAN_AVX2] = {maxima_avx2, count_avx2, above_avx2, add_scaled_avx2},
    [PP3_SCAN_AVX512] = {maxima_avx512, count_avx512, above_avx512, add_scaled_avx512},
#endif
};

static int can(int path)
{
#if defined(__x86_64__)
    if (path == PP3_SCAN_AVX512)
        return __builtin_cpu_supports("avx512f") != 0;
    if (path == PP3_SCAN_AVX2) /* no CPU has the one without the other; verify's loops
                                * use both */
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return path == PP3_SCAN_PORTABLE;
}

/* -1: not looked up yet. Relaxed: every value ever stored names a usable path. */
static _Atomic int chosen = -1;

int pp3_scan_path(void)
{
    int path = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (path < 0) {
        for (path = PP3_SCAN_PATHS - 1; !can(path);)
            path--;
        atomic_store_explicit(&chosen, path, memory_order_relaxed);
    }
    return path;
}

int pp3_scan_force(int path)
{
    if (path >= PP3_SCAN_PATHS || (path >= 0 && !can(path)))
        return -ENOTSUP;
    atomic_store_explicit(&chosen, path < 0 ? -1 : path, memory_order_relaxed);
    return 0;
}

const struct pp3_scan *pp3_scan_here(void)
{
    return &KERNELS[pp3_scan_path()];
}
