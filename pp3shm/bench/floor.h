/* The floor of a round: what the same bytes cost in bare C between the same cores.
 *
 *     this process --- request ---> a forked child: copies it out, copies a reply in
 *                  <--- reply ----
 *
 * Both sides are loops in C, and one call runs them all. What is timed is what a user
 * of a transport needs: from the request's bytes in hand to the reply's bytes in hand.
 */
#ifndef PP3_BENCH_FLOOR_H
#define PP3_BENCH_FLOOR_H

#include <stdint.h>

enum pp3_floor_kind {
    PP3_FLOOR_SHM = 0,        /* shared memory */
    PP3_FLOOR_UNIX = 1,       /* a Unix stream socket */
    PP3_FLOOR_TCP = 2,        /* TCP over loopback, TCP_NODELAY */
    PP3_FLOOR_RELAY_UNIX = 3, /* shared memory to a relay, its socket to a third process */
    PP3_FLOOR_RELAY_TCP = 4,
};

enum { PP3_FLOOR_SLOTS = 8, PP3_FLOOR_PARTIES = 3, PP3_FLOOR_MOST = 65536 };

struct pp3_floor_plan {
    uint32_t kind;          /* enum pp3_floor_kind */
    uint32_t warm, rounds;  /* rounds not counted, then those that are */
    uint32_t in_flight;     /* 1 to PP3_FLOOR_SLOTS; above 1 only over shared memory */
    uint32_t request_bytes, reply_bytes; /* at most PP3_FLOOR_MOST */
    uint64_t spin_ns;       /* before a wait for shared memory sleeps; 0: never spins */
    uint64_t pause_ns;      /* slept before each round */
    int32_t core[2];        /* of this thread and of the last child; -1: any */
};

struct pp3_floor_result {
    uint64_t wall_ns;                   /* of the counted rounds */
    uint64_t cpu_ns[PP3_FLOOR_PARTIES]; /* this thread in them; each child in its life */
    uint64_t life_ns;                   /* of the children, about */
};

/* Runs the plan. ns: of each counted round (in_flight 1), room for `rounds`.
 * request, reply: what either side sends. got_request, got_reply: what the last child
 * and this process had of the last round, for a look at the bytes.
 * 0, or -errno: -EINVAL a plan out of range, -ETIMEDOUT a side that is gone. */
int pp3_floor(const struct pp3_floor_plan *plan, const uint8_t *request,
              const uint8_t *reply, uint64_t *ns, struct pp3_floor_result *result,
              uint8_t *got_request, uint8_t *got_reply);

#endif
