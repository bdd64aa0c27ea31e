/* A page: ReplyLayout, indexed by slot (wire page, section 7). */
#ifndef PP3_LAYOUT_PAGE_H
#define PP3_LAYOUT_PAGE_H

#include "layout/step.h"

/* Bytes from the start of a page; round stands at 0. In a greedy layout mask, ids and
 * q are empty and stand at the end. */
struct pp3_page_at {
    size_t status, tokens, confidence, mask, ids, q, end;
};

struct pp3_page_at pp3_page_at(const struct pp3_layout *l);

/* A slot without drafts: this status, tokens -1, confidence 0, mask 0, ids 0..31, q 0.
 * slot < max_slots. */
void pp3_page_fill(const struct pp3_layout *l, uint32_t slot, int32_t status,
                   uint8_t *page);

/* The whole page of a round that failed: the STEP's slots with this status, all other
 * slots absent, the STEP's round. step_body: after pp3_step_check said 0. */
void pp3_fail_page(const struct pp3_layout *l, const uint8_t *step_body, int32_t status,
                   uint8_t *page);

#endif
