/* Making a region, attaching to one, and the calls that are not the protocol's. */
#include "ring/ring.h"
#include "ring/recorder.h"
#include "ring/slots.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* "pp3shm" and a kind, as little-endian words */
#define REGION_MAGIC UINT64_C(0x6e67526d68733370)
#define RECORD_MAGIC UINT64_C(0x6365526d68733370)
#define BYTE_ORDER_MARK UINT32_C(0x01020304)

/* These belong to the format, not to the compiler. */
_Static_assert(sizeof(struct pp3_entry) == 2 * PP3_LINE, "entry");
_Static_assert(sizeof(struct pp3_shape) == 136, "shape");
_Static_assert(sizeof(struct pp3_record) == 168, "record");
_Static_assert(sizeof(struct pp3_header) % PP3_LINE == 0, "header");
_Static_assert(sizeof(struct pp3_slot) == PP3_LINE, "slot");
_Static_assert(sizeof(struct pp3_flight) == PP3_LINE / 2, "flight");
_Static_assert(sizeof(struct pp3_flights) == PP3_LINE * (1 + PP3_FLIGHTS / 2),
               "flights");
_Static_assert(sizeof(PP3_A64) == 8 && sizeof(PP3_A32) == 4, "words");

/* ---- shapes and records ----------------------------------------------------------- */

static uint64_t lines(uint64_t bytes)
{
    return (bytes + PP3_LINE - 1) / PP3_LINE * PP3_LINE;
}

void pp3_shape_places(const struct pp3_shape *s, struct pp3_places *p)
{
    /* pages begin on a page of the machine's, so that a device can register them */
    p->page_stride = ((uint64_t)s->page_bytes + 4095) / 4096 * 4096;
    p->request_start = s->pages * p->page_stride;
    p->request_stride = lines(s->request_bytes);
    p->failed_stride = lines(s->failed_bytes);
    p->slot_stride = sizeof(struct pp3_slot) + lines(4 * (uint64_t)s->max_positions);
    p->ack_stride = lines(8 * (uint64_t)s->rounds);
}

static const char *shape_fault(const struct pp3_shape *s)
{
    const uint32_t most = UINT32_C(1) << 28;

    if (s->rounds < 1 || s->rounds > PP3_MAX_ROUNDS)
        return "rounds";
    if (s->pages < s->rounds || s->pages > PP3_MAX_PAGES)
        return "pages";
    if (s->ranks < 1 || s->ranks > PP3_MAX_RANKS)
        return "ranks";
    if (s->head_bytes < 8 || s->head_bytes > most)
        return "head_bytes";
    if (s->failed_bytes < s->head_bytes || s->failed_bytes > most)
        return "failed_bytes";
    if (s->page_bytes < 8 || s->page_bytes > most)
        return "page_bytes";
    if (s->request_bytes < 8 || s->request_bytes > most)
        return "request_bytes";
    if (s->slots < 1 || s->slots > 4096)
        return "slots";
    if (s->max_positions < 1 || s->max_positions > most)
        return "max_positions";
    return 0;
}

/* Sets what follows from the rest: abi, byte order, bytes. NULL, or the bad field. */
const char *pp3_shape_fill(struct pp3_shape *s)
{
    const char *fault = shape_fault(s);
    struct pp3_places p;

    if (fault)
        return fault;
    pp3_shape_places(s, &p);
    s->abi = PP3_ABI;
    s->byte_order = BYTE_ORDER_MARK;
    s->zero = 0;
    s->bytes[0] = lines(sizeof(struct pp3_header) +
                        (uint64_t)s->rounds * sizeof(struct pp3_entry) +
                        8 * (uint64_t)s->pages);
    s->bytes[1] = s->slots * p.slot_stride;
    s->bytes[2] = p.request_start + s->pages * p.request_stride;
    s->bytes[3] = (uint64_t)s->rounds * PP3_CAUSES * p.failed_stride;
    s->bytes[4] = s->ranks * (p.ack_stride + sizeof(struct pp3_flights));
    return 0;
}

void pp3_record_fill(struct pp3_record *record, const struct pp3_shape *shape)
{
    memset(record, 0, sizeof *record);
    record->magic = RECORD_MAGIC;
    record->shape = *shape;
    record->clock_ns = pp3_now();
}

uint64_t pp3_record_magic(void) { return RECORD_MAGIC; }
uint64_t pp3_magic(void) { return REGION_MAGIC; }

uint64_t pp3_region_magic(const uint8_t *control)
{
    return PP3_LOAD(&((struct pp3_header *)(uintptr_t)control)->magic, acquire);
}

void pp3_region_shape(const uint8_t *control, struct pp3_shape *shape)
{
    memcpy(shape, &((const struct pp3_header *)(const void *)control)->shape,
           sizeof *shape);
}

