#include "ring/waiter.h"

#include <string.h>

/* What is spun above what would have been enough: waits vary. */
#define MARGIN_NS UINT64_C(500)

void pp3_waiter_set(struct pp3_waiter *w, uint32_t policy, uint64_t most_ns)
{
    memset(w, 0, sizeof *w);
    w->policy = policy;
    w->most_ns = most_ns;
    w->trial = PP3_WAITS_KEPT;
}

uint64_t pp3_waiter_begin(struct pp3_waiter *w)
{
    if (w->policy == PP3_WAIT_SPIN)
        return UINT64_MAX;
    if (w->policy != PP3_WAIT_HYBRID)
        return 0;
    if (w->trial != 0)
        return w->most_ns;
    /* A slept wait is longer than what it waited for, by its wake-up: alone it would
     * never show that spinning pays again. */
    if (w->spin_ns == 0 && ++w->unspun >= PP3_WAITS_PROBE)
        return w->most_ns;
    return w->spin_ns;
}

/* As many of the waits remembered as wanted were no longer than this. */
static uint64_t enough(const struct pp3_waiter *w)
{
    uint64_t sorted[PP3_WAITS_KEPT];

    for (int i = 0; i < PP3_WAITS_KEPT; i++) {
        int at = i;
        for (; at > 0 && sorted[at - 1] > w->kept_ns[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = w->kept_ns[i];
    }
    return sorted[PP3_WAITS_CAUGHT - 1];
}

void pp3_waiter_end(struct pp3_waiter *w, uint64_t waited_ns)
{
    uint64_t least;

    if (w->policy != PP3_WAIT_HYBRID)
        return;
    w->kept_ns[w->waits++ % PP3_WAITS_KEPT] = waited_ns;
    if (w->trial != 0) {
        w->trial--;
    } else if (w->unspun >= PP3_WAITS_PROBE) {
        w->unspun = 0;
        if (waited_ns <= w->most_ns) /* caught: see whether the next ones are */
            w->trial = PP3_WAITS_KEPT;
    }
    least = enough(w);
    w->spin_ns = 0;
    if (least <= PP3_WAITS_REACH * w->most_ns) {
        uint64_t wanted = 2 * least + MARGIN_NS;
        w->spin_ns = wanted < w->most_ns ? wanted : w->most_ns;
    }
}
