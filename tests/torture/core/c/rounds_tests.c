/* Asking and hearing: slots become STEPs, rounds become what a rank reads. */
#include <errno.h>
#include <string.h>

#include "faults.h"
#include "frames.h"
#include "harness.h"
#include "ring/slots.h"
#include "rounds/hear.h"
#include "world.h"

struct scene {
    struct world w;
    struct pp3_ring *proxy;
    struct pair p;
    struct pp3_ask *ask;
    uint64_t released[2];
    struct pp3_hear hear;
    struct pp3_heard heard;
};

static void scene_open(struct scene *s)
{
    static const uint8_t heads[48];

    memset(s, 0, sizeof *s);
    pair_open(&s->p, &known_frames[1]);
    struct pp3_shape shape = {
        .rounds = 2, .pages = 4, .ranks = 1,
        .page_bytes = (uint32_t)s->p.page_bytes,
        .request_bytes = (uint32_t)s->p.step_bytes, .failed_bytes = 24,
        .head_bytes = 16, .slots = 1, .max_positions = 64,
    };
    world_open_shape(&s->w, &shape);
    s->proxy = world_proxy(&s->w);
    s->ask = pp3_ask_new(s->w.engine, &s->p.known->layout);
    s->hear = (struct pp3_hear){.ask = s->ask, .released = s->released,
                                .slots = 4, .status_at = 8};
    s->hear.recorder = pp3_recorder_new(s->w.engine, 0);
    EQUAL(pp3_ask_rows(s->ask, s->p.step, (uint32_t)s->p.step_bytes, heads), 0);
    for (uint32_t slot = 0; slot < s->p.known->layout.max_slots; slot++)
        pp3_ask_open(s->ask, slot, 1, 10, slot);
}

static void scene_close(struct scene *s)
{
    pp3_recorder_free(s->hear.recorder);
    pp3_ask_free(s->ask);
    pair_close(&s->p);
    world_close(&s->w);
}

static int hear(struct scene *s, uint64_t t, uint64_t limit, uint32_t stale)
{
    return pp3_hear(&s->hear, s->w.engine, t, limit, stale, &s->heard);
}

/* Takes the next round and publishes a page of this round, all words else 0. */
static uint64_t publish(struct scene *s, uint64_t round)
{
    uint64_t mine = take_one(s->proxy);

    CHECK(mine);
    memset(pp3_page(s->proxy, mine), 0, s->w.shape.page_bytes);
    memcpy(pp3_page(s->proxy, mine), &round, 8);
    EQUAL(pp3_publish(s->proxy, mine), 0);
    return pp3_ticket(mine);
}

static void a_round_is_asked_heard_and_let_go(void)
{
    struct scene s;

    scene_open(&s);
    for (uint64_t t = 1; t <= 7; t++) {
        EQUAL(pp3_ask_step(s.ask, s.w.engine, 60), t);
        EQUAL(pp3_ask_busy(s.ask, s.w.engine, 0), t);
        EQUAL(publish(&s, t), t);
        EQUAL(pp3_ask_busy(s.ask, s.w.engine, 0), 0);
        CHECK(hear(&s, t, UINT64_MAX, 0) >= 0);
        EQUAL(s.heard.round, t);
        EQUAL(s.heard.failed, 0);
        EQUAL(pp3_let_go(&s.hear, s.w.engine, t), 0);
        EQUAL(pp3_let_go(&s.hear, s.w.engine, t), 0);
        EQUAL(hear(&s, t, UINT64_MAX, 0), -EALREADY);
        EQUAL(hear(&s, t + 1, 0, 0), -ESTALE);
    }
    EQUAL(pp3_let_go(&s.hear, s.w.engine, 5), 0); /* an older one again */
    EQUAL(s.released[1], 7);
    EQUAL(s.hear.recorder->count, 7); /* each round once */
    EQUAL(pp3_ticket(pp3_flights_of(s.w.engine, 0)->flight[6].word), 7);
    CHECK((uint32_t)pp3_flights_of(s.w.engine, 0)->flight[6].before[0] != 0);
    EQUAL(pp3_let_go(&s.hear, s.w.engine, 9), -ESTALE);
    EQUAL(hear(&s, 0, 0, 0), -EINVAL);
    scene_close(&s);
}