/* ---- ends ------------------------------------------------------------------------- */

static struct pp3_ring *new_end(const struct pp3_shape *s, const struct pp3_parts *parts,
                                int *error)
{
    struct pp3_shape own = *s;
    struct pp3_places places;
    struct pp3_ring *r;

    pp3_watch_forks();
    *error = EINVAL;
    if (!parts->control || pp3_shape_fill(&own) ||
        memcmp(own.bytes, s->bytes, sizeof own.bytes) != 0)
        return 0;
    *error = ENOMEM;
    r = calloc(1, sizeof *r);
    if (!r)
        return 0;
    r->rounds = s->rounds;
    r->pages = s->pages;
    r->ranks = s->ranks;
    r->page_bytes = s->page_bytes;
    r->request_bytes = s->request_bytes;
    r->failed_bytes = s->failed_bytes;
    r->head_bytes = s->head_bytes;
    r->slots = s->slots;
    r->max_positions = s->max_positions;
    r->forks = pp3_forks;
    pp3_shape_places(s, &places);
    r->page_stride = places.page_stride;
    r->request_stride = places.request_stride;
    r->failed_stride = places.failed_stride;
    r->slot_stride = places.slot_stride;
    r->ack_words = places.ack_stride / 8;
    r->header = (struct pp3_header *)(void *)parts->control;
    r->entries = (struct pp3_entry *)(void *)(parts->control + sizeof *r->header);
    r->give = (PP3_A64 *)(void *)(r->entries + s->rounds);
    r->acks = (PP3_A64 *)(void *)parts->acks;
    r->page = parts->pages;
    r->request = parts->pages ? parts->pages + places.request_start : 0;
    r->failed = parts->failed;
    r->slot = parts->slots;
    r->bell_fd = -1;
    *error = 0;
    return r;
}

static struct pp3_engine *new_engine(const struct pp3_shape *s)
{
    struct pp3_engine *g = calloc(1, sizeof *g);

    if (!g)
        return 0;
    g->nudge_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    g->claimed = calloc(s->rounds, 8);
    g->disposed = calloc(s->rounds, 8);
    g->untold = calloc(s->rounds, 8);
    g->streamed = calloc(s->rounds, 8);
    g->free_page = calloc(s->pages, sizeof *g->free_page);
    g->quarantine = calloc(s->pages, sizeof *g->quarantine);
    g->asked_ns = calloc(s->pages, 8);
    g->slot = calloc(s->slots, sizeof *g->slot);
    g->next = 1;
    for (uint32_t k = 0; k < PP3_MAX_RANKS; k++)
        g->rank[k].pidfd = -1;
    PP3_STORE(&g->rank[0].life, PP3_LIVING, relaxed); /* the engine's own process */
    return g;
}

static int engine_whole(const struct pp3_engine *g)
{
    return g && g->nudge_fd >= 0 && g->claimed && g->disposed && g->untold &&
           g->streamed && g->free_page && g->quarantine && g->asked_ns && g->slot;
}

/* Over fresh, all-zero segments; templates: 3 x failed_bytes for statuses 2, 7, 8. */
struct pp3_ring *pp3_ring_create(const struct pp3_shape *s,
                                 const struct pp3_parts *parts,
                                 const uint8_t *templates, int *error)
{
    struct pp3_ring *r = new_end(s, parts, error);

    if (!r)
        return 0;
    errno = 0;
    r->bell_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    r->engine = new_engine(s);
    if (!engine_whole(r->engine) || r->bell_fd < 0 || !parts->slots || !parts->pages ||
        !parts->failed || !parts->acks) {
        *error = errno != 0 ? errno : EINVAL; /* of the call that failed last */
        pp3_ring_free(r);
        return 0;
    }
    while (r->engine->free_count < r->pages) { /* lowest page on top */
        uint32_t k = r->engine->free_count++;
        r->engine->free_page[k] = r->pages - 1 - k;
    }
    for (uint32_t e = 0; e < r->rounds * PP3_CAUSES; e++)
        memcpy(r->failed + e * r->failed_stride,
               templates + (size_t)(e % PP3_CAUSES) * r->failed_bytes, r->failed_bytes);
    memcpy(pp3_flights_of(r, 0)->epoch, s->epoch, sizeof s->epoch);
    memcpy(&r->header->shape, s, sizeof *s);
    PP3_STORE(&r->header->magic, REGION_MAGIC, release); /* last: now it is one */
    return r;
}

/* The record has been compared with the header. A proxy starts a lap before the largest
 * ticket there is: whatever it could still take stands there. */
