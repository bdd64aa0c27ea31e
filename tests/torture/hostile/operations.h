/* Every operation of every role, each with what a right answer to any region is.
 *
 * Where nobody writes meanwhile (STILL) the region itself is compared too; what holds
 * under a writer is held always: indices, lengths and pointers are inside, words are what
 * they are said to be, and the engine's private books balance. */
#ifndef HOSTILE_OPERATIONS_H
#define HOSTILE_OPERATIONS_H

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
    int rc = draw(3) ? pp3_stream_done(world.engine, t) : pp3_stream_hold(world.engine, t);

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
        must(rc == -EINVAL || (rc >= 0 && rc <= (int)world.shape.rounds), "rounds failed");
    }
}

static void op_expire(void)
{
    uint64_t now = draw(4) ? pp3_now() : boundary();
    uint64_t next = draw(2) ? pp3_watch_look(world.engine, now)
                            : pp3_watchdog_tick(world.engine, now);

    must(next <= now + PP3_IDLE_NS || now + PP3_IDLE_NS < now, "a sleep that is too long");
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

/* ---- proxies ---------------------------------------------------------------------- */

static void keep(uint64_t mine)
{
    if (world.n_taken < MOST_ROUNDS)
        world.taken[world.n_taken++] = mine;
}

static void taken_well(struct pp3_ring *r, uint64_t mine, uint64_t cursor)
{
    must(pp3_state(mine) == PP3_WRITING && pp3_owner_of(mine) == r->owner, "taken");
    must(pp3_page_of(mine) < world.shape.pages, "the page of a taken round");
    must(pp3_ticket(mine) > cursor && r->cursor == pp3_ticket(mine), "its ticket");
    must(world.flipping || state_of(pp3_ticket(mine)) == mine, "taken, not there");
    touch(pp3_page(r, mine), world.shape.page_bytes);
    touch(pp3_request(r, mine), world.shape.request_bytes);
}

static int names_a_bad_word(struct pp3_ring *r)
{
    return world.flipping || pp3_page_of(pp3_bad_word(r)) >= world.shape.pages ||
           pp3_ticket(pp3_bad_word(r)) != r->cursor + 1;
}

static void op_take(void)
{
    struct pp3_ring *r = some_proxy();
    uint64_t mine, cursor = r->cursor;
    int rc = pp3_take(r, &mine);

    if (rc < 0) {
        ONE_OF(rc, EBADMSG);
        must(names_a_bad_word(r), "a good word that was refused");
    } else if (rc == 1) {
        taken_well(r, mine, cursor);
        keep(mine);
    }
    must(rc <= 1, "rounds taken");
}

static void op_take_step(void)
{
    struct pp3_ring *r = some_proxy();
    uint8_t *step = malloc(world.shape.request_bytes);
    uint64_t mine = 0, cursor = r->cursor;
    uint32_t bytes, again;
    int rc = pp3_take_step(r, &world.layout, &mine, step, world.shape.request_bytes, &bytes);

    if (rc == 1) {
        taken_well(r, mine, cursor);
        must(pp3_step_check(&world.layout, step, world.shape.request_bytes, &again) == 0 &&
                 again == bytes && memcmp(step, &(uint64_t){pp3_ticket(mine)}, 8) == 0,
             "a STEP that is none");
        if (draw(2)) {
            uint8_t frame[64] = {'P', 'P', '3', 'F'};
            struct pp3_trace trace = {0};
            struct pp3_fault fault;
            must(pp3_answer(r, &world.layout, mine, step, frame, draw(65), frame, 0, &trace,
                            &fault) > 0, "a reply that is none");
        }
        rc = pp3_answer_failed(r, &world.layout, mine, step, (int32_t)draw(9));
        must(rc == 0 || rc == -ESTALE, "answered");
    } else if (rc < 0) {
        ONE_OF(rc, EBADMSG, EINVAL);
    }
    free(step);
}

static void op_page(void)
{
    struct pp3_ring *r = some_proxy();
    uint64_t word = some_word();
    uint8_t *page = pp3_page(r, word), *request = pp3_request(r, word);

    must((page != 0) == (pp3_page_of(word) < world.shape.pages) && !page == !request,
         "a page out of bounds");
    if (page) {
        touch(page, world.shape.page_bytes);
        touch(request, world.shape.request_bytes);
    }
}

static void op_publish(void)
{
    struct pp3_ring *r = some_proxy();
    uint64_t mine = some_word();
    int rc = pp3_publish(r, mine);

    if (rc < 0)
        ONE_OF(rc, ESTALE, EINVAL);
    else
        must(world.flipping ||
                 state_of(pp3_ticket(mine)) == pp3_with(mine, PP3_PUBLISHED, r->owner),
             "published, not there");
}

static void op_give_back(void) { pp3_give_back(some_proxy(), some_word()); }

static void op_sweep(void)
{
    uint64_t before[MOST_ROUNDS];
    int n = world.n_taken, rc;

    memcpy(before, world.taken, sizeof before);
    rc = pp3_sweep(some_proxy(), world.taken, n);
    must(rc >= 0 && rc <= n, "rounds that remain");
    for (int i = 0, k = 0; i < rc; i++, k++) {
        while (k < n && before[k] != world.taken[i])
            k++;
        must(k < n, "a round that was not among them");
    }
    world.n_taken = rc;
}

static void op_work(void)
{
    struct pp3_ring *r = some_proxy();
    int pending;

    pp3_work_prepare(r);
    pending = pp3_work_pending(r);
    must(pending == 0 || pending == 1, "pending");
    pp3_work_done(r);
}

/* ---- slots and the note ----------------------------------------------------------- */

static void op_slot_write(void)
{
    uint32_t slot = (uint32_t)draw(world.shape.slots + 1), generation = (uint32_t)draw(9);
    uint64_t n = draw(world.shape.max_positions + 3), most = n;
    int32_t *tokens = calloc(n + 1, 4);
    int rc;

    if (draw(4) == 0) /* longer than any buffer: refused before it is read */
        n = boundary() % 2 ? (UINT64_C(1) << 32) - draw(8) : UINT64_MAX - draw(8);
    if (n != most && n <= world.shape.max_positions)
        n = most;
    rc = draw(2)   ? pp3_slot_append(world.engine, slot, tokens, n)
         : draw(3) ? pp3_slot_reset(world.engine, slot, generation, tokens, n)
                   : pp3_slot_close(world.engine, slot);
    if (rc < 0)
        ONE_OF(rc, EINVAL, ENOENT, ENOSPC);
    for (uint32_t s = 0; s < world.shape.slots; s++)
        must(world.engine->engine->slot[s].length <= world.shape.max_positions,
             "a slot longer than its room");
    free(tokens);
}

static void op_slot_read(void)
{
    uint32_t generation, live, slot = (uint32_t)draw(world.shape.slots + 1);
    uint64_t length = 0, cap = draw(world.shape.max_positions + 4);
    int32_t *out = malloc(4 * cap + 1);
    int rc = pp3_slot_read(draw(2) ? world.engine : some_proxy(), slot, out, cap,
                           &generation, &live, &length);

    if (rc == 0)
        must(length <= cap && length <= world.shape.max_positions, "a slot's length");
    else if (rc == -ENOBUFS)
        must(length > cap && length <= world.shape.max_positions, "the room needed");
    else
        ONE_OF(rc, EBADMSG, EAGAIN, EINVAL);
    free(out);
}

static void op_note(void)
{
    enum { ROOM = 8 * PP3_NOTE_WORDS };
    uint32_t n = (uint32_t)draw(ROOM + 9);
    uint8_t *note = calloc(ROOM + 9, 1), *out = malloc(ROOM);
    int rc;

    if (draw(2)) {
        rc = pp3_note_write(some_proxy(), note, n);
        must(rc == (n <= ROOM ? 0 : -EMSGSIZE), "a note written");
    }
    rc = pp3_note_read(anyone(), out);
    if (rc < 0)
        ONE_OF(rc, EAGAIN, EBADMSG);
    else
        must(rc <= ROOM, "a note's length");
    free(note);
    free(out);
}

/* ---- ranks ------------------------------------------------------------------------ */

static void read_well(struct pp3_ring *r, uint64_t word)
{
    uint32_t index = UINT32_MAX;
    int rc = pp3_read(r, word, &index);

    if (rc == 0) {
        must(index < world.shape.pages, "the page of a word");
        touch(r->page + index * r->page_stride, world.shape.page_bytes);
    } else if (rc > 0) {
        must(rc == PP3_EXPIRED || rc == PP3_ORPHANED || rc == PP3_CANCELLED, "status");
        must(index < PP3_CAUSES * world.shape.rounds, "the failed buffer of a word");
        touch(r->failed + index * r->failed_stride, world.shape.failed_bytes);
    } else {
        ONE_OF(rc, EBADMSG);
        must(pp3_bad_word(r) == word, "another word named");
    }
}

static void op_read(void) { read_well(some_rank(), some_word()); }

static void op_wait(void)
{
    struct pp3_ring *r = some_rank();
    uint64_t t = some_ticket(), word = 0;
    uint64_t limit = draw(16) ? draw(2) * pp3_now() : pp3_now() + draw(30000);
    int rc = pp3_wait(r, t, limit, draw(4) ? 0 : draw(2000), &word);

    if (rc < 0) {
        ONE_OF(rc, ESTALE, ETIMEDOUT, EBADMSG, EINVAL);
        return;
    }
    must(rc == 0 && pp3_ticket(word) == t && pp3_resolved(word), "a round waited for");
    must(world.flipping || state_of(t) == word, "resolved, not there");
    must(pp3_page_of(word) < world.shape.pages, "the page of a round");
    read_well(r, word);
}

static void op_resolve(void)
{
    uint64_t t = some_ticket(), word = 0;
    int rc = pp3_resolve(anyone(), t, (uint32_t)(draw(2) ? draw(10) : PP3_EXPIRED), &word);

    if (rc < 0)
        ONE_OF(rc, ESTALE, EINVAL);
    else
        must(pp3_ticket(word) == t && pp3_resolved(word), "resolved");
}

static uint64_t sum_of_acks(void)
{
    uint64_t sum = 0;
    PP3_A64 *acks = (PP3_A64 *)(void *)world.parts.acks;

    for (uint64_t i = 0; i < world.shape.bytes[4] / 8; i++)
        sum += atomic_load(&acks[i]);
    return sum;
}

static void op_release(void)
{
    struct pp3_ring *r = some_rank();
    uint32_t rank = (uint32_t)(draw(8) ? draw(world.shape.ranks + 1) : boundary());
    uint64_t t = some_ticket(), sum = sum_of_acks(), before = 0, after;
    PP3_A64 *ack = 0;
    int rc;

    if (rank < world.shape.ranks)
        ack = &r->acks[rank * r->ack_words + t % world.shape.rounds];
    before = ack ? atomic_load(ack) : 0;
    rc = pp3_release(r, rank, t);
    if (rc < 0)
        ONE_OF(rc, ESTALE, EINVAL);
    after = ack ? atomic_load(ack) : 0;
    must(rc < 0 || ack, "released for no rank");
    must(world.flipping || sum_of_acks() - sum == after - before, "another's ack word");
    must(world.flipping || after == before || (rc == 0 && after == t), "its ack word");
    must(world.flipping || rc < 0 || after >= t, "released, not there");
}

/* ---- everybody -------------------------------------------------------------------- */

static void op_look(void)
{
    struct pp3_ring *r = anyone();
    uint64_t word, t = some_ticket();

    must(pp3_word(r, t, &word) == 0, "a look");
    must(pp3_state_offset(r, t) + 8 <= world.shape.bytes[0] &&
             pp3_bell_offset(r, t) + 8 <= world.shape.bytes[0], "an offset");
    pp3_count(r, (uint32_t)boundary(), 1);
    (void)pp3_counter(r, (uint32_t)boundary());
}

static const struct operation {
    const char *name;
    void (*run)(void);
} operations[] = {
    {"claim", op_claim}, {"step", op_step}, {"submit", op_submit}, {"cancel", op_cancel},
    {"request_of", op_request_of}, {"stream", op_stream}, {"why", op_why},
    {"owner", op_owner}, {"expire", op_expire}, {"wake_all", op_wake_all},
    {"rank_dead", op_rank_dead}, {"take", op_take}, {"take_step", op_take_step},
    {"page", op_page}, {"publish", op_publish}, {"give_back", op_give_back},
    {"sweep", op_sweep}, {"work", op_work}, {"slot_write", op_slot_write},
    {"slot_read", op_slot_read}, {"note", op_note}, {"read", op_read}, {"wait", op_wait},
    {"resolve", op_resolve}, {"release", op_release}, {"look", op_look},
};
enum { OPERATIONS = sizeof operations / sizeof *operations };
#endif
