/* After the death: survivors go on, and what has to be so at the end. */
#include "sweep.h"

/* By every rank that lives: its next round may have begun to be written. */
static int all_acknowledged(const struct world *w, uint32_t e)
{
    for (uint32_t k = 0; k < RANKS; k++)
        if (w->last.ack[k][e] < pp3_ticket(w->last.state[e]) &&
            !(w->rank_dead && k == VICTIM_RANK))
            return 0;
    return 1;
}

/* What the table makes of a word that stood there when the victim died. */
static uint64_t expected(const struct world *w, uint32_t e)
{
    uint64_t word = w->killed_at[e];
    uint32_t owner = pp3_owner_of(word), state = pp3_state(word);
    int goes_on = w->surrounding == SUCCESSOR;

    if (word == 0 || pp3_resolved(word))
        return word;
    if (state == PP3_WRITING && w->scene->role == PROXY && owner == w->victim_owner)
        return pp3_with(
            word, PP3_FAILED + (w->surrounding == HELPER ? PP3_EXPIRED : PP3_ORPHANED),
            owner);
    if (goes_on && state == PP3_WRITING && owner == w->proxy_owner)
        return pp3_with(word, PP3_PUBLISHED, owner);
    if (goes_on && state == PP3_CLAIMED && w->last.bell[e] == pp3_ticket(word))
        return pp3_with(word, PP3_PUBLISHED, w->proxy_owner);
    return pp3_with(word, PP3_FAILED + PP3_EXPIRED, owner);
}

static void sleeper_saw(struct world *w, const uint64_t *wanted)
{
    uint64_t t = w->scene->asleep, word;

    if (!w->sleeper)
        return;
    sleeper_join(w);
    observe(w);
    word = PP3_LOAD(&board->slept_word, acquire);
    if (PP3_LOAD(&board->slept_code, acquire) != 0)
        wrong(w, "lost: the sleeping rank got %d for round %llu",
              (int)PP3_LOAD(&board->slept_code, acquire), (unsigned long long)t);
    else if (PP3_LOAD(&board->slept_torn, acquire))
        wrong(w, "torn: the sleeping rank reads round %llu", (unsigned long long)t);
    else if (word != wanted[t % ROUNDS])
        wrong(w, "the sleeping rank saw another outcome of round %llu",
              (unsigned long long)t);
}

/* Every round that stands in the ring gets the outcome that the table gives it. */
static void outcomes(struct world *w)
{
    uint64_t wanted[ROUNDS];

    for (uint32_t e = 0; e < ROUNDS; e++)
        wanted[e] = expected(w, e);
    if (w->surrounding == SUCCESSOR) {
        proxy_here(w);
        for (uint32_t i = 0; i < ROUNDS; i++) {
            proxy_publish(w);
            proxy_take(w, ROUNDS);
        }
        for (uint32_t e = 0; e < ROUNDS; e++) /* the id was not known before */
            if (pp3_state(wanted[e]) == PP3_PUBLISHED && !pp3_resolved(w->killed_at[e]))
                wanted[e] = pp3_with(wanted[e], PP3_PUBLISHED, w->proxy_owner);
    }
    let_deadlines_pass();
    if (w->surrounding == WATCHDOG && w->engine.ring) {
        (void)pp3_expire(w->engine.ring, pp3_now());
        observe(w);
    }
    sleeper_saw(w, wanted);
    for (uint32_t e = 0; e < ROUNDS; e++) {
        uint64_t t = pp3_ticket(w->killed_at[e]);
        if (t == 0 || all_acknowledged(w, e))
            continue;
        if (ranks_read(w, t) != wanted[e])
            expect_word(w, t, wanted[e], "outcome");
        w->ended[pp3_state(w->last.state[e])]++;
    }
    for (uint32_t e = 0; e < ROUNDS; e++)
        if (w->killed_at[e] != 0)
            ranks_release(w, pp3_ticket(w->killed_at[e]));
}

uint32_t held_by_victim(const struct world *w)
{
    uint32_t n = 0;

    for (uint32_t p = 0; p < PAGES; p++)
        n += w->held[p] && pp3_owner_of(w->held[p]) == w->victim_owner &&
             w->last.give[p] != pp3_ticket(w->held[p]);
    return n;
}

/* Every page is free, or named by one entry, and none is left behind. */
static void pages_back(struct world *w)
{
    struct pp3_engine *g = w->engine.ring->engine;
    uint32_t seen[PAGES] = {0};

    pp3_reclaim(w->engine.ring);
    if (g->held_count != 0)
        wrong(w, "%u pages stay in quarantine", g->held_count);
    for (uint32_t i = 0; i < g->free_count && i < PAGES; i++)
        seen[g->free_page[i] % PAGES]++;
    for (uint32_t e = 0; e < ROUNDS; e++)
        if (g->claimed[e] != 0 && g->disposed[e] != pp3_ticket(g->claimed[e]))
            seen[pp3_page_of(g->claimed[e]) % PAGES]++;
    for (uint32_t p = 0; p < PAGES; p++)
        if (seen[p] != 1)
            wrong(w, "page %u stands in %u places", p, seen[p]);
}

