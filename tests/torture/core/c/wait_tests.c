/* Waiting, reading, releasing. */
#include <errno.h>
#include <pthread.h>

#include "harness.h"
#include "world.h"

static void where_a_reply_stands_comes_from_its_word(void)
{
    struct world w;
    uint32_t index = 0;

    world_open(&w, 3, 6, 1);
    EQUAL(pp3_read(w.engine, pp3_make(4, PP3_PUBLISHED, 5, 1), &index), 0);
    EQUAL(index, 5);
    EQUAL(pp3_read(w.engine, pp3_make(4, PP3_FAILED + PP3_ORPHANED, 5, 1), &index), 7);
    EQUAL(index, 1 * PP3_CAUSES + 1);
    EQUAL(pp3_read(w.engine, pp3_make(4, PP3_PUBLISHED, 6, 1), &index), -EBADMSG);
    EQUAL(pp3_read(w.engine, pp3_make(4, PP3_CLAIMED, 5, 1), &index), -EBADMSG);
    EQUAL(pp3_read(w.engine, pp3_make(4, PP3_FAILED + 1, 5, 1), &index), -EBADMSG);
    EQUAL(pp3_look(w.engine, 4, pp3_make(5, PP3_CLAIMED, 0, 0)), -ESTALE);
    EQUAL(pp3_look(w.engine, 4, pp3_make(4, PP3_WRITING, 0, 0)), 0);
    EQUAL(pp3_look(w.engine, 4, pp3_make(4, PP3_FAILED + 1, 0, 0)), -EBADMSG);
    EQUAL(pp3_look(w.engine, 4, pp3_make(4, PP3_FAILED + 2, 0, 0)), 1);
    world_close(&w);
}

static void failed_buffers_hold_the_rounds_ticket_head_and_status(void)
{
    struct world w;
    uint64_t heads[6] = {0, 21, 0, 22, 0, 23}, word = 0, got[3];
    uint32_t index = 0;

    world_open(&w, 2, 4, 1);
    EQUAL(pp3_claim(w.engine, heads, 1), 1);
    EQUAL(pp3_wait(w.engine, 1, FAR, 0, &word), 0);
    EQUAL(pp3_read(w.engine, word, &index), PP3_EXPIRED);
    memcpy(got, w.engine->failed + index * w.engine->failed_stride, sizeof got);
    CHECK(got[0] == 1 && got[1] == 21 && got[2] == PP3_EXPIRED);
    EQUAL(pp3_counter(w.engine, PP3_COUNT_EXPIRED), 1);
    world_close(&w);
}

static void a_wait_ends_by_deadline_patience_or_another_ticket(void)
{
    struct world w;
    uint64_t word = 0;

    world_open(&w, 2, 4, 1);
    EQUAL(pp3_wait(w.engine, 0, FAR, 0, &word), -EINVAL);
    EQUAL(pp3_wait(w.engine, 1, FAR, 0, &word), -ESTALE);
    FORKED(EQUAL(pp3_wait(w.engine, 1, FAR, 0, &word), -EOWNERDEAD));
    EQUAL(pp3_claim(w.engine, 0, FAR), 1);
    EQUAL(pp3_wait(w.engine, 1, 1, 1000, &word), -ETIMEDOUT);
    EQUAL(pp3_wait(w.engine, 1, pp3_now() + 100000, 1000000000, &word), -ETIMEDOUT);
    do /* on a busy machine the time may be over before it sleeps */
        EQUAL(pp3_wait(w.engine, 1, pp3_now() + 30000000, 0, &word), -ETIMEDOUT);
    while (pp3_counter(w.engine, PP3_COUNT_SLEPT) == 0);
    EQUAL(pp3_claim(w.engine, 0, pp3_now() + 3000000), 2);
    EQUAL(pp3_wait(w.engine, 2, FAR, 1, &word), 0); /* helps at the deadline */
    EQUAL(pp3_state(word), PP3_FAILED + PP3_EXPIRED);
    EQUAL(PP3_LOAD(&w.engine->entries[1].waiters, relaxed), 0);
    world_close(&w);
}

/* What happens while a wait sleeps: the word, and whether seq is raised. */
struct meanwhile { struct pp3_ring *r; uint64_t word; uint32_t raise; };

static void change(void *argument)
{
    struct meanwhile *m = argument;

    PP3_STORE(&m->r->entries[1].state, m->word, release);
    PP3_ADD(&m->r->entries[1].seq, m->raise, release);
}

