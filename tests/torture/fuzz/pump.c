/* Target: the stream of a session, as the pump splits it into frames.
 *
 * Input: which case, how, six lengths, then the bytes that a worker sends. They come to
 * the pump twice: as they fit, and cut into those lengths. It has to make the same of
 * them both times: the same returns, rounds, pages, counters, bytes sent. The buffer is
 * a block of exact size, the smallest that the pump may have.
 *
 * The pump's text is the product's; its two calls of the kernel are named anew when it
 * is compiled (-Drecv=fuzz_recv -Dsend=fuzz_send). */
#include <errno.h>
#include <sys/socket.h>

#include "common.h"
#include "inputs.h"

#include "layout/crc.h"
#include "proxy/pump.h"

enum {
    CUTS = 6,
    PREFIX = 2 + CUTS,
    STREAMED = 4, /* cases, the first ones: three replies fit into an input */
    ROUNDS = 3,
    RETURNS = 40, /* of the pump that are kept */
    SEGMENTS = 5,
    SENT = 4096,
    FIRST_FAILED = 1, /* how: round 1 was failed after it was sent, its reply is late */
};
#define FAR (UINT64_MAX / 2)
static const struct pp3_tally tally = {0, 1, 2, 3, 4};

ssize_t fuzz_recv(int fd, void *buffer, size_t room, int flags);
ssize_t fuzz_send(int fd, const void *bytes, size_t n, int flags);

/* What came of a stream. */
struct outcome {
    int why[RETURNS], error[RETURNS];
    uint64_t subject[RETURNS]; /* its round, or 0 */
    uint32_t returns, sent_bytes, rounds_left;
    uint64_t received, word[ROUNDS], counted[12];
    uint8_t sent[SENT];
    uint8_t *page; /* room bytes for each round that was published, else zeros */
};

/* The two ends of the link. */
static struct {
    const uint8_t *at, *end;
    const uint8_t *cut; /* NULL: as it fits */
    uint32_t turn;
    struct outcome *to;
} wire;

/* A region for each case, and what it holds before the first round. */
static struct world {
    struct pp3_shape shape;
    uint8_t *segment[SEGMENTS], *before[SEGMENTS];
    struct pp3_ring *engine, *proxy, fresh_engine, fresh_proxy;
    struct pp3_engine fresh_private;
    struct outcome whole, cut;
} worlds[STREAMED];

static size_t cut_to(size_t n)
{
    uint32_t byte = wire.cut ? wire.cut[wire.turn++ % CUTS] : 255;
    size_t most = byte == 255 ? n : 1 + (size_t)byte * (byte < 128 ? 1 : 16);
    return n < most ? n : most;
}

ssize_t fuzz_recv(int fd, void *buffer, size_t room, int flags)
{
    (void)fd;
    (void)flags;
    size_t n = (size_t)(wire.end - wire.at);
    HOLDS(room > 0); /* else a 0 would be taken for the end of the link */
    if (n == 0) {
        errno = EAGAIN;
        return -1;
    }
    n = cut_to(n < room ? n : room);
    memcpy(buffer, wire.at, n);
    wire.at += n;
    return (ssize_t)n;
}

ssize_t fuzz_send(int fd, const void *bytes, size_t n, int flags)
{
    (void)fd;
    (void)flags;
    n = cut_to(n);
    HOLDS(wire.to->sent_bytes + n <= SENT);
    memcpy(wire.to->sent + wire.to->sent_bytes, bytes, n);
    wire.to->sent_bytes += (uint32_t)n;
    return (ssize_t)n;
}

/* ---- the world -------------------------------------------------------------------- */

static void world_open(struct world *w, const struct fuzz_case *c)
{
    size_t page = pp3_page_at(&c->l).end;
    struct pp3_record record;
    int error;
    w->shape = (struct pp3_shape){
        .rounds = 4, .pages = 6, .ranks = 1,
        .page_bytes = (uint32_t)page,
        .request_bytes = c->step_bytes, .failed_bytes = 24, .head_bytes = 16, .slots = 1,
        .max_positions = 8,
    };
    HOLDS(pp3_shape_fill(&w->shape) == NULL);
    for (int i = 0; i < SEGMENTS; i++) {
        w->segment[i] = aligned_alloc(PP3_LINE, w->shape.bytes[i]);
        HOLDS(w->segment[i]);
        memset(w->segment[i], 0, w->shape.bytes[i]);
    }
    struct pp3_parts parts = {w->segment[0], w->segment[1], w->segment[2], w->segment[3],
                              w->segment[4]};
    uint8_t *templates = calloc(PP3_CAUSES, w->shape.failed_bytes);
    HOLDS(templates && (w->engine = pp3_ring_create(&w->shape, &parts, templates, &error)));
    free(templates);
    int owner = pp3_owner_add(w->engine);
    HOLDS(owner > 0);
    pp3_record_fill(&record, &w->shape);
    record.owner = (uint32_t)owner;
    HOLDS(w->proxy = pp3_ring_attach(&record, &parts, -1, &error));
    /* no descriptor is rung: a call of the kernel would cost more than all else */
    w->engine->bell_fd = w->engine->engine->nudge_fd = -1;
    w->fresh_engine = *w->engine;
    w->fresh_proxy = *w->proxy;
    w->fresh_private = *w->engine->engine;
    for (int i = 0; i < SEGMENTS; i++)
        w->before[i] = exact(w->segment[i], w->shape.bytes[i]);
    w->whole.page = exact(NULL, ROUNDS * page);
    w->cut.page = exact(NULL, ROUNDS * page);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    for (int i = 0; i < STREAMED; i++)
        world_open(&worlds[i], &cases[i]);
    return 0;
}