struct pp3_ring *pp3_ring_attach(const struct pp3_record *record,
                                 const struct pp3_parts *parts, int bell_fd, int *error)
{
    struct pp3_ring *r = new_end(&record->shape, parts, error);
    uint64_t largest = 0;

    if (!r)
        return 0;
    r->owner = record->owner;
    r->bell_fd = bell_fd < 0 ? -1 : fcntl(bell_fd, F_DUPFD_CLOEXEC, 3);
    if (r->owner > PP3_MAX_OWNERS || (bell_fd >= 0 && r->bell_fd < 0)) {
        *error = r->owner > PP3_MAX_OWNERS ? EINVAL : errno;
        pp3_ring_free(r);
        return 0;
    }
    for (uint32_t e = 0; e < r->rounds; e++) {
        uint64_t t = pp3_ticket(PP3_LOAD(&r->entries[e].state, acquire));
        largest = t > largest ? t : largest;
    }
    r->cursor = largest > r->rounds ? largest - r->rounds : 0;
    return r;
}

void pp3_ring_free(struct pp3_ring *r)
{
    struct pp3_engine *g = r ? r->engine : 0;

    if (!r)
        return;
    if (g) {
        for (uint32_t k = 0; k < PP3_MAX_RANKS; k++)
            if (g->rank[k].pidfd >= 0)
                (void)close(g->rank[k].pidfd);
        if (g->nudge_fd >= 0)
            (void)close(g->nudge_fd);
        free(g->claimed);
        free(g->disposed);
        free(g->untold);
        free(g->streamed);
        free(g->free_page);
        free(g->quarantine);
        free(g->asked_ns);
        free(g->slot);
        free(g);
    }
    if (r->bell_fd >= 0)
        (void)close(r->bell_fd);
    free(r);
}

int pp3_here(const struct pp3_ring *r) { return PP3_HERE(r) ? 0 : -EOWNERDEAD; }

uint64_t pp3_bad_word(struct pp3_ring *r) { return PP3_LOAD(&r->bad_word, relaxed); }

/* ---- the engine ------------------------------------------------------------------- */

/* A claim, with what is told to people: when each page was asked for, and how many are
 * in quarantine. */
int64_t pp3_ask(struct pp3_ring *r, const void *heads, uint64_t deadline_ns)
{
    struct pp3_engine *g = r->engine;
    int64_t t = pp3_claim(r, heads, deadline_ns);

    if (!PP3_HERE(r) || !g)
        return t;
    if (t > 0) {
        g->asked_ns[pp3_page_of(g->claimed[(uint64_t)t % r->rounds])] = pp3_now();
        pp3_trace_clear(r, (uint64_t)t);
    }
    if (g->held_count != g->told_count) { /* a difference, which may be negative */
        pp3_count(r, PP3_COUNT_QUARANTINED, (uint64_t)g->held_count - g->told_count);
        g->told_count = g->held_count;
    }
    return t;
}

/* Claim, copy, stamp, submit. The ring knows of the layout that offset 0 of a request,
 * a page and a failed buffer is the ticket, and nothing else. */
int64_t pp3_step(struct pp3_ring *r, const void *request, uint32_t bytes,
                 const void *heads, uint64_t deadline_ns)
{
    int64_t t;
    uint8_t *to;
    int error;

    if (bytes < 8 || bytes > r->request_bytes)
        return -EMSGSIZE;
    t = pp3_ask(r, heads, deadline_ns);
    if (t < 0)
        return t;
    to = pp3_request_of(r, (uint64_t)t);
    PP3_COPY(to, request, bytes);
    PP3_STAMP(to, (uint64_t)t);
    error = pp3_submit(r, (uint64_t)t);
    return error < 0 ? error : t;
}

static int stream_mark(struct pp3_ring *r, uint64_t t, uint64_t mark)
{
    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!r->engine || t == 0)
        return -EINVAL;
    if (pp3_ticket(r->engine->claimed[t % r->rounds]) != t)
        return -ESTALE;
    r->engine->streamed[t % r->rounds] = mark;
    return 0;
}

int pp3_stream_hold(struct pp3_ring *r, uint64_t t) { return stream_mark(r, t, t); }
int pp3_stream_done(struct pp3_ring *r, uint64_t t) { return stream_mark(r, t, 0); }

static uint64_t asked_at(const struct pp3_ring *r, uint64_t t)
{
    uint64_t own = r->engine->claimed[t % r->rounds];

    return t != 0 && pp3_ticket(own) == t ? r->engine->asked_ns[pp3_page_of(own)] : 0;
}

