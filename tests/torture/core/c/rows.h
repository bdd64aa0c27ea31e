/* Rows of numbers that end where memory ends, and requests over them. */
#ifndef ROWS_H
#define ROWS_H

#include <stddef.h>
#include <stdint.h>

#include "harness.h"
#include "verify/row.h"
#include "verify/sparse.h"

/* Each path of the loops in turn, from -1; back at the best one it is -1. */
int next_path(int path);

/* Bytes, all-ones, whose last one is the last before a page that nobody may touch: an
 * over-read ends the process, by whatever instruction. Freed all together. */
void *edged(size_t bytes);
void edged_free_all(void);
const void *edged_copy(const void *from, size_t bytes);

enum { MOST_DEPTH = 5 }; /* of a usual case */

/* One request, and what it is over. */
struct case_ {
    struct pp3_verify_batch batch;
    struct pp3_verify_request request;
    float *z, *bias;   /* [depth + 1][vocab], rows end where memory ends */
    int32_t *drafts, *ids;
    float *q;
    int32_t *tokens;   /* [depth + 1] */
    void *scratch;
    struct pp3_verified out;
    double accept[PP3_VERIFY_DEPTH], residual[PP3_VERIFY_DEPTH + 1];
};

/* Room for such a request; drafts 0, supports 0..k-1, all mass on the first. */
void case_open(struct case_ *c, uint32_t vocab, uint32_t depth, uint32_t k);
/* Rows, mask, drafts, supports and uniforms by the dice; target, rule, mode as set. */
void case_draw(struct case_ *c, struct dice *d);
/* pp3_verify_one, which must not refuse it: its fault. Behind `count` tokens are -1. */
int case_run(struct case_ *c);
/* The same with the uniforms of its keys. */
int case_run_keyed(struct case_ *c);

#endif
