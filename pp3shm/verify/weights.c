#include "weights.h"

#include <math.h>
#include <string.h>

#include "proposal/scan.h"

/* t = n + r with n a whole number of parts; 2^t = 2^n * 2^r. Adding MAGIC and taking it
 * away again rounds to nearest, for |t| < 2^17; what is larger is infinite anyhow. */
#define LEAST (-200.0f) /* 2^-200 is 0 in FP32 */

/* 2^r for |r| <= 1/2, fitted to the least relative error: 2e-9, and then its rounding. */
#define C1 0.6931472028534346f
#define C2 0.24022647911391676f
#define C3 0.0555033247180045f
#define C4 0.009618437589072546f
#define C5 0.0013398874444153427f
#define C6 0.00015353304371326312f

/* ---- portable: four floats at a time ---- */

typedef float four __attribute__((vector_size(16)));
typedef int32_t four_bits __attribute__((vector_size(16)));
#define MAGIC 12582912.0f /* 1.5 * 2^23 */

static inline four pick(four_bits mask, four yes, four no)
{
    return (four)((mask & (four_bits)yes) | (~mask & (four_bits)no));
}

static inline four weight_four(four x, float peak, float scale)
{
    four t = (x - peak) * scale, low = {LEAST, LEAST, LEAST, LEAST};
    four high = {128, 128, 128, 128};
    four_bits zero, n;
    four whole, r, y;
    four_bits bits;

    t = pick(t < low, low, t); /* a NaN stays one */
    t = pick(t > high, high, t);
    zero = t < -126.0f;
    t = pick(zero, (four){0}, t);
    whole = t + MAGIC;
    memcpy(&bits, &whole, sizeof bits);
    n = bits - 0x4b400000;
    r = t - (whole - MAGIC);
    y = C5 + r * C6;
    y = C4 + r * y;
    y = C3 + r * y;
    y = C2 + r * y;
    y = C1 + r * y;
    y = 1.0f + r * y;
    n = (n + 127) << 23; /* 2^128: the bits of infinity; a NaN's are any */
    memcpy(&whole, &n, sizeof whole);
    y = y * whole;
    y = pick(t != t, t, y);
    return pick(zero, (four){0}, y);
}

/* n < 4 floats; the others are -inf. */
static inline four few_four(const float *z, const float *bias, size_t n)
{
    four x = {-INFINITY, -INFINITY, -INFINITY, -INFINITY};

    for (size_t i = 0; i < n; i++)
        x[i] = bias ? z[i] + bias[i] : z[i];
    return x;
}

static inline four load_four(const float *z, const float *bias)
{
    four x, b;

    memcpy(&x, z, sizeof x);
    if (!bias)
        return x;
    memcpy(&b, bias, sizeof b);
    return x + b;
}

static void block_portable(const float *z, const float *bias, size_t n, float peak,
                           float scale, float *weight)
{
    size_t i = 0;

    for (; i + 4 <= n; i += 4) {
        four w = weight_four(load_four(z + i, bias ? bias + i : 0), peak, scale);
        memcpy(weight + i, &w, sizeof w);
    }
    if (i < n) {
        four w = weight_four(few_four(z + i, bias ? bias + i : 0, n - i), peak, scale);
        for (size_t j = i; j < n; j++)
            weight[j] = w[j - i];
    }
}

static double sum_portable(const float *z, const float *bias, size_t n, float peak,
                           float scale)
{
    four a = {0}, b = {0};
    size_t i = 0;

    for (; i + 8 <= n; i += 8) {
        const float *two = bias ? bias + i : 0;
        a += weight_four(load_four(z + i, two), peak, scale);
        b += weight_four(load_four(z + i + 4, two ? two + 4 : 0), peak, scale);
    }
    for (; i < n; i += 4) {
        const float *two = bias ? bias + i : 0;
        size_t left = n - i;
        a += weight_four(left < 4 ? few_four(z + i, two, left) : load_four(z + i, two),
                         peak, scale);
    }
    a += b;
    return (double)((a[0] + a[2]) + (a[1] + a[3]));
}

static void sums_portable(const float *z, const float *bias, size_t n, float peak,
                          float scale, double *sum)
{
    for (size_t from = 0; from < n; from += PP3_BLOCK)
        *sum++ = sum_portable(z + from, bias ? bias + from : 0,
                              n - from < PP3_BLOCK ? n - from : PP3_BLOCK, peak, scale);
}

