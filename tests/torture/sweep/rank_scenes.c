/* The victim is a rank; a proxy of the harness lives. The scene's round is number 4. */
#include "sweep.h"

enum {
    FIRST = 4,
    ALL = BIT(WATCHDOG) | BIT(HELPER) | BIT(SUCCESSOR) | BIT(STOPPED) | BIT(RESUMED)
};
static const uint64_t long_ns = UINT64_C(10000000000000);

/* ---- the harness ---- */

static void taken(struct world *w)
{
    (void)next_step(w->engine.ring);
    observe(w);
    proxy_take(w, 1);
}

static void publish(struct world *w)
{
    proxy_publish(w);
    observe(w);
}

static void published(struct world *w)
{
    taken(w);
    publish(w);
}

static void pass(struct world *w)
{
    (void)w;
    let_deadlines_pass();
}

/* ---- the victim ---- */

static void attach(struct end *me) { end_open(the_world, me, RANK, 0); }

static uint64_t wait_for(struct end *me, uint64_t patience_ns, uint64_t spin_ns)
{
    uint64_t word = 0;

    result(pp3_wait(me->ring, FIRST, pp3_now() + patience_ns, spin_ns, &word));
    return word;
}

static void op_wait(struct end *me) { (void)wait_for(me, long_ns, 0); }
static void op_look(struct end *me) { (void)wait_for(me, 0, 0); }
static void op_spin(struct end *me) { (void)wait_for(me, 40000, 30000); }

static void look_at(struct end *me, uint64_t word)
{
    if (!reply_whole(me->ring, word))
        PP3_STORE(&board->torn, 1, relaxed);
}

static void attach_wait(struct end *me)
{
    attach(me);
    PP3_STORE(&board->mine[0], wait_for(me, long_ns, 0), relaxed);
}

static void op_read(struct end *me) { look_at(me, PP3_LOAD(&board->mine[0], relaxed)); }
static void op_release(struct end *me)
{
    result(pp3_release(me->ring, VICTIM_RANK, FIRST));
}

static void op_turn(struct end *me)
{
    look_at(me, wait_for(me, long_ns, 0));
    op_release(me);
}

static void op_leave(struct end *me) { end_close(the_world, me); }

/* ---- what else has to hold ---- */

static void well(struct world *w) { expect_result(w, 0); }
static void impatient(struct world *w) { expect_result(w, -ETIMEDOUT); }

static void released(struct world *w)
{
    expect_result(w, 0);
    if (w->last.ack[VICTIM_RANK][FIRST % ROUNDS] != FIRST)
        wrong(w, "released, and not acknowledged");
}

const struct scene rank_scenes[] = {
    {"wait for what is published", RANK, 3, .before = published, .prepare = attach,
     .operate = op_wait, .complete = well, .surroundings = ALL},
    {"wait asleep, then published", RANK, 3, .before = taken, .prepare = attach,
     .operate = op_wait, .unblock = publish, .complete = well, .asleep = FIRST,
     .surroundings = ALL},
    {"wait asleep to the deadline", RANK, 3, .before = taken, .prepare = attach,
     .operate = op_wait, .unblock = pass, .complete = well, .asleep = FIRST,
     .surroundings = ALL & ~BIT(SUCCESSOR)}, /* it would race with the deadline */
    {"wait past the deadline", RANK, 3, .before = taken, .prepare = attach,
     .between = pass, .operate = op_wait, .complete = well,
     .surroundings = BIT(WATCHDOG) | BIT(HELPER) | BIT(STOPPED) | BIT(RESUMED)},
    {"wait without patience", RANK, 3, .before = taken, .prepare = attach,
     .operate = op_look, .complete = impatient, .asleep = FIRST, .surroundings = ALL},
    {"wait spinning", RANK, 3, .before = taken, .prepare = attach, .operate = op_spin,
     .complete = impatient, .surroundings = BIT(HELPER) | BIT(SUCCESSOR)},
    {"read", RANK, 3, .before = published, .prepare = attach_wait, .operate = op_read,
     .surroundings = ALL},
    {"release", RANK, 3, .before = published, .prepare = attach_wait,
     .operate = op_release, .complete = released, .surroundings = ALL},
    {"wait, read, release", RANK, 3, .before = published, .prepare = attach,
     .operate = op_turn, .complete = released, .surroundings = ALL},
    {"attach a rank", RANK, 0, .operate = attach, .attaching = 1,
     .surroundings = BIT(WATCHDOG)},
    {"a rank leaves", RANK, 3, .before = published, .prepare = attach_wait,
     .operate = op_leave, .surroundings = ALL},
};
const unsigned rank_scene_count = sizeof rank_scenes / sizeof *rank_scenes;
