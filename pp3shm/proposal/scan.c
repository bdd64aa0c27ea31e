#include "scan.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* How it works: a tournament of spans.
 *
 * The row is cut into spans and the maximum of each is taken: the one full pass. Let t
 * be the k-th largest of the maxima. k spans hold an entry of at least t, so the k
 * largest entries all are at least t: a span whose maximum is below t is out. Of spans
 * whose maximum equals t the first k stay: each holds an entry equal to t, and ties go
 * to the lower id. Fewer than k spans have a larger maximum, so at most 2k - 1 stay,
 * whatever the row looks like: ascending, constant, or rounded to bf16. They are cut
 * again, until spans are single entries; then "the first k that equal t" is the answer
 * itself, less those above t.
 */
#define FANOUT 16u      /* spans are cut into this many */
#define ENTRIES 32u     /* a span this short is cut into single entries */
#define COARSE 512u     /* first spans, FANOUT * ENTRIES */
#define SPANS_MAX 1024u /* of the first level; longer rows get longer first spans */
/* The widest level: all that may stay, cut into single entries. */
#define WIDEST ((2u * PP3_SUPPORT_MAX - 1u) * ENTRIES)

_Static_assert(COARSE == FANOUT * ENTRIES, "a coarse span is cut twice");
_Static_assert(WIDEST >= SPANS_MAX, "one array serves every level");
_Static_assert(sizeof(float) == 4, "logits are FP32");

/* Maxima of consecutive spans of a row of n entries, the last perhaps shorter.
 * Returns whether an entry was NaN; such an entry loses every comparison. */
typedef int maxima_fn(const float *z, const float *bias, size_t n, size_t span,
                      float *out);

/* How many of n keys are at least `least`. */
typedef uint32_t count_fn(const int32_t *keys, uint32_t n, int32_t least);

static float entry(const float *z, const float *bias, size_t i)
{
    return bias ? z[i] + bias[i] : z[i];
}

/* ---- portable ---- */

#define LANES 16u

static int maxima_portable(const float *z, const float *bias, size_t n, size_t span,
                           float *out)
{
    int nan = 0;
    for (size_t from = 0; from < n; from += span) {
        size_t end = n - from < span ? n : from + span;
        size_t i = from;
        float lane[LANES];
        int32_t odd[LANES] = {0};
        for (unsigned j = 0; j < LANES; j++)
            lane[j] = -INFINITY;
        for (; i + LANES <= end; i += LANES) {
            float x[LANES];
            memcpy(x, z + i, sizeof x);
            if (bias)
                for (unsigned j = 0; j < LANES; j++)
                    x[j] += bias[i + j];
            for (unsigned j = 0; j < LANES; j++) {
                lane[j] = x[j] > lane[j] ? x[j] : lane[j];
                odd[j] |= x[j] != x[j];
            }
        }
        float most = -INFINITY;
        for (unsigned j = 0; j < LANES; j++) {
            most = lane[j] > most ? lane[j] : most;
            nan |= odd[j];
        }
        for (; i < end; i++) {
            float x = entry(z, bias, i);
            most = x > most ? x : most;
            nan |= x != x;
        }
        *out++ = most;
    }
    return nan;
}

static uint32_t count_portable(const int32_t *keys, uint32_t n, int32_t least)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < n; i++)
        count += keys[i] >= least;
    return count;
}

/* ---- x86-64: the same with wider vectors ---- */

#if defined(__x86_64__)
#include <immintrin.h>

/* Short tail of a span, and what both vector paths share. */
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
#endif

/* ---- which of them ---- */

struct kernels {
    maxima_fn *maxima;
    count_fn *count;
};

static const struct kernels KERNELS[PP3_SCAN_PATHS] = {
    [PP3_SCAN_PORTABLE] = {maxima_portable, count_portable},
#if defined(__x86_64__)
    [PP3_SCAN_AVX2] = {maxima_avx2, count_avx2},
    [PP3_SCAN_AVX512] = {maxima_avx512, count_avx512},
#endif
};