static void it_waits_as_it_is_told(void)
{
    for (uint32_t how = PP3_WAIT_FUTEX; how <= PP3_WAIT_SPIN; how++) {
        struct scene s;
        scene_open(&s);
        pp3_waiter_set(&s.hear.waiter, how, 1000);
        uint64_t t = (uint64_t)pp3_ask_step(s.ask, s.w.engine, 60.0);
        EQUAL(hear(&s, t, UINT64_MAX, 0), -EAGAIN);
        EQUAL(hear(&s, t, UINT64_MAX, 0), -EAGAIN); /* the same wait, and no spin more */
        EQUAL(s.hear.waiting, t);
        EQUAL(publish(&s, t), t);
        CHECK(hear(&s, t, UINT64_MAX, 0) >= 0);
        EQUAL(s.hear.waiting, 0);
        EQUAL(s.hear.waiter.waits, how == PP3_WAIT_HYBRID);
        EQUAL(pp3_let_go(&s.hear, s.w.engine, t), 0);
        scene_close(&s);
    }
}

static int soon(struct scene *s, uint64_t t, uint64_t limit)
{
    return pp3_hear_soon(&s->hear, s->w.engine, t, limit, 20000);
}

static void it_is_known_whether_a_call_would_wait(void)
{
    for (uint32_t how = PP3_WAIT_FUTEX; how <= PP3_WAIT_SPIN; how++) {
        struct scene s;
        scene_open(&s);
        pp3_waiter_set(&s.hear.waiter, how, 1000000000);
        uint64_t t = (uint64_t)pp3_ask_step(s.ask, s.w.engine, 60.0);
        EQUAL(soon(&s, 0, UINT64_MAX), 1); /* it refuses at once */
        EQUAL(soon(&s, t + 1, UINT64_MAX), 1);
        EQUAL(soon(&s, t, 0), 0);
        EQUAL(soon(&s, t, pp3_now() + 1000), 0);
        EQUAL(soon(&s, t, UINT64_MAX), 0);
        EQUAL(s.hear.waiting, t);
        EQUAL(hear(&s, t, 0, 0), -ETIMEDOUT); /* what was there is gone: no wait */
        EQUAL(pp3_counter(s.w.engine, PP3_COUNT_SLEPT), 0);
        EQUAL(publish(&s, t), t);
        EQUAL(soon(&s, t, UINT64_MAX), 1);
        CHECK(hear(&s, t, UINT64_MAX, 0) >= 0);
        EQUAL(s.hear.waiting, 0);
        EQUAL(pp3_let_go(&s.hear, s.w.engine, t), 0);
        EQUAL(soon(&s, t, UINT64_MAX), 1);
        pp3_forks++; /* a forked child, which has no region to look at */
        EQUAL(soon(&s, t + 1, UINT64_MAX), 1);
        EQUAL(hear(&s, t + 1, UINT64_MAX, 0), -EOWNERDEAD);
        pp3_forks--;
        scene_close(&s);
    }
}

static void a_hybrid_spins_for_what_comes_soon(void)
{
    struct scene s;
    uint64_t t;

    scene_open(&s);
    pp3_waiter_set(&s.hear.waiter, PP3_WAIT_HYBRID, 1000000000);
    for (int i = 0; i < PP3_WAITS_KEPT; i++) {
        t = (uint64_t)pp3_ask_step(s.ask, s.w.engine, 60.0);
        EQUAL(publish(&s, t), t);
        CHECK(hear(&s, t, UINT64_MAX, 0) >= 0);
        EQUAL(pp3_let_go(&s.hear, s.w.engine, t), 0);
    }
    CHECK(s.hear.waiter.spin_ns < s.hear.waiter.most_ns);
    t = (uint64_t)pp3_ask_step(s.ask, s.w.engine, 60.0);
    EQUAL(soon(&s, t, UINT64_MAX), 0); /* not soon enough */
    EQUAL(pp3_counter(s.w.engine, PP3_COUNT_SLEPT), 0);
    EQUAL(publish(&s, t), t);
    EQUAL(soon(&s, t, UINT64_MAX), 1);
    scene_close(&s);
}

/* However long a spin may be, a call comes back within it, and the next one goes on
 * with it: nobody sleeps. */
static void a_long_spin_lets_signals_in(void)
{
    for (uint32_t how = PP3_WAIT_HYBRID; how <= PP3_WAIT_SPIN; how++) {
        struct scene s;
        scene_open(&s);
        pp3_waiter_set(&s.hear.waiter, how, UINT64_C(1000000000000000000));
        uint64_t t = (uint64_t)pp3_ask_step(s.ask, s.w.engine, 20.0);
        for (int i = 0; i < 3; i++)
            EQUAL(hear(&s, t, UINT64_MAX, 0), -EAGAIN);
        EQUAL(pp3_counter(s.w.engine, PP3_COUNT_SLEPT), 0);
        EQUAL(publish(&s, t), t);
        CHECK(hear(&s, t, UINT64_MAX, 0) >= 0);
        EQUAL(pp3_let_go(&s.hear, s.w.engine, t), 0);
        scene_close(&s);
    }
}

