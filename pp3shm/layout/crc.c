#include "layout/crc.h"

#include "layout/fold.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <sys/auxv.h>
#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1u << 7) /* the Linux ABI's bit, where the header lacks it */
#endif
#endif

/* The polynomial, bit-reflected: the coefficient of x^31 stands in bit 0. */
#define POLYNOMIAL 0xEDB88320u

struct pp3_crc_way {
    void (*block)(struct pp3_crc_run *run, const uint8_t *block);
    uint32_t (*update)(uint32_t state, const uint8_t *data, size_t n);
};

static uint64_t load64(const uint8_t *from)
{
    uint64_t word; /* little-endian, as all CPUs that build this */
    memcpy(&word, from, sizeof word);
    return word;
}

/* ---- by table: slice[k][b] is byte b followed by k zero bytes ---- */

static uint32_t slice[8][256];

static void fill_slices(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++)
            state = (state >> 1) ^ (POLYNOMIAL & (0u - (state & 1u)));
        slice[0][byte] = state;
    }
    for (int k = 1; k < 8; k++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = slice[k - 1][byte];
            slice[k][byte] = (before >> 8) ^ slice[0][before & 0xffu];
        }
}

static uint32_t table_update(uint32_t state, const uint8_t *data, size_t n)
{
    for (; n >= 8; n -= 8, data += 8) {
        uint64_t word = load64(data) ^ state;
        state = 0;
        for (int k = 0; k < 8; k++)
            state ^= slice[7 - k][(word >> (8 * k)) & 0xffu];
    }
    for (; n > 0; n--, data++)
        state = (state >> 8) ^ slice[0][(state ^ *data) & 0xffu];
    return state;
}

static void table_block(struct pp3_crc_run *run, const uint8_t *block)
{
    run->state = table_update(run->state, block, PP3_CRC_BLOCK);
}

/* ---- by carry-less multiplication ---- */

#if defined(__x86_64__)

#define CLMUL __attribute__((target("pclmul,sse2")))

CLMUL static inline __m128i moved(__m128i lane, __m128i powers)
{
    return _mm_xor_si128(_mm_clmulepi64_si128(lane, powers, 0x00),
                         _mm_clmulepi64_si128(lane, powers, 0x11));
}

CLMUL static void clmul_block(struct pp3_crc_run *run, const uint8_t *block)
{
    const __m128i powers = _mm_set_epi64x(PP3_X480, PP3_X544);
    __m128i lane[4];
    for (int i = 0; i < 4; i++) {
        __m128i first = _mm_loadu_si128((const __m128i *)(block + 16 * i));
        __m128i second = _mm_loadu_si128((const __m128i *)(block + 64 + 16 * i));
        if (run->folded)
            lane[i] = moved(_mm_load_si128((const __m128i *)(run->lanes + 16 * i)), powers);
        else /* the state so far counts as if xored into the first four bytes */
            lane[i] = i ? _mm_setzero_si128() : _mm_cvtsi32_si128((int)run->state);
        lane[i] = _mm_xor_si128(lane[i], first);
        lane[i] = _mm_xor_si128(moved(lane[i], powers), second);
        _mm_store_si128((__m128i *)(run->lanes + 16 * i), lane[i]);
    }
    run->folded = 1;
}

/* 16 bytes whose remainder is the CRC's register. */
CLMUL static uint32_t reduced(__m128i sum)
{
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, sum);
    return table_update(0, rest, sizeof rest);
}

/* The lanes as one 128-bit message of the same remainder. */
CLMUL static uint32_t clmul_close(const struct pp3_crc_run *run)
{
    const __m128i powers = _mm_set_epi64x(PP3_X096, PP3_X160);
    __m128i sum = _mm_load_si128((const __m128i *)run->lanes);
    for (int i = 1; i < 4; i++)
        sum = _mm_xor_si128(moved(sum, powers),
                            _mm_load_si128((const __m128i *)(run->lanes + 16 * i)));
    return reduced(sum);
}

CLMUL static uint32_t clmul_update(uint32_t state, const uint8_t *data, size_t n)
{
    const __m128i powers = _mm_set_epi64x(PP3_X096, PP3_X160);
    if (n >= 32) {
        __m128i sum = _mm_xor_si128(_mm_loadu_si128((const __m128i *)data),
                                    _mm_cvtsi32_si128((int)state));
        for (data += 16, n -= 16; n >= 16; data += 16, n -= 16)
            sum = _mm_xor_si128(moved(sum, powers),
                                _mm_loadu_si128((const __m128i *)data));
        state = reduced(sum);
    }
    return table_update(state, data, n);
}

