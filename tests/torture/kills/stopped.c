/* Figure 7: a proxy's process is stopped in the middle of its copy, past its round's
 * deadline; rounds go on for several laps; then it goes on too.
 *
 * stopped SEED TRIES SLACK_MS: only a stop that found page bytes partly written is a
 * try. Prints what was counted, a name and a number a line, and `bad ...` at the end
 * where something was wrong.
 *
 * One process is engine, rank 0 and a second proxy, which answers all other rounds; the
 * victim is a process of its own. The watchdog is the product's thread.
 */
#include "victim.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 6, SPARES = 4, PAGE_BYTES = 65536, MOST_LAPS = 3 };
enum { UNTAKEN, HALF, WHOLE, STAGES }; /* how far the other rounds are */

#define DUE_NS UINT64_C(3000000)
#define FAR_NS UINT64_C(60000000000)

struct other { uint64_t ticket, mine; int stage; };

struct rig {
    struct region region;
    struct pp3_ring *ring, *second;
    struct victim victim;
    struct other other[ROUNDS];
    int others;
};

static uint64_t slack_ns;
static uint64_t tries, missed, killed, laps, refused, quarter[4];

/* ---- rounds ----------------------------------------------------------------------- */

static uint64_t step(struct rig *g, uint64_t due_ns)
{
    struct pp3_ring *r = g->ring;
    uint64_t heads[3 * PP3_CAUSES], next = r->engine->next;
    int64_t t;

    fill_heads(heads, next);
    t = pp3_claim(r, heads, pp3_now() + due_ns);
    if (t != (int64_t)next) {
        bad("a refused claim", next, (uint64_t)t);
        return 0;
    }
    fill_request(r, pp3_request_of(r, next), next);
    (void)pp3_submit(r, next);
    return next;
}

static void half(struct rig *g, struct other *o, int which)
{
    uint32_t words = page_words(g->second), middle = words / 2;

    fill_page(g->second, pp3_page(g->second, o->mine), o->ticket, which ? middle : 0,
              which ? words : middle);
}

/* Takes it and writes it as far as it is to go for now. */
static void further(struct rig *g, struct other *o, int stage)
{
    if (o->stage == UNTAKEN && stage > UNTAKEN) {
        if (pp3_take(g->second, &o->mine) != 1 || pp3_ticket(o->mine) != o->ticket)
            bad("a round that cannot be taken", o->ticket, o->mine);
        half(g, o, 0);
    }
    if (o->stage < WHOLE && stage == WHOLE && !is_bad()) {
        half(g, o, 1);
        if (pp3_publish(g->second, o->mine) != 0)
            bad("a publication refused before its deadline", o->ticket, o->mine);
    }
    o->stage = stage;
}

static void look(struct rig *g, struct other *o)
{
    uint64_t word = 0;

    if (pp3_wait(g->ring, o->ticket, pp3_now() + slack_ns, 0, &word) != 0 ||
        round_is_whole(g->ring, o->ticket, word) != 0)
        bad("a published round that is not whole", o->ticket, word);
}

static void release(struct rig *g, uint64_t t)
{
    if (pp3_release(g->ring, 0, t) != 0)
        bad("a refused release", t, 0);
}

/* A lap of other rounds, the last one left as it comes: they are taken in order, so one
 * that is not taken ends it. */
static void start_others(struct rig *g, bool last)
{
    int stage = WHOLE;

    for (g->others = 0; g->others < ROUNDS && stage != UNTAKEN && !is_bad();) {
        struct other *o = &g->other[g->others++];

        if (last)
            stage = roll(6) == 0 ? UNTAKEN : roll(2) ? HALF : WHOLE;
        *o = (struct other){.ticket = step(g, FAR_NS)};
        further(g, o, stage);
        if (stage == WHOLE)
            look(g, o);
    }
}

static void finish_others(struct rig *g)
{
    for (int i = 0; i < g->others && !is_bad(); i++) {
        if (!request_is(g->ring, pp3_request_of(g->ring, g->other[i].ticket),
                        g->other[i].ticket))
            bad("a request that somebody wrote to", g->other[i].ticket, 0);
        further(g, &g->other[i], WHOLE);
        look(g, &g->other[i]);
        release(g, g->other[i].ticket);
    }
    g->others = 0;
}

/* ---- a try ------------------------------------------------------------------------ */

static uint32_t written(struct rig *g, const uint8_t *page, uint64_t t)
{
    const volatile uint64_t *words = (const volatile uint64_t *)(const void *)page;
    uint32_t n = 0;

    for (uint32_t i = 0; i < page_words(g->ring); i++)
        n += words[i] == page_word(t, i);
    return n;
}

/* The stop is aimed at a word of the page, drawn anew each time. */
static void stop_at(struct rig *g, const uint8_t *page, uint64_t t, uint32_t word)
{
    const volatile uint64_t *words = (const volatile uint64_t *)(const void *)page;
    uint64_t begin = pp3_now();

    while (words[word] != page_word(t, word) && within(begin, 2 * DUE_NS))
        (void)sched_yield();
    (void)kill(g->victim.pid, SIGSTOP);
    (void)waitpid(g->victim.pid, 0, WUNTRACED);
}

