/* One region small enough to be searched, who acts in it, and what must never be seen.
 *
 * The actors' own words here (take a round and answer it, wait and read) are what the
 * proxy and the ranks do around the header's operations; the operations are the
 * header's. Every actor tries each thing once: that it tries later is another schedule.
 */
#ifndef PP3_TESTS_WORLD_H
#define PP3_TESTS_WORLD_H

#include "machine.h"

#include "ring/ring.h"

#include "ring/note.c"
#include "ring/slots.c"

using machine::cell;
using machine::expect;

enum { ROUNDS = 2, PAGES = 4, TICKETS = 16, SOON = 10, TOKENS = 2 };

struct World {
    pp3_header header;
    pp3_entry entries[ROUNDS];
    PP3_A64 give[PAGES];
    PP3_A64 acks[PP3_MAX_RANKS * ROUNDS];
    PP3_A32 dead[machine::ACTORS]; /* what a pidfd says: all it did is seen before */
    pp3_engine engine;
    struct { pp3_slot slot; PP3_A32 tokens[TOKENS]; } slot;
    uint64_t claimed[ROUNDS], disposed[ROUNDS], untold[ROUNDS], streamed[ROUNDS];
    uint32_t free_page[PAGES];
    pp3_held quarantine[PAGES];
    pp3_slot_mirror mirror;
    pp3_ring end[machine::ACTORS];
};
static_assert(sizeof(World) <= machine::BYTES, "fates");

/* What a scene is: sizes; what happens first, then at once; who may be killed, whose
 * clock is late, and whether there are sleepers. */
struct Scene {
    const char *name;
    uint32_t rounds, pages, ranks;
    void (*before)();
    void (*act[machine::ACTORS])();
    void (*after)();
    unsigned mortal, late;
    bool sleepers;
    unsigned events; /* that have to happen */
    const char *about;

    int actors() const
    {
        int n = 0;
        for (int role = 0; role < machine::ACTORS; role++)
            n += act[role] != 0;
        return n;
    }
};

static World w;
char *machine::world = (char *)&w;

/* What a search has seen happen. A scene in which what it is about never happened would
 * show nothing. */
enum Event { REPLY, FAILURE, FENCED, SWEPT, REFUSED, QUARANTINE, RECLAIMED, DEATH, SLEEP,
             STALE, EVENTS };
static const char *const EVENT_NAMES[EVENTS] = {
    "reply", "failure", "fenced", "swept", "refused", "quarantine", "reclaimed", "death",
    "sleep", "stale"};
static unsigned long long events[EVENTS];
static void happened(Event e) { events[e] += !machine::quiet_time; }

static const Scene *scene;
static char cell_room[64 * sizeof(cell)];
static cell *cells; /* pages, then requests, then failed buffers of two cells */
static char live_room[machine::LIVE][sizeof(rl::atomic<uint64_t>)];
static uint64_t outcome[TICKETS]; /* the resolved word that anybody saw first */

int machine::gone(int pidfd) { return load(&w.dead[pidfd], rl::mo_acquire, $) != 0; }

static pp3_ring *own()
{
    return &w.end[machine::quiet_time ? (int)machine::ENGINE : machine::me()];
}

/* ---- making it, taking it down -------------------------------------------------- */

template <class T> static void set_live(unsigned place, void *room)
{
    machine::word<T> *word = (machine::word<T> *)((char *)&w + 4 * place);
    if (room != 0) {
        word->live = ::new (room) rl::atomic<T>;
        word->live->store(0, rl::mo_relaxed, $);
    } else {
        typedef rl::atomic<T> atomic;
        word->live->~atomic();
    }
}

static void live_words(bool there)
{
    for (int i = 0; i < machine::live_count; i++) {
        machine::live_word &l = machine::live_words[i];
        void *room = there ? live_room[i] : 0;
        if (l.bytes == 8)
            set_live<uint64_t>(l.place, room);
        else
            set_live<uint32_t>(l.place, room);
    }
}

static size_t cell_count() { return 2 * scene->pages + 6 * scene->rounds; }

static void fill_end(pp3_ring *r, int actor)
{
    r->rounds = scene->rounds;
    r->pages = scene->pages;
    r->ranks = scene->ranks;
    r->head_bytes = r->failed_bytes = 2 * sizeof(cell);
    r->slots = 1;
    r->max_positions = TOKENS;
    r->page_bytes = r->request_bytes = sizeof(cell);
    r->page_stride = r->request_stride = sizeof(cell);
    r->failed_stride = 2 * sizeof(cell);
    r->slot_stride = sizeof w.slot;
    r->ack_words = ROUNDS;
    r->header = &w.header;
    r->entries = w.entries;
    r->give = w.give;
    r->acks = w.acks;
    r->page = (uint8_t *)cells;
    r->request = (uint8_t *)(cells + scene->pages);
    r->failed = (uint8_t *)(cells + 2 * scene->pages);
    r->slot = (uint8_t *)&w.slot;
    r->owner = actor <= machine::PROXY_B ? (uint32_t)actor : 0; /* proxies: 1, 2 */
    r->engine = &w.engine; /* only the engine's process uses it */
}

