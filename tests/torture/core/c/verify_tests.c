/* Verification of batches: known draws, modes, faults, arguments, threads. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faults.h"
#include "harness.h"
#include "known.h"
#include "rows.h"

/* ---- known draws ------------------------------------------------------------------ */

static void known_open(struct case_ *c, const struct known_draw *k)
{
    size_t entries = (size_t)k->depth * k->k;

    case_open(c, k->vocab, k->depth, k->k);
    c->batch.target = PP3_TARGET_PROBS;
    c->batch.round = k->round;
    c->request.mode = k->mode;
    c->request.position = k->position;
    memcpy(c->request.accept, k->accept, sizeof k->accept);
    memcpy(c->request.residual, k->residual, sizeof k->residual);
    memcpy(c->z, k->target, k->target_bytes);
    memcpy(c->drafts, k->drafts, k->depth * sizeof *k->drafts);
    memcpy(c->ids, k->ids, entries * sizeof *k->ids);
    for (size_t i = 0; i < entries; i++)
        c->q[i] = (float)k->counts[i] * 0x1p-24f;
}

static void known_draws_come_out(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path))
        for (unsigned i = 0; i < n_known_draws; i++) {
            const struct known_draw *k = &known_draws[i];
            struct case_ c;
            known_open(&c, k);
            EQUAL(case_run_keyed(&c), PP3_FAULT_NONE);
            EQUAL(c.out.count, k->n_emitted);
            CHECK(memcmp(c.tokens, k->emitted, k->n_emitted * sizeof *k->emitted) == 0);
            edged_free_all();
            tried(1);
        }
}

/* Nothing behind the stop is read: those rows are no memory at all. */
static void rows_behind_the_stop_are_not_read(void)
{
    for (unsigned i = 0; i < n_known_draws; i++) {
        const struct known_draw *k = &known_draws[i];
        struct case_ c;
        known_open(&c, k);
        size_t bytes = k->n_emitted * k->vocab * sizeof(float);
        c.request.target = (uintptr_t)edged_copy(k->target, bytes);
        if (k->mode != PP3_MODE_SAMPLED) { /* nor is a proposal that is not needed */
            for (uint32_t n = 0; n < k->depth * k->k; n++) {
                c.ids[n] = -1;
                c.q[n] = NAN;
            }
        }
        EQUAL(case_run_keyed(&c), PP3_FAULT_NONE);
        CHECK(memcmp(c.tokens, k->emitted, k->n_emitted * sizeof *k->emitted) == 0);
        edged_free_all();
        tried(1);
    }
}

/* ---- modes ------------------------------------------------------------------------ */

static void greedy_follows_the_argmax(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path))
        for (uint32_t right = 0; right <= 3; right++)
            for (int target = 0; target < 2; target++) {
                struct case_ c;
                case_open(&c, 600, 3, 1);
                c.batch.target = target;
                c.request.mode = PP3_MODE_GREEDY;
                c.request.temperature = 0;
                for (uint32_t i = 0; i <= 3; i++) {
                    c.z[i * 600 + 100 * i + 7] = 1;
                    if (i < 3)
                        c.drafts[i] = (int32_t)(i == right ? 3 : 100 * i + 7);
                }
                EQUAL(case_run(&c), PP3_FAULT_NONE);
                EQUAL(c.out.accepted, right);
                EQUAL(c.tokens[right], 100 * right + 7);
                EQUAL(c.out.last, right == 3 ? PP3_LAST_BONUS : PP3_LAST_CORRECTION);
                c.request.mode = PP3_MODE_TARGET_GREEDY;
                c.batch.drafts = 0;
                EQUAL(case_run(&c), PP3_FAULT_NONE);
                CHECK(c.tokens[0] == 7 && c.out.count == 1 && c.out.accepted == 0);
                EQUAL(c.out.last, PP3_LAST_TARGET);
                edged_free_all();
                tried(2);
            }
}

