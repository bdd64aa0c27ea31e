/* A region with any words in it: every operation gives a named error or a right answer.
 *
 * usage: hostile SEED FIRST CASES FLIPPING FAULT SECONDS
 *
 * A case is a region with some rounds behind it, then operations of all roles in any
 * order, with hostile words written between them (FLIPPING 0), or all the while by
 * another thread (1), another process (2), or one that is timed to the loads (3).
 * Case K of a seed is always the same but for the timing of 1 and 2. Built with the
 * address and undefined-behaviour sanitizers.
 * Prints the operations tried; says `wrong:` and where, and ends with 1, otherwise. */
#include "operations.h"

static uint64_t tried[OPERATIONS], attached, refused;

/* ---- attach records --------------------------------------------------------------- */

/* Everything an end of this shape may touch lies within the bytes of its record. */
static void reaches_not_outside(const struct pp3_ring *r,
                                const struct pp3_record *record,
                                const struct pp3_parts *parts)
{
    const struct pp3_shape *s = &record->shape;

    must(r->rounds == s->rounds && r->pages == s->pages && r->ranks == s->ranks &&
             r->slots == s->slots && r->max_positions == s->max_positions,
         "a shape that is not the record's");
    must(s->rounds >= 1 && s->rounds <= PP3_MAX_ROUNDS && s->pages >= s->rounds &&
             s->pages <= PP3_MAX_PAGES && s->ranks >= 1 && s->ranks <= PP3_MAX_RANKS &&
             r->owner <= PP3_MAX_OWNERS, "a record beyond every limit");
    must((uint64_t)((uint8_t *)(r->give + r->pages) - parts->control) <= s->bytes[0],
         "control");
    must(r->slot_stride >= sizeof(struct pp3_slot) + 4 * (uint64_t)r->max_positions &&
             r->slots * r->slot_stride <= s->bytes[1], "slots");
    must(r->page_stride >= r->page_bytes && r->request_stride >= r->request_bytes &&
             r->pages * (r->page_stride + r->request_stride) <= s->bytes[2], "pages");
    must(r->failed_stride >= r->failed_bytes && r->failed_bytes >= r->head_bytes &&
             r->rounds * (uint64_t)PP3_CAUSES * r->failed_stride <= s->bytes[3],
         "failed");
    must(r->ack_words >= r->rounds && r->ranks * r->ack_words * 8 <= s->bytes[4],
         "acks");
}

static uint8_t *largest; /* a control segment as large as any record can have it */
enum { LARGEST = 1 << 20 };

static void attach_hostile(void)
{
    struct pp3_record record;
    struct pp3_parts parts = world.parts;
    struct pp3_ring *r;
    uint32_t *words = (uint32_t *)(void *)&record;
    int error = 0;

    world.doing = "attach";
    pp3_record_fill(&record, &world.shape);
    record.owner = (uint32_t)(draw(2) ? 1 : boundary());
    for (uint64_t n = draw(3); n > 0; n--)
        words[draw(sizeof record / 4)] = (uint32_t)boundary();
    if (draw(2)) /* its bytes agree with it again */
        (void)pp3_shape_fill(&record.shape);
    parts.control = record.shape.bytes[0] <= LARGEST
                        ? largest + LARGEST - record.shape.bytes[0] / 128 * 128
                        : largest;
    r = pp3_ring_attach(&record, &parts, -1, &error);
    if (r)
        reaches_not_outside(r, &record, &parts);
    else
        must(error == EINVAL || error == ENOMEM || error == EBADF, "a named error");
    r ? attached++ : refused++;
    pp3_ring_free(r);
}

/* ---- a case ----------------------------------------------------------------------- */

static struct pp3_ring *attach(uint32_t owner)
{
    struct pp3_record record;
    struct pp3_ring *r;
    int error;

    pp3_record_fill(&record, &world.shape);
    record.owner = owner;
    r = pp3_ring_attach(&record, &world.parts, owner ? world.engine->bell_fd : -1,
                        &error);
    must(r != 0, "an end of a good record");
    return r;
}

static void open_world(int self)
{
    uint8_t *templates = calloc(3, world.shape.failed_bytes);
    int error;

    memset(world.parts.control, 0, world.shape.bytes[0]);
    memset(world.parts.acks, 0, world.shape.bytes[4]);
    world.doing = "create";
    world.engine = pp3_ring_create(&world.shape, &world.parts, templates, &error);
    must(world.engine != 0, "a region");
    free(templates);
    world.local = *world.engine;
    world.n_taken = 0;
    world.rank[0] = world.engine;
    for (uint32_t k = 1; k < world.shape.ranks; k++) {
        must(pp3_rank_attach(world.engine, k, self) == 0, "a rank");
        world.rank[k] = attach(0);
    }
    for (int k = 0; k < PROXIES; k++)
        world.proxy[k] = attach((uint32_t)pp3_owner_add_thread(world.engine));
}

