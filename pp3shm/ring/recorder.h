/* The flight recorder: the last rounds of each rank, stage by stage, for people.
 *
 * Behind the lines of acknowledgements the acks segment has a part for each rank, which
 * only that rank writes: a head, and a ring of PP3_FLIGHTS records. A rank adds one as it
 * lets a round go. What a dead one wrote stays there to be read.
 *
 * A reader takes whole records alone. Each is under a sequence lock of its own: `mark` is
 * odd while it is being written, and 2 * (n + 1) once it is record n. It reads twice,
 * with a full fence between, and takes what was the same both times, under the mark of
 * record n. Say the first look saw a word of a later write: the odd mark was stored
 * before that word, behind a release fence, so that the second look sees that mark or a
 * later one, which is not the first look's. Both looks copy: no words of the region's
 * are looked at again, and whatever they hold, only numbers come of them.
 *
 * Nothing is steered by any of it: not by the count, which its writer keeps to itself.
 */
#ifndef PP3_RECORDER_H
#define PP3_RECORDER_H

#include <stddef.h>

#include "trace.h"

#define PP3_UNSEEN (1u << 23) /* of info: let go without a look at how it ended */
#define PP3_FLIGHTS 1024u /* 64 KiB a rank; a power of two */

/* The stages of a round, in their order. The stamp of the last, its release, stands
 * whole in a record, the others by how far they lie before it. */
enum pp3_stage { PP3_STAGE_SUBMIT, PP3_STAGE_TAKE, PP3_STAGE_SENT, PP3_STAGE_RECEIVED,
                 PP3_STAGE_VALIDATED, PP3_STAGE_PUBLISH, PP3_STAGE_SEEN, PP3_BEFORE };

/* Half a line: what is written for each round costs a rank's cache as little as can be. */
struct pp3_flight {
    PP3_A64 mark;
    PP3_A64 word;     /* the state word as this rank saw it: ticket, state, page, owner */
    PP3_A64 released; /* pp3_tick */
    /* ticks from each stage to the release, shifted right; 0: it never came to that.
     * Above the last of them: 24 bits of the caller's, and 8 bits that say how far. */
    PP3_A64 before[4];
    PP3_A64 zero;
};

struct pp3_flights {
    PP3_A64 count; /* records written so far, behind them */
    PP3_A64 pid;   /* the rank's, in its own namespace */
    uint8_t epoch[16]; /* rank 0's has the region's: which region this is part of */
    uint8_t pad[PP3_LINE - 32];
    struct pp3_flight flight[PP3_FLIGHTS];
};

#define PP3_RECORDER_BYTES sizeof(struct pp3_flights)
#define PP3_RECORDER_HEAD offsetof(struct pp3_flights, flight)
#define PP3_FLIGHT_BYTES sizeof(struct pp3_flight)

/* The part of a rank below r->ranks, where acks are mapped. */
static inline struct pp3_flights *pp3_flights_of(const struct pp3_ring *r, uint32_t rank)
{
    PP3_A64 *behind = r->acks + r->ranks * r->ack_words;

    return (struct pp3_flights *)(void *)behind + rank;
}

/* What the rank itself knows of the round it reads in each entry. */
struct pp3_sight {
    uint64_t word, stage[PP3_BEFORE], released;
    uint32_t info;
};

/* The writing end; one thread at a time. */
struct pp3_recorder {
    struct pp3_ring *ring;
    struct pp3_flights *to;
    uint64_t count;
    struct pp3_sight sight[]; /* [rounds] */
};

/* For one rank's end of the ring, which outlives it. NULL: no memory, or no such rank. */
struct pp3_recorder *pp3_recorder_new(struct pp3_ring *r, uint32_t rank);
void pp3_recorder_free(struct pp3_recorder *f);

/* The rank has seen this word, at this tick, and its trace; it has not let go of the
 * round. info: 24 bits; submitted: where the rank knows it, else 0. */
void pp3_recorder_see(struct pp3_recorder *f, uint64_t word, uint32_t info,
                      const struct pp3_trace *trace, uint64_t submitted, uint64_t tick);

/* It lets go now: before its acknowledgement, behind which the entry may hold another
 * round. Of a round it never saw it is seen here how it stands. */
void pp3_recorder_leave(struct pp3_recorder *f, uint64_t ticket, uint64_t submitted);

/* It has let go: one record more. */
void pp3_recorder_add(struct pp3_recorder *f, uint64_t ticket);

/* For readers, in other processes too. Between two looks at the same records. */
void pp3_recorder_between(void);

/* One moment by both clocks: pp3_tick and pp3_now. */
void pp3_clock_pair(uint64_t *tick, uint64_t *ns);
/* 1: ticks are the counter's; 0: they are nanoseconds already. */
int pp3_clock_counts(void);
#endif
