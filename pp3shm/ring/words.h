/* The words and structs of a region: what stands where, and who may write it.
 *
 * All zero is the valid initial state. Offsets only, never pointers. A line is 128
 * bytes, by the format and not by the compiler: two 64-byte lines that a prefetcher
 * pairs, and one line of those machines that have longer ones.
 */
#ifndef PP3_WORDS_H
#define PP3_WORDS_H

#include "atomics.h"

#define PP3_ABI 2u
#define PP3_LINE 128u
#define PP3_MAX_ROUNDS 2048u
#define PP3_MAX_PAGES 4096u /* 12 bits of the state word */
#ifndef PP3_MACHINE         /* a checker has smaller ones of its own */
#define PP3_COUNTERS 64u
#define PP3_NOTE_WORDS 62u
#define PP3_MAX_RANKS 64u
#define PP3_MAX_OWNERS 255u /* 8 bits, and 0 is nobody */
#define PP3_TRIES 64        /* of a reader of a seqlock, whose writes are rare */
#endif
#define PP3_LAST_TICKET ((UINT64_C(1) << 40) - 1)
#define PP3_SLICE_NS UINT64_C(10000000) /* no sleep is longer: 10 ms */

enum pp3_state { PP3_FREE = 0, PP3_CLAIMED = 1, PP3_WRITING = 2, PP3_PUBLISHED = 3,
                 PP3_FAILED = 7 /* plus a status 1..8 */ };

/* The statuses the core itself can give; each has its failed buffer per entry. */
enum pp3_status { PP3_EXPIRED = 2, PP3_ORPHANED = 7, PP3_CANCELLED = 8 };
#define PP3_CAUSES 3u

/* Counters of the ring itself; those below PP3_COUNT_RING_FIRST are the caller's. */
enum pp3_count_index {
    PP3_COUNT_RING_FIRST = 56,
    PP3_COUNT_EXPIRED = 56,    /* rounds failed at their deadline */
    PP3_COUNT_ORPHANED = 57,   /* rounds failed because their owner was dead */
    PP3_COUNT_CANCELLED = 58,
    PP3_COUNT_FENCED = 59,     /* publications refused: the round had been failed */
    PP3_COUNT_SLEPT = 60,      /* futex sleeps */
    PP3_COUNT_LOST_WAKES = 61, /* sleeps that ran out beside a resolved word, unwoken */
    PP3_COUNT_QUARANTINED = 62, /* pages there now; not a count, and the engine's alone */
};

/* Crash points, in the order of a round's life. */
enum pp3_point {
    PP3_AT_DISPOSED = 1, PP3_AT_FILLED, PP3_AT_CLAIMED, PP3_AT_WRITTEN, PP3_AT_RUNG,
    PP3_AT_TAKING, PP3_AT_TAKEN, PP3_AT_PUBLISHING, PP3_AT_PUBLISHED, PP3_AT_FENCED,
    PP3_AT_GIVEN, PP3_AT_FAILING, PP3_AT_FAILED, PP3_AT_WOKE, PP3_AT_COUNTED,
    PP3_AT_WAITED, PP3_AT_RELEASED, PP3_AT_NOTING,
};

/* ticket:40 | state:4 | page:12 | owner:8. The ticket is on top, so that a GPU stream
 * can wait for `word >= ticket << 24 | PUBLISHED << 20`. */
static inline uint64_t pp3_make(uint64_t ticket, uint32_t state, uint32_t page,
                                uint32_t owner)
{
    return ticket << 24 | (uint64_t)state << 20 | (uint64_t)page << 8 | owner;
}
static inline uint64_t pp3_ticket(uint64_t w) { return w >> 24; }
static inline uint32_t pp3_state(uint64_t w) { return (uint32_t)(w >> 20) & 15u; }
static inline uint32_t pp3_page_of(uint64_t w) { return (uint32_t)(w >> 8) & 4095u; }
static inline uint32_t pp3_owner_of(uint64_t w) { return (uint32_t)w & 255u; }
static inline uint64_t pp3_with(uint64_t w, uint32_t state, uint32_t owner)
{
    return pp3_make(pp3_ticket(w), state, pp3_page_of(w), owner);
}
static inline int pp3_resolved(uint64_t w)
{
    return pp3_state(w) == PP3_PUBLISHED || pp3_state(w) > PP3_FAILED;
}
/* Which failed buffer of an entry: 0, 1, 2, or -1 for a state the core never gives. */
static inline int pp3_cause(uint32_t state)
{
    return state == PP3_FAILED + PP3_EXPIRED    ? 0
           : state == PP3_FAILED + PP3_ORPHANED  ? 1
           : state == PP3_FAILED + PP3_CANCELLED ? 2
                                                 : -1;
}

/* One round, from its claim to its last reader. The first line is what engine, proxy
 * and a spinning rank look at; sleepers count themselves in the second, where they
 * disturb nobody. */
struct pp3_entry {
    PP3_A64 state;       /* engine: store at claim; all others: CAS */
    PP3_A64 bell;        /* ticket submitted last: engine or its stream */
    PP3_A64 deadline_ns; /* CLOCK_MONOTONIC; engine, before the claim's store */
    uint8_t trace[40];   /* five words of the proxy's, for people: trace.h */
    uint8_t pad1[PP3_LINE - 64];
    PP3_A32 seq;         /* futex word: whoever resolves, RMW */
    PP3_A32 waiters;     /* too high after a kill, never too low: RMW */
    uint8_t pad2[PP3_LINE - 8];
};

