/* How one waiter waits: how long it spins before it sleeps.
 *
 * A spin that catches what is waited for saves the kernel's wake-up, some tens of
 * microseconds; one that does not is a core burnt for nothing. So the hybrid spins only
 * where half of its last waits were within reach, and only about as long as that took.
 * Within reach is twice the longest spin: where it slept, its own wake-up is in the wait,
 * and where the other side slept, that one's. Two who both stopped spinning would else
 * each find the other too slow to spin for, for ever. What it knows is its own: nothing of it stands in a region, and one thread uses
 * it.
 */
#ifndef PP3_WAITER_H
#define PP3_WAITER_H

#include <stdint.h>

enum pp3_wait_policy {
    PP3_WAIT_FUTEX = 0,  /* sleeps at once */
    PP3_WAIT_HYBRID = 1, /* spins as long as it has learned, then sleeps */
    PP3_WAIT_SPIN = 2,   /* never sleeps */
};

enum {
    PP3_WAITS_KEPT = 8,   /* so many waits are remembered */
    PP3_WAITS_CAUGHT = 4, /* so many of them must have been within reach of a spin */
    PP3_WAITS_REACH = 2,  /* the longest spin, and as much again for the wake-ups in them */
    PP3_WAITS_PROBE = 8,  /* of waits that do not spin, each so many-th one tries */
};

struct pp3_waiter {
    uint64_t most_ns; /* of the hybrid: it never spins longer */
    uint64_t spin_ns; /* what it has learned; 0: spinning catches too little */
    uint32_t policy;
    uint32_t waits;   /* remembered since the beginning */
    uint32_t trial;   /* so many waits more are spun at full length */
    uint32_t unspun;  /* since the last that was spun */
    uint64_t kept_ns[PP3_WAITS_KEPT]; /* the last waits; a slept one has its wake-up in it */
};

/* Begins with as many trials as waits are remembered. */
void pp3_waiter_set(struct pp3_waiter *w, uint32_t policy, uint64_t most_ns);

/* A wait begins: how long to spin. UINT64_MAX: to its end. */
uint64_t pp3_waiter_begin(struct pp3_waiter *w);

/* It ended, by what was waited for, after so long. A wait that was given up teaches
 * nothing. */
void pp3_waiter_end(struct pp3_waiter *w, uint64_t waited_ns);

#endif
