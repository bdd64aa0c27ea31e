#include "rounds/hear.h"

#include <errno.h>
#include <string.h>

/* A wait comes back to the caller so often, to let signals in. */
#define SIGNAL_NS UINT64_C(50000000)

#ifdef PP3_NO_TRACE
#define RECORDS(h) 0
#else
#define RECORDS(h) ((h)->recorder != NULL)
#endif

/* How much of the spin is left: a wait begins with all that the policy says, and goes on
 * through what comes back to the caller. */
static uint64_t spin_left(struct pp3_hear *h, uint64_t ticket, uint64_t now)
{
    if (h->waiting != ticket) {
        h->waiting = ticket;
        h->begun_ns = now;
        h->spin_ns = pp3_waiter_begin(&h->waiter);
    }
    return h->spin_ns - pp3_least(now - h->begun_ns, h->spin_ns);
}

int pp3_hear_soon(struct pp3_hear *h, struct pp3_ring *r, uint64_t ticket,
                  uint64_t limit_ns, uint64_t most_ns)
{
    uint64_t word, now, left;

    if (ticket == 0 || !PP3_HERE(r) || ticket <= h->released[ticket % r->rounds] ||
        pp3_spin(r, ticket, 0, &word) != 0)
        return 1;
    now = pp3_now();
    left = pp3_least(spin_left(h, ticket, now), most_ns);
    /* a hybrid that spins as long as it may has not learned that it comes soon */
    if (h->waiter.policy == PP3_WAIT_HYBRID && h->spin_ns >= h->waiter.most_ns)
        left = 0;
    if (left == 0 || limit_ns <= now)
        return 0;
    return pp3_spin(r, ticket, pp3_least(now + left, limit_ns), &word) != 0;
}

static int wait(struct pp3_hear *h, struct pp3_ring *r, uint64_t ticket,
                uint64_t limit_ns, uint64_t *word)
{
    uint64_t now = pp3_now(), spin = spin_left(h, ticket, now);
    int error, last = limit_ns <= now + SIGNAL_NS;

    /* The limit of a call ends its spin too; the next one spins what is left of it. */
    error = pp3_wait(r, ticket, last ? limit_ns : now + SIGNAL_NS, spin, word);
    if (error == -ETIMEDOUT && !last)
        return -EAGAIN;
    if (error == 0 && h->waiter.policy == PP3_WAIT_HYBRID)
        pp3_waiter_end(&h->waiter, pp3_now() - h->begun_ns);
    h->waiting = 0;
    return error;
}

/* The engine's own rank knows when it was; of a round it has not let go. */
static uint64_t submitted(const struct pp3_hear *h, uint64_t ticket)
{
    return h->ask ? pp3_ask_submitted(h->ask, ticket) : 0;
}

/* How it ended, as a record keeps it: the status of the whole, then one for each slot, 4
 * bits each (what stands in a page may be anything), then how many slots there are. */
static uint32_t info_of(const struct pp3_hear *h, const struct pp3_heard *heard)
{
    uint32_t info = ((uint32_t)heard->failed & 15u) | h->slots << 20;

    for (uint32_t slot = 0; slot < h->slots; slot++)
        info |= ((uint32_t)heard->status[slot] & 15u) << (4 + 4 * slot);
    return info;
}

int pp3_hear(struct pp3_hear *h, struct pp3_ring *r, uint64_t ticket,
             uint64_t limit_ns, uint32_t stale, struct pp3_heard *heard)
{
    struct pp3_trace trace;
    uint64_t word = 0, seen;
    uint32_t index = 0;
    int error, status;

    if (ticket == 0)
        return -EINVAL;
    if (ticket <= h->released[ticket % r->rounds])
        return -EALREADY;
    if ((error = wait(h, r, ticket, limit_ns, &word)) < 0)
        return error;
    seen = pp3_tick();
    if ((status = pp3_read(r, word, &index)) < 0)
        return status;
    const uint8_t *buffer = status ? r->failed + index * r->failed_stride
                                   : r->page + index * r->page_stride;
    memcpy(&heard->round, buffer, sizeof heard->round);
    heard->failed = status;
    heard->place = (int32_t)(index + (status ? r->pages : 0)); /* below 2^14 */
    if (heard->round != ticket) {
        (void)pp3_let_go(h, r, ticket);
        return -EBADE;
    }
    memcpy(heard->status, buffer + h->status_at, h->slots * sizeof *heard->status);
    heard->stale = stale | (h->ask ? pp3_ask_stale(h->ask, ticket) : 0);
    for (uint32_t slot = 0; slot < h->slots; slot++)
        if (heard->stale >> slot & 1u)
            heard->status[slot] = PP3_STATUS_STALE;
    pp3_trace_get(r, word, seen, &trace);
    heard->trace = status == 0 ? trace : (struct pp3_trace){0};
    if (RECORDS(h))
        pp3_recorder_see(h->recorder, word, info_of(h, heard), &trace,
                         submitted(h, ticket), seen);
    return heard->place;
}

int pp3_let_go(const struct pp3_hear *h, struct pp3_ring *r, uint64_t ticket)
{
    uint64_t *last = &h->released[ticket % r->rounds];
    int fresh = *last < ticket; /* an older one again takes nothing back */
    int error;

    if (h->ask) /* first: behind the release the entry may hold another round */
        pp3_ask_over(h->ask, ticket);
    if (fresh && RECORDS(h))
        pp3_recorder_leave(h->recorder, ticket, submitted(h, ticket));
    error = pp3_release(r, h->rank, ticket);
    if (error == 0 && fresh) {
        *last = ticket;
        if (RECORDS(h)) /* now, so that nobody waits for it */
            pp3_recorder_add(h->recorder, ticket);
    }
    return error;
}
