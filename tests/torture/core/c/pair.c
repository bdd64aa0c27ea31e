/* Two processes over one region, futex between them: one end each, started by a harness.
 *
 * core --pair engine MEMFD BELLFD ROUNDS SEED
 * core --pair proxy  MEMFD BELLFD ROUNDS SEED
 * The engine's process makes the region and is rank 0; the proxy's is owner 1 and rank
 * 1, which waits on a thread of its own. Each page and request is a pattern drawn from
 * seed and ticket. The engine prints `rounds bad sleeps lost`; the proxy `rounds bad`. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "proxy/exchange.h"
#include "world.h"

enum { PAGE = 512 };

static const struct pp3_shape wanted = {
    .rounds = 4, .pages = 8, .ranks = 2, .page_bytes = 8 * PAGE,
    .request_bytes = 8 * PAGE, .failed_bytes = 24, .head_bytes = 16, .slots = 1,
    .max_positions = 16,
};
static struct pp3_shape shape;
static struct pp3_parts parts;
static uint64_t rounds;
static _Atomic uint64_t wrong;

static void pattern(uint64_t t, uint64_t kind, uint64_t *words)
{
    struct dice d = dice_of(t * 2 + kind);

    for (int i = 0; i < PAGE; i++)
        words[i] = roll64(&d);
    words[0] = t;
}

static void compare(const uint8_t *is, uint64_t t, uint64_t kind)
{
    uint64_t words[PAGE];

    pattern(t, kind, words);
    if (memcmp(is, words, sizeof words) != 0)
        wrong++;
}

static void read_one(struct pp3_ring *r, uint32_t rank, uint64_t t)
{
    uint64_t word = 0;
    uint32_t index = 0;
    int status;

    while ((status = pp3_wait(r, t, FAR, 0, &word)) == -ESTALE)
        doze(); /* not claimed yet */
    if (status != 0 || pp3_read(r, word, &index) != 0)
        wrong++;
    else
        compare(r->page + index * r->page_stride, t, 1);
    wrong += pp3_release(r, rank, t) != 0;
}

/* ---- the engine's process --------------------------------------------------------- */

static int engine_main(int bell)
{
    int error, pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    struct pp3_ring *r = pp3_ring_create(&shape, &parts, (const uint8_t *)templates, &error);

    if (!r || dup2(bell, r->bell_fd) < 0 || pp3_owner_add(r) != 1 ||
        pp3_rank_attach(r, 1, pidfd) != 0)
        return 2;
    for (uint64_t t = 1; t <= rounds;) {
        uint64_t words[PAGE];
        int64_t got = pp3_claim(r, 0, FAR);
        if (got == -EBUSY || got == -EAGAIN) {
            doze();
            continue;
        }
        pattern(t, 0, words);
        if (got != (int64_t)t)
            return 3;
        memcpy(pp3_request_of(r, t), words, sizeof words);
        wrong += pp3_submit(r, t) != 0;
        read_one(r, 0, t++);
    }
    (void)printf("%llu %llu %llu %llu\n", (unsigned long long)rounds,
                 (unsigned long long)wrong,
                 (unsigned long long)pp3_counter(r, PP3_COUNT_SLEPT),
                 (unsigned long long)pp3_counter(r, PP3_COUNT_LOST_WAKES));
    pp3_ring_free(r);
    (void)close(pidfd);
    return 0;
}

/* ---- the proxy's process ---------------------------------------------------------- */

static struct pp3_ring *attach(uint32_t owner, int bell)
{
    struct pp3_record record;
    int error;

    pp3_record_fill(&record, &shape);
    record.owner = owner;
    return pp3_ring_attach(&record, &parts, bell, &error);
}

static void *rank_main(void *argument)
{
    for (uint64_t t = 1; t <= rounds; t++)
        read_one(argument, 1, t);
    return 0;
}

static int proxy_main(int bell)
{
    struct pp3_ring *r, *rank;
    pthread_t thread;

    while (pp3_region_magic(parts.control) != pp3_magic())
        doze();
    r = attach(1, bell);
    rank = attach(0, -1);
    if (!r || !rank || pthread_create(&thread, 0, rank_main, rank) != 0)
        return 2;
    for (uint64_t t = 1; t <= rounds;) {
        uint64_t mine = take_one(r), words[PAGE];
        if (!mine) {
            (void)pp3_proxy_sleep(r, -1, -1, 0, 1000000000);
            continue;
        }
        if (pp3_ticket(mine) != t)
            return 3;
        compare(pp3_request(r, mine), t, 0);
        pattern(t, 1, words);
        memcpy(pp3_page(r, mine), words, sizeof words);
        wrong += pp3_publish(r, mine) != 0;
        t++;
    }
    (void)pthread_join(thread, 0);
    (void)printf("%llu %llu\n", (unsigned long long)rounds, (unsigned long long)wrong);
    pp3_ring_free(r);
    pp3_ring_free(rank);
    return 0;
}

int pair_main(int argc, char **argv)
{
    int error;

    if (argc != 5)
        return 2;
    rounds = strtoull(argv[3], 0, 10);
    seed = strtoull(argv[4], 0, 10);
    shape = wanted;
    if (pp3_shape_fill(&shape))
        return 2;
    uint8_t *at = pp3_map(atoi(argv[1]), world_bytes(&shape), 1, &error);
    if (!at)
        return 2;
    world_parts(&shape, at, &parts);
    error = strcmp(argv[0], "engine") == 0 ? engine_main(atoi(argv[2]))
                                           : proxy_main(atoi(argv[2]));
    pp3_unmap(at, world_bytes(&shape), pp3_fork_count());
    return error;
}
