/* Take, publish, give back, sweep; failing a round, by anyone. */
#include <errno.h>

#include "harness.h"
#include "world.h"

static void only_a_rung_round_is_taken(void)
{
    struct world w;
    uint64_t mine = 0;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(pp3_take(proxy, &mine), 0);
    EQUAL(pp3_work_pending(proxy), 0);
    EQUAL(pp3_claim(w.engine, 0, FAR), 1);
    EQUAL(pp3_take(proxy, &mine), 0);
    EQUAL(pp3_submit(w.engine, 1), 0);
    EQUAL(pp3_work_pending(proxy), 1);
    EQUAL(pp3_take(w.engine, &mine), -EINVAL); /* no owner */
    EQUAL(pp3_work_pending(w.engine), 1);
    FORKED(EQUAL(pp3_take(proxy, &mine), -EOWNERDEAD));
    FORKED(EQUAL(pp3_work_pending(proxy), 1));
    EQUAL(pp3_take(proxy, &mine), 1);
    EQUAL(pp3_owner_of(mine), proxy->owner);
    EQUAL(pp3_take(proxy, &mine), 0);
    world_close(&w);
}

static void take_other(void *argument)
{
    struct pp3_ring *other = argument;

    EQUAL(pp3_ticket(take_one(other)), 1);
}

static void two_proxies_never_take_one_round(void)
{
    struct world w;
    uint64_t mine = 0;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *one = world_proxy(&w), *other = world_proxy(&w);
    EQUAL(ask(w.engine, FAR), 1);
    EQUAL(ask(w.engine, FAR), 2);
    at_point(PP3_AT_TAKING, 1, take_other, other); /* between its look and its swap */
    EQUAL(pp3_take(one, &mine), 1);
    EQUAL(pp3_ticket(mine), 2);
    world_close(&w);
}

