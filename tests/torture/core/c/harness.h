/* A test is a sentence and a function; a check that fails is noted, and the test goes on. */
#ifndef HARNESS_H
#define HARNESS_H

#include <stdint.h>

struct test {
    const char *sentence;
    void (*run)(void);
};

/* One table per file, each ended by an empty sentence. */
extern const struct test atomics_tests[], ring_tests[], engine_tests[], proxy_tests[],
    wait_tests[], watch_tests[], slots_tests[], watchdog_tests[], fault_tests[],
    crc_tests[], layout_tests[], accept_tests[], scan_tests[], draft_tests[],
    weights_tests[], row_tests[], law_tests[], verify_tests[], scatter_tests[],
    exchange_tests[], pump_tests[], near_tests[], waiter_tests[], rounds_tests[],
    thread_tests[], wrap_tests[], uniform_tests[], recorder_tests[];

void check_failed(const char *file, int line, const char *what);
void check_equal(const char *file, int line, const char *what, int64_t is,
                 int64_t wanted);
#define CHECK(x) ((x) ? (void)0 : check_failed(__FILE__, __LINE__, #x))
/* Of numbers; both are printed where they differ. */
#define EQUAL(is, wanted)                                                              \
    check_equal(__FILE__, __LINE__, #is " == " #wanted, (int64_t)(is), (int64_t)(wanted))

/* How many tries a test has made, beyond being one itself. */
void tried(uint64_t n);

/* Dice of their own for each test and thread: the same in every run of a seed. */
struct dice { uint64_t state; };
extern uint64_t seed;   /* of the whole run */
extern uint32_t effort; /* how often loops of drawn tries go round, 1 the least */
extern int views;       /* 1: every end uses one mapping; 2: each end has its own */
struct dice dice_of(uint64_t stream);
uint32_t roll(struct dice *d, uint32_t below);
uint64_t roll64(struct dice *d);

/* How a child of the program is started: two words under an emulator, else one. */
extern const char *emulator, *program;
int child_main(const char *mode);           /* child.c */
int pair_main(int argc, char **argv);       /* pair.c */

/* Ends a forked child, without what an exit would do for the parent's threads. */
void leave(int code);

/* Sleeps a little until the condition holds, or fails the test after half a minute. */
void doze(void);
#define UNTIL(x)                                                                       \
    do {                                                                               \
        int dozes_ = 0;                                                                \
        while (!(x) && ++dozes_ < 15000)                                               \
            doze();                                                                    \
        if (dozes_ == 15000)                                                           \
            check_failed(__FILE__, __LINE__, #x);                                      \
    } while (0)

#endif
