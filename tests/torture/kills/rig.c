#include "rig.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { REQUEST_BYTES = 256, FAILED_BYTES = 64, HEAD_BYTES = 24 };

struct board *board;
int board_fd;
_Thread_local _Atomic uint32_t *rig_where;
_Thread_local uint64_t rig_seed;

uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * UINT64_C(0x9e3779b97f4a7c15) + b + 1;

    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t roll(uint64_t below)
{
    rig_seed = mix(rig_seed, 17);
    return below ? rig_seed % below : 0;
}

void pause_ns(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};

    (void)nanosleep(&t, 0);
}

bool within(uint64_t begin_ns, uint64_t limit_ns)
{
    return pp3_now() - begin_ns < limit_ns;
}

void bad(const char *what, uint64_t ticket, uint64_t found)
{
    uint32_t none = 0;

    if (atomic_compare_exchange_strong(&board->bad, &none, 1))
        (void)snprintf(board->text, sizeof board->text, "%s: round %llu, found %llx",
                       what, (unsigned long long)ticket, (unsigned long long)found);
}

bool is_bad(void) { return atomic_load(&board->bad) != 0; }

void here(uint32_t point)
{
    if (rig_where)
        atomic_store_explicit(rig_where, point, memory_order_relaxed);
}

void rig_step(int point)
{
    if (!rig_where) /* the watchdog's thread, and programs that want no pauses */
        return;
    here((uint32_t)point);
    if (roll(12) == 0)
        pause_ns(roll(120000));
}

int rig_fault(int number)
{
    static _Atomic int planted = -1;

    if (planted < 0) {
        const char *asked = getenv("RIG_FAULT");
        planted = asked ? atoi(asked) : 0;
    }
    return planted == number;
}

int count_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

/* ---- the region ------------------------------------------------------------------- */

static void must(bool held, const char *what)
{
    if (held)
        return;
    perror(what);
    exit(3);
}

