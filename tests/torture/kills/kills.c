/* Figure 6 at the ring: an engine's process with the product's watchdog, which starts
 * the proxies; ranks; and random SIGKILLs of all of them under load.
 *
 * kills SEED EPISODES SLACK_MS: each episode is a region's life. Prints what was
 * counted, a name and a number a line; a last line `bad ...` where something was wrong.
 */
#include "peers.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_ROUNDS = 8, PROXY_KILLS = 30, LAST_LAPS = 3 };

#define FAR_NS UINT64_C(60000000000)

struct rank { pid_t pid; int tell; _Atomic bool killed; };

/* One life of an engine. Rounds are numbered densely, so entry t % rounds says all. */
struct life {
    struct region region;
    struct pp3_ring *ring;
    struct pp3_watchdog *watchdog;
    struct rank rank[MOST_RANKS];
    uint64_t word[MOST_ROUNDS]; /* as resolved; 0: open, or never */
    bool told[MOST_ROUNDS], live[MOST_ROUNDS];
    uint64_t oldest; /* not finished yet */
    uint64_t seed;
    _Atomic bool storm;
};

static const char *program;
static uint64_t slack_ns;

/* ---- the engine's load ------------------------------------------------------------ */

static void tell(struct life *l, uint64_t t)
{
    for (uint32_t k = 1; k < l->ring->ranks; k++)
        if (!l->rank[k].killed &&
            write(l->rank[k].tell, &t, sizeof t) != (ssize_t)sizeof t)
            continue; /* it was killed just now: seen when the entry is used again */
    l->told[t % l->ring->rounds] = true;
}

/* A third are due at once, a third some time, a third never: those end by an answer, or
 * by their owner's death. */
static uint64_t some_deadline(uint64_t ticket)
{
    static const uint64_t most[3] = {1000000, 40000000, 0};
    uint64_t limit = most[roll(is_answered(ticket) ? 3 : 2)];

    return pp3_now() + (atomic_load(&board->calm) || !limit ? FAR_NS
                                                            : 50000 + roll(limit));
}

/* The entry is claimed again: every rank that lives has seen what rank 0 saw. */
static void compare(struct life *l, uint64_t t)
{
    uint32_t e = (uint32_t)(t % l->ring->rounds);

    for (uint32_t k = 1; l->told[e] && k < l->ring->ranks; k++) {
        struct seen *log = &board->seen[k][t % LOG];
        if (atomic_load(&log->ticket) == t) {
            if (atomic_load(&log->word) != l->word[e])
                bad("two ranks, two outcomes", t, atomic_load(&log->word));
        } else if (!l->rank[k].killed) {
            bad("an entry used again that a living rank has not released", t, k);
        }
    }
}

static bool claim(struct life *l)
{
    struct pp3_ring *r = l->ring;
    uint64_t heads[3 * PP3_CAUSES], next = r->engine->next;
    int64_t t;

    fill_heads(heads, next);
    t = pp3_claim(r, heads, some_deadline(next));
    if (t == -EBUSY || t == -EAGAIN || t == -ENOBUFS)
        return false;
    if (t != (int64_t)next) {
        bad("a refused claim", next, (uint64_t)t);
        return false;
    }
    if (next > r->rounds)
        compare(l, next - r->rounds);
    l->word[next % r->rounds] = 0;
    l->told[next % r->rounds] = false;
    l->live[next % r->rounds] = true;
    fill_request(r, pp3_request_of(r, next), next);
    if (is_rung(next) && pp3_submit(r, next) != 0)
        bad("a refused submit", next, 0);
    if (roll(4))
        tell(l, next);
    here(0);
    return true;
}

/* Nobody waits: only an owner, the watchdog or a death can end it. */
static uint64_t watched(struct life *l, uint64_t t)
{
    uint64_t begin = pp3_now(), word = 0;

    while (within(begin, slack_ns) && !is_bad()) {
        (void)pp3_word(l->ring, t, &word);
        if (pp3_ticket(word) != t || pp3_resolved(word))
            return word;
        pause_ns(50000);
    }
    if (!is_bad())
        bad("a round that nobody resolves", t, word);
    return word;
}

