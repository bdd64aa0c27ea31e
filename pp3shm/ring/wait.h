/* Waiting, reading, releasing: what a rank does. Tables and edges: see ring.h. */
#ifndef PP3_WAIT_H
#define PP3_WAIT_H

#include "ring.h"

/* Where a resolved word's reply stands: 0 and the page's index, or the status and the
 * failed buffer's index (entry x 3 + cause). The word came from shared memory. */
static inline int pp3_read(struct pp3_ring *r, uint64_t word, uint32_t *index)
{
    uint32_t state = pp3_state(word);
    int cause = pp3_cause(state);

    if (pp3_page_of(word) >= r->pages || (state != PP3_PUBLISHED && cause < 0))
        return pp3_bad(r, word);
    if (state == PP3_PUBLISHED) {
        *index = pp3_page_of(word);
        return 0;
    }
    *index = (uint32_t)(pp3_ticket(word) % r->rounds) * PP3_CAUSES + (uint32_t)cause;
    return (int)(state - PP3_FAILED);
}

/* 1 resolved, 0 open, -ESTALE another ticket's, -EBADMSG. */
static inline int pp3_look(struct pp3_ring *r, uint64_t t, uint64_t w)
{
    uint32_t index;
    int status;

    if (pp3_ticket(w) != t)
        return -ESTALE; /* released already, counted dead, or never told */
    if (!pp3_resolved(w))
        return 0;
    status = pp3_read(r, w, &index);
    return status < 0 ? status : 1;
}

/* Spins until at latest `until`; as pp3_look. A clock costs as much as many looks. */
static inline int pp3_spin(struct pp3_ring *r, uint64_t t, uint64_t until,
                           uint64_t *word)
{
    struct pp3_entry *n = pp3_entry_of(r, t);
    uint64_t yielded = 0;

    for (;;) {
        uint64_t now;
        for (int i = 0; i < 16; i++) {
            int look;
            *word = PP3_LOAD(&n->state, acquire /* E2, E6 */);
            if ((look = pp3_look(r, t, *word)) != 0)
                return look;
            if (until == 0)
                return 0;
            PP3_PAUSE();
        }
        if ((now = PP3_NOW()) >= until)
            return 0;
        yielded = yielded ? yielded : now;
        pp3_spin_on(&yielded, now);
    }
}

/* A slice ran out, and the word is resolved all the same. Unless its wake is on the way
 * (the resolver may stand between swap and wake, or be dead), a wake was lost. */
static inline void pp3_note_late(struct pp3_ring *r, struct pp3_entry *n, uint32_t seen)
{
    uint64_t until = PP3_NOW() + 20000; /* 20 us: swap to wake takes far less */

    while (PP3_LOAD(&n->seq, relaxed) == seen) {
        if (PP3_NOW() >= until) {
            PP3_COUNT(r, PP3_COUNT_LOST_WAKES);
            return;
        }
        PP3_PAUSE();
    }
}

/* The sleeping half of pp3_wait; the caller is counted in entry n's waiters. */
static inline int pp3_sleep(struct pp3_ring *r, uint64_t t, uint64_t limit_ns,
                            uint64_t *word)
{
    struct pp3_entry *n = pp3_entry_of(r, t);
    uint32_t seen = 0;
    int ran_out = 0;

    for (;;) {
        /* seq before state, and acquire: relaxed loses wakes */
        uint32_t seq = PP3_LOAD(&n->seq, acquire /* E4 */);
        uint64_t now, deadline;
        int look;

        *word = PP3_LOAD(&n->state, acquire /* E2 */);
        if ((look = pp3_look(r, t, *word)) != 0) {
            if (look == 1 && ran_out && seq == seen)
                pp3_note_late(r, n, seen);
            return look;
        }
        now = PP3_NOW();
        deadline = PP3_LOAD(&n->deadline_ns, relaxed); /* E6 orders it */
        if (now >= deadline) { /* helping: nobody else may be alive to do it */
            *word = pp3_fail(r, t, PP3_EXPIRED);
            return pp3_look(r, t, *word);
        }
        if (now >= limit_ns)
            return -ETIMEDOUT; /* own patience fails no round */
        seen = seq;
        PP3_COUNT(r, PP3_COUNT_SLEPT);
        ran_out = PP3_FUTEX_WAIT(
            &n->seq, seq,
            pp3_least(pp3_least(deadline, limit_ns), now + PP3_SLICE_NS)) == 0;
        PP3_STEP(PP3_AT_WAITED); /* returning is no acquire: look again */
    }
}

/* A rank that was told t: 0 and the resolved word (pp3_read says where it points), or
 * -ESTALE, -ETIMEDOUT at limit_ns, -EBADMSG. Spins up to spin_ns, then sleeps. */
static inline int pp3_wait(struct pp3_ring *r, uint64_t t, uint64_t limit_ns,
                           uint64_t spin_ns, uint64_t *word)
{
    struct pp3_entry *n = pp3_entry_of(r, t);
    uint64_t until = 0;
    int look;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (t == 0)
        return -EINVAL;
    if ((look = pp3_spin(r, t, 0, word)) == 0 && spin_ns != 0) {
        uint64_t now = PP3_NOW();
        until = now + pp3_least(spin_ns, limit_ns > now ? limit_ns - now : 0);
        look = pp3_spin(r, t,
                        pp3_least(until, PP3_LOAD(&n->deadline_ns, relaxed)), word);
    }
    if (look == 0) {
        PP3_ADD(&n->waiters, 1, relaxed); /* the fence orders it */
        PP3_FENCE(seq_cst);               /* E4 */
        PP3_STEP(PP3_AT_COUNTED);
        look = pp3_sleep(r, t, limit_ns, word);
        PP3_ADD(&n->waiters, UINT32_MAX /* -1 */, relaxed);
    }
    return look == 1 ? 0 : look;
}

/* A rank has read round t for the last time, or will not read it; a GPU that reads it
 * is past the event of its last copy or kernel. Releasing again changes nothing. */
static inline int pp3_release(struct pp3_ring *r, uint32_t rank, uint64_t t)
{
    PP3_A64 *ack;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (rank >= r->ranks || t == 0 || !r->acks)
        return -EINVAL;
    ack = &r->acks[rank * r->ack_words + t % r->rounds];
    if (PP3_LOAD(ack, relaxed) >= t) /* only this rank writes it */
        return 0;
    /* relaxed: a check of the argument; it decides nothing between processes */
    if (pp3_ticket(PP3_LOAD(&pp3_entry_of(r, t)->state, relaxed)) != t)
        return -ESTALE;
    PP3_STORE(ack, t, release /* E3 */);
    PP3_STEP(PP3_AT_RELEASED);
    return 0;
}
#endif
