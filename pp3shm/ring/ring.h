/* The ring of rounds: the protocol, every operation of it, once.
 *
 * Entry t % rounds is the home of round t from its request to its last reader. Its
 * state word is the whole truth: ticket:40 | state:4 | page:12 | owner:8.
 *
 * state      left by              to         verb
 * FREE       engine               CLAIMED    claim (first lap only)
 * CLAIMED    proxy                WRITING    take, once the bell holds the ticket
 *            anyone past deadline FAILED+2   resolve      engine  FAILED+8  cancel
 * WRITING    its owner            PUBLISHED  publish, after checking and copying
 *            anyone past deadline FAILED+2   resolve
 *            watchdog             FAILED+7   resolve, the owner being dead
 *            engine, its owner    FAILED+8   cancel; resolve, the request being none
 * PUBLISHED, engine               CLAIMED    claim of t + rounds: every live rank has
 * FAILED+s                                   acknowledged t, and the page is given back
 *                                            or stays behind in quarantine
 * Submitted (bell == t) and consumed (all acknowledged) are facts, not states: no
 * transition leaves a duty to whoever made it, who may be killed right behind it.
 *
 * edge  released by                     acquired by                  orders
 * E1    submit: store bell              take: load bell              request before the
 *                                                                    proxy reads it
 * E2    publish, resolve: swap state    wait, resolve: load state    reply before a rank
 *                                                                    reads it
 * E3    release: store own ack word     claim: load every live ack   a rank's reads before
 *                                                                    the next writer
 * E4    seq_cst fences around state or bell, and waiters             no wake-up is lost
 * E5    give_back: store give[page]     claim: load give[page]       a fenced proxy's last
 *       owner_gone: swap life           claim: load life             touch before the next
 *                                                                    writer
 * E6    claim: store state              any later word of the ticket failed buffers and
 *                                                                    deadline before use
 * E7    rank_attach: store life         claim, watchdog: load life   a rank's pidfd before
 *                                                                    it is polled
 * E8    seq_cst fences around state or deadline, and wake_at_ns      no deadline is slept
 *                                                                    over
 * E6 holds through a release sequence: every change between is an RMW. Never put a
 * store into that chain.
 *
 * What a fence of the round does not do: stop bytes. A fenced proxy may still write the
 * page and read the request, so both wait in quarantine until it lets go or is dead.
 *
 * The operations stand in engine.h, proxy.h, wait.h (ranks) and watch.h (the watchdog),
 * which this header includes; what all of them share is here.
 *
 * Rules no checker sees: non-temporal stores need an sfence before publish; copies by a
 * GPU are ordered by its events; nothing but this text touches these words.
 */
#ifndef PP3_RING_H
#define PP3_RING_H

#include "words.h"

static inline struct pp3_entry *pp3_entry_of(struct pp3_ring *r, uint64_t ticket)
{
    return &r->entries[ticket % r->rounds];
}

static inline uint64_t pp3_least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Keeps a word that steers nowhere for the error's text. */
static inline int pp3_bad(struct pp3_ring *r, uint64_t word)
{
    PP3_STORE(&r->bad_word, word, relaxed); /* read by whoever got the error */
    return -EBADMSG;
}

/* E4, right after the swap that resolved the entry. The fence stands between the swap
 * and the look at waiters; the sleeper's stands between its count and its look at the
 * state. So one of the two sees the other; an acq_rel swap alone is no full fence on
 * ARM. seq is raised before the wake, so a sleeper between look and sleep goes on. */
static inline void pp3_woke(struct pp3_entry *n)
{
    PP3_STEP(PP3_AT_WOKE);
    PP3_FENCE(seq_cst);                       /* E4 */
    if (PP3_LOAD(&n->waiters, relaxed) == 0)  /* ordered by the fence alone */
        return;
    PP3_ADD(&n->seq, 1, release); /* E4: the sleeper's acquire of it sees the swap */
    PP3_FUTEX_WAKE(&n->seq);
}

static inline void pp3_count_failure(struct pp3_ring *r, uint32_t status)
{
    PP3_COUNT(r, status == PP3_EXPIRED    ? PP3_COUNT_EXPIRED
                 : status == PP3_ORPHANED ? PP3_COUNT_ORPHANED
                                          : PP3_COUNT_CANCELLED);
}

