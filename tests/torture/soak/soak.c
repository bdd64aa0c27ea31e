/* A watchdog's day, on a simulated clock: nothing may have grown at its end.
 *
 * usage: soak SEED SECONDS FAULT
 *
 * The watchdog's own loop runs, and in its sleeps the others do: an engine that claims,
 * ranks that read, a proxy process that takes, answers, is killed, is stopped beyond its
 * deadlines, does not start. Every simulated ten minutes claims pause until nothing is
 * open; then descriptors, heap, pages and quarantine have to be what they were the first
 * time. All the while no round may stay open past its deadline, for time passes only
 * where somebody sleeps. Prints the counts, or `wrong:` and why, and ends with 1. */
#include "kernel.h"

#include <dirent.h>
#include <malloc.h>
#include <sys/mman.h>

enum { ROUNDS = 8, PAGES = 16, RANKS = 2 };
#define SECOND UINT64_C(1000000000)
#define PAUSE_EVERY (600 * SECOND)
#define START (1000 * SECOND)

static struct pp3_shape shape = {
    .rounds = ROUNDS, .pages = PAGES, .ranks = RANKS, .page_bytes = 64,
    .request_bytes = 64, .failed_bytes = 24, .head_bytes = 16, .slots = 1,
    .max_positions = 8,
};
static struct pp3_parts parts;
static struct pp3_ring *engine, *rank[RANKS];
static struct pp3_watchdog *watchdog;
static uint64_t now = START, end, next_claim = START, pause_at, read_next[RANKS], luck;
static struct { uint64_t fds, heap, resident; } first, last, most;
static uint64_t answered, failed, fenced, refused[256], deaths, pauses, ticks, starts;
static uint64_t used[PP3_MAX_OWNERS + 1]; /* how often each owner id was given */
static int pausing;

static void must(int holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "wrong: %s after %llu simulated seconds\n", what,
                  (unsigned long long)((now - START) / SECOND));
    _exit(1);
}

static uint64_t draw(uint64_t below)
{
    luck = luck * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (luck >> 33) % below;
}

static uint64_t simulated_now(void) { return now; }

/* A time until something that comes every `mean` on average: the sum of four draws. */
static uint64_t some(uint64_t mean)
{
    return (draw(mean) + draw(mean) + draw(mean) + draw(mean)) / 2 + 1;
}

/* ---- the engine and the ranks ----------------------------------------------------- */

static void claim_one(void)
{
    int64_t t = pp3_claim(engine, 0,
                          now + (draw(20) ? 10 * MS + draw(40 * MS) : 1 + draw(MS)));

    if (t > 0) {
        must(pp3_submit(engine, (uint64_t)t) == 0, "a submit refused");
        if (process.attached) /* its bell */
            process.next_ns = pp3_least(process.next_ns, now + MS / 10);
        return;
    }
    refused[-t]++;
    must(t == -EAGAIN || t == -EBUSY || t == -ENOBUFS, "an unexpected refusal");
}

static void claim_some(void)
{
    next_claim = now + some(50 * MS);
    for (uint64_t n = draw(16) ? 1 : 1 + draw(2 * ROUNDS); n > 0; n--)
        claim_one();
    /* the user's word, or that of a claim that found no page */
    if (draw(2000) == 0)
        (void)pp3_watchdog_replace(watchdog);
}

static void read_some(uint32_t k)
{
    while (read_next[k] < engine->engine->next) {
        uint64_t word;
        uint32_t index;
        int rc;

        if (pp3_word(rank[k], read_next[k], &word) != 0 ||
            pp3_ticket(word) != read_next[k] || !pp3_resolved(word))
            return;
        rc = pp3_wait(rank[k], read_next[k], now, 0, &word);
        must(rc == 0, "a resolved round that cannot be waited for");
        rc = pp3_read(rank[k], word, &index);
        must(rc >= 0, "a word that cannot be read");
        k == 0 ? *(rc == 0 ? &answered : &failed) += 1 : 0;
        must(pp3_release(rank[k], k, read_next[k]) == 0, "a release refused");
        read_next[k]++;
    }
}

/* A round past its deadline is failed by the watchdog at that very moment. */
static void deadlines_are_kept(void)
{
    for (uint32_t e = 0; e < ROUNDS; e++) {
        uint64_t w = PP3_LOAD(&engine->entries[e].state, acquire);
        must(w == 0 || pp3_resolved(w) ||
                 now <= PP3_LOAD(&engine->entries[e].deadline_ns, relaxed),
             "a round open past its deadline");
    }
}

/* ---- the proxy -------------------------------------------------------------------- */

static void attach_proxy(void)
{
    struct pp3_record record;
    int error;

    if (!receive_region(&record)) {
        die(0);
        return;
    }
    process.ring = pp3_ring_attach(&record, &parts, process.sent[process.n_sent - 1],
                                   &error);
    must(process.ring != 0, "a region that cannot be attached to");
    used[record.owner]++;
    process.attached = 1;
}