/* In FP64 the order of additions is not seen at the precision of a draw. */
static inline __attribute__((always_inline)) double total(const float *weight, size_t n)
{
    double lane[32] = {0}, sum = 0;
    size_t i = 0;

    for (; i + 32 <= n; i += 32)
        for (unsigned j = 0; j < 32; j++)
            lane[j] += (double)weight[i + j];
    for (; i < n; i++)
        sum += (double)weight[i];
    for (unsigned j = 0; j < 32; j++)
        sum += lane[j];
    return sum;
}

static double total_portable(const float *weight, size_t n) { return total(weight, n); }

#if defined(__x86_64__)
#include <immintrin.h>

/* ---- AVX2 and FMA ---- */

#define AVX2 __attribute__((target("avx2,fma")))

AVX2 static inline __m256 weight_avx2(__m256 x, __m256 peak, __m256 scale)
{
    __m256 t = _mm256_mul_ps(_mm256_sub_ps(x, peak), scale), whole, r, y, live;
    __m256i n;

    /* max and min give their second operand where one is NaN: it stays one */
    t = _mm256_max_ps(_mm256_set1_ps(LEAST), t);
    t = _mm256_min_ps(_mm256_set1_ps(128), t);
    live = _mm256_cmp_ps(t, _mm256_set1_ps(-126), _CMP_NLT_UQ);
    whole = _mm256_round_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    r = _mm256_sub_ps(t, whole);
    y = _mm256_fmadd_ps(r, _mm256_set1_ps(C6), _mm256_set1_ps(C5));
    y = _mm256_fmadd_ps(r, y, _mm256_set1_ps(C4));
    y = _mm256_fmadd_ps(r, y, _mm256_set1_ps(C3));
    y = _mm256_fmadd_ps(r, y, _mm256_set1_ps(C2));
    y = _mm256_fmadd_ps(r, y, _mm256_set1_ps(C1));
    y = _mm256_fmadd_ps(r, y, _mm256_set1_ps(1));
    n = _mm256_add_epi32(_mm256_cvtps_epi32(whole), _mm256_set1_epi32(127));
    y = _mm256_mul_ps(y, _mm256_castsi256_ps(_mm256_slli_epi32(n, 23)));
    return _mm256_and_ps(y, live);
}

AVX2 static inline __m256i first_avx2(size_t n)
{
    const __m256i place = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), place);
}

/* n < 8 floats; the others are -inf. */
AVX2 static inline __m256 few_avx2(const float *z, const float *bias, size_t n)
{
    __m256i here = first_avx2(n);
    __m256 x = _mm256_maskload_ps(z, here);

    if (bias)
        x = _mm256_add_ps(x, _mm256_maskload_ps(bias, here));
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), x, _mm256_castsi256_ps(here));
}

AVX2 static inline __m256 load_avx2(const float *z, const float *bias)
{
    __m256 x = _mm256_loadu_ps(z);
    return bias ? _mm256_add_ps(x, _mm256_loadu_ps(bias)) : x;
}

AVX2 static void block_avx2(const float *z, const float *bias, size_t n, float peak,
                            float scale, float *weight)
{
    __m256 p = _mm256_set1_ps(peak), s = _mm256_set1_ps(scale);
    size_t i = 0;

    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(weight + i,
                         weight_avx2(load_avx2(z + i, bias ? bias + i : 0), p, s));
    if (i < n)
        _mm256_maskstore_ps(
            weight + i, first_avx2(n - i),
            weight_avx2(few_avx2(z + i, bias ? bias + i : 0, n - i), p, s));
}