static void a_target_alone_needs_no_proposal(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct case_ c;
        case_open(&c, 513, 2, 1);
        c.batch.drafts = c.batch.ids = 0;
        c.batch.q = 0;
        c.batch.k = 0;
        c.request.mode = PP3_MODE_TARGET;
        c.request.bias = (uintptr_t)c.bias;
        for (int i = 0; i < 512; i++)
            c.bias[i] = -INFINITY; /* all but the last are masked */
        EQUAL(case_run(&c), PP3_FAULT_NONE);
        CHECK(c.tokens[0] == 512 && c.out.count == 1 && c.out.accepted == 0);
        EQUAL(c.out.last, PP3_LAST_TARGET);
        c.request.temperature = 1e300; /* even then */
        EQUAL(case_run_keyed(&c), PP3_FAULT_NONE);
        EQUAL(c.tokens[0], 512);
        edged_free_all();
    }
}

static void rows_may_stand_apart(void)
{
    struct case_ c;

    case_open(&c, 5, 1, 2);
    float *z = edged(12 * sizeof *z); /* backwards, and with a gap */
    for (int i = 0; i < 12; i++)
        z[i] = i == 10 || i == 1 ? 0 : -INFINITY;
    c.request.target = (uintptr_t)(z + 7);
    c.request.target_stride = -7;
    c.ids[0] = 2;
    c.ids[1] = 3;
    c.drafts[0] = 3;
    c.q[0] = c.q[1] = 0.5f;
    for (c.batch.rule = 0; c.batch.rule < 2; c.batch.rule++) {
        EQUAL(case_run(&c), PP3_FAULT_NONE);
        CHECK(c.out.count == 2 && c.tokens[0] == 3 && c.tokens[1] == 1);
    }
    edged_free_all();
}

/* p and q alike but for rounding: a rejection with nothing left to draw from. */
static void a_residual_without_mass_is_the_target(void)
{
    struct case_ c;

    case_open(&c, 2, 1, 2);
    c.batch.target = PP3_TARGET_PROBS;
    c.q[0] = c.q[1] = c.z[1] = c.z[2] = c.z[3] = 0.5f;
    c.z[0] = 0.4999f;
    c.accept[0] = 1 - 0x1p-29;
    for (c.batch.rule = 0; c.batch.rule < 2; c.batch.rule++) {
        c.residual[0] = 0.25;
        EQUAL(case_run(&c), PP3_FAULT_NONE);
        CHECK(c.out.no_mass == 1 && c.out.count == 1 && c.tokens[0] == 0);
        c.residual[0] = 0.75;
        EQUAL(case_run(&c), PP3_FAULT_NONE);
        CHECK(c.out.no_mass == 1 && c.tokens[0] == 1);
        EQUAL(c.out.last, PP3_LAST_CORRECTION);
    }
    edged_free_all();
}

/* Where the block cannot end behind a draft, and where it must: 0 / 0. */
static void a_block_that_is_all_kept_may_end_anywhere(void)
{
    struct case_ c;

    case_open(&c, 4, 2, 1);
    c.batch.target = PP3_TARGET_PROBS;
    c.batch.rule = PP3_RULE_BLOCK;
    c.accept[0] = c.accept[1] = 1 - 0x1p-29;
    c.z[0] = c.z[4] = c.z[8] = 1; /* p and q are alike, all on one token */
    EQUAL(case_run(&c), PP3_FAULT_NONE);
    CHECK(c.out.count == 3 && c.out.last == PP3_LAST_BONUS);
    c.z[4] = 0.9995f; /* nearly: nothing is left at 1, and its last draft falls */
    EQUAL(case_run(&c), PP3_FAULT_NONE);
    CHECK(c.out.count == 2 && c.out.no_mass == 1);
    c.z[0] = 0;
    c.z[3] = 1; /* the first draft is impossible */
    EQUAL(case_run(&c), PP3_FAULT_NONE);
    CHECK(c.out.count == 1 && c.tokens[0] == 3);
    edged_free_all();
}

