/* A pump whose drafter is in its process: rounds, refusals, ends. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "frames.h"
#include "harness.h"
#include "proxy/near.h"
#include "world.h"

enum { STEPS, REPLIES, LATE, RETURNS, ROW_STATUS };
static const struct pp3_tally tally = {STEPS, REPLIES, LATE, RETURNS, ROW_STATUS};

struct scene {
    struct world w;
    struct pair p;
    struct pp3_hand *hand;
    struct pp3_pump *pump;
    uint8_t *room;
    uint32_t room_bytes, body_bytes;
};

static void scene_open(struct scene *s, unsigned frame)
{
    pair_open(&s->p, &known_frames[frame]);
    struct pp3_shape shape = {
        .rounds = 2, .pages = 8, .ranks = 1,
        .page_bytes = (uint32_t)(s->p.page_bytes + sizeof(struct pp3_trace)),
        .request_bytes = (uint32_t)s->p.step_bytes + 64, .failed_bytes = 24,
        .head_bytes = 16, .slots = 1, .max_positions = 64,
    };
    world_open_shape(&s->w, &shape);
    s->hand = pp3_hand_new(world_proxy(&s->w), &s->p.known->layout);
    s->pump = pp3_pump_new(s->hand, &tally);
    pp3_near_open(s->pump, s->p.known->session);
    s->room = pp3_near_room(s->pump, &s->room_bytes);
    s->body_bytes = (uint32_t)(s->p.reply_bytes - FRAME - PP3_CRC_BYTES);
}

static void scene_close(struct scene *s)
{
    (void)pp3_hand_fail_all(s->hand, 7);
    pp3_pump_free(s->pump);
    pp3_hand_free(s->hand);
    pair_close(&s->p);
    world_close(&s->w);
}

static int near(struct scene *s, uint32_t body_bytes)
{
    return pp3_near(s->pump, body_bytes, -1, 1);
}

static uint64_t ask_step(struct scene *s)
{
    int64_t t = pp3_step(s->w.engine, s->p.step, (uint32_t)s->p.step_bytes, 0, FAR);

    CHECK(t > 0);
    return (uint64_t)t;
}

/* The next round is to be drafted, whatever has to be restated before. */
static void expect_step(struct scene *s, uint32_t body_bytes, uint64_t t)
{
    int why = near(s, body_bytes);

    if (why == PP3_PUMP_RESET)
        why = near(s, 0);
    EQUAL(why, PP3_PUMP_STEP);
    CHECK(s->pump->subject && pp3_ticket(s->pump->subject->mine) == t);
    CHECK(s->pump->subject->sent_ns != 0);
}

static uint32_t draft(struct scene *s, uint64_t round)
{
    memcpy(s->room, s->p.reply + FRAME, s->body_bytes);
    memcpy(s->room, &round, 8);
    return s->body_bytes;
}

static uint32_t state_of(struct scene *s, uint64_t t)
{
    uint64_t word = 0;

    EQUAL(pp3_word(s->w.engine, t, &word), 0);
    CHECK(pp3_ticket(word) == t);
    return pp3_state(word);
}

static void let_go(struct scene *s, uint64_t t)
{
    EQUAL(pp3_release(s->w.engine, 0, t), 0);
}

static uint64_t counted(struct scene *s, uint32_t index)
{
    return pp3_counter(s->w.engine, index);
}

static void rounds_are_drafted(unsigned frame)
{
    struct scene s;

    scene_open(&s, frame);
    EQUAL(near(&s, 0), PP3_PUMP_IDLE);
    uint64_t t = ask_step(&s), u = ask_step(&s);
    expect_step(&s, 0, t);
    EQUAL(state_of(&s, u), PP3_CLAIMED);
    for (int i = 0; i < 6; i++) {
        expect_step(&s, draft(&s, t), u);
        EQUAL(state_of(&s, t), PP3_PUBLISHED);
        let_go(&s, t);
        t = u;
        u = ask_step(&s);
    }
    EQUAL(counted(&s, STEPS), 7);
    EQUAL(counted(&s, REPLIES), 6);
    scene_close(&s);
}