static void a_lost_wake_is_counted_and_a_late_one_is_not(void)
{
    struct world w;
    uint64_t word = 0;

    world_open(&w, 2, 4, 1);
    struct pp3_entry *n = &w.engine->entries[1];
    struct meanwhile m = {w.engine, pp3_make(1, PP3_PUBLISHED, 0, 1), 0};
    EQUAL(pp3_claim(w.engine, 0, FAR), 1);
    uint64_t claimed = PP3_LOAD(&n->state, relaxed);
    at_point(PP3_AT_WAITED, 1, change, &m);
    EQUAL(pp3_wait(w.engine, 1, FAR, 0, &word), 0);
    EQUAL(pp3_counter(w.engine, PP3_COUNT_LOST_WAKES), 1);
    PP3_STORE(&n->state, claimed, relaxed);
    m.raise = 1;
    at_point(PP3_AT_WAITED, 1, change, &m);
    EQUAL(pp3_wait(w.engine, 1, FAR, 0, &word), 0);
    EQUAL(pp3_counter(w.engine, PP3_COUNT_LOST_WAKES), 1);
    PP3_STORE(&n->state, claimed, relaxed);
    m.word = pp3_make(3, PP3_CLAIMED, 0, 0); /* the next lap's */
    at_point(PP3_AT_WAITED, 1, change, &m);
    EQUAL(pp3_wait(w.engine, 1, FAR, 0, &word), -ESTALE);
    EQUAL(pp3_counter(w.engine, PP3_COUNT_LOST_WAKES), 1);
    world_close(&w);
}

static void a_word_that_comes_between_count_and_sleep_is_seen(void)
{
    struct world w;
    uint64_t word = 0;

    world_open(&w, 2, 4, 1);
    struct meanwhile m = {w.engine, pp3_make(1, PP3_PUBLISHED, 0, 1), 0};
    EQUAL(pp3_claim(w.engine, 0, FAR), 1);
    at_point(PP3_AT_COUNTED, 1, change, &m);
    EQUAL(pp3_wait(w.engine, 1, FAR, 0, &word), 0);
    EQUAL(pp3_counter(w.engine, PP3_COUNT_SLEPT), 0);
    world_close(&w);
}

/* A wake that comes while a sleeper already counts it as lost. */
static void *raise_soon(void *argument)
{
    struct pp3_entry *n = argument;

    PP3_ADD(&n->seq, 1, release);
    return 0;
}

static void a_wake_on_its_way_is_waited_for(void)
{
    struct world w;
    pthread_t thread;

    world_open(&w, 2, 4, 1);
    struct pp3_entry *n = &w.engine->entries[0];
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t seen = PP3_LOAD(&n->seq, relaxed);
        CHECK(pthread_create(&thread, 0, raise_soon, n) == 0);
        pp3_note_late(w.engine, n, seen);
        (void)pthread_join(thread, 0);
    }
    CHECK(pp3_counter(w.engine, PP3_COUNT_LOST_WAKES) <= 20);
    world_close(&w);
}

static void a_release_is_a_ranks_own_and_only_goes_up(void)
{
    struct world w;

    world_open(&w, 2, 4, 2);
    world_ranks(&w);
    EQUAL(pp3_claim(w.engine, 0, FAR), 1);
    EQUAL(pp3_release(w.engine, 2, 1), -EINVAL);
    EQUAL(pp3_release(w.engine, 0, 0), -EINVAL);
    EQUAL(pp3_release(w.engine, 0, 3), -ESTALE);
    FORKED(EQUAL(pp3_release(w.engine, 0, 1), -EOWNERDEAD));
    EQUAL(pp3_release(w.engine, 0, 1), 0);
    EQUAL(pp3_release(w.engine, 0, 1), 0);
    EQUAL(PP3_LOAD(&w.engine->acks[1], relaxed), 1);
    world_close(&w);
}

const struct test wait_tests[] = {
    {"where a reply stands comes from its word",
     where_a_reply_stands_comes_from_its_word},
    {"failed buffers hold the round's ticket, head and status",
     failed_buffers_hold_the_rounds_ticket_head_and_status},
    {"a wait ends by deadline, patience or another ticket",
     a_wait_ends_by_deadline_patience_or_another_ticket},
    {"a lost wake is counted and a late one is not",
     a_lost_wake_is_counted_and_a_late_one_is_not},
    {"a word that comes between count and sleep is seen",
     a_word_that_comes_between_count_and_sleep_is_seen},
    {"a wake on its way is waited for", a_wake_on_its_way_is_waited_for},
    {"a release is a rank's own and only goes up",
     a_release_is_a_ranks_own_and_only_goes_up},
    {0, 0},
};
