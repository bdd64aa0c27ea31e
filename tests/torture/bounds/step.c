/* pp3_step_check and pp3_fail_page, for every body, capacity and layout. */
#include "small.h"

#include "layout/step.c"
/* both have helpers of the same name */
#define put_int page_put_int
#include "layout/page.c"



enum { MOST_STEP = 24 + 2 * (16 + 32 + 4 * 3) + 8, MOST_PAGE = 8 + 2 * (8 + 2 * (8 + 8 * SUPPORT)) };

static struct pp3_layout layout(void)
{
    struct pp3_layout l = {nondet_u32(), nondet_u32(), nondet_u32(),
                           nondet_u32(), nondet_u32(), nondet_u32()};
#ifdef DEPTH
    l.depth = DEPTH; l.max_slots = SLOTS; l.sampled = SAMPLED;
#endif
    return l;
}

#ifdef CHECK
int main(void)
{
    struct pp3_layout l = layout();
    size_t capacity = nondet_size();
    uint32_t bytes;
    uint8_t *body = block(capacity, MOST_STEP);
    if (pp3_step_check(&l, body, capacity, &bytes) == 0) {
        HOLDS(bytes <= capacity);
    }
    return 0;
}
#else
int main(void)
{
    struct pp3_layout l = layout();
    ASSUME(pp3_layout_ok(&l));
    size_t room = pp3_page_at(&l).end;
    HOLDS(room <= MOST_PAGE);
    uint8_t *page = malloc(room), *body = malloc(MOST_STEP);
    ASSUME(page && body);
    pp3_fail_page(&l, body, nondet_i32(), page);
    touch(page, room);
    return 0;
}
#endif
