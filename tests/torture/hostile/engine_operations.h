/* The engine's operations, and what all of them share: what a right answer is.
 *
 * Where nobody writes meanwhile (STILL) the region itself is compared too; what holds
 * under a writer is held always: indices, lengths and pointers are inside, words are
 * what they are said to be, and the engine's private books balance. */
#ifndef HOSTILE_ENGINE_OPERATIONS_H
#define HOSTILE_ENGINE_OPERATIONS_H

#include "world.h"

#define ONE_OF(rc, ...) one_of(rc, (const int64_t[]){__VA_ARGS__, 0})
static void one_of(int64_t rc, const int64_t *errors)
{
    while (*errors && *errors != -rc)
        errors++;
    must(*errors != 0, "an error that is not documented");
}

static struct pp3_ring *some_rank(void) { return world.rank[draw(world.shape.ranks)]; }
static struct pp3_ring *some_proxy(void) { return world.proxy[draw(PROXIES)]; }
static struct pp3_ring *anyone(void)
{
    switch (draw(3)) {
    case 0:
        return world.engine;
    case 1:
        return some_proxy();
    default:
        return some_rank();
    }
}

static uint64_t some_ticket(void)
{
    uint64_t next = world.engine->engine->next;

    return draw(6) == 0 ? boundary() : next + 1 - draw(2 * world.shape.rounds + 2);
}

static uint64_t some_word(void)
{
    if (world.n_taken > 0 && draw(2))
        return world.taken[draw((uint64_t)world.n_taken)];
    return draw(4) == 0 ? mixed(&luck)
                        : state_word(pp3_make(some_ticket() & PP3_LAST_TICKET,
                                              (uint32_t)draw(16),
                                              (uint32_t)draw(world.shape.pages), 1));
}

static uint64_t state_of(uint64_t t)
{
    return atomic_load(&pp3_entry_of(world.engine, t)->state);
}

static volatile uint8_t sink;
static void touch(const uint8_t *from, uint64_t bytes)
{
    sink = from[0]; /* the sanitizer and the guard pages judge */
    sink = from[bytes - 1];
}

/* Every page is in one hand: free, in quarantine, or of the round of one entry. */
static void books_balance(void)
{
    struct pp3_engine *g = world.engine->engine;
    uint8_t hand[MOST_PAGES] = {0};
    uint32_t held[256] = {0}, n = 0;

    must(g->free_count <= world.shape.pages && g->held_count <= world.shape.pages,
         "more pages than there are");
    for (uint32_t i = 0; i < g->free_count; i++, n++)
        must(g->free_page[i] < world.shape.pages && !hand[g->free_page[i]]++,
             "a free page");
    for (uint32_t i = 0; i < g->held_count; i++, n++) {
        must(g->quarantine[i].page < world.shape.pages &&
                 !hand[g->quarantine[i].page]++,
             "a page in quarantine");
        held[g->quarantine[i].owner & 255u]++;
    }
    for (uint32_t e = 0; e < world.shape.rounds; e++)
        if (g->claimed[e] != 0 && g->disposed[e] != pp3_ticket(g->claimed[e])) {
            uint32_t page = pp3_page_of(g->claimed[e]);
            must(page < world.shape.pages && !hand[page]++, "the page of a round");
            n++;
        }
    must(n == world.shape.pages, "a page in nobody's hand");
    for (int id = 0; id < 256; id++)
        must(atomic_load(&g->owner[id].held) == held[id], "an owner's pages");
}

/* What was local at attach stays, whatever the shared header says now. */
static void same_shape(const struct pp3_ring *r)
{
    const struct pp3_ring *l = &world.local;

    must(r->rounds == l->rounds && r->pages == l->pages && r->ranks == l->ranks &&
             r->page_bytes == l->page_bytes && r->request_bytes == l->request_bytes &&
             r->slots == l->slots && r->max_positions == l->max_positions &&
             r->page_stride == l->page_stride && r->failed_stride == l->failed_stride &&
             r->slot_stride == l->slot_stride && r->ack_words == l->ack_words &&
             r->entries == l->entries && r->give == l->give && r->page == l->page,
         "a capacity that changed");
}

/* ---- the engine ------------------------------------------------------------------- */

static void make_heads(uint8_t *heads)
{
    for (uint32_t i = 0; i < 3 * world.shape.head_bytes; i++)
        heads[i] = (uint8_t)draw(256);
}

