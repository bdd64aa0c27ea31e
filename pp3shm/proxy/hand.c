#include "proxy/hand.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LINE ((size_t)64)

struct pp3_hand *pp3_hand_new(struct pp3_ring *ring, const struct pp3_layout *layout)
{
    struct pp3_hand *h = calloc(1, sizeof *h);
    size_t stride = sizeof(struct pp3_frame_head) + ring->request_bytes + PP3_CRC_BYTES;

    if (!h)
        return NULL;
    stride = (stride + LINE - 1) / LINE * LINE;
    h->ring = ring;
    h->layout = *layout;
    h->places = ring->rounds + 1;
    h->taken = calloc(h->places, sizeof *h->taken);
    h->all = calloc(h->places, sizeof *h->all);
    h->frames = calloc(h->places, stride);
    /* a round is taken only while all that is owed is below twice the entries */
    h->resolved = calloc((size_t)2 * ring->rounds, sizeof *h->resolved);
    if (!h->taken || !h->all || !h->frames || !h->resolved) {
        pp3_hand_free(h);
        return NULL;
    }
    for (uint32_t i = 0; i < h->places; i++) {
        h->all[i].frame = h->frames + i * stride;
        h->taken[i] = &h->all[i];
    }
    return h;
}

void pp3_hand_free(struct pp3_hand *h)
{
    if (!h)
        return;
    free(h->taken);
    free(h->all);
    free(h->frames);
    free(h->resolved);
    free(h);
}

int pp3_hand_take(struct pp3_hand *h)
{
    if (h->in_hand == h->places) {
        int error = pp3_hand_sweep(h);
        if (error < 0)
            return error;
        if (h->in_hand == h->places)
            return -ENOBUFS; /* more open rounds than entries: the words lie */
    }
    struct pp3_taken *t = h->taken[h->in_hand];
    int taken = pp3_take_step(h->ring, &h->layout, &t->mine, pp3_taken_step(t),
                              h->ring->request_bytes, &t->body_bytes);
    if (taken != 1)
        return taken;
    t->taken = pp3_tick();
    t->sent_ns = 0;
    h->in_hand++;
    return 1;
}

struct pp3_taken *pp3_hand_find(struct pp3_hand *h, uint64_t round)
{
    for (uint32_t i = 0; i < h->in_hand; i++)
        if (pp3_ticket(h->taken[i]->mine) == round)
            return h->taken[i];
    return NULL;
}

/* It is resolved; its reply, if it still comes, is late. */
static void put_down(struct pp3_hand *h, struct pp3_taken *t)
{
    uint32_t at = 0;

    while (at < h->in_hand && h->taken[at] != t)
        at++;
    if (at == h->in_hand)
        return;
    h->in_hand--;
    memmove(&h->taken[at], &h->taken[at + 1], (h->in_hand - at) * sizeof *h->taken);
    h->taken[h->in_hand] = t;
    if (t->sent_ns != 0 && h->resolved_count < 2 * h->ring->rounds)
        h->resolved[h->resolved_count++] = pp3_ticket(t->mine);
}

/* Replies come in the order of their STEPs: none up to this one comes any more. */
static void came(struct pp3_hand *h, uint64_t round)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < h->resolved_count; i++)
        if (h->resolved[i] > round)
            h->resolved[kept++] = h->resolved[i];
    h->resolved_count = kept;
}

int pp3_hand_answer(struct pp3_hand *h, struct pp3_taken *t, const uint8_t *frame,
                    size_t frame_bytes, const uint8_t *session, uint64_t sequence,
                    uint64_t received)
{
    struct pp3_trace trace = {.received = received};
    struct pp3_fault fault;
    int outcome = pp3_answer(h->ring, &h->layout, t->mine, pp3_taken_step(t), frame,
                             frame_bytes, session, sequence, &trace, &fault);

    if (outcome <= 0) {
        put_down(h, t);
        came(h, pp3_ticket(t->mine));
    }
    return outcome;
}

int pp3_hand_late(struct pp3_hand *h, uint64_t round, const uint8_t *frame,
                  size_t frame_bytes, const uint8_t *session, uint64_t sequence)
{
    struct pp3_fault fault;
    int reason = pp3_accept(&h->layout, NULL, frame, frame_bytes, session, sequence,
                            NULL, &fault);

    if (reason != PP3_REASON_HEADER)
        return reason;
    for (uint32_t i = 0; i < h->resolved_count; i++)
        if (h->resolved[i] == round) {
            came(h, round);
            return 0;
        }
    return reason;
}

int pp3_hand_fail(struct pp3_hand *h, struct pp3_taken *t, int32_t status)
{
    int lost = pp3_answer_failed(h->ring, &h->layout, t->mine, pp3_taken_step(t), status);

    put_down(h, t);
    return lost == 0;
}

int pp3_hand_fail_all(struct pp3_hand *h, int32_t status)
{
    int open = 0;

    while (h->in_hand != 0)
        open += pp3_hand_fail(h, h->taken[0], status);
    return open;
}

int pp3_hand_sweep(struct pp3_hand *h)
{
    for (uint32_t i = 0; i < h->in_hand;) {
        struct pp3_taken *t = h->taken[i];
        uint64_t mine = t->mine;
        int kept = pp3_sweep(h->ring, &mine, 1);
        if (kept < 0)
            return kept;
        if (kept == 0)
            put_down(h, t);
        else
            i++;
    }
    return 0;
}

void pp3_hand_forget(struct pp3_hand *h) { h->resolved_count = 0; }
