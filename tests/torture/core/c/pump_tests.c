/* The hand and the pump: rounds and frames of one session, however they come. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "faults.h"
#include "frames.h"
#include "harness.h"
#include "layout/crc.h"
#include "proxy/pump.h"
#include "world.h"

enum { STEPS, REPLIES, LATE, RETURNS, ROW_STATUS };
static const struct pp3_tally tally = {STEPS, REPLIES, LATE, RETURNS, ROW_STATUS};

struct scene {
    struct world w;
    struct pp3_ring *proxy;
    struct pair p;
    struct pp3_hand *hand;
    struct pp3_pump *pump;
    int link, worker;
};

static void open_session(struct scene *s)
{
    int ends[2] = {-1, -1};

    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    s->link = ends[0];
    s->worker = ends[1];
    pp3_pump_open(s->pump, s->link, s->p.known->session);
    s->pump->received = s->p.known->reply_sequence;
    s->pump->send_ns = s->pump->trickle_ns = FAR;
}

static void scene_open(struct scene *s, unsigned frame)
{
    pair_open(&s->p, &known_frames[frame]);
    struct pp3_shape shape = {
        .rounds = 2, .pages = 8, .ranks = 1,
        .page_bytes = (uint32_t)s->p.page_bytes,
        .request_bytes = (uint32_t)s->p.step_bytes + 64, .failed_bytes = 24,
        .head_bytes = 16, .slots = 1, .max_positions = 64,
    };
    world_open_shape(&s->w, &shape);
    s->proxy = world_proxy(&s->w);
    s->hand = pp3_hand_new(s->proxy, &s->p.known->layout);
    s->pump = pp3_pump_new(s->hand, &tally);
    open_session(s);
}

static void hang_up(struct scene *s)
{
    pp3_pump_close(s->pump);
    (void)close(s->link);
    (void)close(s->worker);
}

static void scene_close(struct scene *s)
{
    (void)pp3_hand_fail_all(s->hand, 7);
    hang_up(s);
    pp3_pump_free(s->pump);
    pp3_hand_free(s->hand);
    pair_close(&s->p);
    world_close(&s->w);
}

static int turn(struct scene *s) { return pp3_pump(s->pump, -1, 1); }

static uint64_t ask_step(struct scene *s)
{
    int64_t t = pp3_step(s->w.engine, s->p.step, (uint32_t)s->p.step_bytes, 0, FAR);

    CHECK(t > 0);
    return (uint64_t)t;
}

/* The STEP goes out, its slots restated by nobody; what the worker heard is dropped. */
static uint64_t send_one(struct scene *s)
{
    uint64_t t = ask_step(s);
    uint8_t frame[4096];
    int why = turn(s);

    if (why == PP3_PUMP_RESET) {
        CHECK(s->pump->subject && pp3_ticket(s->pump->subject->mine) == t);
        why = turn(s);
    }
    EQUAL(why, PP3_PUMP_IDLE);
    EQUAL(recv(s->worker, frame, sizeof frame, 0),
          FRAME + s->p.step_bytes + PP3_CRC_BYTES);
    return t;
}

static void seal(struct scene *s, uint64_t round, uint64_t sequence)
{
    size_t body = s->p.reply_bytes - FRAME - PP3_CRC_BYTES;

    memcpy(s->p.reply + 16, &sequence, 8);
    memcpy(s->p.reply + FRAME, &round, 8);
    put32(s->p.reply + FRAME + body, pp3_crc32(0, s->p.reply + FRAME, body));
}

static void say(struct scene *s, const void *bytes, size_t n)
{
    EQUAL(send(s->worker, bytes, n, MSG_NOSIGNAL), n);
}

static void answer_one(struct scene *s, uint64_t round)
{
    seal(s, round, s->pump->received);
    say(s, s->p.reply, s->p.reply_bytes);
}

