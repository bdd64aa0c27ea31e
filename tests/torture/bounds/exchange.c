/* The exchange of a STEP and a REPLY over the region. What checks the bytes is proved in
 * step.c and accept.c; here it is called with what these proofs ask for. */
#include "words.h"

#define PP3_LAYOUT_ACCEPT_H
#include "layout/step.h"

enum { PAGE_BYTES = 64, REQUEST_BYTES = 48, LAYOUT_BYTES = 24 };

struct pp3_fault {
    int32_t reason, row, depth, index;
};
enum { PP3_REASON_MASS = 10 };

int pp3_step_check(const struct pp3_layout *l, const uint8_t *body, size_t capacity,
                   uint32_t *body_bytes)
{
    (void)l;
    touch(body, capacity);
    *body_bytes = nondet_u32();
    ASSUME(*body_bytes >= 24 && *body_bytes <= capacity);
    return nondet_bool() ? 0 : -EINVAL;
}

static int pp3_accept(const struct pp3_layout *l, const uint8_t *step, const uint8_t *frame,
                      size_t frame_bytes, const uint8_t *session, uint64_t sequence,
                      uint8_t *page, struct pp3_fault *fault)
{
    (void)l;
    (void)sequence;
    (void)fault;
    touch(step, 24);
    touch(frame, frame_bytes);
    touch(session, 16);
    touch(page, LAYOUT_BYTES);
    int reason = nondet_i32();
    ASSUME(reason >= 0 && reason <= PP3_REASON_MASS);
    return reason;
}

static void pp3_fail_page(const struct pp3_layout *l, const uint8_t *step, int32_t status,
                          uint8_t *page)
{
    (void)l;
    (void)status;
    touch(step, 24);
    touch(page, LAYOUT_BYTES);
}

uint64_t pp3_now(void) { return nondet_u64(); }
int pp3_bell_fd(struct pp3_ring *r) { return r->bell_fd; }
void pp3_work_done(struct pp3_ring *r) { (void)r; }

#include "proxy/exchange.c"

int main(void)
{
    struct pp3_ring *r = end_of(PAGE_BYTES, REQUEST_BYTES);
    struct pp3_layout l;
    uint64_t mine = nondet_u64();
    uint8_t step[REQUEST_BYTES], session[16];
    uint32_t bytes;
    size_t length = nondet_size();
    ASSUME(r->cursor <= PP3_LAST_TICKET && length <= 4);
    uint8_t *frame = malloc(length);
    ASSUME(frame != NULL);
    /* of another word nothing is a proxy's; pp3_take gives no page out of bounds */
    ASSUME(pp3_page_of(mine) < PAGES);
#if defined(TAKE_STEP)
    if (pp3_take_step(r, &l, &mine, step, sizeof step, &bytes) == 1)
        HOLDS(bytes <= sizeof step && pp3_page_of(mine) < PAGES);
#elif defined(ANSWER)
    struct pp3_trace trace;
    struct pp3_fault fault;
    HOLDS(pp3_answer(r, &l, mine, step, frame, length, session, 0, &trace, &fault) <=
          PP3_REASON_MASS);
#else
    (void)pp3_answer_failed(r, &l, mine, step, nondet_i32());
#endif
    (void)bytes;
    return 0;
}
