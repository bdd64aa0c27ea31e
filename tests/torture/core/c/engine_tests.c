/* Claim, submit, cancel; pages that come back and pages that do not. */
#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "world.h"

static void a_round_goes_all_the_way(void)
{
    struct world w;
    uint64_t word = 0, heads[6] = {0, 11, 0, 12, 0, 13};
    uint32_t index = 0;

    world_open(&w, 2, 4, 3);
    world_ranks(&w);
    struct pp3_ring *proxy = world_proxy(&w);
    for (uint64_t t = 1; t <= 40 * effort; t++) {
        EQUAL(pp3_claim(w.engine, t % 2 ? heads : 0, FAR), t);
        memcpy(pp3_request_of(w.engine, t), &t, 8);
        EQUAL(pp3_submit(w.engine, t), 0);
        uint64_t mine = take_one(proxy);
        EQUAL(pp3_ticket(mine), t);
        CHECK(memcmp(pp3_request(proxy, mine), &t, 8) == 0);
        EQUAL(answer(proxy, mine), 0);
        EQUAL(pp3_wait(w.engine, t, FAR, 1000, &word), 0);
        EQUAL(pp3_read(w.engine, word, &index), 0);
        EQUAL(page_words(w.engine, index)[WORDS - 1], t);
        release_all(&w, t);
    }
    tried(40 * effort);
    world_close(&w);
}

static void a_claim_is_refused_with_its_reason(void)
{
    struct world w;
    struct pp3_why why;

    world_open(&w, 2, 4, 2);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(pp3_claim(proxy, 0, FAR), -EINVAL);
    EQUAL(pp3_claim(w.engine, 0, 0), -EINVAL);
    FORKED(EQUAL(pp3_claim(w.engine, 0, FAR), -EOWNERDEAD));
    EQUAL(pp3_claim(w.engine, 0, FAR), -ENOTCONN);
    pp3_why(w.engine, &why);
    EQUAL(why.rank, 1);
    world_ranks(&w);
    EQUAL(ask(w.engine, FAR), 1);
    EQUAL(ask(w.engine, FAR), 2);
    EQUAL(ask(w.engine, FAR), -EAGAIN);
    pp3_why(w.engine, &why);
    EQUAL(why.ticket, 1);
    EQUAL(answer(proxy, take_one(proxy)), 0);
    EQUAL(pp3_release(w.engine, 0, 1), 0);
    EQUAL(ask(w.engine, FAR), -EBUSY);
    pp3_why(w.engine, &why);
    CHECK(why.rank == 1 && why.ticket == 1);
    EQUAL(pp3_release(w.engine, 1, 1), 0);
    EQUAL(ask(w.engine, FAR), 3);
    world_close(&w);
}

static void a_dead_rank_holds_nothing_back(void)
{
    struct world w;
    int pidfd;
    pid_t child = sleeper(&pidfd);

    world_open(&w, 1, 2, 2);
    EQUAL(pp3_rank_attach(w.engine, 1, pidfd), 0);
    EQUAL(ask(w.engine, 1), 1);
    (void)pp3_expire(w.engine, 2);
    EQUAL(pp3_release(w.engine, 0, 1), 0);
    EQUAL(ask(w.engine, 1), -EBUSY);
    (void)kill(child, SIGKILL);
    UNTIL(pp3_pidfd_gone(pidfd));
    EQUAL(ask(w.engine, 1), 2); /* seen by the claim itself */
    EQUAL(pp3_rank_dead(w.engine, 1), 1);
    (void)pp3_expire(w.engine, 2);
    EQUAL(pp3_release(w.engine, 0, 2), 0);
    EQUAL(ask(w.engine, 1), 3);
    (void)waitpid(child, 0, 0);
    (void)close(pidfd);
    world_close(&w);
}

static void a_claim_finds_words_that_are_not_its_own(void)
{
    struct world w;

    world_open(&w, 1, 2, 1);
    PP3_STORE(&w.engine->entries[0].state, 99, relaxed);
    EQUAL(ask(w.engine, FAR), -EBADMSG);
    EQUAL(pp3_bad_word(w.engine), 99);
    PP3_STORE(&w.engine->entries[0].state, 0, relaxed);
    EQUAL(ask(w.engine, FAR), 1);
    uint64_t own = w.engine->engine->claimed[0];
    PP3_STORE(&w.engine->entries[0].state,
              pp3_make(2, PP3_PUBLISHED, pp3_page_of(own), 1), relaxed);
    EQUAL(ask(w.engine, FAR), -EBADMSG);
    PP3_STORE(&w.engine->entries[0].state,
              pp3_make(1, PP3_PUBLISHED, pp3_page_of(own) + 1, 1), relaxed);
    EQUAL(ask(w.engine, FAR), -EBADMSG);
    PP3_STORE(&w.engine->entries[0].state, own, relaxed);
    EQUAL(ask(w.engine, FAR), -EAGAIN);
    world_close(&w);
}

