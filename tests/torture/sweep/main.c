/* sweep list | sweep run SCENE SURROUNDING SLEEPER FIRST STRIDE
 *
 * Kills at the points FIRST, FIRST + STRIDE, ... of a scene and at its end, and prints
 * what it found as one line of JSON. With STRIDE 0, at the end alone. Where a clock
 * decides how long an operation is, its end is where many tries in a row come to it. */
#include "sweep.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MISSES = 20 };

static const char *const surroundings[SURROUNDINGS] = {
    "watchdog", "helper", "successor", "stopped", "resumed"};
static const char *const roles[] = {"engine", "proxy", "rank"};

struct found {
    uint64_t tried, bad, length, ended[PP3_FAILED + 9];
    char first[600];
};

static const struct scene *scene_at(unsigned i)
{
    if (i < engine_scene_count)
        return &engine_scenes[i];
    i -= engine_scene_count;
    if (i < proxy_scene_count)
        return &proxy_scenes[i];
    i -= proxy_scene_count;
    return i < rank_scene_count ? &rank_scenes[i] : 0;
}

static int descriptors(void)
{
    int n = 0;

    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* The engine lives in the harness: ranks are let in, and rounds go before. */
static void engine_here(struct world *w)
{
    uint32_t owner;

    for (uint32_t k = 1; k < RANKS; k++) {
        int victims = w->scene->role == RANK && k == VICTIM_RANK;
        if (!(victims && w->scene->attaching) &&
            pp3_rank_attach(w->engine.ring, k, victims ? w->victim_fd : w->self_fd) !=
                0)
            wrong(w, "rank %u is not attached", k);
    }
    if (w->scene->laps || w->scene->role == RANK) {
        proxy_here(w);
        whole_rounds(w, w->scene->laps);
    }
    if (w->scene->role == PROXY && w->scene->laps) {
        owner = w->proxy_owner; /* one live proxy at a time */
        end_close(w, &w->proxy);
        w->proxy_owner = 0;
        w->dead[owner] = 1;
        (void)pp3_owner_gone(w->engine.ring, owner);
    }
    if (w->scene->role == PROXY &&
        pp3_owner_add(w->engine.ring) != (int)w->victim_owner)
        wrong(w, "another owner");
    if (w->scene->before)
        w->scene->before(w);
    observe(w);
}

static void begin(struct world *w)
{
    w->victim_owner = w->scene->role != PROXY ? 0 : w->scene->laps ? 2 : 1;
    end_open(w, &w->rank, RANK, 0);
    observe_fresh(w);
    if (w->scene->role != ENGINE) {
        end_create(w, &w->engine);
        w->bell_fd = fcntl(pp3_bell_fd(w->engine.ring), F_DUPFD_CLOEXEC, 3);
    }
    victim_start(w);
    if (w->scene->role != ENGINE)
        engine_here(w);
    victim_resume(w);
    if (w->scene->role == ENGINE) {
        if (w->scene->prepare)
            w->bell_fd = (int)syscall(SYS_pidfd_getfd, w->victim_fd,
                                      (int)PP3_LOAD(&board->bell_fd, relaxed), 0);
        observe_fresh(w);
    }
    observe(w);
    if (w->scene->between)
        w->scene->between(w);
    observe(w);
}

/* Kills at point k, or at the end where that comes before. Returns the steps made. */
static uint64_t try_point(struct world *w, uint64_t k, int sleeper)
{
    uint64_t steps = 0;
    enum stop stop = MOVED;

    begin(w);
    if (sleeper)
        sleeper_start(w);
    victim_begin(w);
    for (; steps < k && !w->fault[0]; steps++) {
        stop = victim_step(w);
        observe(w);
        if (stop == AT_END || stop == GONE)
            break;
    }
    if (stop == AT_END && w->scene->complete)
        w->scene->complete(w);
    if (stop == AT_END && w->scene->gives_back && held_by_victim(w))
        wrong(w, "a page was not given back by a proxy that was fenced");
    if (!w->victim_dead && (w->surrounding == STOPPED || w->surrounding == RESUMED))
        while_stopped(w);
    if (PP3_LOAD(&board->torn, acquire))
        wrong(w, "torn: the victim read bytes of another round");
    after(w);
    return steps;
}

static uint64_t point(struct found *found, const struct scene *scene,
                      enum surrounding s, int sleeper, uint64_t k)
{
    static struct world w;
    int before = descriptors();
    uint64_t steps;

    memset(&w, 0, sizeof w);
    w.scene = scene;
    w.surrounding = s;
    world_open(&w);
    steps = try_point(&w, k, sleeper);
    if (w.sleeper)
        sleeper_join(&w);
    world_close(&w);
    if (descriptors() != before)
        wrong(&w, "%d descriptors before, %d after", before, descriptors());
    found->tried += k == UINT64_MAX || steps == k; /* else the end, once more */
    for (size_t i = 0; i < sizeof w.ended / sizeof *w.ended; i++)
        found->ended[i] += w.ended[i];
    if (w.fault[0]) {
        found->bad++;
        if (!found->first[0])
            (void)snprintf(found->first, sizeof found->first,
                           "%s %s, %s%s, killed after %llu instructions: %s",
                           roles[scene->role], scene->name, surroundings[s],
                           sleeper ? " and a sleeper" : "", (unsigned long long)steps,
                           w.fault);
    }
    return steps;
}

static void print(const struct found *f, enum role role)
{
    (void)printf(
        "{\"role\": \"%s\", \"tried\": %llu, \"bad\": %llu, \"instructions\": %llu, "
        "\"published\": %llu, \"expired\": %llu, \"orphaned\": %llu, "
        "\"cancelled\": %llu, \"first\": \"%s\"}\n",
        roles[role], (unsigned long long)f->tried, (unsigned long long)f->bad,
        (unsigned long long)f->length, (unsigned long long)f->ended[PP3_PUBLISHED],
        (unsigned long long)f->ended[PP3_FAILED + PP3_EXPIRED],
        (unsigned long long)f->ended[PP3_FAILED + PP3_ORPHANED],
        (unsigned long long)f->ended[PP3_FAILED + PP3_CANCELLED], f->first);
}

#ifdef PLANTED
int pp3_planted; /* the number of the fault in faults.txt, from 1 */

static void plant(void)
{
    const char *number = getenv("PLANTED");

    pp3_planted = number ? atoi(number) : 0;
}

/* One bad try is enough to know. */
static int seen_enough(const struct found *found) { return found->bad != 0; }
#else
static void plant(void) {}
static int seen_enough(const struct found *found) { return found->bad > 20; }
#endif

/* On one processor a step is a plain switch, and wakes no other one. */
static void stay_here(void)
{
    cpu_set_t all, one;
    int n;

    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    n = getpid() % CPU_COUNT(&all);
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &all) && n-- == 0)
            CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

