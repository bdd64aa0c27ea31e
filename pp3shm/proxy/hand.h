/* The rounds a proxy has in hand: taken, answered, failed, swept; each put down once.
 *
 * One thread uses a hand. What is put down has been resolved by somebody, and its page
 * and request are not touched again.
 */
#ifndef PP3_HAND_H
#define PP3_HAND_H

#include "proxy/exchange.h"

/* A round in hand. */
struct pp3_taken {
    uint64_t mine;              /* the state word as it was taken */
    uint64_t taken;             /* pp3_tick */
    uint64_t sent_ns;           /* 0: no byte of it has left */
    uint8_t *frame;             /* room for a header, our own copy of the STEP's body,
                                 * room for its CRC */
    uint32_t body_bytes;        /* without the CRC */
};

struct pp3_hand {
    struct pp3_ring *ring;
    struct pp3_layout layout;
    /* The first in_hand of `places` in the order they were taken, the others free. One
     * more than the ring has entries: a round can be taken before it is seen that the
     * one before it in its entry was failed. */
    struct pp3_taken **taken, *all;
    uint8_t *frames;
    uint32_t places, in_hand;
    /* Sent, and resolved before their reply came: it can still come, late. */
    uint64_t *resolved;
    uint32_t resolved_count;
};

/* The ring's end outlives the hand. NULL: no memory. */
struct pp3_hand *pp3_hand_new(struct pp3_ring *ring, const struct pp3_layout *layout);
void pp3_hand_free(struct pp3_hand *h);

static inline uint8_t *pp3_taken_step(const struct pp3_taken *t)
{
    return t->frame + sizeof(struct pp3_frame_head);
}

/* Whether the worker owes two replies for every entry of the ring. More of it would
 * only wait behind rounds that have failed long since. */
static inline int pp3_hand_full(const struct pp3_hand *h)
{
    return h->in_hand + h->resolved_count >= 2 * h->ring->rounds;
}

/* 1: the next round is taken[in_hand - 1]. 0: there is none. -EINVAL: its request was
 * no STEP, it was failed and given back, and taken[in_hand] still shows it. Another
 * negative value is the ring's. */
int pp3_hand_take(struct pp3_hand *h);

/* NULL: it is not in hand. */
struct pp3_taken *pp3_hand_find(struct pp3_hand *h, uint64_t round);

/* Holds a REPLY against its STEP, and publishes it: as pp3_answer. What is more than 0
 * leaves the round in hand. received: its last byte, by pp3_tick. */
int pp3_hand_answer(struct pp3_hand *h, struct pp3_taken *t, const uint8_t *frame,
                    size_t frame_bytes, const uint8_t *session, uint64_t sequence,
                    uint64_t received);

/* A REPLY whose round is not in hand: 0 where it is well-formed and its round was
 * resolved before it came; else the reason. */
int pp3_hand_late(struct pp3_hand *h, uint64_t round, const uint8_t *frame,
                  size_t frame_bytes, const uint8_t *session, uint64_t sequence);

/* Publishes it as failed. 1; 0: it was resolved meanwhile. */
int pp3_hand_fail(struct pp3_hand *h, struct pp3_taken *t, int32_t status);

/* All of them; how many were still open. */
int pp3_hand_fail_all(struct pp3_hand *h, int32_t status);

/* Every turn: puts down what somebody else failed, and gives it back. 0, or -errno. */
int pp3_hand_sweep(struct pp3_hand *h);

/* No reply of this session comes any more. */
void pp3_hand_forget(struct pp3_hand *h);

#endif