/* ---- faults ----------------------------------------------------------------------- */

static void check_fault(struct case_ *c, int fault, int row)
{
    for (c->batch.rule = 0; c->batch.rule < 2; c->batch.rule++) {
        EQUAL(case_run(c), fault);
        EQUAL(c->out.row, row);
        EQUAL(c->out.accepted, 0);
        EQUAL(c->out.last, PP3_LAST_NONE);
    }
    tried(1);
}

static void a_support_is_checked_before_it_decides(void)
{
    static const int32_t ids[][2] = {{5, 513}, {5, 1024}, {5, INT32_MAX}, {5, 5},
                                     {6, 5},   {-1, 5},   {INT32_MIN, 5}, {5, -1}};
    static const float q[][2] = {{-0.5f, 1.5f}, {NAN, 1}, {INFINITY, 0}, {1, 0x1p30f}};
    static const float counts[][2] = {{0.5f, 0.25f}, {1, 1}, {0.1f, 0.9f}, {0, 0},
                                      {0x1p-25f, 1}};

    for (uint32_t row = 0; row < 2; row++) {
        struct case_ c;
        case_open(&c, 513, 2, 2); /* logits are 0, and so are uniforms */
        int32_t *id = c.ids + 2 * row;
        float *share = c.q + 2 * row;
        for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
            memcpy(id, ids[i], sizeof *ids);
            share[0] = share[1] = 0.5f;
            c.drafts[row] = id[1];
            check_fault(&c, PP3_FAULT_IDS, (int)row);
        }
        id[0] = 0;
        id[1] = c.drafts[row] = 512;
        for (size_t i = 0; i < sizeof q / sizeof *q; i++) {
            memcpy(share, q[i], sizeof *q);
            check_fault(&c, PP3_FAULT_Q, (int)row);
        }
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            memcpy(share, counts[i], sizeof *counts);
            check_fault(&c, PP3_FAULT_COUNTS, (int)row);
        }
        share[0] = 1;
        share[1] = 0;
        check_fault(&c, PP3_FAULT_DRAFT, (int)row); /* without mass */
        EQUAL(c.out.id, 512);
        c.drafts[row] = -1;
        check_fault(&c, PP3_FAULT_DRAFT, (int)row); /* not there */
        edged_free_all();
    }
}

static void a_row_that_is_none_ends_its_request(void)
{
    static const int modes[] = {PP3_MODE_SAMPLED, PP3_MODE_GREEDY};

    for (int path = next_path(-1); path >= 0; path = next_path(path))
        for (uint32_t row = 0; row < 3; row++)
            for (int m = 0; m < 4; m++) {
                struct case_ c;
                case_open(&c, 33, 2, 1); /* draft 0 stands: it is the argmax */
                c.batch.target = m / 2;
                c.request.mode = modes[m % 2];
                for (uint32_t i = 0; i < 3; i++)
                    c.z[33 * i] = 1;
                c.z[33 * row + 32] = NAN;
                check_fault(&c, PP3_FAULT_TARGET, (int)row);
                EQUAL(c.out.id, 32);
                CHECK(isnan(c.out.value));
                for (uint32_t i = 0; i < 33; i++)
                    c.z[33 * row + i] = m / 2 ? 0 : -INFINITY;
                check_fault(&c, m / 2 ? PP3_FAULT_MASS : PP3_FAULT_EMPTY, (int)row);
                edged_free_all();
            }
}

/* ---- arguments -------------------------------------------------------------------- */

static int refused(const struct case_ *c, uint32_t threads)
{
    struct case_ copy = *c;

    copy.tokens[0] = 77;
    int said = pp3_verify(&copy.batch, 1, &copy.request, copy.tokens, &copy.out,
                          copy.scratch, threads);
    CHECK(said == 0 || copy.tokens[0] == 77);
    if (threads == 1)
        EQUAL(pp3_verify_one(&copy.batch, &copy.request, copy.accept, copy.residual,
                             copy.tokens, &copy.out, copy.scratch), said);
    return said == -EINVAL;
}

