/* The machine of ring.h for Relacy: the same macros as in atomics.h, over a checker that
 * tries the schedules and the old values that C11's memory model allows.
 *
 * A word is a plain value until two actors are seen to touch it, one of them writing.
 * Then it becomes an atomic of Relacy's, for good, and the search begins again. What
 * only one actor touches, or nobody writes, commutes with every other step: schedules
 * that differ only there need not be told apart. The sole writer of a word reads it
 * without a point of choice, for the same reason.
 */
#ifndef PP3_TESTS_MACHINE_H
#define PP3_TESTS_MACHINE_H

#define PP3_MACHINE

#include <relacy/relacy.hpp>
#undef new
#undef delete
#undef malloc
#undef calloc
#undef realloc
#undef free
#undef errno

#include <errno.h>
#include <stdint.h>
#include <string.h>

namespace machine {

enum role { ENGINE, PROXY_A, PROXY_B, RANK_A, RANK_B, WATCHDOG, ACTORS };
enum { SETUP = -1, BYTES = 1 << 14, LIVE = 64 };

/* ---- the run -------------------------------------------------------------------- */

extern char *world; /* where the words stand, BYTES at most */

/* What is known of a word, by its offset: kept over the executions of a search. */
struct fate {
    bool live, written, shared_writers;
    signed char writer;
};
struct live_word { unsigned place, bytes; };
static fate fates[BYTES / 4];
static live_word live_words[LIVE];
static int live_count;
static bool again; /* a fate has changed: the search begins again */
static int roles[ACTORS]; /* of the threads */
static bool quiet_time; /* before and after the actors: one thread */
static bool fences;     /* whether seq_cst fences are there: see fence() */
static unsigned mortal; /* actors that may be killed at any crash point */
static bool late[ACTORS];         /* whose clock is past every deadline */
static unsigned sleeps_cut_short; /* how often a futex may return for no reason */

struct killed {};
struct asleep {};

struct actor {
    bool seen_since;        /* something of it can be seen since its last crash point */
    const void *sleeps_on;  /* the futex word it sleeps on at the end */
    bool was_killed, unburied; /* nobody has seen it dead yet */
    unsigned cut_short;
};
static actor actors[ACTORS];
static unsigned work_rings, nudges;

static inline int me() { return quiet_time ? SETUP : roles[rl::thread_index()]; }

static const char *said; /* the expectation that was not met */

static inline void wrong(const char *what)
{
    said = what;
    rl::ctx().fail_test(what, rl::test_result_user_assert_failed, $);
}
static inline void expect(bool right, const char *what)
{
    if (!right)
        wrong(what);
}

static inline void begin_again()
{
    again = true;
    rl::ctx().rl_until("a word is shared", $);
}

/* ---- words ---------------------------------------------------------------------- */

template <class T> struct word {
    T plain;
    unsigned char readers, writers; /* in this execution, while it is plain */
    rl::atomic<T> *live;

    unsigned place() { return (unsigned)(((char *)this - world) / 4); }
    fate &mine() { return fates[place()]; }

    /* Before a plain access by an actor. */
    void touch(bool write)
    {
        int who = me();
        if (who == SETUP)
            return;
        unsigned char bit = (unsigned char)(1u << who);
        if ((writers & ~bit) != 0 || (write && (readers & ~bit) != 0)) {
            mine().live = true;
            live_words[live_count].place = place();
            live_words[live_count++].bytes = sizeof(T);
            begin_again();
        }
        (write ? writers : readers) |= bit;
        actors[who].seen_since |= write; /* by somebody who looks only after a death */
    }

    /* When an actor writes to the atomic. */
    void write()
    {
        int who = me();
        if (who == SETUP)
            return;
        fate &f = mine();
        actors[who].seen_since = true;
        if (!f.written) {
            f.written = true;
            f.writer = (signed char)who;
            begin_again();
        } else if (f.writer != who && !f.shared_writers) {
            f.shared_writers = true;
            begin_again();
        }
    }

    bool own() { return mine().written && !mine().shared_writers && mine().writer == me(); }
};

struct calm { /* no other actor runs meanwhile */
    bool on;
    calm(bool wanted) : on(wanted)
    {
        if (on)
            rl::ctx().disable_preemption();
    }
    ~calm()
    {
        if (on)
            rl::ctx().enable_preemption();
    }
};

template <class T> T load(word<T> *w, rl::memory_order order, rl::debug_info_param at)
{
    if (!w->live) {
        w->touch(false);
        return w->plain;
    }
    calm c(w->own());
    return w->live->load(order, at);
}

template <class T, class V>
void store(word<T> *w, V v, rl::memory_order order, rl::debug_info_param at)
{
    if (!w->live) {
        w->touch(true);
        w->plain = (T)v;
        return;
    }
    w->write();
    w->live->store((T)v, order, at);
}

template <class T, class V>
T add(word<T> *w, V n, rl::memory_order order, rl::debug_info_param at)
{
    if (!w->live) {
        T before = w->plain;
        w->touch(true);
        w->plain = (T)(before + (T)n);
        return before;
    }
    w->write();
    return w->live->rmw(rl::rmw_type_t<rl::rmw_type_add>(), (T)n, order, at);
}

/* C++11 wants the losing order no stronger than the winning one; a planted fault may
 * weaken the winning one alone. Then a fence makes up for it. */
static inline bool within(rl::memory_order lost, rl::memory_order won)
{
    return lost == rl::mo_relaxed || won == rl::mo_seq_cst ||
           (lost == rl::mo_acquire && (won == rl::mo_acquire || won == rl::mo_acq_rel));
}

template <class T, class V>
bool cas(word<T> *w, T *seen, V v, rl::memory_order won, rl::memory_order lost,
         rl::debug_info_param at)
{
    if (!w->live) {
        bool same = w->plain == *seen;
        w->touch(same);
        *seen = w->plain;
        if (same)
            w->plain = (T)v;
        return same;
    }
    bool order_fits = within(lost, won);
    bool same = w->live->compare_exchange(rl::bool_t<false>(), *seen, (T)v, won,
                                          order_fits ? lost : rl::mo_relaxed, at);
    if (same)
        w->write();
    if (!same && !order_fits)
        rl::atomic_thread_fence(rl::mo_acquire, at);
    return same;
}

/* In a scene without sleepers the seq_cst fences are left out. That is a weaker program
 * with fewer schedules: what holds without them holds with them. And Relacy's fences
 * order more than C11's do, so with them it could overlook a race. */
static inline void fence(rl::memory_order order, rl::debug_info_param at)
{
    bool full = order == rl::mo_seq_cst || order == rl::mo_acq_rel;
    if (order != rl::mo_relaxed && (fences || !full))
        rl::atomic_thread_fence(order, at);
}

/* ---- bytes ---------------------------------------------------------------------- */

/* Eight bytes of a page, a request or a failed buffer: races are found. */
struct cell { rl::var<uint64_t> v; };
/* The same size, for what only its writer sees. */
struct plain_cell {
    uint64_t v;
    char rest[sizeof(cell) - sizeof(uint64_t)];
};

static inline void put(void *to, uint64_t v)
{
    if (me() != SETUP)
        actors[me()].seen_since = true;
    ((cell *)to)->v($) = v;
}
static inline uint64_t get(const void *from) { return ((cell *)from)->v($); }

static inline void copy(void *to, const void *from, uint64_t bytes)
{
    for (uint64_t i = 0; i * sizeof(cell) < bytes; i++)
        put((cell *)to + i, ((const plain_cell *)from)[i].v);
}

/* ---- death, sleep, time --------------------------------------------------------- */

/* Only where something of the actor could be seen since the last point: a death at the
 * others differs in nothing. */
static inline void step(int)
{
    int who = me();
    if (who == SETUP || !(mortal & 1u << who) || !actors[who].seen_since)
        return;
    actors[who].seen_since = false;
    if (rl::rand(2))
        throw killed();
}

/* The kernel compares with the newest value and then nothing comes between. Asleep, the
 * actor ends: whoever should have woken it is asked at the end of the execution. That
 * it is woken, or that its slice runs out, is the same as returning at once, for the
 * others may run before its next step. */
static inline int futex_wait(word<uint32_t> *w, uint32_t v)
{
    int who = me();
    uint32_t newest;
    if (w->live) {
        newest = w->live->debug_value() + 1; /* a swap that cannot succeed */
        w->live->compare_exchange(rl::bool_t<false>(), newest, newest, rl::mo_relaxed,
                                  rl::mo_relaxed, $);
    } else {
        w->touch(false);
        newest = w->plain;
    }
    if (newest != v)
        return 1;
    if (actors[who].cut_short < sleeps_cut_short && rl::rand(2)) {
        actors[who].cut_short++;
        return 1;
    }
    actors[who].sleeps_on = w;
    throw asleep();
}

static inline void futex_wake(word<uint32_t> *w)
{
    for (int i = 0; i < ACTORS; i++)
        if (actors[i].sleeps_on == w)
            actors[i].sleeps_on = 0;
}

int gone(int pidfd); /* world.h: the pidfd of an actor is its number */

static inline uint64_t now() { return me() != SETUP && late[me()] ? 1000 : 0; }

/* ---- planted faults ------------------------------------------------------------- */

static int planted_site = -1, planted_fault = -1;
static rl::memory_order planted_order;

static inline rl::memory_order order(int site, rl::memory_order written)
{
    return site == planted_site ? planted_order : written;
}
static inline bool planted(int fault) { return fault == planted_fault; }

/* Faults of the callers; those of the text have numbers below. */
enum { GIVES_EARLY = 100, RELEASES_EARLY, DEAD_BY_DECREE };

} // namespace machine

