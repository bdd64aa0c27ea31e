/* The machine under ring.h: atomic words, the futex, the clock, and nothing else.
 *
 * ring.h is written over these macros alone, so that a checker compiles the very same
 * text: it defines PP3_MACHINE and all of them before it includes ring.h. Orders are
 * bare words (relaxed acquire release acq_rel seq_cst).
 */
#ifndef PP3_ATOMICS_H
#define PP3_ATOMICS_H

#include <errno.h>
#include <stdint.h>

#ifndef PP3_MACHINE
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "pages and frames are little-endian and are read in place"
#endif

_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_INT_LOCK_FREE == 2,
               "a lock in shared memory would die with its owner");

#define PP3_A32 _Atomic uint32_t
#define PP3_A64 _Atomic uint64_t

#define PP3_LOAD(p, order) atomic_load_explicit(p, memory_order_##order)
#define PP3_STORE(p, v, order) atomic_store_explicit(p, v, memory_order_##order)
/* Strong; *seen is replaced by what stood there when the swap failed. */
#define PP3_CAS(p, seen, v, won, lost)                                                 \
    atomic_compare_exchange_strong_explicit(p, seen, v, memory_order_##won,            \
                                            memory_order_##lost)
#define PP3_ADD(p, n, order) atomic_fetch_add_explicit(p, n, memory_order_##order)
#define PP3_FENCE(order) atomic_thread_fence(memory_order_##order)

/* Bytes that only their owner touches: ordered by the edges, never by themselves. */
#define PP3_COPY(to, from, n) memcpy(to, from, n)
#define PP3_STAMP(to, ticket) pp3_stamp(to, ticket)

/* A crash point: a test kills the process there, a checker lets an actor end there. */
#ifndef PP3_STEP
#define PP3_STEP(point) ((void)0)
#endif

/* Sleeps while *p == v, until at latest the time; 0 when it slept to the end of it. */
#define PP3_FUTEX_WAIT(p, v, until_ns) pp3_futex_wait(p, v, until_ns)
#define PP3_FUTEX_WAKE(p) pp3_futex_wake(p)
#define PP3_NOW() pp3_now()
#define PP3_GONE(pidfd) pp3_pidfd_gone(pidfd)
#define PP3_WAKE_WORK(r) pp3_fd_ring((r)->bell_fd)
#define PP3_WAKE_WATCHDOG(r) pp3_fd_ring((r)->engine->nudge_fd)
#define PP3_COUNT(r, index) pp3_count(r, index, 1)

#if defined(__x86_64__)
#define PP3_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PP3_PAUSE() __asm__ volatile("isb" ::: "memory") /* yield is a nop on most */
#else
#define PP3_PAUSE() ((void)0)
#endif

#define PP3_YIELD() ((void)sched_yield())

/* Raised in every forked child, by pthread_atfork: the region is not mapped there. */
extern unsigned pp3_forks;
#define PP3_HERE(r) ((r)->forks == pp3_forks)

int pp3_futex_wait(PP3_A32 *word, uint32_t seen, uint64_t until_ns);
void pp3_futex_wake(PP3_A32 *word);
uint64_t pp3_now(void);
int pp3_pidfd_gone(int pidfd);
void pp3_fd_ring(int fd);
void pp3_watch_forks(void);
uint8_t *pp3_map(int fd, uint64_t bytes, int writable, int *error);
void pp3_unmap(uint8_t *address, uint64_t bytes, unsigned forks);
unsigned pp3_fork_count(void);

static inline void pp3_stamp(void *to, uint64_t ticket)
{
    memcpy(to, &ticket, sizeof ticket);
}

/* Whether the kernel itself keeps its time by the counter that a program can read: then
 * it runs at one rate, through sleep, and alike on all cores. Set by pp3_watch_forks, in
 * every process of a machine to the same. */
extern int pp3_counter_steady;
/* What the kernel says in that file of sysfs; 0 where it says nothing. */
int pp3_counter_is_clock(const char *path);

/* A stamp for people, of a third of a clock's cost: ticks of that counter, or
 * nanoseconds of CLOCK_MONOTONIC. Never 0. A CPU may read it some 100 ns early or late
 * beside the loads and stores around it: no barrier, which is most of a clock's cost.
 * Whoever reads stamps turns them into nanoseconds (pp3_clock_pair). */
static inline uint64_t pp3_tick(void)
{
#if defined(PP3_NO_TRACE) /* for bench_trace.py: what the stamps cost */
    return 1;
#elif defined(__x86_64__)
    return pp3_counter_steady ? __builtin_ia32_rdtsc() : pp3_now();
#elif defined(__aarch64__)
    uint64_t ticks;

    if (!pp3_counter_steady)
        return pp3_now();
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return pp3_now();
#endif
}
#endif /* PP3_MACHINE */

#ifndef PP3_YIELD /* a checker's actors run when they like */
#define PP3_YIELD() ((void)0)
#endif

/* A spin lets others run so often: whoever is to end it may have been woken on this very
 * core. Not more often: a yield is a system call, half a microsecond and more in which
 * nothing is seen. */
#define PP3_YIELD_NS UINT64_C(4000)

/* Between two looks of a spin that last let others run (or began) at *yielded. */
static inline void pp3_spin_on(uint64_t *yielded, uint64_t now)
{
    if (now - *yielded < PP3_YIELD_NS) {
        PP3_PAUSE();
        return;
    }
    PP3_YIELD();
    *yielded = now;
}
#endif
