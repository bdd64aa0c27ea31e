#include "frames.h"

#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "layout/crc.h"

uint8_t *copied(const void *from, size_t bytes)
{
    uint8_t *to = malloc(bytes ? bytes : 1);

    if (!to)
        abort();
    memcpy(to, from, bytes);
    return to;
}

void put32(uint8_t *at, uint32_t value) { memcpy(at, &value, 4); }

uint32_t get32(const uint8_t *at)
{
    uint32_t value;

    memcpy(&value, at, 4);
    return value;
}

void pair_open(struct pair *p, const struct known_frame *known)
{
    *p = (struct pair){.known = known};
    p->step_bytes = known->step_bytes - FRAME - PP3_CRC_BYTES;
    p->reply_bytes = known->reply_bytes;
    p->page_bytes = pp3_page_at(&known->layout).end;
    p->step = copied(known->step + FRAME, p->step_bytes);
    p->reply = copied(known->reply, p->reply_bytes);
    p->page = malloc(p->page_bytes);
    if (!p->page)
        abort();
}

void pair_close(struct pair *p)
{
    free(p->step);
    free(p->reply);
    free(p->page);
}

static int accepted(struct pair *p)
{
    memset(p->page, 0xff, p->page_bytes);
    return pp3_accept(&p->known->layout, p->step, p->reply, p->reply_bytes,
                      p->known->session, p->known->reply_sequence, p->page, &p->fault);
}

int pair_accept(struct pair *p)
{
    int best = pp3_crc_path(), reason = accepted(p);
    uint8_t *page = copied(p->page, p->page_bytes);
    struct pp3_fault fault = p->fault;

    for (int way = PP3_CRC_TABLE; way <= PP3_CRC_WIDE; way++) {
        if (way == best || pp3_crc_force(way) != 0)
            continue;
        EQUAL(accepted(p), reason);
        CHECK(memcmp(&p->fault, &fault, sizeof fault) == 0);
        CHECK(memcmp(p->page, page, p->page_bytes) == 0);
    }
    EQUAL(pp3_crc_force(best), 0);
    free(page);
    return reason;
}

int pair_accept_sealed(struct pair *p)
{
    size_t body = p->reply_bytes - FRAME - PP3_CRC_BYTES;

    put32(p->reply + FRAME + body, pp3_crc32(0, p->reply + FRAME, body));
    return pair_accept(p);
}
