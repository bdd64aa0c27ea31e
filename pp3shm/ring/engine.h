/* The engine's operations: claim, submit, cancel. Tables and edges: see ring.h.
 *
 * One thread of the engine's process calls them; only it writes what is private to it.
 */
#ifndef PP3_ENGINE_H
#define PP3_ENGINE_H

#include "ring.h"

/* Known dead only: its pidfd is readable. A silent rank is not a dead one. */
static inline int pp3_rank_gone(struct pp3_engine *g, uint32_t rank)
{
    uint32_t life = PP3_LOAD(&g->rank[rank].life, acquire); /* E3: its last reads */

    if (life == PP3_LIVING && g->rank[rank].pidfd >= 0 &&
        PP3_GONE(g->rank[rank].pidfd)) {
        PP3_STORE(&g->rank[rank].life, PP3_DEAD, release); /* it never goes back */
        return 1;
    }
    return life == PP3_DEAD;
}

static inline int pp3_behind(struct pp3_engine *g, int32_t rank, uint64_t ticket,
                             int error)
{
    g->behind = rank;
    g->behind_ticket = ticket;
    return error;
}

static inline int pp3_ranks_here(struct pp3_ring *r)
{
    struct pp3_engine *g = r->engine;

    for (uint32_t k = 0; !g->all_attached && k < r->ranks; k++)
        if (PP3_LOAD(&g->rank[k].life, acquire /* E7 */) == PP3_UNUSED)
            return pp3_behind(g, (int32_t)k, 0, -ENOTCONN);
    g->all_attached = 1;
    return 0;
}

/* 0 once every live rank has acknowledged ticket t of entry e. A cancelled round was
 * told to none. */
static inline int pp3_acknowledged(struct pp3_ring *r, uint32_t e, uint64_t t)
{
    struct pp3_engine *g = r->engine;

    if (g->streamed[e] == t)
        return pp3_behind(g, -1, t, -EBUSY);
    if (g->untold[e] == t)
        return 0;
    for (uint32_t k = 0; k < r->ranks; k++)
        if (PP3_LOAD(&r->acks[k * r->ack_words + e], acquire /* E3 */) < t &&
            !pp3_rank_gone(g, k))
            return pp3_behind(g, (int32_t)k, t, -EBUSY);
    return 0;
}

/* E5: the fenced proxy has let go, or can never touch anything again. */
static inline int pp3_came_back(struct pp3_ring *r, uint32_t page, uint64_t ticket,
                                uint32_t owner)
{
    return PP3_LOAD(&r->give[page], acquire /* E5 */) == ticket ||
           PP3_LOAD(&r->engine->owner[owner].life, acquire /* E5 */) == PP3_DEAD;
}

/* The page of a consumed round: free, or quarantined for its owner. Once per ticket,
 * for a claim that is refused later is tried again. */
static inline void pp3_dispose(struct pp3_ring *r, uint32_t e, uint64_t w)
{
    struct pp3_engine *g = r->engine;
    uint32_t page = pp3_page_of(g->claimed[e]), owner = pp3_owner_of(w);
    uint64_t t = pp3_ticket(w);

    if (g->disposed[e] == t)
        return;
    g->disposed[e] = t;
    /* owner 0: never taken, so nobody but the engine ever touched the page */
    if (pp3_state(w) != PP3_PUBLISHED && owner != 0 &&
        !pp3_came_back(r, page, t, owner)) {
        struct pp3_held *h = &g->quarantine[g->held_count++];
        h->page = page;
        h->owner = owner;
        h->ticket = t;
        /* before the claim's store takes the owner out of the state word: see
         * pp3_owner_add */
        PP3_ADD(&g->owner[owner].held, 1, relaxed);
    } else {
        g->free_page[g->free_count++] = page;
    }
    PP3_STEP(PP3_AT_DISPOSED);
}

static inline void pp3_reclaim(struct pp3_ring *r)
{
    struct pp3_engine *g = r->engine;

    for (uint32_t i = 0; i < g->held_count;) {
        struct pp3_held h = g->quarantine[i];
        if (!pp3_came_back(r, h.page, h.ticket, h.owner)) {
            i++;
            continue;
        }
        g->quarantine[i] = g->quarantine[--g->held_count];
        g->free_page[g->free_count++] = h.page;
        PP3_ADD(&g->owner[h.owner].held, UINT32_MAX /* -1 */, release); /* nothing is behind it but what is private */
    }
}

/* 0 when entry e may take its next round; its last page has been disposed of then.
 * The word is compared with the engine's own record before it steers anything. */
static inline int pp3_consumed(struct pp3_ring *r, uint32_t e)
{
    /* acquire, E2: publish before the next writer, when no rank lives to acknowledge */
    uint64_t w = PP3_LOAD(&r->entries[e].state, acquire);
    uint64_t own = r->engine->claimed[e];
    int error;

    if (own == 0)
        return w == 0 ? 0 : pp3_bad(r, w);
    if (pp3_ticket(w) != pp3_ticket(own) || pp3_page_of(w) != pp3_page_of(own))
        return pp3_bad(r, w);
    if (!pp3_resolved(w))
        return pp3_behind(r->engine, -1, pp3_ticket(w), -EAGAIN);
    error = pp3_acknowledged(r, e, pp3_ticket(w));
    if (error == 0)
        pp3_dispose(r, e, w);
    return error;
}

