/* Structs and offsets of the wire page, and the check of a STEP body.
 *
 * The structs repeat the tables of tables.py; tests/test_layout_core.py holds every
 * offset and size of one against the other. All need no padding.
 */
#ifndef PP3_LAYOUT_STEP_H
#define PP3_LAYOUT_STEP_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the wire and the pages are little-endian, and this code reads them as words"
#endif

#ifndef PP3_SMALL /* a prover has smaller ones of its own */
enum {
    PP3_SUPPORT = 32,
    PP3_MOST_SLOTS = 4,
    PP3_LEAST_DEPTH = 4,
    PP3_MOST_DEPTH = 5,
};
#endif

enum {
    PP3_FLAG_SAMPLED = 2,
    PP3_KIND_REPLY = 4,
    PP3_CRC_BYTES = 4,
    PP3_STATUS_OK = 0,
    PP3_STATUS_ABSENT = 1,
    PP3_STATUS_STALE = 4,
    PP3_STATUS_WORKER_ERROR = 6,
    PP3_STATUS_REFUSED = 8,
};

/* What the negotiated profile says, as far as bytes depend on it. */
struct pp3_layout {
    uint32_t vocab;
    uint32_t depth;
    uint32_t max_slots;
    uint32_t max_positions;
    uint32_t sampled; /* 0 or 1 */
    uint32_t context_bytes;
};

struct pp3_frame_head {
    char magic[4];
    uint16_t version;
    uint16_t kind;
    uint32_t flags;
    uint32_t body_bytes;
    uint64_t sequence;
    uint8_t session[16];
};

/* The first part of a STEP body and of a REPLY body. */
struct pp3_body_head {
    uint64_t round;
    uint32_t n;
    uint32_t depth;
    uint32_t flags;
    uint32_t zero;
};

struct pp3_step_draw {
    int64_t user_seed;
    uint32_t sampled;
    uint32_t zero;
};

struct pp3_step_row {
    uint32_t slot;
    uint32_t generation;
    uint64_t position;
    uint64_t digest;
    uint32_t count;
    uint32_t context_bytes;
};

/* Bytes from the start of a STEP body of n rows, without CRC. In a greedy layout the
 * sampled parts are empty and stand where the next part does. */
struct pp3_step_at {
    size_t draws, rows, committed, context, end;
};

/* Whether l is one that a profile can give: then n <= max_slots bounds every size. */
int pp3_layout_ok(const struct pp3_layout *l);

struct pp3_step_at pp3_step_at(const struct pp3_layout *l, uint32_t n);

/* Whether a receiver would take this STEP as a whole (wire page, section 4).
 *
 * body: capacity bytes that nobody else can change; the STEP stands at its start,
 *       without CRC, and may be shorter. Reads nothing beyond the capacity.
 * Returns 0 and the true length in *body_bytes, or -EINVAL. */
int pp3_step_check(const struct pp3_layout *l, const uint8_t *body, size_t capacity,
                   uint32_t *body_bytes);

#endif
