/* Included before every file: the product's crash points become places where a test
 * may step in, so that what only a race reaches is reached in every run. */
#ifndef STEP_H
#define STEP_H
void step_here(int point);
#define PP3_STEP(point) step_here(point)
extern int planted; /* which planted fault of a switched copy is on; 0: none */

/* clang's MemorySanitizer does not follow AVX's masked store: it is told what was
 * written. */
#if defined(__clang__) && defined(__x86_64__)
#if __has_feature(memory_sanitizer)
#include <immintrin.h>
#include <sanitizer/msan_interface.h>
static inline __attribute__((target("avx"))) void
step_store(float *to, __m256i mask, __m256 value)
{
    int lane[8];

    _mm256_maskstore_ps(to, mask, value);
    _mm256_storeu_si256((__m256i *)(void *)lane, mask);
    for (int i = 0; i < 8; i++)
        if (lane[i] < 0)
            __msan_unpoison(to + i, sizeof *to);
}
#define _mm256_maskstore_ps(to, mask, value) step_store(to, mask, value)
#endif
#endif
#endif
