/* What the actors of wakes.c share, what each counts, and the hooks into the core.
 *
 * The hooks change no step of the protocol. They count the sleeps, and they hold an
 * actor up at random before any access to a shared word and before it sleeps, as a
 * scheduler may do anywhere: the windows in which a wake could be lost become wide
 * enough to be hit.
 */
#ifndef WAKES_BOARD_H
#define WAKES_BOARD_H

#define PP3_STEP(point) hold_up(point)
static void hold_up(int point);

#include "ring/atomics.h"

#undef PP3_LOAD
#undef PP3_STORE
#undef PP3_CAS
#undef PP3_ADD
#define PP3_LOAD(p, order) (hold_up(0), atomic_load_explicit(p, memory_order_##order))
#define PP3_STORE(p, v, order)                                                         \
    (hold_up(0), atomic_store_explicit(p, v, memory_order_##order))
#define PP3_ADD(p, n, order)                                                           \
    (hold_up(0), atomic_fetch_add_explicit(p, n, memory_order_##order))
#define PP3_CAS(p, seen, v, won, lost)                                                 \
    (hold_up(0),                                                                       \
     atomic_compare_exchange_strong_explicit(p, seen, v, memory_order_##won,           \
                                             memory_order_##lost))

#undef PP3_FUTEX_WAIT
#define PP3_FUTEX_WAIT(word, seen, until_ns) nap(word, seen, until_ns)
static int nap(PP3_A32 *word, uint32_t seen, uint64_t until_ns);

#undef PP3_COUNT
#define PP3_COUNT(r, index) tally(r, index)
struct pp3_ring;
static void tally(struct pp3_ring *r, uint32_t index);

#include "ring/ring.h"

#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int poll_nap(struct pollfd *set, nfds_t n, const struct timespec *timeout,
                    const sigset_t *mask);
#define ppoll poll_nap /* of the two sources below, which sleep on descriptors */
#define look look_of_exchange
#include "proxy/exchange.c"
#undef look
#include "ring/watchdog.c"
#undef ppoll

enum { ROUNDS = 16, MOST_RANKS = 16, WORDS = 64 };
enum outcome { NONE, WOKEN, RAISED, RAN_OUT };

/* How often, in one actor. */
enum count {
    WAITS,   /* waits for a round that slept in the kernel */
    ENDED_WOKEN, /* of these, those whose last sleep was ended by a wake */
    CAUGHT,  /* sleeps refused, for the word was raised between look and sleep */
    LATE,    /* sleeps that ran out beside a resolved word */
    LOST,    /* of these, those whose wake had been given before they ran out */
    DETECTED, /* raised by the core itself: PP3_COUNT_LOST_WAKES */
    BELLS, BELL_LOST,   /* a proxy's sleeps on its bell */
    NUDGES, NUDGE_LOST, /* sleeps of the watchdog that a nudge ended */
    WRONG, COUNTS
};
static const char *const count_names[COUNTS] = {
    "waits", "woken", "caught", "late", "lost", "detected", "bells", "bell_lost",
    "nudges", "nudge_lost", "wrong",
};

/* When something about a round was over: written by one, read by any. */
struct stamp {
    PP3_A64 ticket, ns;
    uint8_t pad[PP3_LINE - 16];
};
struct share { /* one actor's */
    PP3_A64 of[COUNTS];
    uint8_t pad[2 * PP3_LINE - 8 * COUNTS];
};

static struct board {
    PP3_A64 last;   /* ticket after which no more comes; UINT64_MAX: not known yet */
    PP3_A32 over;
    struct stamp resolved[ROUNDS], rung[ROUNDS], claimed[ROUNDS];
    struct share share[MOST_RANKS + 4];
} *board;

static _Thread_local struct {
    struct share *share;
    unsigned seed;
    enum outcome futex, bell;
    int slept, won;
    uint64_t futex_until, bell_until;
} me;

int pp3_fault;
static unsigned longest_hold = 80; /* in pauses of the processor */

static void add(enum count which, uint64_t n)
{
    if (me.share) /* its only writer is this thread */
        PP3_STORE(&me.share->of[which], PP3_LOAD(&me.share->of[which], relaxed) + n,
                  relaxed);
}

static void put(struct stamp *to, uint64_t ticket)
{
    PP3_STORE(&to->ns, pp3_now(), relaxed);
    PP3_STORE(&to->ticket, ticket, release);
}

static unsigned draw(unsigned below)
{
    me.seed = me.seed * 1664525u + 1013904223u;
    return (me.seed >> 8) % below;
}

static void hold_up(int point)
{
    if (point == PP3_AT_FAILED || point == PP3_AT_PUBLISHED)
        me.won = 1; /* this actor resolved the round */
    if (!me.share)
        return;
    switch (draw(512)) {
    case 0: case 1:
        (void)sched_yield();
        break;
    case 2: case 3: case 4: case 5: case 6: case 7: case 8: case 9:
        for (unsigned i = draw(longest_hold); i > 0; i--)
            PP3_PAUSE();
        break;
    default:
        break;
    }
}

static void tally(struct pp3_ring *r, uint32_t index)
{
    if (index == PP3_COUNT_LOST_WAKES)
        add(DETECTED, 1);
    pp3_count(r, index, 1);
}

static int nap(PP3_A32 *word, uint32_t seen, uint64_t until_ns)
{
    int woken;

    hold_up(0);
    errno = 0;
    woken = pp3_futex_wait(word, seen, until_ns);
    me.futex_until = until_ns;
    me.futex = !woken ? RAN_OUT : errno == 0 ? WOKEN : RAISED;
    me.slept |= me.futex != RAISED; /* EAGAIN: it never was in the kernel's queue */
    if (me.futex == RAISED)
        add(CAUGHT, 1);
    return woken;
}

static void judge_nudge(const struct pollfd *set, uint64_t until, int ready);
static const struct pollfd *watchdog_set(const struct pollfd *set, nfds_t n);

static int poll_nap(struct pollfd *set, nfds_t n, const struct timespec *timeout,
                    const sigset_t *mask)
{
    uint64_t until = pp3_now() + (uint64_t)timeout->tv_sec * UINT64_C(1000000000) +
                     (uint64_t)timeout->tv_nsec;
    int ready;

    hold_up(0);
    ready = ppoll(set, n, timeout, mask);
    if (watchdog_set(set, n)) {
        judge_nudge(set, until, ready);
    } else {
        me.bell = n < 3 ? me.bell : ready > 0 ? WOKEN : RAN_OUT;
        me.bell_until = until;
    }
    return ready;
}
#endif
