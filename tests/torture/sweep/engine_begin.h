/* Where an operation of the engine begins: each of these makes the region, and leaves
 * it in a state that its name tells. The rounds of a scene are numbers 4 and 5. */
#ifndef SWEEP_ENGINE_BEGIN_H
#define SWEEP_ENGINE_BEGIN_H

#include "sweep.h"

enum { FIRST = 4, SECOND = 5 };

void rank_joins(struct end *me, uint32_t rank, pid_t pid);
void create(struct end *me);
void begin(struct end *me);
void begin_step(struct end *me);
void begin_two(struct end *me);
void begin_two_late(struct end *me);
void begin_claim(struct end *me);
void begin_watched(struct end *me);
void begin_dead_rank(struct end *me);
void begin_one_back(struct end *me);
void begin_none_back(struct end *me);
void begin_owner_gone(struct end *me);
void begin_slot(struct end *me);
#endif
