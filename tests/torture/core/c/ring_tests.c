/* Shapes, records, ends, and the calls that are not the protocol's. */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#include "faults.h"
#include "harness.h"
#include "world.h"

static const struct pp3_shape usual = {
    .rounds = 3, .pages = 6, .ranks = 2, .page_bytes = 100, .request_bytes = 200,
    .failed_bytes = 24, .head_bytes = 16, .slots = 2, .max_positions = 10,
};

static void every_bad_field_of_a_shape_is_named(void)
{
#define FIELD(name, low, high) {#name, offsetof(struct pp3_shape, name), low, high}
    static const struct { const char *name; size_t at; uint32_t low, high; } cases[] = {
        FIELD(rounds, 0, PP3_MAX_ROUNDS + 1), FIELD(pages, 2, PP3_MAX_PAGES + 1),
        FIELD(ranks, 0, PP3_MAX_RANKS + 1), FIELD(head_bytes, 7, (1u << 28) + 1),
        FIELD(failed_bytes, 15, (1u << 28) + 1), FIELD(page_bytes, 7, (1u << 28) + 1),
        FIELD(request_bytes, 7, (1u << 28) + 1), FIELD(slots, 0, 4097),
        FIELD(max_positions, 0, (1u << 28) + 1),
    };
    struct pp3_shape good = usual;

    CHECK(!pp3_shape_fill(&good));
    EQUAL(good.bytes[0] % PP3_LINE, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int high = 0; high < 2; high++) {
            struct pp3_shape s = usual;
            const char *fault;
            memcpy((char *)&s + cases[i].at, high ? &cases[i].high : &cases[i].low, 4);
            fault = pp3_shape_fill(&s);
            CHECK(fault && strcmp(fault, cases[i].name) == 0);
        }
}

static void a_region_says_its_shape_and_a_record_repeats_it(void)
{
    struct world w;
    struct pp3_shape read;
    struct pp3_record record;

    world_open(&w, 3, 6, 2);
    EQUAL(pp3_region_magic(w.parts.control), pp3_magic());
    pp3_region_shape(w.parts.control, &read);
    CHECK(memcmp(&read, &w.shape, sizeof read) == 0);
    pp3_record_fill(&record, &w.shape);
    EQUAL(record.magic, pp3_record_magic());
    CHECK(memcmp(&record.shape, &w.shape, sizeof w.shape) == 0);
    CHECK(record.clock_ns <= pp3_now());
    EQUAL(pp3_state_offset(w.engine, 4), sizeof(struct pp3_header) + 2 * PP3_LINE);
    EQUAL(pp3_bell_offset(w.engine, 4), sizeof(struct pp3_header) + 2 * PP3_LINE + 8);
    EQUAL(pp3_bell_fd(w.engine), w.engine->bell_fd);
    world_close(&w);
}

static void every_allocation_that_fails_ends_creation_whole(void)
{
    struct world w;
    int error, made = 0;

    world_open(&w, 3, 6, 2);
    for (int n = 0; n < 10; n++) {
        fail(CALLOC, n, 1, ENOMEM);
        made += pp3_ring_create(&w.shape, &w.parts, (const uint8_t *)templates,
                                &error) != 0;
        EQUAL(error, ENOMEM);
    }
    fail_no_more();
    for (int n = 0; n < 2; n++) {
        fail(EVENTFD, n, 1, EMFILE);
        made += pp3_ring_create(&w.shape, &w.parts, (const uint8_t *)templates,
                                &error) != 0;
        EQUAL(error, EMFILE);
    }
    EQUAL(made, 0);
    fail(CALLOC, 0, 1, ENOMEM);
    struct pp3_record record;
    pp3_record_fill(&record, &w.shape);
    CHECK(!pp3_ring_attach(&record, &w.parts, -1, &error));
    EQUAL(error, ENOMEM);
    world_close(&w);
}

static void a_missing_part_ends_creation(void)
{
    struct world w;
    int error;

    world_open(&w, 3, 6, 2);
    for (int missing = 0; missing < 5; missing++) {
        struct pp3_parts parts = w.parts;
        uint8_t **part[5] = {&parts.control, &parts.slots, &parts.pages, &parts.failed,
                             &parts.acks};
        *part[missing] = 0;
        CHECK(!pp3_ring_create(&w.shape, &parts, (const uint8_t *)templates, &error));
        EQUAL(error, EINVAL);
    }
    world_close(&w);
    pp3_ring_free(0);
}

static void a_shape_that_does_not_add_up_is_refused(void)
{
    struct world w;
    int error;

    world_open(&w, 3, 6, 2);
    struct pp3_shape s = w.shape;
    s.bytes[2]++;
    CHECK(!pp3_ring_create(&s, &w.parts, (const uint8_t *)templates, &error));
    EQUAL(error, EINVAL);
    s = w.shape;
    s.rounds = 0;
    CHECK(!pp3_ring_create(&s, &w.parts, (const uint8_t *)templates, &error));
    EQUAL(error, EINVAL);
    world_close(&w);
}