/* As before the first round. */
static void put_back(struct world *w)
{
    struct pp3_engine *g = w->engine->engine;
    *w->engine = w->fresh_engine;
    *w->proxy = w->fresh_proxy;
    *g = w->fresh_private;
    memset(g->claimed, 0, 8 * w->shape.rounds);
    memset(g->disposed, 0, 8 * w->shape.rounds);
    memset(g->untold, 0, 8 * w->shape.rounds);
    memset(g->streamed, 0, 8 * w->shape.rounds);
    for (uint32_t k = 0; k < w->shape.pages; k++)
        g->free_page[k] = w->shape.pages - 1 - k;
    for (int i = 0; i < SEGMENTS; i++)
        memcpy(w->segment[i], w->before[i], w->shape.bytes[i]);
}

/* ---- one stream ------------------------------------------------------------------- */

/* The smallest buffer that holds the longest frame twice, and not a byte more. */
static void tighten(struct pp3_pump *p)
{
    free(p->in);
    p->capacity = 2 * p->most;
    p->in = exact(NULL, p->capacity);
}

static int ends_session(int why)
{
    return why == PP3_PUMP_HEADER || why == PP3_PUMP_REFUSED || why == PP3_PUMP_LOST ||
           why == PP3_PUMP_RING;
}

static int keep(struct outcome *to, const struct pp3_pump *p, int why)
{
    if (why == PP3_PUMP_IDLE || to->returns == RETURNS)
        return to->returns == RETURNS;
    to->why[to->returns] = why;
    to->error[to->returns] = p->error;
    to->subject[to->returns++] = p->subject ? pp3_ticket(p->subject->mine) : 0;
    if (why == PP3_PUMP_HEADER || why == PP3_PUMP_FRAME || why == PP3_PUMP_REFUSED)
        keep_bytes(p->frame, p->frame_bytes);
    return ends_session(why);
}

/* All bytes, until the pump has nothing more to say of them. */
static void pump_all(struct pp3_pump *p, struct outcome *to)
{
    for (;;) {
        const uint8_t *before = wire.at;
        uint32_t left = p->out_bytes, last = to->returns;
        int why = pp3_pump(p, -1, 1);
        KEEP(why);
        HOLDS(p->start <= p->end && p->end <= p->capacity);
        if (keep(to, p, why))
            return;
        if (before == wire.at && left == p->out_bytes && last == to->returns &&
            wire.at == wire.end && p->out_bytes == 0)
            return;
    }
}

static void look(struct world *w, const struct fuzz_case *c, struct outcome *to)
{
    size_t room = pp3_page_at(&c->l).end;
    for (uint64_t t = 1; t <= ROUNDS; t++) {
        uint64_t word = 0;
        HOLDS(pp3_word(w->engine, t, &word) == 0);
        to->word[t - 1] = word;
        uint8_t *copy = to->page + (t - 1) * room;
        memset(copy, 0, room);
        if (pp3_state(word) == PP3_PUBLISHED)
            memcpy(copy, pp3_page(w->proxy, word), room);
    }
    for (uint32_t i = 0; i < 12; i++)
        to->counted[i] = i == tally.returns ? 0 : pp3_counter(w->engine, i);
}

static void run(struct world *w, const struct fuzz_case *c, uint8_t how,
                struct outcome *to)
{
    uint8_t *pages = to->page;
    memset(to, 0, sizeof *to);
    to->page = pages;
    wire.to = to;
    wire.turn = 0;
    put_back(w);
    struct pp3_hand *hand = pp3_hand_new(w->proxy, &c->l);
    struct pp3_pump *p = hand ? pp3_pump_new(hand, &tally) : NULL;
    HOLDS(p);
    tighten(p);
    pp3_pump_open(p, 0, c->session);
    p->received = c->sequence;
    p->send_ns = p->trickle_ns = FAR;
    pp3_pump_waits(p, PP3_WAIT_FUTEX, 0);
    const uint8_t *first = wire.at, *last = wire.end;
    wire.at = wire.end; /* the rounds go out before a byte comes in */
    for (int i = 0; i < ROUNDS; i++)
        HOLDS(pp3_step(w->engine, c->step, c->step_bytes, 0, FAR) == i + 1);
    pump_all(p, to);
    HOLDS(hand->in_hand == ROUNDS && to->sent_bytes > ROUNDS * c->step_bytes);
    if (how & FIRST_FAILED) {
        uint64_t word = 0;
        HOLDS(pp3_resolve(w->engine, 1, PP3_CANCELLED, &word) == 0);
    }
    wire.at = first;
    wire.end = last;
    pump_all(p, to);
    to->received = p->received;
    to->rounds_left = hand->in_hand;
    look(w, c, to);
    (void)pp3_hand_fail_all(hand, PP3_STATUS_REFUSED);
    pp3_pump_free(p);
    pp3_hand_free(hand);
}

