#include "proxy/near.h"

#include <errno.h>
#include <string.h>

#include "layout/crc.h"

enum { HEAD = sizeof(struct pp3_frame_head) };

void pp3_near_open(struct pp3_pump *p, const uint8_t *session)
{
    pp3_pump_open(p, -1, session);
    p->near = 1;
}

uint8_t *pp3_near_room(struct pp3_pump *p, uint32_t *bytes)
{
    *bytes = p->most - HEAD - PP3_CRC_BYTES;
    return p->in + HEAD;
}

/* The body in its room becomes the session's next frame, and that is judged like any. */
static int answer(struct pp3_pump *p, uint32_t body_bytes)
{
    struct pp3_frame_head head = {
        .magic = {'P', 'P', '3', 'F'},
        .version = 1,
        .kind = PP3_KIND_REPLY,
        .flags = p->hand->layout.sampled ? PP3_FLAG_SAMPLED : 0u,
        .body_bytes = body_bytes + PP3_CRC_BYTES,
        .sequence = p->received,
    };
    uint32_t room, crc;
    uint8_t *body = pp3_near_room(p, &room);
    int why;

    if (body_bytes > room)
        return pp3_pump_about(p, PP3_PUMP_RING, NULL, -EMSGSIZE);
    crc = pp3_crc32(0, body, body_bytes);
    memcpy(head.session, p->session, sizeof head.session);
    memcpy(p->in, &head, HEAD);
    memcpy(body + body_bytes, &crc, sizeof crc);
    p->frame = p->in;
    p->start = 0;
    p->end = p->frame_bytes = HEAD + head.body_bytes;
    p->came_ns = pp3_now();
    p->came = pp3_tick();
    why = pp3_pump_reply(p);
    if (why == PP3_PUMP_GO_ON)
        pp3_pump_consume(p);
    return why;
}

int pp3_near_turn(struct pp3_pump *p)
{
    struct pp3_taken *t;
    int why = pp3_pump_take(p, &t);

    if (why != PP3_PUMP_GO_ON || !t)
        return why;
    pp3_pump_sent(p, t);
    return pp3_pump_about(p, PP3_PUMP_STEP, t, 0);
}

int pp3_near(struct pp3_pump *p, uint32_t body_bytes, int control_fd, uint64_t slice_ns)
{
    int why = body_bytes == 0 ? PP3_PUMP_GO_ON : answer(p, body_bytes);

    return why == PP3_PUMP_GO_ON ? pp3_pump(p, control_fd, slice_ns) : why;
}
