/* An engine's life under load: what is claimed, waited for and killed in it. */
#ifndef KILLS_LIFE_H
#define KILLS_LIFE_H

#include "peers.h"

enum { MOST_ROUNDS = 8 };

struct rank { pid_t pid; int tell; _Atomic bool killed; };

/* One life of an engine. Rounds are numbered densely, so entry t % rounds says all. */
struct life {
    struct region region;
    struct pp3_ring *ring;
    struct pp3_watchdog *watchdog;
    struct rank rank[MOST_RANKS];
    uint64_t word[MOST_ROUNDS]; /* as resolved; 0: open, or never */
    bool told[MOST_ROUNDS];
    uint64_t oldest; /* not finished yet */
    uint64_t seed;
    _Atomic bool storm;
};

extern const char *program; /* to be started as a proxy */
extern uint64_t slack_ns;   /* for what must happen */

void load(struct life *l);  /* until the storm is over */
void go_on(struct life *l); /* and behind it: every round is answered */
_Noreturn void engine_main(uint64_t seed);
#endif
