/* How a rank hears of a round and lets it go, one call each: wait, find the page or the
 * failed buffer, see that it is of this round, copy the part that tells how it ended. */
#ifndef PP3_ROUNDS_HEAR_H
#define PP3_ROUNDS_HEAR_H

#include "ring/recorder.h"
#include "ring/waiter.h"
#include "rounds/ask.h"

/* One rank's reading. */
struct pp3_hear {
    struct pp3_ask *ask; /* of the engine's own rank, else NULL */
    uint64_t *released;  /* [rounds] the last this rank let go; the reader's */
    struct pp3_recorder *recorder; /* NULL: nothing is recorded */
    uint32_t rank, slots, status_at; /* status_at: of the statuses in a buffer */
    struct pp3_waiter waiter; /* one thread waits at a time */
    uint64_t waiting, begun_ns; /* the round of a wait that came back, since when */
    uint64_t spin_ns;           /* and how long of it is spun */
};

/* How a round ended. The page is the reader's until it lets go; this is its own. */
struct pp3_heard {
    uint64_t round;
    int32_t failed;  /* the status of a round that failed as a whole, else 0 */
    int32_t place;   /* of its buffer: a page, or the number of pages + a failed one */
    uint32_t stale;  /* slots, a bit each */
    int32_t status[PP3_MOST_SLOTS];
    struct pp3_trace trace; /* of a reply that was accepted, else zeros */
};

/* Waits to limit_ns (UINT64_MAX: to the round's deadline), but no longer than a call may
 * keep signals waiting.
 * stale: what the caller was told, beside what `ask` knows.
 * 0 or more: resolved, and the place of its buffer. -EAGAIN: not yet, call again.
 * -ETIMEDOUT: the limit. -EALREADY: this rank has let it go. -ESTALE: of another entry.
 * -EBADE: the buffer is of round heard->round and not of this one, which has been let
 * go. -EBADMSG, -EOWNERDEAD: as the ring. */
int pp3_hear(struct pp3_hear *h, struct pp3_ring *r, uint64_t ticket,
             uint64_t limit_ns, uint32_t stale, struct pp3_heard *heard);

/* For who holds meanwhile what others want: spins as the policy says where the round is
 * expected soon, but no longer than most_ns, and sleeps never. True: pp3_hear has its
 * answer now, unless another process makes another round of the entry meanwhile. */
int pp3_hear_soon(struct pp3_hear *h, struct pp3_ring *r, uint64_t ticket,
                  uint64_t limit_ns, uint64_t most_ns);

/* Nothing of the round is used after this. 0, or as pp3_release. */
int pp3_let_go(const struct pp3_hear *h, struct pp3_ring *r, uint64_t ticket);

#endif