static uint64_t waited(struct life *l, uint64_t t)
{
    uint64_t word = 0;
    int rc = pp3_wait(l->ring, t, pp3_now() + slack_ns, roll(2) * 20000, &word);

    if (rc != 0)
        bad("a wait that ended without an outcome", t, (uint64_t)rc);
    return word;
}

static void count(int status)
{
    atomic_fetch_add(&board->rounds, 1);
    atomic_fetch_add(status == 0               ? &board->published
                     : status == PP3_EXPIRED   ? &board->expired
                     : status == PP3_ORPHANED  ? &board->orphaned
                                               : &board->cancelled,
                     1);
}

/* The oldest round is resolved, read twice, compared, and released. */
static int finish(struct life *l)
{
    struct pp3_ring *r = l->ring;
    uint64_t t = l->oldest++, word = 0, again = 0;
    uint32_t e = (uint32_t)(t % r->rounds);
    int status;

    if (!l->told[e] && roll(8) == 0) {
        (void)pp3_cancel(r, t);
        count(PP3_CANCELLED);
        here(0);
        return PP3_CANCELLED;
    }
    if (roll(16) == 0)
        (void)pp3_resolve(r, t, PP3_CANCELLED, &word);
    word = l->told[e] || roll(2) ? waited(l, t) : watched(l, t);
    l->word[e] = word;
    if (is_bad())
        return -1;
    if (!l->told[e])
        tell(l, t);
    status = round_is_whole(r, t, word);
    pause_ns(roll(4) ? 0 : roll(100000));
    (void)pp3_resolve(r, t, PP3_EXPIRED, &again); /* resolved once: changes nothing */
    if (again != word)
        bad("a second outcome", t, again);
    (void)round_is_whole(r, t, word);
    if (pp3_release(r, 0, t) != 0)
        bad("a refused release", t, 0);
    here(0);
    count(status);
    return status;
}

static void load(struct life *l)
{
    uint64_t since = pp3_now();

    while (l->storm && !is_bad()) {
        bool claimed = false;

        while (l->ring->engine->next - l->oldest < l->ring->rounds && roll(6) &&
               claim(l))
            claimed = true;
        if (claimed)
            since = pp3_now();
        if (l->oldest < l->ring->engine->next)
            (void)finish(l);
        else if (!claimed)
            pause_ns(50000);
        if (!within(since, slack_ns))
            bad("no round could be claimed", l->ring->engine->next, 0);
    }
}

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

