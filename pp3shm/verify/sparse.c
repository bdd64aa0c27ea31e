#include "sparse.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>

#include "proposal/draft.h"
#include "row.h"

#define MASS 16777216 /* 2^24 */
#define LOG2_E 1.4426950408889634

/* One request being verified. */
struct job {
    const struct pp3_verify_batch *batch;
    const struct pp3_verify_request *request;
    const double *accept, *residual;
    int32_t *tokens;
    struct pp3_verified *out;
    double *sums, *mass; /* [depth + 1][blocks], [blocks] */
    float *maxima;       /* [blocks] */
};

static size_t rounded(size_t bytes) { return (bytes + 63) / 64 * 64; }

size_t pp3_verify_scratch(uint32_t vocab, uint32_t depth)
{
    size_t blocks = pp3_blocks(vocab);
    return rounded(blocks * sizeof(double)) * (depth + 2u) +
           rounded(blocks * sizeof(float));
}

static double *sums_of(const struct job *j, uint32_t i)
{
    size_t stride = rounded(pp3_blocks(j->batch->vocab) * sizeof(double));
    return j->sums + i * (stride / sizeof(double));
}

/* ---- what a request needs --------------------------------------------------------- */

static int failed(struct job *j, int32_t fault, uint32_t row, int32_t id, double value)
{
    j->out->fault = fault;
    j->out->row = (int32_t)row;
    j->out->id = id;
    j->out->value = value;
    return -1;
}

static struct pp3_row row_of(const struct job *j, uint32_t i)
{
    const struct pp3_verify_request *q = j->request;
    const float *z = (const float *)(uintptr_t)q->target;
    const float *bias = (const float *)(uintptr_t)q->bias;

    return (struct pp3_row){.z = z + (int64_t)i * q->target_stride,
                            .bias = bias ? bias + (int64_t)i * q->bias_stride : NULL,
                            .vocab = j->batch->vocab,
                            .target = j->batch->target,
                            .sum = sums_of(j, i)};
}

static int open_row(struct job *j, uint32_t i, struct pp3_row *r)
{
    struct pp3_row_fault why;

    *r = row_of(j, i);
    if (pp3_row_open(r, LOG2_E / j->request->temperature, &why) == PP3_FAULT_NONE)
        return 0;
    return failed(j, why.fault, i, why.id, why.value);
}

static uint32_t draft_at(const struct job *j, uint32_t i)
{
    const struct pp3_verify_batch *b = j->batch;
    return (uint32_t)b->drafts[(size_t)j->request->slot * b->depth + i];
}

/* Position i's support, each word of it read once, checked, and where in it the draft
 * stands. It decides what is emitted, so it is checked here again. */
static int take_support(struct job *j, uint32_t i, struct pp3_support *s,
                        uint32_t *draft, double *share)
{
    const struct pp3_verify_batch *b = j->batch;
    size_t from = ((size_t)j->request->slot * b->depth + i) * b->k;
    int64_t below = -1, counts = 0;
    int in_range = 1, whole = 1, found = -1;

    *draft = draft_at(j, i);
    s->k = b->k;
    for (uint32_t n = 0; n < s->k; n++) {
        s->ids[n] = b->ids[from + n];
        if (s->ids[n] <= below || (uint32_t)s->ids[n] >= b->vocab)
            return failed(j, PP3_FAULT_IDS, i, s->ids[n], 0);
        below = s->ids[n];
        found = (uint32_t)s->ids[n] == *draft ? (int)n : found;
    }
    for (uint32_t n = 0; n < s->k; n++) {
        s->q[n] = (double)b->q[from + n];
        in_range &= s->q[n] >= 0 && s->q[n] <= 1;
    }
    if (!in_range)
        return failed(j, PP3_FAULT_Q, i, -1, 0);
    for (uint32_t n = 0; n < s->k; n++) {
        double count = s->q[n] * MASS;
        whole &= count == (double)(int64_t)count;
        counts += (int64_t)count;
    }
    if (!whole || counts != MASS)
        return failed(j, PP3_FAULT_COUNTS, i, -1, (double)counts / MASS);
    if (found < 0 || !(s->q[found] > 0))
        return failed(j, PP3_FAULT_DRAFT, i, (int32_t)*draft, 0);
    *share = s->q[found];
    return 0;
}

/* ---- emitting --------------------------------------------------------------------- */

static void emit(struct job *j, int32_t token) { j->tokens[j->out->count++] = token; }

static int end(struct job *j, int32_t token, enum pp3_verify_last last)
{
    emit(j, token);
    j->out->accepted = j->out->count - 1;
    j->out->last = (int32_t)last;
    return 0;
}

/* A draw of p' itself. */
static int32_t draw_target(struct job *j, const struct pp3_row *r, double uniform)
{
    double total = pp3_row_residual(r, 1, NULL, j->mass);
    return pp3_row_draw(r, 1, NULL, j->mass, total, uniform);
}

