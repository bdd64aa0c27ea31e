/* A REPLY held against its STEP and scattered to slot order, in one pass.
 *
 * validate.py is the readable reference: both give the same reason on every input,
 * and the same page where there is none.
 */
#ifndef PP3_LAYOUT_ACCEPT_H
#define PP3_LAYOUT_ACCEPT_H

#include "layout/page.h"
#include "layout/step.h"

/* The checks of the wire page, section 6, in their order: the first failing one over
 * the whole reply is the reason. */
enum pp3_reason {
    PP3_REASON_NONE = 0,
    PP3_REASON_FRAME = 1,
    PP3_REASON_CRC = 2,
    PP3_REASON_HEADER = 3,
    PP3_REASON_ECHO = 4,
    PP3_REASON_TRAILER = 5,
    PP3_REASON_MASK = 6,
    PP3_REASON_TOKEN = 7,
    PP3_REASON_SUPPORT = 8,
    PP3_REASON_PROBABILITY = 9,
    PP3_REASON_MASS = 10,
};

/* Where a reply failed: its row (not slot), draft and entry of 32; -1: of no one. */
struct pp3_fault {
    int32_t reason; /* enum pp3_reason */
    int32_t row;
    int32_t depth;
    int32_t index;
};

struct pp3_trailer {
    char magic[4];
    uint32_t version;
    uint32_t n;
    uint32_t depth;
};

/* Bytes from the start of a REPLY body of n rows, without CRC. */
struct pp3_reply_at {
    size_t status, generation, tokens, confidence, trailer, mask, ids, q, end;
};

struct pp3_reply_at pp3_reply_at(const struct pp3_layout *l, uint32_t n);

/* The round a frame says it answers, unchecked: to find its STEP by.
 * 0, or -EINVAL where the frame is too short to say. */
int pp3_reply_round(const uint8_t *frame, size_t frame_bytes, uint64_t *round);

/* Checks a whole frame and copies it to a page.
 *
 * step_body: of the STEP with this round, after pp3_step_check said 0 and not changed
 *            since. NULL: nobody awaits this round; the reason is then FRAME, CRC or
 *            HEADER, and HEADER means well-formed: late, if the round was resolved.
 * frame:     frame_bytes bytes, header and CRC included. Each word is loaded once, so
 *            that what was checked is what was copied even where a peer (RDMA staging)
 *            can write at the same time.
 * page:      room for pp3_page_at(l).end bytes; nobody reads it yet.
 * Returns PP3_REASON_NONE, and the page holds the whole ReplyLayout; or the reason,
 * and what the page holds is unspecified. fault tells the place. Whatever the bytes,
 * nothing outside frame and page is touched. */
int pp3_accept(const struct pp3_layout *l, const uint8_t *step_body,
               const uint8_t *frame, size_t frame_bytes, const uint8_t session[16],
               uint64_t sequence, uint8_t *page, struct pp3_fault *fault);

#endif
