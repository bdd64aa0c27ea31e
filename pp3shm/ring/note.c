/* The note's seqlock; see note.h. */
#include "ring/note.h"

#define NOTE_BYTES (8u * PP3_NOTE_WORDS)

int pp3_note_write(struct pp3_ring *r, const uint8_t *bytes, uint32_t n)
{
    struct pp3_header *h = r->header;
    uint64_t words[PP3_NOTE_WORDS] = {0}, odd;

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    if (n > NOTE_BYTES)
        return -EMSGSIZE;
    memcpy(words, bytes, n);
    /* relaxed: one writer; odd already where the one before was killed in the middle */
    odd = (PP3_LOAD(&h->note_version, relaxed) + 1) | 1;
    PP3_STORE(&h->note_version, odd, relaxed);
    PP3_FENCE(release); /* the version before the words */
    PP3_STORE(&h->note_bytes, n, relaxed);
    for (uint32_t i = 0; i < PP3_NOTE_WORDS; i++) {
        PP3_STEP(PP3_AT_NOTING);
        PP3_STORE(&h->note[i], words[i], relaxed);
    }
    PP3_STORE(&h->note_version, odd + 1, release);
    return 0;
}

int pp3_note_read(struct pp3_ring *r, uint8_t *out)
{
    struct pp3_header *h = r->header;
    uint64_t words[PP3_NOTE_WORDS];

    if (!PP3_HERE(r))
        return -EOWNERDEAD;
    for (int tries = 0; tries < PP3_TRIES; tries++) {
        uint64_t version = PP3_LOAD(&h->note_version, acquire);
        uint64_t n = PP3_LOAD(&h->note_bytes, relaxed);
        for (uint32_t i = 0; i < PP3_NOTE_WORDS; i++)
            words[i] = PP3_LOAD(&h->note[i], relaxed);
        PP3_FENCE(acquire); /* the words before the second look */
        if ((version & 1) != 0 || PP3_LOAD(&h->note_version, relaxed) != version) {
            PP3_PAUSE();
            continue;
        }
        if (n > NOTE_BYTES)
            return -EBADMSG;
        memcpy(out, words, n);
        return (int)n;
    }
    return -EAGAIN;
}
