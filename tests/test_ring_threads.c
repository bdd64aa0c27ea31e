/* Engine, watchdog, two proxies and two ranks as threads over one mapping, for
 * ThreadSanitizer: it sees nothing across two mappings of one memory.
 *
 * PLANT weakens one kind of operation of the protocol's text, to show that the harness
 * can fail: 1 swaps, 2 stores, 3 loads.
 */
#include "ring/atomics.h"

#if PLANT == 1
#undef PP3_CAS
#define PP3_CAS(p, seen, v, won, lost)                                                 \
    atomic_compare_exchange_strong_explicit(p, seen, v, memory_order_relaxed,          \
                                            memory_order_relaxed)
#elif PLANT == 2
#undef PP3_STORE
#define PP3_STORE(p, v, order) atomic_store_explicit(p, v, memory_order_relaxed)
#elif PLANT == 3
#undef PP3_LOAD
#define PP3_LOAD(p, order) atomic_load_explicit(p, memory_order_relaxed)
#endif

#include "ring/slots.h"
#include "ring/watchdog.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ROUNDS = 3, WORDS = 64, RANKS = 3, PROXIES = 2, CLAIMS = 3000 };

static struct pp3_shape shape = {
    .rounds = ROUNDS, .pages = 2 * ROUNDS, .ranks = RANKS, .page_bytes = 8 * WORDS,
    .request_bytes = 8 * WORDS, .failed_bytes = 24, .head_bytes = 16, .slots = 1,
    .max_positions = 64,
};
static struct pp3_parts parts;
static struct pp3_ring *engine;
static _Atomic int over, wrong, answered, failed;

static void bad(const char *what, uint64_t t)
{
    atomic_fetch_add(&wrong, 1);
    (void)fprintf(stderr, "%s in round %llu\n", what, (unsigned long long)t);
}

static void pause_a_little(unsigned *seed)
{
    for (int i = rand_r(seed) % 200; i > 0; i--)
        PP3_PAUSE();
}

static void check_words(const uint8_t *from, uint64_t t, const char *what)
{
    const uint64_t *words = (const uint64_t *)(const void *)from;

    for (int i = 0; i < WORDS; i++)
        if (words[i] != t) {
            bad(what, t);
            return;
        }
}

static void *serve(void *argument)
{
    struct pp3_record record;
    unsigned seed = (unsigned)(uintptr_t)argument;
    int error;
    struct pp3_ring *r;
    uint64_t held[ROUNDS], mine;
    int n = 0;

    pp3_record_fill(&record, &shape);
    record.owner = (uint32_t)pp3_owner_add(engine);
    r = pp3_ring_attach(&record, &parts, engine->bell_fd, &error);
    while (!atomic_load(&over)) {
        n = pp3_sweep(r, held, n);
        if (n < ROUNDS && pp3_take(r, &mine) == 1)
            held[n++] = mine;
        if (n == 0) {
            pp3_work_prepare(r);
            pp3_work_done(r);
        } else if (rand_r(&seed) % 4) {
            uint64_t *page = (uint64_t *)(void *)pp3_page(r, held[n - 1]);
            uint64_t t = pp3_ticket(held[n - 1]);
            check_words(pp3_request(r, held[n - 1]), t, "request");
            for (int i = 0; i < WORDS; i++)
                page[i] = t;
            pause_a_little(&seed);
            (void)pp3_publish(r, held[--n]);
        }
    }
    (void)pp3_owner_gone(engine, record.owner);
    pp3_ring_free(r);
    return 0;
}

static void read_round(struct pp3_ring *r, uint32_t rank, uint64_t t)
{
    uint64_t word;
    uint32_t index;
    int status;

    while ((status = pp3_wait(r, t, UINT64_MAX, t % 2 ? 20000 : 0, &word)) == -ESTALE)
        if (atomic_load(&over))
            return; /* t not claimed yet: told too early, by nobody */
    status = status ? status : pp3_read(r, word, &index);
    if (status == 0) {
        check_words(r->page + index * r->page_stride, t, "reply");
        atomic_fetch_add(&answered, 1);
    } else if (status > 0) {
        const uint64_t *f = (const uint64_t *)(const void *)(r->failed +
                                                             index * r->failed_stride);
        if (f[0] != t || f[1] != t || f[2] != (uint64_t)status)
            bad("failed buffer", t);
        atomic_fetch_add(&failed, 1);
    } else {
        bad("wait", t);
    }
    (void)pp3_release(r, rank, t);
}

static void *rank_of(void *argument)
{
    struct pp3_record record;
    uint32_t rank = (uint32_t)(uintptr_t)argument;
    int error;
    struct pp3_ring *r;

    pp3_record_fill(&record, &shape);
    r = pp3_ring_attach(&record, &parts, -1, &error);
    for (uint64_t t = 1; t <= CLAIMS; t++)
        read_round(r, rank, t);
    pp3_ring_free(r);
    return 0;
}

static void claim_all(void)
{
    unsigned seed = 1;

    for (uint64_t t = 1; t <= CLAIMS; t++) {
        uint64_t heads[6] = {t, t, t, t, t, t}, *request;
        int64_t got;

        do
            got = pp3_claim(engine, heads, pp3_now() + 1000 + rand_r(&seed) % 200000);
        while (got == -EAGAIN || got == -EBUSY || got == -ENOBUFS);
        if (got != (int64_t)t)
            bad("claim", (uint64_t)got);
        request = (uint64_t *)(void *)pp3_request_of(engine, t);
        for (int i = 0; i < WORDS; i++)
            request[i] = t;
        (void)pp3_submit(engine, t);
        read_round(engine, 0, t);
    }
}

int main(void)
{
    uint8_t **part[5] = {&parts.control, &parts.slots, &parts.pages, &parts.failed,
                         &parts.acks};
    uint64_t templates[9] = {0, 0, 2, 0, 0, 7, 0, 0, 8};
    struct pp3_watchdog *watchdog;
    struct pp3_plan plan = {0}; /* starts nothing: deadlines only */
    pthread_t thread[PROXIES + RANKS];
    int n = 0, error, pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    (void)pp3_shape_fill(&shape);
    for (int i = 0; i < 5; i++) {
        *part[i] = aligned_alloc(4096, (shape.bytes[i] + 4095) / 4096 * 4096);
        memset(*part[i], 0, shape.bytes[i]);
    }
    engine = pp3_ring_create(&shape, &parts, (const uint8_t *)templates, &error);
    for (uint32_t k = 1; k < RANKS; k++)
        (void)pp3_rank_attach(engine, k, pidfd);
    for (uintptr_t k = 0; k < PROXIES; k++)
        (void)pthread_create(&thread[n++], 0, serve, (void *)(k + 1));
    watchdog = pp3_watchdog_start(engine, &plan, &error);
    for (uintptr_t k = 1; k < RANKS; k++)
        (void)pthread_create(&thread[n++], 0, rank_of, (void *)k);
    claim_all();
    while (n > PROXIES)
        (void)pthread_join(thread[--n], 0);
    atomic_store(&over, 1);
    while (n > 0)
        (void)pthread_join(thread[--n], 0);
    (void)pp3_watchdog_stop(watchdog);
    pp3_watchdog_free(watchdog);
    (void)printf("%d %d %d\n", atomic_load(&answered), atomic_load(&failed),
                 atomic_load(&wrong));
    return atomic_load(&wrong) != 0;
}
