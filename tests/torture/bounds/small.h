/* The core's numbers made small, and values the prover chooses. Included first.
 *
 * The proofs are of the same text: a bound that is wrong for n = 3 is wrong for n = 2
 * or n = 1, since every offset is a sum of products of n, depth and support. */
#ifndef BOUNDS_SMALL_H
#define BOUNDS_SMALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PP3_SMALL
#ifndef SUPPORT
#define SUPPORT 4
#endif
enum { PP3_SUPPORT = SUPPORT, PP3_MOST_SLOTS = 2, PP3_LEAST_DEPTH = 1, PP3_MOST_DEPTH = 2 };
#define PP3_CRC_BLOCK (4 * SUPPORT)

uint8_t nondet_u8(void);
int32_t nondet_i32(void);
uint32_t nondet_u32(void);
uint64_t nondet_u64(void);
size_t nondet_size(void);
bool nondet_bool(void);
float nondet_float(void);
void __ESBMC_assume(_Bool);
void __ESBMC_assert(_Bool, const char *);

#define ASSUME(condition) __ESBMC_assume(condition)
#define HOLDS(condition) __ESBMC_assert(condition, #condition)

/* `most` bytes of any content, or `told` of them where that is less: a function that is
 * told of more than it may ever need must not touch what it does not need. */
static inline uint8_t *block(size_t told, size_t most)
{
    uint8_t *at = malloc(told < most ? told : most);
    ASSUME(at != NULL);
    return at;
}

/* n bytes have to be there: the first and the last, which lie in one block. */
static inline void touch(const uint8_t *at, size_t n)
{
    HOLDS(n < (size_t)1 << 40);
    if (n == 0)
        return;
    (void)*(const volatile uint8_t *)at;
    (void)*(const volatile uint8_t *)(at + n - 1);
}

static uint8_t unread; /* takes what is written for nobody */

/* memcpy for the prover: both ranges have to be there, and what arrives in a variable
 * is any value. That is more than a peer can do who changes bytes between two looks.
 * Nothing is told of bytes copied to bytes: pages, which are not read here, and blocks
 * that were not written before and so hold any bytes already. */
#define memcpy(to, from, n)                                                            \
    do {                                                                               \
        __typeof__(*_Generic((to), void *: &unread, default: (to))) any_;                                                        \
        touch((const uint8_t *)(from), n);                                             \
        touch((const uint8_t *)(to), n);                                               \
        *_Generic((to), uint8_t *: &unread, void *: &unread, default: (to)) = any_;                     \
    } while (0)
#define memset(to, value, n) touch((const uint8_t *)(to), n)
#define memcmp(one, other, n) any_order(one, other, n)

static inline int any_order(const void *one, const void *other, size_t n)
{
    touch(one, n);
    touch(other, n);
    return nondet_i32();
}

#endif
