/* The engine's side: rounds in flight, and each that ends is checked. */
#include "life.h"

#include <unistd.h>

enum { LAST_LAPS = 3 };

#define FAR_NS UINT64_C(60000000000)

static void tell(struct life *l, uint64_t t)
{
    for (uint32_t k = 1; k < l->ring->ranks; k++)
        if (!l->rank[k].killed &&
            write(l->rank[k].tell, &t, sizeof t) != (ssize_t)sizeof t)
            continue; /* it was killed just now: seen when the entry is used again */
    l->told[t % l->ring->rounds] = true;
}

/* A third are due at once, a third some time, a third never: those end by an answer, or
 * by their owner's death. */
static uint64_t some_deadline(uint64_t ticket)
{
    static const uint64_t most[3] = {1000000, 40000000, 0};
    uint64_t limit = most[roll(is_answered(ticket) ? 3 : 2)];

    return pp3_now() + (atomic_load(&board->calm) || !limit ? FAR_NS
                                                            : 50000 + roll(limit));
}

/* The entry is claimed again: every rank that lives has seen what rank 0 saw. */
static void compare(struct life *l, uint64_t t)
{
    uint32_t e = (uint32_t)(t % l->ring->rounds);

    for (uint32_t k = 1; l->told[e] && k < l->ring->ranks; k++) {
        struct seen *log = &board->seen[k][t % LOG];
        if (atomic_load(&log->ticket) == t) {
            if (atomic_load(&log->word) != l->word[e])
                bad("two ranks, two outcomes", t, atomic_load(&log->word));
        } else if (!l->rank[k].killed) {
            bad("an entry used again that a living rank has not released", t, k);
        }
    }
}

static bool claim(struct life *l)
{
    struct pp3_ring *r = l->ring;
    uint64_t heads[3 * PP3_CAUSES], next = r->engine->next;
    int64_t t;

    fill_heads(heads, next);
    t = pp3_claim(r, heads, some_deadline(next));
    if (t == -EBUSY || t == -EAGAIN || t == -ENOBUFS)
        return false;
    if (t != (int64_t)next) {
        bad("a refused claim", next, (uint64_t)t);
        return false;
    }
    if (next > r->rounds)
        compare(l, next - r->rounds);
    l->word[next % r->rounds] = 0;
    l->told[next % r->rounds] = false;
    fill_request(r, pp3_request_of(r, next), next);
    if (is_rung(next) && pp3_submit(r, next) != 0)
        bad("a refused submit", next, 0);
    if (roll(4))
        tell(l, next);
    here(0);
    return true;
}

/* Nobody waits: only an owner, the watchdog or a death can end it. */
static uint64_t watched(struct life *l, uint64_t t)
{
    uint64_t begin = pp3_now(), word = 0;

    while (within(begin, slack_ns) && !is_bad()) {
        (void)pp3_word(l->ring, t, &word);
        if (pp3_ticket(word) != t || pp3_resolved(word))
            return word;
        pause_ns(50000);
    }
    if (!is_bad())
        bad("a round that nobody resolves", t, word);
    return word;
}

static uint64_t waited(struct life *l, uint64_t t)
{
    uint64_t word = 0;
    int rc = pp3_wait(l->ring, t, pp3_now() + slack_ns, roll(2) * 20000, &word);

    if (rc != 0)
        bad("a wait that ended without an outcome", t, (uint64_t)rc);
    return word;
}

static void count(int status)
{
    atomic_fetch_add(&board->rounds, 1);
    atomic_fetch_add(status == 0               ? &board->published
                     : status == PP3_EXPIRED   ? &board->expired
                     : status == PP3_ORPHANED  ? &board->orphaned
                                               : &board->cancelled,
                     1);
}

/* The oldest round is resolved, read twice, compared, and released. */
static int finish(struct life *l)
{
    struct pp3_ring *r = l->ring;
    uint64_t t = l->oldest++, word = 0, again = 0;
    uint32_t e = (uint32_t)(t % r->rounds);
    int status;

    if (!l->told[e] && roll(8) == 0) {
        (void)pp3_cancel(r, t);
        count(PP3_CANCELLED);
        here(0);
        return PP3_CANCELLED;
    }
    if (roll(16) == 0)
        (void)pp3_resolve(r, t, PP3_CANCELLED, &word);
    word = l->told[e] || roll(2) ? waited(l, t) : watched(l, t);
    l->word[e] = word;
    if (is_bad())
        return -1;
    if (!l->told[e])
        tell(l, t);
    status = round_is_whole(r, t, word);
    pause_ns(roll(4) ? 0 : roll(100000));
    (void)pp3_resolve(r, t, PP3_EXPIRED, &again); /* resolved once: changes nothing */
    if (again != word)
        bad("a second outcome", t, again);
    (void)round_is_whole(r, t, word);
    if (pp3_release(r, 0, t) != 0)
        bad("a refused release", t, 0);
    here(0);
    count(status);
    return status;
}

void load(struct life *l)
{
    uint64_t since = pp3_now();

    while (l->storm && !is_bad()) {
        bool claimed = false;

        while (l->ring->engine->next - l->oldest < l->ring->rounds && roll(6) &&
               claim(l))
            claimed = true;
        if (claimed)
            since = pp3_now();
        if (l->oldest < l->ring->engine->next)
            (void)finish(l);
        else if (!claimed)
            pause_ns(50000);
        if (!within(since, slack_ns))
            bad("no round could be claimed", l->ring->engine->next, 0);
    }
}

/* The text goes on: everything asked now is answered. */
void go_on(struct life *l)
{
    uint64_t begin = pp3_now(), last;

    while (l->oldest < l->ring->engine->next && !is_bad())
        (void)finish(l);
    atomic_store(&board->calm, 1);
    for (last = l->oldest + LAST_LAPS * l->ring->rounds; l->oldest < last && !is_bad();) {
        if (claim(l)) {
            uint32_t e = (uint32_t)(l->oldest % l->ring->rounds);
            if (!l->told[e])
                tell(l, l->oldest);
            if (waited(l, l->oldest) && pp3_state(watched(l, l->oldest)) != PP3_PUBLISHED)
                bad("a round after the storm that was not answered", l->oldest, 0);
            (void)finish(l);
            begin = pp3_now();
        } else if (!within(begin, slack_ns)) {
            bad("no round could be claimed after the storm", l->oldest, 0);
        }
    }
}
