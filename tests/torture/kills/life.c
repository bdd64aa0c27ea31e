/* The engine's process: what it starts, the thread that kills, and the account. */
#include "life.h"

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROXY_KILLS = 30 };

/* ---- the killer ------------------------------------------------------------------- */

static bool proxy_runs(struct life *l, struct pp3_watch *now, uint64_t deaths)
{
    uint64_t begin = pp3_now();

    do {
        pp3_watchdog_stats(l->watchdog, now);
        if (now->state == PP3_WATCH_RUNS && now->deaths == deaths)
            return true;
        pause_ns(50000);
    } while (within(begin, slack_ns) && !is_bad());
    bad("no next proxy", now->deaths, (uint64_t)now->last_error);
    return false;
}

/* By the watchdog's pidfd: a pid may be another's by now. */
static void kill_proxy(struct life *l, uint64_t *deaths)
{
    struct pp3_watch now;
    uint64_t begin;

    if (!proxy_runs(l, &now, *deaths))
        return;
    pause_ns(roll(roll(4) ? 3000000 : 12000000));
    begin = pp3_now();
    (void)pp3_watchdog_replace(l->watchdog);
    while (within(begin, slack_ns) && !is_bad()) {
        uint32_t owner = now.owner;
        struct pp3_watch then;

        pp3_watchdog_stats(l->watchdog, &then);
        if (then.deaths != *deaths) {
            uint32_t at = atomic_load(&board->where[owner]);
            *deaths = then.deaths;
            if (then.last_status != -SIGKILL && !is_bad())
                bad("a proxy that ended by itself", owner, (uint64_t)then.last_status);
            atomic_fetch_add(&board->proxy_kills, 1);
            atomic_fetch_add(&board->proxy_at[at < POINTS ? at : 0], 1);
            return;
        }
        pause_ns(30000);
    }
    bad("a killed proxy that is not buried", *deaths, 0);
}

static void kill_rank(struct rank *rank, uint32_t k)
{
    int status;
    uint32_t at;

    rank->killed = true;
    (void)kill(rank->pid, SIGKILL);
    (void)waitpid(rank->pid, &status, 0);
    if (!WIFSIGNALED(status) && !is_bad())
        bad("a rank that ended by itself", k, (uint64_t)status);
    at = atomic_load(&board->rank_where[k]);
    atomic_fetch_add(&board->rank_kills, 1);
    atomic_fetch_add(&board->rank_at[at < POINTS ? at : 0], 1);
}

static void *killer(void *argument)
{
    struct life *l = argument;
    uint64_t deaths = 0;
    uint32_t victim = 1;

    rig_seed = mix(l->seed, 3);
    for (int i = 0; i < PROXY_KILLS && !is_bad(); i++) {
        kill_proxy(l, &deaths);
        if (victim < l->ring->ranks && roll(PROXY_KILLS / l->ring->ranks) == 0) {
            kill_rank(&l->rank[victim], victim);
            victim++;
        }
    }
    while (victim < l->ring->ranks && roll(3)) { /* one or two may live on */
        kill_rank(&l->rank[victim], victim);
        victim++;
    }
    l->storm = false;
    return 0;
}

/* ---- a life ----------------------------------------------------------------------- */

static void start_ranks(struct life *l)
{
    for (uint32_t k = 1; k < l->ring->ranks; k++) {
        int ends[2], pidfd;

        if (pipe2(ends, O_CLOEXEC) != 0)
            exit(3);
        l->rank[k].pid = fork();
        if (l->rank[k].pid == 0) {
            for (uint32_t i = 1; i < k; i++)
                (void)close(l->rank[i].tell);
            (void)close(ends[1]);
            rank_main(&l->region, k, ends[0], slack_ns);
        }
        (void)close(ends[0]);
        l->rank[k].tell = ends[1];
        pidfd = (int)syscall(SYS_pidfd_open, l->rank[k].pid, 0);
        if (pp3_rank_attach(l->ring, k, pidfd) != 0)
            exit(3);
        (void)close(pidfd);
    }
}