void board_take(int fd)
{
    board_fd = fd;
    board = mmap(0, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(board != MAP_FAILED, "board");
}

void board_make(void)
{
    int fd = memfd_create("board", MFD_CLOEXEC);

    must(fd >= 0 && ftruncate(fd, sizeof *board) == 0, "board");
    board_take(fd);
}

struct region region_make(uint32_t rounds, uint32_t pages, uint32_t ranks,
                          uint32_t page_bytes)
{
    struct region g = {.shape = {.rounds = rounds, .pages = pages, .ranks = ranks,
                                 .page_bytes = page_bytes, .slots = 1,
                                 .request_bytes = REQUEST_BYTES, .max_positions = 8,
                                 .failed_bytes = FAILED_BYTES,
                                 .head_bytes = HEAD_BYTES}};

    must(!pp3_shape_fill(&g.shape), "shape");
    for (int i = 0; i < SEGMENTS; i++) {
        g.fd[i] = memfd_create("segment", MFD_CLOEXEC);
        must(g.fd[i] >= 0 && ftruncate(g.fd[i], (off_t)g.shape.bytes[i]) == 0, "memfd");
    }
    return g;
}

/* As pp3shm/ring/record.py has it: what a role maps, and what of it for writing. */
static const int maps[3][SEGMENTS] = {
    [ENGINE] = {2, 2, 2, 2, 2}, [PROXY] = {2, 1, 2, 0, 0}, [RANK] = {2, 0, 1, 1, 2}};

static void region_map(struct region *g, enum role role)
{
    uint8_t **part[SEGMENTS] = {&g->parts.control, &g->parts.slots, &g->parts.pages,
                                &g->parts.failed, &g->parts.acks};
    int error;

    for (int i = 0; i < SEGMENTS; i++) {
        *part[i] = 0;
        if (!maps[role][i])
            continue;
        *part[i] = pp3_map(g->fd[i], g->shape.bytes[i], maps[role][i] == 2, &error);
        must(*part[i] != 0, "map");
    }
}

void region_unmap(struct region *g)
{
    uint8_t *part[SEGMENTS] = {g->parts.control, g->parts.slots, g->parts.pages,
                               g->parts.failed, g->parts.acks};

    for (int i = 0; i < SEGMENTS; i++)
        pp3_unmap(part[i], g->shape.bytes[i], pp3_fork_count());
}

void region_close(struct region *g)
{
    for (int i = 0; i < SEGMENTS; i++)
        if (g->fd[i] >= 0)
            (void)close(g->fd[i]);
}

struct pp3_ring *region_engine(struct region *g)
{
    static const int causes[PP3_CAUSES] = {2, 7, 8};
    uint64_t templates[PP3_CAUSES][FAILED_BYTES / 8];
    struct pp3_ring *r;
    int error;

    for (int k = 0; k < (int)PP3_CAUSES; k++)
        for (uint32_t i = 0; i < FAILED_BYTES / 8; i++)
            templates[k][i] = mix((uint64_t)causes[k], i);
    region_map(g, ENGINE);
    r = pp3_ring_create(&g->shape, &g->parts, (const uint8_t *)templates, &error);
    must(r != 0, "engine");
    return r;
}

struct pp3_ring *region_attach(struct region *g, enum role role, uint32_t number,
                               int bell)
{
    struct pp3_record record;
    struct pp3_ring *r;
    int error;

    region_map(g, role);
    pp3_record_fill(&record, &g->shape);
    record.role = (uint32_t)role;
    record.owner = role == PROXY ? number : 0;
    record.rank = role == RANK ? number : 0;
    r = pp3_ring_attach(&record, &g->parts, bell, &error);
    must(r != 0, "attach");
    return r;
}

/* ---- payloads --------------------------------------------------------------------- */

void fill_heads(uint64_t *heads, uint64_t ticket)
{
    static const uint64_t causes[PP3_CAUSES] = {2, 7, 8};

    for (uint32_t k = 0; k < PP3_CAUSES; k++) {
        heads[3 * k] = 0; /* the ring stamps the ticket */
        heads[3 * k + 1] = mix(ticket, causes[k]);
        heads[3 * k + 2] = causes[k];
    }
}

static bool failed_is(const uint64_t *words, uint64_t ticket, uint64_t status)
{
    if (words[0] != ticket || words[1] != mix(ticket, status) || words[2] != status)
        return false;
    for (uint32_t i = HEAD_BYTES / 8; i < FAILED_BYTES / 8; i++)
        if (words[i] != mix(status, i))
            return false;
    return true;
}

void fill_request(struct pp3_ring *r, uint8_t *request, uint64_t ticket)
{
    uint64_t *words = (uint64_t *)(void *)request;

    words[0] = ticket;
    for (uint32_t i = 1; i < r->request_bytes / 8; i++)
        words[i] = mix(~ticket, i);
}

bool request_is(struct pp3_ring *r, const uint8_t *request, uint64_t ticket)
{
    const volatile uint64_t *words = (const volatile uint64_t *)(const void *)request;

    for (uint32_t i = 0; i < r->request_bytes / 8; i++)
        if (words[i] != (i ? mix(~ticket, i) : ticket))
            return false;
    return true;
}

bool is_answered(uint64_t ticket)
{
    return atomic_load(&board->calm) || mix(ticket, 99) % 16 != 0;
}

bool is_rung(uint64_t ticket)
{
    return is_answered(ticket) || mix(ticket, 98) % 2 != 0;
}

uint32_t page_words(const struct pp3_ring *r) { return r->page_bytes / 8; }

uint64_t page_word(uint64_t ticket, uint32_t i) { return i ? mix(ticket, i) : ticket; }

void fill_page(struct pp3_ring *r, uint8_t *page, uint64_t ticket, uint32_t from,
               uint32_t to)
{
    volatile uint64_t *words = (volatile uint64_t *)(void *)page;

    (void)r;
    for (uint32_t i = from; i < to; i++)
        words[i] = page_word(ticket, i);
}

bool page_is(struct pp3_ring *r, const uint8_t *page, uint64_t ticket)
{
    const volatile uint64_t *words = (const volatile uint64_t *)(const void *)page;

    for (uint32_t i = 0; i < page_words(r); i++)
        if (words[i] != page_word(ticket, i))
            return false;
    return true;
}

int round_is_whole(struct pp3_ring *r, uint64_t ticket, uint64_t word)
{
    uint32_t index;
    int status = pp3_read(r, word, &index);
    bool whole;

    if (status == 0)
        whole = page_is(r, r->page + index * r->page_stride, ticket);
    else
        whole = status > 0 &&
                failed_is((const uint64_t *)(const void *)(r->failed +
                                                           index * r->failed_stride),
                          ticket, (uint64_t)status);
    if (!whole)
        bad(status == 0 ? "a page that is not its round's" : "a failed buffer", ticket,
            word);
    return whole ? status : -1;
}
