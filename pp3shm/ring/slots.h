/* Slots: of each request its generation and committed prefix, append-only.
 *
 * The engine alone writes. Within a generation tokens below `length` never change, so
 * appending disturbs no reader: tokens, then length (release). Whatever takes back
 * something said before - a reset, a close - is a seqlock write: version odd, release
 * fence, words, version even (release). Readers load words relaxed, then an acquire
 * fence, then version again.
 */
#ifndef PP3_SLOTS_H
#define PP3_SLOTS_H

#include "words.h"

struct pp3_slot {
    PP3_A64 version; /* odd while a reset or close is written */
    PP3_A32 generation, live;
    PP3_A64 length;
    uint8_t pad[PP3_LINE - 24];
};

/* What the engine wrote last: it never reads the shared words back. */
struct pp3_slot_mirror { uint64_t length; uint32_t generation, live, opened; };

int pp3_slot_reset(struct pp3_ring *r, uint32_t slot, uint32_t generation,
                   const int32_t *tokens, uint64_t n);
int pp3_slot_append(struct pp3_ring *r, uint32_t slot, const int32_t *tokens,
                    uint64_t n);
int pp3_slot_close(struct pp3_ring *r, uint32_t slot);
int pp3_slot_read(struct pp3_ring *r, uint32_t slot, int32_t *out, uint64_t cap,
                  uint32_t *generation, uint32_t *live, uint64_t *length);
#endif
