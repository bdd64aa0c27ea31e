#include "row.h"

#include <float.h>
#include <math.h>

#include "proposal/scan.h"

#define MASS_TOLERANCE 1e-3 /* of a row of probabilities */

/* Times 0, which a smaller one is in FP32, -inf would be NaN; and a thread may flush
 * denormals to 0. Nor do any two weights differ for a smaller one. */
#define LEAST_SCALE ((double)FLT_MIN)

static uint32_t width(const struct pp3_row *r, uint32_t b)
{
    uint32_t left = r->vocab - b * PP3_BLOCK;
    return left < PP3_BLOCK ? left : PP3_BLOCK;
}

static const float *bias_at(const struct pp3_row *r, uint32_t i)
{
    return r->bias ? r->bias + i : NULL;
}

static float entry(const struct pp3_row *r, uint32_t i)
{
    return r->bias ? r->z[i] + r->bias[i] : r->z[i];
}

static double sum_up(const double *values, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += values[i];
    return sum;
}

/* ---- opening ---------------------------------------------------------------------- */

/* The first entry that is no logit below +inf, or no probability. */
static int poisoned(const struct pp3_row *r, struct pp3_row_fault *why)
{
    for (uint32_t i = 0; i < r->vocab; i++) {
        float x = entry(r, i);
        if (x < INFINITY && (r->target == PP3_TARGET_LOGITS || x >= 0))
            continue;
        *why = (struct pp3_row_fault){PP3_FAULT_TARGET, (int32_t)i, (double)x};
        return PP3_FAULT_TARGET;
    }
    return PP3_FAULT_NONE;
}

static int open_probabilities(struct pp3_row *r, struct pp3_row_fault *why)
{
    const struct pp3_weights *use = pp3_weights_here();
    int negative = 0;

    for (uint32_t b = 0; b < r->blocks; b++) {
        const float *p = r->z + (size_t)b * PP3_BLOCK;
        uint32_t n = width(r, b);
        for (uint32_t i = 0; i < n; i++)
            negative |= p[i] < 0;
        r->sum[b] = use->total(p, n);
    }
    r->total = sum_up(r->sum, r->blocks);
    if ((negative || !(r->total < INFINITY)) && poisoned(r, why))
        return why->fault;
    if (fabs(r->total - 1) <= MASS_TOLERANCE)
        return PP3_FAULT_NONE;
    *why = (struct pp3_row_fault){PP3_FAULT_MASS, -1, r->total};
    return PP3_FAULT_MASS;
}

/* The largest entry of the first block that has a finite one: any entry will do as the
 * peak while no weight is infinite, and the total is at least 1 then. */
static float first_peak(const struct pp3_row *r)
{
    float most = -INFINITY;
    for (uint32_t b = 0; b < r->blocks && most == -INFINITY; b++)
        (void)pp3_scan_here()->maxima(r->z + (size_t)b * PP3_BLOCK,
                                      bias_at(r, b * PP3_BLOCK), width(r, b), PP3_BLOCK,
                                      &most);
    return most;
}

static double sum_logits(struct pp3_row *r, float peak)
{
    r->peak = peak;
    pp3_weights_here()->sums(r->z, r->bias, r->vocab, peak, r->scale, r->sum);
    r->total = sum_up(r->sum, r->blocks);
    return r->total;
}

static int open_logits(struct pp3_row *r, double scale, struct pp3_row_fault *why)
{
    float peak = first_peak(r);

    r->scale = (float)fmin(fmax(scale, LEAST_SCALE), (double)FLT_MAX);
    if (peak > -INFINITY && peak < INFINITY && sum_logits(r, peak) < INFINITY)
        return PP3_FAULT_NONE;
    if (poisoned(r, why))
        return why->fault;
    /* only now: the largest of all, which makes every weight at most 1 */
    for (uint32_t b = 0; b < r->blocks; b++) {
        float most;
        (void)pp3_scan_here()->maxima(r->z + (size_t)b * PP3_BLOCK,
                                      bias_at(r, b * PP3_BLOCK), width(r, b), PP3_BLOCK,
                                      &most);
        peak = most > peak ? most : peak;
    }
    if (peak > -INFINITY) {
        (void)sum_logits(r, peak);
        return PP3_FAULT_NONE;
    }
    *why = (struct pp3_row_fault){PP3_FAULT_EMPTY, -1, -INFINITY};
    return PP3_FAULT_EMPTY;
}

int pp3_row_open(struct pp3_row *r, double scale, struct pp3_row_fault *why)
{
    r->blocks = pp3_blocks(r->vocab);
    if (r->target == PP3_TARGET_PROBS)
        return open_probabilities(r, why);
    return open_logits(r, scale, why);
}

/* ---- a block of it ---------------------------------------------------------------- */