/* What a region is; the same words in its header and in every attach record. */
struct pp3_shape {
    uint32_t abi, byte_order;
    uint32_t rounds, pages, ranks, page_bytes, request_bytes, failed_bytes, head_bytes;
    uint32_t slots, max_positions, zero;
    uint64_t bytes[5]; /* control, slots, pages, failed, acks */
    uint8_t layout_id[32], epoch[16];
};

struct pp3_header {
    PP3_A64 magic; /* stored last, read first: a half-made region has none */
    struct pp3_shape shape;
    uint8_t pad1[2 * PP3_LINE - 8 - sizeof(struct pp3_shape)];
    PP3_A32 work_seq, work_waiters; /* engine / proxies; see pp3_submit */
    uint8_t pad2[PP3_LINE - 8];
    PP3_A64 counters[PP3_COUNTERS];
    /* Bytes of the caller's, last words of a proxy: a sequence lock of one writer, the
     * live proxy; odd while it is being written. */
    PP3_A64 note_version, note_bytes, note[PP3_NOTE_WORDS];
    uint8_t pad3[PP3_LINE];
};

/* What somebody who attaches is told; every capacity is taken from here, never again
 * from the shared header. */
struct pp3_record {
    uint64_t magic;
    struct pp3_shape shape;
    uint32_t role, owner, rank, zero;
    uint64_t clock_ns; /* CLOCK_MONOTONIC as it was sent: one time namespace, or none */
};

struct pp3_held { uint32_t page, owner; uint64_t ticket; };
struct pp3_rank { PP3_A32 life; int pidfd; };
struct pp3_owner { PP3_A32 life, held; /* pages of it in quarantine */ };
enum pp3_life { PP3_UNUSED = 0, PP3_LIVING = 1, PP3_DEAD = 2 };

/* Private to the engine's process. One thread claims; what others touch is atomic. */
struct pp3_engine {
    uint64_t next;
    uint64_t *claimed;  /* [rounds] the word as claimed, 0: never */
    uint64_t *disposed; /* [rounds] ticket whose page went to free or quarantine */
    uint64_t *untold;   /* [rounds] ticket cancelled before any rank knew it */
    uint64_t *streamed; /* [rounds] ticket that a GPU stream still has to submit */
    uint32_t *free_page;
    struct pp3_held *quarantine;
    uint32_t free_count, held_count;
    int32_t behind;      /* why the last claim was refused: a rank, or -1 */
    uint64_t behind_ticket;
    uint64_t *asked_ns;  /* [pages] when it was last claimed, for people only */
    uint32_t told_count; /* of held_count, what the region's counter says */
    uint32_t all_attached;
    int nudge_fd;        /* eventfd the watchdog sleeps on */
    PP3_A64 wake_at_ns;  /* its next wake; 0: it is awake, or there is none */
    PP3_A32 last_owner;
    struct pp3_owner owner[PP3_MAX_OWNERS + 1];
    struct pp3_rank rank[PP3_MAX_RANKS];
    struct pp3_slot_mirror *slot; /* [slots] what the engine wrote last */
};

/* One end of a region in one process: the local attach record and private state. */
struct pp3_ring {
    uint32_t rounds, pages, ranks, page_bytes, request_bytes, failed_bytes, head_bytes;
    uint32_t slots, max_positions, owner, forks;
    uint64_t page_stride, request_stride, failed_stride, slot_stride, ack_words;
    struct pp3_header *header;
    struct pp3_entry *entries;
    PP3_A64 *give;  /* [pages] ticket whose holder has let go of page and request */
    PP3_A64 *acks;  /* [ranks][ack_words] last ticket released, per entry */
    uint8_t *page, *request, *failed, *slot; /* NULL where not mapped */
    int bell_fd;
    uint64_t cursor; /* proxy: the last ticket passed; one thread */
    struct pp3_engine *engine;
    PP3_A64 bad_word;
};

/* Why the last claim was refused, or (pp3_oldest) who holds the oldest round. */
struct pp3_why {
    int32_t rank;    /* EBUSY, ENOTCONN: the rank; -1 a GPU stream */
    uint32_t quarantined, free_pages, owners; /* owners: how many hold pages */
    uint64_t ticket; /* EAGAIN, EBUSY: the round still in use */
    uint64_t asked_ns; /* when that was claimed */
    uint64_t held_ticket, held_asked_ns; /* the oldest round in quarantine, 0: none */
    uint32_t held_owner;
    uint8_t owner[256]; /* pages in quarantine for each owner id, at most 255 */
};

/* Where things stand in the segments of a shape, in bytes. */
struct pp3_places {
    uint64_t page_stride, request_start, request_stride, failed_stride, slot_stride;
    uint64_t ack_stride;
};

struct pp3_parts { uint8_t *control, *slots, *pages, *failed, *acks; };

#ifndef PP3_MACHINE
/* Statistics only: they order nothing, and no decision is taken by them. */
static inline void pp3_count(struct pp3_ring *r, uint32_t index, uint64_t n)
{
    if (PP3_HERE(r) && index < PP3_COUNTERS)
        PP3_ADD(&r->header->counters[index], n, relaxed);
}
static inline uint64_t pp3_counter(struct pp3_ring *r, uint32_t index)
{
    if (!PP3_HERE(r) || index >= PP3_COUNTERS)
        return 0;
    return PP3_LOAD(&r->header->counters[index], relaxed);
}
#endif
#endif