AVX2 static void sums_avx2(const float *z, const float *bias, size_t n, float peak,
                           float scale, double *sum)
{
    __m256 p = _mm256_set1_ps(peak), s = _mm256_set1_ps(scale);

    for (size_t from = 0; from < n; from += PP3_BLOCK) {
        size_t end = n - from < PP3_BLOCK ? n : from + PP3_BLOCK, i = from;
        __m256 a = _mm256_setzero_ps(), b = a;
        float lane[8];
        for (; i + 16 <= end; i += 16) {
            const float *two = bias ? bias + i : 0;
            a = _mm256_add_ps(a, weight_avx2(load_avx2(z + i, two), p, s));
            b = _mm256_add_ps(
                b, weight_avx2(load_avx2(z + i + 8, two ? two + 8 : 0), p, s));
        }
        for (; i < end; i += 8) {
            const float *two = bias ? bias + i : 0;
            size_t left = end - i;
            __m256 x = left < 8 ? few_avx2(z + i, two, left) : load_avx2(z + i, two);
            a = _mm256_add_ps(a, weight_avx2(x, p, s));
        }
        _mm256_storeu_ps(lane, _mm256_add_ps(a, b));
        *sum++ = (double)((lane[0] + lane[4]) + (lane[2] + lane[6])) +
                 (double)((lane[1] + lane[5]) + (lane[3] + lane[7]));
    }
}

AVX2 static double total_avx2(const float *weight, size_t n) { return total(weight, n); }

/* ---- AVX-512 ---- */

#define AVX512 __attribute__((target("avx512f")))

/* t = (z * scale) - shift, with shift near peak * scale and whole, so that
 * u = z * scale + (MAGIC_32 - shift) is t rounded to 1/32, in the low bits of u. With
 * k = t rounded, r = t - k and 2^r = C (( r + H)^2 + G), fitted for |r| <= 1/64 to a
 * relative error of 1.3e-7; H is a multiple of 1/32, so that H - k is exact. C times
 * 2^(j/32) comes from a table by the low five bits of u, its exponent from the others:
 * the entries lack the j << 18 that shifting u up adds to them. */
#define MAGIC_32 393216.0f /* 1.5 * 2^18: its unit is 1/32 */
#define H 1.4375f
#define G 2.0812601056676874f
#define LOW (-120.0f) /* less weighs nothing: below 2^-120 of what the peak weighs */
#define HIGH 126.0f
#define SHIFT_MOST 65536.0f /* u stays where its unit is 1/32 */

static const uint32_t POWER[32] = {
    0x3e76e2c4, 0x3e784ab9, 0x3e78e87f, 0x3e77bb1d, 0x3e769d8d, 0x3e759029,
    0x3e74934b, 0x3e73a750, 0x3e72cc97, 0x3e72037f, 0x3e714c6c, 0x3e70a7c4,
    0x3e7015ec, 0x3e6f974f, 0x3e6f2c59, 0x3e6ed577, 0x3e6e931a, 0x3e6e65b6,
    0x3e6e4dbf, 0x3e6e4bae, 0x3e6e5ffe, 0x3e6e8b2c, 0x3e6ecdb8, 0x3e6f2826,
    0x3e6f9afa, 0x3e7026bf, 0x3e70cbff, 0x3e718b49, 0x3e726531, 0x3e735a4a,
    0x3e746b2d, 0x3e759876,
};

struct fast { __m512i low, high; __m512 scale, magic, minus, h, g, least; };

AVX512 static inline struct fast fast_of(float shift, float scale)
{
    return (struct fast){
        _mm512_loadu_si512(POWER),          _mm512_loadu_si512(POWER + 16),
        _mm512_set1_ps(scale),              _mm512_set1_ps(MAGIC_32 - shift),
        _mm512_set1_ps(MAGIC_32 - shift + H), _mm512_set1_ps(H),
        _mm512_set1_ps(G),                  _mm512_set1_ps(MAGIC_32 + LOW)};
}

AVX512 static inline __m512 load_avx512(const float *z, const float *bias)
{
    __m512 x = _mm512_loadu_ps(z);
    return bias ? _mm512_add_ps(x, _mm512_loadu_ps(bias)) : x;
}

AVX512 static inline __m512 few_avx512(const float *z, const float *bias, __mmask16 here)
{
    __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), here, z);
    return bias ? _mm512_mask_add_ps(x, here, x, _mm512_maskz_loadu_ps(here, bias)) : x;
}

/* sum + the weights of x. *most gathers the largest x. */
AVX512 static inline __m512 add_weights(__m512 sum, __m512 x, const struct fast *k,
                                        __m512 *most)
{
    __m512 u = _mm512_fmadd_ps(x, k->scale, k->magic), s, power;
    __m512i bits = _mm512_castps_si512(u);
    /* a NaN is counted, and spoils the sum */
    __mmask16 counted = _mm512_cmp_ps_mask(u, k->least, _CMP_NLE_UQ);

    *most = _mm512_max_ps(*most, x);
    s = _mm512_fmadd_ps(x, k->scale, _mm512_sub_ps(k->minus, u));
    power = _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_permutex2var_epi32(k->low, bits, k->high),
                         _mm512_slli_epi32(bits, 18)));
    return _mm512_mask3_fmadd_ps(power, _mm512_fmadd_ps(s, s, k->g), sum, counted);
}

