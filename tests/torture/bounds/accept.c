/* pp3_accept and pp3_reply_round, for every frame, frame length and STEP.
 *
 * The CRC is any number. Of draft.h, whose vectors the prover does not take, each
 * function reads its 4 numbers and gives any value of its range: that range is assumed
 * here; fuzzing tries the text itself. */
#include "small.h"

#include <errno.h>

#undef __x86_64__ /* the text for any CPU: the prover takes no vector registers */

#define PP3_LAYOUT_DRAFT_H
#include "layout/step.c"

enum { PP3_MASS = 1 << 24 };

static void read_all(const void *from) { touch(from, 4 * PP3_SUPPORT); }

static int any_index(int least)
{
    int index = nondet_i32();
    ASSUME(index >= least && index < PP3_SUPPORT);
    return index;
}

static bool pp3_ids_ok(const int32_t id[PP3_SUPPORT], uint32_t vocab)
{
    (void)vocab;
    read_all(id);
    return nondet_bool();
}

static bool pp3_ids_unused(const int32_t id[PP3_SUPPORT])
{
    read_all(id);
    return nondet_bool();
}

static int pp3_wrong_id(const int32_t id[PP3_SUPPORT], uint32_t vocab, bool used)
{
    (void)vocab;
    (void)used;
    read_all(id);
    return any_index(-1);
}

static uint32_t pp3_place(const int32_t id[PP3_SUPPORT], int32_t token)
{
    (void)token;
    read_all(id);
    return (uint32_t)(any_index(-1) + 1);
}

struct pp3_q_sum {
    uint64_t mass;
    bool odd, above;
};

static struct pp3_q_sum pp3_sum_q(const float q[PP3_SUPPORT], int32_t count[PP3_SUPPORT])
{
    read_all(q);
    touch((const uint8_t *)count, 4 * PP3_SUPPORT); /* not set before: any already */
    return (struct pp3_q_sum){nondet_u64(), nondet_bool(), nondet_bool()};
}

static int pp3_wrong_q(const float q[PP3_SUPPORT], bool odd)
{
    (void)odd;
    read_all(q);
    return any_index(-1);
}

static int pp3_used_q(const float q[PP3_SUPPORT])
{
    read_all(q);
    return any_index(-1);
}

#include "layout/crc.h"

void pp3_crc_begin(struct pp3_crc_run *run, uint32_t crc) { run->state = crc; }
void pp3_crc_block(struct pp3_crc_run *run, const uint8_t block[PP3_CRC_BLOCK])
{
    (void)run;
    touch(block, PP3_CRC_BLOCK);
}
uint32_t pp3_crc_end(struct pp3_crc_run *run) { return run->state ^ nondet_u32(); }
uint32_t pp3_crc32(uint32_t crc, const void *data, size_t n)
{
    touch(data, n);
    return crc ^ nondet_u32();
}

#define put_int page_put_int
#include "layout/page.c"
#undef put_int
#include "layout/accept.c"

#ifndef DEPTH
#define DEPTH 2
#define SLOTS 2
#define SAMPLED 1
#endif
enum {
    FULL = 40 + 24 + SLOTS * (8 + 8 * DEPTH) +
           SAMPLED * (16 + SLOTS * 4 + SLOTS * DEPTH * 8 * SUPPORT) + 4,
    A_ROW = 8 + 8 * DEPTH + SAMPLED * (4 + DEPTH * 8 * SUPPORT),
    STEP = 24 + SLOTS * (16 * SAMPLED + 32 + 4 * (DEPTH + 1)),
    PAGE = 8 + SLOTS * (4 + 8 * DEPTH) + SAMPLED * SLOTS * (4 + 8 * DEPTH * SUPPORT),
};

int main(void)
{
    struct pp3_layout l = {nondet_u32(), DEPTH, SLOTS, nondet_u32(), SAMPLED, nondet_u32()};
    size_t bytes = nondet_size();
    uint8_t session[16];
    struct pp3_fault fault;
    uint64_t round;
#if defined(ROUND)
    uint8_t *frame = block(bytes, FULL);
    if (pp3_reply_round(frame, bytes, &round) == 0)
        HOLDS(bytes >= 48);
    return 0;
#else
    ASSUME(pp3_layout_ok(&l));
    uint8_t page[PAGE];
#ifdef ROWS /* a length that ROWS rows have; all others in a run of their own */
    bytes = FULL - (SLOTS - ROWS) * A_ROW;
    uint8_t frame[FULL - (SLOTS - ROWS) * A_ROW];
#else
    uint8_t *frame = block(bytes, FULL);
#ifdef ODD
    ASSUME(bytes != FULL && bytes != FULL - (SLOTS - 1) * A_ROW);
#endif
#endif
    HOLDS(pp3_page_at(&l).end == PAGE && pp3_reply_at(&l, SLOTS).end + 44 == FULL);
    uint8_t *step = NULL;
#ifndef UNAWAITED
    uint8_t asked[STEP];
    step = asked;
#endif
    int reason = pp3_accept(&l, step, frame, bytes, session, nondet_u64(), page, &fault);
    HOLDS(reason == fault.reason && reason >= 0 && reason <= PP3_REASON_MASS);
    HOLDS(fault.row < SLOTS && fault.depth < DEPTH && fault.index < PP3_SUPPORT);
    (void)round;
    return 0;
#endif
}
