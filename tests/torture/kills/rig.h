/* What the programs of figures 6 and 7 share: a region over real memory that every
 * process maps for itself, payloads that tell their round, and a board for findings. */
#ifndef KILLS_RIG_H
#define KILLS_RIG_H

#include "ring/watchdog.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

enum { MOST_RANKS = 6, LOG = 64, OWNERS = 256, POINTS = 24, SEGMENTS = 5 };

/* Points of our own, behind those of the ring; 0: between two calls of it. */
enum { AT_COPYING = 20, AT_READING = 21 };

/* What a rank saw of a round. */
struct seen { _Atomic uint64_t ticket, word; };

/* Shared by all processes of a program, and no part of the product's region. */
struct board {
    _Atomic uint32_t bad, calm; /* calm: every round is answered */
    char text[300];
    _Atomic uint32_t where[OWNERS], rank_where[MOST_RANKS], engine_where;
    _Atomic uint64_t served, fenced, rounds, published, expired, orphaned, cancelled;
    _Atomic uint64_t proxy_kills, rank_kills, engine_kills;
    _Atomic uint64_t proxy_at[POINTS], rank_at[POINTS], engine_at[POINTS];
    _Atomic uint64_t copied, verdict;
    struct seen seen[MOST_RANKS][LOG];
};

struct region {
    struct pp3_shape shape;
    struct pp3_parts parts;
    int fd[SEGMENTS]; /* control, slots, pages, failed, acks */
};

enum role { ENGINE, PROXY, RANK };

extern struct board *board;
extern int board_fd;
extern _Thread_local _Atomic uint32_t *rig_where;
extern _Thread_local uint64_t rig_seed;

/* ---- small things ---- */
uint64_t mix(uint64_t a, uint64_t b);
uint64_t roll(uint64_t below); /* random, from rig_seed */
void pause_ns(uint64_t ns);
bool within(uint64_t begin_ns, uint64_t limit_ns);
void bad(const char *what, uint64_t ticket, uint64_t found);
bool is_bad(void);
void here(uint32_t point);
int count_fds(void);

/* ---- the region ---- */
void board_make(void);
void board_take(int fd);
struct region region_make(uint32_t rounds, uint32_t pages, uint32_t ranks,
                          uint32_t page_bytes);
struct pp3_ring *region_engine(struct region *g);
struct pp3_ring *region_attach(struct region *g, enum role role, uint32_t number,
                               int bell);
void region_unmap(struct region *g);
void region_close(struct region *g);

/* ---- payloads: every word of them tells its round ---- */
void fill_heads(uint64_t *heads, uint64_t ticket);
void fill_request(struct pp3_ring *r, uint8_t *request, uint64_t ticket);
bool request_is(struct pp3_ring *r, const uint8_t *request, uint64_t ticket);
void fill_page(struct pp3_ring *r, uint8_t *page, uint64_t ticket, uint32_t from,
               uint32_t to);
/* Now and then a worker never answers, or a stream never rings: a round that ends at
 * its deadline, or as it is cancelled. */
bool is_answered(uint64_t ticket);
bool is_rung(uint64_t ticket);
bool page_is(struct pp3_ring *r, const uint8_t *page, uint64_t ticket);
uint32_t page_words(const struct pp3_ring *r);
uint64_t page_word(uint64_t ticket, uint32_t i);
/* 0 or the status of a resolved round whose bytes are whole; -1, and it is told. */
int round_is_whole(struct pp3_ring *r, uint64_t ticket, uint64_t word);
#endif
