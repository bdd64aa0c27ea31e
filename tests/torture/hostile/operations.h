/* The operations of proxies and ranks, and the table of all; see engine_operations.h. */
#ifndef HOSTILE_OPERATIONS_H
#define HOSTILE_OPERATIONS_H

#include "engine_operations.h"

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
    int rc = pp3_take_step(r, &world.layout, &mine, step, world.shape.request_bytes,
                           &bytes);

    if (rc == 1) {
        taken_well(r, mine, cursor);
        must(pp3_step_check(&world.layout, step, world.shape.request_bytes, &again) ==
                     0 &&
                 again == bytes && memcmp(step, &(uint64_t){pp3_ticket(mine)}, 8) == 0,
             "a STEP that is none");
        if (draw(2)) {
            uint8_t frame[64] = {'P', 'P', '3', 'F'};
            struct pp3_trace trace = {0};
            struct pp3_fault fault;
            must(pp3_answer(r, &world.layout, mine, step, frame, draw(65), frame, 0,
                            &trace, &fault) > 0, "a reply that is none");
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
    uint32_t slot = (uint32_t)draw(world.shape.slots + 1);
    uint32_t generation = (uint32_t)draw(9);
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
    uint32_t status = draw(2) ? (uint32_t)draw(10) : PP3_EXPIRED;
    int rc = pp3_resolve(anyone(), t, status, &word);

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