/* A round that `proxy` took, then failed and released: its page is in quarantine. */
static uint64_t lose_one(struct world *w, struct pp3_ring *proxy)
{
    CHECK(ask(w->engine, 1) > 0);
    uint64_t mine = take_one(proxy);
    (void)pp3_expire(w->engine, 2);
    release_all(w, pp3_ticket(mine));
    return mine;
}

static void pages_wait_in_quarantine_until_given_back(void)
{
    struct world w;
    struct pp3_why why;

    world_open(&w, 1, 2, 1);
    struct pp3_ring *proxy = world_proxy(&w), *other = world_proxy(&w);
    uint64_t first = lose_one(&w, proxy);
    EQUAL(ask(w.engine, 1), 2);
    pp3_why(w.engine, &why);
    EQUAL(why.quarantined, 1);
    proxy->cursor = other->cursor = 1;
    uint64_t second = take_one(other);
    (void)pp3_expire(w.engine, 2);
    release_all(&w, 2);
    EQUAL(ask(w.engine, 1), -ENOBUFS);
    EQUAL(ask(w.engine, 1), -ENOBUFS); /* its page is disposed of once */
    EQUAL(pp3_publish(proxy, first), -ESTALE); /* gives back */
    EQUAL(ask(w.engine, 1), 3);
    EQUAL(pp3_owner_gone(w.engine, other->owner), 0);
    (void)pp3_expire(w.engine, 2);
    release_all(&w, 3);
    EQUAL(ask(w.engine, 1), 4); /* never taken: its page came straight back */
    EQUAL(pp3_counter(w.engine, PP3_COUNT_FENCED), 1);
    pp3_give_back(other, second);
    world_close(&w);
}

