/* One target row: its sums by block, its probabilities, and draws from it. */
#ifndef PP3_VERIFY_ROW_H
#define PP3_VERIFY_ROW_H

#include "sparse.h"
#include "weights.h"

struct pp3_row {
    const float *z, *bias; /* bias: NULL but for logits */
    uint32_t vocab, blocks;
    int32_t target;
    float peak, scale;
    double total; /* of sum[] */
    double *sum;  /* [blocks] the caller's */
};

/* The proposal at one position, copied and checked. */
struct pp3_support {
    uint32_t k;
    int32_t ids[PP3_VERIFY_SUPPORT];
    double q[PP3_VERIFY_SUPPORT];
};

struct pp3_row_fault { int32_t fault, id; double value; };

/* Sums row r, whose z, bias, vocab, target and sum are set. scale: log2(e) over the
 * temperature, of logits. 0, or a fault that says why the row is none. */
int pp3_row_open(struct pp3_row *r, double scale, struct pp3_row_fault *why);

/* p'(id). */
double pp3_row_at(const struct pp3_row *r, uint32_t id);

/* The least id of the largest entry, or -1 and why the row is none. maxima[blocks] is
 * the caller's. Logits need not have been opened. */
int32_t pp3_row_argmax(const struct pp3_row *r, float *maxima,
                       struct pp3_row_fault *why);

/* mass[b] = what block b holds of (keep p' - q)+, q being 0 off the support (NULL: 0
 * everywhere); the sum over all blocks. */
double pp3_row_residual(const struct pp3_row *r, double keep,
                        const struct pp3_support *s, double *mass);

/* The draw from what pp3_row_residual left in mass[], which added up to `total`: by
 * inverse CDF in ascending id. total is above 0, uniform in [0, 1). */
int32_t pp3_row_draw(const struct pp3_row *r, double keep, const struct pp3_support *s,
                     const double *mass, double total, double uniform);

static inline uint32_t pp3_blocks(uint32_t vocab)
{
    return (vocab + PP3_BLOCK - 1) / PP3_BLOCK;
}

#endif
