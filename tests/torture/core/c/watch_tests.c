/* Deadlines by a clock of the test's, and the table of owners. */
#include <errno.h>

#include "harness.h"
#include "world.h"

static void deadlines_are_kept_and_the_next_look_is_told(void)
{
    struct world w;

    world_open(&w, 4, 8, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(pp3_expire(w.engine, 0), PP3_IDLE_NS);
    EQUAL(ask(w.engine, 1000), 1);
    EQUAL(ask(w.engine, PP3_SLICE_NS * 5), 2);
    EQUAL(ask(w.engine, 900), 3);
    EQUAL(pp3_expire(w.engine, 500), 900);
    EQUAL(pp3_expire(w.engine, 950), 1000);
    EQUAL(pp3_expire(w.engine, 1000), 1000 + PP3_SLICE_NS);
    EQUAL(answer(proxy, take_one(proxy)), 0);
    EQUAL(pp3_watch_look(w.engine, 1000), 1000 + PP3_IDLE_NS);
    EQUAL(PP3_LOAD(&w.engine->engine->wake_at_ns, relaxed), 1000 + PP3_IDLE_NS);
    EQUAL(pp3_watchdog_tick(w.engine, 1000), 1000 + PP3_IDLE_NS);
    FORKED(EQUAL(pp3_watchdog_tick(w.engine, 1000), -1));
    EQUAL(pp3_counter(w.engine, PP3_COUNT_EXPIRED), 2);
    PP3_STORE(&w.engine->entries[0].state, pp3_make(1, PP3_CLAIMED, 0, 0), relaxed);
    EQUAL(pp3_expire(w.engine, FAR), FAR + PP3_IDLE_NS); /* not at home: not ours */
    world_close(&w);
}

static void every_owner_id_is_given_once_at_a_time(void)
{
    struct world w;
    uint32_t seen[PP3_MAX_OWNERS + 1] = {0};

    world_open(&w, 2, 4, 1);
    struct pp3_ring *other = world_end(&w, 9);
    EQUAL(pp3_owner_add(other), -EINVAL);
    FORKED(EQUAL(pp3_owner_add(w.engine), -EOWNERDEAD));
    for (uint32_t i = 0; i < PP3_MAX_OWNERS; i++) {
        int id = pp3_owner_add_thread(w.engine);
        CHECK(id > 0 && id <= (int)PP3_MAX_OWNERS && seen[id]++ == 0);
    }
    EQUAL(pp3_owner_add(w.engine), -EUSERS);
    EQUAL(pp3_owner_dead(w.engine, 77), 0);
    EQUAL(pp3_owner_add(w.engine), 77);
    world_close(&w);
}

static void a_dead_owner_that_is_named_is_not_given_again(void)
{
    struct world w;

    world_open(&w, 1, 2, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    for (uint32_t i = 1; i < PP3_MAX_OWNERS; i++)
        CHECK(pp3_owner_add(w.engine) > 0);
    EQUAL(ask(w.engine, FAR), 1);
    CHECK(take_one(proxy));
    EQUAL(pp3_owner_gone(w.engine, proxy->owner), 1);
    EQUAL(pp3_owner_add(w.engine), -EUSERS); /* a state word names it */
    PP3_ADD(&w.engine->engine->owner[proxy->owner].held, 1, relaxed);
    release_all(&w, 1);
    EQUAL(ask(w.engine, FAR), 2);
    EQUAL(pp3_owner_add(w.engine), -EUSERS); /* a page in quarantine does */
    PP3_ADD(&w.engine->engine->owner[proxy->owner].held, UINT32_MAX, relaxed);
    EQUAL(pp3_owner_add(w.engine), proxy->owner);
    world_close(&w);
}

static void a_dead_owners_rounds_fail_and_nobody_elses(void)
{
    struct world w;
    uint64_t word = 0;

    world_open(&w, 4, 8, 1);
    struct pp3_ring *one = world_proxy(&w), *other = world_proxy(&w);
    for (int i = 0; i < 3; i++)
        EQUAL(ask(w.engine, FAR), i + 1);
    CHECK(take_one(one));
    CHECK(take_one(other));
    PP3_STORE(&w.engine->entries[0].state, pp3_make(3, PP3_WRITING, 0, one->owner),
              relaxed); /* not at home */
    EQUAL(pp3_owner_gone(one, 1), -EINVAL);
    EQUAL(pp3_owner_gone(w.engine, 0), -EINVAL);
    EQUAL(pp3_owner_gone(w.engine, PP3_MAX_OWNERS + 1), -EINVAL);
    EQUAL(pp3_owner_gone(w.engine, 200), -EINVAL); /* never lived */
    FORKED(EQUAL(pp3_owner_gone(w.engine, one->owner), -EOWNERDEAD));
    EQUAL(pp3_owner_gone(w.engine, one->owner), 1);
    EQUAL(pp3_owner_gone(w.engine, one->owner), 0); /* known */
    EQUAL(pp3_word(w.engine, 1, &word), 0);
    EQUAL(pp3_state(word), PP3_FAILED + PP3_ORPHANED);
    EQUAL(pp3_word(w.engine, 2, &word), 0);
    EQUAL(pp3_state(word), PP3_WRITING);
    EQUAL(pp3_counter(w.engine, PP3_COUNT_ORPHANED), 1);
    world_close(&w);
}

const struct test watch_tests[] = {
    {"deadlines are kept and the next look is told",
     deadlines_are_kept_and_the_next_look_is_told},
    {"every owner id is given once at a time", every_owner_id_is_given_once_at_a_time},
    {"a dead owner that is named is not given again",
     a_dead_owner_that_is_named_is_not_given_again},
    {"a dead owner's rounds fail and nobody else's",
     a_dead_owners_rounds_fail_and_nobody_elses},
    {0, 0},
};