static void arguments_out_of_range_are_refused(void)
{
    struct case_ c;
    int n = 0;
#define REFUSED(field, value)                                                          \
    do {                                                                               \
        struct case_ kept = c;                                                         \
        c.field = value;                                                               \
        if (!refused(&c, 1))                                                           \
            check_failed(__FILE__, __LINE__, #field " = " #value);                     \
        c = kept;                                                                      \
        n++;                                                                           \
    } while (0)

    case_open(&c, 40, 2, 2);
    CHECK(!refused(&c, 1));
    CHECK(refused(&c, 0));
    CHECK(refused(&c, PP3_VERIFY_THREADS + 1));
    REFUSED(batch.vocab, 0);
    REFUSED(batch.vocab, 0x80000000u);
    REFUSED(batch.depth, 0);
    REFUSED(batch.depth, PP3_VERIFY_DEPTH + 1);
    REFUSED(batch.target, -1);
    REFUSED(batch.target, 2);
    REFUSED(batch.rule, -1);
    REFUSED(batch.rule, 2);
    REFUSED(batch.drafts, 0);
    REFUSED(batch.ids, 0);
    REFUSED(batch.q, 0);
    REFUSED(batch.k, 0);
    REFUSED(batch.k, PP3_VERIFY_SUPPORT + 1);
    REFUSED(request.mode, -1);
    REFUSED(request.mode, PP3_MODE_TARGET_GREEDY + 1);
    REFUSED(request.target, 0);
    REFUSED(request.temperature, 0);
    REFUSED(request.temperature, -1);
    REFUSED(request.temperature, NAN);
    c.request.mode = PP3_MODE_TARGET;
    REFUSED(request.temperature, 0);
    c.request.mode = PP3_MODE_GREEDY;
    REFUSED(batch.drafts, 0);
    c.request.mode = PP3_MODE_SAMPLED;
    c.batch.target = PP3_TARGET_PROBS;
    REFUSED(request.bias, 8);
    c.request.temperature = 0; /* probabilities have had theirs */
    CHECK(!refused(&c, 1));
    EQUAL(n, 22);
    tried((uint64_t)n);
    edged_free_all();
}

static void the_deepest_and_widest_request_is_like_any(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path))
        for (int rule = 0; rule < 2; rule++) {
            struct case_ c;
            case_open(&c, PP3_VERIFY_SUPPORT, PP3_VERIFY_DEPTH, PP3_VERIFY_SUPPORT);
            c.batch.rule = rule;
            for (uint32_t i = 0; i < PP3_VERIFY_DEPTH * PP3_VERIFY_SUPPORT; i++)
                c.q[i] = 0x1p-8f;
            EQUAL(case_run(&c), PP3_FAULT_NONE); /* p = q */
            EQUAL(c.out.count, PP3_VERIFY_DEPTH + 1);
            EQUAL(case_run_keyed(&c), PP3_FAULT_NONE);
            edged_free_all();
        }
}

/* ---- threads ---------------------------------------------------------------------- */

enum { REQUESTS = 96, SLOTS = 6 };