/* The correction at row r: a draw of (keep p' - q)+. */
static int correct(struct job *j, const struct pp3_row *r, double keep,
                   const struct pp3_support *s, double uniform)
{
    double total = pp3_row_residual(r, keep, s, j->mass);

    if (total > 0)
        return end(j, pp3_row_draw(r, keep, s, j->mass, total, uniform),
                   PP3_LAST_CORRECTION);
    j->out->no_mass = 1; /* rounding of p': p' and q are alike */
    return end(j, draw_target(j, r, uniform), PP3_LAST_CORRECTION);
}

/* ---- the rules -------------------------------------------------------------------- */

static int bonus(struct job *j, uint32_t i, enum pp3_verify_last last)
{
    struct pp3_row r;

    if (open_row(j, i, &r))
        return -1;
    return end(j, draw_target(j, &r, j->residual[i]), last);
}

static int standard(struct job *j)
{
    for (uint32_t i = 0; i < j->batch->depth; i++) {
        struct pp3_support s;
        struct pp3_row r;
        uint32_t draft;
        double q;

        if (open_row(j, i, &r) || take_support(j, i, &s, &draft, &q))
            return -1;
        /* 29 and 24 bits: the product is exact */
        if (!(j->accept[i] * q < pp3_row_at(&r, draft)))
            return correct(j, &r, 1, &s, j->residual[i]);
        emit(j, (int32_t)draft);
    }
    return bonus(j, j->batch->depth, PP3_LAST_BONUS);
}

/* Block verification (arXiv 2403.10444): keep[i] is min(1, keep p/q) along the drafts,
 * h the chance that the block ends at i or later given that it did not end later. */
static int block(struct job *j)
{
    uint32_t depth = j->batch->depth, tau = 0, draft;
    double keep[PP3_VERIFY_DEPTH + 1], q;
    uint32_t drafts[PP3_VERIFY_DEPTH];
    struct pp3_support s;
    struct pp3_row r;

    keep[0] = 1;
    for (uint32_t i = 0; i < depth; i++) {
        if (open_row(j, i, &r) || take_support(j, i, &s, &draft, &q))
            return -1;
        if (i > 0) {
            double rest = pp3_row_residual(&r, keep[i], &s, j->mass);
            double other = rest + 1 - keep[i];
            if (other > 0 ? j->accept[i - 1] * other < rest : keep[i] > 0)
                tau = i;
        }
        keep[i + 1] = fmin(1, keep[i] * pp3_row_at(&r, draft) / q);
        drafts[i] = draft;
    }
    if (j->accept[depth - 1] < keep[depth])
        tau = depth;
    for (uint32_t i = 0; i < tau; i++)
        emit(j, (int32_t)drafts[i]);
    if (tau == depth)
        return bonus(j, depth, PP3_LAST_BONUS);
    if (open_row(j, tau, &r) || take_support(j, tau, &s, &draft, &q))
        return -1;
    return correct(j, &r, keep[tau], &s, j->residual[tau]);
}

static int greedy(struct job *j, uint32_t depth)
{
    for (uint32_t i = 0; i <= depth; i++) {
        struct pp3_row r = row_of(j, i);
        struct pp3_row_fault why;
        int32_t best;

        if (r.target == PP3_TARGET_PROBS && open_row(j, i, &r))
            return -1;
        best = pp3_row_argmax(&r, j->maxima, &why);
        if (best < 0)
            return failed(j, why.fault, i, why.id, why.value);
        if (i == depth)
            return end(j, best, depth == 0 ? PP3_LAST_TARGET : PP3_LAST_BONUS);
        if ((uint32_t)best != draft_at(j, i))
            return end(j, best, PP3_LAST_CORRECTION);
        emit(j, best);
    }
    return 0;
}

static void verify_one(struct job *j)
{
    uint32_t depth = j->batch->depth;
    int wrong;

    *j->out = (struct pp3_verified){.row = -1, .id = -1};
    switch (j->request->mode) {
    case PP3_MODE_GREEDY:
        wrong = greedy(j, depth);
        break;
    case PP3_MODE_TARGET_GREEDY:
        wrong = greedy(j, 0);
        break;
    case PP3_MODE_SAMPLED:
        wrong = j->batch->rule == PP3_RULE_BLOCK ? block(j) : standard(j);
        break;
    default:
        wrong = bonus(j, 0, PP3_LAST_TARGET);
    }
    if (wrong)
        j->out->count = j->out->accepted = j->out->last = j->out->no_mass = 0;
    for (uint32_t i = (uint32_t)j->out->count; i <= depth; i++)
        j->tokens[i] = -1;
}

/* ---- a batch ---------------------------------------------------------------------- */