/* Anyone with cause: makes an open round t end with a status, and returns the word it
 * ended with: its own, the one that beat it, or that of another ticket. */
static inline uint64_t pp3_fail(struct pp3_ring *r, uint64_t t, uint32_t status)
{
    struct pp3_entry *n = pp3_entry_of(r, t);
    uint64_t w = PP3_LOAD(&n->state, acquire); /* E2: its page may be read next */

    while (pp3_ticket(w) == t && !pp3_resolved(w)) {
        /* page and owner stay in the word: they say what has to be quarantined */
        uint64_t failed = pp3_with(w, PP3_FAILED + status, pp3_owner_of(w));
        PP3_STEP(PP3_AT_FAILING);
        /* lost: acquire, for the word that beat us may be PUBLISHED; C11 wants the
         * winning order no weaker, hence acq_rel */
        if (PP3_CAS(&n->state, &w, failed, acq_rel /* E2 */, acquire /* E2 */)) {
            PP3_STEP(PP3_AT_FAILED);
            pp3_woke(n);
            pp3_count_failure(r, status);
            return failed;
        }
    }
    return w;
}

/* As pp3_fail, for callers from outside: -ESTALE if the entry holds another ticket. */
static inline int pp3_resolve(struct pp3_ring *r, uint64_t t, uint32_t status,
                              uint64_t *word)
{
    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (t == 0 || pp3_cause(PP3_FAILED + status) < 0)
        return -EINVAL;
    *word = pp3_fail(r, t, status);
    return pp3_ticket(*word) == t ? 0 : -ESTALE;
}

#include "engine.h"
#include "proxy.h"
#include "wait.h"
#include "watch.h"

#ifndef PP3_MACHINE /* ring.c: not part of the protocol's text */
/* For whoever reads a copy of a control segment that is not its own. */
#define PP3_COUNTERS_AT offsetof(struct pp3_header, counters)
#define PP3_ENTRIES_AT sizeof(struct pp3_header)
#define PP3_ENTRY_BYTES sizeof(struct pp3_entry)
const char *pp3_shape_fill(struct pp3_shape *shape);
void pp3_shape_places(const struct pp3_shape *shape, struct pp3_places *places);
void pp3_record_fill(struct pp3_record *record, const struct pp3_shape *shape);
uint64_t pp3_record_magic(void);
uint64_t pp3_magic(void);
uint64_t pp3_region_magic(const uint8_t *control);
void pp3_region_shape(const uint8_t *control, struct pp3_shape *shape);
struct pp3_ring *pp3_ring_create(const struct pp3_shape *shape,
                                 const struct pp3_parts *parts,
                                 const uint8_t *templates, int *error);
struct pp3_ring *pp3_ring_attach(const struct pp3_record *record,
                                 const struct pp3_parts *parts, int bell_fd,
                                 int *error);
void pp3_ring_free(struct pp3_ring *r);
int pp3_here(const struct pp3_ring *r);
uint64_t pp3_bad_word(struct pp3_ring *r);
int64_t pp3_ask(struct pp3_ring *r, const void *heads, uint64_t deadline_ns);
int64_t pp3_step(struct pp3_ring *r, const void *request, uint32_t bytes,
                 const void *heads, uint64_t deadline_ns);
int pp3_stream_hold(struct pp3_ring *r, uint64_t t);
int pp3_stream_done(struct pp3_ring *r, uint64_t t);
void pp3_why(struct pp3_ring *r, struct pp3_why *why);
int pp3_oldest(struct pp3_ring *r, struct pp3_why *why);
int pp3_rank_pidfd(struct pp3_ring *r, uint32_t rank);
int pp3_rank_attach(struct pp3_ring *r, uint32_t rank, int pidfd);
int pp3_rank_dead(struct pp3_ring *r, uint32_t rank);
int pp3_owner_add_thread(struct pp3_ring *r);
int pp3_owner_dead(struct pp3_ring *r, uint32_t owner);
int pp3_skip_tickets(struct pp3_ring *r, uint64_t next);
uint64_t pp3_state_offset(struct pp3_ring *r, uint64_t t);
uint64_t pp3_bell_offset(struct pp3_ring *r, uint64_t t);
void pp3_work_done(struct pp3_ring *r);
int pp3_bell_fd(struct pp3_ring *r);
int pp3_word(struct pp3_ring *r, uint64_t t, uint64_t *word);
#endif
#endif