static void answer(void)
{
    uint64_t mine;

    while (process.n_taken < MOST_TAKEN && pp3_take(process.ring, &mine) == 1) {
        process.taken[process.n_taken] = mine;
        process.due_ns[process.n_taken++] = now + some(4 * MS);
    }
    for (int i = 0; i < process.n_taken;) {
        if (process.due_ns[i] > now) {
            i++;
            continue;
        }
        fenced += pp3_publish(process.ring, process.taken[i]) != 0;
        process.n_taken--;
        process.taken[i] = process.taken[process.n_taken];
        process.due_ns[i] = process.due_ns[process.n_taken];
    }
}

static void be_proxy(void)
{
    if (process.ends_ns && now >= process.ends_ns && now >= process.stopped_until_ns) {
        die(0);
    } else if (now >= process.dies_ns) {
        die(SIGKILL);
    } else if (now < process.stopped_until_ns) {
        process.next_ns = process.stopped_until_ns;
    } else if (!process.attached) {
        attach_proxy();
        process.next_ns = now + MS;
    } else {
        answer();
        process.next_ns = now + PP3_SLICE_NS;
        for (int i = 0; i < process.n_taken; i++)
            process.next_ns = pp3_least(process.next_ns, process.due_ns[i]);
        if (!pausing && draw(300) == 0) /* some for longer than all pages last */
            process.stopped_until_ns =
                now + (draw(8) ? some(60 * MS) : some(4 * SECOND));
    }
}

/* ---- what may not grow ------------------------------------------------------------ */

static uint64_t open_descriptors(void)
{
    DIR *all = opendir("/proc/self/fd");
    uint64_t n = 0;

    while (readdir(all))
        n++;
    (void)closedir(all);
    return n - 3; /* ".", "..", and that of the directory */
}

static uint64_t resident_bytes(void)
{
    unsigned long long whole = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");

    if (!file || fscanf(file, "%llu %llu", &whole, &resident) != 2)
        abort();
    (void)fclose(file);
    return resident * 4096;
}

/* Every page is free or of an entry's round; every owner's count is what it holds. */
static void books_balance(void)
{
    struct pp3_engine *g = engine->engine;
    uint32_t n = g->free_count + g->held_count, held = 0;

    for (uint32_t e = 0; e < ROUNDS; e++)
        n += g->claimed[e] != 0 && g->disposed[e] != pp3_ticket(g->claimed[e]);
    must(n == PAGES, "a page in nobody's hand");
    for (uint32_t id = 0; id <= PP3_MAX_OWNERS; id++)
        held += PP3_LOAD(&g->owner[id].held, relaxed);
    must(held == g->held_count, "an owner's count of pages");
}

static void look_at_it(void)
{
    last.heap = mallinfo2().uordblks;
    last.fds = open_descriptors();
    last.resident = resident_bytes();
    if (pauses++ == 0)
        most = first = last;
    most.fds = last.fds > most.fds ? last.fds : most.fds;
    most.resident = last.resident > most.resident ? last.resident : most.resident;
    books_balance();
    pp3_reclaim(engine); /* the next claim that needs a page would do so */
    must(engine->engine->held_count == 0, "a page that stays in quarantine");
    books_balance();
    must(last.fds == first.fds, "descriptors that grow");
    must(last.heap == first.heap, "memory that grows");
    /* 256 KiB: what libc's stdio and the stack may touch late, far below a leak of a
     * few bytes a death */
    must(last.resident <= first.resident + 256 * 1024, "resident memory that grows");
}

/* At rest: everything claimed is read, and a proxy runs that holds nothing. */
static int at_rest(void)
{
    return read_next[0] == engine->engine->next && read_next[1] == read_next[0] &&
           process.attached && !process.dead && process.n_taken == 0 &&
           now >= process.stopped_until_ns;
}

/* ---- the world, in the watchdog's sleeps ------------------------------------------ */

static uint64_t when_next(uint64_t until)
{
    uint64_t at = pausing || now >= end ? until : pp3_least(until, next_claim);

    if (process.born && !process.dead)
        at = pp3_least(at, pp3_least(process.next_ns, process.dies_ns));
    return at > now ? at : now;
}

