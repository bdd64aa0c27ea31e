/* The slots' seqlock; see slots.h. */
#include "ring/slots.h"

static struct pp3_slot *slot_of(struct pp3_ring *r, uint32_t slot)
{
    return (struct pp3_slot *)(void *)(r->slot + slot * r->slot_stride);
}

static PP3_A32 *tokens_of(struct pp3_slot *s) { return (PP3_A32 *)(void *)(s + 1); }

static int writable(struct pp3_ring *r, uint32_t slot)
{
    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    return !r->engine || slot >= r->slots ? -EINVAL : 0;
}

static void open_write(struct pp3_slot *s)
{
    /* relaxed: only this thread writes it; the fence keeps the words behind it */
    PP3_STORE(&s->version, PP3_LOAD(&s->version, relaxed) + 1, relaxed);
    PP3_FENCE(release);
}

static void close_write(struct pp3_slot *s)
{
    PP3_STORE(&s->version, PP3_LOAD(&s->version, relaxed) + 1, release);
}

static void put_tokens(struct pp3_slot *s, uint64_t at, const int32_t *tokens,
                       uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        PP3_STORE(&tokens_of(s)[at + i], (uint32_t)tokens[i], relaxed);
}

/* A new generation with its committed prefix. Generations only grow; 0 is one too. */
int pp3_slot_reset(struct pp3_ring *r, uint32_t slot, uint32_t generation,
                   const int32_t *tokens, uint64_t n)
{
    int error = writable(r, slot);
    struct pp3_slot_mirror *own;
    struct pp3_slot *s;

    if (error)
        return error;
    own = &r->engine->slot[slot];
    if (own->opened && generation <= own->generation)
        return -EINVAL;
    if (n > r->max_positions)
        return -ENOSPC;
    s = slot_of(r, slot);
    open_write(s);
    PP3_STORE(&s->generation, generation, relaxed);
    PP3_STORE(&s->live, 1, relaxed);
    PP3_STORE(&s->length, n, relaxed);
    put_tokens(s, 0, tokens, n);
    close_write(s);
    *own = (struct pp3_slot_mirror){n, generation, 1, 1};
    return 0;
}

int pp3_slot_append(struct pp3_ring *r, uint32_t slot, const int32_t *tokens, uint64_t n)
{
    int error = writable(r, slot);
    struct pp3_slot_mirror *own;
    struct pp3_slot *s;

    if (error)
        return error;
    own = &r->engine->slot[slot];
    if (!own->live)
        return -ENOENT;
    if (n > r->max_positions - own->length)
        return -ENOSPC;
    s = slot_of(r, slot);
    put_tokens(s, own->length, tokens, n);
    own->length += n;
    PP3_STORE(&s->length, own->length, release); /* tokens before their count */
    return 0;
}

/* The request is over; its generation stays, so that the next one is larger. */
int pp3_slot_close(struct pp3_ring *r, uint32_t slot)
{
    int error = writable(r, slot);
    struct pp3_slot *s;

    if (error)
        return error;
    s = slot_of(r, slot);
    open_write(s);
    PP3_STORE(&s->live, 0, relaxed);
    close_write(s);
    r->engine->slot[slot].live = 0;
    return 0;
}

/* One try: 1 whole, 0 disturbed, -errno. */
static int read_once(struct pp3_ring *r, struct pp3_slot *s, int32_t *out, uint64_t cap,
                     uint32_t *generation, uint32_t *live, uint64_t *length)
{
    uint64_t version = PP3_LOAD(&s->version, acquire);
    uint64_t n = PP3_LOAD(&s->length, acquire); /* tokens below it are written */
    int error = n > r->max_positions ? -EBADMSG : n > cap ? -ENOBUFS : 0;

    if (version & 1)
        return 0;
    *generation = PP3_LOAD(&s->generation, relaxed);
    *live = PP3_LOAD(&s->live, relaxed);
    *length = n;
    for (uint64_t i = 0; error == 0 && i < n; i++)
        out[i] = (int32_t)PP3_LOAD(&tokens_of(s)[i], relaxed);
    PP3_FENCE(acquire); /* the words before the second look */
    if (PP3_LOAD(&s->version, relaxed) != version)
        return 0;
    return error < 0 ? error : 1;
}

/* Anyone who maps the slots: one consistent state of the slot. On -ENOBUFS *length is
 * what cap has to be. */
int pp3_slot_read(struct pp3_ring *r, uint32_t slot, int32_t *out, uint64_t cap,
                  uint32_t *generation, uint32_t *live, uint64_t *length)
{
    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (!r->slot || slot >= r->slots)
        return -EINVAL;
    for (int i = 0; i < PP3_TRIES; i++) {
        int whole = read_once(r, slot_of(r, slot), out, cap, generation, live, length);
        if (whole != 0)
            return whole < 0 ? whole : 0;
        PP3_PAUSE();
    }
    return -EAGAIN;
}
