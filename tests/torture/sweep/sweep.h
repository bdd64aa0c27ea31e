/* SIGKILL at every instruction: what the parts of the sweep share.
 *
 * One try: the harness makes a fresh region, forks a victim, lets it come to the begin
 * of an operation of the product's text, single-steps it k instructions, kills it, and
 * lets the survivors go on. The harness itself plays all survivors but one sleeper, a
 * process that waits in the futex when the victim dies. Every end has its own mapping.
 *
 * At every step the harness looks at all words of the region and checks each change
 * against the tables of ring.h: it is the referee, and writes nothing by itself.
 */
#ifndef SWEEP_H
#define SWEEP_H

#include "ring/note.h"
#include "ring/ring.h"
#include "ring/slots.h"

#include <sys/types.h>

enum { ROUNDS = 2, PAGES = 4, RANKS = 3, SLOTS = 1, POSITIONS = 8 };
enum { PAGE_WORDS = 32, REQUEST_WORDS = 8, FAILED_WORDS = 8, HEAD_WORDS = 3 };
enum { VICTIM_RANK = 1, FIRST_OWNER = 1 };
#define PATIENCE_NS                                                                    \
    UINT64_C(200000000000) /* deadline of a round, by the false clock                  \
                            */
#ifdef PLANTED
enum { HANG_MS = 1500, PUBLISH_FIRST = 1 }; /* the first fault of faults.txt */
extern int pp3_planted;
#else
enum { HANG_MS = 20000 }; /* far above what a loaded machine takes */
#endif

enum role { ENGINE, PROXY, RANK };

/* What is alive beside the victim, and does what after its death. */
enum surrounding {
    WATCHDOG,  /* fails what the dead owner held; the rest at its deadline */
    HELPER,    /* no watchdog: a waiting rank fails the round at its deadline */
    SUCCESSOR, /* watchdog, and a proxy that takes what can be taken */
    STOPPED,   /* the victim is fenced where it stands, laps follow, then its death */
    RESUMED,   /* the same, but it goes on to the end of its operation first */
    SURROUNDINGS,
};
#define BIT(s) (1u << (s))

/* What the processes of one try tell each other. */
struct board {
    PP3_A64 skew_ns;      /* the false clock is so far ahead of the real one */
    PP3_A64 mine[ROUNDS]; /* words the victim took */
    PP3_A64 untold;       /* the ticket whose cancelling has begun */
    PP3_A32 taken, ended, torn, bell_fd;
    PP3_A64 result; /* of the victim's operation */
    PP3_A64 slept_word;
    PP3_A32 slept_code, slept_torn;
};
extern struct board *board;

struct end {
    struct pp3_ring *ring;
    uint8_t *at[5];
};

struct words {
    uint64_t state[ROUNDS], bell[ROUNDS], give[PAGES], ack[RANKS][ROUNDS];
};

struct world {
    const struct scene *scene;
    enum surrounding surrounding;
    struct pp3_shape shape;
    int fds[5], self_fd, victim_fd, bell_fd; /* bell_fd: a copy of the engine's */
    struct end engine;           /* the harness's, unless the victim is it */
    struct end proxy, rank;      /* the harness's own */
    uint32_t proxy_owner;        /* 0: no proxy of the harness's */
    uint64_t proxy_mine[ROUNDS]; /* words it took and has not published */
    uint32_t proxy_taken;
    pid_t victim, sleeper;
    uint32_t victim_owner;
    int sleeps; /* the victim is inside a call that blocks */
    int begun, victim_dead, rank_dead, dead[PP3_MAX_OWNERS + 1];
    struct words last;
    uint64_t held[PAGES];           /* the word fenced while its owner held the page */
    uint64_t killed_at[ROUNDS];     /* state words at the moment of death */
    uint64_t ended[PP3_FAILED + 9]; /* rounds by the state they ended in */
    char fault[400];                /* the first thing that was wrong, or "" */
};

struct scene {
    const char *name;
    enum role role;
    uint32_t laps;                    /* whole rounds before it */
    void (*before)(struct world *);   /* harness: before the victim is there */
    void (*prepare)(struct end *);    /* victim: not stepped through */
    void (*between)(struct world *);  /* harness: the victim stands ready */
    void (*operate)(struct end *);    /* victim: every instruction of this */
    void (*unblock)(struct world *);  /* harness: the victim sleeps in a call */
    void (*complete)(struct world *); /* harness: it came to the end, and lives */
    void (*settled)(struct world *);  /* harness: what else has to hold at the end */
    uint64_t asleep;                  /* ticket a sleeper waits for, or 0 */
    int attaching;                    /* the victim's rank is not attached yet */
    int gives_back;                   /* it ends holding no page of a fenced round */
    unsigned surroundings;            /* bits */
};

extern const struct scene proxy_scenes[], rank_scenes[], engine_scenes[];
extern const unsigned proxy_scene_count, rank_scene_count, engine_scene_count;

/* world.c: the region, its ends, the bytes in it */
void world_open(struct world *w);
void world_close(struct world *w);
void end_open(struct world *w, struct end *end, enum role role, uint32_t owner);
void end_create(struct world *w, struct end *end);
void end_close(struct world *w, struct end *end);
void wrong(struct world *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
uint64_t pattern(uint64_t kind, uint64_t ticket, uint64_t i);
void fill_page(struct pp3_ring *r, uint64_t word);
int request_whole(struct pp3_ring *r, uint64_t word);
int reply_whole(struct pp3_ring *r, uint64_t word);
uint64_t deadline(void);
int64_t next_claim(struct pp3_ring *engine);
int64_t next_step(struct pp3_ring *engine);
void let_deadlines_pass(void);
void result(int64_t code);
void expect_result(struct world *w, int64_t code);
const char *word_text(uint64_t word, char *text, size_t bytes);

/* referee.c: every change of a word against the tables of ring.h */
void observe(struct world *w);
void observe_fresh(struct world *w);

/* trace.c: the victim, one instruction at a time */
enum stop { MOVED, ASLEEP, AT_END, GONE };
void victim_start(struct world *w);
enum stop victim_step(struct world *w);
void victim_begin(struct world *w);
void victim_resume(struct world *w);
void victim_kill(struct world *w);
void sleeper_start(struct world *w);
void sleeper_join(struct world *w);

/* rounds.c: what survivors do */
void proxy_here(struct world *w);
void proxy_take(struct world *w, uint32_t most);
void proxy_publish(struct world *w);
void expect_word(struct world *w, uint64_t ticket, uint64_t word, const char *who);
uint64_t ranks_read(struct world *w, uint64_t ticket);
void ranks_release(struct world *w, uint64_t ticket);
void whole_rounds(struct world *w, uint32_t n);
void rounds_alone(struct end *engine, uint32_t n);

/* after.c: the rest of a try, and what has to be so at its end */
void after(struct world *w);
uint32_t held_by_victim(const struct world *w);
void while_stopped(struct world *w);

extern struct world *the_world; /* the victim's copy, made by its fork */
#endif
