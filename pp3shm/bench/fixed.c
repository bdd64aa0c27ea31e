#include "bench/fixed.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>

#include "bench/party.h"
#include "layout/crc.h"

enum { KIND_STEP = 3, HEAD = sizeof(struct pp3_frame_head) };

/* The frame becomes the answer to this STEP. -EINVAL: it is none for all slots. */
static int write_reply(struct pp3_fixed *f, const uint8_t *step, size_t step_bytes)
{
    struct pp3_frame_head head;
    struct pp3_body_head asked;
    uint8_t *body = f->frame + HEAD;
    size_t body_bytes = f->frame_bytes - HEAD - PP3_CRC_BYTES;
    struct pp3_step_at at = pp3_step_at(f->layout, f->layout->max_slots);
    struct pp3_reply_at to = pp3_reply_at(f->layout, f->layout->max_slots);
    uint32_t crc;

    if (step_bytes < at.committed)
        return -EINVAL;
    memcpy(&asked, step, sizeof asked);
    if (asked.n != f->layout->max_slots)
        return -EINVAL;
    memcpy(body, &asked.round, sizeof asked.round);
    for (uint32_t i = 0; i < asked.n; i++) {
        struct pp3_step_row row;
        memcpy(&row, step + at.rows + i * sizeof row, sizeof row);
        memcpy(body + to.generation + 4 * i, &row.generation, sizeof row.generation);
    }
    memcpy(&head, f->frame, sizeof head);
    head.sequence = f->sequence++;
    memcpy(head.session, f->session, sizeof head.session);
    memcpy(f->frame, &head, sizeof head);
    crc = pp3_crc32(0, body, body_bytes);
    memcpy(body + body_bytes, &crc, sizeof crc);
    f->answered++;
    return 0;
}

/* One round, if there is one: 1, 0 or -errno. */
static int answer_one(struct pp3_fixed *f, struct pp3_ring *r, uint8_t *step,
                      size_t capacity)
{
    struct pp3_trace trace = {0};
    struct pp3_fault fault;
    uint64_t mine;
    uint32_t bytes;
    int rc = pp3_take_step(r, f->layout, &mine, step, capacity, &bytes);

    if (rc != 1)
        return rc;
    trace.taken = trace.sent = pp3_tick();
    if ((rc = write_reply(f, step, bytes)) != 0) {
        (void)pp3_answer_failed(r, f->layout, mine, step, PP3_STATUS_REFUSED);
        return rc;
    }
    trace.received = pp3_tick();
    rc = pp3_answer(r, f->layout, mine, step, f->frame, f->frame_bytes, f->session,
                    f->sequence - 1, &trace, &fault);
    return rc == 0 || rc == -ESTALE ? 1 : -EPROTO;
}

int pp3_fixed_ring(struct pp3_fixed *f, struct pp3_ring *r, uint8_t *step,
                   size_t capacity, int control_fd, struct pp3_waiter *waiter,
                   int64_t sleep_ns)
{
    uint64_t since = 0; /* when the wait for a round began; 0: none is waited for */

    for (;;) {
        int rc = answer_one(f, r, step, capacity), wake;
        uint64_t spin = 0;

        if (rc < 0)
            return rc;
        if (rc == 1) {
            if (since != 0)
                pp3_waiter_end(waiter, pp3_now() - since);
            since = 0;
            continue;
        }
        if (since == 0 || waiter->policy == PP3_WAIT_SPIN) {
            since = pp3_now();
            spin = pp3_waiter_begin(waiter);
        }
        wake = pp3_proxy_sleep(r, -1, control_fd,
                               spin < INT32_MAX ? (int64_t)spin : INT32_MAX, sleep_ns);
        if (wake < 0)
            return wake;
        if (wake & PP3_WAKE_CONTROL)
            return 0;
    }
}

/* Answers the whole frames at the start of room; *have: what is left, moved there. */
static int answer_frames(struct pp3_fixed *f, int fd, uint8_t *room, size_t *have,
                         size_t capacity)
{
    size_t at = 0;
    int rc = 0;

    while (rc == 0 && *have - at >= HEAD) {
        struct pp3_frame_head head;
        size_t whole;

        memcpy(&head, room + at, sizeof head);
        whole = HEAD + (size_t)head.body_bytes;
        if (whole > capacity)
            return -EMSGSIZE;
        if (*have - at < whole)
            break;
        if (head.kind == KIND_STEP) {
            rc = write_reply(f, room + at + HEAD, whole - HEAD);
            if (rc == 0)
                rc = pp3_party_put(fd, f->frame, f->frame_bytes);
        }
        at += whole;
    }
    memmove(room, room + at, *have - at);
    *have -= at;
    return rc;
}

int pp3_fixed_link(struct pp3_fixed *f, int fd, uint8_t *room, size_t capacity)
{
    size_t have = 0;

    for (;;) {
        ssize_t got = recv(fd, room + have, capacity - have, 0);
        int rc;

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        if (got == 0)
            return 0;
        have += (size_t)got;
        if ((rc = answer_frames(f, fd, room, &have, capacity)) != 0)
            return rc;
    }
}
