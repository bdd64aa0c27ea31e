/* What survivors do with rounds: the same calls of the product, each looked at. */
#include "sweep.h"

static const uint64_t soon = 1000000000; /* a wait that takes so long is stuck */

/* The harness's own proxy, under an id of its own. */
void proxy_here(struct world *w)
{
    if (w->proxy_owner)
        return;
    if (w->engine.ring) {
        int owner = pp3_owner_add(w->engine.ring);
        if (owner <= 0) {
            wrong(w, "owner_add: %d", owner);
            return;
        }
        w->proxy_owner = (uint32_t)owner;
    } else {
        w->proxy_owner = FIRST_OWNER;
    }
    end_open(w, &w->proxy, PROXY, w->proxy_owner);
}

void proxy_take(struct world *w, uint32_t most)
{
    int code = 0;

    while (w->proxy_taken < most) {
        uint64_t *mine = &w->proxy_mine[w->proxy_taken];
        if ((code = pp3_take(w->proxy.ring, mine)) != 1)
            break;
        observe(w);
        if (!request_whole(w->proxy.ring, *mine))
            wrong(w, "torn request of round %llu",
                  (unsigned long long)pp3_ticket(*mine));
        w->proxy_taken++;
    }
    if (code < 0)
        wrong(w, "take: %d", code);
}

void proxy_publish(struct world *w)
{
    for (uint32_t i = 0; i < w->proxy_taken; i++) {
        uint64_t mine = w->proxy_mine[i], word;
        int open =
            pp3_word(w->proxy.ring, pp3_ticket(mine), &word) == 0 && word == mine;
        int code;

        fill_page(w->proxy.ring, mine);
        code = pp3_publish(w->proxy.ring, mine);
        if (code != (open ? 0 : -ESTALE))
            wrong(w, "publish of round %llu: %d", (unsigned long long)pp3_ticket(mine),
                  code);
        observe(w);
    }
    w->proxy_taken = 0;
}

void expect_word(struct world *w, uint64_t ticket, uint64_t word, const char *who)
{
    uint64_t found = 0;
    char a[80], b[80];

    (void)pp3_word(w->rank.ring, ticket, &found);
    if (found != word)
        wrong(w, "%s: expected %s, found %s", who, word_text(word, a, sizeof a),
              word_text(found, b, sizeof b));
}

static uint64_t read_by(struct world *w, struct pp3_ring *r, uint64_t t,
                        const char *who)
{
    uint64_t word = 0;
    int code = pp3_wait(r, t, pp3_now() + soon, 0, &word);

    observe(w);
    if (code != 0)
        wrong(w, "%s: %s waits for round %llu: %d",
              code == -ETIMEDOUT ? "stuck" : "lost", who, (unsigned long long)t, code);
    else if (!reply_whole(r, word))
        wrong(w, "torn: %s reads round %llu", who, (unsigned long long)t);
    return word;
}

/* Every living reader waits for t and looks at every byte; all see one outcome. */
uint64_t ranks_read(struct world *w, uint64_t t)
{
    uint64_t word = read_by(w, w->rank.ring, t, "a rank"), other = word;

    if (w->engine.ring)
        other = read_by(w, w->engine.ring, t, "the engine");
    if (other != word)
        wrong(w, "two outcomes of round %llu", (unsigned long long)t);
    return word;
}

void ranks_release(struct world *w, uint64_t t)
{
    for (uint32_t k = 0; k < RANKS; k++) {
        int code;
        if (w->scene->role == RANK && k == VICTIM_RANK)
            continue; /* its own affair, or nobody's */
        if (w->scene->role == ENGINE && k == 0 && w->victim_dead)
            continue;
        code = pp3_release(w->rank.ring, k, t);
        if (code != 0)
            wrong(w, "release of round %llu by rank %u: %d", (unsigned long long)t, k,
                  code);
        observe(w);
    }
}

/* Every turn of a proxy's loop begins so. */
static void proxy_sweep(struct world *w)
{
    int kept = pp3_sweep(w->proxy.ring, w->proxy_mine, (int)w->proxy_taken);

    if (kept < 0)
        wrong(w, "sweep: %d", kept);
    w->proxy_taken = kept < 0 ? 0 : (uint32_t)kept;
    observe(w);
}

/* n rounds from claim to release, as if nothing had been. */
void whole_rounds(struct world *w, uint32_t n)
{
    for (uint32_t i = 0; i < n && !w->fault[0]; i++) {
        int64_t t = next_step(w->engine.ring);
        observe(w);
        if (t < 0) {
            wrong(w, "stuck: no claim, %lld", (long long)t);
            return;
        }
        proxy_sweep(w);
        proxy_take(w, 1);
        if (w->proxy_taken != 1 || pp3_ticket(w->proxy_mine[0]) != (uint64_t)t)
            wrong(w, "round %lld is not taken", (long long)t);
        proxy_publish(w);
        if (pp3_state(ranks_read(w, (uint64_t)t)) != PP3_PUBLISHED)
            wrong(w, "round %lld was not published", (long long)t);
        ranks_release(w, (uint64_t)t);
        if (w->scene->role == RANK && !w->begun) /* before it does so itself */
            (void)pp3_release(w->rank.ring, VICTIM_RANK, (uint64_t)t);
        observe(w);
    }
}

/* The same inside a victim that is the engine, by ends of its own. */
void rounds_alone(struct end *engine, uint32_t n)
{
    struct world *w = the_world;
    struct end proxy, rank;
    uint64_t word = 0;

    end_open(w, &proxy, PROXY, FIRST_OWNER);
    end_open(w, &rank, RANK, 0);
    for (uint32_t i = 0; i < n; i++) {
        int64_t t = next_step(engine->ring);
        if (t < 0 || pp3_take(proxy.ring, &word) != 1)
            wrong(w, "no round before the operation: %lld", (long long)t);
        fill_page(proxy.ring, word);
        if (pp3_publish(proxy.ring, word) != 0)
            wrong(w, "no round before the operation: not published");
        for (uint32_t k = 0; k < RANKS; k++)
            (void)pp3_release(rank.ring, k, (uint64_t)t);
    }
    end_close(w, &rank);
    end_close(w, &proxy);
}
