#include "layout/page.h"

#include <string.h>

struct pp3_page_at pp3_page_at(const struct pp3_layout *l)
{
    struct pp3_page_at at;
    size_t slots = l->max_slots, drafts = slots * l->depth;
    size_t support = l->sampled ? drafts * PP3_SUPPORT * 4 : 0;
    at.status = sizeof(uint64_t);
    at.tokens = at.status + 4 * slots;
    at.confidence = at.tokens + 4 * drafts;
    at.mask = at.confidence + 4 * drafts;
    at.ids = at.mask + (l->sampled ? 4 * slots : 0);
    at.q = at.ids + support;
    at.end = at.q + support;
    return at;
}

static void put_int(uint8_t *to, int32_t value)
{
    memcpy(to, &value, sizeof value);
}

void pp3_page_fill(const struct pp3_layout *l, uint32_t slot, int32_t status,
                   uint8_t *page)
{
    struct pp3_page_at to = pp3_page_at(l);
    size_t first = (size_t)slot * l->depth; /* of the slot's drafts */
    put_int(page + to.status + 4 * (size_t)slot, status);
    for (size_t draft = first; draft < first + l->depth; draft++) {
        put_int(page + to.tokens + 4 * draft, -1);
        put_int(page + to.confidence + 4 * draft, 0);
    }
    if (!l->sampled)
        return;
    put_int(page + to.mask + 4 * (size_t)slot, 0);
    memset(page + to.q + 4 * first * PP3_SUPPORT, 0, 4 * (size_t)l->depth * PP3_SUPPORT);
    for (size_t draft = first; draft < first + l->depth; draft++)
        for (int i = 0; i < PP3_SUPPORT; i++)
            put_int(page + to.ids + 4 * (draft * PP3_SUPPORT + (size_t)i), i);
}

void pp3_fail_page(const struct pp3_layout *l, const uint8_t *step_body, int32_t status,
                   uint8_t *page)
{
    struct pp3_body_head head;
    memcpy(&head, step_body, sizeof head);
    memcpy(page, &head.round, sizeof head.round);
    for (uint32_t slot = 0; slot < l->max_slots; slot++)
        pp3_page_fill(l, slot, PP3_STATUS_ABSENT, page);

    struct pp3_step_at at = pp3_step_at(l, head.n);
    for (uint32_t i = 0; i < head.n && i < l->max_slots; i++) {
        struct pp3_step_row row;
        memcpy(&row, step_body + at.rows + i * sizeof row, sizeof row);
        if (row.slot < l->max_slots) /* else the caller did not check the STEP */
            pp3_page_fill(l, row.slot, status, page);
    }
}
