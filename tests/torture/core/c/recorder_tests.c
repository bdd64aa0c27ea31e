/* Stamps, traces and flight recorders: whose a number is, and what stands in a record. */
#include "ring/recorder.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "faults.h"
#include "harness.h"
#include "world.h"

static const struct pp3_flight *flight_of(struct world *w, uint32_t rank, uint64_t n)
{
    return &pp3_flights_of(w->engine, rank)->flight[n % PP3_FLIGHTS];
}

static uint32_t before(const struct pp3_flight *f, int stage)
{
    return (uint32_t)(f->before[stage / 2] >> 32 * (stage % 2));
}

static void a_stamp_is_of_its_own_lap_alone(void)
{
    struct world w;
    struct pp3_trace trace;
    uint64_t now = (UINT64_C(7) << PP3_STAMP_BITS) + 1000;

    world_open(&w, 2, 4, 1);
    uint64_t old = pp3_make(3, PP3_WRITING, 0, 1), mine = pp3_make(5, PP3_WRITING, 0, 1);
    pp3_trace_put(w.engine, old, PP3_TAKEN, now - 10);
    pp3_trace_put(w.engine, mine, PP3_SENT, now - 5);
    pp3_trace_get(w.engine, mine, now, &trace);
    CHECK(trace.taken == 0 && trace.sent == now - 5 && trace.published == 0);
    pp3_trace_get(w.engine, old, now, &trace);
    CHECK(trace.taken == now - 10 && trace.sent == 0);
    /* below the bits that a stamp has: it was before them */
    pp3_trace_put(w.engine, mine, PP3_TAKEN, (UINT64_C(7) << PP3_STAMP_BITS) - 1);
    pp3_trace_get(w.engine, mine, now, &trace);
    EQUAL(trace.taken, (UINT64_C(7) << PP3_STAMP_BITS) - 1);
    world_close(&w);
}

static void a_record_holds_what_its_rank_saw(void)
{
    struct world w;
    struct pp3_trace trace = {.taken = 1010, .sent = 1020, .published = 1050};

    world_open(&w, 2, 4, 3);
    for (uint32_t k = 0; k < 3; k++) {
        struct pp3_recorder *f = pp3_recorder_new(w.engine, k);
        for (uint64_t t = 1; t <= PP3_FLIGHTS + 3; t++) {
            uint64_t word = pp3_make(t, PP3_PUBLISHED, k, 9);
            pp3_recorder_see(f, word, 0xabcdefu, &trace, 1000, 1060);
            pp3_recorder_leave(f, t, 0);
            f->sight[t % 2].released = 1100;
            pp3_recorder_add(f, t);
        }
        const struct pp3_flight *last = flight_of(&w, k, PP3_FLIGHTS + 2);
        EQUAL(last->mark, 2 * (PP3_FLIGHTS + 3));
        EQUAL(last->word, pp3_make(PP3_FLIGHTS + 3, PP3_PUBLISHED, k, 9));
        EQUAL(last->released, 1100);
        EQUAL(before(last, PP3_STAGE_SUBMIT), 100);
        EQUAL(before(last, PP3_STAGE_TAKE), 90);
        EQUAL(before(last, PP3_STAGE_SENT), 80);
        EQUAL(before(last, PP3_STAGE_RECEIVED), 0);
        EQUAL(before(last, PP3_STAGE_VALIDATED), 0);
        EQUAL(before(last, PP3_STAGE_PUBLISH), 50);
        EQUAL(before(last, PP3_STAGE_SEEN), 40);
        EQUAL(last->before[3] >> 32, 0xabcdef);
        EQUAL(flight_of(&w, k, 3)->mark, 8);
        EQUAL(pp3_flights_of(w.engine, k)->count, PP3_FLIGHTS + 3);
        pp3_recorder_free(f);
        f = pp3_recorder_new(w.engine, k); /* goes on where the first one was */
        EQUAL(f->count, PP3_FLIGHTS + 3);
        pp3_recorder_free(f);
    }
    CHECK(memcmp(pp3_flights_of(w.engine, 0)->epoch, w.shape.epoch, 16) == 0);
    world_close(&w);
}

static void what_took_long_is_kept_shorter(void)
{
    struct world w;
    struct pp3_trace trace = {.taken = 1000, .sent = 1100};

    world_open(&w, 2, 4, 1);
    struct pp3_recorder *f = pp3_recorder_new(w.engine, 0);
    pp3_recorder_see(f, pp3_make(1, PP3_PUBLISHED, 0, 1), 3, &trace, 1, 1100);
    f->sight[1].released = 1100;
    pp3_recorder_add(f, 1);
    EQUAL(before(flight_of(&w, 0, 0), PP3_STAGE_SENT), 1); /* at the release, yet known */
    EQUAL(before(flight_of(&w, 0, 0), PP3_STAGE_TAKE), 100);
    f->sight[1].released = (UINT64_C(1) << 40) + 1;
    pp3_recorder_add(f, 1);
    EQUAL(flight_of(&w, 0, 1)->before[3] >> 56, 9);
    EQUAL(before(flight_of(&w, 0, 1), PP3_STAGE_SUBMIT), 1u << 31);
    pp3_recorder_free(f);
    world_close(&w);
}