static void fill_engine()
{
    pp3_engine *g = &w.engine;
    g->next = 1;
    g->claimed = w.claimed;
    g->disposed = w.disposed;
    g->untold = w.untold;
    g->streamed = w.streamed;
    g->free_page = w.free_page;
    g->quarantine = w.quarantine;
    g->slot = &w.mirror;
    for (uint32_t k = 0; k < scene->ranks; k++) {
        g->rank[k].pidfd = machine::RANK_A + (int)k;
        PP3_STORE(&g->rank[k].life, PP3_LIVING, relaxed);
    }
    for (uint32_t id = 1; id <= 2; id++)
        PP3_STORE(&g->owner[id].life, PP3_LIVING, relaxed);
    while (g->free_count < scene->pages) { /* lowest page on top */
        uint32_t k = g->free_count++;
        g->free_page[k] = scene->pages - 1 - k;
    }
}

static void make_world()
{
    machine::quiet_time = true;
    memset((void *)&w, 0, sizeof w);
    memset(machine::actors, 0, sizeof machine::actors);
    memset(outcome, 0, sizeof outcome);
    machine::work_rings = machine::nudges = 0;
    for (int i = 0; i < machine::ACTORS; i++)
        machine::actors[i].seen_since = true;
    live_words(true);
    cells = (cell *)cell_room;
    for (size_t i = 0; i < cell_count(); i++)
        machine::put(::new (&cells[i]) cell, 0);
    for (int i = 0; i < machine::ACTORS; i++)
        fill_end(&w.end[i], i);
    fill_engine();
    if (scene->before)
        scene->before();
    machine::quiet_time = false;
}

static void take_down_world()
{
    for (size_t i = 0; i < cell_count(); i++)
        cells[i].~cell();
    live_words(false);
}

/* ---- the engine ----------------------------------------------------------------- */

/* The next round's ticket, its request written; 0 refused. */
static uint64_t claim(uint64_t deadline = SOON)
{
    machine::plain_cell heads[2 * PP3_CAUSES];
    for (uint32_t k = 0; k < PP3_CAUSES; k++)
        heads[2 * k + 1].v = 8 * w.engine.next + k;
    uint32_t held = w.engine.held_count;
    int64_t t = pp3_claim(own(), heads, deadline);
    if (w.engine.held_count > held)
        happened(QUARANTINE);
    if (w.engine.held_count < held)
        happened(RECLAIMED);
    expect(t > 0 || t == -EAGAIN || t == -EBUSY || t == -ENOBUFS, "claim's error");
    if (t < 0) {
        happened(REFUSED);
        return 0;
    }
    machine::put(pp3_request_of(own(), (uint64_t)t), (uint64_t)t);
    return (uint64_t)t;
}
static void submit(uint64_t t) { expect(pp3_submit(own(), t) == 0, "submit"); }
static uint64_t step()
{
    uint64_t t = claim();
    if (t != 0)
        submit(t);
    return t;
}
static void expire() { (void)pp3_expire(own(), SOON); }

/* ---- a proxy -------------------------------------------------------------------- */

static uint64_t take()
{
    uint64_t mine = 0;
    int found = pp3_take(own(), &mine);
    expect(found >= 0, "take's error");
    return found == 1 ? mine : 0;
}

static void answer(uint64_t mine)
{
    expect(machine::get(pp3_request(own(), mine)) == pp3_ticket(mine), "a torn request");
    PP3_STEP(0);
    if (machine::planted(machine::GIVES_EARLY))
        pp3_give_back(own(), mine);
    machine::put(pp3_page(own(), mine), mine);
    PP3_STEP(0);
}
static int publish(uint64_t mine)
{
    int error = pp3_publish(own(), mine);
    expect(error == 0 || error == -ESTALE, "publish's error");
    if (error != 0)
        happened(FENCED);
    return error;
}
static void serve()
{
    uint64_t mine = take();
    if (mine != 0) {
        answer(mine);
        (void)publish(mine);
    }
}

/* ---- a rank --------------------------------------------------------------------- */

/* One outcome of a round, whoever looks. */
static void saw(uint64_t word)
{
    uint64_t &first = outcome[pp3_ticket(word)];
    if (first == 0)
        first = word;
    expect(first == word, "two outcomes of one round");
}