static void a_failed_round_is_heard_of_too_and_patience_ends(void)
{
    struct scene s;
    uint64_t word;

    scene_open(&s);
    s.hear.ask = 0; /* a further rank */
    pp3_recorder_free(s.hear.recorder);
    s.hear.recorder = 0; /* nothing is recorded */
    EQUAL(pp3_ask_step(s.ask, s.w.engine, 60), 1);
    EQUAL(hear(&s, 1, pp3_now() + 1000, 0), -ETIMEDOUT);
    EQUAL(hear(&s, 1, UINT64_MAX, 0), -EAGAIN);
    EQUAL(pp3_resolve(s.w.engine, 1, PP3_EXPIRED, &word), 0);
    CHECK(hear(&s, 1, UINT64_MAX, 2) >= (int)s.w.shape.pages);
    EQUAL(s.heard.failed, PP3_EXPIRED);
    EQUAL(s.heard.stale, 2);
    EQUAL(s.heard.status[1], PP3_STATUS_STALE);
    EQUAL(pp3_let_go(&s.hear, s.w.engine, 1), 0);
    PP3_STORE(&s.w.engine->entries[1].state, pp3_make(1, 12, 0, 0), relaxed);
    s.released[1] = 0;
    EQUAL(hear(&s, 1, UINT64_MAX, 0), -EBADMSG);
    scene_close(&s);
}

static void a_page_of_another_round_is_refused_and_let_go(void)
{
    struct scene s;

    scene_open(&s);
    EQUAL(pp3_ask_step(s.ask, s.w.engine, 60), 1);
    EQUAL(publish(&s, 99), 1);
    s.hear.ask = 0; /* a further rank, who does not know when it was submitted */
    EQUAL(hear(&s, 1, UINT64_MAX, 0), -EBADE);
    EQUAL(s.heard.round, 99);
    EQUAL(hear(&s, 1, UINT64_MAX, 0), -EALREADY);
    EQUAL(s.hear.recorder->count, 1);
    EQUAL((uint32_t)pp3_flights_of(s.w.engine, 0)->flight[0].before[0], 0);
    scene_close(&s);
}

static void slots_that_changed_are_stale_and_closed_ones_refused(void)
{
    struct scene s;

    scene_open(&s);
    EQUAL(pp3_ask_step(s.ask, s.w.engine, 60), 1);
    EQUAL(pp3_ask_stale(s.ask, 1), 0);
    pp3_ask_close(s.ask, 0);
    EQUAL(pp3_ask_life(s.ask, 0), 2);
    pp3_ask_open(s.ask, 1, 2, 0, 0);
    EQUAL(pp3_ask_stale(s.ask, 1), 3);
    EQUAL(pp3_ask_busy(s.ask, s.w.engine, 1), 0); /* of an older generation */
    EQUAL(pp3_ask_stale(s.ask, 0), 0);
    EQUAL(pp3_ask_stale(s.ask, 3), 0);
    pp3_ask_over(s.ask, 3);
    EQUAL(pp3_ask_step(s.ask, s.w.engine, 60), -ENOENT);
    EQUAL(s.ask->closed, 0);
    pp3_ask_over(s.ask, 1);
    EQUAL(pp3_ask_stale(s.ask, 1), 0);
    pp3_ask_open(s.ask, 0, 2, 0, 0);
    EQUAL(pp3_ask_step(s.ask, s.w.engine, 60), 2);
    EQUAL(pp3_ask_step(s.ask, s.w.engine, 60), -EAGAIN);
    EQUAL(pp3_ask_busy(s.ask, s.w.engine, 2), 1); /* the first of two */
    EQUAL(pp3_ask_step(s.ask, s.w.engine, -1), -EDOM);
    CHECK(pp3_after(1e300) < FAR);
    scene_close(&s);
}

static void the_newest_tokens_are_sent_and_once(void)
{
    struct scene s;
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    uint32_t most = known_frames[1].layout.depth + 1;

    scene_open(&s);
    pp3_ask_commit(s.ask, 0, tokens, 4, 1);
    pp3_ask_commit(s.ask, 0, tokens + 4, 3, 1);
    EQUAL(s.ask->slot[0].unsent_count, most);
    EQUAL(s.ask->slot[0].unsent[most - 1], 7);
    pp3_ask_commit(s.ask, 0, tokens, 9, 1);
    EQUAL(s.ask->slot[0].unsent[0], 10 - (int32_t)most);
    EQUAL(s.ask->slot[0].position, 26);
    EQUAL(pp3_ask_step(s.ask, s.w.engine, 60), 1);
    EQUAL(s.ask->slot[0].unsent_count, 0);
    scene_close(&s);
}

