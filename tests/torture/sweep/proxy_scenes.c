/* The victim is a proxy. Three rounds went before; the first of the scene is number 4.
 */
#include "sweep.h"

enum {
    FIRST = 4,
    ALL = BIT(WATCHDOG) | BIT(HELPER) | BIT(SUCCESSOR) | BIT(STOPPED) | BIT(RESUMED)
};

/* ---- the harness ---- */

static void one_round(struct world *w)
{
    (void)next_step(w->engine.ring);
    observe(w);
}

static void two_rounds(struct world *w)
{
    one_round(w);
    one_round(w);
}

static void fence(struct world *w)
{
    let_deadlines_pass();
    (void)ranks_read(w, FIRST);
}

static void cancel(struct world *w)
{
    PP3_STORE(&board->untold, FIRST, release);
    if (pp3_cancel(w->engine.ring, FIRST) != 0)
        wrong(w, "cancel");
}

/* The entry's next round has begun and ended when the fenced proxy comes. */
static void fence_and_lap(struct world *w)
{
    fence(w);
    ranks_release(w, FIRST);
    proxy_here(w);
    whole_rounds(w, 2);
}

static void one_of_two_failed(struct world *w)
{
    one_round(w);
    fence(w);
    one_round(w);
}

static void pass(struct world *w)
{
    (void)w;
    let_deadlines_pass();
}

/* ---- the victim ---- */

static void attach(struct end *me)
{
    end_open(the_world, me, PROXY, the_world->victim_owner);
}

static int take(struct end *me)
{
    uint64_t word = 0;
    int code = pp3_take(me->ring, &word);
    uint32_t n = PP3_LOAD(&board->taken, relaxed);

    if (code == 1) {
        PP3_STORE(&board->mine[n], word, relaxed);
        PP3_STORE(&board->taken, n + 1, relaxed);
    }
    return code;
}

static void attach_take(struct end *me)
{
    attach(me);
    if (take(me) != 1)
        wrong(the_world, "nothing to take");
}

static void attach_take_two(struct end *me)
{
    attach_take(me);
    if (take(me) != 1)
        wrong(the_world, "nothing more to take");
}

static uint64_t mine(void) { return PP3_LOAD(&board->mine[0], relaxed); }

static void op_take(struct end *me) { result(take(me)); }

static void op_publish(struct end *me)
{
#ifdef PLANTED
    if (pp3_planted == PUBLISH_FIRST) {
        result(pp3_publish(me->ring, mine()));
        fill_page(me->ring, mine());
        return;
    }
#endif
    fill_page(me->ring, mine());
    result(pp3_publish(me->ring, mine()));
}

static void op_give_back(struct end *me) { pp3_give_back(me->ring, mine()); }

static void op_sweep(struct end *me)
{
    uint64_t words[2] = {mine(), PP3_LOAD(&board->mine[1], relaxed)};

    result(pp3_sweep(me->ring, words, 2));
}

static void op_round(struct end *me)
{
    if (take(me) == 1 && request_whole(me->ring, mine()))
        op_publish(me);
}

static void op_leave(struct end *me) { end_close(the_world, me); }

/* As the proxy does with a request that is none. */
static void op_refuse(struct end *me)
{
    uint64_t word;

    result(pp3_resolve(me->ring, FIRST, PP3_CANCELLED, &word));
    pp3_give_back(me->ring, mine());
}

static void op_expire(struct end *me)
{
    uint64_t word, words[1] = {mine()};

    (void)pp3_resolve(me->ring, FIRST, PP3_EXPIRED, &word);
    result(pp3_sweep(me->ring, words, 1));
}

static void op_sleep(struct end *me)
{
    pp3_work_prepare(me->ring);
    result(pp3_work_pending(me->ring));
    pp3_work_done(me->ring);
}

static void op_note(struct end *me)
{
    static const uint8_t note[] = "the worker is gone";

    result(pp3_note_write(me->ring, note, sizeof note));
}

/* ---- what else has to hold ---- */

static void took(struct world *w) { expect_result(w, 1); }
static void took_none(struct world *w) { expect_result(w, 0); }
static void published(struct world *w) { expect_result(w, 0); }
static void refused(struct world *w) { expect_result(w, -ESTALE); }

