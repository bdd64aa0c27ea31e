/* The floor of a death: what a bare pidfd takes to tell of it. */
#ifndef PP3_BENCH_DEATH_H
#define PP3_BENCH_DEATH_H

#include <stdint.h>

/* From a SIGKILL to the wake-up of who sleeps in poll on the pidfd: one child a round,
 * each a fork of this process, on core[1]. ns: room for `rounds`. 0 or -errno. */
int pp3_floor_pidfd(uint32_t rounds, const int32_t core[2], uint64_t *ns);

#endif
