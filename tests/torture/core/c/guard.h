/* A world with a watchdog whose proxy is a process of this program. */
#ifndef GUARD_H
#define GUARD_H

#include <limits.h>

#include "world.h"

struct guard {
    struct world w;
    char *argv[5];
    struct pp3_record record;
    struct pp3_plan plan;
    struct pp3_watchdog *watchdog;
    struct pp3_watch seen;
    char path[PATH_MAX];
};

/* Modes: see child.c. */
void guard_prepare(struct guard *g, const char *mode, uint64_t grace_ns);
void guard_begin(struct guard *g, const char *mode, uint64_t grace_ns);
const struct pp3_watch *guard_look(struct guard *g);
/* Whether a process ignores SIGTERM, by what the kernel says of it. */
int ignores_term(int pid);
void guard_end(struct guard *g);

#endif