#define PP3_A32 machine::word<uint32_t>
#define PP3_A64 machine::word<uint64_t>

#define MO_relaxed rl::mo_relaxed
#define MO_acquire rl::mo_acquire
#define MO_release rl::mo_release
#define MO_acq_rel rl::mo_acq_rel
#define MO_seq_cst rl::mo_seq_cst
#ifdef PP3_MUTATED
#include "orders.h" /* mutate.py: each order of the text by the number of its place */
#endif

#define PP3_LOAD(p, order) machine::load(p, MO_##order, $)
#define PP3_STORE(p, v, order) machine::store(p, v, MO_##order, $)
#define PP3_CAS(p, seen, v, won, lost) machine::cas(p, seen, v, MO_##won, MO_##lost, $)
#define PP3_ADD(p, n, order) machine::add(p, n, MO_##order, $)
#define PP3_FENCE(order) machine::fence(MO_##order, $)
#define PP3_COPY(to, from, n) machine::copy(to, from, n)
#define PP3_STAMP(to, ticket) machine::put(to, ticket)
#define PP3_STEP(point) machine::step(point)
#define PP3_FUTEX_WAIT(p, v, until_ns) machine::futex_wait(p, v)
#define PP3_FUTEX_WAKE(p) machine::futex_wake(p)
#define PP3_NOW() machine::now()
#define PP3_GONE(pidfd) machine::gone(pidfd)
#define PP3_WAKE_WORK(r) ((void)machine::work_rings++)
#define PP3_WAKE_WATCHDOG(r) ((void)machine::nudges++)
#define PP3_COUNT(r, index) ((void)0)
#define PP3_PAUSE() ((void)0)
#define PP3_HERE(r) (1)

/* Smaller sizes: a scene has no more of anything. */
#define PP3_COUNTERS 1u
#define PP3_NOTE_WORDS 2u
#define PP3_MAX_RANKS 3u
#define PP3_MAX_OWNERS 3u
#define PP3_TRIES 1

#endif
