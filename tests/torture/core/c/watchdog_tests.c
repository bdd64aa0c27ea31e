/* The watchdog's thread, with a process of this program as its proxy. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guard.h"
#include "harness.h"

static void a_watchdog_keeps_deadlines_without_a_proxy(void)
{
    struct world w;
    struct pp3_plan plan = {0};
    struct pp3_watch seen;
    uint64_t word = 0;
    int error;

    world_open(&w, 2, 4, 1);
    struct pp3_watchdog *g = pp3_watchdog_start(w.engine, &plan, &error);
    CHECK(g);
    EQUAL(ask(w.engine, pp3_now() + 5000000), 1);
    UNTIL(pp3_word(w.engine, 1, &word) == 0 && pp3_resolved(word));
    EQUAL(pp3_state(word), PP3_FAILED + PP3_EXPIRED);
    EQUAL(pp3_watchdog_kick(g), 0);
    EQUAL(pp3_watchdog_replace(g), 0); /* there is none */
    pp3_watchdog_stats(g, &seen);
    uint64_t ticks = seen.ticks; /* it is read before the order to stop comes */
    UNTIL((pp3_watchdog_stats(g, &seen), seen.ticks > ticks + 1));
    EQUAL(pp3_watchdog_stop(g), 0);
    pp3_watchdog_stats(g, &seen);
    CHECK(seen.ticks > 0 && seen.starts == 0 && seen.pid == 0);
    pp3_watchdog_free(g);
    pp3_watchdog_free(0);
    world_close(&w);
}

static void a_proxy_is_started_told_and_ended(void)
{
    struct guard g;

    guard_begin(&g, "stay", UINT64_C(60000000000));
    UNTIL(guard_look(&g)->state == PP3_WATCH_RUNS);
    CHECK(g.seen.pid > 0 && g.seen.owner > 0 && g.seen.starts == 1);
    EQUAL(g.seen.last_error, 0);
    guard_end(&g);
    EQUAL(g.seen.deaths, 1);
    EQUAL(g.seen.last_status, -SIGTERM);
}

static void a_stubborn_proxy_is_killed_after_its_grace(void)
{
    struct guard g;

    guard_begin(&g, "stubborn", 20000000);
    UNTIL(guard_look(&g)->state == PP3_WATCH_RUNS);
    UNTIL(ignores_term(g.seen.pid));
    guard_end(&g);
    EQUAL(g.seen.deaths, 1);
    EQUAL(g.seen.last_status, -SIGKILL);
}

static void *kick_and_kill(void *argument)
{
    struct guard *g = argument;

    for (int i = 0; i < 20; i++) {
        EQUAL(pp3_watchdog_kick(g->watchdog), 0);
        doze();
    }
    (void)kill(g->seen.pid, SIGKILL);
    return 0;
}

static void a_proxy_keeps_its_grace_whatever_is_ordered_meanwhile(void)
{
    struct guard g;
    struct pp3_watch after;
    pthread_t thread;

    guard_begin(&g, "stubborn", UINT64_C(60000000000));
    UNTIL(guard_look(&g)->state == PP3_WATCH_RUNS);
    UNTIL(ignores_term(g.seen.pid));
    CHECK(pthread_create(&thread, 0, kick_and_kill, &g) == 0);
    EQUAL(pp3_watchdog_stop(g.watchdog), 0);
    (void)pthread_join(thread, 0);
    pp3_watchdog_stats(g.watchdog, &after);
    EQUAL(after.deaths, 1);
    guard_end(&g);
}

static void a_proxy_that_dies_is_followed_and_its_rounds_fail(void)
{
    struct guard g;
    uint64_t word = 0;

    guard_begin(&g, "stay", 0);
    UNTIL(guard_look(&g)->state == PP3_WATCH_RUNS);
    EQUAL(ask(g.w.engine, FAR), 1);
    struct pp3_ring *taker = world_end(&g.w, g.seen.owner); /* in its place */
    CHECK(take_one(taker));
    (void)kill(g.seen.pid, SIGKILL);
    UNTIL(guard_look(&g)->starts == 2);
    EQUAL(g.seen.last_status, -SIGKILL);
    EQUAL(pp3_word(g.w.engine, 1, &word), 0);
    EQUAL(pp3_state(word), PP3_FAILED + PP3_ORPHANED);
    EQUAL(pp3_watchdog_replace(g.watchdog), 0);
    UNTIL(guard_look(&g)->starts == 3 && g.seen.state == PP3_WATCH_RUNS);
    CHECK(g.seen.owner != taker->owner);
    guard_end(&g);
}

