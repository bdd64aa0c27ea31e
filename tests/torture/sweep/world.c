/* A fresh region for each try, its ends, and bytes that name their round. */
#include "sweep.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct board *board;
struct world *the_world;

enum { REQUEST = 1, HEAD = 2, TEMPLATE = 3, REPLY = 1000 /* plus the owner */ };
static uint64_t templates[PP3_CAUSES * FAILED_WORDS];
static const uint64_t statuses[PP3_CAUSES] = {PP3_EXPIRED, PP3_ORPHANED, PP3_CANCELLED};

/* ---- the false clock: the product's, set ahead so that deadlines pass ---- */

uint64_t __real_pp3_now(void);
uint64_t __wrap_pp3_now(void);
int __real_pp3_futex_wait(PP3_A32 *word, uint32_t seen, uint64_t until_ns);
int __wrap_pp3_futex_wait(PP3_A32 *word, uint32_t seen, uint64_t until_ns);

uint64_t __wrap_pp3_now(void)
{
    return __real_pp3_now() + PP3_LOAD(&board->skew_ns, acquire);
}

int __wrap_pp3_futex_wait(PP3_A32 *word, uint32_t seen, uint64_t until_ns)
{
    return __real_pp3_futex_wait(word, seen,
                                 until_ns - PP3_LOAD(&board->skew_ns, acquire));
}

uint64_t deadline(void) { return pp3_now() + PATIENCE_NS; }
void let_deadlines_pass(void) { PP3_ADD(&board->skew_ns, 2 * PATIENCE_NS, acq_rel); }

/* ---- what went wrong ---- */

void wrong(struct world *w, const char *format, ...)
{
    va_list list;

    if (w->fault[0])
        return;
    va_start(list, format);
    (void)vsnprintf(w->fault, sizeof w->fault, format, list);
    va_end(list);
}

/* What the victim's operation returned, and what it had to. */
void result(int64_t code) { PP3_STORE(&board->result, (uint64_t)code, relaxed); }

void expect_result(struct world *w, int64_t code)
{
    int64_t found = (int64_t)PP3_LOAD(&board->result, relaxed);

    if (found != code)
        wrong(w, "the operation ended with %lld, expected %lld", (long long)found,
              (long long)code);
}

const char *word_text(uint64_t word, char *text, size_t bytes)
{
    static const char *const names[] = {"free", "claimed", "writing", "published"};
    uint32_t state = pp3_state(word);

    (void)snprintf(
        text, bytes, "%llu %s%.0u page %u owner %u",
        (unsigned long long)pp3_ticket(word), state < 4 ? names[state] : "failed ",
        state < 4 ? 0 : state - PP3_FAILED, pp3_page_of(word), pp3_owner_of(word));
    return text;
}

/* ---- bytes ---- */

uint64_t pattern(uint64_t kind, uint64_t ticket, uint64_t i)
{
    uint64_t x = kind * UINT64_C(0x94d049bb133111eb) +
                 ticket * UINT64_C(0x9e3779b97f4a7c15) +
                 (i + 1) * UINT64_C(0xbf58476d1ce4e5b9);

    return x ^ x >> 29;
}

void fill_page(struct pp3_ring *r, uint64_t word)
{
    volatile uint64_t *to = (volatile uint64_t *)(void *)pp3_page(r, word);
    uint64_t t = pp3_ticket(word);

    to[0] = t;
    for (uint64_t i = 1; i < PAGE_WORDS; i++)
        to[i] = pattern(REPLY + pp3_owner_of(word), t, i);
}

static int same(const uint8_t *bytes, uint64_t kind, uint64_t t, uint64_t n)
{
    const volatile uint64_t *at = (const volatile uint64_t *)(const void *)bytes;
    int whole = at[0] == t;

    for (uint64_t i = 1; i < n; i++)
        whole &= at[i] == pattern(kind, t, i);
    return whole;
}

int request_whole(struct pp3_ring *r, uint64_t word)
{
    return same(pp3_request(r, word), REQUEST, pp3_ticket(word), REQUEST_WORDS);
}

static int failed_whole(const uint8_t *bytes, uint64_t t, uint64_t cause)
{
    const volatile uint64_t *at = (const volatile uint64_t *)(const void *)bytes;
    int whole =
        at[0] == t && at[1] == statuses[cause] && at[2] == pattern(HEAD, t, cause);

    for (uint64_t i = HEAD_WORDS; i < FAILED_WORDS; i++)
        whole &= at[i] == pattern(TEMPLATE, cause, i);
    return whole;
}

/* Every byte of what a resolved word points to. */
int reply_whole(struct pp3_ring *r, uint64_t word)
{
    uint32_t index;
    int status = pp3_read(r, word, &index);

    if (status == 0)
        return same(pp3_page(r, word), REPLY + pp3_owner_of(word), pp3_ticket(word),
                    PAGE_WORDS);
    return status > 0 && failed_whole(r->failed + index * r->failed_stride,
                                      pp3_ticket(word), index % PP3_CAUSES);
}