static void happen(void)
{
    if (!pausing && now < end && now >= next_claim)
        claim_some();
    if (process.born && !process.dead) {
        if (process.dies_ns == 0) { /* newborn */
            process.dies_ns = now + some(SECOND);
            process.next_ns = now + some(20 * MS);
        }
        if (now >= process.next_ns || now >= process.dies_ns)
            be_proxy();
        deaths += (uint64_t)process.dead;
        if (process.dead) {
            spawn_fails = draw(50) == 0;
            pidfd_fails = draw(50) == 0;
        }
    }
    for (uint32_t k = 0; k < RANKS; k++)
        if (pausing || draw(4))
            read_some(k);
    if (now >= pause_at && !pausing)
        pausing = 1;
    if (pausing && at_rest()) {
        look_at_it();
        pausing = 0;
        pause_at += PAUSE_EVERY;
        must(now < pause_at, "no rest found");
        next_claim = now + 1;
    }
    must(now < pause_at + PAUSE_EVERY, "no rest found");
    if (now >= end)
        (void)command(watchdog, STOP);
}

static int simulated_ppoll(struct pollfd *set, nfds_t n, const struct timespec *timeout,
                           const sigset_t *mask)
{
    uint64_t until =
        now + (uint64_t)timeout->tv_sec * SECOND + (uint64_t)timeout->tv_nsec;
    int ready;

    (void)mask;
    ticks++;
    while ((ready = poll(set, n, 0)) == 0 && now < until) {
        now = when_next(until);
        deadlines_are_kept();
        happen();
    }
    return ready;
}

/* ---- a day ------------------------------------------------------------------------ */

static void set_up(void)
{
    uint8_t **part[5] = {&parts.control, &parts.slots, &parts.pages, &parts.failed,
                         &parts.acks};
    uint64_t templates[9] = {0, 0, 2, 0, 0, 7, 0, 0, 8};
    static char *argv[] = {(char *)(uintptr_t)"proxy", 0};
    struct pp3_record record;
    struct pp3_plan plan = {.argv = argv, .envp = argv + 1, .n_fds = SENT,
                            .grace_ns = 2 * SECOND};
    int error, self = (int)(syscall)(SYS_pidfd_open, getpid(), 0);

    (void)pp3_shape_fill(&shape);
    for (int i = 0; i < 5; i++)
        *part[i] = mmap(0, shape.bytes[i], PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    engine = pp3_ring_create(&shape, &parts, (const uint8_t *)templates, &error);
    rank[0] = engine;
    pp3_record_fill(&record, &shape);
    rank[1] = pp3_ring_attach(&record, &parts, -1, &error);
    must(engine && rank[1] && pp3_rank_attach(engine, 1, self) == 0, "no region");
    plan.record = (const uint8_t *)&record;
    plan.record_bytes = sizeof record;
    for (uint32_t i = 0; i < plan.n_fds; i++) /* stand for the segments; the bell last */
        plan.fds[i] = i + 1 == plan.n_fds ? engine->bell_fd : dup(0);
    watchdog = make(engine, &plan);
    must(watchdog != 0, "no watchdog");
    read_next[0] = read_next[1] = 1;
    pause_at = START + 20 * SECOND;
}

int main(int argc, char **argv)
{
    uint64_t fewest = UINT64_MAX, busiest = 0;

    if (argc != 4)
        return 2;
    if (!getenv("GLIBC_TUNABLES")) { /* libc counts what its cache keeps as in use */
        (void)setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
        (void)execv("/proc/self/exe", argv);
    }
    luck = strtoull(argv[1], 0, 10) * 7919 + 1;
    end = START + strtoull(argv[2], 0, 10) * SECOND;
    pp3_fault = (int)strtol(argv[3], 0, 10);
    set_up();
    (void)watch(watchdog);
    starts = watchdog->shown.starts;
    for (uint32_t id = 1; id <= PP3_MAX_OWNERS; id++) {
        fewest = used[id] < fewest ? used[id] : fewest;
        busiest = used[id] > busiest ? used[id] : busiest;
    }
    pp3_watchdog_free(watchdog);
    /* the last owner is dead: whatever it held comes back */
    pausing = 1;
    read_some(0);
    read_some(1);
    pp3_reclaim(engine);
    must(engine->engine->held_count == 0, "a page that a dead owner keeps");
    books_balance();
    must(answered > 0 && starts > 0, "a day on which nothing happened");
    (void)printf("answered %llu\nfailed %llu\nfenced %llu\nrefused %llu\n"
                 "deaths %llu\nstarts_failed %llu\nlooks %llu\n"
                 "pauses %llu\nfewest_reuse %llu\nmost_reuse %llu\nfds %llu\n"
                 "grown_bytes %lld\n",
                 (unsigned long long)answered, (unsigned long long)failed,
                 (unsigned long long)fenced,
                 (unsigned long long)(refused[EAGAIN] + refused[EBUSY] +
                                      refused[ENOBUFS]),
                 (unsigned long long)deaths,
                 (unsigned long long)spawns_failed, (unsigned long long)ticks,
                 (unsigned long long)pauses, (unsigned long long)fewest,
                 (unsigned long long)busiest, (unsigned long long)most.fds,
                 (long long)(most.resident - first.resident));
    return 0;
}
