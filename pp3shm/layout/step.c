#include "layout/step.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

_Static_assert(sizeof(struct pp3_frame_head) == 40, "wire page, section 2");
_Static_assert(sizeof(struct pp3_body_head) == 24, "wire page, sections 4 and 5");
_Static_assert(sizeof(struct pp3_step_draw) == 16, "wire page, section 4");
_Static_assert(sizeof(struct pp3_step_row) == 32, "wire page, section 4");

/* The largest STEP frame a profile can announce (terms.py, MOST_STEP_BYTES). */
#define MOST_CONTEXT (1u << 24)

int pp3_layout_ok(const struct pp3_layout *l)
{
    return l->vocab >= PP3_SUPPORT && l->vocab <= INT32_MAX &&
           l->depth >= PP3_LEAST_DEPTH && l->depth <= PP3_MOST_DEPTH &&
           l->max_slots >= 1 && l->max_slots <= PP3_MOST_SLOTS && l->sampled <= 1 &&
           l->context_bytes <= MOST_CONTEXT;
}

struct pp3_step_at pp3_step_at(const struct pp3_layout *l, uint32_t n)
{
    struct pp3_step_at at;
    size_t rows = n;
    at.draws = sizeof(struct pp3_body_head);
    at.rows = at.draws + (l->sampled ? rows * sizeof(struct pp3_step_draw) : 0);
    at.committed = at.rows + rows * sizeof(struct pp3_step_row);
    at.context = at.committed + rows * (l->depth + 1) * sizeof(int32_t);
    at.end = at.context + rows * l->context_bytes;
    return at;
}

static bool draws_ok(const uint8_t *at, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct pp3_step_draw draw;
        memcpy(&draw, at + i * sizeof draw, sizeof draw);
        if (draw.sampled > 1 || draw.zero != 0)
            return false;
    }
    return true;
}

/* Committed places of one row: count tokens, then -1. */
static bool places_ok(const struct pp3_layout *l, const uint8_t *at, uint32_t count)
{
    for (uint32_t i = 0; i <= l->depth; i++) {
        int32_t token;
        memcpy(&token, at + i * sizeof token, sizeof token);
        if (i < count ? (uint32_t)token >= l->vocab : token != -1)
            return false;
    }
    return true;
}

int pp3_step_check(const struct pp3_layout *l, const uint8_t *body, size_t capacity,
                   uint32_t *body_bytes)
{
    struct pp3_body_head head;
    if (!pp3_layout_ok(l) || capacity < sizeof head)
        return -EINVAL;
    memcpy(&head, body, sizeof head);
    if (head.n < 1 || head.n > l->max_slots || head.depth != l->depth ||
        head.flags != (l->sampled ? PP3_FLAG_SAMPLED : 0u) || head.zero != 0)
        return -EINVAL;

    struct pp3_step_at at = pp3_step_at(l, head.n);
    if (at.end > capacity || (l->sampled && !draws_ok(body + at.draws, head.n)))
        return -EINVAL;

    uint32_t seen = 0; /* one bit per slot */
    for (uint32_t i = 0; i < head.n; i++) {
        struct pp3_step_row row;
        memcpy(&row, body + at.rows + i * sizeof row, sizeof row);
        if (row.slot >= l->max_slots || (seen >> row.slot & 1u) ||
            row.count > l->depth + 1 || row.context_bytes != l->context_bytes ||
            !places_ok(l, body + at.committed + i * 4 * (l->depth + 1), row.count))
            return -EINVAL;
        seen |= 1u << row.slot;
    }
    *body_bytes = (uint32_t)at.end; /* below 2^27: pp3_layout_ok bounds all of it */
    return 0;
}