static void heads_of(uint64_t t, uint64_t *heads)
{
    for (uint64_t k = 0; k < PP3_CAUSES; k++) {
        heads[k * HEAD_WORDS] = 0; /* the core stamps the ticket */
        heads[k * HEAD_WORDS + 1] = statuses[k];
        heads[k * HEAD_WORDS + 2] = pattern(HEAD, t, k);
    }
}

int64_t next_claim(struct pp3_ring *engine)
{
    uint64_t heads[PP3_CAUSES * HEAD_WORDS];

    heads_of(engine->engine->next, heads);
    return pp3_claim(engine, heads, deadline());
}

int64_t next_step(struct pp3_ring *engine)
{
    uint64_t heads[PP3_CAUSES * HEAD_WORDS], request[REQUEST_WORDS];
    uint64_t t = engine->engine->next;

    heads_of(t, heads);
    request[0] = 0;
    for (uint64_t i = 1; i < REQUEST_WORDS; i++)
        request[i] = pattern(REQUEST, t, i);
    return pp3_step(engine, request, sizeof request, heads, deadline());
}

/* ---- ends ---- */

/* 0 not mapped, 1 read, 2 read and write; as WRITABLE of record.py. */
static const int mapped[3][5] = {{2, 2, 2, 2, 2}, {2, 1, 2, 0, 0}, {2, 0, 1, 1, 2}};

static void map_all(struct world *w, struct end *end, enum role role,
                    struct pp3_parts *parts)
{
    uint8_t **to[5] = {&parts->control, &parts->slots, &parts->pages, &parts->failed,
                       &parts->acks};
    int error = 0;

    for (int i = 0; i < 5; i++) {
        end->at[i] = mapped[role][i] ? pp3_map(w->fds[i], w->shape.bytes[i],
                                               mapped[role][i] == 2, &error)
                                     : 0;
        *to[i] = end->at[i];
        if (error)
            wrong(w, "map: error %d", error);
    }
}

void end_open(struct world *w, struct end *end, enum role role, uint32_t owner)
{
    struct pp3_record record;
    struct pp3_parts parts;
    int error;

    map_all(w, end, role, &parts);
    pp3_record_fill(&record, &w->shape);
    record.owner = owner;
    end->ring =
        pp3_ring_attach(&record, &parts, role == PROXY ? w->bell_fd : -1, &error);
    if (!end->ring)
        wrong(w, "attach: error %d", error);
}

void end_create(struct world *w, struct end *end)
{
    struct pp3_parts parts;
    int error;

    map_all(w, end, ENGINE, &parts);
    end->ring = pp3_ring_create(&w->shape, &parts, (const uint8_t *)templates, &error);
    if (!end->ring)
        wrong(w, "create: error %d", error);
}

void end_close(struct world *w, struct end *end)
{
    unsigned forks = pp3_fork_count();

    pp3_ring_free(end->ring);
    end->ring = 0;
    for (int i = 0; i < 5; i++) {
        pp3_unmap(end->at[i], w->shape.bytes[i], forks);
        end->at[i] = 0;
    }
}

/* ---- the region ---- */

void world_open(struct world *w)
{
    for (uint64_t i = 0; i < PP3_CAUSES * FAILED_WORDS; i++)
        templates[i] = pattern(TEMPLATE, i / FAILED_WORDS, i % FAILED_WORDS);
    memset(board, 0, sizeof *board);
    w->shape = (struct pp3_shape){.rounds = ROUNDS,
                                  .pages = PAGES,
                                  .ranks = RANKS,
                                  .page_bytes = 8 * PAGE_WORDS,
                                  .request_bytes = 8 * REQUEST_WORDS,
                                  .failed_bytes = 8 * FAILED_WORDS,
                                  .head_bytes = 8 * HEAD_WORDS,
                                  .slots = SLOTS,
                                  .max_positions = POSITIONS};
    if (pp3_shape_fill(&w->shape))
        abort();
    for (int i = 0; i < 5; i++) {
        w->fds[i] = memfd_create("pp3shm-sweep", MFD_CLOEXEC);
        if (w->fds[i] < 0 || ftruncate(w->fds[i], (off_t)w->shape.bytes[i]) != 0)
            abort();
    }
    w->self_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    w->victim_fd = w->bell_fd = -1;
}

void world_close(struct world *w)
{
    end_close(w, &w->engine);
    end_close(w, &w->proxy);
    end_close(w, &w->rank);
    for (int i = 0; i < 5; i++)
        (void)close(w->fds[i]);
    (void)close(w->self_fd);
    if (w->victim_fd >= 0)
        (void)close(w->victim_fd);
    if (w->bell_fd >= 0)
        (void)close(w->bell_fd);
}