static uint64_t counted(struct scene *s, uint32_t index)
{
    return pp3_counter(s->w.engine, index);
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

static void resolve(struct scene *s, uint64_t t)
{
    uint64_t word;

    EQUAL(pp3_resolve(s->w.engine, t, PP3_EXPIRED, &word), 0);
    let_go(s, t);
}

static void rounds_pass_through_it(void)
{
    for (unsigned f = 0; f < n_known_frames; f++) {
        struct scene s;
        scene_open(&s, f);
        for (int i = 0; i < 5; i++) {
            uint64_t t = send_one(&s);
            answer_one(&s, t);
            EQUAL(turn(&s), PP3_PUMP_IDLE);
            EQUAL(state_of(&s, t), PP3_PUBLISHED);
            let_go(&s, t);
        }
        EQUAL(counted(&s, STEPS), 5);
        EQUAL(counted(&s, REPLIES), 5);
        scene_close(&s);
    }
}

static void a_reply_cut_at_every_byte_is_one(void)
{
    struct scene s;

    scene_open(&s, 1);
    for (size_t cut = 1; cut < s.p.reply_bytes; cut += 1 + cut / 50) {
        uint64_t t = send_one(&s);
        seal(&s, t, s.pump->received);
        say(&s, s.p.reply, cut);
        EQUAL(turn(&s), PP3_PUMP_IDLE);
        EQUAL(state_of(&s, t), PP3_WRITING);
        say(&s, s.p.reply + cut, s.p.reply_bytes - cut);
        EQUAL(turn(&s), PP3_PUMP_IDLE);
        EQUAL(state_of(&s, t), PP3_PUBLISHED);
        let_go(&s, t);
        tried(1);
    }
    scene_close(&s);
}

/* Two replies and a half fill no buffer; so many in a row turn it over many times. */
static void frames_behind_one_another_find_room(void)
{
    struct scene s;
    uint8_t two[2 * 8192];

    scene_open(&s, 1);
    for (int i = 0; i < 60; i++) {
        uint64_t t = send_one(&s), u = send_one(&s);
        size_t n = s.p.reply_bytes, head = (size_t)(i * 97) % n;
        seal(&s, t, s.pump->received);
        memcpy(two, s.p.reply, n);
        seal(&s, u, s.pump->received + 1);
        memcpy(two + n, s.p.reply, n);
        say(&s, two, n + head);
        EQUAL(turn(&s), PP3_PUMP_IDLE);
        say(&s, two + n + head, n - head);
        EQUAL(turn(&s), PP3_PUMP_IDLE);
        EQUAL(state_of(&s, u), PP3_PUBLISHED);
        let_go(&s, t);
        let_go(&s, u);
    }
    s.pump->capacity = 2 * s.pump->most; /* as if there were less of it */
    for (int i = 0; i < 9; i++) {
        uint64_t t = send_one(&s), u = send_one(&s);
        size_t n = s.p.reply_bytes;
        seal(&s, t, s.pump->received);
        memcpy(two, s.p.reply, n);
        seal(&s, u, s.pump->received + 1);
        memcpy(two + n, s.p.reply, n);
        say(&s, two, 2 * n - 1);
        EQUAL(turn(&s), PP3_PUMP_IDLE);
        say(&s, two + 2 * n - 1, 1);
        EQUAL(turn(&s), PP3_PUMP_IDLE);
        EQUAL(state_of(&s, u), PP3_PUBLISHED);
        let_go(&s, t);
        let_go(&s, u);
    }
    scene_close(&s);
}

static void a_late_reply_is_late_and_an_unknown_one_is_refused(void)
{
    struct scene s;

    scene_open(&s, 1);
    uint64_t t = send_one(&s);
    resolve(&s, t);
    EQUAL(turn(&s), PP3_PUMP_IDLE); /* swept */
    EQUAL(s.hand->resolved_count, 1);
    answer_one(&s, t);
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    EQUAL(counted(&s, LATE), 1);
    t = send_one(&s);
    answer_one(&s, t);
    s.pump->stop = 0;
    resolve(&s, t); /* behind the sweep of the turn: accepted, then fenced */
    s.hand->taken[0]->sent_ns = 1;
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    EQUAL(counted(&s, LATE), 2);
    EQUAL(s.hand->resolved_count, 0);
    answer_one(&s, t);
    EQUAL(turn(&s), PP3_PUMP_REFUSED);
    EQUAL(s.pump->error, PP3_REASON_HEADER);
    CHECK(!s.pump->subject);
    scene_close(&s);
}

static void a_spoiled_reply_stays_in_hand_and_its_frame_is_consumed(void)
{
    struct scene s;

    scene_open(&s, 1);
    uint64_t t = send_one(&s);
    s.p.reply[FRAME + 30] ^= 64; /* a status, or a generation */
    answer_one(&s, t);
    EQUAL(turn(&s), PP3_PUMP_REFUSED);
    EQUAL(s.pump->error, PP3_REASON_ECHO);
    CHECK(s.pump->subject == pp3_hand_find(s.hand, t));
    uint64_t received = s.pump->received;
    EQUAL(pp3_hand_fail(s.hand, s.pump->subject, 4), 1);
    EQUAL(state_of(&s, t), PP3_PUBLISHED);
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    EQUAL(s.pump->received, received + 1);
    scene_close(&s);
}

static void headers_that_must_not_come_are_refused(void)
{
    static const struct { size_t at; uint32_t value; } bad[] = {
        {0, 0}, {4, 2 | PP3_KIND_REPLY << 16}, {4, 1 | 3 << 16}, {8, 1}, {12, 3},
        {12, UINT32_MAX},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct scene s;
        scene_open(&s, 1);
        uint64_t t = send_one(&s);
        seal(&s, t, s.pump->received);
        put32(s.p.reply + bad[i].at, bad[i].value);
        say(&s, s.p.reply, FRAME);
        EQUAL(turn(&s), PP3_PUMP_HEADER);
        EQUAL(s.pump->frame_bytes, FRAME);
        scene_close(&s);
    }
}

/* Kind, flags and length of a frame that is no REPLY; what the pump makes of it. */
static int other(uint32_t kind, uint32_t flags, uint32_t body)
{
    struct scene s;
    uint8_t frame[2048] = "PP3F";

    scene_open(&s, 1);
    put32(frame + 4, 1 | kind << 16);
    put32(frame + 8, flags);
    put32(frame + 12, body);
    say(&s, frame, FRAME + (body < 1500 ? body : 0));
    int why = turn(&s);
    scene_close(&s);
    return why;
}

static void a_farewell_is_whole_or_refused(void)
{
    EQUAL(other(7, 0, 4), PP3_PUMP_FRAME);
    EQUAL(other(7, 2, 4), PP3_PUMP_HEADER);
    EQUAL(other(7, 0, 5), PP3_PUMP_HEADER);
    EQUAL(other(6, 0, 20), PP3_PUMP_FRAME);
    EQUAL(other(6, 0, 1044), PP3_PUMP_FRAME);
    EQUAL(other(6, 0, 1045), PP3_PUMP_HEADER);
    EQUAL(other(6, 0, 19), PP3_PUMP_HEADER);
    EQUAL(other(6, 2, 20), PP3_PUMP_HEADER);
}

static void an_end_and_a_delay_have_their_reasons(void)
{
    struct scene s;

    scene_open(&s, 1);
    (void)send_one(&s);
    say(&s, "PP3F", 4);
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    s.pump->trickle_ns = 0;
    UNTIL(turn(&s) == PP3_PUMP_TRICKLE);
    (void)shutdown(s.worker, SHUT_RDWR);
    EQUAL(turn(&s), PP3_PUMP_LOST);
    EQUAL(s.pump->error, 0);
    (void)close(s.worker);
    (void)ask_step(&s);
    EQUAL(turn(&s), PP3_PUMP_LOST); /* nothing can be sent */
    EQUAL(s.pump->error, EPIPE);
    pp3_pump_stop(s.pump);
    EQUAL(turn(&s), PP3_PUMP_STOPPED);
    scene_close(&s);
}

static void half_a_step_is_finished_before_anything_else(void)
{
    struct scene s;
    uint8_t heard[4096];
    int small = 1;
    size_t wanted;
    ssize_t got;

    scene_open(&s, 1);
    wanted = FRAME + s.p.step_bytes + PP3_CRC_BYTES;
    (void)setsockopt(s.link, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    memset(heard, 0, sizeof heard);
    while (send(s.link, heard, 64, MSG_NOSIGNAL) > 0)
        ; /* the worker reads nothing */
    uint64_t t = ask_step(&s);
    EQUAL(turn(&s), PP3_PUMP_RESET);
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    EQUAL(s.pump->out_bytes, wanted);
    uint64_t u = ask_step(&s);
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    EQUAL(s.hand->in_hand, 1);
    while ((got = recv(s.worker, heard, 64, 0)) == 64)
        ;
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    EQUAL(s.pump->out_bytes, 0);
    EQUAL(s.hand->in_hand, 2);
    CHECK(pp3_hand_find(s.hand, t) && pp3_hand_find(s.hand, u));
    EQUAL(recv(s.worker, heard, sizeof heard, 0) > 0, 1);
    while (send(s.link, heard, 64, MSG_NOSIGNAL) > 0)
        ;
    resolve(&s, t);
    (void)ask_step(&s);
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    s.pump->send_ns = 0;
    UNTIL(turn(&s) == PP3_PUMP_UNTAKEN);
    scene_close(&s);
}

static void what_is_owed_is_bounded_and_what_failed_is_not_sent(void)
{
    struct scene s;

    scene_open(&s, 1);
    for (int i = 0; i < 4; i++) {
        resolve(&s, send_one(&s));
        EQUAL(turn(&s), PP3_PUMP_IDLE);
    }
    EQUAL(pp3_hand_full(s.hand), 1);
    uint64_t t = ask_step(&s);
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    EQUAL(s.hand->in_hand, 0);
    resolve(&s, t);
    answer_one(&s, 2); /* the first and the second do not come any more */
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    EQUAL(s.hand->resolved_count, 2);
    seal(&s, 3, s.pump->received);
    s.p.reply[s.p.reply_bytes - 1] ^= 1;
    say(&s, s.p.reply, s.p.reply_bytes);
    EQUAL(turn(&s), PP3_PUMP_REFUSED);
    EQUAL(s.pump->error, PP3_REASON_CRC);
    hang_up(&s);
    EQUAL(s.hand->resolved_count, 0);
    open_session(&s);
    t = ask_step(&s);
    EQUAL(turn(&s), PP3_PUMP_RESET);
    resolve(&s, t);
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    EQUAL(s.hand->in_hand, 0);
    scene_close(&s);
}

static void a_hand_is_never_fuller_than_it_has_places(void)
{
    struct scene s;
    uint64_t t[2];

    scene_open(&s, 1);
    EQUAL(pp3_hand_take(s.hand), 0);
    for (int i = 0; i < 2; i++) {
        t[i] = ask_step(&s);
        EQUAL(pp3_hand_take(s.hand), 1);
    }
    resolve(&s, t[0]);
    (void)ask_step(&s);
    EQUAL(pp3_hand_take(s.hand), 1);
    EQUAL(s.hand->in_hand, s.hand->places);
    resolve(&s, t[1]);
    (void)ask_step(&s);
    EQUAL(pp3_hand_take(s.hand), 1); /* swept first */
    EQUAL(s.hand->in_hand, 2);
    EQUAL(pp3_hand_fail_all(s.hand, 7), 2);
    s.hand->in_hand = s.hand->places;
    FORKED(EQUAL(pp3_hand_take(s.hand), -EOWNERDEAD));
    FORKED(EQUAL(turn(&s), PP3_PUMP_RING));
    EQUAL(s.pump->error, -EOWNERDEAD);
    s.hand->in_hand = 0;
    scene_close(&s);
}

static void a_request_that_is_no_step_comes_back(void)
{
    struct scene s;

    scene_open(&s, 1);
    s.p.step[8] = 9; /* n */
    uint64_t t = ask_step(&s);
    EQUAL(turn(&s), PP3_PUMP_REQUEST);
    EQUAL(s.pump->error, -EINVAL);
    CHECK(pp3_ticket(s.pump->subject->mine) == t);
    PP3_STORE(&s.w.engine->entries[(t + 1) % 2].state,
              pp3_make(t + 1, PP3_CLAIMED, 4000, 0), relaxed);
    EQUAL(turn(&s), PP3_PUMP_REQUEST);
    EQUAL(s.pump->error, -EBADMSG);
    CHECK(!s.pump->subject);
    scene_close(&s);
}

static void it_sleeps_spins_and_comes_back_when_it_should(void)
{
    struct scene s;
    int control[2];

    scene_open(&s, 1);
    CHECK(pipe(control) == 0);
    pp3_pump_waits(s.pump, PP3_WAIT_HYBRID, 100000);
    EQUAL(pp3_pump(s.pump, -1, 30000000), PP3_PUMP_IDLE);
    pp3_pump_waits(s.pump, PP3_WAIT_SPIN, 0);
    /* long enough to look several times while it spins, however busy the machine */
    EQUAL(pp3_pump(s.pump, control[0], 100000000), PP3_PUMP_IDLE);
    pp3_pump_waits(s.pump, PP3_WAIT_FUTEX, 0);
    CHECK(write(control[1], "x", 1) == 1);
    EQUAL(pp3_pump(s.pump, control[0], 0), PP3_PUMP_CONTROL);
    fail(PPOLL, 0, 1, EINTR);
    EQUAL(pp3_pump(s.pump, -1, 0), PP3_PUMP_IDLE);
    fail(PPOLL, 0, 1, EBADF);
    EQUAL(pp3_pump(s.pump, -1, 0), PP3_PUMP_RING);
    EQUAL(s.pump->error, -EBADF);
    s.pump->tell_answer = 1;
    uint64_t t = send_one(&s);
    answer_one(&s, t);
    EQUAL(turn(&s), PP3_PUMP_ANSWERED);
    EQUAL(turn(&s), PP3_PUMP_IDLE);
    (void)close(control[0]);
    (void)close(control[1]);
    scene_close(&s);
}

static void a_row_is_behind_where_its_tokens_could_not_be_appended(void)
{
    struct scene s;
    struct pp3_step_row row = {.slot = 1, .generation = 3, .position = 9, .count = 2};

    scene_open(&s, 1);
    EQUAL(pp3_pump_behind(s.pump, &row), 1);
    s.pump->told[1] = (struct pp3_told){7, 3, 1};
    EQUAL(pp3_pump_behind(s.pump, &row), 0);
    row.count = 1;
    EQUAL(pp3_pump_behind(s.pump, &row), 1);
    row.count = 12; /* more than there are: from the start */
    EQUAL(pp3_pump_behind(s.pump, &row), 0);
    row.position = 6;
    EQUAL(pp3_pump_behind(s.pump, &row), 1);
    row = (struct pp3_step_row){.slot = 1, .generation = 4, .position = 7};
    EQUAL(pp3_pump_behind(s.pump, &row), 1);
    scene_close(&s);
}

static void without_memory_there_is_none(void)
{
    struct scene s;

    scene_open(&s, 1);
    for (int i = 0; i < 5; i++) {
        fail(CALLOC, i, 1, ENOMEM);
        CHECK(!pp3_hand_new(s.proxy, &s.p.known->layout));
    }
    fail(CALLOC, 0, 1, ENOMEM);
    CHECK(!pp3_pump_new(s.hand, &tally));
    fail(MALLOC, 0, 1, ENOMEM);
    CHECK(!pp3_pump_new(s.hand, &tally));
    fail_no_more();
    pp3_hand_free(0);
    pp3_pump_free(0);
    scene_close(&s);
}

const struct test pump_tests[] = {
    {"rounds pass through the pump", rounds_pass_through_it},
    {"a reply cut at every byte is one", a_reply_cut_at_every_byte_is_one},
    {"frames behind one another find room", frames_behind_one_another_find_room},
    {"a late reply is late, and an unknown one is refused",
     a_late_reply_is_late_and_an_unknown_one_is_refused},
    {"a spoiled reply stays in hand, and its frame is consumed",
     a_spoiled_reply_stays_in_hand_and_its_frame_is_consumed},
    {"headers that must not come are refused", headers_that_must_not_come_are_refused},
    {"a farewell is whole or refused", a_farewell_is_whole_or_refused},
    {"an end and a delay have their reasons", an_end_and_a_delay_have_their_reasons},
    {"half a STEP is finished before anything else",
     half_a_step_is_finished_before_anything_else},
    {"what is owed is bounded, and what failed is not sent",
     what_is_owed_is_bounded_and_what_failed_is_not_sent},
    {"a hand is never fuller than it has places",
     a_hand_is_never_fuller_than_it_has_places},
    {"a request that is no STEP comes back", a_request_that_is_no_step_comes_back},
    {"the pump sleeps, spins and comes back when it should",
     it_sleeps_spins_and_comes_back_when_it_should},
    {"a row is behind where its tokens could not be appended",
     a_row_is_behind_where_its_tokens_could_not_be_appended},
    {"without memory there is neither hand nor pump", without_memory_there_is_none},
    {0, 0},
};