static void hostile_words_steer_a_proxy_nowhere(void)
{
    struct world w;
    uint64_t mine = 0;

    world_open(&w, 3, 6, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    PP3_A64 *state = &w.engine->entries[1].state;
    PP3_STORE(state, pp3_make(1, PP3_CLAIMED, 6, 0), relaxed); /* no such page */
    EQUAL(pp3_take(proxy, &mine), -EBADMSG);
    PP3_STORE(state, pp3_make(2, PP3_CLAIMED, 0, 0), relaxed); /* not at home */
    EQUAL(pp3_take(proxy, &mine), -EBADMSG);
    PP3_STORE(state, pp3_make(4, PP3_PUBLISHED, 0, 0), relaxed); /* a lap ahead */
    EQUAL(pp3_take(proxy, &mine), 0);
    EQUAL(proxy->cursor, 1);
    PP3_STORE(state, pp3_make((1ull << 40) - 3, PP3_PUBLISHED, 0, 0), relaxed);
    (void)pp3_take(proxy, &mine);
    CHECK(!pp3_page(proxy, pp3_make(1, PP3_WRITING, 6, 0)));
    CHECK(!pp3_request(proxy, pp3_make(1, PP3_WRITING, 4095, 0)));
    FORKED(CHECK(!pp3_page(proxy, 0) && !pp3_request(proxy, 0)));
    pp3_give_back(proxy, pp3_make(1, PP3_WRITING, 6, 0)); /* writes nothing */
    FORKED(pp3_give_back(proxy, 0));
    for (uint32_t i = 0; i < 6; i++)
        EQUAL(PP3_LOAD(&proxy->give[i], relaxed), 0);
    world_close(&w);
}

static void only_the_owner_publishes(void)
{
    struct world w;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *one = world_proxy(&w), *other = world_proxy(&w);
    EQUAL(ask(w.engine, FAR), 1);
    uint64_t mine = take_one(one);
    EQUAL(pp3_publish(other, mine), -EINVAL);
    EQUAL(pp3_publish(one, pp3_with(mine, PP3_CLAIMED, one->owner)), -EINVAL);
    FORKED(EQUAL(pp3_publish(one, mine), -EOWNERDEAD));
    EQUAL(answer(one, mine), 0);
    EQUAL(pp3_publish(one, mine), -ESTALE); /* once */
    world_close(&w);
}

static void a_late_publication_is_refused_and_gives_back(void)
{
    struct world w;
    uint64_t word = 0;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(ask(w.engine, 1), 1);
    uint64_t mine = take_one(proxy);
    (void)pp3_expire(w.engine, 2);
    EQUAL(answer(proxy, mine), -ESTALE);
    EQUAL(PP3_LOAD(&proxy->give[pp3_page_of(mine)], relaxed), 1);
    EQUAL(pp3_word(w.engine, 1, &word), 0);
    EQUAL(pp3_state(word), PP3_FAILED + PP3_EXPIRED);
    EQUAL(pp3_counter(w.engine, PP3_COUNT_FENCED), 1);
    world_close(&w);
}

static void a_sweep_keeps_what_is_still_its_own(void)
{
    struct world w;
    uint64_t taken[3];

    world_open(&w, 3, 6, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    for (int i = 0; i < 3; i++) {
        EQUAL(ask(w.engine, i == 1 ? 1 : FAR), i + 1);
        taken[i] = take_one(proxy);
    }
    FORKED(EQUAL(pp3_sweep(proxy, taken, 3), -EOWNERDEAD));
    EQUAL(pp3_sweep(proxy, taken, 3), 3);
    (void)pp3_expire(w.engine, 2);
    EQUAL(pp3_sweep(proxy, taken, 3), 2);
    EQUAL(pp3_ticket(taken[1]), 3);
    EQUAL(PP3_LOAD(&proxy->give[1], relaxed), 2);
    world_close(&w);
}

static void publish_it(void *argument)
{
    struct pp3_ring *proxy = argument;

    EQUAL(answer(proxy, PP3_LOAD(&proxy->entries[1].state, relaxed)), 0);
}

static void the_first_outcome_of_a_round_stands(void)
{
    struct world w;
    uint64_t word = 0;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(ask(w.engine, FAR), 1);
    CHECK(take_one(proxy));
    at_point(PP3_AT_FAILING, 1, publish_it, proxy); /* between its look and its swap */
    EQUAL(pp3_resolve(w.engine, 1, PP3_EXPIRED, &word), 0);
    EQUAL(pp3_state(word), PP3_PUBLISHED);
    EQUAL(pp3_resolve(w.engine, 1, PP3_ORPHANED, &word), 0);
    EQUAL(pp3_state(word), PP3_PUBLISHED);
    EQUAL(pp3_resolve(w.engine, 3, PP3_EXPIRED, &word), -ESTALE);
    EQUAL(pp3_resolve(w.engine, 0, PP3_EXPIRED, &word), -EINVAL);
    EQUAL(pp3_resolve(w.engine, 1, 1, &word), -EINVAL);
    FORKED(EQUAL(pp3_resolve(w.engine, 1, PP3_EXPIRED, &word), -EOWNERDEAD));
    world_close(&w);
}

static void the_words_of_a_state_are_what_they_say(void)
{
    for (uint32_t state = 0; state < 16; state++) {
        uint64_t w = pp3_make(PP3_LAST_TICKET, state, 4095, 255);
        int cause = state == 9 ? 0 : state == 14 ? 1 : state == 15 ? 2 : -1;
        EQUAL(pp3_ticket(w), PP3_LAST_TICKET);
        EQUAL(pp3_state(w), state);
        EQUAL(pp3_page_of(w), 4095);
        EQUAL(pp3_owner_of(w), 255);
        EQUAL(pp3_resolved(w), state == 3 || state > 7);
        EQUAL(pp3_cause(state), cause);
        EQUAL(pp3_with(w, 3, 4), pp3_make(PP3_LAST_TICKET, 3, 4095, 4));
    }
}

const struct test proxy_tests[] = {
    {"only a rung round is taken", only_a_rung_round_is_taken},
    {"two proxies never take one round", two_proxies_never_take_one_round},
    {"hostile words steer a proxy nowhere", hostile_words_steer_a_proxy_nowhere},
    {"only the owner publishes", only_the_owner_publishes},
    {"a late publication is refused and gives back",
     a_late_publication_is_refused_and_gives_back},
    {"a sweep keeps what is still its own", a_sweep_keeps_what_is_still_its_own},
    {"the first outcome of a round stands", the_first_outcome_of_a_round_stands},
    {"the words of a state are what they say", the_words_of_a_state_are_what_they_say},
    {0, 0},
};
