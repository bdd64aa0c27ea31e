/* A proxy's data path between two rare events, in one call and without the interpreter:
 * rounds from the ring to the link, replies from the link to the ring.
 *
 * What a session consists of stands in one struct, beside the hand: the sequences, what
 * the worker holds of each slot, the bytes that come in. The proxy's Python looks at it
 * and keeps no copy of it. Opening, ending, RESETs, refusals and their words are
 * Python's: pp3_pump comes back to it for each.
 *
 * One thread uses a pump; pp3_pump_stop is for any thread and for signal handlers.
 */
#ifndef PP3_PUMP_H
#define PP3_PUMP_H

#include "proxy/hand.h"
#include "ring/waiter.h"

/* Why pp3_pump came back. */
enum pp3_pump_why {
    PP3_PUMP_IDLE = 0,     /* its slice is over, or a signal came */
    PP3_PUMP_STOPPED = 1,  /* pp3_pump_stop was called */
    PP3_PUMP_CONTROL = 2,  /* the control descriptor is readable or gone */
    PP3_PUMP_RESET = 3,    /* a slot of `subject` may have to be restated first */
    PP3_PUMP_ANSWERED = 4, /* the good reply that `tell_answer` asked to be told of */
    PP3_PUMP_FRAME = 5,    /* `frame` is whole, and an ERROR or a BYE */
    PP3_PUMP_HEADER = 6,   /* `frame`: 40 bytes that announce what must not come */
    PP3_PUMP_REFUSED = 7,  /* `frame` failed check `error`; `subject`: its round, which
                            * is still in hand, or NULL */
    PP3_PUMP_REQUEST = 8,  /* `error` of a take; -EINVAL: the request of `subject` was no
                            * STEP; its round has been failed */
    PP3_PUMP_RING = 9,     /* `error` of the ring: the proxy cannot go on */
    PP3_PUMP_LOST = 10,    /* the link: `error` is its errno, 0 where it was closed */
    PP3_PUMP_UNTAKEN = 11, /* the worker took no more of a STEP within send_ns */
    PP3_PUMP_TRICKLE = 12, /* a frame that began trickle_ns ago is not whole */
    PP3_PUMP_STEP = 13,    /* `subject` is to be drafted here: see near.h */
};

/* What went out of a slot's committed prefix. It arrives, or the session dies; so it is
 * what the worker holds, until a row's status says otherwise. */
struct pp3_told {
    uint64_t length;
    uint32_t generation, known;
};

/* Where the caller's counters stand in the region. */
struct pp3_tally {
    uint32_t steps_sent, replies, late, returns;
    uint32_t row_status; /* of status 1; the others follow */
};

struct pp3_pump {
    struct pp3_hand *hand;
    struct pp3_tally tally;
    uint64_t send_ns, trickle_ns; /* how long a frame may take, out and in */

    int32_t link_fd; /* -1: no session, or one without a link */
    uint32_t near;   /* the drafter is in this process: see near.h */
    uint8_t session[16];
    uint64_t sent, received; /* frames each way: the sequence of the next one */
    struct pp3_told told[PP3_MOST_SLOTS];
    uint32_t tell_answer;     /* come back after the next good reply */
    struct pp3_taken *unsent; /* in hand; its RESETs come first */

    /* Coming in: bytes start..end of `in`; began_ns: when the first of them came. */
    uint8_t *in;
    uint32_t capacity, most, start, end; /* most: the longest frame that may come */
    uint64_t came_ns, came, began_ns;
    /* Going out: what the link has not taken yet of a STEP. */
    const uint8_t *out;
    uint32_t out_bytes;
    uint64_t out_since_ns;

    /* What the last return is about; valid until the next call. */
    const uint8_t *frame;
    uint32_t frame_bytes;
    struct pp3_taken *subject;
    int32_t error;

    struct pp3_waiter waiter[2]; /* for the next round; for a reply to one in hand */
    struct pp3_waiter *waiting;  /* the one that waits now; NULL: a wait is to begin */
    uint64_t since_ns, spin_ns;  /* of that wait: when it began, how long it spins */
    uint32_t idle;     /* a turn of it moved nothing */

    uint32_t moved;    /* this turn: a frame went out, or bytes came in */
    uint32_t readable; /* the link was polled so */
    _Atomic uint32_t stop;
};

/* The hand outlives the pump. NULL: no memory. */
struct pp3_pump *pp3_pump_new(struct pp3_hand *hand, const struct pp3_tally *tally);
void pp3_pump_free(struct pp3_pump *p);

/* A session begins on a connected, non-blocking socket, HELLO and HELLO_ACK behind it.
 * No round is in hand. */
void pp3_pump_open(struct pp3_pump *p, int link_fd, const uint8_t *session);
/* It is over: no reply of it can come any more. What is in hand stays there. */
void pp3_pump_close(struct pp3_pump *p);

/* Takes, sends, receives, publishes, until something rare happens: enum pp3_pump_why.
 * What the last call came back about is settled by calling again: its frame is consumed,
 * and after PP3_PUMP_RESET the round is sent.
 * control_fd: -1: none. slice_ns: how long the call may take at most; 0: for ever. */
int pp3_pump(struct pp3_pump *p, int control_fd, uint64_t slice_ns);

/* How it waits; at once asleep until this is called. */
void pp3_pump_waits(struct pp3_pump *p, uint32_t policy, uint64_t most_ns);

/* Whether the worker could not append the tokens of a row of a STEP: of a generation it
 * was not told of, or with tokens missing before them, for a round that failed before it
 * was sent took its tokens with it. */
int pp3_pump_behind(const struct pp3_pump *p, const struct pp3_step_row *row);

void pp3_pump_stop(struct pp3_pump *p);
int pp3_pump_stopped(struct pp3_pump *p);

/* For near.c: parts of a turn. */
enum { PP3_PUMP_GO_ON = -1 }; /* no reason to come back */
int pp3_pump_about(struct pp3_pump *p, int why, struct pp3_taken *subject, int error);
/* The next round is in hand and, where a slot of it has to be restated, `unsent`. */
int pp3_pump_take(struct pp3_pump *p, struct pp3_taken **taken);
/* Its STEP is on its way, or has been handed out. */
void pp3_pump_sent(struct pp3_pump *p, struct pp3_taken *t);
/* `frame` is a REPLY of a possible length. */
int pp3_pump_reply(struct pp3_pump *p);
/* What the last call came back about is done with. */
void pp3_pump_consume(struct pp3_pump *p);

#endif
