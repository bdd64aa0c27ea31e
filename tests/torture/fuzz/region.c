/* Target: everything that takes words from a region: take, look, read, slots, note,
 * shapes and records, and the exchange of a STEP and a REPLY over it.
 *
 * Input: a list of calls, then the bytes of a small region's segments, each a heap block
 * of exact size, and a frame. Private state is put back before each input. */
#include "common.h"
#include "inputs.h"

#include "proxy/exchange.h"
#include "ring/note.h"
#include "ring/slots.h"

enum { CALLS = 16, SEGMENTS = 5 };

static struct pp3_ring *engine, *proxy, fresh_engine, fresh_proxy;
static struct pp3_engine fresh_private;
static struct pp3_shape shape = {.rounds = 2, .pages = 3, .ranks = 2, .page_bytes = 256,
                                 .request_bytes = 128, .failed_bytes = 128,
                                 .head_bytes = 16, .slots = 2, .max_positions = 5};
static const struct pp3_layout greedy = {111, 4, 2, 5, 0, 0};
static uint8_t *segment[SEGMENTS];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    int error;
    uint8_t *templates = calloc(PP3_CAUSES, shape.failed_bytes);
    struct pp3_record record;
    HOLDS(templates && pp3_shape_fill(&shape) == NULL);
    for (int i = 0; i < SEGMENTS; i++) {
        segment[i] = aligned_alloc(PP3_LINE, shape.bytes[i]);
        HOLDS(segment[i]);
        memset(segment[i], 0, shape.bytes[i]);
    }
    struct pp3_parts parts = {segment[0], segment[1], segment[2], segment[3], segment[4]};
    HOLDS(engine = pp3_ring_create(&shape, &parts, templates, &error));
    pp3_record_fill(&record, &shape);
    record.owner = 1;
    HOLDS(proxy = pp3_ring_attach(&record, &parts, -1, &error));
    free(templates);
    /* no descriptor is rung: a call of the kernel would cost more than all else */
    engine->bell_fd = engine->engine->nudge_fd = -1;
    fresh_engine = *engine;
    fresh_proxy = *proxy;
    fresh_private = *engine->engine;
    return 0;
}

/* As after creation, but for the words of the region. */
static void put_back(void)
{
    struct pp3_engine *g = engine->engine;
    *engine = fresh_engine;
    *proxy = fresh_proxy;
    *g = fresh_private;
    memset(g->claimed, 0, 8 * shape.rounds);
    memset(g->disposed, 0, 8 * shape.rounds);
    memset(g->untold, 0, 8 * shape.rounds);
    memset(g->streamed, 0, 8 * shape.rounds);
    for (uint32_t k = 0; k < shape.pages; k++)
        g->free_page[k] = shape.pages - 1 - k;
    PP3_STORE(&g->rank[1].life, PP3_LIVING, relaxed);
    PP3_STORE(&g->owner[1].life, PP3_LIVING, relaxed);
}

/* Note, entries, slots and requests from the input, zeros where it ends early. */
static const uint8_t *fill(const uint8_t *at, const uint8_t *end)
{
    const size_t begin = offsetof(struct pp3_header, note_version);
    size_t entries = shape.bytes[0] - begin, n;
    n = (size_t)(end - at) < entries ? (size_t)(end - at) : entries;
    memset(segment[0] + begin, 0, entries);
    memcpy(segment[0] + begin, at, n);
    at += n;
    n = (size_t)(end - at) < shape.bytes[1] ? (size_t)(end - at) : shape.bytes[1];
    memset(segment[1], 0, shape.bytes[1]);
    memcpy(segment[1], at, n);
    at += n;
    n = (size_t)(end - at) < shape.request_bytes ? (size_t)(end - at) : shape.request_bytes;
    for (uint32_t k = 0; k < shape.pages; k++)
        memcpy(engine->request + k * engine->request_stride, at, n);
    return at + n;
}

static void exchange(const uint8_t *frame, const uint8_t *end)
{
    uint64_t mine = 0;
    uint32_t bytes = 0;
    uint8_t *body = exact(NULL, shape.request_bytes);
    int taken = pp3_take_step(proxy, &greedy, &mine, body, shape.request_bytes, &bytes);
    if (taken == 1) {
        struct pp3_trace trace = {.taken = 1, .sent = 2, .received = 3};
        struct pp3_fault fault;
        HOLDS(pp3_page(proxy, mine) && bytes <= shape.request_bytes);
        int reason = pp3_answer(proxy, &greedy, mine, body, frame, (size_t)(end - frame),
                                cases[0].session, cases[0].sequence, &trace, &fault);
        HOLDS(reason <= PP3_REASON_MASS);
        if (reason > 0)
            HOLDS(pp3_answer_failed(proxy, &greedy, mine, body, 5) == 0);
    }
    free(body);
}