static void a_round_let_go_unread_is_recorded_as_it_stands(void)
{
    struct world w;
    uint64_t word;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    struct pp3_recorder *f = pp3_recorder_new(w.engine, 0);
    EQUAL(ask(w.engine, FAR), 1);
    uint64_t mine = take_one(proxy);
    pp3_trace_put(proxy, mine, PP3_TAKEN, pp3_tick());
    EQUAL(pp3_resolve(w.engine, 1, PP3_EXPIRED, &word), 0);
    pp3_recorder_leave(f, 1, 0);
    pp3_recorder_add(f, 1);
    EQUAL(flight_of(&w, 0, 0)->word, word);
    EQUAL(flight_of(&w, 0, 0)->before[3] >> 32 & 0xffffffu, PP3_UNSEEN);
    CHECK(before(flight_of(&w, 0, 0), PP3_STAGE_TAKE) != 0);
    EQUAL(before(flight_of(&w, 0, 0), PP3_STAGE_SEEN), 0);
    pp3_recorder_leave(f, 3, 0); /* another's entry */
    EQUAL(f->sight[1].word, word);
    FORKED(pp3_recorder_leave(f, 2, 0));
    EQUAL(f->sight[0].word, 0);
    pp3_recorder_free(f);
    world_close(&w);
}

static void a_recorder_needs_a_rank_and_memory(void)
{
    struct world w;

    world_open(&w, 2, 4, 2);
    CHECK(!pp3_recorder_new(w.engine, 2));
    FORKED(CHECK(!pp3_recorder_new(w.engine, 0)));
    fail(CALLOC, 0, 1, ENOMEM);
    CHECK(!pp3_recorder_new(w.engine, 0));
    fail_no_more();
    struct pp3_ring without = *w.engine;
    without.acks = 0;
    CHECK(!pp3_recorder_new(&without, 0));
    pp3_recorder_free(0);
    world_close(&w);
}

static void stamps_go_on_by_either_clock(void)
{
    int steady = pp3_clock_counts();
    uint64_t tick = 0, ns = 0, then, later;

    for (pp3_counter_steady = 0; pp3_counter_steady < 2; pp3_counter_steady++) {
        pp3_clock_pair(&tick, &ns);
        CHECK(tick != 0 && ns != 0);
        doze();
        pp3_clock_pair(&then, &later);
        CHECK(then > tick && later - ns >= 2000000);
        if (!pp3_counter_steady)
            CHECK(then - tick >= 2000000 && pp3_tick() >= then);
    }
    pp3_counter_steady = steady;
    pp3_recorder_between();
}

static void the_counter_is_the_clock_where_the_kernel_says_so(void)
{
    EQUAL(pp3_counter_is_clock("/nowhere/at/all"), 0);
    EQUAL(pp3_counter_is_clock("/proc/self/comm"), 0);
    fail(READ, 0, 1, EIO);
    EQUAL(pp3_counter_is_clock("/proc/self/comm"), 0);
    fail_no_more();
    static const char *const names[] = {"tsc\n", "arch_sys_counter\n", "kvm-clock\n"};
    for (int i = 0; i < 3; i++) {
        char path[] = "/tmp/clocksource-XXXXXX";
        int fd = mkstemp(path);
        CHECK(fd >= 0 && write(fd, names[i], strlen(names[i])) > 0);
        EQUAL(pp3_counter_is_clock(path), i < 2);
        (void)close(fd);
        (void)unlink(path);
    }
}

const struct test recorder_tests[] = {
    {"a stamp is of its own lap alone", a_stamp_is_of_its_own_lap_alone},
    {"a record holds what its rank saw", a_record_holds_what_its_rank_saw},
    {"what took long is kept shorter", what_took_long_is_kept_shorter},
    {"a round let go unread is recorded as it stands",
     a_round_let_go_unread_is_recorded_as_it_stands},
    {"a recorder needs a rank and memory", a_recorder_needs_a_rank_and_memory},
    {"stamps go on by either clock", stamps_go_on_by_either_clock},
    {"the counter is the clock where the kernel says so",
     the_counter_is_the_clock_where_the_kernel_says_so},
    {0, 0},
};