struct work {
    const struct pp3_verify_batch *batch;
    const struct pp3_verify_request *requests;
    uint32_t n;
    int32_t *tokens;
    struct pp3_verified *out;
    _Atomic uint32_t next; /* relaxed: each request is one thread's alone */
};

struct hand { pthread_t thread; struct work *work; void *scratch; };

static void place(struct job *j, void *scratch)
{
    size_t blocks = pp3_blocks(j->batch->vocab);
    size_t stride = rounded(blocks * sizeof(double)) / sizeof(double);

    j->sums = scratch;
    j->mass = j->sums + stride * (j->batch->depth + 1u);
    j->maxima = (float *)(void *)(j->mass + stride);
}

static void uniforms(const struct pp3_verify_request *q, uint64_t round, uint32_t depth,
                     double *accept, double *residual)
{
    for (uint32_t i = 0; i <= depth; i++) {
        uint64_t at = q->position + i;
        const uint32_t counter[4] = {(uint32_t)round, (uint32_t)(round >> 32),
                                     (uint32_t)at, (uint32_t)(at >> 32)};
        uint32_t words[4];
        pp3_philox(counter, q->residual, words);
        residual[i] = (double)(((uint64_t)words[0] << 32 | words[1]) >> 11) * 0x1p-53;
        if (i == depth)
            break;
        pp3_philox(counter, q->accept, words);
        accept[i] = (double)(words[0] >> 3) * 0x1p-29;
    }
}

static void *work(void *argument)
{
    struct hand *hand = argument;
    struct work *w = hand->work;
    double accept[PP3_VERIFY_DEPTH], residual[PP3_VERIFY_DEPTH + 1];
    struct job j = {.batch = w->batch, .accept = accept, .residual = residual};
    uint32_t i;

    place(&j, hand->scratch);
    while ((i = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed)) < w->n) {
        j.request = &w->requests[i];
        j.tokens = w->tokens + (size_t)i * (w->batch->depth + 1);
        j.out = &w->out[i];
        uniforms(j.request, w->batch->round, w->batch->depth, accept, residual);
        verify_one(&j);
    }
    return NULL;
}

static int usable(const struct pp3_verify_batch *b, uint32_t n,
                  const struct pp3_verify_request *requests)
{
    if (b->vocab == 0 || b->vocab > INT32_MAX || b->depth == 0 ||
        b->depth > PP3_VERIFY_DEPTH || b->target < 0 || b->target > PP3_TARGET_PROBS ||
        b->rule < 0 || b->rule > PP3_RULE_BLOCK)
        return 0;
    for (uint32_t i = 0; i < n; i++) {
        const struct pp3_verify_request *q = &requests[i];
        int sampled = q->mode == PP3_MODE_SAMPLED, greedy = q->mode == PP3_MODE_GREEDY;

        if (q->mode < 0 || q->mode > PP3_MODE_TARGET_GREEDY || !q->target ||
            (q->bias && b->target != PP3_TARGET_LOGITS) ||
            ((sampled || greedy) && !b->drafts))
            return 0;
        if (sampled && (!b->ids || !b->q || b->k == 0 || b->k > PP3_VERIFY_SUPPORT))
            return 0;
        if (b->target == PP3_TARGET_LOGITS && !greedy &&
            q->mode != PP3_MODE_TARGET_GREEDY && !(q->temperature > 0))
            return 0;
    }
    return 1;
}

int pp3_verify(const struct pp3_verify_batch *batch, uint32_t n,
               const struct pp3_verify_request *requests, int32_t *tokens,
               struct pp3_verified *out, void *scratch, uint32_t threads)
{
    struct work shared = {.batch = batch, .requests = requests, .n = n,
                          .tokens = tokens, .out = out};
    struct hand hands[PP3_VERIFY_THREADS];
    uint32_t started = 1;

    if (!usable(batch, n, requests) || threads == 0 || threads > PP3_VERIFY_THREADS)
        return -EINVAL;
    for (uint32_t i = 0; i < threads; i++) {
        hands[i].work = &shared;
        hands[i].scratch =
            (char *)scratch + i * pp3_verify_scratch(batch->vocab, batch->depth);
    }
    while (started < threads && started < n &&
           pthread_create(&hands[started].thread, NULL, work, &hands[started]) == 0)
        started++;
    (void)work(&hands[0]);
    for (uint32_t i = 1; i < started; i++)
        (void)pthread_join(hands[i].thread, NULL);
    return 0;
}

int pp3_verify_one(const struct pp3_verify_batch *batch,
                   const struct pp3_verify_request *request, const double *accept,
                   const double *residual, int32_t *tokens, struct pp3_verified *out,
                   void *scratch)
{
    struct job j = {.batch = batch, .request = request, .accept = accept,
                    .residual = residual, .tokens = tokens, .out = out};

    if (!usable(batch, 1, request))
        return -EINVAL;
    place(&j, scratch);
    verify_one(&j);
    return 0;
}
