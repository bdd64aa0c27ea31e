#include "world.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "harness.h"

const uint64_t templates[9] = {0, 0, 2, 0, 0, 7, 0, 0, 8};

/* ---- crash points ----------------------------------------------------------------- */

static void (*act)(void *);
static void *act_argument;
static int act_left;
static atomic_int act_point; /* relaxed: it must order nothing under the sanitizer */

void step_here(int point)
{
    if (atomic_load_explicit(&act_point, memory_order_relaxed) == point &&
        --act_left == 0) {
        atomic_store_explicit(&act_point, 0, memory_order_relaxed);
        act(act_argument);
    }
}

void at_point(int point, int arrival, void (*what)(void *), void *argument)
{
    act = what;
    act_argument = argument;
    act_left = arrival;
    atomic_store_explicit(&act_point, point, memory_order_relaxed);
}

void at_no_point(void)
{
    atomic_store_explicit(&act_point, 0, memory_order_relaxed);
}

/* ---- regions ---------------------------------------------------------------------- */

static uint64_t whole(uint64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

uint64_t world_bytes(const struct pp3_shape *shape)
{
    uint64_t sum = 0;

    for (int i = 0; i < 5; i++)
        sum += whole(shape->bytes[i]);
    return sum;
}

void world_parts(const struct pp3_shape *shape, uint8_t *at, struct pp3_parts *parts)
{
    uint8_t **part[5] = {&parts->control, &parts->slots, &parts->pages, &parts->failed,
                         &parts->acks};

    for (int i = 0; i < 5; i++) {
        *part[i] = at;
        at += whole(shape->bytes[i]);
    }
}

static uint8_t *map_view(struct world *w)
{
    int error;
    uint8_t *at = pp3_map(w->fd, w->bytes, 1, &error);

    if (!at)
        abort();
    return w->view[w->n_views++] = at;
}

void world_open_shape(struct world *w, const struct pp3_shape *shape)
{
    int error;

    memset(w, 0, sizeof *w);
    w->shape = *shape;
    if (pp3_shape_fill(&w->shape))
        abort();
    w->bytes = world_bytes(&w->shape);
    w->fd = memfd_create("world", MFD_CLOEXEC);
    if (w->fd < 0 || ftruncate(w->fd, (off_t)w->bytes) != 0)
        abort();
    world_parts(&w->shape, map_view(w), &w->parts);
    w->engine = pp3_ring_create(&w->shape, &w->parts, (const uint8_t *)templates, &error);
    if (!w->engine)
        abort();
}

void world_open(struct world *w, uint32_t rounds, uint32_t pages, uint32_t ranks)
{
    struct pp3_shape shape = {
        .rounds = rounds, .pages = pages, .ranks = ranks, .page_bytes = 8 * WORDS,
        .request_bytes = 8 * WORDS, .failed_bytes = 24, .head_bytes = 16, .slots = 2,
        .max_positions = 64,
    };

    world_open_shape(w, &shape);
}

void world_close(struct world *w)
{
    for (unsigned i = 0; i < w->n_ends; i++)
        pp3_ring_free(w->end[i]);
    pp3_ring_free(w->engine);
    for (unsigned i = 0; i < w->n_views; i++)
        pp3_unmap(w->view[i], w->bytes, pp3_fork_count());
    (void)close(w->fd);
    at_no_point();
}

struct pp3_ring *world_end(struct world *w, uint32_t owner)
{
    struct pp3_parts parts = w->parts;
    struct pp3_record record;
    struct pp3_ring *r;
    int error;

    if (views > 1)
        world_parts(&w->shape, map_view(w), &parts);
    pp3_record_fill(&record, &w->shape);
    record.owner = owner;
    r = pp3_ring_attach(&record, &parts, w->engine->bell_fd, &error);
    if (!r)
        abort();
    return w->end[w->n_ends++] = r;
}

struct pp3_ring *world_proxy(struct world *w)
{
    int owner = pp3_owner_add(w->engine);

    CHECK(owner > 0);
    return world_end(w, (uint32_t)owner);
}

void world_ranks(struct world *w)
{
    int pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);

    for (uint32_t k = 1; k < w->shape.ranks; k++)
        EQUAL(pp3_rank_attach(w->engine, k, pidfd), 0);
    (void)close(pidfd);
}

int sleeper(int *pidfd)
{
    pid_t child = fork();

    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0ul, 0ul, 0ul);
        for (;;)
            (void)pause();
    }
    *pidfd = (int)syscall(SYS_pidfd_open, child, 0);
    CHECK(child > 0 && *pidfd >= 0);
    return child;
}

/* ---- rounds ----------------------------------------------------------------------- */

static void fill(uint8_t *to, uint64_t t)
{
    for (int i = 0; i < WORDS; i++)
        memcpy(to + 8 * i, &t, 8);
}

int64_t ask(struct pp3_ring *engine, uint64_t deadline_ns)
{
    int64_t t = pp3_ask(engine, 0, deadline_ns);

    if (t < 0)
        return t;
    fill(pp3_request_of(engine, (uint64_t)t), (uint64_t)t);
    EQUAL(pp3_submit(engine, (uint64_t)t), 0);
    return t;
}

uint64_t take_one(struct pp3_ring *proxy)
{
    uint64_t mine;

    return pp3_take(proxy, &mine) == 1 ? mine : 0;
}

int answer(struct pp3_ring *proxy, uint64_t mine)
{
    fill(pp3_page(proxy, mine), pp3_ticket(mine));
    return pp3_publish(proxy, mine);
}

void release_all(struct world *w, uint64_t t)
{
    for (uint32_t k = 0; k < w->shape.ranks; k++)
        EQUAL(pp3_release(w->engine, k, t), 0);
}

uint64_t *page_words(struct pp3_ring *r, uint32_t page)
{
    return (uint64_t *)(void *)(r->page + page * r->page_stride);
}
