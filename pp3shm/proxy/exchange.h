/* What a proxy does with a round, one call each: take it with its STEP, answer it,
 * fail it, sleep until there is something to do. The ring moves bytes and the layout
 * knows what they mean; this file is where the two meet. */
#ifndef PP3_EXCHANGE_H
#define PP3_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>

#include "layout/accept.h"
#include "ring/trace.h"

enum {
    PP3_WAKE_WORK = 1,    /* a round can be taken */
    PP3_WAKE_LINK = 2,    /* the link is readable or gone */
    PP3_WAKE_CONTROL = 4, /* the control descriptor is readable or gone */
};

/* Takes the next round and copies its request out of the region, since what stands
 * there can change under the reader; the copy is what is checked, framed and sent.
 * It must be a STEP of this very round.
 * step: capacity bytes, the region's request_bytes; *bytes: the body without its CRC.
 * 1: taken and checked. 0: nothing to take. -EINVAL: taken, its request is not a
 * STEP, the round has been failed (REFUSED) and given back; *mine names it.
 * Another negative value is the ring's. */
int pp3_take_step(struct pp3_ring *r, const struct pp3_layout *l, uint64_t *mine,
                  uint8_t *step, size_t capacity, uint32_t *bytes);

/* Checks frame against the STEP taken with mine, scatters it into the round's page
 * and publishes. trace: received is the caller's, and so are taken and sent where it has
 * not put them into the trace itself (ring/trace.h), else 0; checked and published are
 * filled in.
 * 0: published. 1..10: the reason; the round is still the caller's, who first notes
 * what must outlast him and then says pp3_answer_failed. -ESTALE: the round was
 * resolved meanwhile; the reply is late and page and request are given back.
 * -EOWNERDEAD: a forked child's call; nothing was touched. */
int pp3_answer(struct pp3_ring *r, const struct pp3_layout *l, uint64_t mine,
               const uint8_t *step, const uint8_t *frame, size_t frame_bytes,
               const uint8_t *session, uint64_t sequence, struct pp3_trace *trace,
               struct pp3_fault *fault);

/* Publishes the round as failed, all its rows with status. 0, -ESTALE or
 * -EOWNERDEAD. */
int pp3_answer_failed(struct pp3_ring *r, const struct pp3_layout *l, uint64_t mine,
                      const uint8_t *step, int32_t status);

struct pollfd;

/* ppoll: how many are ready, or -errno. */
int pp3_poll(struct pollfd *fds, unsigned long n, int64_t sleep_ns);

/* The same, with the ring's bell among the descriptors: no sleep while a round can be
 * taken, and a submit ends it (E4). */
int pp3_work_poll(struct pp3_ring *r, struct pollfd *fds, unsigned long n,
                  int64_t sleep_ns);

/* Spins up to spin_ns, then sleeps up to sleep_ns, until a round can be taken or one
 * of the descriptors (-1: none) is readable. r NULL: rounds cannot be taken just now and
 * must not keep the caller awake. Returns PP3_WAKE_* bits, 0 after the whole time, or
 * -errno. */
int pp3_proxy_sleep(struct pp3_ring *r, int link_fd, int control_fd, int64_t spin_ns,
                    int64_t sleep_ns);

/* The kernel kills this process when the thread that started it is gone. 0 or -errno. */
int pp3_die_with_parent(void);

#endif