static void a_proxy_that_never_starts_is_tried_ever_later(void)
{
    struct guard g;

    guard_begin(&g, "fail", 0);
    UNTIL(guard_look(&g)->deaths >= 4 && g.seen.state == PP3_WATCH_WAITS);
    EQUAL(g.seen.last_status, 9);
    EQUAL(pp3_watchdog_replace(g.watchdog), 0); /* now, not later */
    UNTIL(guard_look(&g)->deaths >= 5);
    guard_end(&g);
}

static void a_proxy_that_lived_long_enough_is_followed_at_once(void)
{
    struct guard g;

    guard_begin(&g, "stay", 0);
    UNTIL(guard_look(&g)->state == PP3_WATCH_RUNS);
    for (int i = 0; i < 120; i++) /* beyond 200 ms */
        doze();
    (void)kill(g.seen.pid, SIGKILL);
    UNTIL(guard_look(&g)->starts == 2);
    guard_end(&g);
}

static void a_dead_rank_wakes_everybody(void)
{
    struct world w;
    struct pp3_plan plan = {0};
    int error, pidfd;
    pid_t child = sleeper(&pidfd);

    world_open(&w, 2, 4, 3);
    EQUAL(pp3_rank_attach(w.engine, 1, pidfd), 0);
    EQUAL(pp3_rank_attach(w.engine, 2, pidfd), 0);
    (void)close(w.engine->engine->rank[2].pidfd);
    w.engine->engine->rank[2].pidfd = 1 << 20; /* poll has something to say of it too */
    struct pp3_watchdog *g = pp3_watchdog_start(w.engine, &plan, &error);
    uint32_t before = PP3_LOAD(&w.engine->entries[0].seq, acquire);
    (void)kill(child, SIGKILL);
    UNTIL(PP3_LOAD(&w.engine->entries[0].seq, acquire) != before);
    EQUAL(pp3_watchdog_stop(g), 0);
    pp3_watchdog_free(g);
    (void)waitpid(child, 0, 0);
    (void)close(pidfd);
    world_close(&w);
}

static void a_plan_that_cannot_be_is_refused(void)
{
    struct guard g;
    int error;

    guard_prepare(&g, "stay", 0);
    struct pp3_ring *proxy = world_end(&g.w, 1);
    CHECK(!pp3_watchdog_start(proxy, &g.plan, &error) && error == EINVAL);
    FORKED(CHECK(!pp3_watchdog_start(g.w.engine, &g.plan, &error)));
    g.plan.n_fds = 9;
    CHECK(!pp3_watchdog_start(g.w.engine, &g.plan, &error) && error == EINVAL);
    g.plan.n_fds = 0;
    CHECK(!pp3_watchdog_start(g.w.engine, &g.plan, &error) && error == EINVAL);
    g.plan.n_fds = 1;
    g.plan.record_bytes--;
    CHECK(!pp3_watchdog_start(g.w.engine, &g.plan, &error) && error == EINVAL);
    world_close(&g.w);
}

static void a_forked_child_has_no_watchdog(void)
{
    struct guard g;
    struct pp3_watch seen;

    guard_begin(&g, "stay", 0);
    UNTIL(guard_look(&g)->state == PP3_WATCH_RUNS);
    pp3_watchdog_leave(g.watchdog); /* not a child: nothing */
    EQUAL(guard_look(&g)->state, PP3_WATCH_RUNS);
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        pp3_watchdog_stats(g.watchdog, &seen);
        int wrong = seen.state != 0 || seen.starts != 0 ||
                    pp3_watchdog_kick(g.watchdog) != -EOWNERDEAD ||
                    pp3_watchdog_stop(g.watchdog) != -EOWNERDEAD;
        pp3_watchdog_leave(g.watchdog);
        pp3_watchdog_leave(g.watchdog); /* twice: its descriptors are gone */
        pp3_watchdog_free(g.watchdog);
        leave(wrong);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    guard_end(&g);
}

static struct pp3_watchdog *alone(struct world *w)
{
    struct pp3_plan plan = {0};
    int error;

    world_open(w, 2, 4, 1);
    return pp3_watchdog_start(w->engine, &plan, &error);
}

