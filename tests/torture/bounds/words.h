/* The machine under ring.h for the prover: whatever stands in the region may be another
 * at each look, so every load gives any value; every store and swap has to have a place. */
#ifndef BOUNDS_WORDS_H
#define BOUNDS_WORDS_H

#include "small.h"

#include <errno.h>

#define PP3_MACHINE
#define PP3_A32 uint32_t
#define PP3_A64 uint64_t
#define PP3_COUNTERS 64u
#define PP3_NOTE_WORDS 2u
#define PP3_MAX_RANKS 2u
#define PP3_MAX_OWNERS 3u
#define PP3_TRIES 1

static inline uint64_t any_word(const volatile void *at, size_t n)
{
    const volatile uint8_t *bytes = at;
    volatile uint8_t read = bytes[0];
    read = bytes[n - 1];
    return nondet_u64();
}

static bool forked; /* a child that was forked: from its first instruction on */

#define PP3_LOAD(p, order) ((__typeof__(*(p) + 0))any_word(p, sizeof *(p)))
#define PP3_STORE(p, v, order) ((void)(*(p) = (v)))
/* A swap that lost leads to a loop's next turn, which begins as the first one does: with
 * any words and any cursor. So one turn is the proof of all. */
#define PP3_CAS(p, seen, v, won, lost)                                                 \
    (*(p) = (v), *(seen) = PP3_LOAD(p, lost), ASSUME(nondet_bool()), 1)
#define PP3_ADD(p, n, order) (*(p) = nondet_u32(), (__typeof__(*(p) + 0))nondet_u64())
#define PP3_FENCE(order) ((void)0)
#define PP3_COPY(to, from, n) memcpy(to, from, n)
#define PP3_STAMP(to, ticket) memcpy(to, &(uint64_t){ticket}, 8)
#define PP3_STEP(point) ((void)0)
#define PP3_FUTEX_WAIT(p, v, until_ns) nondet_bool()
#define PP3_FUTEX_WAKE(p) ((void)PP3_LOAD(p, relaxed))
#define PP3_NOW() nondet_u64()
#define PP3_GONE(pidfd) nondet_bool()
#define PP3_WAKE_WORK(r) ((void)(r)->bell_fd)
#define PP3_WAKE_WATCHDOG(r) ((void)(r)->engine->nudge_fd)
#define PP3_COUNT(r, index) ((void)(r)->header)
#define PP3_PAUSE() ((void)0)
#define PP3_HERE(r) (!forked)

#include "ring/ring.h"

enum { ROUNDS = 2, PAGES = 3, RANKS = 2, SLOTS_IN = 2, POSITIONS = 2 };

/* An end over segments of the exact sizes of a small shape; whose words are any. */
static inline struct pp3_ring *end_of(uint32_t page_bytes, uint32_t request_bytes)
{
    struct pp3_ring *r = malloc(sizeof *r);
    forked = nondet_bool();
    ASSUME(r != NULL);
    r->rounds = ROUNDS;
    r->pages = PAGES;
    r->ranks = RANKS;
    r->page_bytes = page_bytes;
    r->request_bytes = request_bytes;
    r->slots = SLOTS_IN;
    r->max_positions = POSITIONS;
    r->owner = nondet_u32();
    ASSUME(r->owner <= PP3_MAX_OWNERS);
    r->page_stride = page_bytes;
    r->request_stride = request_bytes;
    r->slot_stride = PP3_LINE + 4 * POSITIONS;
    r->ack_words = ROUNDS;
    r->header = malloc(sizeof *r->header);
    r->entries = malloc(ROUNDS * sizeof *r->entries);
    r->give = malloc(PAGES * sizeof *r->give);
    r->acks = malloc(RANKS * ROUNDS * sizeof *r->acks);
    r->page = malloc(PAGES * page_bytes);
    r->request = malloc(PAGES * request_bytes);
    r->slot = malloc(SLOTS_IN * r->slot_stride);
    ASSUME(r->header && r->entries && r->give && r->acks && r->page && r->request &&
           r->slot);
    r->cursor = nondet_u64();
    r->bell_fd = -1;
    r->engine = NULL;
    return r;
}

#endif
