/* What a proxy does with a round: STEP in, REPLY out, sleep between. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults.h"
#include "frames.h"
#include "harness.h"
#include "layout/crc.h"
#include "proxy/exchange.h"
#include "world.h"

struct scene {
    struct world w;
    struct pp3_ring *proxy;
    struct pair p;
    uint8_t *step;
    uint64_t mine;
    uint32_t bytes;
};

static void scene_open(struct scene *s, unsigned frame)
{
    pair_open(&s->p, &known_frames[frame]);
    struct pp3_shape shape = {
        .rounds = 2, .pages = 4, .ranks = 1,
        .page_bytes = (uint32_t)s->p.page_bytes,
        .request_bytes = (uint32_t)s->p.step_bytes + 64, .failed_bytes = 24,
        .head_bytes = 16, .slots = 1, .max_positions = 64,
    };
    world_open_shape(&s->w, &shape);
    s->proxy = world_proxy(&s->w);
    s->step = malloc(shape.request_bytes);
}

static void scene_close(struct scene *s)
{
    free(s->step);
    pair_close(&s->p);
    world_close(&s->w);
}

/* The engine submits the STEP; the proxy takes it: what pp3_take_step says. */
static int scene_step(struct scene *s)
{
    int64_t t = pp3_step(s->w.engine, s->p.step, (uint32_t)s->p.step_bytes, 0, FAR);

    CHECK(t > 0);
    return pp3_take_step(s->proxy, &s->p.known->layout, &s->mine, s->step,
                         s->w.shape.request_bytes, &s->bytes);
}

static void a_step_goes_out_and_its_reply_comes_in(void)
{
    for (unsigned f = 0; f < n_known_frames; f++) {
        struct scene s;
        uint64_t t = pp3_tick() - 100; /* stamps are of about now */
        struct pp3_trace trace = {.taken = t, .sent = t + 1, .received = t + 2}, told;
        scene_open(&s, f);
        EQUAL(pp3_take_step(s.proxy, &s.p.known->layout, &s.mine, s.step,
                            s.w.shape.request_bytes, &s.bytes), 0);
        EQUAL(scene_step(&s), 1);
        EQUAL(s.bytes, s.p.step_bytes);
        memcpy(s.p.reply + FRAME, s.step, 8); /* the round */
        size_t body = s.p.reply_bytes - FRAME - PP3_CRC_BYTES;
        put32(s.p.reply + FRAME + body, pp3_crc32(0, s.p.reply + FRAME, body));
        EQUAL(pp3_answer(s.proxy, &s.p.known->layout, s.mine, s.step, s.p.reply,
                         s.p.reply_bytes, s.p.known->session, s.p.known->reply_sequence,
                         &trace, &s.p.fault), 0);
        const uint8_t *page = pp3_page(s.proxy, s.mine);
        CHECK(memcmp(page + 8, s.p.known->page + 8, s.p.page_bytes - 8) == 0);
        pp3_trace_get(s.proxy, s.mine, pp3_tick(), &told);
        CHECK(told.taken == t && told.sent == t + 1 && told.received == t + 2);
        CHECK(told.checked > t + 2 && told.checked <= told.published);
        scene_close(&s);
    }
}

static void a_request_that_is_no_step_is_cancelled(void)
{
    struct scene s;
    uint64_t word = 0;

    scene_open(&s, 1);
    s.p.step[8] = 9; /* n */
    EQUAL(scene_step(&s), -EINVAL);
    EQUAL(pp3_word(s.w.engine, 1, &word), 0);
    EQUAL(pp3_state(word), PP3_FAILED + PP3_CANCELLED);
    s.p.step[8] = 4;
    EQUAL(pp3_release(s.w.engine, 0, 1), 0);
    EQUAL(pp3_claim(s.w.engine, 0, FAR), 2);
    memcpy(pp3_request_of(s.w.engine, 2), s.p.step, s.p.step_bytes);
    EQUAL(pp3_submit(s.w.engine, 2), 0); /* of another round */
    EQUAL(pp3_take_step(s.proxy, &s.p.known->layout, &s.mine, s.step,
                        s.w.shape.request_bytes, &s.bytes), -EINVAL);
    EQUAL(pp3_ticket(s.mine), 2);
    scene_close(&s);
}

