/* The proxy's operations: take, publish, give back, sweep. Tables and edges: see ring.h.
 *
 * One thread for each end calls them.
 */
#ifndef PP3_PROXY_H
#define PP3_PROXY_H

#include "ring.h"

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
        if (PP3_CAS(&pp3_entry_of(r, pp3_ticket(w))->state, &w, writing,
                    acquire /* E6, plain: the bell's load has it */,
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
#endif
