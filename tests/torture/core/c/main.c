/* The C core's test program: a line for each test, then their count.
 *
 * usage: core [--seed N] [--effort N] [--only TEXT] [--skip TEXT] [--views N]
 *             [--plant N] [--emulator PATH] | core --child MODE | core --pair ROLE ...
 * TEXT chooses by a part of the sentence. */
#include "harness.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "layout/crc.h"
#include "proposal/scan.h"

uint64_t seed;
uint32_t effort = 1;
int views = 1;
const char *emulator, *program;
int planted;

static const struct test *const suites[] = {
    atomics_tests, ring_tests, engine_tests, proxy_tests, wait_tests, watch_tests,
    slots_tests, watchdog_tests, fault_tests, crc_tests, layout_tests, accept_tests,
    scan_tests, draft_tests, weights_tests, row_tests, law_tests, verify_tests,
    scatter_tests, exchange_tests, pump_tests, near_tests, waiter_tests, rounds_tests,
    thread_tests, wrap_tests, uniform_tests, recorder_tests,
};
static atomic_int failures; /* of the running test; its threads check too */
static atomic_ullong tries;
static char first[400];

static int is_first(void)
{
    return atomic_fetch_add(&failures, 1) == 0;
}

void check_failed(const char *file, int line, const char *what)
{
    const char *name = strrchr(file, '/');

    if (is_first())
        (void)snprintf(first, sizeof first, "%s:%d: %s", name ? name + 1 : file, line,
                       what);
}

void check_equal(const char *file, int line, const char *what, int64_t is,
                 int64_t wanted)
{
    const char *name = strrchr(file, '/');

    if (is != wanted && is_first())
        (void)snprintf(first, sizeof first, "%s:%d: %s: %lld, wanted %lld",
                       name ? name + 1 : file, line, what, (long long)is,
                       (long long)wanted);
}

void tried(uint64_t n) { atomic_fetch_add(&tries, n); }

/* splitmix64 */
uint64_t roll64(struct dice *d)
{
    uint64_t z = d->state += UINT64_C(0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint32_t roll(struct dice *d, uint32_t below)
{
    return (uint32_t)((roll64(d) >> 32) * below >> 32);
}

struct dice dice_of(uint64_t stream)
{
    struct dice d = {seed};

    d.state = roll64(&d) ^ stream;
    return d;
}

void doze(void)
{
    struct timespec two_ms = {0, 2000000};

    (void)nanosleep(&two_ms, 0);
}

/* There in a coverage build alone: writes what was counted. */
extern void __gcov_dump(void) __attribute__((weak));

void leave(int code)
{
    if (__gcov_dump)
        __gcov_dump();
    _exit(code);
}

static int run(const struct test *test)
{
    unsigned long long before = atomic_load(&tries);

    atomic_store(&failures, 0);
    test->run();
    if (atomic_load(&failures))
        (void)printf("BAD %s: %s\n", test->sentence, first);
    else
        (void)printf("ok  %s (%llu)\n", test->sentence, atomic_load(&tries) - before);
    (void)fflush(stdout);
    return atomic_load(&failures) != 0;
}

int main(int argc, char **argv)
{
    const char *only = "", *skip = 0;
    int tests = 0, bad = 0;

    program = argv[0];
    if (argc > 2 && strcmp(argv[1], "--child") == 0)
        return child_main(argv[2]);
    if (argc > 2 && strcmp(argv[1], "--pair") == 0)
        return pair_main(argc - 2, argv + 2);
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--seed") == 0)
            seed = strtoull(argv[i + 1], 0, 10);
        else if (strcmp(argv[i], "--effort") == 0)
            effort = (uint32_t)strtoul(argv[i + 1], 0, 10);
        else if (strcmp(argv[i], "--views") == 0)
            views = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
        else if (strcmp(argv[i], "--skip") == 0)
            skip = argv[i + 1];
        else if (strcmp(argv[i], "--plant") == 0)
            planted = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--emulator") == 0)
            emulator = argv[i + 1];
        else
            return 2;
    }
    for (unsigned s = 0; s < sizeof suites / sizeof *suites; s++)
        for (const struct test *t = suites[s]; t->sentence; t++)
            if (strstr(t->sentence, only) && !(skip && strstr(t->sentence, skip))) {
                tests++;
                bad += run(t);
            }
    (void)printf("%d tests, %d bad, %llu tries, crc path %d, scan path %d\n", tests,
                 bad, atomic_load(&tries), pp3_crc_path(), pp3_scan_path());
    return bad != 0;
}
