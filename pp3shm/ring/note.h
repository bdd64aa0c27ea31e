/* The note: a few bytes in the header by which a proxy says why it has no session.
 *
 * A seqlock like that of the slots, with one writer at a time: the live proxy. One that
 * is killed in the middle leaves the version odd, and the next one goes on from there;
 * until then a reader finds no note. For people; nothing is steered by it. */
#ifndef PP3_NOTE_H
#define PP3_NOTE_H

#include "words.h"

/* 0, -EMSGSIZE where it does not fit, -EOWNERDEAD in a forked child. */
int pp3_note_write(struct pp3_ring *r, const uint8_t *bytes, uint32_t n);
/* How many bytes were put into out, which has room for 8 * PP3_NOTE_WORDS; -EAGAIN
 * while it is being written, -EBADMSG where the length is none. */
int pp3_note_read(struct pp3_ring *r, uint8_t *out);
#endif
