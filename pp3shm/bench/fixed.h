/* A native drafter whose reply costs nothing: the same valid REPLY again and again.
 *
 * It gives every benchmark of ours what stands at its far end, so that what is measured
 * is the way there and back. It takes and answers by the calls of a real proxy
 * (proxy/exchange.h): requests and replies are checked as in use.
 */
#ifndef PP3_BENCH_FIXED_H
#define PP3_BENCH_FIXED_H

#include <stddef.h>
#include <stdint.h>

#include "proxy/exchange.h"
#include "ring/waiter.h"

/* The REPLY frame to answer with; its round, generations, sequence, session and CRC are
 * written anew for each STEP. */
struct pp3_fixed {
    const struct pp3_layout *layout;
    uint8_t *frame; /* of max_slots rows, all of them sampled where the layout is */
    size_t frame_bytes;
    uint8_t session[16];
    uint64_t sequence; /* of the next frame that is sent */
    uint64_t answered; /* STEPs, counted here */
};

/* At the ring, as a proxy that is its own drafter: takes, checks, answers, until the
 * control descriptor says something. step: capacity bytes of its own; waiter: how it
 * waits for rounds.
 * 0, or -errno. */
int pp3_fixed_ring(struct pp3_fixed *f, struct pp3_ring *r, uint8_t *step,
                   size_t capacity, int control_fd, struct pp3_waiter *waiter,
                   int64_t sleep_ns);

/* At a connected socket, after the handshake, as a worker: answers every STEP until the
 * other side ends. room: capacity bytes, more than the longest frame.
 * 0, or -errno. */
int pp3_fixed_link(struct pp3_fixed *f, int fd, uint8_t *room, size_t capacity);

#endif
