/* The watchdog's thread: see watch.h for what it may do to rounds. */
#ifndef PP3_WATCHDOG_H
#define PP3_WATCHDOG_H

#include "watch.h"

struct pp3_plan {
    char **argv, **envp; /* copied; argv NULL: nothing to start */
    const uint8_t *record;
    uint32_t record_bytes, n_fds;
    int fds[8];
    uint64_t grace_ns;
};

enum pp3_watch_state { PP3_WATCH_IDLE, PP3_WATCH_RUNS, PP3_WATCH_WAITS,
                       PP3_WATCH_STOPPED };

struct pp3_watch {
    int32_t pid, state, last_status, last_error;
    uint32_t owner;
    uint64_t starts, deaths, ticks;
};

struct pp3_watchdog;
struct pp3_watchdog *pp3_watchdog_start(struct pp3_ring *r, const struct pp3_plan *plan,
                                        int *error);
int pp3_watchdog_stop(struct pp3_watchdog *w);
/* In a forked child, which has no such thread: gives up the descriptors that would
 * keep the proxy from seeing its engine's end. */
void pp3_watchdog_leave(struct pp3_watchdog *w);
void pp3_watchdog_free(struct pp3_watchdog *w);
void pp3_watchdog_stats(struct pp3_watchdog *w, struct pp3_watch *stats);
int pp3_watchdog_kick(struct pp3_watchdog *w);
int pp3_watchdog_replace(struct pp3_watchdog *w);
/* Watch a proxy that somebody else started, before it gets the region: pidfd is copied.
 * Its death fails its rounds as any other's; a replace kills it; a stop leaves it alone.
 * 0; -EBUSY: one is watched, dead or not; -EINVAL: this watchdog starts its own. */
int pp3_watchdog_adopt(struct pp3_watchdog *w, int pidfd, int32_t pid, uint32_t owner);
/* It has let go of the region in order, pp3_owner_dead was said of it: watch it no more. */
int pp3_watchdog_forget(struct pp3_watchdog *w, uint32_t owner);
uint64_t pp3_watchdog_tick(struct pp3_ring *r, uint64_t now_ns);
#endif