static void start_watchdog(struct life *l)
{
    char seed[32], *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "proxy",
                              seed, 0};
    struct pp3_record record;
    struct pp3_plan plan = {.argv = argv, .envp = environ,
                            .record = (const uint8_t *)&record,
                            .record_bytes = sizeof record, .n_fds = 5,
                            .grace_ns = 1000000000};
    int error;

    (void)snprintf(seed, sizeof seed, "%llu", (unsigned long long)mix(l->seed, 4));
    pp3_record_fill(&record, &l->region.shape);
    record.role = PROXY;
    memcpy(plan.fds, l->region.fd, 3 * sizeof(int));
    plan.fds[3] = board_fd;
    plan.fds[4] = pp3_bell_fd(l->ring);
    l->watchdog = pp3_watchdog_start(l->ring, &plan, &error);
    if (!l->watchdog)
        exit(3);
}

static void end_ranks(struct life *l)
{
    for (uint32_t k = 1; k < l->ring->ranks; k++) {
        int status = 0;
        (void)close(l->rank[k].tell);
        if (!l->rank[k].killed && (waitpid(l->rank[k].pid, &status, 0) < 0 || status))
            bad("a rank that did not end well", k, (uint64_t)status);
    }
}

/* No proxy lives: every page is free, or its round's that stands in an entry. */
static void pages_are_back(struct life *l)
{
    struct pp3_ring *r = l->ring;
    struct pp3_engine *g = r->engine;
    bool found[2 * MOST_ROUNDS] = {false};
    uint32_t open = 0;

    for (uint32_t e = 0; e < r->rounds; e++)
        if (g->claimed[e] && g->disposed[e] != pp3_ticket(g->claimed[e])) {
            found[pp3_page_of(g->claimed[e])] = true;
            open++;
        }
    pp3_reclaim(r);
    for (uint32_t i = 0; i < g->free_count; i++) {
        if (found[g->free_page[i]])
            bad("a page that is free twice", g->next, g->free_page[i]);
        found[g->free_page[i]] = true;
    }
    if (g->held_count != 0 || g->free_count + open != r->pages)
        bad("pages that did not come back", g->next, g->held_count);
}

static void live(struct life *l)
{
    uint32_t rounds = 1 + (uint32_t)roll(MOST_ROUNDS);
    pthread_t thread;

    rounds = rounds < 2 ? 2 : rounds;
    l->region = region_make(rounds, 2 * rounds, 1 + (uint32_t)roll(MOST_RANKS),
                            512u << roll(5));
    atomic_store(&board->calm, 0);
    memset(board->seen, 0, sizeof board->seen); /* of another region */
    memset(board->where, 0, sizeof board->where);
    memset(board->rank_where, 0, sizeof board->rank_where);
    l->ring = region_engine(&l->region);
    l->oldest = 1;
    l->storm = true;
    start_ranks(l);
    rig_where = &board->engine_where;
    start_watchdog(l);
    (void)pthread_create(&thread, 0, killer, l);
    load(l);
    (void)pthread_join(thread, 0);
    go_on(l);
    (void)pp3_watchdog_stop(l->watchdog);
    pp3_watchdog_free(l->watchdog);
    end_ranks(l);
    if (!is_bad())
        pages_are_back(l);
    pp3_ring_free(l->ring);
    region_unmap(&l->region);
    region_close(&l->region);
}

/* The engine's process, in a group of its own. Lives twice: what the first life left to
 * be used again by the C library is there when the second begins. */
_Noreturn void engine_main(uint64_t seed)
{
    size_t bytes = 0;
    int fds = 0;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    (void)signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 2 && !is_bad(); i++) {
        struct life l = {.seed = mix(seed, (uint64_t)i)};

        rig_seed = mix(l.seed, 1);
        bytes = mallinfo2().uordblks;
        fds = count_fds();
        live(&l);
        if (is_bad())
            break;
        if (count_fds() != fds)
            bad("descriptors that were not given back", seed, (uint64_t)count_fds());
        if (i == 1 && mallinfo2().uordblks > bytes)
            bad("memory that was not given back", seed, mallinfo2().uordblks - bytes);
        if (waitpid(-1, 0, WNOHANG) != -1)
            bad("a process that was not given back", seed, 0);
    }
    exit(0);
}
