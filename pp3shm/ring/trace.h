/* The trace of a round under way: when its proxy had it at each stage, in its entry.
 *
 * The stamps stand in the line of the state word, which the proxy has to own for its swap
 * and the rank has to read in any case: they cost stores and no line of their own. They
 * are written before the swap of publish (E2 orders them before a rank reads them).
 *
 * They are cleared behind each claim, for a round may be failed before it has any. A
 * stamp carries the lap of its round around the ring besides, 8 bits of it: what a proxy
 * that was stopped and fenced still writes when it goes on is no stamp of the entry's
 * next round. (Of that 256 laps later it would be. Stamps are for whoever measures:
 * nothing is steered by them.)
 */
#ifndef PP3_TRACE_H
#define PP3_TRACE_H

#include "ring.h"

/* Stamps of pp3_tick; 0: it never came to that, or is not known. */
struct pp3_trace {
    uint64_t taken, sent, received, checked, published;
};

enum pp3_trace_word { PP3_TAKEN, PP3_SENT, PP3_RECEIVED, PP3_CHECKED, PP3_ISSUED,
                      PP3_TRACE_WORDS };

#define PP3_STAMP_BITS 56u /* of a tick: at 4 GHz they last for half a year */
#define PP3_STAMP_MASK ((UINT64_C(1) << PP3_STAMP_BITS) - 1)

static inline PP3_A64 *pp3_trace_at(struct pp3_ring *r, uint64_t word)
{
    return (PP3_A64 *)(void *)pp3_entry_of(r, pp3_ticket(word))->trace;
}

static inline uint64_t pp3_lap(const struct pp3_ring *r, uint64_t word)
{
    return pp3_ticket(word) / r->rounds << PP3_STAMP_BITS;
}

/* Behind the claim of t and before its bell: no proxy knows of the round yet. */
static inline void pp3_trace_clear(struct pp3_ring *r, uint64_t t)
{
#ifndef PP3_NO_TRACE
    PP3_A64 *stamp = (PP3_A64 *)(void *)pp3_entry_of(r, t)->trace;

    for (int i = 0; i < PP3_TRACE_WORDS; i++)
        PP3_STORE(&stamp[i], 0, relaxed); /* E1: the bell releases it */
#else
    (void)r, (void)t;
#endif
}

/* One stamp, of the proxy that has taken the round. Relaxed, for the edges order it. */
static inline void pp3_trace_put(struct pp3_ring *r, uint64_t mine,
                                 enum pp3_trace_word which, uint64_t tick)
{
#ifndef PP3_NO_TRACE
    PP3_A64 *stamp = &pp3_trace_at(r, mine)[which];

    PP3_STORE(stamp, pp3_lap(r, mine) | (tick & PP3_STAMP_MASK), relaxed);
#else
    (void)r, (void)mine, (void)which, (void)tick;
#endif
}

/* Those of this round, as of a tick that is not long before them; 0 for each that it has
 * not. */
static inline void pp3_trace_get(struct pp3_ring *r, uint64_t word, uint64_t now,
                                 struct pp3_trace *trace)
{
    uint64_t found[PP3_TRACE_WORDS] = {0};
#ifndef PP3_NO_TRACE
    PP3_A64 *stamp = pp3_trace_at(r, word);
    uint64_t lap = pp3_lap(r, word), soon = now + PP3_STAMP_MASK / 4;

    for (int i = 0; i < PP3_TRACE_WORDS; i++) {
        uint64_t is = PP3_LOAD(&stamp[i], relaxed); /* E2 orders it */
        if (is != 0 && (is ^ lap) >> PP3_STAMP_BITS == 0)
            found[i] = soon - ((soon - is) & PP3_STAMP_MASK);
    }
#else
    (void)r, (void)word, (void)now;
#endif
    memcpy(trace, found, sizeof found);
}
#endif