static void claimed(int64_t rc, uint64_t next)
{
    if (rc < 0) {
        ONE_OF(rc, EAGAIN, EBUSY, ENOBUFS, EBADMSG, EINVAL, EMSGSIZE, EOVERFLOW);
        must(world.engine->engine->next == next, "a refusal that used up a ticket");
    } else {
        must((uint64_t)rc == next && world.engine->engine->next == next + 1, "ticket");
        must(world.flipping || pp3_ticket(state_of(next)) == next, "claimed, not there");
    }
    books_balance();
}

static void op_claim(void)
{
    uint64_t next = world.engine->engine->next;
    uint8_t *heads = malloc(3 * world.shape.head_bytes);

    make_heads(heads);
    claimed(pp3_claim(world.engine, draw(2) ? heads : 0,
                      draw(8) ? pp3_now() + draw(1000000) : draw(2) ? 0 : boundary()),
            next);
    free(heads);
}

static void op_step(void)
{
    uint64_t next = world.engine->engine->next;
    uint32_t bytes = draw(4) ? world.step_bytes : (uint32_t)boundary();
    uint32_t room = bytes <= world.shape.request_bytes ? bytes + 8 : 8;
    uint8_t *request = malloc(room);

    memset(request, 7, room);
    if (bytes == world.step_bytes)
        memcpy(request, world.step, bytes);
    claimed(pp3_step(world.engine, request, bytes, 0, pp3_now() + draw(10000000)), next);
    free(request);
}

static void op_submit(void)
{
    uint64_t t = some_ticket();
    int rc = pp3_submit(world.engine, t);

    if (rc < 0)
        ONE_OF(rc, ESTALE, EINVAL);
    else
        must(pp3_ticket(world.engine->engine->claimed[t % world.shape.rounds]) == t,
             "submitted what was not claimed");
}

static void op_cancel(void)
{
    uint64_t t = some_ticket();
    int rc = pp3_cancel(world.engine, t);

    if (rc < 0)
        ONE_OF(rc, ESTALE, EINVAL, EBUSY);
    else
        must(world.flipping || pp3_ticket(state_of(t)) != t || pp3_resolved(state_of(t)),
             "cancelled, and open");
}

static void op_request_of(void)
{
    uint8_t *to = pp3_request_of(world.engine, some_ticket());

    if (to)
        touch(to, world.shape.request_bytes);
}

static void op_stream(void)
{
    uint64_t t = some_ticket();
    int rc = draw(3) ? pp3_stream_done(world.engine, t)
                     : pp3_stream_hold(world.engine, t);

    if (rc < 0)
        ONE_OF(rc, ESTALE, EINVAL);
}

static void op_why(void)
{
    struct pp3_why why;

    pp3_why(world.engine, &why);
    must(why.free_pages + why.quarantined <= world.shape.pages && why.owners <= 256,
         "more pages than there are");
    must(why.rank >= -1 && why.rank < (int32_t)world.shape.ranks, "no such rank");
}

static void op_owner(void)
{
    int rc;

    if (draw(2)) {
        rc = pp3_owner_add_thread(world.engine);
        must(rc == -EUSERS || (rc >= 1 && rc <= (int)PP3_MAX_OWNERS), "an owner id");
        must(rc < 0 || pp3_owner_dead(world.engine, (uint32_t)rc) >= 0, "its end");
    } else {
        rc = pp3_owner_dead(world.engine, 3 + (uint32_t)boundary() % 400);
        must(rc == -EINVAL || (rc >= 0 && rc <= (int)world.shape.rounds), "an end");
    }
}

static void op_expire(void)
{
    uint64_t now = draw(4) ? pp3_now() : boundary();
    uint64_t next = draw(2) ? pp3_watch_look(world.engine, now)
                            : pp3_watchdog_tick(world.engine, now);

    must(next <= now + PP3_IDLE_NS || now + PP3_IDLE_NS < now, "a sleep too long");
    for (uint32_t e = 0; !world.flipping && e < world.shape.rounds; e++) {
        uint64_t w = atomic_load(&world.engine->entries[e].state);
        must(w == 0 || pp3_resolved(w) || pp3_ticket(w) % world.shape.rounds != e ||
                 atomic_load(&world.engine->entries[e].deadline_ns) > now,
             "an open round past its deadline");
    }
    pp3_watch_sleeps(world.engine, draw(2) ? 0 : next);
}

static void op_wake_all(void) { pp3_wake_all(world.engine); }

static void op_rank_dead(void)
{
    int rc = pp3_rank_dead(world.engine, (uint32_t)draw(world.shape.ranks + 2));

    must(rc == 0 || rc == -EINVAL, "a living rank");
}

#endif