static void attaching_takes_what_is_given_and_no_more(void)
{
    struct world w;
    struct pp3_record record;
    struct pp3_parts parts;
    struct pp3_ring *r;
    int error;

    world_open(&w, 3, 6, 2);
    pp3_record_fill(&record, &w.shape);
    record.owner = PP3_MAX_OWNERS + 1;
    CHECK(!pp3_ring_attach(&record, &w.parts, -1, &error));
    EQUAL(error, EINVAL);
    record.owner = 1;
    CHECK(!pp3_ring_attach(&record, &w.parts, 1 << 20, &error));
    EQUAL(error, EBADF);
    parts = w.parts;
    parts.pages = parts.acks = 0;
    r = pp3_ring_attach(&record, &parts, -1, &error);
    CHECK(r && !r->page && !r->request && r->bell_fd == -1 && r->cursor == 0);
    EQUAL(pp3_release(r, 0, 1), -EINVAL); /* no acks */
    pp3_ring_free(r);
    EQUAL(pp3_skip_tickets(w.engine, 1000), 0);
    for (int i = 0; i < 2; i++)
        EQUAL(pp3_claim(w.engine, 0, FAR), i == 0 ? -ENOTCONN : -ENOTCONN);
    world_ranks(&w);
    EQUAL(pp3_claim(w.engine, 0, FAR), 1000);
    r = pp3_ring_attach(&record, &w.parts, -1, &error);
    CHECK(r && r->cursor == 1000 - 3);
    pp3_ring_free(r);
    world_close(&w);
}

static void a_step_is_claimed_written_stamped_and_rung(void)
{
    struct world w;
    uint8_t request[8 * WORDS + 1];
    uint64_t t;

    memset(request, 7, sizeof request);
    world_open(&w, 3, 6, 1);
    EQUAL(pp3_step(w.engine, request, 7, 0, FAR), -EMSGSIZE);
    EQUAL(pp3_step(w.engine, request, sizeof request, 0, FAR), -EMSGSIZE);
    EQUAL(pp3_step(w.engine, request, 24, 0, 0), -EINVAL);
    EQUAL(pp3_step(w.engine, request, 24, 0, FAR), 1);
    memcpy(&t, pp3_request_of(w.engine, 1), 8);
    EQUAL(t, 1);
    EQUAL(pp3_request_of(w.engine, 1)[23], 7);
    EQUAL(PP3_LOAD(&w.engine->entries[1].bell, relaxed), 1);
    world_close(&w);
}

static void a_stream_holds_a_round_until_its_event(void)
{
    struct world w;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(pp3_stream_hold(proxy, 1), -EINVAL);
    EQUAL(pp3_stream_hold(w.engine, 0), -EINVAL);
    EQUAL(pp3_stream_hold(w.engine, 1), -ESTALE);
    FORKED(EQUAL(pp3_stream_hold(w.engine, 1), -EOWNERDEAD));
    EQUAL(pp3_claim(w.engine, 0, FAR), 1);
    EQUAL(pp3_stream_hold(w.engine, 1), 0);
    EQUAL(pp3_cancel(w.engine, 1), -EBUSY);
    (void)pp3_fail(w.engine, 1, PP3_EXPIRED);
    release_all(&w, 1);
    EQUAL(ask(w.engine, FAR), 2);
    EQUAL(ask(w.engine, FAR), -EBUSY);
    struct pp3_why why;
    pp3_why(w.engine, &why);
    CHECK(why.rank == -1 && why.ticket == 1);
    EQUAL(pp3_stream_done(w.engine, 1), 0);
    EQUAL(ask(w.engine, FAR), 3);
    world_close(&w);
}

static void why_counts_the_pages_of_each_owner(void)
{
    enum { MANY = 300 };
    struct pp3_shape s = {
        .rounds = MANY, .pages = 2 * MANY, .ranks = 1, .page_bytes = 8 * WORDS,
        .request_bytes = 8 * WORDS, .failed_bytes = 24, .head_bytes = 16, .slots = 1,
        .max_positions = 1,
    };
    struct world w;
    struct pp3_why why;

    world_open_shape(&w, &s);
    struct pp3_ring *one = world_proxy(&w), *two = world_proxy(&w);
    for (int i = 0; i < MANY; i++) {
        EQUAL(ask(w.engine, 1), i + 1);
        CHECK(take_one(i < 20 ? one : two));
        two->cursor = one->cursor;
    }
    (void)pp3_expire(w.engine, 2);
    for (uint64_t t = 1; t <= MANY; t++)
        EQUAL(pp3_release(w.engine, 0, t), 0);
    for (int i = 0; i < MANY; i++)
        EQUAL(ask(w.engine, FAR), MANY + i + 1);
    pp3_why(w.engine, &why);
    EQUAL(why.quarantined, MANY);
    EQUAL(why.free_pages, 0);
    EQUAL(why.owners, 2);
    EQUAL(why.owner[one->owner], 20);
    EQUAL(why.owner[two->owner], 255); /* a byte, and no more than it holds */
    FORKED(pp3_why(w.engine, &why));
    EQUAL(why.quarantined, 0);
    pp3_why(one, &why);
    EQUAL(why.quarantined, 0);
    world_close(&w);
}

