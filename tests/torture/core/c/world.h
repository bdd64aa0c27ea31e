/* A region of one process, and its ends. */
#ifndef WORLD_H
#define WORLD_H

#include "ring/note.h"
#include "ring/slots.h"
#include "ring/watchdog.h"

enum { WORDS = 8, RANKS = 3 }; /* of a usual world; 64-bit words of a page */

struct world {
    struct pp3_shape shape;
    struct pp3_parts parts; /* of the engine's view */
    struct pp3_ring *engine;
    int fd;
    uint64_t bytes;
    uint8_t *view[16];
    unsigned n_views;
    struct pp3_ring *end[24]; /* freed with the world */
    unsigned n_ends;
};

/* rounds entries, pages pages, ranks ranks. The engine's ring is there, only rank 0. */
void world_open(struct world *w, uint32_t rounds, uint32_t pages, uint32_t ranks);
void world_open_shape(struct world *w, const struct pp3_shape *shape);
void world_close(struct world *w);
/* Where the parts stand in a view of the region. */
void world_parts(const struct pp3_shape *shape, uint8_t *at, struct pp3_parts *parts);
uint64_t world_bytes(const struct pp3_shape *shape);
/* A living owner, attached; a proxy that was not added, with any owner's id. */
struct pp3_ring *world_proxy(struct world *w);
struct pp3_ring *world_end(struct world *w, uint32_t owner);
/* Rank k attached by this process's own pidfd, in the engine's table only. */
void world_ranks(struct world *w);

extern const uint64_t templates[9]; /* failed buffers of 24 bytes: ticket, head, status */

/* One round from the engine: claim, write, submit; the ticket or -errno. */
int64_t ask(struct pp3_ring *engine, uint64_t deadline_ns);
/* The proxy takes the next one: its word, or 0. */
uint64_t take_one(struct pp3_ring *proxy);
/* Every word of the page is the ticket; then published. */
int answer(struct pp3_ring *proxy, uint64_t mine);
/* All ranks of the world let go of round t. */
void release_all(struct world *w, uint64_t t);
uint64_t *page_words(struct pp3_ring *r, uint32_t page);

#define FAR (UINT64_MAX / 2) /* a deadline that does not come */

/* A child that sleeps until it is killed, or this process ends; and its pidfd. */
int sleeper(int *pidfd);

/* What is done at a crash point, once, or at the n-th arrival. */
void at_point(int point, int arrival, void (*act)(void *), void *argument);
void at_no_point(void);

/* As in a forked child, for the calls between. */
#define FORKED(statement)                                                              \
    do {                                                                               \
        pp3_forks++;                                                                   \
        statement;                                                                     \
        pp3_forks--;                                                                   \
    } while (0)

#endif
