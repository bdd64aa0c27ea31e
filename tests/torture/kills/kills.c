/* Figure 6 at the ring: an engine's process with the product's watchdog, which starts
 * the proxies; ranks; and random SIGKILLs of all of them under load.
 *
 * kills SEED EPISODES SLACK_MS: each episode is an engine's process. Prints what was
 * counted, a name and a number a line; a last line `bad ...` where something was wrong.
 * Memory is only accounted for truly with GLIBC_TUNABLES=glibc.malloc.tcache_count=0.
 */
#include "life.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

const char *program;
uint64_t slack_ns;

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
    killed = roll(4) != 0;
    life_ns = roll(roll(4) ? 20000000 : 200000000);
    atomic_store(&board->engine_where, 0);
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