PP3_WIDE static void wide_block(struct pp3_crc_run *run, const uint8_t *block)
{
    __m512i first = _mm512_loadu_si512(block), lanes;
    if (run->folded) {
        lanes = pp3_fold(_mm512_load_si512(run->lanes), first);
    } else { /* the state so far counts as if xored into the first four bytes */
        __m512i state = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)run->state));
        lanes = _mm512_xor_si512(state, first);
    }
    lanes = pp3_fold(lanes, _mm512_loadu_si512(block + 64));
    _mm512_store_si512(run->lanes, lanes);
    run->folded = 1;
}

#elif defined(__aarch64__)

#if defined(__clang__)
#define CRC_INSTRUCTIONS __attribute__((target("crc")))
#else
#define CRC_INSTRUCTIONS __attribute__((target("+crc")))
#endif

CRC_INSTRUCTIONS static uint32_t arm_update(uint32_t state, const uint8_t *data, size_t n)
{
    for (; n >= 8; n -= 8, data += 8)
        state = __crc32d(state, load64(data));
    for (; n > 0; n--, data++)
        state = __crc32b(state, *data);
    return state;
}

static void arm_block(struct pp3_crc_run *run, const uint8_t *block)
{
    run->state = arm_update(run->state, block, PP3_CRC_BLOCK);
}

#endif

/* ---- the choice ---- */

static const struct pp3_crc_way ways[] = {
    [PP3_CRC_TABLE] = {table_block, table_update},
#if defined(__x86_64__)
    [PP3_CRC_PCLMUL] = {clmul_block, clmul_update},
    [PP3_CRC_WIDE] = {wide_block, clmul_update},
#elif defined(__aarch64__)
    [PP3_CRC_ARM] = {arm_block, arm_update},
#endif
};

/* Relaxed: any value it ever holds names a way that works on this CPU. */
static _Atomic int chosen = PP3_CRC_TABLE;

static bool has(int path)
{
    switch (path) {
    case PP3_CRC_TABLE:
        return true;
#if defined(__x86_64__)
    case PP3_CRC_PCLMUL: {
        unsigned a, b, c, d; /* leaf 1: SSE2 is part of the architecture */
        return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_PCLMUL);
    }
    case PP3_CRC_WIDE:
        return has(PP3_CRC_PCLMUL) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("vpclmulqdq");
#elif defined(__aarch64__)
    case PP3_CRC_ARM:
        return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
#endif
    default:
        return false;
    }
}

int pp3_crc_path(void)
{
    return atomic_load_explicit(&chosen, memory_order_relaxed);
}

int pp3_crc_force(int path)
{
    if (!has(path))
        return -EINVAL;
    atomic_store_explicit(&chosen, path, memory_order_relaxed);
    return 0;
}

/* Runs when the library is loaded, before any other thread can call into it. */
__attribute__((constructor)) static void choose(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init(); /* this may run before the compiler's own constructor */
#endif
    fill_slices();
    for (int path = PP3_CRC_WIDE; path >= PP3_CRC_TABLE; path--)
        if (pp3_crc_force(path) == 0)
            return;
}

void pp3_crc_begin(struct pp3_crc_run *run, uint32_t crc)
{
    run->way = &ways[pp3_crc_path()];
    run->state = ~crc;
    run->folded = 0;
}

void pp3_crc_block(struct pp3_crc_run *run, const uint8_t block[PP3_CRC_BLOCK])
{
    run->way->block(run, block);
}

uint32_t pp3_crc_end(struct pp3_crc_run *run)
{
#if defined(__x86_64__)
    if (run->folded)
        run->state = clmul_close(run);
#endif
    return ~run->state;
}

uint32_t pp3_crc32(uint32_t crc, const void *data, size_t n)
{
    const uint8_t *at = data;
    if (n >= PP3_CRC_BLOCK) {
        struct pp3_crc_run run;
        pp3_crc_begin(&run, crc);
        for (; n >= PP3_CRC_BLOCK; n -= PP3_CRC_BLOCK, at += PP3_CRC_BLOCK)
            pp3_crc_block(&run, at);
        crc = pp3_crc_end(&run);
    }
    return ~ways[pp3_crc_path()].update(~crc, at, n);
}
