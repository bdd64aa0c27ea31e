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
 *       owner_dead: swap life           claim: load life             touch before the next
 *                                                                    writer
 * E6    claim: store state              any later word of the ticket failed buffers and
 *                                                                    deadline before use
 * E6 holds through a release sequence: every change between is an RMW. Never put a
 * store into that chain.
 *
 * What a fence of the round does not do: stop bytes. A fenced proxy may still write the
 * page and read the request, so both wait in quarantine until it lets go or is dead.
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
    PP3_ADD(&n->seq, 1, release);
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

/* ---- the engine: one thread ------------------------------------------------------ */

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
        if (PP3_LOAD(&g->rank[k].life, acquire) == PP3_UNUSED)
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
        PP3_ADD(&g->owner[h.owner].held, UINT32_MAX /* -1 */, release);
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
    PP3_FENCE(seq_cst); /* with the watchdog's, around its wake_at_ns: see watch.h */
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
        return -EBUSY;
    (void)pp3_fail(r, t, PP3_CANCELLED);
    g->untold[t % r->rounds] = t; /* whatever the outcome was */
    return 0;
}

/* ---- the proxy: one thread per end ----------------------------------------------- */

/* 1 and the word of the next round that may be taken, 0 none, -EBADMSG. Tickets are
 * dense and taken in order: the worker refuses rounds that go back. Bounded, whatever
 * the words say: one jump brings the cursor within a lap of any ticket seen. */
static inline int pp3_next(struct pp3_ring *r, uint64_t *word)
{
    for (uint32_t looks = 0; looks < 4 * r->rounds; looks++) {
        uint64_t t = r->cursor + 1;
        struct pp3_entry *n = pp3_entry_of(r, t);
        uint64_t w = PP3_LOAD(&n->state, acquire); /* E6 */

        if (pp3_ticket(w) < t)
            return 0; /* nothing later exists */
        if (pp3_page_of(w) >= r->pages ||
            pp3_ticket(w) % r->rounds != t % r->rounds)
            return pp3_bad(r, w);
        if (pp3_ticket(w) > t) {
            /* rounds up to a lap before it have been consumed */
            r->cursor = pp3_ticket(w) - r->rounds;
        } else if (pp3_state(w) != PP3_CLAIMED) {
            r->cursor = t; /* resolved, or another's */
        } else if (PP3_LOAD(&n->bell, acquire /* E1 */) != t) {
            return 0;
        } else {
            *word = w;
            return 1;
        }
    }
    return 0;
}

/* 1 and the word of the round now this proxy's, 0 none, -errno. Page and request come
 * from that word alone, and nothing of either is touched before the swap. */
static inline int pp3_take(struct pp3_ring *r, uint64_t *mine)
{
    uint64_t w;
    int found;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (r->owner == 0)
        return -EINVAL;
    while ((found = pp3_next(r, &w)) == 1) {
        uint64_t writing = pp3_with(w, PP3_WRITING, r->owner);
        PP3_STEP(PP3_AT_TAKING);
        if (PP3_CAS(&pp3_entry_of(r, pp3_ticket(w))->state, &w, writing, acquire,
                    relaxed)) { /* lost: looked at again */
            PP3_STEP(PP3_AT_TAKEN);
            r->cursor = pp3_ticket(writing);
            *mine = writing;
            return 1;
        }
    }
    return found;
}

/* The page and the request of a word; NULL for one out of bounds. */
static inline uint8_t *pp3_page(struct pp3_ring *r, uint64_t word)
{
    uint32_t page = pp3_page_of(word);

    return PP3_HERE(r) && page < r->pages ? r->page + page * r->page_stride : 0;
}
static inline uint8_t *pp3_request(struct pp3_ring *r, uint64_t word)
{
    uint32_t page = pp3_page_of(word);

    return PP3_HERE(r) && page < r->pages ? r->request + page * r->request_stride : 0;
}

/* The owner of a fenced round has touched page and request for the last time; a send
 * straight from the request has completed before. */
static inline void pp3_give_back(struct pp3_ring *r, uint64_t mine)
{
    if (!PP3_HERE(r) || pp3_page_of(mine) >= r->pages)
        return;
    PP3_STORE(&r->give[pp3_page_of(mine)], pp3_ticket(mine), release /* E5 */);
    PP3_STEP(PP3_AT_GIVEN);
}

/* The caller took this round and has filled its page; a refused reply is published too,
 * with failed statuses in the page. 0, or -ESTALE: the round was failed meanwhile, and
 * page and request have been given back. */