static void tokens_are_appended_here_and_in_the_region(void)
{
    struct scene s;
    uint32_t vocab = known_frames[1].layout.vocab, generation, live;
    const int32_t good[] = {0, (int32_t)vocab - 1}, bad[] = {1, (int32_t)vocab},
                  below[] = {-1};
    int32_t found[64];
    uint64_t length;

    scene_open(&s);
    EQUAL(pp3_ask_append(s.ask, s.w.engine, 0, good, 2, 7), -ENOENT); /* not there */
    EQUAL(pp3_slot_reset(s.w.engine, 0, 1, good, 1), 0);
    EQUAL(pp3_ask_append(s.ask, s.w.engine, 99, good, 2, 7), -EINVAL);
    EQUAL(pp3_ask_append(s.ask, s.w.engine, 0, bad, 2, 7), -EDOM);
    EQUAL(pp3_ask_append(s.ask, s.w.engine, 0, below, 1, 7), -EDOM);
    EQUAL(pp3_ask_step(s.ask, s.w.engine, 60), 1);
    EQUAL(pp3_ask_append(s.ask, s.w.engine, 0, good, 2, 7), -EBUSY);
    EQUAL(publish(&s, 1), 1);
    EQUAL(s.ask->slot[0].position, 10);
    EQUAL(pp3_ask_append(s.ask, s.w.engine, 0, good, 2, 7), 0);
    EQUAL(pp3_slot_read(s.w.engine, 0, found, 64, &generation, &live, &length), 0);
    CHECK(length == 3 && found[2] == good[1]);
    EQUAL(s.ask->slot[0].position, 12);
    EQUAL(s.ask->slot[0].digest, 7);
    for (int i = 0; i < 40; i++)
        if (pp3_ask_append(s.ask, s.w.engine, 0, good, 2, 8) != 0)
            break;
    EQUAL(pp3_ask_append(s.ask, s.w.engine, 0, good, 2, 9), -ENOSPC);
    EQUAL(s.ask->slot[0].digest, 8);
    pp3_ask_close(s.ask, 0);
    EQUAL(pp3_ask_append(s.ask, s.w.engine, 0, good, 0, 7), -ENOENT);
    scene_close(&s);
}

static void rows_that_are_no_step_are_refused(void)
{
    struct scene s;
    uint8_t more[8192] = {0};

    scene_open(&s);
    EQUAL(pp3_ask_rows(s.ask, more, sizeof more, more), -EINVAL); /* too long */
    EQUAL(pp3_ask_rows(s.ask, s.p.step, (uint32_t)s.p.step_bytes - 1, more), -EINVAL);
    scene_close(&s);
}

static void without_memory_nobody_asks(void)
{
    struct scene s;

    scene_open(&s);
    for (int i = 0; i < 4; i++) {
        fail(CALLOC, i, 1, ENOMEM);
        CHECK(!pp3_ask_new(s.w.engine, &s.p.known->layout));
    }
    fail_no_more();
    pp3_ask_free(0);
    scene_close(&s);
}

const struct test rounds_tests[] = {
    {"a rank waits as it is told", it_waits_as_it_is_told},
    {"it is known whether a call would wait", it_is_known_whether_a_call_would_wait},
    {"a hybrid spins for what comes soon", a_hybrid_spins_for_what_comes_soon},
    {"a long spin lets signals in", a_long_spin_lets_signals_in},
    {"a round is asked, heard and let go", a_round_is_asked_heard_and_let_go},
    {"a failed round is heard of too, and patience ends",
     a_failed_round_is_heard_of_too_and_patience_ends},
    {"a page of another round is refused and let go",
     a_page_of_another_round_is_refused_and_let_go},
    {"slots that changed are stale, and closed ones refused",
     slots_that_changed_are_stale_and_closed_ones_refused},
    {"the newest tokens are sent, and once", the_newest_tokens_are_sent_and_once},
    {"tokens are appended here and in the region",
     tokens_are_appended_here_and_in_the_region},
    {"rows that are no STEP are refused", rows_that_are_no_step_are_refused},
    {"without memory nobody asks", without_memory_nobody_asks},
    {0, 0},
};