static void a_rank_is_attached_once_and_by_number(void)
{
    struct world w;
    int other = dup(1);

    world_open(&w, 2, 4, 3);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(pp3_rank_attach(proxy, 1, other), -EINVAL);
    EQUAL(pp3_rank_attach(w.engine, 0, other), -EINVAL);
    EQUAL(pp3_rank_attach(w.engine, 3, other), -EINVAL);
    EQUAL(pp3_rank_attach(w.engine, 1, -1), -EINVAL);
    EQUAL(pp3_rank_attach(w.engine, 1, 1 << 20), -EBADF);
    FORKED(EQUAL(pp3_rank_attach(w.engine, 1, other), -EOWNERDEAD));
    EQUAL(pp3_rank_attach(w.engine, 1, other), 0);
    EQUAL(pp3_rank_attach(w.engine, 1, other), -EINVAL);
    EQUAL(pp3_rank_dead(w.engine, 1), 0);
    EQUAL(pp3_rank_dead(w.engine, 2), 0); /* not there yet is not dead */
    EQUAL(pp3_rank_dead(w.engine, 0), 0);
    EQUAL(pp3_rank_dead(w.engine, 3), -EINVAL);
    EQUAL(pp3_rank_dead(proxy, 1), -EINVAL);
    FORKED(EQUAL(pp3_rank_dead(w.engine, 1), -EOWNERDEAD));
    world_close(&w);
    (void)close(other);
}

static void tickets_are_skipped_before_the_first_claim_only(void)
{
    struct world w;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(pp3_skip_tickets(proxy, 5), -EINVAL);
    EQUAL(pp3_skip_tickets(w.engine, 0), -EINVAL);
    EQUAL(pp3_skip_tickets(w.engine, PP3_LAST_TICKET + 1), -EINVAL);
    FORKED(EQUAL(pp3_skip_tickets(w.engine, 5), -EOWNERDEAD));
    EQUAL(pp3_skip_tickets(w.engine, 5), 0);
    EQUAL(pp3_skip_tickets(w.engine, 6), -EINVAL);
    world_close(&w);
}

static void words_and_counters_are_read_only_here(void)
{
    struct world w;
    uint64_t word = 1;

    world_open(&w, 2, 4, 1);
    EQUAL(pp3_word(w.engine, 1, &word), 0);
    EQUAL(word, 0);
    EQUAL(pp3_bad_word(w.engine), 0);
    pp3_count(w.engine, 3, 5);
    pp3_count(w.engine, PP3_COUNTERS, 5); /* none of ours */
    EQUAL(pp3_counter(w.engine, 3), 5);
    EQUAL(pp3_counter(w.engine, PP3_COUNTERS), 0);
    FORKED(EQUAL(pp3_word(w.engine, 1, &word), -EOWNERDEAD));
    FORKED(pp3_count(w.engine, 3, 5));
    FORKED(EQUAL(pp3_counter(w.engine, 3), 0));
    FORKED(EQUAL(pp3_here(w.engine), -EOWNERDEAD));
    EQUAL(pp3_here(w.engine), 0);
    EQUAL(pp3_counter(w.engine, 3), 5);
    world_close(&w);
}

const struct test ring_tests[] = {
    {"every bad field of a shape is named", every_bad_field_of_a_shape_is_named},
    {"a region says its shape and a record repeats it",
     a_region_says_its_shape_and_a_record_repeats_it},
    {"every allocation that fails ends creation whole",
     every_allocation_that_fails_ends_creation_whole},
    {"a missing part ends creation", a_missing_part_ends_creation},
    {"a shape that does not add up is refused", a_shape_that_does_not_add_up_is_refused},
    {"attaching takes what is given and no more",
     attaching_takes_what_is_given_and_no_more},
    {"a step is claimed, written, stamped and rung",
     a_step_is_claimed_written_stamped_and_rung},
    {"a stream holds a round until its event", a_stream_holds_a_round_until_its_event},
    {"why counts the pages of each owner", why_counts_the_pages_of_each_owner},
    {"a rank is attached once and by number", a_rank_is_attached_once_and_by_number},
    {"tickets are skipped before the first claim only",
     tickets_are_skipped_before_the_first_claim_only},
    {"words and counters are read only here", words_and_counters_are_read_only_here},
    {0, 0},
};
