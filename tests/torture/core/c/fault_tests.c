/* Every call of the watchdog that can fail, failing. */
#include <errno.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "faults.h"
#include "guard.h"
#include "harness.h"

static void a_watchdog_that_finds_no_memory_is_none(void)
{
    struct guard g;
    int error;

    guard_prepare(&g, "stay", 0);
    for (int n = 0; n < 3; n++) {
        fail(CALLOC, n, 1, ENOMEM);
        CHECK(!pp3_watchdog_start(g.w.engine, &g.plan, &error) && error == ENOMEM);
    }
    fail_no_more();
    for (int n = 0; n < 3; n++) {
        fail(STRDUP, n, 1, ENOMEM);
        CHECK(!pp3_watchdog_start(g.w.engine, &g.plan, &error) && error == ENOMEM);
    }
    fail_no_more();
    fail(MALLOC, 0, 1, ENOMEM);
    CHECK(!pp3_watchdog_start(g.w.engine, &g.plan, &error) && error == ENOMEM);
    fail_no_more();
    fail(PTHREAD_CREATE, 0, 1, EAGAIN);
    CHECK(!pp3_watchdog_start(g.w.engine, &g.plan, &error) && error == EAGAIN);
    fail_no_more();
    world_close(&g.w);
}

/* A call of the start fails; the next start goes well. */
static void start_fails(enum call call, int times, int error)
{
    struct guard g;

    fail(call, 0, times, error);
    guard_begin(&g, "stay", 0);
    UNTIL(guard_look(&g)->starts == 1 && g.seen.last_error == 0);
    UNTIL(guard_look(&g)->state == PP3_WATCH_RUNS);
    EQUAL(g.seen.owner, times + 1); /* each before it died with its start */
    guard_end(&g);
    fail_no_more();
    tried(1);
}

static void a_start_that_fails_anywhere_is_tried_again(void)
{
    static const enum call calls[] = {
        SOCKETPAIR, FILES_INIT, ATTR_INIT, FILES_DUP, FILES_CLOSE,
        ATTR_MASK, ATTR_DEFAULT, ATTR_FLAGS, SPAWN,
    };

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        start_fails(calls[i], 1 + (int)(i % 2), ENOMEM);
}

static void a_child_without_a_pidfd_is_killed(void)
{
    fail(WAITPID, 0, 2, EINTR);
    start_fails(PIDFD_OPEN, 1, EMFILE);
    fail_no_more();
    EQUAL(waitpid(-1, 0, WNOHANG), -1); /* no child is left */
    fail(WAITPID, 0, 1, ECHILD); /* reaped by others */
    start_fails(PIDFD_OPEN, 1, EMFILE);
    UNTIL(waitpid(-1, 0, 0) > 0);
}

static void a_child_that_is_gone_before_its_pidfd_is_left_alone(void)
{
    start_fails(PIDFD_OPEN, 1, ESRCH);
    UNTIL(waitpid(-1, 0, 0) > 0); /* it ends by itself: its socket is closed */
    EQUAL(waitpid(-1, 0, WNOHANG), -1);
}

static void a_handover_that_fails_is_a_death_like_any_other(void)
{
    struct guard g;

    fail(SENDMSG, 0, 1, ENOBUFS);
    guard_begin(&g, "stay", 0);
    UNTIL(guard_look(&g)->deaths == 1);
    UNTIL(guard_look(&g)->starts == 1 && g.seen.state == PP3_WATCH_RUNS);
    guard_end(&g);
    fail_no_more();
}

static void a_proxy_reaped_by_others_has_no_status(void)
{
    struct guard g;

    fail(WAITID, 0, 1, EINTR);
    guard_begin(&g, "leave", 0);
    UNTIL(guard_look(&g)->deaths >= 1);
    EQUAL(g.seen.last_status, 7);
    fail(WAITID, 0, 1000, ECHILD);
    UNTIL(guard_look(&g)->last_status == INT32_MIN);
    guard_end(&g);
    fail_no_more();
    while (waitpid(-1, 0, 0) > 0)
        continue; /* those that were not reaped */
}

static void a_proxy_needs_no_environment(void)
{
    struct guard g;
    int error;

    guard_prepare(&g, "stay", 0);
    g.plan.envp = 0;
    g.watchdog = pp3_watchdog_start(g.w.engine, &g.plan, &error);
    UNTIL(guard_look(&g)->state == PP3_WATCH_RUNS);
    guard_end(&g);
}

static void no_proxy_starts_while_every_owner_lives(void)
{
    struct guard g;
    int error;

    guard_prepare(&g, "stay", 0);
    for (uint32_t i = 0; i < PP3_MAX_OWNERS; i++)
        CHECK(pp3_owner_add(g.w.engine) > 0);
    g.watchdog = pp3_watchdog_start(g.w.engine, &g.plan, &error);
    UNTIL(guard_look(&g)->last_error == EUSERS);
    EQUAL(pp3_owner_gone(g.w.engine, 200), 0);
    UNTIL(guard_look(&g)->state == PP3_WATCH_RUNS);
    EQUAL(g.seen.owner, 200);
    guard_end(&g);
}

static void a_nudge_that_cannot_be_read_ends_nothing(void)
{
    struct world w;
    struct pp3_plan plan = {0};
    struct pp3_watch seen;
    int error;

    world_open(&w, 2, 4, 1);
    struct pp3_watchdog *g = pp3_watchdog_start(w.engine, &plan, &error);
    fail(READ, 0, 1, EIO);
    EQUAL(pp3_watchdog_kick(g), 0);
    UNTIL((pp3_watchdog_stats(g, &seen), seen.ticks > 3));
    EQUAL(pp3_watchdog_stop(g), 0);
    fail_no_more();
    pp3_watchdog_free(g);
    world_close(&w);
}

const struct test fault_tests[] = {
    {"a watchdog that finds no memory is none", a_watchdog_that_finds_no_memory_is_none},
    {"a start that fails anywhere is tried again",
     a_start_that_fails_anywhere_is_tried_again},
    {"a child without a pidfd is killed", a_child_without_a_pidfd_is_killed},
    {"a child that is gone before its pidfd is left alone",
     a_child_that_is_gone_before_its_pidfd_is_left_alone},
    {"a handover that fails is a death like any other",
     a_handover_that_fails_is_a_death_like_any_other},
    {"a proxy reaped by others has no status", a_proxy_reaped_by_others_has_no_status},
    {"a proxy needs no environment", a_proxy_needs_no_environment},
    {"no proxy starts while every owner lives", no_proxy_starts_while_every_owner_lives},
    {"a nudge that cannot be read ends nothing",
     a_nudge_that_cannot_be_read_ends_nothing},
    {0, 0},
};
