/* The victim is the engine: the region dies with it, and nobody else does. */
#include "engine_begin.h"

#include <unistd.h>

enum { ALL = BIT(HELPER) | BIT(SUCCESSOR) | BIT(STOPPED) | BIT(RESUMED) };

/* ---- the harness beside it ---- */

static void proxy_sleeps(struct world *w)
{
    proxy_here(w);
    pp3_work_prepare(w->proxy.ring);
}

static void proxy_has_one(struct world *w)
{
    proxy_here(w);
    proxy_take(w, 1);
}

/* A living proxy holds both pages of rounds that were failed and released. */
static void proxy_fenced(struct world *w)
{
    proxy_here(w);
    proxy_take(w, 2);
    let_deadlines_pass();
    for (uint64_t t = FIRST; t <= SECOND; t++) {
        (void)ranks_read(w, t);
        ranks_release(w, t);
    }
}

static void all_but_rank_one(struct world *w)
{
    proxy_here(w);
    proxy_take(w, 2);
    proxy_publish(w);
    for (uint64_t t = FIRST; t <= SECOND; t++) {
        (void)pp3_release(w->rank.ring, 0, t);
        (void)pp3_release(w->rank.ring, 2, t);
    }
}

static void pages_held(struct world *w)
{
    proxy_here(w);
    for (uint32_t i = 0; i < 2; i++) {
        uint64_t old = PP3_LOAD(&board->mine[i], relaxed), last = w->last.state[i];
        w->held[pp3_page_of(old)] = old;
        w->held[pp3_page_of(last)] = pp3_with(last, PP3_WRITING, pp3_owner_of(last));
    }
}

static void rank_is_dead(struct world *w) { w->rank_dead = 1; }
static void owner_is_dead(struct world *w) { w->dead[FIRST_OWNER + 1] = 1; }
static void proxy_only(struct world *w) { proxy_here(w); }

/* ---- operations ---- */

static void op_claim(struct end *me) { result(next_claim(me->ring)); }
static void op_step(struct end *me) { result(next_step(me->ring)); }
static void op_submit(struct end *me) { result(pp3_submit(me->ring, SECOND)); }

static void op_cancel(struct end *me)
{
    PP3_STORE(&board->untold, FIRST, release);
    result(pp3_cancel(me->ring, FIRST));
}

static void op_owner_add(struct end *me) { result(pp3_owner_add(me->ring)); }
static void op_owner_gone(struct end *me)
{
    result(pp3_owner_gone(me->ring, FIRST_OWNER + 1));
}

static void op_expire(struct end *me) { (void)pp3_expire(me->ring, pp3_now()); }

static void op_watch(struct end *me)
{
    pp3_watch_sleeps(me->ring, pp3_watch_look(me->ring, pp3_now()));
}

static void op_turn(struct end *me)
{
    uint64_t word = 0;

    result(pp3_wait(me->ring, FIRST, UINT64_MAX / 2, 0, &word));
    if (pp3_release(me->ring, 0, FIRST) != 0 || !reply_whole(me->ring, word))
        PP3_STORE(&board->torn, 1, relaxed);
}

static void op_rank_attach(struct end *me) { rank_joins(me, 1, getppid()); }
static void op_rank_dead(struct end *me) { result(pp3_rank_dead(me->ring, 1)); }

static void op_stream(struct end *me)
{
    result(pp3_stream_hold(me->ring, FIRST) == 0 &&
                   pp3_cancel(me->ring, FIRST) == -EBUSY
               ? pp3_stream_done(me->ring, FIRST)
               : 1);
}

static void op_reset(struct end *me)
{
    static const int32_t tokens[2] = {21, 22};

    result(pp3_slot_reset(me->ring, 0, 2, tokens, 2));
}

static void op_append(struct end *me)
{
    static const int32_t tokens[2] = {14, 15};

    result(pp3_slot_append(me->ring, 0, tokens, 2));
}

