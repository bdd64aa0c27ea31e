/* Writing a flight recorder, and the clock of its stamps; see recorder.h. */
#include "ring/recorder.h"

#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

_Static_assert(sizeof(struct pp3_trace) == 8 * PP3_TRACE_WORDS &&
                   sizeof(struct pp3_trace) == sizeof((struct pp3_entry *)0)->trace &&
                   offsetof(struct pp3_entry, trace) + sizeof(struct pp3_trace) == 64,
               "the trace fills the state word's line of 64 bytes");

#define LOOKS 8 /* at both clocks; the closest one counts */

struct pp3_recorder *pp3_recorder_new(struct pp3_ring *r, uint32_t rank)
{
    struct pp3_recorder *f;

    if (!PP3_HERE(r) || !r->acks || rank >= r->ranks)
        return 0;
    f = calloc(1, sizeof *f + r->rounds * sizeof f->sight[0]);
    if (!f)
        return 0;
    f->ring = r;
    f->to = pp3_flights_of(r, rank);
    /* a second end of the same rank goes on where the first one is; whatever stands
     * there, only its remainder says where the next record goes */
    f->count = PP3_LOAD(&f->to->count, relaxed);
    PP3_STORE(&f->to->pid, (uint64_t)getpid(), relaxed);
    return f;
}

void pp3_recorder_free(struct pp3_recorder *f) { free(f); }

static struct pp3_sight *sight_of(struct pp3_recorder *f, uint64_t ticket)
{
    return &f->sight[ticket % f->ring->rounds];
}

void pp3_recorder_see(struct pp3_recorder *f, uint64_t word, uint32_t info,
                      const struct pp3_trace *trace, uint64_t submitted, uint64_t tick)
{
    *sight_of(f, pp3_ticket(word)) = (struct pp3_sight){
        word,
        {submitted, trace->taken, trace->sent, trace->received, trace->checked,
         trace->published, tick},
        0, info & (PP3_UNSEEN | (PP3_UNSEEN - 1)),
    };
}

void pp3_recorder_leave(struct pp3_recorder *f, uint64_t ticket, uint64_t submitted)
{
    struct pp3_sight *s = sight_of(f, ticket);
    struct pp3_trace trace;
    uint64_t word = 0;

    if (pp3_ticket(s->word) != ticket) {
        if (pp3_word(f->ring, ticket, &word) < 0 || pp3_ticket(word) != ticket)
            return; /* a forked child, or another's entry: the release is refused */
        pp3_trace_get(f->ring, word, pp3_tick(), &trace);
        pp3_recorder_see(f, word, PP3_UNSEEN, &trace, submitted, 0);
    }
    s->released = pp3_tick();
}

/* Ticks from each stage to the release, so shifted that the longest fits 32 bits; the
 * shift. One that is known is never 0. */
static unsigned lengths(const struct pp3_sight *s, uint64_t before[PP3_BEFORE])
{
    uint64_t all = 0;
    unsigned shift = 0;

    for (int i = 0; i < PP3_BEFORE; i++) {
        before[i] = s->stage[i] ? s->released - s->stage[i] : 0;
        all |= before[i];
    }
    while (all >> shift > UINT32_MAX)
        shift++;
    for (int i = 0; i < PP3_BEFORE; i++) {
        before[i] >>= shift;
        before[i] += s->stage[i] != 0 && before[i] == 0;
    }
    return shift;
}

void pp3_recorder_add(struct pp3_recorder *f, uint64_t ticket)
{
    const struct pp3_sight *s = sight_of(f, ticket);
    uint64_t n = f->count++, before[PP3_BEFORE + 1];
    struct pp3_flight *to = &f->to->flight[n % PP3_FLIGHTS];

    before[PP3_BEFORE] = (uint64_t)lengths(s, before) << 24 | s->info;
    PP3_STORE(&to->mark, 2 * n + 1, relaxed); /* the fence keeps the words behind it */
    PP3_FENCE(release);                       /* the odd mark before any word */
    PP3_STORE(&to->word, s->word, relaxed);   /* inside the lock */
    PP3_STORE(&to->released, s->released, relaxed);
    for (int i = 0; i < 4; i++)
        PP3_STORE(&to->before[i], before[2 * i] | before[2 * i + 1] << 32, relaxed);
    PP3_STORE(&to->mark, 2 * n + 2, release);    /* every word before it */
    PP3_STORE(&f->to->count, f->count, release); /* the record before its number */
    /* of the next one, which else the next round's bell would wait for */
    __builtin_prefetch((const void *)&f->to->flight[f->count % PP3_FLIGHTS], 1);
}

void pp3_recorder_between(void)
{
    PP3_FENCE(seq_cst); /* the first look before the second */
}

void pp3_clock_pair(uint64_t *tick, uint64_t *ns)
{
    uint64_t closest = UINT64_MAX;

    pp3_watch_forks();
    for (int i = 0; i < LOOKS; i++) {
        uint64_t before = pp3_tick(), now = pp3_now(), after = pp3_tick();
        if (after - before < closest) {
            closest = after - before;
            *tick = before + closest / 2;
            *ns = now;
        }
    }
}

int pp3_clock_counts(void)
{
    pp3_watch_forks();
    return pp3_counter_steady;
}
