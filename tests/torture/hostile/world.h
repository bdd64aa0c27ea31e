/* A region between guard pages, hostile words in it, and whoever writes them. */
#ifndef HOSTILE_WORLD_H
#define HOSTILE_WORLD_H

/* A word of the region that is about to be loaded, or bytes that are about to be copied,
 * may be written first; see the end of this file. */
#include <stddef.h>
static void before_load(volatile void *at, size_t bytes);
static void *copied(void *to, const void *from, size_t bytes);

#include "ring/atomics.h"
#undef PP3_LOAD
#define PP3_LOAD(p, order)                                                             \
    (before_load(p, sizeof *(p)), atomic_load_explicit(p, memory_order_##order))

#include "ring/watchdog.h"

#include "ring/note.c"
#include "ring/slots.c"
#define memcpy copied
#include "proxy/exchange.c"
#undef memcpy

#include <pthread.h>
#include <sched.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ROUNDS = 17, MOST_PAGES = 34, MOST_RANKS = 3, PROXIES = 2, GUARD = 1 << 16 };
enum flipping { STILL, THREAD, PROCESS, BETWEEN };

static struct world {
    struct pp3_shape shape;
    struct pp3_parts parts;
    struct pp3_layout layout;
    struct pp3_ring *engine, *proxy[PROXIES], *rank[MOST_RANKS];
    struct pp3_ring local; /* the engine's end as it was attached */
    uint64_t taken[MOST_ROUNDS];
    int n_taken;
    enum flipping flipping;
    uint64_t seed, at; /* the case */
    const char *doing;
    uint8_t step[256];
    uint32_t step_bytes;
} world;

int pp3_fault;

/* For whoever writes beside the operations: the engine's next ticket, and the word that
 * was looked at last. */
static struct side { PP3_A64 next_ticket, focus; } *side;

/* ---- chance ----------------------------------------------------------------------- */

static uint64_t mixed(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static _Thread_local uint64_t luck;
static uint64_t draw(uint64_t below) { return mixed(&luck) % below; }

/* ---- what is wrong ---------------------------------------------------------------- */

static void where_it_was(void)
{
    (void)fprintf(stderr, "seed %llu case %llu in %s\n", (unsigned long long)world.seed,
                  (unsigned long long)world.at, world.doing);
}

static void must(int holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "wrong: %s: ", what);
    where_it_was();
    _exit(1);
}

static void hung(int signal)
{
    (void)signal;
    (void)fprintf(stderr, "wrong: no end: ");
    where_it_was();
    _exit(3);
}

/* ---- memory ----------------------------------------------------------------------- */

/* Ends where a page that nobody may touch begins; poisoned before its start. */
static uint8_t *guarded(uint64_t bytes)
{
    uint64_t whole = (bytes + 4095) / 4096 * 4096;
    uint8_t *at = mmap(0, whole + 2 * GUARD, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1,
                       0);

    if (at == MAP_FAILED || mprotect(at + GUARD, whole, PROT_READ | PROT_WRITE) != 0)
        abort();
    ASAN_POISON_MEMORY_REGION(at + GUARD, whole - bytes);
    return at + GUARD + (whole - bytes);
}

/* ---- hostile words ---------------------------------------------------------------- */

static uint64_t boundary(void)
{
    static const uint64_t edges[] = {
        0, 1, 2, 3, 7, 8, 15, 16, 255, 256, 495, 496, 497, 4095, 4096, INT32_MAX,
        UINT64_C(1) << 31, UINT32_MAX, UINT64_C(1) << 32, (UINT64_C(1) << 32) + 3,
        (UINT64_C(1) << 40) - 2, (UINT64_C(1) << 40) - 1, UINT64_C(1) << 40,
        INT64_MAX, UINT64_C(1) << 63, UINT64_MAX - 1, UINT64_MAX,
    };
    const struct pp3_shape *s = &world.shape;
    const uint64_t own[] = {s->rounds, s->pages, s->max_positions, s->ranks, s->slots,
                            s->page_bytes, atomic_load(&side->next_ticket)};

    switch (draw(4)) {
    case 0:
        return own[draw(sizeof own / sizeof *own)] + draw(3) - 1;
    case 1:
        return (UINT64_C(1) << draw(64)) - draw(2);
    case 2:
        return mixed(&luck);
    default:
        return edges[draw(sizeof edges / sizeof *edges)];
    }
}

/* A state word in which each part is one that steers, or nearly. */
static uint64_t state_word(uint64_t present)
{
    uint64_t t = pp3_ticket(present), page = pp3_page_of(present);
    uint32_t state = pp3_state(present), owner = pp3_owner_of(present);

    if (draw(3) == 0)
        t = draw(4) == 0 ? boundary()
                         : t + (draw(5) - 2) * (draw(2) ? 1 : world.shape.rounds);
    if (draw(3) == 0)
        page = draw(3) == 0 ? draw(4096) : world.shape.pages + draw(3) - 1;
    if (draw(2) == 0)
        state = (uint32_t)draw(16);
    if (draw(3) == 0)
        owner = (uint32_t)(draw(2) ? draw(4) : draw(256));
    return pp3_make(t & PP3_LAST_TICKET, state, (uint32_t)page & 4095u, owner & 255u);
}

static uint64_t *in(uint8_t *segment, uint64_t bytes)
{
    return (uint64_t *)(void *)(segment + draw(bytes / 8) * 8);
}

/* Some word of the region; what is written there is `state` where it is a state word. */
static uint64_t *place(int *is_state)
{
    struct pp3_header *h = (struct pp3_header *)(void *)world.parts.control;
    struct pp3_entry *e = (struct pp3_entry *)(void *)(h + 1) + draw(world.shape.rounds);
    uint8_t *pages = world.parts.pages;

    *is_state = 0;
    switch (draw(12)) {
    case 0: case 1: case 2:
        *is_state = 1;
        return (uint64_t *)(void *)e;
    case 3: /* bell, deadline; seq and waiters */
        return draw(3) ? (uint64_t *)(void *)e + 1 + draw(2)
                       : (uint64_t *)(void *)&e->seq;
    case 4: /* magic, shape, work_seq, counters, the note */
        return in(world.parts.control, sizeof *h);
    case 5:
        return (uint64_t *)(void *)&h->note_version + draw(2);
    case 6:
        return in(world.parts.control, world.shape.bytes[0]); /* give, and all else */
    case 7:
        return in(world.parts.acks, world.shape.bytes[4]);
    case 8: /* version, generation and live, length */
        return (uint64_t *)(void *)world.parts.slots + draw(3);
    case 9:
        return in(world.parts.slots, world.shape.bytes[1]);
    case 10: { /* the request of some page */
        struct pp3_places p;
        pp3_shape_places(&world.shape, &p);
        return in(pages + p.request_start + draw(world.shape.pages) * p.request_stride,
                  world.step_bytes);
    }
    default:
        return draw(2) ? in(pages, world.shape.bytes[2])
                       : in(world.parts.failed, world.shape.bytes[3]);
    }
}

static uint64_t hostile(uint64_t present, int is_state)
{
    switch (draw(4)) {
    case 0:
        return present ^ UINT64_C(1) << draw(64);
    case 1: /* one half, the other kept: most words here are pairs of 32 bits */
        return (present & UINT64_C(0xffffffff00000000)) | (boundary() & UINT32_MAX);
    default:
        return is_state ? state_word(present) : boundary();
    }
}

static void write_at(void *at, size_t bytes, int is_state)
{
    PP3_A64 *whole = at;
    PP3_A32 *half = at;

    if (bytes == 8)
        atomic_store(whole, hostile(atomic_load(whole), is_state));
    else
        atomic_store(half, (uint32_t)hostile(atomic_load(half), 0));
}

static void write_one(void)
{
    int is_state;
    uint64_t *at = place(&is_state);

    write_at(at, 8, is_state);
}

/* ---- writers beside the operations ------------------------------------------------ */

static int inside(const volatile void *at, const uint8_t *segment, uint64_t bytes)
{
    return (uintptr_t)at - (uintptr_t)segment < bytes;
}

static int shared(const volatile void *at)
{
    const uint64_t *bytes = world.shape.bytes;

    return inside(at, world.parts.control, bytes[0]) ||
           inside(at, world.parts.slots, bytes[1]) ||
           inside(at, world.parts.pages, bytes[2]) ||
           inside(at, world.parts.acks, bytes[4]);
}

static int is_state_at(const volatile void *at)
{
    uint8_t *entries = world.parts.control + sizeof(struct pp3_header);

    return inside(at, entries, world.shape.rounds * sizeof(struct pp3_entry)) &&
           ((uintptr_t)at - (uintptr_t)entries) % sizeof(struct pp3_entry) == 0;
}

/* BETWEEN: a writer that is timed to the very load: what is loaded twice differs.
 * THREAD, PROCESS: the other is told where to write, and sometimes given the time. */
static void before_load(volatile void *at, size_t bytes)
{
    if (world.flipping == STILL || !shared(at))
        return;
    if (world.flipping == BETWEEN) {
        if (draw(6) == 0)
            write_at((void *)(uintptr_t)at, bytes, is_state_at(at));
        return;
    }
    atomic_store_explicit(&side->focus, (uint64_t)(uintptr_t)at & ~UINT64_C(7),
                          memory_order_relaxed);
    if (draw(512) == 0)
        (void)sched_yield(); /* where both share one core, it has to have it now */
    else if (draw(32) == 0)
        for (uint64_t i = draw(150); i > 0; i--)
            PP3_PAUSE();
}

static void *copied(void *to, const void *from, size_t bytes)
{
    if (shared(from))
        before_load((uint8_t *)(uintptr_t)from + draw(world.step_bytes / 8) * 8, 8);
    return memcpy(to, from, bytes);
}

/* Between what stood there and something hostile, fast. */
static void flip_forever(uint64_t seed)
{
    luck = seed;
    for (;;) {
        PP3_A64 *at = (PP3_A64 *)(uintptr_t)atomic_load(&side->focus);
        uint64_t before, other;
        int is_state;

        if (!at || draw(3) == 0)
            at = (PP3_A64 *)place(&is_state);
        before = atomic_load(at);
        other = hostile(before, is_state_at(at));
        for (uint64_t n = 2 + draw(60); n > 0; n--) {
            atomic_store(at, n & 1 ? before : other);
            for (uint64_t i = draw(8); i > 0; i--)
                PP3_PAUSE();
        }
    }
}

static void *flip_thread(void *seed)
{
    flip_forever((uint64_t)(uintptr_t)seed);
    return 0;
}

static void start_flipping(void)
{
    pthread_t thread;

    if (world.flipping == THREAD) {
        (void)pthread_create(&thread, 0, flip_thread, (void *)(uintptr_t)world.seed);
    } else if (world.flipping == PROCESS && fork() == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == 1)
            _exit(0);
        (void)alarm(0);
        flip_forever(world.seed);
    }
}
#endif