/* The text goes on: everything asked now is answered. */
static void go_on(struct life *l)
{
    uint64_t begin = pp3_now(), last;

    while (l->oldest < l->ring->engine->next && !is_bad())
        (void)finish(l);
    atomic_store(&board->calm, 1);
    for (last = l->oldest + LAST_LAPS * l->ring->rounds; l->oldest < last && !is_bad();) {
        if (claim(l)) {
            uint32_t e = (uint32_t)(l->oldest % l->ring->rounds);
            if (!l->told[e])
                tell(l, l->oldest);
            if (waited(l, l->oldest) && pp3_state(watched(l, l->oldest)) != PP3_PUBLISHED)
                bad("a round after the storm that was not answered", l->oldest, 0);
            (void)finish(l);
            begin = pp3_now();
        } else if (!within(begin, slack_ns)) {
            bad("no round could be claimed after the storm", l->oldest, 0);
        }
    }
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
static _Noreturn void engine_main(uint64_t seed)
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

/* ---- the supervisor --------------------------------------------------------------- */

static bool ends(pid_t pid, uint64_t limit_ns)
{
    struct pollfd one = {(int)syscall(SYS_pidfd_open, pid, 0), POLLIN, 0};
    bool gone = poll(&one, 1, (int)(limit_ns / 1000000)) == 1;

    (void)close(one.fd);
    return gone;
}

/* Whatever the engine started is ours now, and has to end by itself. */
static void nothing_is_left(pid_t group)
{
    uint64_t begin = pp3_now();
    pid_t pid;

    while ((pid = waitpid(-1, 0, WNOHANG)) != -1) {
        if (pid > 0)
            continue;
        if (!within(begin, slack_ns)) {
            bad("a process outlives its engine", (uint64_t)group, 0);
            (void)kill(-group, SIGKILL);
            begin = pp3_now();
        }
        pause_ns(200000);
    }
}

static void episode(uint64_t seed)
{
    uint64_t life_ns;
    bool killed;
    pid_t pid;
    int status = 0;

    rig_seed = seed;
    killed = roll(2);
    life_ns = roll(200000000);
    pid = fork();
    if (pid == 0) {
        (void)setpgid(0, 0);
        engine_main(mix(seed, 2));
    }
    (void)setpgid(pid, pid);
    if (killed) {
        uint32_t at;
        pause_ns(life_ns);
        at = atomic_load(&board->engine_where);
        if (!is_bad() && kill(pid, SIGKILL) == 0) {
            atomic_fetch_add(&board->engine_kills, 1);
            atomic_fetch_add(&board->engine_at[at < POINTS ? at : 0], 1);
        }
    }
    if (!ends(pid, 10 * slack_ns + 60000000000)) {
        bad("an engine that does not end", seed, 0);
        (void)kill(-pid, SIGKILL);
    }
    (void)waitpid(pid, &status, 0);
    if (!killed && status != 0)
        bad("an engine that did not end well", seed, (uint64_t)status);
    nothing_is_left(pid);
}

/* Between the first step of one of the ring's calls and its return. */
static uint64_t inside(const _Atomic uint64_t *at)
{
    uint64_t n = 0;

    for (int i = 1; i < AT_COPYING; i++)
        n += at[i];
    return n;
}

static void print_points(const char *whose, _Atomic uint64_t *at)
{
    static const char *const names[POINTS] = {
        [PP3_AT_DISPOSED] = "after disposing of a page",
        [PP3_AT_FILLED] = "before claim's store",
        [PP3_AT_CLAIMED] = "between claim and submit",
        [PP3_AT_WRITTEN] = "before the bell",
        [PP3_AT_RUNG] = "between bell and wake",
        [PP3_AT_TAKING] = "before take's swap",
        [PP3_AT_TAKEN] = "after take's swap",
        [PP3_AT_PUBLISHING] = "before publish's swap",
        [PP3_AT_PUBLISHED] = "after publish's swap",
        [PP3_AT_FENCED] = "fenced and not given back",
        [PP3_AT_GIVEN] = "after a give-back",
        [PP3_AT_FAILING] = "before fail's swap",
        [PP3_AT_FAILED] = "after fail's swap",
        [PP3_AT_WOKE] = "between swap and wake",
        [PP3_AT_COUNTED] = "counted as a sleeper",
        [PP3_AT_WAITED] = "after a sleep",
        [PP3_AT_RELEASED] = "after a release",
        [AT_COPYING] = "while it wrote a page",
        [AT_READING] = "while it read a page",
    };

    for (int i = 0; i < POINTS; i++)
        if (names[i] && at[i])
            (void)printf("%s %s %llu\n", whose, names[i], (unsigned long long)at[i]);
}

static void print(void)
{
    const struct { const char *name; uint64_t n; } lines[] = {
        {"proxies", board->proxy_kills},  {"ranks", board->rank_kills},
        {"engines", board->engine_kills}, {"rounds", board->rounds},
        {"published", board->published},  {"expired", board->expired},
        {"orphaned", board->orphaned},    {"cancelled", board->cancelled},
        {"fenced", board->fenced},
        {"kills inside a call of the ring",
         inside(board->proxy_at) + inside(board->rank_at) + inside(board->engine_at)},
    };

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        (void)printf("%s %llu\n", lines[i].name, (unsigned long long)lines[i].n);
    print_points("proxy", board->proxy_at);
    print_points("rank", board->rank_at);
    print_points("engine", board->engine_at);
    if (is_bad())
        (void)printf("bad %s\n", board->text);
}

int main(int argc, char **argv)
{
    if (argc == 3) /* "proxy" SEED */
        proxy_main(strtoull(argv[2], 0, 10));
    if (argc != 4)
        return 2;
    program = argv[0];
    slack_ns = strtoull(argv[3], 0, 10) * 1000000;
    board_make();
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    for (uint64_t i = 0; i < strtoull(argv[2], 0, 10) && !is_bad(); i++)
        episode(mix(strtoull(argv[1], 0, 10), i));
    print();
    return 0;
}