static void hold_same(const struct outcome *one, const struct outcome *other, size_t room)
{
    HOLDS(one->returns == other->returns);
    HOLDS(memcmp(one->why, other->why, sizeof one->why) == 0);
    HOLDS(memcmp(one->error, other->error, sizeof one->error) == 0);
    HOLDS(memcmp(one->subject, other->subject, sizeof one->subject) == 0);
    HOLDS(one->received == other->received && one->rounds_left == other->rounds_left);
    HOLDS(memcmp(one->word, other->word, sizeof one->word) == 0);
    HOLDS(memcmp(one->counted, other->counted, sizeof one->counted) == 0);
    HOLDS(one->sent_bytes == other->sent_bytes);
    HOLDS(memcmp(one->sent, other->sent, one->sent_bytes) == 0);
    HOLDS(memcmp(one->page, other->page, ROUNDS * room) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < PREFIX)
        return -1;
    int chosen = data[0] % STREAMED;
    struct world *w = &worlds[chosen];
    const struct fuzz_case *c = &cases[chosen];
    wire.at = data + PREFIX;
    wire.end = data + size;
    wire.cut = NULL;
    run(w, c, data[1], &w->whole);
    wire.at = data + PREFIX;
    wire.end = data + size;
    wire.cut = data + 2;
    run(w, c, data[1], &w->cut);
    hold_same(&w->whole, &w->cut, pp3_page_at(&c->l).end);
    return 0;
}

/* ---- the mutator ------------------------------------------------------------------ */

enum { HEADER = 40, KNOWN = 8 };

/* Where whole frames begin, by the lengths they announce; how many. */
static uint32_t frames_of(const uint8_t *data, size_t size, size_t *at)
{
    uint32_t n = 0;
    size_t here = PREFIX;
    while (n < KNOWN && size - here >= HEADER + 4) {
        uint32_t body = word_at(data + here + 12);
        if (body < 4 || body > size - here - HEADER)
            break;
        at[n++] = here;
        here += HEADER + body;
    }
    at[n] = here;
    return n;
}

static void seal(uint8_t *frame, size_t bytes)
{
    uint32_t crc = pp3_crc32(0, frame + HEADER, bytes - HEADER - 4);
    memcpy(frame + bytes - 4, &crc, 4);
}

static size_t repeat(struct draws *d, uint8_t *data, size_t size, size_t most,
                     const size_t *at, uint32_t n)
{
    uint32_t which = draw(d, n);
    size_t bytes = at[which + 1] - at[which], to = at[draw(d, n + 1)];
    if (bytes > most - size || bytes > 4096)
        return size;
    uint8_t frame[4096];
    memcpy(frame, data + at[which], bytes);
    memmove(data + to + bytes, data + to, size - to);
    memcpy(data + to, frame, bytes);
    return size + bytes;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    struct draws d = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1};
    size_t at[KNOWN + 1];
    if (plain() || size < PREFIX || draw(&d, 8) == 0)
        return LLVMFuzzerMutate(data, size, most);
    if (draw(&d, 2) == 0)
        data[draw(&d, PREFIX)] = (uint8_t)draw(&d, 256);
    uint32_t n = frames_of(data, size, at);
    if (n == 0)
        return LLVMFuzzerMutate(data, size, most);
    if (draw(&d, 4) == 0) {
        size = repeat(&d, data, size, most, at, n);
        n = frames_of(data, size, at);
    } else {
        uint32_t which = draw(&d, n);
        size_t begin = at[which] + (draw(&d, 4) ? HEADER : 0);
        change_word(&d, data + begin, at[which + 1] - begin);
        n = frames_of(data, size, at);
    }
    if (draw(&d, 8) != 0) { /* a running sequence, and every CRC right */
        const struct fuzz_case *c = &cases[data[0] % STREAMED];
        for (uint32_t i = 0; i < n; i++) {
            uint64_t sequence = c->sequence + i;
            memcpy(data + at[i] + 16, &sequence, 8);
            seal(data + at[i], at[i + 1] - at[i]);
        }
    }
    return draw(&d, 32) ? size : PREFIX + draw(&d, (uint32_t)(size - PREFIX + 1));
}
