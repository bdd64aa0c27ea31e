#include "rounds/ask.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST_S 1e9

/* Relaxed throughout: what orders a round between threads is the ring, and how its user
 * hands tickets from one to the other. These words only have to be whole. */
#define GET(word) atomic_load_explicit(&(word), memory_order_relaxed)
#define PUT(word, value) atomic_store_explicit(&(word), value, memory_order_relaxed)

struct pp3_ask *pp3_ask_new(const struct pp3_ring *r, const struct pp3_layout *l)
{
    struct pp3_ask *a = calloc(1, sizeof *a);

    if (!a)
        return NULL;
    a->layout = *l;
    a->rounds = r->rounds;
    a->request_bytes = r->request_bytes;
    a->heads_bytes = PP3_CAUSES * r->head_bytes;
    a->asked = calloc(r->rounds, sizeof *a->asked);
    a->step = calloc(1, r->request_bytes);
    a->heads = calloc(1, a->heads_bytes);
    if (!a->asked || !a->step || !a->heads) {
        pp3_ask_free(a);
        return NULL;
    }
    return a;
}

void pp3_ask_free(struct pp3_ask *a)
{
    if (!a)
        return;
    free(a->asked);
    free(a->step);
    free(a->heads);
    free(a);
}

uint64_t pp3_after(double seconds)
{
    if (!(seconds >= 0))
        return 0;
    return pp3_now() + (uint64_t)((seconds < LONGEST_S ? seconds : LONGEST_S) * 1e9);
}

/* ---- slots ------------------------------------------------------------------------ */

uint64_t pp3_ask_life(const struct pp3_ask *a, uint32_t slot)
{
    return GET(a->slot[slot].life);
}

void pp3_ask_open(struct pp3_ask *a, uint32_t slot, uint32_t generation,
                  uint64_t position, uint64_t digest)
{
    struct pp3_ask_slot *s = &a->slot[slot];

    s->position = position;
    s->digest = digest;
    s->unsent_count = 0;
    PUT(s->life, (uint64_t)generation << 1 | 1u);
}

void pp3_ask_close(struct pp3_ask *a, uint32_t slot)
{
    PUT(a->slot[slot].life, GET(a->slot[slot].life) & ~UINT64_C(1));
}

void pp3_ask_commit(struct pp3_ask *a, uint32_t slot, const int32_t *tokens, uint64_t n,
                    uint64_t digest)
{
    struct pp3_ask_slot *s = &a->slot[slot];
    uint32_t most = a->layout.depth + 1;

    s->position += n;
    s->digest = digest;
    for (uint64_t i = n > most ? n - most : 0; i < n; i++) {
        if (s->unsent_count == most)
            memmove(s->unsent, s->unsent + 1, --s->unsent_count * sizeof *s->unsent);
        s->unsent[s->unsent_count++] = tokens[i];
    }
}

int pp3_ask_append(struct pp3_ask *a, struct pp3_ring *r, uint32_t slot,
                   const int32_t *tokens, uint64_t n, uint64_t digest)
{
    int error;

    if (slot >= a->layout.max_slots)
        return -EINVAL;
    if (!(GET(a->slot[slot].life) & 1u))
        return -ENOENT;
    if (pp3_ask_busy(a, r, slot) != 0)
        return -EBUSY;
    for (uint64_t i = 0; i < n; i++)
        if ((uint32_t)tokens[i] >= a->layout.vocab)
            return -EDOM;
    if ((error = pp3_slot_append(r, slot, tokens, n)) == 0)
        pp3_ask_commit(a, slot, tokens, n, digest);
    return error;
}

/* ---- rounds ----------------------------------------------------------------------- */

int pp3_ask_rows(struct pp3_ask *a, const uint8_t *step, uint32_t bytes,
                 const uint8_t *heads)
{
    struct pp3_body_head head;
    uint32_t found = 0;

    if (bytes > a->request_bytes ||
        pp3_step_check(&a->layout, step, bytes, &found) != 0 || found != bytes)
        return -EINVAL;
    memcpy(&head, step, sizeof head);
    memcpy(a->step, step, bytes);
    memcpy(a->heads, heads, a->heads_bytes);
    a->at = pp3_step_at(&a->layout, head.n);
    a->bytes = bytes;
    a->n = head.n;
    for (uint32_t i = 0; i < a->n; i++) {
        struct pp3_step_row row;
        memcpy(&row, step + a->at.rows + i * sizeof row, sizeof row);
        a->row_slot[i] = row.slot;
    }
    return 0;
}