/* Requests of all modes, some of them faulty, over the slots of one page. */
static void many_open(struct case_ *c, struct pp3_verify_request *requests)
{
    struct dice d = dice_of(28);
    struct case_ one;

    case_open(c, 600, 3, 8);
    c->ids = edged(SLOTS * 3 * 8 * sizeof *c->ids);
    c->q = edged(SLOTS * 3 * 8 * sizeof *c->q);
    c->drafts = edged(SLOTS * 3 * sizeof *c->drafts);
    c->z = edged(SLOTS * 4 * 600 * sizeof *c->z);
    case_open(&one, 600, 3, 8);
    for (uint32_t s = 0; s < SLOTS; s++) {
        case_draw(&one, &d);
        memcpy(c->ids + s * 24, one.ids, 24 * sizeof *c->ids);
        memcpy(c->q + s * 24, one.q, 24 * sizeof *c->q);
        memcpy(c->drafts + s * 3, one.drafts, 3 * sizeof *c->drafts);
        memcpy(c->z + s * 2400, one.z, 2400 * sizeof *c->z);
    }
    c->z[4 * 2400 + 5] = NAN;
    c->batch.ids = c->ids;
    c->batch.q = c->q;
    c->batch.drafts = c->drafts;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        requests[i] = c->request;
        requests[i].slot = i % SLOTS;
        requests[i].target = (uintptr_t)(c->z + i % SLOTS * 2400);
        requests[i].position = i;
        requests[i].mode = (int32_t)(i / SLOTS % 4);
    }
}

struct answer { int32_t tokens[REQUESTS * 4]; struct pp3_verified out[REQUESTS]; };

static void answer_with(const struct case_ *c, const struct pp3_verify_request *requests,
                        uint32_t n, uint32_t threads, struct answer *to)
{
    void *scratch = edged(threads * pp3_verify_scratch(600, 3));

    memset(to, 0, sizeof *to);
    EQUAL(pp3_verify(&c->batch, n, requests, to->tokens, to->out, scratch, threads), 0);
}

static void any_number_of_threads_gives_the_same(void)
{
    for (uint32_t again = 0; again < 2 * effort; again++)
        for (uint32_t n = 0; n <= REQUESTS; n += n < 4 ? 1 : REQUESTS - 4) {
            struct case_ c;
            struct pp3_verify_request requests[REQUESTS];
            struct answer one, many;
            many_open(&c, requests);
            c.batch.rule = (int32_t)(again % 2);
            answer_with(&c, requests, n, 1, &one);
            for (uint32_t threads = 2; threads <= 4; threads++) {
                answer_with(&c, requests, n, threads, &many);
                CHECK(memcmp(&one, &many, sizeof one) == 0);
            }
            edged_free_all();
            tried(n * 4);
        }
}

static void threads_that_do_not_start_are_done_without(void)
{
    struct case_ c;
    struct pp3_verify_request requests[REQUESTS];
    struct answer one, many;

    many_open(&c, requests);
    answer_with(&c, requests, REQUESTS, 1, &one);
    for (int started = 0; started < 3; started++) {
        fail(PTHREAD_CREATE, started, 9, EAGAIN);
        answer_with(&c, requests, REQUESTS, 4, &many);
        fail_no_more();
        CHECK(memcmp(&one, &many, sizeof one) == 0);
        tried(REQUESTS);
    }
    edged_free_all();
}

const struct test verify_tests[] = {
    {"known draws of verification come out", known_draws_come_out},
    {"rows behind the stop are not read", rows_behind_the_stop_are_not_read},
    {"greedy follows the argmax", greedy_follows_the_argmax},
    {"a target alone needs no proposal", a_target_alone_needs_no_proposal},
    {"rows may stand apart", rows_may_stand_apart},
    {"a residual without mass is the target", a_residual_without_mass_is_the_target},
    {"a block that is all kept may end anywhere",
     a_block_that_is_all_kept_may_end_anywhere},
    {"a support is checked before it decides", a_support_is_checked_before_it_decides},
    {"a row that is none ends its request", a_row_that_is_none_ends_its_request},
    {"arguments out of range are refused", arguments_out_of_range_are_refused},
    {"the deepest and widest request is like any",
     the_deepest_and_widest_request_is_like_any},
    {"any number of threads gives the same", any_number_of_threads_gives_the_same},
    {"threads that do not start are done without",
     threads_that_do_not_start_are_done_without},
    {0, 0},
};
