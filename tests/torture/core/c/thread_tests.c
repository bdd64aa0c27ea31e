/* Engine, watchdog, two proxies and two ranks as threads; readers beside writers.
 *
 * All over ONE mapping: ThreadSanitizer knows memory by its address, so that a race
 * between two views of one memory is none to it. `--views 2` shows that.
 *
 * A copy of this file compiled with SWITCHED has an operation of the protocol's text
 * weakened by `--plant`, to show that the harness can fail: 1 swaps, 2 stores, 3 loads.
 */
#include "ring/atomics.h"

#ifdef SWITCHED
#undef PP3_CAS
#define PP3_CAS(p, seen, v, won, lost)                                                 \
    (planted == 1                                                                      \
         ? atomic_compare_exchange_strong_explicit(p, seen, v, memory_order_relaxed,   \
                                                   memory_order_relaxed)               \
         : atomic_compare_exchange_strong_explicit(p, seen, v, memory_order_##won,     \
                                                   memory_order_##lost))
#undef PP3_STORE
#define PP3_STORE(p, v, order)                                                         \
    (planted == 2 ? atomic_store_explicit(p, v, memory_order_relaxed)                  \
                  : atomic_store_explicit(p, v, memory_order_##order))
#undef PP3_LOAD
#define PP3_LOAD(p, order)                                                             \
    (planted == 3 ? atomic_load_explicit(p, memory_order_relaxed)                      \
                  : atomic_load_explicit(p, memory_order_##order))
#endif

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sched.h>

#include "harness.h"
#include "world.h"

enum { ROUNDS = 3, PAGE_WORDS = 64, PROXIES = 2 };

struct play {
    struct world w;
    pthread_mutex_t lock; /* of the world's list of ends */
    uint64_t claims;
    _Atomic int over, answered, failed;
    _Atomic uint32_t stream;
};

static void pause_a_little(struct dice *d)
{
    for (uint32_t i = roll(d, 200); i > 0; i--)
        PP3_PAUSE();
}

static void check_words(const uint8_t *from, uint64_t t)
{
    const uint64_t *words = (const uint64_t *)(const void *)from;

    for (int i = 0; i < PAGE_WORDS; i++)
        if (words[i] != t) {
            EQUAL(words[i], t);
            return;
        }
}

static void fill_words(uint8_t *to, uint64_t t)
{
    uint64_t *words = (uint64_t *)(void *)to;

    for (int i = 0; i < PAGE_WORDS; i++)
        words[i] = t;
}

static struct pp3_ring *own_end(struct play *p, uint32_t owner)
{
    (void)pthread_mutex_lock(&p->lock);
    struct pp3_ring *r = world_end(&p->w, owner);
    (void)pthread_mutex_unlock(&p->lock);
    return r;
}

static void *serve(void *argument)
{
    struct play *p = argument;
    struct dice d = dice_of(100 + atomic_fetch_add(&p->stream, 1));
    uint32_t owner = (uint32_t)pp3_owner_add(p->w.engine);
    struct pp3_ring *r = own_end(p, owner);
    uint64_t held[ROUNDS], mine = 0;
    int n = 0;

    while (!atomic_load(&p->over)) {
        n = pp3_sweep(r, held, n);
        if (n < ROUNDS && pp3_take(r, &mine) == 1)
            held[n++] = mine;
        if (n == 0) {
            pp3_work_prepare(r);
            (void)sched_yield();
            pp3_work_done(r);
        } else if (roll(&d, 4)) {
            uint64_t t = pp3_ticket(held[n - 1]);
            check_words(pp3_request(r, held[n - 1]), t);
            fill_words(pp3_page(r, held[n - 1]), t);
            pause_a_little(&d);
            (void)pp3_publish(r, held[--n]);
        }
    }
    (void)pp3_owner_gone(p->w.engine, owner);
    return 0;
}

static void read_round(struct play *p, struct pp3_ring *r, uint32_t rank, uint64_t t)
{
    uint64_t word = 0;
    uint32_t index = 0;
    int status;

    while ((status = pp3_wait(r, t, UINT64_MAX, t % 2 ? 20000 : 0, &word)) == -ESTALE) {
        if (atomic_load(&p->over))
            return; /* t not claimed yet: told too early, by nobody */
        (void)sched_yield();
    }
    status = status ? status : pp3_read(r, word, &index);
    if (status == 0) {
        check_words(r->page + index * r->page_stride, t);
        atomic_fetch_add(&p->answered, 1);
    } else {
        uint64_t f[3];
        CHECK(status > 0);
        memcpy(f, r->failed + index * r->failed_stride, sizeof f);
        CHECK(f[0] == t && f[1] == t && f[2] == (uint64_t)status);
        atomic_fetch_add(&p->failed, 1);
    }
    (void)pp3_release(r, rank, t);
}

struct reader { struct play *play; uint32_t rank; };

static void *rank_of(void *argument)
{
    struct reader *reader = argument;
    struct pp3_ring *r = own_end(reader->play, 0);

    for (uint64_t t = 1; t <= reader->play->claims; t++)
        read_round(reader->play, r, reader->rank, t);
    return 0;
}

static void claim_all(struct play *p)
{
    struct dice d = dice_of(99);

    for (uint64_t t = 1; t <= p->claims; t++) {
        uint64_t heads[6] = {t, t, t, t, t, t};
        int64_t got;

        while ((got = pp3_claim(p->w.engine, heads,
                                pp3_now() + 1000 + roll(&d, 200000))) == -EAGAIN ||
               got == -EBUSY || got == -ENOBUFS)
            (void)sched_yield();
        EQUAL(got, t);
        fill_words(pp3_request_of(p->w.engine, t), t);
        EQUAL(pp3_submit(p->w.engine, t), 0);
        read_round(p, p->w.engine, 0, t);
    }
}

static void rounds_go_round_between_threads(void)
{
    struct pp3_shape shape = {
        .rounds = ROUNDS, .pages = 2 * ROUNDS, .ranks = RANKS,
        .page_bytes = 8 * PAGE_WORDS, .request_bytes = 8 * PAGE_WORDS,
        .failed_bytes = 24, .head_bytes = 16, .slots = 1, .max_positions = 64,
    };
    struct play p = {.lock = PTHREAD_MUTEX_INITIALIZER, .claims = 500 * effort};
    struct pp3_plan plan = {0}; /* starts nothing: deadlines only */
    struct reader readers[RANKS];
    pthread_t thread[PROXIES + RANKS];
    int n = 0, error;

    world_open_shape(&p.w, &shape);
    world_ranks(&p.w);
    for (int k = 0; k < PROXIES; k++)
        CHECK(pthread_create(&thread[n++], 0, serve, &p) == 0);
    struct pp3_watchdog *watchdog = pp3_watchdog_start(p.w.engine, &plan, &error);
    for (uint32_t k = 1; k < RANKS; k++) {
        readers[k] = (struct reader){&p, k};
        CHECK(pthread_create(&thread[n++], 0, rank_of, &readers[k]) == 0);
    }
    claim_all(&p);
    while (n > PROXIES)
        (void)pthread_join(thread[--n], 0);
    atomic_store(&p.over, 1);
    while (n > 0)
        (void)pthread_join(thread[--n], 0);
    EQUAL(pp3_watchdog_stop(watchdog), 0);
    pp3_watchdog_free(watchdog);
    EQUAL(atomic_load(&p.answered) + atomic_load(&p.failed), RANKS * p.claims);
    CHECK(atomic_load(&p.answered) > 0 && atomic_load(&p.failed) > 0);
    tried(RANKS * p.claims);
    world_close(&p.w);
}

enum { TOKENS = 1500 };

struct locks { struct world w; _Atomic int over; uint64_t read; };

/* Every token of a generation is the generation; so is every byte of a note. */
static void *write_locks(void *argument)
{
    struct locks *x = argument;
    int32_t *tokens = malloc(TOKENS * sizeof *tokens);
    uint8_t note[8 * PP3_NOTE_WORDS];

    for (uint32_t g = 1; !atomic_load_explicit(&x->over, memory_order_relaxed); g++) {
        for (int i = 0; i < TOKENS; i++)
            tokens[i] = (int32_t)g;
        CHECK(pp3_slot_reset(x->w.engine, 0, g, tokens, TOKENS - g % 7) == 0);
        CHECK(pp3_slot_append(x->w.engine, 0, tokens, g % 7) == 0);
        memset(note, (int)(g & 255), sizeof note);
        CHECK(pp3_note_write(x->w.engine, note, (uint32_t)sizeof note - g % 9) == 0);
        if (g % 64 == 0)
            CHECK(pp3_slot_close(x->w.engine, 0) == 0);
    }
    free(tokens);
    return 0;
}

static void readers_of_slot_and_note_see_one_state(void)
{
    struct pp3_shape shape = {
        .rounds = 1, .pages = 2, .ranks = 1, .page_bytes = 64, .request_bytes = 64,
        .failed_bytes = 24, .head_bytes = 16, .slots = 1, .max_positions = TOKENS,
    };
    struct locks x = {0};
    int32_t *out = malloc(TOKENS * sizeof *out);
    uint8_t note[8 * PP3_NOTE_WORDS];
    uint32_t generation, live;
    uint64_t length, whole = 0;
    pthread_t thread;

    world_open_shape(&x.w, &shape);
    CHECK(pthread_create(&thread, 0, write_locks, &x) == 0);
    struct pp3_ring *r = world_end(&x.w, 1);
    for (uint32_t i = 0; i < 300 * effort || whole == 0; i++) {
        int error = pp3_slot_read(r, 0, out, TOKENS, &generation, &live, &length);
        CHECK(error == 0 || error == -EAGAIN);
        for (uint64_t k = 0; error == 0 && k < length; k++)
            if (out[k] != (int32_t)generation) {
                EQUAL(out[k], generation);
                break;
            }
        whole += error == 0;
        int n = pp3_note_read(r, note);
        CHECK(n >= 0 || n == -EAGAIN);
        for (int k = 1; k < n; k++)
            CHECK(note[k] == note[0]);
    }
    atomic_store_explicit(&x.over, 1, memory_order_relaxed);
    (void)pthread_join(thread, 0);
    tried(300 * effort);
    free(out);
    world_close(&x.w);
}

static void *add_owners(void *argument)
{
    struct world *w = argument;

    for (uint32_t i = 0; i < 300 * effort; i++) {
        int id = pp3_owner_add(w->engine);
        CHECK(id > 0);
        CHECK(pp3_owner_gone(w->engine, (uint32_t)id) == 0);
    }
    return 0;
}

static void owners_are_added_by_two_threads(void)
{
    struct world w;
    pthread_t thread;

    world_open(&w, 2, 4, 1);
    CHECK(pthread_create(&thread, 0, add_owners, &w) == 0);
    (void)add_owners(&w);
    (void)pthread_join(thread, 0);
    tried(600 * effort);
    world_close(&w);
}

static void *order_about(void *argument)
{
    for (int i = 0; i < 50; i++) {
        EQUAL(pp3_watchdog_kick(argument), 0);
        EQUAL(pp3_watchdog_replace(argument), 0);
    }
    return 0;
}

static void a_watchdog_takes_orders_from_any_thread(void)
{
    struct world w;
    struct pp3_plan plan = {0};
    struct pp3_watch seen;
    pthread_t thread;
    int error;

    world_open(&w, 2, 4, 1);
    struct pp3_watchdog *g = pp3_watchdog_start(w.engine, &plan, &error);
    CHECK(pthread_create(&thread, 0, order_about, g) == 0);
    for (int i = 0; i < 50; i++)
        pp3_watchdog_stats(g, &seen);
    (void)order_about(g);
    (void)pthread_join(thread, 0);
    EQUAL(pp3_watchdog_stop(g), 0);
    pp3_watchdog_free(g);
    world_close(&w);
}

/* Words that change under a proxy's look lead it on, and no further than four laps. */
static void *run_ahead(void *argument)
{
    struct locks *x = argument;

    for (uint64_t t = 1; !atomic_load_explicit(&x->over, memory_order_relaxed); t += 9)
        PP3_STORE(&x->w.engine->entries[0].state,
                  pp3_make(t % PP3_LAST_TICKET, PP3_PUBLISHED, 0, 0), relaxed);
    return 0;
}

static void words_that_run_ahead_lead_a_proxy_nowhere(void)
{
    struct locks x = {0};
    uint64_t mine = 0;
    pthread_t thread;

    world_open(&x.w, 1, 2, 1);
    struct pp3_ring *proxy = world_proxy(&x.w);
    CHECK(pthread_create(&thread, 0, run_ahead, &x) == 0);
    for (uint32_t i = 0; i < 3000 * effort; i++) {
        EQUAL(pp3_take(proxy, &mine), 0);
        if (i % 100 == 0)
            (void)sched_yield();
    }
    atomic_store_explicit(&x.over, 1, memory_order_relaxed);
    (void)pthread_join(thread, 0);
    tried(3000 * effort);
    world_close(&x.w);
}

const struct test thread_tests[] = {
    {"rounds go round between threads", rounds_go_round_between_threads},
    {"readers of slot and note see one state", readers_of_slot_and_note_see_one_state},
    {"owners are added by two threads", owners_are_added_by_two_threads},
    {"a watchdog takes orders from any thread", a_watchdog_takes_orders_from_any_thread},
    {"words that run ahead lead a proxy nowhere",
     words_that_run_ahead_lead_a_proxy_nowhere},
    {0, 0},
};
