#include "proxy/pump.h"
#include "proxy/near.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "layout/crc.h"

enum {
    HEAD = sizeof(struct pp3_frame_head),
    STEP = 3,
    ERROR = 6,
    BYE = 7,
    ERROR_LEAST = 16 + PP3_CRC_BYTES, /* code, length of the text, round */
    ERROR_TEXT = 1024,
    BUFFER = 65536,
    GO_ON = PP3_PUMP_GO_ON,
};

struct pp3_pump *pp3_pump_new(struct pp3_hand *hand, const struct pp3_tally *tally)
{
    struct pp3_pump *p = calloc(1, sizeof *p);
    struct pp3_reply_at at = pp3_reply_at(&hand->layout, hand->layout.max_slots);
    uint32_t reply = (uint32_t)at.end + PP3_CRC_BYTES; /* a few KiB */
    uint32_t error = ERROR_LEAST + ERROR_TEXT;

    if (!p)
        return NULL;
    p->hand = hand;
    p->tally = *tally;
    p->link_fd = -1;
    p->most = HEAD + (reply > error ? reply : error);
    p->capacity = p->most > BUFFER / 2 ? 2 * p->most : BUFFER;
    p->in = malloc(p->capacity);
    if (!p->in) {
        free(p);
        return NULL;
    }
    return p;
}

void pp3_pump_free(struct pp3_pump *p)
{
    if (!p)
        return;
    free(p->in);
    free(p);
}

void pp3_pump_close(struct pp3_pump *p)
{
    p->link_fd = -1;
    p->near = 0;
    p->start = p->end = p->frame_bytes = p->out_bytes = 0;
    p->began_ns = 0;
    p->frame = p->out = NULL;
    p->unsent = p->subject = NULL;
    memset(p->told, 0, sizeof p->told);
    pp3_hand_forget(p->hand);
}

void pp3_pump_open(struct pp3_pump *p, int link_fd, const uint8_t *session)
{
    pp3_pump_close(p);
    p->link_fd = link_fd;
    memcpy(p->session, session, sizeof p->session);
    p->sent = p->received = 1; /* HELLO and HELLO_ACK */
}

/* Relaxed: a word of this process, and nothing else is read on the strength of it. */
void pp3_pump_stop(struct pp3_pump *p)
{
    atomic_store_explicit(&p->stop, 1, memory_order_relaxed);
}
int pp3_pump_stopped(struct pp3_pump *p)
{
    return atomic_load_explicit(&p->stop, memory_order_relaxed) != 0;
}

static void count(struct pp3_pump *p, uint32_t index)
{
    pp3_count(p->hand->ring, index, 1);
}

int pp3_pump_about(struct pp3_pump *p, int why, struct pp3_taken *subject, int error)
{
    p->subject = subject;
    p->error = error;
    return why;
}

/* ---- engine to worker ------------------------------------------------------------- */

/* The rows of a STEP that was checked. */
static uint32_t rows_of(const struct pp3_pump *p, const struct pp3_taken *t,
                        struct pp3_step_row *rows)
{
    const uint8_t *step = pp3_taken_step(t);
    struct pp3_body_head head;

    memcpy(&head, step, sizeof head);
    struct pp3_step_at at = pp3_step_at(&p->hand->layout, head.n);
    memcpy(rows, step + at.rows, head.n * sizeof *rows);
    return head.n;
}

int pp3_pump_behind(const struct pp3_pump *p, const struct pp3_step_row *row)
{
    const struct pp3_told *told = &p->told[row->slot];

    return !told->known || told->generation != row->generation ||
           row->position < told->length ||
           (row->position > row->count && row->position - row->count > told->length);
}

