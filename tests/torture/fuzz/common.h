/* What the fuzzed targets share: results kept alive, blocks of exact size, and a
 * mutator that knows where words and drafts stand and makes the CRC right again. */
#ifndef FUZZ_COMMON_H
#define FUZZ_COMMON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t most);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* A part of the runs mutates as libFuzzer would without us. */
static inline bool plain(void)
{
    static int asked = -1;
    if (asked < 0)
        asked = getenv("PP3_FUZZ_PLAIN") != NULL;
    return asked == 1;
}

/* The compiler has to make the value: without it an access whose result nobody uses is
 * removed, and so is its fault. */
#define KEEP(value) __asm__ volatile("" : : "g"(value) : "memory")

/* Every byte of a block is read, so that the sanitizer sees each. */
static inline void keep_bytes(const uint8_t *from, size_t n)
{
    uint32_t sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += from[i];
    KEEP(sum);
}

/* What must hold whatever the input; a failure is a crash that libFuzzer reports. */
#define HOLDS(condition)                                                               \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "DOES NOT HOLD: %s (%s:%d)\n", #condition, __FILE__,       \
                    __LINE__);                                                         \
            abort();                                                                   \
        }                                                                              \
    } while (0)

/* A heap block that ends where the next byte is poisoned. */
static inline uint8_t *exact(const uint8_t *from, size_t n)
{
    uint8_t *block = malloc(n ? n : 1);
    if (!block)
        abort();
    if (from)
        memcpy(block, from, n);
    return block;
}

static inline uint32_t word_at(const uint8_t *from)
{
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

struct draws {
    uint64_t state;
};

static inline uint32_t draw(struct draws *d, uint32_t below)
{
    d->state ^= d->state << 13;
    d->state ^= d->state >> 7;
    d->state ^= d->state << 17;
    return below ? (uint32_t)(d->state >> 33) % below : 0;
}

/* From the tables of the layout; see inputs.py. */
extern const uint32_t boundary[];
extern const uint32_t boundaries;

/* One change of a block whose words stand 4 bytes apart, drafts 128. */
static inline void change_word(struct draws *d, uint8_t *at, size_t size)
{
    size_t words = size / 4;
    if (words == 0)
        return;
    uint8_t *one = at + 4 * (size_t)draw(d, (uint32_t)words);
    uint8_t *other = at + 4 * (size_t)draw(d, (uint32_t)words);
    uint32_t word = word_at(one), second = word_at(other);
    size_t room = size - (size_t)(one - at);
    switch (draw(d, 8)) {
    case 0:
    case 1:
        word = boundary[draw(d, boundaries)];
        break;
    case 2:
        word += draw(d, 2) ? 1u : UINT32_MAX;
        break;
    case 3:
        word ^= 1u << draw(d, 32);
        break;
    case 4: /* change places */
        memcpy(other, &word, 4);
        word = second;
        break;
    case 5: /* the same twice */
        word = second;
        break;
    case 6: /* a whole draft filled, or run on from here */
        for (size_t i = 0; i < 32 && 4 * i + 4 <= room; i++) {
            uint32_t filled = draw(d, 4) ? word : word + (uint32_t)i;
            memcpy(one + 4 * i, &filled, 4);
        }
        return;
    default: /* one draft copied over another, as far as both have room */
        room = room < size - (size_t)(other - at) ? room : size - (size_t)(other - at);
        memmove(one, other, room < 128 ? room : 128);
        return;
    }
    memcpy(one, &word, 4);
}

#endif
