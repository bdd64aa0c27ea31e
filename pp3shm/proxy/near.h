/* A pump without a link: the drafter is in the proxy's own process.
 *
 * A round's way is the same as over a link but for the bytes' own: pp3_pump comes back
 * with PP3_PUMP_STEP, the caller drafts, writes the body of the REPLY where
 * pp3_near_room says and calls pp3_near, which makes it a frame and holds it to all ten
 * checks. What a worker holds of each slot, RESETs, counters and refusals are the
 * pump's. One round is drafted at a time; the others stay in the ring, where a deadline
 * costs nobody a page.
 */
#ifndef PP3_NEAR_H
#define PP3_NEAR_H

#include "proxy/pump.h"

/* A session begins. No round is in hand. */
void pp3_near_open(struct pp3_pump *p, const uint8_t *session);

/* Where the body of a REPLY is to be put, without its CRC, and how much goes there. */
uint8_t *pp3_near_room(struct pp3_pump *p, uint32_t *bytes);

/* Answers the round that the last call came back with, if body_bytes is not 0, and goes
 * on as pp3_pump: one call a round. -EMSGSIZE in `error` of PP3_PUMP_RING: a body longer
 * than the room. */
int pp3_near(struct pp3_pump *p, uint32_t body_bytes, int control_fd, uint64_t slice_ns);

/* For pump.c: what a turn is here. */
int pp3_near_turn(struct pp3_pump *p);

#endif