/* The row as its slot stands now. False: the slot is closed. */
static int put_row(struct pp3_ask *a, uint32_t i)
{
    const struct pp3_ask_slot *s = &a->slot[a->row_slot[i]];
    uint64_t life = GET(s->life);
    uint8_t *at = a->step + a->at.rows + i * sizeof(struct pp3_step_row);
    int32_t committed[PP3_MOST_DEPTH + 1];
    size_t places = a->layout.depth + 1;
    struct pp3_step_row row;

    if (!(life & 1u))
        return 0;
    memcpy(&row, at, sizeof row);
    row.generation = (uint32_t)(life >> 1);
    row.position = s->position;
    row.digest = s->digest;
    row.count = s->unsent_count;
    memcpy(at, &row, sizeof row);
    for (uint32_t k = 0; k < places; k++)
        committed[k] = k < s->unsent_count ? s->unsent[k] : -1;
    memcpy(a->step + a->at.committed + i * places * sizeof *committed, committed,
           places * sizeof *committed);
    return 1;
}

/* As pp3_step, and when: just before the bell. */
static int64_t submit(struct pp3_ask *a, struct pp3_ring *r, uint64_t deadline)
{
    int64_t t = pp3_ask(r, a->heads, deadline);
    uint8_t *to;

    if (t < 0)
        return t;
    to = pp3_request_of(r, (uint64_t)t);
    PP3_COPY(to, a->step, a->bytes);
    PP3_STAMP(to, (uint64_t)t);
    PUT(a->asked[(uint64_t)t % a->rounds].submitted, pp3_tick());
    (void)pp3_submit(r, (uint64_t)t); /* claimed right here: there is no refusal */
    return t;
}

int64_t pp3_ask_step(struct pp3_ask *a, struct pp3_ring *r, double timeout_s)
{
    uint64_t deadline = pp3_after(timeout_s);
    struct pp3_asked *asked;
    uint32_t slots = 0;
    int64_t t;

    if (deadline == 0)
        return -EDOM;
    for (uint32_t i = 0; i < a->n; i++)
        if (!put_row(a, i)) {
            a->closed = a->row_slot[i];
            return -ENOENT;
        }
    t = submit(a, r, deadline);
    if (t < 0)
        return t;
    asked = &a->asked[(uint64_t)t % a->rounds];
    for (uint32_t i = 0; i < a->n; i++) {
        struct pp3_ask_slot *s = &a->slot[a->row_slot[i]];
        slots |= 1u << a->row_slot[i];
        asked->generation[a->row_slot[i]] = (uint32_t)(GET(s->life) >> 1);
        s->unsent_count = 0;
    }
    asked->slots = slots;
    PUT(asked->over, 0);
    PUT(asked->ticket, (uint64_t)t);
    return t;
}

uint64_t pp3_ask_busy(const struct pp3_ask *a, struct pp3_ring *r, uint32_t slot)
{
    uint32_t generation = (uint32_t)(GET(a->slot[slot].life) >> 1);
    uint64_t first = 0, word;

    for (uint32_t e = 0; e < a->rounds; e++) {
        const struct pp3_asked *asked = &a->asked[e];
        uint64_t t = GET(asked->ticket);
        if (t == 0 || !(asked->slots >> slot & 1u) ||
            asked->generation[slot] != generation || (first != 0 && t > first))
            continue;
        if (pp3_word(r, t, &word) == 0 && pp3_ticket(word) == t &&
            !pp3_resolved(word))
            first = t;
    }
    return first;
}

uint64_t pp3_ask_submitted(const struct pp3_ask *a, uint64_t ticket)
{
    return GET(a->asked[ticket % a->rounds].submitted);
}

uint32_t pp3_ask_stale(const struct pp3_ask *a, uint64_t ticket)
{
    const struct pp3_asked *asked = &a->asked[ticket % a->rounds];
    uint32_t stale = 0;

    if (ticket == 0 || GET(asked->ticket) != ticket || GET(asked->over))
        return 0;
    for (uint32_t slot = 0; slot < a->layout.max_slots; slot++)
        if (asked->slots >> slot & 1u &&
            GET(a->slot[slot].life) != ((uint64_t)asked->generation[slot] << 1 | 1u))
            stale |= 1u << slot;
    return stale;
}

void pp3_ask_over(struct pp3_ask *a, uint64_t ticket)
{
    struct pp3_asked *asked = &a->asked[ticket % a->rounds];

    if (GET(asked->ticket) == ticket)
        PUT(asked->over, 1);
}
