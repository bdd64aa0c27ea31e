/* Every change of a word against the tables of ring.h, and who may have made it. */
#include "sweep.h"

static const uint32_t causes[PP3_CAUSES] = {PP3_EXPIRED, PP3_ORPHANED, PP3_CANCELLED};

static void refuse(struct world *w, const char *why, uint64_t before, uint64_t now)
{
    char a[80], b[80];

    wrong(w, "%s: %s -> %s", why, word_text(before, a, sizeof a),
          word_text(now, b, sizeof b));
}

static void look(struct world *w, struct words *now)
{
    struct pp3_ring *r = w->rank.ring;

    for (uint32_t e = 0; e < ROUNDS; e++) {
        now->state[e] = PP3_LOAD(&r->entries[e].state, acquire);
        now->bell[e] = PP3_LOAD(&r->entries[e].bell, acquire);
        for (uint32_t k = 0; k < RANKS; k++)
            now->ack[k][e] = PP3_LOAD(&r->acks[k * r->ack_words + e], acquire);
    }
    for (uint32_t p = 0; p < PAGES; p++)
        now->give[p] = PP3_LOAD(&r->give[p], acquire);
}

/* A claim takes a page that nobody may still touch, and an entry everybody has read. */
static void claimed(struct world *w, const struct words *now, uint32_t e)
{
    uint64_t old = w->last.state[e], word = now->state[e], t = pp3_ticket(word);
    uint32_t page = pp3_page_of(word);
    uint64_t held = page < PAGES ? w->held[page] : 0;

    if (page >= PAGES || pp3_owner_of(word) != 0 || pp3_state(word) != PP3_CLAIMED ||
        t % ROUNDS != e ||
        (old != 0 && (!pp3_resolved(old) || t != pp3_ticket(old) + ROUNDS))) {
        refuse(w, "no edge leads there", old, word);
        return;
    }
    for (uint32_t k = 0; old != 0 && k < RANKS; k++)
        if (now->ack[k][e] < pp3_ticket(old) && !(w->rank_dead && k == VICTIM_RANK) &&
            PP3_LOAD(&board->untold, acquire) != pp3_ticket(old))
            refuse(w, "claimed under a rank that still reads", old, word);
    for (uint32_t i = 0; i < ROUNDS; i++)
        if (i != e && now->state[i] != 0 && pp3_page_of(now->state[i]) == page)
            refuse(w, "one page in two rounds", now->state[i], word);
    if (held && now->give[page] != pp3_ticket(held) && !w->dead[pp3_owner_of(held)])
        refuse(w, "page reused under its holder", held, word);
    w->held[page] = 0;
    for (uint32_t k = 0; k < PP3_CAUSES; k++)
        if (!reply_whole(w->rank.ring, pp3_make(t, PP3_FAILED + causes[k], page, 0)))
            refuse(w, "claimed before its failed buffers were filled", old, word);
}

static void changed(struct world *w, const struct words *now, uint32_t e)
{
    uint64_t old = w->last.state[e], word = now->state[e];
    uint32_t from = pp3_state(old), to = pp3_state(word), owner = pp3_owner_of(word);
    int kept = pp3_page_of(old) == pp3_page_of(word);

    if (pp3_ticket(old) != pp3_ticket(word)) {
        claimed(w, now, e);
    } else if (pp3_resolved(old)) {
        refuse(w, "a second outcome", old, word);
    } else if (from == PP3_CLAIMED && to == PP3_WRITING) {
        if (!kept || owner == 0 || w->dead[owner] || now->bell[e] != pp3_ticket(word))
            refuse(w, "taken wrongly", old, word);
    } else if (from == PP3_WRITING && to == PP3_PUBLISHED) {
        if (!kept || owner != pp3_owner_of(old))
            refuse(w, "published wrongly", old, word);
        else if (!reply_whole(w->rank.ring, word))
            refuse(w, "published a torn page", old, word);
    } else if (to == PP3_FAILED + PP3_EXPIRED || to == PP3_FAILED + PP3_CANCELLED ||
               (from == PP3_WRITING && to == PP3_FAILED + PP3_ORPHANED)) {
        if (!kept || owner != pp3_owner_of(old))
            refuse(w, "failed, and its page and owner forgotten", old, word);
        else if (from == PP3_WRITING)
            w->held[pp3_page_of(old)] = old;
    } else {
        refuse(w, "no edge leads there", old, word);
    }
}

/* Called often enough that no word changes twice between two looks. */
void observe(struct world *w)
{
    struct words now;

    look(w, &now);
    if (memcmp(&now, &w->last, sizeof now) == 0)
        return;
    for (uint32_t e = 0; e < ROUNDS; e++) {
        if (now.state[e] != w->last.state[e])
            changed(w, &now, e);
        if (now.bell[e] != w->last.bell[e] && now.bell[e] != pp3_ticket(now.state[e]))
            wrong(w, "bell of %llu rung in entry %u", (unsigned long long)now.bell[e],
                  e);
        for (uint32_t k = 0; k < RANKS; k++)
            if (now.ack[k][e] < w->last.ack[k][e])
                wrong(w, "ack of rank %u went back in entry %u", k, e);
    }
    for (uint32_t p = 0; p < PAGES; p++)
        if (now.give[p] != w->last.give[p] && pp3_ticket(w->held[p]) != now.give[p])
            wrong(w, "page %u given back of round %llu, held is %llu", p,
                  (unsigned long long)now.give[p],
                  (unsigned long long)pp3_ticket(w->held[p]));
    w->last = now;
}

/* What was done before the referee came is taken as it stands. */
void observe_fresh(struct world *w) { look(w, &w->last); }