static inline int pp3_publish(struct pp3_ring *r, uint64_t mine)
{
    struct pp3_entry *n = pp3_entry_of(r, pp3_ticket(mine));
    uint64_t seen = mine;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (pp3_state(mine) != PP3_WRITING || pp3_owner_of(mine) != r->owner)
        return -EINVAL;
    PP3_STEP(PP3_AT_PUBLISHING);
    if (PP3_CAS(&n->state, &seen, pp3_with(mine, PP3_PUBLISHED, r->owner),
                release /* E2 */, relaxed /* nothing is read after losing */)) {
        PP3_STEP(PP3_AT_PUBLISHED);
        pp3_woke(n);
        return 0;
    }
    PP3_STEP(PP3_AT_FENCED);
    PP3_COUNT(r, PP3_COUNT_FENCED);
    pp3_give_back(r, mine);
    return -ESTALE;
}

/* Every turn of the proxy's loop, at reconnect and at exit: gives back each round it
 * took that has been failed meanwhile, keeps the others in order, returns their count.*/
static inline int pp3_sweep(struct pp3_ring *r, uint64_t *taken, int n)
{
    int kept = 0;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    for (int i = 0; i < n; i++) {
        uint64_t mine = taken[i];
        /* relaxed: only this thread's own words are looked for */
        if (PP3_LOAD(&pp3_entry_of(r, pp3_ticket(mine))->state, relaxed) == mine)
            taken[kept++] = mine;
        else
            pp3_give_back(r, mine);
    }
    return kept;
}

/* The proxy before it sleeps: prepare; if pending, take; else poll the bell's fd with
 * the link's, never longer than a slice; done. E4: see pp3_submit. */
static inline void pp3_work_prepare(struct pp3_ring *r)
{
    if (!PP3_HERE(r))
        return;
    PP3_ADD(&r->header->work_waiters, 1, relaxed); /* the fence orders it */
    PP3_FENCE(seq_cst);                            /* E4 */
}

/* 1: take would return a round or an error. */
static inline int pp3_work_pending(struct pp3_ring *r)
{
    uint64_t word;

    return !PP3_HERE(r) || r->owner == 0 || pp3_next(r, &word) != 0;
}

/* ---- whoever waits ---------------------------------------------------------------- */

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

static inline uint64_t pp3_least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Spins until at latest `until`; as pp3_look. A clock costs as much as many looks. */
static inline int pp3_spin(struct pp3_ring *r, uint64_t t, uint64_t until,
                           uint64_t *word)
{
    struct pp3_entry *n = pp3_entry_of(r, t);

    for (;;) {
        for (int i = 0; i < 16; i++) {
            int look;
            *word = PP3_LOAD(&n->state, acquire /* E2, E6 */);
            if ((look = pp3_look(r, t, *word)) != 0)
                return look;
            if (until == 0)
                return 0;
            PP3_PAUSE();
        }
        if (PP3_NOW() >= until)
            return 0;
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

#ifndef PP3_MACHINE /* ring.c: not part of the protocol's text */
const char *pp3_shape_fill(struct pp3_shape *shape);
void pp3_shape_places(const struct pp3_shape *shape, struct pp3_places *places);
void pp3_record_fill(struct pp3_record *record, const struct pp3_shape *shape);
uint64_t pp3_record_magic(void);
uint64_t pp3_magic(void);
uint64_t pp3_region_magic(const uint8_t *control);
void pp3_region_shape(const uint8_t *control, struct pp3_shape *shape);
uint8_t *pp3_map(int fd, uint64_t bytes, int writable, int *error);
void pp3_unmap(uint8_t *address, uint64_t bytes, unsigned forks);
unsigned pp3_fork_count(void);
struct pp3_ring *pp3_ring_create(const struct pp3_shape *shape,
                                 const struct pp3_parts *parts,
                                 const uint8_t *templates, int *error);
struct pp3_ring *pp3_ring_attach(const struct pp3_record *record,
                                 const struct pp3_parts *parts, int bell_fd,
                                 int *error);
void pp3_ring_free(struct pp3_ring *r);
int pp3_here(const struct pp3_ring *r);
uint64_t pp3_bad_word(struct pp3_ring *r);
int64_t pp3_step(struct pp3_ring *r, const void *request, uint32_t bytes,
                 const void *heads, uint64_t deadline_ns);
int pp3_stream_hold(struct pp3_ring *r, uint64_t t);
int pp3_stream_done(struct pp3_ring *r, uint64_t t);
void pp3_why(struct pp3_ring *r, struct pp3_why *why);
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