static void read_reply(uint64_t word)
{
    uint32_t index;
    int status = pp3_read(own(), word, &index);
    expect(status >= 0, "read's error");
    saw(word);
    happened(status == 0 ? REPLY : FAILURE);
    if (status == 0) {
        uint64_t written = pp3_with(word, PP3_WRITING, pp3_owner_of(word));
        expect(machine::get(&cells[index]) == written, "the reply of another round");
        return;
    }
    const cell *failed = &cells[2 * scene->pages + 2 * index];
    uint32_t cause = (uint32_t)pp3_cause(PP3_FAILED + (uint32_t)status);
    expect(machine::get(failed) == pp3_ticket(word) &&
               machine::get(failed + 1) == 8 * pp3_ticket(word) + cause,
           "the failed buffer of another round");
}

static uint32_t rank_index() { return (uint32_t)machine::me() - machine::RANK_A; }
static void release(uint64_t t)
{
    int error = pp3_release(own(), rank_index(), t);
    expect(error == 0, "release's error");
}

/* A single look, as a spinning rank has many of. */
static bool look(uint64_t t)
{
    uint64_t word;
    int seen = pp3_spin(own(), t, 0, &word);
    expect(seen == 1 || seen == 0 || seen == -ESTALE, "spin's error");
    if (seen == 1) {
        if (machine::planted(machine::RELEASES_EARLY))
            release(t);
        read_reply(word);
        PP3_STEP(0);
        release(t);
    }
    return seen == 1;
}

static void wait_for(uint64_t t)
{
    uint64_t word;
    int error = pp3_wait(own(), t, UINT64_MAX, 0, &word);
    expect(error == 0 || error == -ESTALE, "wait's error");
    if (error == 0) {
        read_reply(word);
        release(t);
    } else {
        happened(STALE);
    }
}

/* ---- the end of every execution ------------------------------------------------- */

static void no_lost_wake()
{
    if (machine::actors[machine::PROXY_A].unburied)
        return; /* it may have been killed before its wake, and is still to be seen dead */
    for (int i = 0; i < machine::ACTORS; i++)
        for (uint32_t e = 0; e < scene->rounds; e++)
            expect(machine::actors[i].sleeps_on != &w.entries[e].seq ||
                       !pp3_resolved(PP3_LOAD(&w.entries[e].state, relaxed)),
                   "a lost wake");
}

/* Each page once: free, in quarantine, or of an entry whose round is not disposed of. */
static void pages_all_there()
{
    unsigned seen[PAGES] = {0};
    pp3_engine *g = &w.engine;
    for (uint32_t i = 0; i < g->free_count; i++)
        seen[g->free_page[i]]++;
    for (uint32_t i = 0; i < g->held_count; i++)
        seen[g->quarantine[i].page]++;
    for (uint32_t e = 0; e < scene->rounds; e++)
        if (g->claimed[e] != 0 && g->disposed[e] != pp3_ticket(g->claimed[e]))
            seen[pp3_page_of(g->claimed[e])]++;
    for (uint32_t i = 0; i < scene->pages; i++)
        expect(seen[i] == 1, seen[i] == 0 ? "a page is lost" : "a page is there twice");
}

/* Everybody has let go or is dead, and the deadlines are over: then every entry can be
 * claimed, as often as one likes. */
static void goes_on()
{
    for (uint32_t id = 1; id <= 2; id++)
        if (machine::actors[id].was_killed)
            (void)pp3_owner_gone(own(), id);
    for (uint32_t lap = 0; lap < scene->pages + scene->rounds; lap++) {
        expire();
        for (uint32_t k = 0; k < scene->ranks; k++)
            for (uint32_t e = 0; e < scene->rounds; e++)
                (void)pp3_release(own(), k, pp3_ticket(w.claimed[e]));
        expect(claim() != 0, "an entry that cannot be claimed again");
        pages_all_there();
    }
    pp3_reclaim(own());
    expect(w.engine.held_count == 0, "a page that never comes back");
}

/* What somebody saw a round end with is what its word still says. */
static void outcomes_stand()
{
    for (uint32_t e = 0; e < scene->rounds; e++) {
        uint64_t word = PP3_LOAD(&w.entries[e].state, relaxed);
        uint64_t first = outcome[pp3_ticket(word)];
        expect(first == 0 || first == word, "an outcome that changed");
    }
}

static void end_of_execution()
{
    machine::quiet_time = true;
    no_lost_wake();
    outcomes_stand();
    pages_all_there();
    if (scene->after)
        scene->after();
    take_down_world();
    machine::quiet_time = false;
}

#endif