/* Failure is made ready before the round opens: only heads and ticket change. */
static inline void pp3_fill_failed(struct pp3_ring *r, uint32_t e, uint64_t t,
                                   const void *heads)
{
    for (uint32_t k = 0; k < PP3_CAUSES; k++) {
        uint8_t *to = r->failed + (e * PP3_CAUSES + k) * r->failed_stride;
        if (heads)
            PP3_COPY(to, (const uint8_t *)heads + k * r->head_bytes, r->head_bytes);
        PP3_STAMP(to, t);
    }
}

/* The engine's one claiming thread. heads: 3 x head_bytes for statuses 2, 7, 8, or
 * NULL. The new ticket, with its request (pp3_request_of) to be written; or a refusal,
 * which uses up no ticket. */
static inline int64_t pp3_claim(struct pp3_ring *r, const void *heads,
                                uint64_t deadline_ns)
{
    struct pp3_engine *g = r->engine;
    uint32_t e, page;
    uint64_t t;
    int error;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!g || deadline_ns == 0)
        return -EINVAL;
    t = g->next;
    e = (uint32_t)(t % r->rounds);
    if (t >= PP3_LAST_TICKET)
        return -EOVERFLOW;
    if ((error = pp3_ranks_here(r)) != 0 || (error = pp3_consumed(r, e)) != 0)
        return error;
    if (g->free_count == 0)
        pp3_reclaim(r);
    if (g->free_count == 0)
        return -ENOBUFS;
    page = g->free_page[--g->free_count];
    pp3_fill_failed(r, e, t, heads);
    PP3_STEP(PP3_AT_FILLED);
    PP3_STORE(&r->entries[e].deadline_ns, deadline_ns, relaxed); /* E6 orders it */
    g->claimed[e] = pp3_make(t, PP3_CLAIMED, page, 0);
    /* a plain store: no swap of anybody matches a resolved word */
    PP3_STORE(&r->entries[e].state, g->claimed[e], release /* E6 */);
    g->next = t + 1;
    PP3_STEP(PP3_AT_CLAIMED);
    PP3_FENCE(seq_cst); /* E8: see watch.h */
    if (deadline_ns < PP3_LOAD(&g->wake_at_ns, relaxed))
        PP3_WAKE_WATCHDOG(r);
    return (int64_t)t;
}

/* The engine: where the request of its round t is to be written, until it is rung. */
static inline uint8_t *pp3_request_of(struct pp3_ring *r, uint64_t t)
{
    uint64_t own = r->engine ? r->engine->claimed[t % r->rounds] : 0;

    if (!PP3_HERE(r) || t == 0 || pp3_ticket(own) != t)
        return 0;
    return r->request + pp3_page_of(own) * r->request_stride;
}

/* The engine: request written, round t may be taken. A proxy asleep on its link's
 * socket cannot also sleep on a futex, so the work bell is an eventfd; it is rung only
 * when somebody counted himself in, which costs a running proxy nothing.
 * E4: bell, fence, look at work_waiters here; work_waiters, fence, look at bell there
 * (pp3_work_prepare, then pp3_work_pending). One of the two sees the other. */
static inline int pp3_submit(struct pp3_ring *r, uint64_t t)
{
    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!r->engine || t == 0)
        return -EINVAL;
    if (pp3_ticket(r->engine->claimed[t % r->rounds]) != t)
        return -ESTALE;
    PP3_STEP(PP3_AT_WRITTEN);
    PP3_STORE(&pp3_entry_of(r, t)->bell, t, release /* E1 */);
    PP3_STEP(PP3_AT_RUNG);
    PP3_FENCE(seq_cst); /* E4 */
    if (PP3_LOAD(&r->header->work_waiters, relaxed) != 0) {
        PP3_ADD(&r->header->work_seq, 1, release);
        PP3_WAKE_WORK(r);
    }
    return 0;
}

/* The engine: ends a round it has told to no rank; nobody will acknowledge it. One that
 * a stream still has to submit waits for the stream's event first: -EBUSY. */
static inline int pp3_cancel(struct pp3_ring *r, uint64_t t)
{
    struct pp3_engine *g = r->engine;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!g || t == 0)
        return -EINVAL;
    if (pp3_ticket(g->claimed[t % r->rounds]) != t)
        return -ESTALE;
    if (g->streamed[t % r->rounds] == t)
        return pp3_behind(g, -1, t, -EBUSY);
    (void)pp3_fail(r, t, PP3_CANCELLED);
    g->untold[t % r->rounds] = t; /* whatever the outcome was */
    return 0;
}
#endif