/* The weights of block b; returns what makes p' of one. */
static double weights_of(const struct pp3_row *r, uint32_t b, float *weight)
{
    const struct pp3_weights *use = pp3_weights_here();
    size_t from = (size_t)b * PP3_BLOCK;
    uint32_t n = width(r, b);
    double all;

    if (r->target == PP3_TARGET_PROBS) {
        for (uint32_t i = 0; i < n; i++)
            weight[i] = r->z[from + i];
        return 1;
    }
    use->block(r->z + from, bias_at(r, b * PP3_BLOCK), n, r->peak, r->scale, weight);
    all = use->total(weight, n);
    return all > 0 ? r->sum[b] / all / r->total : 0;
}

double pp3_row_at(const struct pp3_row *r, uint32_t id)
{
    float weight[PP3_BLOCK];
    double unit = weights_of(r, id / PP3_BLOCK, weight);
    return unit * (double)weight[id % PP3_BLOCK];
}

int32_t pp3_row_argmax(const struct pp3_row *r, float *maxima,
                       struct pp3_row_fault *why)
{
    uint32_t best = 0, i;

    if (pp3_scan_here()->maxima(r->z, r->bias, r->vocab, PP3_BLOCK, maxima) &&
        poisoned(r, why))
        return -1;
    for (uint32_t b = 1; b < pp3_blocks(r->vocab); b++)
        best = maxima[b] > maxima[best] ? b : best;
    if (!(maxima[best] < INFINITY) && poisoned(r, why))
        return -1;
    if (maxima[best] == -INFINITY) {
        *why = (struct pp3_row_fault){PP3_FAULT_EMPTY, -1, -INFINITY};
        return -1;
    }
    for (i = best * PP3_BLOCK; entry(r, i) != maxima[best];)
        i++;
    return (int32_t)i;
}

/* ---- the residual and its draw ---------------------------------------------------- */

/* Block b, which holds entries from `at` on of the support: its part of the residual.
 * Nothing is subtracted from a sum, so nothing cancels. */
static double block_residual(const struct pp3_row *r, uint32_t b, double keep,
                             const struct pp3_support *s, uint32_t *at)
{
    float weight[PP3_BLOCK], kept[PP3_VERIFY_SUPPORT];
    double unit = weights_of(r, b, weight), rest = 0;
    uint32_t first = *at, last = first;

    for (; last < s->k && (uint32_t)s->ids[last] / PP3_BLOCK == b; last++) {
        kept[last - first] = weight[(uint32_t)s->ids[last] % PP3_BLOCK];
        weight[(uint32_t)s->ids[last] % PP3_BLOCK] = 0;
    }
    for (uint32_t i = first; i < last; i++) {
        double over = keep * unit * (double)kept[i - first] - s->q[i];
        rest += over > 0 ? over : 0;
    }
    *at = last;
    return rest + keep * unit * pp3_weights_here()->total(weight, width(r, b));
}

double pp3_row_residual(const struct pp3_row *r, double keep,
                        const struct pp3_support *s, double *mass)
{
    double unit = keep * (r->target == PP3_TARGET_PROBS ? 1 : 1 / r->total);
    uint32_t at = 0;

    for (uint32_t b = 0; b < r->blocks; b++)
        mass[b] = s && at < s->k && (uint32_t)s->ids[at] / PP3_BLOCK == b
                      ? block_residual(r, b, keep, s, &at)
                      : unit * r->sum[b];
    return sum_up(mass, r->blocks);
}

/* Where the support reaches block b. */
static uint32_t support_from(const struct pp3_support *s, uint32_t b)
{
    uint32_t at = 0;
    while (s && at < s->k && (uint32_t)s->ids[at] / PP3_BLOCK < b)
        at++;
    return at;
}

static int32_t walk(const struct pp3_row *r, uint32_t b, double keep,
                    const struct pp3_support *s, double left)
{
    float weight[PP3_BLOCK];
    double unit = keep * weights_of(r, b, weight), sum = 0;
    uint32_t at = support_from(s, b), from = b * PP3_BLOCK, last = from;

    for (uint32_t i = 0; i < width(r, b); i++) {
        double p = unit * (double)weight[i];
        if (s && at < s->k && (uint32_t)s->ids[at] == from + i)
            p = p > s->q[at] ? p - s->q[at] : 0, at++;
        if (!(p > 0))
            continue;
        sum += p;
        last = from + i;
        if (sum > left)
            break;
    }
    return (int32_t)last; /* if rounding left none: the last of positive weight */
}

int32_t pp3_row_draw(const struct pp3_row *r, double keep, const struct pp3_support *s,
                     const double *mass, double total, double uniform)
{
    double want = uniform * total, before = 0, at_last = 0;
    uint32_t last = 0;

    for (uint32_t b = 0; b < r->blocks; b++) {
        if (!(mass[b] > 0))
            continue;
        if (before + mass[b] > want)
            return walk(r, b, keep, s, want - before);
        last = b;
        at_last = mass[b];
        before += mass[b];
    }
    return walk(r, last, keep, s, 2 * at_last); /* beyond its end: its last token */
}