static int can(int path)
{
#if defined(__x86_64__)
    if (path == PP3_SCAN_AVX512)
        return __builtin_cpu_supports("avx512f") != 0;
    if (path == PP3_SCAN_AVX2)
        return __builtin_cpu_supports("avx2") != 0;
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

/* ---- the tournament ---- */

/* FP32 as integers of the same order; adding +0.0 turns -0.0 into 0.0. */
static int32_t key_of(float x)
{
    int32_t bits;
    float plain = x + 0.0f;
    memcpy(&bits, &plain, sizeof bits);
    return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
}

/* A value that at least k of n keys reach and fewer than k exceed, k <= n: built bit by
 * bit from the top, it ends as the k-th largest key. Where exactly k keys reach a value
 * on the way, that one serves as well and ends the search. */
static int32_t kth_largest(count_fn *count, const int32_t *keys, uint32_t n, uint32_t k)
{
    /* Offset by 2^31, so that bits grow upwards from the least key. */
    uint32_t reached = count(keys, n, 0) >= k ? 0x80000000u : 0u;
    for (uint32_t bit = 0x40000000u; bit; bit >>= 1) {
        uint32_t tried = reached | bit;
        uint32_t have = count(keys, n, (int32_t)(tried ^ 0x80000000u));
        if (have >= k)
            reached = tried;
        if (have == k)
            break;
    }
    return (int32_t)(reached ^ 0x80000000u);
}

/* A level: n spans of one length, in ascending order of their first ids. */
struct level {
    uint32_t n;
    uint32_t span;
    uint32_t from[WIDEST];
    int32_t key[WIDEST];
};

/* Keeps the spans that can hold one of the k largest; at single entries, with `exact`,
 * those k themselves. If exactly k keys reach a t that none of them equals, those above
 * it are the k that stay, and both budgets of equal ones go unused. */
static void keep(count_fn *count, struct level *l, uint32_t k, int exact)
{
    if (l->n <= k)
        return;
    int32_t t = kth_largest(count, l->key, l->n, k);
    /* t + 1 is a key's value: no entry is above the largest float. */
    uint32_t equal = exact ? k - count(l->key, l->n, t + 1) : k;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->key[i] > t || (l->key[i] == t && equal && equal--))
            l->from[kept++] = l->from[i];
    l->n = kept;
}

/* Cuts every span of `from` into `to`. At most WIDEST come out: at most 2k - 1 spans
 * stay, or there were no more than k of them. */
static void cut(maxima_fn *maxima, const float *z, const float *bias, uint32_t vocab,
                const struct level *from, struct level *to)
{
    float most[ENTRIES];
    to->n = 0;
    to->span = from->span <= ENTRIES ? 1 : from->span / FANOUT;
    for (uint32_t s = 0; s < from->n; s++) {
        uint32_t at = from->from[s];
        uint32_t len = vocab - at < from->span ? vocab - at : from->span;
        const float *part = bias ? bias + at : NULL;
        if (to->span > 1)
            (void)maxima(z + at, part, len, to->span, most);
        for (uint32_t i = 0; i < len; i += to->span) {
            float x = to->span > 1 ? most[i / to->span] : entry(z + at, part, i);
            to->from[to->n] = at + i;
            to->key[to->n++] = key_of(x);
        }
    }
}

static int32_t first_bad(const float *z, const float *bias, uint32_t vocab)
{
    for (uint32_t i = 0; i < vocab; i++) {
        float x = entry(z, bias, i);
        if (x != x || x == INFINITY)
            return (int32_t)i;
    }
    return -1;
}

/* The one full pass. 0, or -EDOM. */
static int first_level(maxima_fn *maxima, const float *z, const float *bias,
                       uint32_t vocab, struct level *l)
{
    float most[SPANS_MAX];
    uint32_t span = COARSE;
    while ((vocab - 1) / span >= SPANS_MAX)
        span *= FANOUT;
    int nan = maxima(z, bias, vocab, span, most);
    l->n = (vocab - 1) / span + 1;
    l->span = span;
    for (uint32_t i = 0; i < l->n; i++) {
        l->from[i] = i * span;
        l->key[i] = key_of(most[i]);
        nan |= most[i] == INFINITY;
    }
    return nan ? -EDOM : 0;
}

int pp3_top(const float *z, const float *bias, uint32_t vocab, uint32_t k,
            int32_t *ids, float *values, int32_t *bad)
{
    struct level levels[2];
    struct level *l = &levels[0], *next = &levels[1];
    *bad = -1;
    if (k < 1 || k > PP3_SUPPORT_MAX || k > vocab || vocab > INT32_MAX)
        return -EINVAL;
    const struct kernels *use = &KERNELS[pp3_scan_path()];
    if (first_level(use->maxima, z, bias, vocab, l)) {
        *bad = first_bad(z, bias, vocab);
        return -EDOM;
    }
    while (l->span > 1) {
        keep(use->count, l, k, 0);
        cut(use->maxima, z, bias, vocab, l, next);
        struct level *done = l;
        l = next;
        next = done;
    }
    keep(use->count, l, k, 1);
    for (uint32_t i = 0; i < k; i++) {
        ids[i] = (int32_t)l->from[i];
        values[i] = entry(z, bias, l->from[i]);
    }
    return 0;
}