static void rounds_are_drafted_one_at_a_time(void)
{
    for (unsigned f = 0; f < n_known_frames; f++)
        rounds_are_drafted(f);
}

static void a_late_one_is_counted_and_the_next_is_drafted(void)
{
    struct scene s;
    uint64_t word;

    scene_open(&s, 1);
    uint64_t t = ask_step(&s);
    expect_step(&s, 0, t);
    EQUAL(pp3_resolve(s.w.engine, t, PP3_EXPIRED, &word), 0);
    let_go(&s, t);
    EQUAL(near(&s, draft(&s, t)), PP3_PUMP_IDLE);
    EQUAL(counted(&s, LATE), 1);
    t = ask_step(&s);
    EQUAL(near(&s, 0), PP3_PUMP_STEP);
    EQUAL(pp3_resolve(s.w.engine, t, PP3_EXPIRED, &word), 0);
    EQUAL(near(&s, 0), PP3_PUMP_IDLE); /* swept before its reply is there */
    EQUAL(near(&s, draft(&s, t)), PP3_PUMP_IDLE);
    EQUAL(counted(&s, LATE), 2);
    scene_close(&s);
}

static void a_bad_reply_stays_in_hand(void)
{
    struct scene s;

    scene_open(&s, 1);
    uint64_t t = ask_step(&s);
    expect_step(&s, 0, t);
    draft(&s, t);
    EQUAL(near(&s, s.body_bytes - 4), PP3_PUMP_REFUSED);
    EQUAL(s.pump->error, PP3_REASON_FRAME);
    EQUAL(s.pump->frame_bytes, FRAME + s.body_bytes - 4 + PP3_CRC_BYTES);
    EQUAL(state_of(&s, t), PP3_WRITING);
    pp3_near_open(s.pump, s.p.known->session);
    draft(&s, t);
    EQUAL(near(&s, s.room_bytes + 1), PP3_PUMP_RING);
    EQUAL(s.pump->error, -EMSGSIZE);
    EQUAL(near(&s, s.body_bytes), PP3_PUMP_IDLE); /* what was wrong is forgotten */
    EQUAL(state_of(&s, t), PP3_PUBLISHED);
    scene_close(&s);
}

static void an_order_and_a_spoiled_request_come_back(void)
{
    struct scene s;
    int control[2];

    scene_open(&s, 1);
    CHECK(pipe(control) == 0);
    CHECK(write(control[1], "x", 1) == 1);
    EQUAL(pp3_near(s.pump, 0, control[0], 0), PP3_PUMP_CONTROL);
    int64_t t = pp3_ask(s.w.engine, 0, FAR);
    memset(pp3_request_of(s.w.engine, (uint64_t)t), 0xee, s.p.step_bytes);
    EQUAL(pp3_submit(s.w.engine, (uint64_t)t), 0);
    EQUAL(near(&s, 0), PP3_PUMP_REQUEST);
    EQUAL(s.pump->error, -EINVAL);
    let_go(&s, (uint64_t)t);
    pp3_pump_stop(s.pump);
    EQUAL(near(&s, 0), PP3_PUMP_STOPPED);
    (void)close(control[0]);
    (void)close(control[1]);
    scene_close(&s);
}

const struct test near_tests[] = {
    {"rounds are drafted near by, one at a time", rounds_are_drafted_one_at_a_time},
    {"a late draft is counted, and the next round is drafted",
     a_late_one_is_counted_and_the_next_is_drafted},
    {"a bad reply of the own process stays in hand", a_bad_reply_stays_in_hand},
    {"an order and a spoiled request come back", an_order_and_a_spoiled_request_come_back},
    {0, 0},
};