/* Nobody waits, who could help: only the watchdog can end it. */
static void watch(struct rig *g, uint64_t t)
{
    uint64_t begin = pp3_now(), word = 0;

    do {
        (void)pp3_word(g->ring, t, &word);
        if (pp3_resolved(word))
            return;
        pause_ns(50000);
    } while (within(begin, slack_ns));
    bad("a round that nobody resolves", t, word);
}

/* It is stopped: its round ends all the same, and others come and go. Where it has not
 * even taken its round none is left for it to take instead. */
static void go_on_without(struct rig *g, uint64_t t, bool middle)
{
    uint64_t word = 0;

    if (roll(4) == 0)
        (void)pp3_resolve(g->ring, t, PP3_CANCELLED, &word);
    if (roll(2))
        watch(g, t);
    if (pp3_wait(g->ring, t, pp3_now() + slack_ns, 0, &word) != 0)
        bad("a wait that ended without an outcome", t, word);
    (void)round_is_whole(g->ring, t, word);
    release(g, t);
    for (int lap = (int)roll(MOST_LAPS); lap >= 0 && !is_bad(); lap--) {
        start_others(g, lap == 0 && middle);
        if (lap > 0)
            finish_others(g);
        laps++;
    }
}

/* It goes on: its copy, its publication, which is refused. */
static void go_on(struct rig *g, uint64_t t, const uint8_t *page)
{
    (void)kill(g->victim.pid, SIGCONT);
    if (!victim_answered(&g->victim, slack_ns) || is_bad())
        return;
    if (atomic_load(&board->verdict) != ESTALE)
        bad("a late publication that was not refused", t, atomic_load(&board->verdict));
    refused++;
    if (!page_is(g->ring, page, t))
        bad("a page that was used while it was held", t, 0);
}

static void attempt(struct rig *g)
{
    uint64_t t = step(g, DUE_NS), word;
    uint32_t words = page_words(g->ring), n;
    const uint8_t *page;
    bool held, middle;

    if (t == 0)
        return;
    page = g->ring->page +
           pp3_page_of(g->ring->engine->claimed[t % ROUNDS]) * g->ring->page_stride;
    if (write(g->victim.order, "", 1) != 1)
        bad("a proxy that is gone", t, 0);
    stop_at(g, page, t, (uint32_t)roll(words));
    n = written(g, page, t);
    (void)pp3_word(g->ring, t, &word);
    held = pp3_state(word) == PP3_WRITING || pp3_state(word) > PP3_FAILED;
    middle = held && n > 0 && n < words;
    go_on_without(g, t, middle);
    if (!middle) { /* too early or too late: no try, and any verdict is right */
        missed++;
        (void)kill(g->victim.pid, SIGCONT);
        (void)victim_answered(&g->victim, slack_ns);
    } else if (roll(16) == 0) {
        killed++;
        victim_end(&g->victim, g->ring);
        victim_start(&g->victim, &g->region, g->ring);
    } else {
        tries++;
        quarter[4 * n / words]++;
        go_on(g, t, page);
    }
    finish_others(g);
}

/* ---- all of them ------------------------------------------------------------------ */

/* The victim lives and has let go of everything: every page can be free again. */
static void pages_are_back(struct rig *g)
{
    struct pp3_engine *e = g->ring->engine;

    for (int i = 0; i < 2 && !is_bad(); i++) {
        start_others(g, false);
        finish_others(g);
    }
    pp3_reclaim(g->ring);
    if (e->held_count != 0)
        bad("pages that did not come back", e->next, e->held_count);
}

static void run(struct rig *g, uint64_t wanted)
{
    struct pp3_plan deadlines_only = {0};
    struct pp3_watchdog *watchdog;
    int error;

    g->region = region_make(ROUNDS, ROUNDS + SPARES, 1, PAGE_BYTES);
    g->ring = region_engine(&g->region);
    g->second = region_attach(&g->region, PROXY, (uint32_t)pp3_owner_add(g->ring),
                              pp3_bell_fd(g->ring));
    watchdog = pp3_watchdog_start(g->ring, &deadlines_only, &error);
    victim_start(&g->victim, &g->region, g->ring);
    while (tries < wanted && missed < 20 * wanted + 1000 && !is_bad())
        attempt(g);
    if (!is_bad())
        pages_are_back(g);
    victim_end(&g->victim, g->ring);
    (void)pp3_watchdog_stop(watchdog);
    pp3_watchdog_free(watchdog);
}

int main(int argc, char **argv)
{
    struct rig g = {0};

    if (argc != 4)
        return 2;
    (void)signal(SIGPIPE, SIG_IGN);
    rig_seed = mix(strtoull(argv[1], 0, 10), 7);
    slack_ns = strtoull(argv[3], 0, 10) * 1000000;
    board_make();
    run(&g, strtoull(argv[2], 0, 10));
    (void)printf("tries %llu\nmissed %llu\nkilled %llu\nrefused %llu\nlaps %llu\n",
                 (unsigned long long)tries, (unsigned long long)missed,
                 (unsigned long long)killed, (unsigned long long)refused,
                 (unsigned long long)laps);
    for (int i = 0; i < 4; i++)
        (void)printf("in quarter %d of the copy %llu\n", i + 1,
                     (unsigned long long)quarter[i]);
    if (is_bad())
        (void)printf("bad %s\n", board->text);
    return 0;
}
