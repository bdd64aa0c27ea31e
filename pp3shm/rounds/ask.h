/* What an engine asks: its slots, the rows of its rounds, and who stands in which round.
 * A step is one call: the rows as they stand become a STEP, and that a round.
 *
 * One thread asks and changes slots; another one may read rounds (rounds/hear.h) and ask
 * what of them is stale.
 */
#ifndef PP3_ROUNDS_ASK_H
#define PP3_ROUNDS_ASK_H

#include <stdatomic.h>

#include "layout/step.h"
#include "ring/ring.h"
#include "ring/slots.h"

/* What the engine knows of one slot; the region holds what others must know. */
struct pp3_ask_slot {
    _Atomic uint64_t life; /* generation << 1 | open; the reading thread looks at it */
    uint64_t position, digest; /* of the committed prefix */
    /* Tokens committed since the slot's last STEP, the newest of them. Where more were
     * than a STEP holds, the gap before them is seen by the proxy, who restates. */
    uint32_t unsent_count;
    int32_t unsent[PP3_MOST_DEPTH + 1];
};

/* The rows of the round that an entry holds, or of the last it held. */
struct pp3_asked {
    _Atomic uint64_t ticket; /* 0: none yet */
    _Atomic uint32_t over;   /* rank 0 has let it go: nobody asks what is stale */
    _Atomic uint64_t submitted; /* pp3_tick, just before its bell */
    uint32_t slots;          /* a bit each */
    uint32_t generation[PP3_MOST_SLOTS];
};

struct pp3_ask {
    struct pp3_layout layout;
    uint32_t rounds, request_bytes, heads_bytes;
    struct pp3_ask_slot slot[PP3_MOST_SLOTS];
    struct pp3_asked *asked; /* [rounds] */
    /* The rows asked for: a STEP in which round, generations, positions, digests and
     * tokens are put anew each time, and the failed buffers' heads. */
    uint8_t *step, *heads;
    struct pp3_step_at at;
    uint32_t bytes, n, row_slot[PP3_MOST_SLOTS];
    uint32_t closed; /* which slot it was that -ENOENT speaks of */
};

/* For the engine's end of a ring. NULL: no memory. */
struct pp3_ask *pp3_ask_new(const struct pp3_ring *r, const struct pp3_layout *l);
void pp3_ask_free(struct pp3_ask *a);

/* The rows of the steps to come. step: a STEP of them with any position and no token;
 * heads: for pp3_step. 0, or -EINVAL: it is none. */
int pp3_ask_rows(struct pp3_ask *a, const uint8_t *step, uint32_t bytes,
                 const uint8_t *heads);

/* Claims, writes, submits. The ticket; -EDOM: timeout_s is no number of seconds;
 * -ENOENT: a slot is closed; or what pp3_step says. A refusal changes nothing. */
int64_t pp3_ask_step(struct pp3_ask *a, struct pp3_ring *r, double timeout_s);

/* A slot's life, but for the region's: opened anew with its prefix's length and digest;
 * closed; appended to. */
void pp3_ask_open(struct pp3_ask *a, uint32_t slot, uint32_t generation,
                  uint64_t position, uint64_t digest);
void pp3_ask_close(struct pp3_ask *a, uint32_t slot);
void pp3_ask_commit(struct pp3_ask *a, uint32_t slot, const int32_t *tokens, uint64_t n,
                    uint64_t digest);

/* Tokens that were committed, to the region's slot and to this one. digest: of the prefix
 * with them. 0; -EINVAL: no such slot; -ENOENT: a closed one; -EBUSY: it stands in an open
 * round; -EDOM: a token outside the vocabulary; or as pp3_slot_append. What is refused
 * changes nothing. */
int pp3_ask_append(struct pp3_ask *a, struct pp3_ring *r, uint32_t slot,
                   const int32_t *tokens, uint64_t n, uint64_t digest);

/* generation << 1, and 1 where it is open. */
uint64_t pp3_ask_life(const struct pp3_ask *a, uint32_t slot);

/* The first open round that the slot's generation stands in; 0: none. */
uint64_t pp3_ask_busy(const struct pp3_ask *a, struct pp3_ring *r, uint32_t slot);

/* When the latest round of the ticket's entry was submitted, by pp3_tick. */
uint64_t pp3_ask_submitted(const struct pp3_ask *a, uint64_t ticket);

/* The slots, a bit each, of a round not let go that were closed or opened anew since. */
uint32_t pp3_ask_stale(const struct pp3_ask *a, uint64_t ticket);

/* Rank 0 reads the round no more. */
void pp3_ask_over(struct pp3_ask *a, uint64_t ticket);

/* The time so many seconds from now, or 0 for no number of them. Beyond 31 years it is
 * 31 years. */
uint64_t pp3_after(double seconds);

#endif
