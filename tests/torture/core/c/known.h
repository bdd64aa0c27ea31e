/* Known answers: the vectors of tests/vectors, as tables. known.py writes them. */
#ifndef KNOWN_H
#define KNOWN_H

#include <stddef.h>
#include <stdint.h>

#include "layout/step.h"

struct known_frame {
    const char *name;
    struct pp3_layout layout;
    uint32_t n;
    const uint8_t *session;
    size_t session_bytes;
    uint64_t round, step_sequence, reply_sequence;
    const uint8_t *step; /* whole frames: header, body, CRC */
    size_t step_bytes;
    const uint8_t *reply;
    size_t reply_bytes;
    const uint8_t *page;
    size_t page_bytes;
};

struct known_bad {
    const char *why;
    uint32_t base;
    int reason;
    const uint8_t *reply;
    size_t reply_bytes;
};

struct known_block { uint32_t counter[4], key[2], words[4]; };

struct known_proposal {
    uint32_t vocab;
    int rule;
    const uint8_t *logits;
    size_t logits_bytes;
    int32_t ids[PP3_SUPPORT], counts[PP3_SUPPORT];
    uint32_t draw24;
    int32_t token;
};

struct known_refused {
    const char *why;
    const uint8_t *logits;
    size_t logits_bytes;
};

/* at: status, tokens, confidence, mask, ids, q, end */
struct known_layout { uint32_t max_slots, depth, sampled; int at[7]; };

/* A request under standard-v1, by probabilities, and what it emits. */
struct known_draw {
    uint32_t vocab, depth, k;
    int mode; /* enum pp3_verify_mode */
    uint64_t round, position;
    uint32_t accept[2], residual[2];
    const uint8_t *target;
    size_t target_bytes;
    const int32_t *drafts, *ids, *counts;
    uint32_t n_emitted;
    const int32_t *emitted;
};

/* Target and proposal by prefix, numerators over the denominator, and the exact law of
 * what is emitted. Prefixes come in the order of their length, then of their tokens. */
struct known_emission { uint32_t n; int32_t tokens[3]; double chance; };

struct known_law {
    uint32_t vocab, depth, denominator;
    const uint32_t *p, *q;
    unsigned n_emitted;
    const struct known_emission *emitted;
};

extern const struct known_draw known_draws[];
extern const struct known_law known_laws[];
extern const unsigned n_known_draws, n_known_laws;
extern const struct known_frame known_frames[];
extern const struct known_bad known_bads[];
extern const struct known_block known_blocks[];
extern const struct known_proposal known_proposals[];
extern const struct known_refused known_refusals[];
extern const struct known_layout known_layouts[];
extern const unsigned n_known_frames, n_known_bads, n_known_blocks, n_known_proposals,
    n_known_refusals, n_known_layouts;

#endif