static void read_round(uint64_t ticket)
{
    uint64_t word = 0;
    uint32_t index = UINT32_MAX;
    if (pp3_wait(engine, ticket, 0, 0, &word) == 0) {
        int status = pp3_read(engine, word, &index);
        HOLDS(status >= 0 && index < (status ? shape.rounds * PP3_CAUSES : shape.pages));
        keep_bytes(status ? engine->failed + index * engine->failed_stride
                          : engine->page + index * engine->page_stride,
                   status ? shape.failed_bytes : shape.page_bytes);
        KEEP(pp3_release(engine, 0, ticket));
    }
}

static void read_slots(uint32_t slot, uint64_t room)
{
    int32_t *out = (int32_t *)(void *)exact(NULL, 4 * room);
    uint32_t generation, live;
    uint64_t length = 0;
    if (pp3_slot_read(proxy, slot, out, room, &generation, &live, &length) == 0) {
        HOLDS(length <= room && length <= shape.max_positions);
        keep_bytes((const uint8_t *)out, 4 * length);
    }
    free(out);
}

static void read_note(void)
{
    uint8_t *out = exact(NULL, 8 * PP3_NOTE_WORDS);
    int n = pp3_note_read(engine, out);
    HOLDS(n <= (int)(8 * PP3_NOTE_WORDS));
    if (n > 0)
        keep_bytes(out, (size_t)n);
    free(out);
}

/* A record from a peer, or the shape in a header: refused, or its places lie inside. */
static void check_shape(const uint8_t *at, const uint8_t *end)
{
    struct pp3_shape told;
    struct pp3_places p;
    if ((size_t)(end - at) < sizeof told)
        return;
    memcpy(&told, at, sizeof told);
    if (pp3_shape_fill(&told) != NULL)
        return;
    pp3_shape_places(&told, &p);
    HOLDS(told.pages >= told.rounds && p.page_stride >= told.page_bytes);
    HOLDS(p.request_start + told.pages * p.request_stride == told.bytes[2]);
    HOLDS(told.bytes[1] / told.slots == p.slot_stride && p.ack_stride >= 8 * told.rounds);
    HOLDS(p.slot_stride >= PP3_LINE + 4 * (uint64_t)told.max_positions);
}

static void call(uint8_t what, const uint8_t *rest, const uint8_t *end)
{
    uint64_t ticket = 1 + what / 16 % 4, word = 0;
    switch (what % 16) {
    case 0: case 1: case 2: exchange(rest, end); break;
    case 3: case 4: read_round(ticket); break;
    case 5: read_slots(what / 16 % 3, what / 64); break;
    case 6: read_slots(what / 16 % 2, 5); break;
    case 7: read_note(); break;
    case 8: KEEP(pp3_claim(engine, NULL, 1)); break;
    case 9: KEEP(pp3_submit(engine, ticket)); break;
    case 10: KEEP(pp3_expire(engine, (uint64_t)what << 32)); break;
    case 11: KEEP(pp3_owner_gone(engine, 1)); break;
    case 12: KEEP(pp3_cancel(engine, ticket)); break;
    case 13: KEEP(pp3_resolve(proxy, ticket, PP3_EXPIRED, &word)); break;
    case 14: check_shape(rest, end); break;
    default: word = ticket << 24 | PP3_WRITING << 20 | 1u;
             KEEP(pp3_sweep(proxy, &word, 1));
    }
    KEEP(word);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < CALLS)
        return -1;
    put_back();
    const uint8_t *rest = fill(data + CALLS, data + size), *end = data + size;
    for (int i = 0; i < CALLS; i++)
        if (data[i] != 0xff) /* so that short lists can be */
            call(data[i], rest, end);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    struct draws d = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1};
    if (plain() || size < CALLS + 4 || draw(&d, 4) == 0)
        return LLVMFuzzerMutate(data, size, most);
    if (draw(&d, 2))
        data[draw(&d, CALLS)] = (uint8_t)draw(&d, 256);
    for (uint32_t times = draw(&d, 4); times > 0; times--)
        change_word(&d, data + CALLS, size - CALLS);
    return size;
}
