/* The processes that are killed: a proxy and a rank, over the product's own text. */
#ifndef KILLS_PEERS_H
#define KILLS_PEERS_H

#include "rig.h"

/* Started by the product's watchdog; never returns. */
_Noreturn void proxy_main(uint64_t seed);
/* Forked by the engine, which tells tickets through a pipe; never returns. */
_Noreturn void rank_main(struct region *g, uint32_t rank, int told, uint64_t slack_ns);
#endif