static int list(void)
{
    const struct scene *s;

    for (unsigned i = 0; (s = scene_at(i)) != 0; i++) {
        (void)printf("%s\t%s\t%d\t", s->name, roles[s->role], s->asleep != 0);
        for (unsigned k = 0; k < SURROUNDINGS; k++)
            if (s->surroundings & BIT(k))
                (void)printf("%u ", k);
        (void)printf("\n");
    }
    return 0;
}

int main(int count, char **words)
{
    struct found found = {0};
    const struct scene *scene = 0;
    unsigned long surrounding, first, stride;
    uint64_t reached = 0;
    int sleeper, misses = 0;

    board = mmap(0, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                 -1, 0);
    if (board == MAP_FAILED)
        return 2;
    if (count == 2 && strcmp(words[1], "list") == 0)
        return list();
    if (count < 7)
        return 2;
    for (unsigned i = 0;
         (scene = scene_at(i)) != 0 && strcmp(scene->name, words[2]) != 0; i++) {}
    surrounding = strtoul(words[3], 0, 10);
    sleeper = words[4][0] == '1';
    first = strtoul(words[5], 0, 10);
    stride = strtoul(words[6], 0, 10);
    if (!scene || surrounding >= SURROUNDINGS)
        return 2;
    stay_here();
    plant();
    found.length =
        point(&found, scene, (enum surrounding)surrounding, sleeper, UINT64_MAX);
    for (uint64_t k = first; stride && k < found.length && misses < MISSES;
         k += stride) {
        uint64_t steps =
            point(&found, scene, (enum surrounding)surrounding, sleeper, k);

        misses = steps < k ? misses + 1 : 0;
        if (misses == 0)
            reached = k;
        if (seen_enough(&found))
            break;
    }
    if (misses == MISSES) /* the first one was long by chance */
        found.length = reached + 1;
    print(&found, scene->role);
    return 0;
}
