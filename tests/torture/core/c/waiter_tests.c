/* What a waiter learns of its waits. */
#include "harness.h"
#include "ring/waiter.h"

enum { MOST = 50000, WAKE = 30000 };

/* A wait for what comes after so long; a sleep costs its wake-up. */
static uint64_t waits(struct pp3_waiter *w, uint64_t real)
{
    uint64_t spin = pp3_waiter_begin(w);

    pp3_waiter_end(w, real <= spin ? real : real + WAKE);
    return spin;
}

static void it_spins_as_long_as_pays(void)
{
    struct pp3_waiter w;

    pp3_waiter_set(&w, PP3_WAIT_HYBRID, MOST);
    for (int i = 0; i < PP3_WAITS_KEPT; i++)
        EQUAL(waits(&w, 3000), MOST);
    for (int i = 0; i < 20; i++)
        EQUAL(waits(&w, 3000), 6500);
    for (int i = 0; i < 5; i++) /* half of eight are in reach until then */
        CHECK(waits(&w, 10000000) != 0);
    EQUAL(w.spin_ns, 0);
    for (int i = 0; i < 40; i++)
        EQUAL(waits(&w, 10000000), i % 8 == 7 ? MOST : 0);
    for (int i = 0; i < 4; i++)
        EQUAL(waits(&w, 30000), 0); /* slept, but in reach with its wake-up */
    for (int i = 0; i < 2 * PP3_WAITS_KEPT; i++)
        EQUAL(waits(&w, 30000), MOST);
    EQUAL(waits(&w, 30000), MOST); /* twice as long would be more than that */
    for (int i = 0; i < PP3_WAITS_KEPT; i++)
        waits(&w, 10000000);
    int tried_out = 0; /* out of reach when slept: one try in eight */
    for (int i = 0; i < PP3_WAITS_PROBE; i++)
        tried_out += waits(&w, MOST + WAKE) == MOST;
    EQUAL(tried_out, 1);
}

static void drawn_waits_are_never_spun_too_long(void)
{
    struct dice d = dice_of(31);

    for (uint32_t n = 0; n < 200 * effort; n++) {
        struct pp3_waiter w;
        uint64_t most = roll(&d, 2) ? roll(&d, 1000) : roll(&d, 200000);
        uint64_t scale = UINT64_C(1) << roll(&d, 40);
        pp3_waiter_set(&w, PP3_WAIT_HYBRID, most);
        for (int i = 0; i < 60; i++) {
            CHECK(waits(&w, roll64(&d) % scale) <= most);
            CHECK(w.spin_ns <= most);
        }
        tried(60);
    }
}

static void the_others_learn_nothing(void)
{
    struct pp3_waiter w;

    pp3_waiter_set(&w, PP3_WAIT_FUTEX, MOST);
    for (int i = 0; i < 20; i++)
        EQUAL(waits(&w, 100), 0);
    pp3_waiter_set(&w, PP3_WAIT_SPIN, MOST);
    for (int i = 0; i < 20; i++)
        CHECK(waits(&w, 100) == UINT64_MAX);
}

const struct test waiter_tests[] = {
    {"a waiter spins as long as it pays", it_spins_as_long_as_pays},
    {"drawn waits are never spun too long", drawn_waits_are_never_spun_too_long},
    {"waits without a choice learn nothing", the_others_learn_nothing},
    {0, 0},
};