/* One round was failed and is given back, the other is still its own. */
static void swept(struct world *w)
{
    expect_result(w, 1);
    if (held_by_victim(w))
        wrong(w, "swept, and a page was not given back");
}

/* The next proxy's note is whole, wherever the one before was killed. */
static void note_again(struct world *w)
{
    uint8_t out[8 * PP3_NOTE_WORDS];
    int before = pp3_note_read(w->rank.ring, out);

    if (before != -EAGAIN && before != 0 &&
        (before != 19 || memcmp(out, "the worker is gone", 19) != 0))
        wrong(w, "torn note of %d bytes", before);
    if (pp3_note_write(w->proxy.ring, (const uint8_t *)"back", 4) != 0 ||
        pp3_note_read(w->rank.ring, out) != 4 || memcmp(out, "back", 4) != 0)
        wrong(w, "the next note cannot be read");
}

const struct scene proxy_scenes[] = {
    {"take", PROXY, 3, .before = one_round, .prepare = attach, .operate = op_take,
     .complete = took, .asleep = FIRST, .surroundings = ALL},
    {"take the first", PROXY, 0, .before = one_round, .prepare = attach,
     .operate = op_take, .complete = took, .asleep = 1, .surroundings = ALL},
    {"take nothing", PROXY, 3, .prepare = attach, .operate = op_take,
     .complete = took_none, .surroundings = ALL},
    {"take behind a failed round", PROXY, 3, .before = one_of_two_failed,
     .prepare = attach, .operate = op_take, .complete = took, .asleep = FIRST + 1,
     .surroundings = ALL},
    {"publish", PROXY, 3, .before = one_round, .prepare = attach_take,
     .operate = op_publish, .complete = published, .asleep = FIRST, .gives_back = 1,
     .surroundings = ALL},
    {"publish too late", PROXY, 3, .before = one_round, .prepare = attach_take,
     .between = fence, .operate = op_publish, .complete = refused, .gives_back = 1,
     .surroundings = ALL},
    {"publish a lap too late", PROXY, 3, .before = one_round, .prepare = attach_take,
     .between = fence_and_lap, .operate = op_publish, .complete = refused,
     .gives_back = 1, .surroundings = ALL},
    {"give back", PROXY, 3, .before = one_round, .prepare = attach_take,
     .between = fence, .operate = op_give_back, .gives_back = 1, .surroundings = ALL},
    {"sweep", PROXY, 3, .before = two_rounds, .prepare = attach_take_two,
     .between = cancel, .operate = op_sweep, .complete = swept, .asleep = FIRST + 1,
     .surroundings = ALL},
    {"a whole round", PROXY, 3, .before = one_round, .prepare = attach,
     .operate = op_round, .complete = published, .asleep = FIRST, .gives_back = 1,
     .surroundings = ALL},
    {"attach a proxy", PROXY, 3, .before = one_round, .operate = attach,
     .asleep = FIRST, .surroundings = ALL},
    {"a proxy leaves", PROXY, 3, .before = one_round, .prepare = attach_take,
     .operate = op_leave, .asleep = FIRST, .surroundings = ALL},
    {"refuse a request", PROXY, 3, .before = one_round, .prepare = attach_take,
     .operate = op_refuse, .complete = published, .asleep = FIRST, .gives_back = 1,
     .surroundings = ALL},
    {"a proxy expires its round", PROXY, 3, .before = one_round, .prepare = attach_take,
     .between = pass, .operate = op_expire, .complete = took_none, .gives_back = 1,
     .surroundings = BIT(WATCHDOG) | BIT(STOPPED) | BIT(RESUMED)},
    {"a proxy goes to sleep", PROXY, 3, .before = one_round, .prepare = attach,
     .operate = op_sleep, .complete = took, .surroundings = ALL},
    {"note", PROXY, 3, .prepare = attach, .operate = op_note, .complete = published,
     .settled = note_again, .surroundings = ALL},
};
const unsigned proxy_scene_count = sizeof proxy_scenes / sizeof *proxy_scenes;
