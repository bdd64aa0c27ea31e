/* Frames in heap blocks of their exact size, so that a byte too far is seen. */
#ifndef FRAMES_H
#define FRAMES_H

#include "known.h"
#include "layout/accept.h"

enum { FRAME = 40, BODY = 24 }; /* bytes of their heads */

/* One STEP and its REPLY, to be spoiled. */
struct pair {
    const struct known_frame *known;
    uint8_t *step, *reply, *page; /* step: the body, without CRC */
    size_t step_bytes, reply_bytes, page_bytes;
    struct pp3_fault fault;
};

uint8_t *copied(const void *from, size_t bytes);
void pair_open(struct pair *p, const struct known_frame *known);
void pair_close(struct pair *p);
/* The reason of pp3_accept, over a page of all-ones: the same by every way of the CRC
 * that this CPU has, and so are the fault and the page. */
int pair_accept(struct pair *p);
/* The same after the CRC of the reply was made right. */
int pair_accept_sealed(struct pair *p);
void put32(uint8_t *at, uint32_t value);
uint32_t get32(const uint8_t *at);

#endif