/* Gives the link as much as it takes of what goes out. */
static int push(struct pp3_pump *p)
{
    ssize_t sent;

    do
        sent = send(p->link_fd, p->out, p->out_bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        return pp3_pump_about(p, PP3_PUMP_LOST, NULL, errno);
    if (sent > 0) {
        p->out += sent;
        p->out_bytes -= (uint32_t)sent;
    }
    return GO_ON;
}

void pp3_pump_sent(struct pp3_pump *p, struct pp3_taken *t)
{
    struct pp3_step_row rows[PP3_MOST_SLOTS];

    t->sent_ns = pp3_now();
    pp3_trace_put(p->hand->ring, t->mine, PP3_TAKEN, t->taken);
    pp3_trace_put(p->hand->ring, t->mine, PP3_SENT, pp3_tick());
    p->moved = 1;
    for (uint32_t i = rows_of(p, t, rows); i-- > 0;)
        p->told[rows[i].slot] =
            (struct pp3_told){rows[i].position, rows[i].generation, 1};
    count(p, p->tally.steps_sent);
}

static int send_step(struct pp3_pump *p, struct pp3_taken *t)
{
    struct pp3_frame_head head = {
        .magic = {'P', 'P', '3', 'F'},
        .version = 1,
        .kind = STEP,
        .flags = p->hand->layout.sampled ? PP3_FLAG_SAMPLED : 0u,
        .body_bytes = t->body_bytes + PP3_CRC_BYTES,
        .sequence = p->sent,
    };
    uint32_t crc = pp3_crc32(0, pp3_taken_step(t), t->body_bytes);

    memcpy(head.session, p->session, sizeof head.session);
    memcpy(t->frame, &head, HEAD);
    memcpy(pp3_taken_step(t) + t->body_bytes, &crc, sizeof crc);
    p->sent++;
    p->out = t->frame;
    p->out_bytes = HEAD + head.body_bytes;
    int why = push(p);
    if (why != GO_ON)
        return why;
    pp3_pump_sent(p, t);
    p->out_since_ns = t->sent_ns;
    return GO_ON;
}

static int expects_reset(const struct pp3_pump *p, const struct pp3_taken *t)
{
    struct pp3_step_row rows[PP3_MOST_SLOTS];
    int behind = 0;

    for (uint32_t i = rows_of(p, t, rows); i-- > 0;)
        behind |= pp3_pump_behind(p, &rows[i]);
    return behind;
}

/* What goes out is read from the place of its round, which the next take may use. */
static int may_take(const struct pp3_pump *p)
{
    return p->out_bytes == 0 && !pp3_hand_full(p->hand);
}

int pp3_pump_take(struct pp3_pump *p, struct pp3_taken **taken)
{
    struct pp3_hand *h = p->hand;
    struct pp3_taken *t = p->unsent;

    *taken = NULL;
    if (!t) {
        int found = may_take(p) ? pp3_hand_take(h) : 0;
        if (found == 0)
            return GO_ON;
        if (found < 0)
            return pp3_pump_about(p, PP3_PUMP_REQUEST,
                                  found == -EINVAL ? h->taken[h->in_hand] : NULL,
                                  found);
        t = h->taken[h->in_hand - 1];
        if (expects_reset(p, t)) {
            p->unsent = t;
            return pp3_pump_about(p, PP3_PUMP_RESET, t, 0);
        }
    }
    p->unsent = NULL;
    *taken = t;
    return GO_ON;
}

/* Bounded, so that a flood of rounds keeps neither replies nor orders waiting. */
static int send_rounds(struct pp3_pump *p)
{
    for (uint32_t i = 0; i < p->hand->ring->rounds; i++) {
        struct pp3_taken *t;
        int why;
        if (p->out_bytes != 0)
            return GO_ON;
        if ((why = pp3_pump_take(p, &t)) != GO_ON || !t)
            return why;
        if ((why = send_step(p, t)) != GO_ON)
            return why;
    }
    return GO_ON;
}

/* ---- worker to engine ------------------------------------------------------------- */

/* A kind, flags and a length that may come in a session. What more there is to check in
 * the header of a REPLY is the first of its ten checks. */
static int may_come(const struct pp3_pump *p, const struct pp3_frame_head *head)
{
    const struct pp3_layout *l = &p->hand->layout;

    if (memcmp(head->magic, "PP3F", 4) != 0 || head->version != 1)
        return 0;
    if (head->kind == BYE)
        return head->flags == 0 && head->body_bytes == PP3_CRC_BYTES;
    if (head->kind == ERROR)
        return head->flags == 0 && head->body_bytes >= ERROR_LEAST &&
               head->body_bytes <= ERROR_LEAST + ERROR_TEXT;
    if (head->kind != PP3_KIND_REPLY ||
        (head->flags != 0 && head->flags != PP3_FLAG_SAMPLED))
        return 0;
    for (uint32_t n = 1; n <= l->max_slots; n++)
        if (head->body_bytes == pp3_reply_at(l, n).end + PP3_CRC_BYTES)
            return 1;
    return 0;
}

/* Counts refused rows; what the worker holds of their slots is not known. */
static void heed_rows(struct pp3_pump *p, const struct pp3_taken *t)
{
    struct pp3_step_row rows[PP3_MOST_SLOTS];
    uint32_t n = rows_of(p, t, rows);

    for (uint32_t i = 0; i < n; i++) {
        int32_t status;
        memcpy(&status, p->frame + HEAD + sizeof(struct pp3_body_head) + 4 * i,
               sizeof status);
        if (status < PP3_STATUS_ABSENT || status > PP3_STATUS_REFUSED)
            continue;
        count(p, p->tally.row_status + (uint32_t)status - 1);
        if (status != PP3_STATUS_WORKER_ERROR)
            p->told[rows[i].slot].known = 0;
    }
}

int pp3_pump_reply(struct pp3_pump *p)
{
    struct pp3_hand *h = p->hand;
    struct pp3_taken *t;
    uint64_t round = 0;
    int late = 1, outcome;

    (void)pp3_reply_round(p->frame, p->frame_bytes, &round); /* admitted: long enough */
    t = pp3_hand_find(h, round);
    if (t) {
        outcome = pp3_hand_answer(h, t, p->frame, p->frame_bytes, p->session,
                                  p->received, p->came);
        late = outcome != 0;
        if (outcome < 0 && outcome != -ESTALE)
            return pp3_pump_about(p, PP3_PUMP_RING, t, outcome);
    } else {
        outcome = pp3_hand_late(h, round, p->frame, p->frame_bytes, p->session,
                                p->received);
    }
    if (outcome > 0)
        return pp3_pump_about(p, PP3_PUMP_REFUSED, t, outcome);
    count(p, late ? p->tally.late : p->tally.replies);
    if (t)
        heed_rows(p, t);
    if (!p->tell_answer)
        return GO_ON;
    p->tell_answer = 0;
    return pp3_pump_about(p, PP3_PUMP_ANSWERED, NULL, 0);
}

void pp3_pump_consume(struct pp3_pump *p)
{
    if (p->frame_bytes == 0)
        return;
    p->start += p->frame_bytes;
    p->received++;
    p->frame = NULL;
    p->frame_bytes = 0;
    if (p->start == p->end)
        p->start = p->end = 0;
    p->began_ns = p->start == p->end ? 0 : p->came_ns;
}

/* All whole frames that are there. */
static int take_frames(struct pp3_pump *p)
{
    while (p->end - p->start >= HEAD) {
        struct pp3_frame_head head;
        int why;
        memcpy(&head, p->in + p->start, sizeof head);
        p->frame = p->in + p->start;
        if (!may_come(p, &head)) {
            p->frame_bytes = HEAD;
            return pp3_pump_about(p, PP3_PUMP_HEADER, NULL, 0);
        }
        if (p->end - p->start < HEAD + head.body_bytes)
            return GO_ON;
        p->frame_bytes = HEAD + head.body_bytes;
        why = head.kind == PP3_KIND_REPLY ? pp3_pump_reply(p)
                                          : pp3_pump_about(p, PP3_PUMP_FRAME, NULL, 0);
        if (why != GO_ON)
            return why;
        pp3_pump_consume(p);
    }
    return GO_ON;
}

/* Room for the rest of the frame that is coming in. */
static void make_room(struct pp3_pump *p)
{
    if (p->capacity - p->end >= p->most)
        return;
    memmove(p->in, p->in + p->start, p->end - p->start);
    p->end -= p->start;
    p->start = 0;
}

/* One look at the link; another one only where the first filled the buffer. */
static int receive(struct pp3_pump *p)
{
    for (;;) {
        int why = take_frames(p);
        if (why != GO_ON)
            return why;
        make_room(p);
        size_t room = p->capacity - p->end;
        ssize_t got = recv(p->link_fd, p->in + p->end, room, MSG_DONTWAIT);
        if (got == 0)
            return pp3_pump_about(p, PP3_PUMP_LOST, NULL, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            return pp3_pump_about(p, PP3_PUMP_LOST, NULL, errno);
        p->readable = 0;
        if (got < 0)
            return GO_ON;
        p->moved = 1;
        p->came_ns = pp3_now();
        p->came = pp3_tick();
        if (p->start == p->end)
            p->began_ns = p->came_ns;
        p->end += (uint32_t)got;
        if ((size_t)got < room)
            return take_frames(p);
    }
}

/* ---- the turn --------------------------------------------------------------------- */

/* Nobody owes us a word: the link need not be looked at in every turn. */
static int quiet(const struct pp3_pump *p)
{
    return !p->readable && p->hand->in_hand == 0 && p->hand->resolved_count == 0 &&
           p->start == p->end;
}

static int turn(struct pp3_pump *p)
{
    int error, why;

    if (pp3_pump_stopped(p))
        return PP3_PUMP_STOPPED;
    if ((error = pp3_hand_sweep(p->hand)) < 0)
        return pp3_pump_about(p, PP3_PUMP_RING, NULL, error);
    if (p->unsent && !pp3_hand_find(p->hand, pp3_ticket(p->unsent->mine)))
        p->unsent = NULL; /* failed meanwhile: it need not be sent */
    if (p->near)
        return pp3_near_turn(p);
    if (p->out_bytes != 0 && (why = push(p)) != GO_ON)
        return why;
    if ((why = send_rounds(p)) != GO_ON)
        return why;
    return quiet(p) ? GO_ON : receive(p);
}

/* What took too long. */
static int overdue(struct pp3_pump *p, uint64_t now)
{
    if (p->out_bytes != 0 && now - p->out_since_ns > p->send_ns)
        return PP3_PUMP_UNTAKEN;
    if (p->began_ns != 0 && now > p->began_ns && now - p->began_ns > p->trickle_ns)
        return PP3_PUMP_TRICKLE;
    return GO_ON;
}

/* Looks at the descriptors, sleeping where that is allowed. The ring is looked at only
 * where a round could be taken: what cannot be taken must not keep us awake. */
static int rest(struct pp3_pump *p, int control_fd, int64_t sleep_ns)
{
    struct pp3_ring *r = p->hand->ring;
    struct pollfd fds[3] = {
        {.fd = p->link_fd, .events = (short)(POLLIN | (p->out_bytes ? POLLOUT : 0))},
        {.fd = control_fd, .events = POLLIN},
        {.fd = may_take(p) ? pp3_bell_fd(r) : -1, .events = POLLIN},
    };
    int polled = may_take(p) && sleep_ns > 0 ? pp3_work_poll(r, fds, 3, sleep_ns)
                                             : pp3_poll(fds, 2, sleep_ns);

    if (polled == -EINTR)
        return PP3_PUMP_IDLE; /* a handler of the interpreter's waits to be run */
    if (polled < 0)
        return pp3_pump_about(p, PP3_PUMP_RING, NULL, polled);
    if (fds[0].revents != 0)
        p->readable = 1;
    return fds[1].revents != 0 ? PP3_PUMP_CONTROL : GO_ON;
}

void pp3_pump_waits(struct pp3_pump *p, uint32_t policy, uint64_t most_ns)
{
    pp3_waiter_set(&p->waiter[0], policy, most_ns);
    pp3_waiter_set(&p->waiter[1], policy, most_ns);
    p->waiting = NULL;
}

/* A wait for the worker and one for the engine differ by orders: each is learned by
 * itself. What was there at once was not waited for. */
static void wait_anew(struct pp3_pump *p, uint64_t now)
{
    if (p->waiting && p->idle)
        pp3_waiter_end(p->waiting, now - p->since_ns);
    p->waiting = &p->waiter[p->hand->in_hand != 0];
    p->since_ns = now;
    p->spin_ns = pp3_waiter_begin(p->waiting);
    p->idle = 0;
}

int pp3_pump(struct pp3_pump *p, int control_fd, uint64_t slice_ns)
{
    uint64_t begun = pp3_now(), looked = begun, yielded = begun;
    int why;

    pp3_pump_consume(p);
    p->readable = 1; /* not known: the first turn looks */
    if (!p->waiting)
        wait_anew(p, begun);
    for (;;) {
        p->moved = 0;
        why = turn(p);
        uint64_t now = pp3_now();
        if (p->moved) {
            wait_anew(p, now);
            yielded = now; /* whoever is to end that wait begins now */
        } else {
            p->idle = 1;
        }
        if (why != GO_ON || (why = overdue(p, now)) != GO_ON)
            break;
        if (slice_ns != 0 && now - begun >= slice_ns) {
            why = PP3_PUMP_IDLE;
            break;
        }
        int spinning = p->moved || now - p->since_ns < p->spin_ns;
        if (spinning && now - looked < PP3_SLICE_NS) {
            pp3_spin_on(&yielded, now);
            continue;
        }
        looked = now;
        if ((why = rest(p, control_fd, spinning ? 0 : (int64_t)PP3_SLICE_NS)) != GO_ON)
            break;
    }
    if (why != PP3_PUMP_IDLE) /* an idle one goes on with its wait */
        p->waiting = NULL;
    count(p, p->tally.returns);
    return why;
}