static void a_page_given_back_before_the_claim_is_free(void)
{
    struct world w;
    struct pp3_why why;

    world_open(&w, 1, 2, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    pp3_give_back(proxy, lose_one(&w, proxy));
    EQUAL(ask(w.engine, 1), 2);
    pp3_why(w.engine, &why);
    EQUAL(why.quarantined, 0);
    proxy->cursor = 1;
    CHECK(take_one(proxy));
    EQUAL(pp3_owner_gone(w.engine, proxy->owner), 1);
    release_all(&w, 2);
    EQUAL(ask(w.engine, 1), 3); /* its owner is dead */
    pp3_why(w.engine, &why);
    EQUAL(why.quarantined, 0);
    world_close(&w);
}

static void a_request_is_the_claimed_rounds_own(void)
{
    struct world w;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    CHECK(!pp3_request_of(w.engine, 0) && !pp3_request_of(w.engine, 1));
    EQUAL(pp3_claim(w.engine, 0, FAR), 1);
    CHECK(pp3_request_of(w.engine, 1) && !pp3_request_of(w.engine, 3));
    CHECK(!pp3_request_of(proxy, 1));
    FORKED(CHECK(!pp3_request_of(w.engine, 1)));
    EQUAL(pp3_submit(proxy, 1), -EINVAL);
    EQUAL(pp3_submit(w.engine, 0), -EINVAL);
    EQUAL(pp3_submit(w.engine, 3), -ESTALE);
    FORKED(EQUAL(pp3_submit(w.engine, 1), -EOWNERDEAD));
    EQUAL(pp3_submit(w.engine, 1), 0);
    world_close(&w);
}

static void a_submit_rings_only_for_a_sleeper(void)
{
    struct world w;
    uint64_t rings;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(ask(w.engine, FAR), 1);
    CHECK(read(w.engine->bell_fd, &rings, 8) < 0);
    pp3_work_prepare(proxy);
    EQUAL(ask(w.engine, FAR), 2);
    EQUAL(PP3_LOAD(&w.engine->header->work_seq, relaxed), 1);
    pp3_work_done(proxy); /* drains */
    CHECK(read(w.engine->bell_fd, &rings, 8) < 0);
    pp3_work_done(proxy); /* not rung */
    FORKED(pp3_work_prepare(proxy));
    FORKED(pp3_work_done(proxy));
    EQUAL(PP3_LOAD(&w.engine->header->work_waiters, relaxed), UINT32_MAX);
    world_close(&w);
}

static void a_cancelled_round_is_told_to_nobody(void)
{
    struct world w;
    uint64_t word = 0;

    world_open(&w, 1, 2, 1);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(pp3_cancel(proxy, 1), -EINVAL);
    EQUAL(pp3_cancel(w.engine, 0), -EINVAL);
    EQUAL(pp3_cancel(w.engine, 1), -ESTALE);
    FORKED(EQUAL(pp3_cancel(w.engine, 1), -EOWNERDEAD));
    EQUAL(ask(w.engine, FAR), 1);
    EQUAL(pp3_cancel(w.engine, 1), 0);
    EQUAL(pp3_word(w.engine, 1, &word), 0);
    EQUAL(pp3_state(word), PP3_FAILED + PP3_CANCELLED);
    EQUAL(ask(w.engine, FAR), 2); /* without a release */
    EQUAL(pp3_counter(w.engine, PP3_COUNT_CANCELLED), 1);
    world_close(&w);
}

static void a_claim_nudges_only_a_sleeping_watchdog(void)
{
    struct world w;
    uint64_t nudges;

    world_open(&w, 2, 4, 1);
    EQUAL(ask(w.engine, 500), 1);
    CHECK(read(w.engine->engine->nudge_fd, &nudges, 8) < 0);
    pp3_watch_sleeps(w.engine, 400);
    EQUAL(ask(w.engine, 300), 2);
    CHECK(read(w.engine->engine->nudge_fd, &nudges, 8) == 8);
    world_close(&w);
}

/* What is told to people: who is behind, since when, and how much is in quarantine. */
static void the_oldest_round_and_its_holder_are_told(void)
{
    struct world w;
    struct pp3_why why;
    uint64_t before = pp3_now();

    world_open(&w, 2, 4, 2);
    struct pp3_ring *proxy = world_proxy(&w);
    EQUAL(pp3_oldest(proxy, &why), -EINVAL);
    FORKED(EQUAL(pp3_oldest(w.engine, &why), -EOWNERDEAD));
    EQUAL(pp3_ask(proxy, 0, FAR), -EINVAL);
    FORKED(EQUAL(pp3_ask(w.engine, 0, FAR), -EOWNERDEAD));
    EQUAL(pp3_rank_pidfd(proxy, 1), -1);
    EQUAL(pp3_rank_pidfd(w.engine, 1), -1); /* not all attached, as far as seen */
    FORKED(EQUAL(pp3_rank_pidfd(w.engine, 1), -1));
    world_ranks(&w);
    EQUAL(pp3_oldest(w.engine, &why), 0);
    EQUAL(why.asked_ns, 0);
    EQUAL(ask(w.engine, 1), 1);
    EQUAL(ask(w.engine, 1), 2);
    CHECK(pp3_rank_pidfd(w.engine, 1) >= 0);
    EQUAL(pp3_rank_pidfd(w.engine, 2), -1);
    EQUAL(pp3_oldest(w.engine, &why), -EAGAIN);
    CHECK(why.rank == -1 && why.ticket == 1 && why.asked_ns >= before);
    uint64_t first = take_one(proxy);
    CHECK(first && take_one(proxy));
    (void)pp3_expire(w.engine, 2);
    EQUAL(pp3_oldest(w.engine, &why), -EBUSY);
    CHECK(why.rank == 0 && why.ticket == 1);
    release_all(&w, 1);
    EQUAL(pp3_oldest(w.engine, &why), -EBUSY);
    CHECK(why.rank == 0 && why.ticket == 2);
    release_all(&w, 2);
    EQUAL(pp3_oldest(w.engine, &why), 0);
    EQUAL(ask(w.engine, 1), 3);
    EQUAL(ask(w.engine, 1), 4);
    EQUAL(pp3_counter(w.engine, PP3_COUNT_QUARANTINED), 2);
    pp3_why(w.engine, &why);
    CHECK(why.held_ticket == 1 && why.held_owner == proxy->owner &&
          why.held_asked_ns >= before);
    CHECK(take_one(proxy));
    (void)pp3_expire(w.engine, 2);
    release_all(&w, 3);
    pp3_give_back(proxy, first);
    EQUAL(ask(w.engine, FAR), 5); /* the quarantine is 3, 2 now: not in order */
    pp3_why(w.engine, &why);
    EQUAL(why.held_ticket, 2);
    w.engine->engine->behind_ticket = 99; /* of no entry: nothing is known of it */
    pp3_why(w.engine, &why);
    EQUAL(why.asked_ns, 0);
    world_close(&w);
    world_open(&w, 2, 4, 1);
    EQUAL(pp3_skip_tickets(w.engine, 50), 0);
    EQUAL(pp3_oldest(w.engine, &why), 0); /* 48 and 49 were never asked */
    world_close(&w);
}

const struct test engine_tests[] = {
    {"the oldest round and its holder are told",
     the_oldest_round_and_its_holder_are_told},
    {"a round goes all the way", a_round_goes_all_the_way},
    {"a claim is refused with its reason", a_claim_is_refused_with_its_reason},
    {"a dead rank holds nothing back", a_dead_rank_holds_nothing_back},
    {"a claim finds words that are not its own",
     a_claim_finds_words_that_are_not_its_own},
    {"pages wait in quarantine until given back",
     pages_wait_in_quarantine_until_given_back},
    {"a page given back before the claim is free",
     a_page_given_back_before_the_claim_is_free},
    {"a request is the claimed round's own", a_request_is_the_claimed_rounds_own},
    {"a submit rings only for a sleeper", a_submit_rings_only_for_a_sleeper},
    {"a cancelled round is told to nobody", a_cancelled_round_is_told_to_nobody},
    {"a claim nudges only a sleeping watchdog",
     a_claim_nudges_only_a_sleeping_watchdog},
    {0, 0},
};