void pp3_why(struct pp3_ring *r, struct pp3_why *why)
{
    struct pp3_engine *g = r->engine;

    memset(why, 0, sizeof *why);
    if (!PP3_HERE(r) || !g)
        return;
    why->rank = g->behind;
    why->ticket = g->behind_ticket;
    why->asked_ns = asked_at(r, why->ticket);
    why->quarantined = g->held_count;
    why->free_pages = g->free_count;
    for (uint32_t i = 0; i < g->held_count; i++) {
        const struct pp3_held *h = &g->quarantine[i];
        uint8_t *count = &why->owner[h->owner];
        why->owners += *count == 0;
        *count = (uint8_t)(*count < 255 ? *count + 1 : 255);
        if (why->held_ticket == 0 || h->ticket < why->held_ticket) {
            why->held_ticket = h->ticket;
            why->held_owner = h->owner;
            why->held_asked_ns = g->asked_ns[h->page]; /* not claimed since */
        }
    }
}

/* The claiming thread: the oldest round that is open (-EAGAIN) or that somebody has not
 * released (-EBUSY), whether a claim has met it yet or not; 0 where there is none. */
int pp3_oldest(struct pp3_ring *r, struct pp3_why *why)
{
    struct pp3_engine *g = r->engine;
    int found = 0;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!g)
        return -EINVAL;
    for (uint64_t t = g->next > r->rounds ? g->next - r->rounds : 1;
         found == 0 && t < g->next; t++) {
        uint64_t word = 0;
        if (pp3_ticket(g->claimed[t % r->rounds]) != t)
            continue; /* never claimed: pp3_skip_tickets */
        (void)pp3_word(r, t, &word);
        found = pp3_resolved(word) ? pp3_acknowledged(r, (uint32_t)(t % r->rounds), t)
                                   : pp3_behind(g, -1, t, -EAGAIN);
    }
    pp3_why(r, why);
    return found;
}

/* Of a rank other than 0, once all are attached: a claim has seen it then. */
int pp3_rank_pidfd(struct pp3_ring *r, uint32_t rank)
{
    const struct pp3_engine *g = r->engine;

    return PP3_HERE(r) && g && g->all_attached && rank < r->ranks ? g->rank[rank].pidfd
                                                                   : -1;
}

/* From the thread that hands regions over, before the first claim: the pidfd was taken
 * before the handover, and is copied. Once per rank. */
int pp3_rank_attach(struct pp3_ring *r, uint32_t rank, int pidfd)
{
    struct pp3_engine *g = r->engine;
    int own;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!g || rank == 0 || rank >= r->ranks || pidfd < 0 ||
        PP3_LOAD(&g->rank[rank].life, acquire) != PP3_UNUSED)
        return -EINVAL;
    own = fcntl(pidfd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        return -errno;
    g->rank[rank].pidfd = own;
    PP3_STORE(&g->rank[rank].life, PP3_LIVING, release /* E7 */);
    pp3_fd_ring(g->nudge_fd); /* the watchdog polls it from now on */
    return 0;
}

int pp3_rank_dead(struct pp3_ring *r, uint32_t rank)
{
    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!r->engine || rank >= r->ranks)
        return -EINVAL;
    return pp3_rank_gone(r->engine, rank);
}

int pp3_owner_add_thread(struct pp3_ring *r) { return pp3_owner_add(r); }
int pp3_owner_dead(struct pp3_ring *r, uint32_t owner)
{
    return pp3_owner_gone(r, owner);
}

/* For tests of the end of all tickets: before the first claim, and no proxy follows. */
int pp3_skip_tickets(struct pp3_ring *r, uint64_t next)
{
    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!r->engine || r->engine->next != 1 || next == 0 || next > PP3_LAST_TICKET)
        return -EINVAL;
    r->engine->next = next;
    return 0;
}

uint64_t pp3_state_offset(struct pp3_ring *r, uint64_t t)
{
    return (uint64_t)((uint8_t *)&pp3_entry_of(r, t)->state - (uint8_t *)r->header);
}

uint64_t pp3_bell_offset(struct pp3_ring *r, uint64_t t)
{
    return (uint64_t)((uint8_t *)&pp3_entry_of(r, t)->bell - (uint8_t *)r->header);
}

/* ---- the proxy and everybody ------------------------------------------------------ */

/* Awake again. A ring drained here belonged to a bell that this thread looks at before
 * it sleeps next, after another pp3_work_prepare: none is lost. */
void pp3_work_done(struct pp3_ring *r)
{
    uint64_t rings;

    if (!PP3_HERE(r))
        return;
    PP3_ADD(&r->header->work_waiters, UINT32_MAX /* -1 */, relaxed);
    if (read(r->bell_fd, &rings, sizeof rings) < 0)
        return; /* not rung */
}

int pp3_bell_fd(struct pp3_ring *r) { return r->bell_fd; }

int pp3_word(struct pp3_ring *r, uint64_t t, uint64_t *word)
{
    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    *word = PP3_LOAD(&pp3_entry_of(r, t)->state, acquire);
    return 0;
}