/* Inlined twice, so that the loop without a bias does not ask for one. */
AVX512 static inline __attribute__((always_inline)) double block_sum(const float *z, const float *bias, size_t n,
                                      const struct fast *k, __m512 *most)
{
    __m512 a = _mm512_setzero_ps(), b = a, c = a, d = a;
    size_t i = 0;

    for (; i + 64 <= n; i += 64) {
        const float *two = bias ? bias + i : 0;
        a = add_weights(a, load_avx512(z + i, two), k, most);
        b = add_weights(b, load_avx512(z + i + 16, two ? two + 16 : 0), k, most);
        c = add_weights(c, load_avx512(z + i + 32, two ? two + 32 : 0), k, most);
        d = add_weights(d, load_avx512(z + i + 48, two ? two + 48 : 0), k, most);
    }
    for (; i < n; i += 16) {
        __mmask16 here = (__mmask16)(n - i < 16 ? (1u << (n - i)) - 1 : 0xffff);
        a = add_weights(a, few_avx512(z + i, bias ? bias + i : 0, here), k, most);
    }
    a = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
    return (double)_mm512_reduce_add_ps(a);
}

/* Whole, and the same for a row's sums and its blocks. */
static float shift_of(float peak, float scale) { return rintf(peak * scale); }

AVX512 static void sums_avx512(const float *z, const float *bias, size_t n, float peak,
                               float scale, double *sum)
{
    float shift = shift_of(peak, scale);
    struct fast k = fast_of(shift, scale);
    __m512 most = _mm512_set1_ps(-INFINITY);
    double *first = sum;

    if (!(fabsf(shift) <= SHIFT_MOST)) { /* logits or inverse temperature are huge */
        sums_avx2(z, bias, n, peak, scale, sum);
        return;
    }
    for (size_t from = 0; from < n; from += PP3_BLOCK) {
        size_t width = n - from < PP3_BLOCK ? n - from : PP3_BLOCK;
        *sum++ = bias ? block_sum(z + from, bias + from, width, &k, &most)
                      : block_sum(z + from, 0, width, &k, &most);
    }
    /* A weight that was too large for the arithmetic above is any number. NaNs are
     * not among the largest, but in the sums. */
    if (!(_mm512_reduce_max_ps(most) * scale - shift < HIGH))
        *first = INFINITY;
}

AVX512 static void block_avx512(const float *z, const float *bias, size_t n, float peak,
                                float scale, float *weight)
{
    float shift = shift_of(peak, scale);
    struct fast k = fast_of(shift, scale);
    __m512 most = _mm512_setzero_ps(), none = _mm512_setzero_ps();
    size_t i = 0;

    if (!(fabsf(shift) <= SHIFT_MOST)) {
        block_avx2(z, bias, n, peak, scale, weight);
        return;
    }
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(weight + i,
                         add_weights(none, load_avx512(z + i, bias ? bias + i : 0), &k,
                                     &most));
    if (i < n) {
        __mmask16 here = (__mmask16)((1u << (n - i)) - 1);
        __m512 x = few_avx512(z + i, bias ? bias + i : 0, here);
        _mm512_mask_storeu_ps(weight + i, here, add_weights(none, x, &k, &most));
    }
}

AVX512 static double total_avx512(const float *weight, size_t n)
{
    return total(weight, n);
}
#endif

static const struct pp3_weights WEIGHTS[PP3_SCAN_PATHS] = {
    [PP3_SCAN_PORTABLE] = {sums_portable, block_portable, total_portable},
#if defined(__x86_64__)
    [PP3_SCAN_AVX2] = {sums_avx2, block_avx2, total_avx2},
    [PP3_SCAN_AVX512] = {sums_avx512, block_avx512, total_avx512},
#endif
};

const struct pp3_weights *pp3_weights_here(void) { return &WEIGHTS[pp3_scan_path()]; }