static void a_bad_reply_is_the_callers_to_fail(void)
{
    struct scene s;
    struct pp3_trace trace = {0};
    uint64_t word = 0;

    scene_open(&s, 1);
    EQUAL(scene_step(&s), 1);
    EQUAL(pp3_answer(s.proxy, &s.p.known->layout, s.mine, s.step, s.p.reply,
                     s.p.reply_bytes, s.p.known->session, s.p.known->reply_sequence,
                     &trace, &s.p.fault), PP3_REASON_HEADER);
    EQUAL(pp3_answer_failed(s.proxy, &s.p.known->layout, s.mine, s.step, 5), 0);
    EQUAL(pp3_word(s.w.engine, 1, &word), 0);
    EQUAL(pp3_state(word), PP3_PUBLISHED);
    struct pp3_page_at to = pp3_page_at(&s.p.known->layout);
    EQUAL(get32(pp3_page(s.proxy, s.mine) + to.status), 5);
    pp3_trace_get(s.proxy, s.mine, pp3_tick(), &trace);
    CHECK(trace.taken == 0 && trace.checked == 0 && trace.published != 0);
    EQUAL(pp3_answer_failed(s.proxy, &s.p.known->layout, s.mine, s.step, 5), -ESTALE);
    scene_close(&s);
}

static void a_proxy_sleeps_until_there_is_something(void)
{
    struct world w;
    int link[2], control[2];

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    CHECK(pipe(link) == 0 && pipe(control) == 0);
    EQUAL(pp3_proxy_sleep(proxy, link[0], control[0], 0, 0), 0);
    EQUAL(pp3_proxy_sleep(proxy, link[0], control[0], 200000, 2000000), 0);
    CHECK(write(link[1], "x", 1) == 1);
    EQUAL(pp3_proxy_sleep(proxy, link[0], -1, 0, 1000000), PP3_WAKE_LINK);
    CHECK(write(control[1], "x", 1) == 1);
    EQUAL(pp3_proxy_sleep(proxy, -1, control[0], 0, 1000000), PP3_WAKE_CONTROL);
    EQUAL(ask(w.engine, FAR), 1);
    EQUAL(pp3_proxy_sleep(proxy, link[0], control[0], 0, 1000000),
          PP3_WAKE_WORK | PP3_WAKE_LINK | PP3_WAKE_CONTROL);
    EQUAL(pp3_proxy_sleep(NULL, -1, -1, 200000, 1000000), 0); /* though a round waits */
    EQUAL(pp3_proxy_sleep(NULL, link[0], -1, 0, 1000000), PP3_WAKE_LINK);
    CHECK(take_one(proxy));
    fail(PPOLL, 0, 1, EBADF);
    EQUAL(pp3_proxy_sleep(proxy, -1, -1, 0, 1000000), -EBADF);
    fail(PPOLL, 0, 1, EINTR);
    EQUAL(pp3_proxy_sleep(proxy, -1, -1, 0, 1000000), 0);
    EQUAL(PP3_LOAD(&w.engine->header->work_waiters, relaxed), 0);
    for (int i = 0; i < 2; i++) {
        (void)close(link[i]);
        (void)close(control[i]);
    }
    world_close(&w);
}

static void ask_one(void *argument)
{
    EQUAL(ask(argument, FAR), 1);
}

static void ask_one_more(void *argument)
{
    EQUAL(ask(argument, FAR), 2);
}

static void a_bell_ends_the_sleep_and_a_round_before_it_is_seen(void)
{
    struct world w;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    pp3_fd_ring(w.engine->bell_fd);
    EQUAL(pp3_proxy_sleep(proxy, -1, -1, 0, INT64_C(60000000000)), 0);
    at_clock(2, ask_one, w.engine); /* after the last look of the spin */
    EQUAL(pp3_proxy_sleep(proxy, -1, -1, 0, INT64_C(60000000000)), PP3_WAKE_WORK);
    CHECK(take_one(proxy));
    EQUAL(pp3_proxy_sleep(proxy, -1, -1, 100000, 0), 0);
    at_clock(4, ask_one_more, w.engine); /* between two polls of a spin */
    EQUAL(pp3_proxy_sleep(proxy, -1, -1, INT64_C(60000000000), 0), PP3_WAKE_WORK);
    world_close(&w);
}

static void a_proxy_dies_with_its_parent_or_says_why_not(void)
{
    int status = -1;

    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        leave(pp3_die_with_parent() != 0);
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    fail(PRCTL, 0, 1, EINVAL);
    EQUAL(pp3_die_with_parent(), -EINVAL);
}

const struct test exchange_tests[] = {
    {"a step goes out and its reply comes in", a_step_goes_out_and_its_reply_comes_in},
    {"a request that is no step is cancelled", a_request_that_is_no_step_is_cancelled},
    {"a bad reply is the caller's to fail", a_bad_reply_is_the_callers_to_fail},
    {"a proxy sleeps until there is something", a_proxy_sleeps_until_there_is_something},
    {"a bell ends the sleep, and a round before it is seen",
     a_bell_ends_the_sleep_and_a_round_before_it_is_seen},
    {"a proxy dies with its parent or says why not",
     a_proxy_dies_with_its_parent_or_says_why_not},
    {0, 0},
};