static void nobody_counted(struct world *w)
{
    uint32_t most = w->scene->role != PROXY, found = 0;

    for (uint32_t e = 0; e < ROUNDS; e++)
        found += PP3_LOAD(&w->rank.ring->entries[e].waiters, acquire);
    if (found > most)
        wrong(w, "%u waiters are counted, at most %u died", found, most);
}

/* The engine is told of the death only now, and has recycled every entry before. */
static void told_late(struct world *w)
{
    uint32_t held = held_by_victim(w);

    proxy_here(w);
    whole_rounds(w, ROUNDS);
    pp3_reclaim(w->engine.ring);
    if (w->engine.ring->engine->held_count != held)
        wrong(w, "%u pages in quarantine, the victim holds %u",
              w->engine.ring->engine->held_count, held);
}

static void owner_buried(struct world *w)
{
    int failed = pp3_owner_gone(w->engine.ring, w->victim_owner);

    observe(w);
    if (failed < 0)
        wrong(w, "owner_gone: %d", failed);
}

static void after_living(struct world *w)
{
    int proxy = w->scene->role == PROXY;

    if (w->scene->attaching &&
        pp3_rank_attach(w->engine.ring, VICTIM_RANK, w->victim_fd) != 0)
        wrong(w, "the dead rank is not attached");
    if (proxy && w->surrounding != HELPER)
        owner_buried(w);
    outcomes(w);
    if (proxy && w->surrounding == HELPER) {
        told_late(w);
        owner_buried(w);
    }
    proxy_here(w);
    whole_rounds(w, 2 * PAGES);
    pages_back(w);
    nobody_counted(w);
    if (proxy && pp3_named(w->engine.ring, w->victim_owner))
        wrong(w, "the dead owner's id is still named");
}

/* The region is over; whoever waits is told, and nobody sees anything torn. */
static void after_engine(struct world *w)
{
    uint64_t magic = pp3_region_magic(w->rank.at[0]);

    if (magic != 0 && magic != pp3_magic())
        wrong(w, "half a magic");
    outcomes(w);
    nobody_counted(w);
}

void after(struct world *w)
{
    observe(w);
    memcpy(w->killed_at, w->last.state, sizeof w->killed_at);
    victim_kill(w);
    observe(w);
    if (w->scene->role == ENGINE)
        after_engine(w);
    else
        after_living(w);
    if (w->scene->settled)
        w->scene->settled(w);
}

/* ---- stopped, not dead ---- */

/* An entry that the stopped rank has not read is refused, and the refusal names it. */
static void refused_for_the_rank(struct world *w)
{
    struct pp3_why why;
    int64_t code;

    for (uint32_t i = 0; i < ROUNDS; i++) { /* entries that it has read come back */
        uint32_t e = (uint32_t)(w->engine.ring->engine->next % ROUNDS);
        if (w->last.ack[VICTIM_RANK][e] < pp3_ticket(w->last.state[e]))
            break;
        whole_rounds(w, 1);
    }
    code = next_step(w->engine.ring);
    observe(w);
    pp3_why(w->engine.ring, &why);
    if (code != -EBUSY || why.rank != VICTIM_RANK)
        wrong(w, "claim beside a stopped rank: %lld, names %d", (long long)code,
              why.rank);
}

static void go_on(struct world *w)
{
    int64_t t = 0;

    if (w->scene->role == PROXY) {
        t = next_step(w->engine.ring); /* of a bystander, who is in the middle of it */
        observe(w);
        proxy_take(w, 1);
    }
    for (int i = 0; i < 2 && w->sleeps && !w->victim_dead; i++)
        (void)victim_step(w);
    victim_resume(w);
    observe(w);
    if (!PP3_LOAD(&board->ended, acquire))
        wrong(w, "the victim does not come to its end");
    if (w->scene->gives_back && held_by_victim(w))
        wrong(w, "a page was not given back by a proxy that was fenced");
    if (w->scene->role != PROXY)
        return;
    proxy_publish(w);
    if (pp3_state(ranks_read(w, (uint64_t)t)) != PP3_PUBLISHED)
        wrong(w, "round %lld of a bystander was not published", (long long)t);
    ranks_release(w, (uint64_t)t);
}

void while_stopped(struct world *w)
{
    let_deadlines_pass();
    for (uint32_t e = 0; e < ROUNDS; e++)
        if (w->last.state[e] != 0 && !all_acknowledged(w, e)) {
            uint64_t t = pp3_ticket(w->last.state[e]);
            (void)ranks_read(w, t);
            ranks_release(w, t);
        }
    if (w->scene->role == PROXY) {
        proxy_here(w);
        whole_rounds(w, 3);
    } else if (w->scene->role == RANK && !w->scene->attaching) {
        proxy_here(w);
        refused_for_the_rank(w);
    }
    if (w->surrounding == RESUMED)
        go_on(w);
}
