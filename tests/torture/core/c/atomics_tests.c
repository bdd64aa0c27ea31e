/* The kernel's calls under the protocol: mappings, futex, clock, descriptors, forks. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "faults.h"
#include "harness.h"
#include "world.h"

static void a_mapping_is_shared_and_read_only_where_asked(void)
{
    int fd = memfd_create("m", MFD_CLOEXEC), error;

    CHECK(ftruncate(fd, 4096) == 0);
    uint8_t *one = pp3_map(fd, 4096, 1, &error), *two = pp3_map(fd, 4096, 0, &error);
    CHECK(one && two && error == 0);
    one[7] = 9;
    EQUAL(two[7], 9);
    pp3_unmap(one, 4096, pp3_fork_count());
    pp3_unmap(two, 4096, pp3_fork_count() + 1); /* of another process: left alone */
    EQUAL(two[7], 9);
    pp3_unmap(two, 4096, pp3_fork_count());
    pp3_unmap(0, 4096, pp3_fork_count());
    (void)close(fd);
}

static void a_mapping_that_fails_says_why(void)
{
    int fd = memfd_create("m", MFD_CLOEXEC), error = 0;

    CHECK(ftruncate(fd, 4096) == 0);
    CHECK(!pp3_map(-1, 4096, 1, &error));
    EQUAL(error, EBADF);
    fail(MMAP, 0, 1, ENOMEM);
    CHECK(!pp3_map(fd, 4096, 1, &error));
    EQUAL(error, ENOMEM);
    fail(MADVISE, 0, 1, EINVAL);
    CHECK(!pp3_map(fd, 4096, 1, &error));
    EQUAL(error, EINVAL);
    (void)close(fd);
}

static void the_clock_goes_on(void)
{
    uint64_t before = pp3_now();

    doze();
    CHECK(pp3_now() - before >= 2000000);
}

static void a_futex_sleeps_to_its_time_or_not_at_all(void)
{
    PP3_A32 word = 5;
    uint64_t until = pp3_now() + 3000000;

    EQUAL(pp3_futex_wait(&word, 4, until + FAR / 2), 1); /* another value: at once */
    EQUAL(pp3_futex_wait(&word, 5, until), 0);
    CHECK(pp3_now() >= until);
    pp3_futex_wake(&word); /* nobody */
}

struct wake { PP3_A32 word; _Atomic int woken; };

static void *sleeps(void *argument)
{
    struct wake *w = argument;

    while (atomic_load(&w->word) == 0)
        (void)pp3_futex_wait(&w->word, 0, pp3_now() + UINT64_C(60000000000));
    atomic_store(&w->woken, 1);
    return 0;
}

static void a_futex_is_woken(void)
{
    struct wake w = {0};
    pthread_t thread;

    CHECK(pthread_create(&thread, 0, sleeps, &w) == 0);
    doze();
    atomic_store(&w.word, 1);
    pp3_futex_wake(&w.word);
    (void)pthread_join(thread, 0);
    EQUAL(atomic_load(&w.woken), 1);
}

static void a_bell_can_be_rung_until_it_is_full(void)
{
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    uint64_t most = UINT64_MAX - 1, rings = 0;

    pp3_fd_ring(fd);
    pp3_fd_ring(fd);
    CHECK(read(fd, &rings, 8) == 8 && rings == 2);
    CHECK(write(fd, &most, 8) == 8);
    pp3_fd_ring(fd); /* full is rung too */
    CHECK(read(fd, &rings, 8) == 8 && rings == most);
    (void)close(fd);
}

static void only_a_dead_process_is_gone(void)
{
    int pidfd;
    pid_t child = sleeper(&pidfd);

    EQUAL(pp3_pidfd_gone(pidfd), 0);
    (void)kill(child, SIGKILL);
    UNTIL(pp3_pidfd_gone(pidfd));
    (void)waitpid(child, 0, 0);
    EQUAL(pp3_pidfd_gone(pidfd), 1);
    (void)close(pidfd);
    EQUAL(pp3_pidfd_gone(1 << 20), 0); /* no descriptor at all says nothing */
}

/* In the child: every call that touches a region refuses, or does nothing. */
static int child_checks(struct world *w, struct pp3_ring *proxy)
{
    uint64_t mine = pp3_make(1, PP3_WRITING, 0, proxy->owner), word = 0;

    pp3_unmap(w->view[0], w->bytes, 0);
    pp3_count(w->engine, 0, 1);
    return pp3_fork_count() != 1 || pp3_claim(w->engine, 0, FAR) != -EOWNERDEAD ||
           pp3_take(proxy, &word) != -EOWNERDEAD ||
           pp3_publish(proxy, mine) != -EOWNERDEAD ||
           pp3_wait(w->engine, 1, FAR, 0, &word) != -EOWNERDEAD ||
           pp3_release(w->engine, 0, 1) != -EOWNERDEAD ||
           pp3_here(w->engine) != -EOWNERDEAD || pp3_counter(w->engine, 0) != 0;
}

static void a_real_fork_loses_the_region(void)
{
    struct world w;
    int status = -1;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    (void)fflush(stdout);
    pid_t child = fork();
    if (child == 0)
        leave(child_checks(&w, proxy));
    CHECK(waitpid(child, &status, 0) == child);
    EQUAL(status, 0);
    EQUAL(pp3_here(w.engine), 0);
    world_close(&w);
}

const struct test atomics_tests[] = {
    {"a mapping is shared, and read-only where asked",
     a_mapping_is_shared_and_read_only_where_asked},
    {"a mapping that fails says why", a_mapping_that_fails_says_why},
    {"the clock goes on", the_clock_goes_on},
    {"a futex sleeps to its time or not at all",
     a_futex_sleeps_to_its_time_or_not_at_all},
    {"a futex is woken", a_futex_is_woken},
    {"a bell can be rung until it is full", a_bell_can_be_rung_until_it_is_full},
    {"only a dead process is gone", only_a_dead_process_is_gone},
    {"a real fork loses the region", a_real_fork_loses_the_region},
    {0, 0},
};