static void op_close_slot(struct end *me) { result(pp3_slot_close(me->ring, 0)); }
static void op_leave(struct end *me) { end_close(the_world, me); }

/* ---- what else has to hold ---- */

static void well(struct world *w) { expect_result(w, 0); }
static void is_fourth(struct world *w) { expect_result(w, 4); }
static void is_fifth(struct world *w) { expect_result(w, 5); }
static void is_sixth(struct world *w) { expect_result(w, 6); }
static void is_eighth(struct world *w) { expect_result(w, 8); }
static void is_first(struct world *w) { expect_result(w, 1); }
static void is_third(struct world *w) { expect_result(w, 3); }
static void no_page(struct world *w) { expect_result(w, -ENOBUFS); }
static void busy(struct world *w) { expect_result(w, -EBUSY); }
static void open_still(struct world *w) { expect_result(w, -EAGAIN); }
static void two_failed(struct world *w) { expect_result(w, 2); }

/* A region without a magic is none; with one it is whole. */
static void made(struct world *w)
{
    struct pp3_shape found;
    struct pp3_ring *r = w->rank.ring;

    pp3_region_shape(w->rank.at[0], &found);
    if (pp3_region_magic(w->rank.at[0]) == 0)
        return;
    if (memcmp(&found, &w->shape, sizeof found) != 0)
        wrong(w, "a magic before the shape");
    for (uint64_t e = 0; e < ROUNDS * PP3_CAUSES; e++)
        for (uint64_t i = 0; i < FAILED_WORDS; i++)
            if (((uint64_t *)(void *)(r->failed + e * r->failed_stride))[i] !=
                pattern(3, e % PP3_CAUSES, i))
                wrong(w, "a magic before the failed buffers");
}

/* What a proxy reads is one of the slot's states, or that it is being written. */
static void slot_whole(struct world *w)
{
    static const int32_t first[5] = {11, 12, 13, 14, 15}, second[2] = {21, 22};
    int32_t tokens[POSITIONS];
    uint32_t generation = 0, live = 0;
    uint64_t length = 0;
    int code;

    proxy_here(w);
    code =
        pp3_slot_read(w->proxy.ring, 0, tokens, POSITIONS, &generation, &live, &length);
    if (code == -EAGAIN)
        return; /* odd: its writer died; the region died with it */
    if (code != 0 || (generation == 1 && length != 3 && length != 5) ||
        (generation == 2 && length != 2) || generation < 1 || generation > 2 ||
        memcmp(tokens, generation == 1 ? first : second, 4 * length) != 0)
        wrong(w, "torn slot: %d, generation %u, %llu tokens", code, generation,
              (unsigned long long)length);
}

