/* A proxy's process that takes one round at a time, as ordered, and copies slowly. */
#ifndef KILLS_VICTIM_H
#define KILLS_VICTIM_H

#include "rig.h"

struct victim { pid_t pid; int owner, order, answer; };

void victim_start(struct victim *v, struct region *g, struct pp3_ring *engine);
void victim_end(struct victim *v, struct pp3_ring *engine);
/* It has done what it was ordered: see board->verdict. False, and told, if it has not. */
bool victim_answered(struct victim *v, uint64_t slack_ns);
#endif