static void close_world(void)
{
    for (uint32_t k = 1; k < world.shape.ranks; k++)
        pp3_ring_free(world.rank[k]);
    for (int k = 0; k < PROXIES; k++)
        pp3_ring_free(world.proxy[k]);
    pp3_ring_free(world.engine);
    world.engine = 0;
}

/* Some rounds, so that every state and the quarantine are met. */
static void live_a_little(void)
{
    for (uint64_t n = draw(4 * world.shape.rounds); n > 0; n--) {
        struct pp3_ring *r = some_proxy();
        uint64_t word, t = world.engine->engine->next;
        uint32_t k = 0;

        if (pp3_step(world.engine, world.step, world.step_bytes, 0,
                     pp3_now() + UINT64_C(1000000000)) < 0)
            return;
        if (draw(4) && pp3_take(r, &word) == 1) {
            keep(word);
            if (draw(4))
                (void)pp3_publish(r, word);
        }
        if (draw(8) == 0)
            (void)pp3_resolve(world.engine, t, PP3_EXPIRED, &word);
        for (; draw(6) && k < world.shape.ranks; k++)
            (void)pp3_release(world.rank[k], k, t);
    }
}

static void one_case(int self)
{
    luck = world.seed * UINT64_C(1000003) + world.at;
    attach_hostile();
    world.doing = "create";
    open_world(self);
    live_a_little();
    for (uint64_t n = 8 + draw(24); n > 0; n--) {
        uint64_t k = draw(OPERATIONS);

        if (world.flipping == STILL || world.flipping == BETWEEN)
            for (uint64_t writes = draw(3); writes > 0; writes--)
                write_one();
        atomic_store(&side->next_ticket, world.engine->engine->next);
        world.doing = operations[k].name;
        operations[k].run();
        tried[k]++;
    }
    books_balance();
    same_shape(world.engine);
    same_shape(world.rank[world.shape.ranks - 1]);
    same_shape(world.proxy[0]);
    close_world();
}

/* ---- a run ------------------------------------------------------------------------ */

/* One row, tokens of a vocabulary of 64. */
static void make_step(void)
{
    struct pp3_body_head head = {0, 1, world.layout.depth, PP3_FLAG_SAMPLED, 0};
    struct pp3_step_row row = {.slot = 1, .generation = 1, .position = 9, .count = 1};
    struct pp3_step_at at = pp3_step_at(&world.layout, 1);

    memset(world.step, 0xff, sizeof world.step); /* tokens -1 */
    memcpy(world.step, &head, sizeof head);
    memset(world.step + at.draws, 0, sizeof(struct pp3_step_draw));
    memcpy(world.step + at.rows, &row, sizeof row);
    memcpy(world.step + at.committed, &(int32_t){5}, 4);
    world.step_bytes = (uint32_t)at.end;
}

static void set_up(uint64_t seed, enum flipping flipping)
{
    static const uint32_t rounds[] = {1, 2, 3, 8, MOST_ROUNDS};
    uint8_t **part[5] = {&world.parts.control, &world.parts.slots, &world.parts.pages,
                         &world.parts.failed, &world.parts.acks};

    side = mmap(0, sizeof *side, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                -1, 0);
    luck = world.seed = seed;
    world.flipping = flipping;
    world.layout = (struct pp3_layout){64, 4, 2, 64, 1, 0};
    world.shape.rounds = rounds[seed % 5];
    world.shape.pages = world.shape.rounds + (uint32_t)draw(world.shape.rounds + 1);
    world.shape.ranks = 1 + (uint32_t)draw(MOST_RANKS);
    world.shape.page_bytes = (uint32_t)pp3_page_at(&world.layout).end;
    world.shape.request_bytes = 256;
    world.shape.head_bytes = 16;
    world.shape.failed_bytes = 24;
    world.shape.slots = 2;
    world.shape.max_positions = 13;
    must(pp3_shape_fill(&world.shape) == 0, "a shape");
    for (int i = 0; i < 5; i++)
        *part[i] = guarded(world.shape.bytes[i]);
    largest = guarded(LARGEST);
    make_step();
}

int main(int argc, char **argv)
{
    int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    uint64_t argument[6], operation = 0;
    int kinds = 0;

    for (int i = 0; i < 6; i++)
        argument[i] = argc == 7 ? strtoull(argv[i + 1], 0, 10) : 0;
    if (argc != 7)
        return 2;
    pp3_fault = (int)argument[4];
    world.doing = "start";
    __sanitizer_set_death_callback(where_it_was);
    (void)signal(SIGALRM, hung);
    set_up(argument[0], (enum flipping)argument[3]);
    start_flipping();
    for (world.at = argument[1]; world.at < argument[1] + argument[2]; world.at++) {
        if (world.at % 64 == 0)
            (void)alarm((unsigned)argument[5]);
        one_case(self);
    }
    for (int k = 0; k < OPERATIONS; k++) {
        operation += tried[k];
        kinds += tried[k] != 0;
    }
    (void)printf("%llu %llu %d %llu %llu\n", (unsigned long long)argument[2],
                 (unsigned long long)operation, kinds, (unsigned long long)attached,
                 (unsigned long long)refused);
    return 0;
}
