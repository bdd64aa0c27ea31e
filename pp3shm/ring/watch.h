/* Deadlines and deaths: the watchdog's part of the protocol, and the table of owners.
 *
 * The watchdog is a C thread of the engine's process. Before it sleeps it announces in
 * wake_at_ns until when, fence, then looks at every entry; claim stores the state,
 * fence, then looks at wake_at_ns. So either the watchdog sees the new deadline, or the
 * claim sees the announcement and nudges it if its deadline is earlier.
 */
#ifndef PP3_WATCH_H
#define PP3_WATCH_H

#include "ring.h"

#define PP3_IDLE_NS UINT64_C(100000000) /* a tick when no round is open: 100 ms */

/* Fails every round past its deadline; returns when to look again. `now` is an argument
 * so that a test may be the clock. */
static inline uint64_t pp3_expire(struct pp3_ring *r, uint64_t now)
{
    uint64_t next = now + PP3_IDLE_NS;

    for (uint32_t e = 0; e < r->rounds; e++) {
        uint64_t w = PP3_LOAD(&r->entries[e].state, acquire); /* E2, E6 */
        uint64_t deadline;

        if (w == 0 || pp3_resolved(w) || pp3_ticket(w) % r->rounds != e)
            continue;
        /* may be a later round's: then the swap fails, for the ticket is in the word */
        deadline = PP3_LOAD(&r->entries[e].deadline_ns, relaxed);
        if (now >= deadline) {
            (void)pp3_fail(r, pp3_ticket(w), PP3_EXPIRED);
        } else {
            next = pp3_least(next, pp3_least(deadline, now + PP3_SLICE_NS));
        }
    }
    return next;
}

/* The watchdog before it sleeps: announce, fence, look. Returns when to look again. */
static inline uint64_t pp3_watch_look(struct pp3_ring *r, uint64_t now)
{
    PP3_STORE(&r->engine->wake_at_ns, now + PP3_IDLE_NS, relaxed); /* see the fence */
    PP3_FENCE(seq_cst); /* E8, with the claim's */
    return pp3_expire(r, now);
}

/* It sleeps until `next`, which is no later than announced: a claim may only be nudged
 * less. Or, 0, it is awake: what is claimed now is looked at before it sleeps. */
static inline void pp3_watch_sleeps(struct pp3_ring *r, uint64_t next)
{
    PP3_STORE(&r->engine->wake_at_ns, next, relaxed); /* the look's fence orders it */
}

/* Owner ids are 1..255. One is given again only when it is dead and neither a state
 * word nor a quarantine record names it. State words are looked at before `held`: the
 * claim that takes the id out of a word has raised `held` before (acquire of its store
 * pairs), and lowers it only when the page is free. A dead owner enters no new word. */
static inline int pp3_named(struct pp3_ring *r, uint32_t id)
{
    for (uint32_t e = 0; e < r->rounds; e++)
        if (pp3_owner_of(PP3_LOAD(&r->entries[e].state, acquire)) == id)
            return 1;
    return PP3_LOAD(&r->engine->owner[id].held, acquire) != 0;
}

/* A new living owner: its id, or -EUSERS when every id is living or named. */
static inline int pp3_owner_add(struct pp3_ring *r)
{
    struct pp3_engine *g = r->engine;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!g)
        return -EINVAL;
    for (uint32_t i = 0; i < PP3_MAX_OWNERS; i++) {
        /* going round, so that an id stays unused as long as it can */
        uint32_t id = PP3_ADD(&g->last_owner, 1, relaxed) % PP3_MAX_OWNERS + 1;
        uint32_t life = PP3_LOAD(&g->owner[id].life, acquire);

        if (life == PP3_LIVING || (life == PP3_DEAD && pp3_named(r, id)))
            continue;
        if (PP3_CAS(&g->owner[id].life, &life, PP3_LIVING, acq_rel, relaxed))
            return (int)id;
    }
    return -EUSERS;
}

/* Somebody died, perhaps between a swap and its wake. */
static inline void pp3_wake_all(struct pp3_ring *r)
{
    for (uint32_t e = 0; e < r->rounds; e++) {
        PP3_ADD(&r->entries[e].seq, 1, release); /* E4, for a resolver that died */
        PP3_FUTEX_WAKE(&r->entries[e].seq);
    }
}

/* Whoever saw the owner dead: its pidfd readable, or its thread joined. Fails what it
 * was writing and wakes everybody.
 * The number of rounds failed, or -errno. */
static inline int pp3_owner_gone(struct pp3_ring *r, uint32_t id)
{
    struct pp3_engine *g = r->engine;
    uint32_t life = PP3_LIVING;
    int failed = 0;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!g || id == 0 || id > PP3_MAX_OWNERS)
        return -EINVAL;
    if (!PP3_CAS(&g->owner[id].life, &life, PP3_DEAD, acq_rel /* E5 */, relaxed))
        return life == PP3_DEAD ? 0 : -EINVAL;
    for (uint32_t e = 0; e < r->rounds; e++) {
        uint64_t w = PP3_LOAD(&r->entries[e].state, acquire);

        if (pp3_state(w) == PP3_WRITING && pp3_owner_of(w) == id &&
            pp3_ticket(w) % r->rounds == e)
            failed += pp3_state(pp3_fail(r, pp3_ticket(w), PP3_ORPHANED)) ==
                      PP3_FAILED + PP3_ORPHANED;
    }
    pp3_wake_all(r);
    return failed;
}
#endif