const struct scene engine_scenes[] = {
    {"create", ENGINE, 0, .operate = create, .settled = made,
     .surroundings = BIT(HELPER)},
    {"claim the first", ENGINE, 0, .prepare = begin, .operate = op_claim,
     .complete = is_first, .surroundings = ALL},
    {"claim", ENGINE, 3, .prepare = begin, .operate = op_claim, .complete = is_fourth,
     .surroundings = ALL},
    {"claim and wake the watchdog", ENGINE, 3, .prepare = begin_watched,
     .between = proxy_only, .operate = op_claim, .complete = is_fifth, .asleep = FIRST,
     .surroundings = ALL},
    {"claim into quarantine", ENGINE, 3, .prepare = begin_two, .between = proxy_fenced,
     .operate = op_claim, .complete = is_sixth, .surroundings = ALL},
    {"claim out of quarantine", ENGINE, 3, .prepare = begin_one_back,
     .between = pages_held, .operate = op_claim, .complete = is_eighth,
     .surroundings = ALL},
    {"claim without a page", ENGINE, 3, .prepare = begin_none_back,
     .between = pages_held, .operate = op_claim, .complete = no_page,
     .surroundings = ALL},
    {"claim behind a rank", ENGINE, 3, .prepare = begin_two,
     .between = all_but_rank_one, .operate = op_claim, .complete = busy,
     .surroundings = BIT(HELPER)},
    {"claim behind an open round", ENGINE, 3, .prepare = begin_two,
     .between = proxy_only, .operate = op_claim, .complete = open_still,
     .asleep = FIRST, .surroundings = BIT(HELPER) | BIT(SUCCESSOR)},
    {"claim behind a dead rank", ENGINE, 0, .prepare = begin_dead_rank,
     .between = rank_is_dead, .operate = op_claim, .complete = is_third,
     .surroundings = ALL},
    {"submit", ENGINE, 3, .prepare = begin_claim, .between = proxy_only,
     .operate = op_submit, .complete = well, .asleep = FIRST, .surroundings = ALL},
    {"submit to a sleeping proxy", ENGINE, 3, .prepare = begin_claim,
     .between = proxy_sleeps, .operate = op_submit, .complete = well, .asleep = FIRST,
     .surroundings = ALL},
    {"step", ENGINE, 3, .prepare = begin_step, .between = proxy_only,
     .operate = op_step, .complete = is_fifth, .asleep = FIRST, .surroundings = ALL},
    {"cancel", ENGINE, 3, .prepare = begin_step, .operate = op_cancel, .complete = well,
     .surroundings = BIT(HELPER) | BIT(STOPPED) | BIT(RESUMED)},
    {"cancel what is taken", ENGINE, 3, .prepare = begin_step, .between = proxy_has_one,
     .operate = op_cancel, .complete = well, .surroundings = ALL},
    {"add an owner", ENGINE, 3, .prepare = begin_step, .between = proxy_only,
     .operate = op_owner_add, .complete = two_failed, .asleep = FIRST,
     .surroundings = ALL},
    {"bury an owner", ENGINE, 3, .prepare = begin_owner_gone, .between = owner_is_dead,
     .operate = op_owner_gone, .complete = two_failed, .asleep = SECOND,
     .surroundings = ALL},
    {"expire", ENGINE, 3, .prepare = begin_two_late, .operate = op_expire,
     .surroundings = BIT(HELPER) | BIT(STOPPED) | BIT(RESUMED)},
    {"look before sleep", ENGINE, 3, .prepare = begin_two_late,
     .between = proxy_has_one, .operate = op_watch, .surroundings = ALL},
    {"the engine waits and releases", ENGINE, 3, .prepare = begin_two_late,
     .operate = op_turn, .complete = well,
     .surroundings = BIT(HELPER) | BIT(STOPPED) | BIT(RESUMED)},
    {"let a rank in", ENGINE, 0, .prepare = create, .operate = op_rank_attach,
     .surroundings = BIT(HELPER)},
    {"ask for a dead rank", ENGINE, 0, .prepare = begin_dead_rank,
     .between = rank_is_dead, .operate = op_rank_dead, .complete = is_first,
     .surroundings = BIT(HELPER)},
    {"hold for a stream", ENGINE, 3, .prepare = begin_step, .between = proxy_only,
     .operate = op_stream, .complete = well, .asleep = FIRST, .surroundings = ALL},
    {"reset a slot", ENGINE, 0, .prepare = begin_slot, .operate = op_reset,
     .complete = well, .settled = slot_whole, .surroundings = BIT(HELPER)},
    {"append to a slot", ENGINE, 0, .prepare = begin_slot, .operate = op_append,
     .complete = well, .settled = slot_whole, .surroundings = BIT(HELPER)},
    {"close a slot", ENGINE, 0, .prepare = begin_slot, .operate = op_close_slot,
     .complete = well, .settled = slot_whole, .surroundings = BIT(HELPER)},
    {"the engine leaves", ENGINE, 3, .prepare = begin_two, .between = proxy_has_one,
     .operate = op_leave, .asleep = SECOND, .surroundings = ALL},
};
const unsigned engine_scene_count = sizeof engine_scenes / sizeof *engine_scenes;