static void one_that_others_started_is_watched_too(void)
{
    struct world w;
    struct pp3_watchdog *g = alone(&w);
    struct pp3_watch seen;
    uint64_t word = 0;
    int pidfd;
    pid_t child = sleeper(&pidfd);
    int owner = pp3_owner_add(w.engine);

    EQUAL(pp3_watchdog_adopt(g, pidfd, child, (uint32_t)owner), 0);
    EQUAL(pp3_watchdog_adopt(g, pidfd, child, (uint32_t)owner), -EBUSY);
    (void)close(pidfd);
    pp3_watchdog_stats(g, &seen);
    CHECK(seen.pid == child && seen.owner == (uint32_t)owner && seen.starts == 1);
    EQUAL(seen.state, PP3_WATCH_RUNS);
    EQUAL(ask(w.engine, FAR), 1);
    CHECK(take_one(world_end(&w, (uint32_t)owner))); /* in its place */
    EQUAL(pp3_watchdog_replace(g), 0);               /* by its death */
    UNTIL((pp3_watchdog_stats(g, &seen), seen.deaths == 1 && seen.pid == 0));
    EQUAL(seen.state, PP3_WATCH_IDLE);
    EQUAL(pp3_word(w.engine, 1, &word), 0);
    EQUAL(pp3_state(word), PP3_FAILED + PP3_ORPHANED);
    int status = 0; /* ours to reap, not the watchdog's */
    CHECK(waitpid(child, &status, 0) == child && WTERMSIG(status) == SIGKILL);
    EQUAL(pp3_watchdog_stop(g), 0);
    pp3_watchdog_free(g);
    world_close(&w);
}

static void one_that_has_left_is_forgotten_and_another_is_watched(void)
{
    struct world w;
    struct pp3_watchdog *g = alone(&w);
    struct pp3_watch seen;
    int pidfd;
    pid_t child = sleeper(&pidfd);

    EQUAL(pp3_watchdog_forget(g, 1), 0); /* there is none */
    FORKED(EQUAL(pp3_watchdog_forget(g, 1), -EOWNERDEAD));
    for (int i = 0; i < 3; i++) {
        UNTIL((pp3_watchdog_stats(g, &seen), seen.pid == 0));
        uint32_t owner = (uint32_t)pp3_owner_add(w.engine);
        EQUAL(pp3_watchdog_adopt(g, pidfd, child, owner), 0);
        EQUAL(pp3_watchdog_forget(g, owner + 1), 0); /* another */
        if (i == 2)
            break; /* the stop finds it there, and leaves it alone */
        EQUAL(pp3_watchdog_forget(g, owner), 0);
    }
    EQUAL(pp3_watchdog_stop(g), 0);
    EQUAL(pp3_watchdog_adopt(g, pidfd, child, 7), -EBUSY);
    pp3_watchdog_stats(g, &seen);
    EQUAL(seen.starts, 3);
    EQUAL(seen.deaths, 0);
    pp3_watchdog_free(g);
    EQUAL(waitpid(child, 0, WNOHANG), 0); /* it lives */
    (void)kill(child, SIGKILL);
    (void)waitpid(child, 0, 0);
    (void)close(pidfd);
    world_close(&w);
}

static void one_that_cannot_be_watched_is_refused(void)
{
    struct guard g;
    struct world w;
    struct pp3_watchdog *dog = alone(&w);

    EQUAL(pp3_watchdog_adopt(dog, -1, 1, 1), -EBADF);
    EQUAL(pp3_watchdog_adopt(dog, 0, 0, 1), -EINVAL);
    FORKED(EQUAL(pp3_watchdog_adopt(dog, 0, 1, 1), -EOWNERDEAD));
    EQUAL(pp3_watchdog_stop(dog), 0);
    EQUAL(pp3_watchdog_adopt(dog, 0, 1, 1), -EBUSY);
    pp3_watchdog_free(dog);
    world_close(&w);
    guard_begin(&g, "stay", 0);
    EQUAL(pp3_watchdog_adopt(g.watchdog, 0, 1, 1), -EINVAL); /* it starts its own */
    guard_end(&g);
}

const struct test watchdog_tests[] = {
    {"one that others started is watched too", one_that_others_started_is_watched_too},
    {"one that has left is forgotten, and another is watched",
     one_that_has_left_is_forgotten_and_another_is_watched},
    {"one that cannot be watched is refused", one_that_cannot_be_watched_is_refused},
    {"a watchdog keeps deadlines without a proxy",
     a_watchdog_keeps_deadlines_without_a_proxy},
    {"a proxy is started, told and ended", a_proxy_is_started_told_and_ended},
    {"a stubborn proxy is killed after its grace",
     a_stubborn_proxy_is_killed_after_its_grace},
    {"a proxy keeps its grace, whatever is ordered meanwhile",
     a_proxy_keeps_its_grace_whatever_is_ordered_meanwhile},
    {"a proxy that dies is followed and its rounds fail",
     a_proxy_that_dies_is_followed_and_its_rounds_fail},
    {"a proxy that never starts is tried ever later",
     a_proxy_that_never_starts_is_tried_ever_later},
    {"a proxy that lived long enough is followed at once",
     a_proxy_that_lived_long_enough_is_followed_at_once},
    {"a dead rank wakes everybody", a_dead_rank_wakes_everybody},
    {"a plan that cannot be is refused", a_plan_that_cannot_be_is_refused},
    {"a forked child has no watchdog", a_forked_child_has_no_watchdog},
    {0, 0},
};
