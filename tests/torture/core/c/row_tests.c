/* Target rows: what is none, the argmax, residuals and their draws. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "rows.h"
#include "verify/row.h"

static const uint32_t sizes[] = {1, 2, 31, 32, 33, 511, 512, 513, 1025, 8193};
enum { SIZES = sizeof sizes / sizeof *sizes };

static struct pp3_row row_open(const float *z, const float *bias, uint32_t vocab,
                               int32_t target)
{
    return (struct pp3_row){.z = z, .bias = bias, .vocab = vocab, .target = target,
                            .sum = edged(pp3_blocks(vocab) * sizeof(double))};
}

static float *row_of(uint32_t vocab, float value)
{
    float *z = edged(vocab * sizeof *z);

    for (uint32_t i = 0; i < vocab; i++)
        z[i] = value;
    return z;
}

/* Both ways to use a row of logits name the same first fault. */
static void check_bad(const float *z, const float *bias, uint32_t vocab, int32_t fault,
                      int32_t id)
{
    struct pp3_row r = row_open(z, bias, vocab, PP3_TARGET_LOGITS);
    struct pp3_row_fault why = {0, 0, 0};
    float *maxima = edged(pp3_blocks(vocab) * sizeof *maxima);

    EQUAL(pp3_row_open(&r, 1.4, &why), fault);
    EQUAL(why.fault, fault);
    EQUAL(why.id, id);
    memset(&why, 0, sizeof why);
    EQUAL(pp3_row_argmax(&r, maxima, &why), -1);
    EQUAL(why.fault, fault);
    EQUAL(why.id, id);
    CHECK(fault == PP3_FAULT_EMPTY || !(why.value < (double)INFINITY));
}

static void logits_that_are_none_are_named(void)
{
    static const float odd[] = {NAN, -NAN, INFINITY};

    for (int path = next_path(-1); path >= 0; path = next_path(path))
        for (int i = 0; i < SIZES; i++)
            for (int j = 0; j < 3; j++) {
                uint32_t vocab = sizes[i], first = j == 1 ? 0 : vocab / 2;
                float *z = row_of(vocab, j == 2 ? -INFINITY : 0);
                check_bad(row_of(vocab, -INFINITY), 0, vocab, PP3_FAULT_EMPTY, -1);
                z[vocab - 1] = odd[(j + 1) % 3];
                z[first] = odd[j];
                check_bad(z, 0, vocab, PP3_FAULT_TARGET, (int32_t)first);
                z[first] = 0;
                z[vocab - 1] = 0;
                float *bias = row_of(vocab, 0);
                bias[vocab - 1] = odd[j];
                check_bad(z, bias, vocab, PP3_FAULT_TARGET, (int32_t)vocab - 1);
                edged_free_all();
                tried(3);
            }
}

static void check_unfit(float *p, uint32_t vocab, uint32_t at, float value, int32_t fault,
                        int32_t id)
{
    struct pp3_row r = row_open(p, 0, vocab, PP3_TARGET_PROBS);
    struct pp3_row_fault why;
    float kept = p[at];

    p[at] = value;
    EQUAL(pp3_row_open(&r, 0, &why), fault);
    EQUAL(why.id, id);
    p[at] = kept;
    tried(1);
}

static void probabilities_that_are_none_are_named(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path))
        for (int i = 0; i < SIZES; i++) {
            uint32_t vocab = sizes[i], end = vocab - 1;
            int32_t last = (int32_t)end;
            float *p = row_of(vocab, 1 / (float)vocab);
            struct pp3_row r = row_open(p, 0, vocab, PP3_TARGET_PROBS);
            struct pp3_row_fault why;
            EQUAL(pp3_row_open(&r, 0, &why), PP3_FAULT_NONE);
            check_unfit(p, vocab, end, NAN, PP3_FAULT_TARGET, last);
            check_unfit(p, vocab, end, INFINITY, PP3_FAULT_TARGET, last);
            check_unfit(p, vocab, end, -0x1p-30f, PP3_FAULT_TARGET, last);
            check_unfit(p, vocab, 0, -INFINITY, PP3_FAULT_TARGET, 0);
            check_unfit(p, vocab, end, 1.01f + p[0], PP3_FAULT_MASS, -1);
            edged_free_all();
        }
}

static void the_argmax_is_the_lowest_of_the_largest(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct dice d = dice_of(23);
        for (int i = 0; i < SIZES; i++) {
            uint32_t vocab = sizes[i], best = 0;
            float *z = row_of(vocab, 0), *bias = roll(&d, 2) ? row_of(vocab, -2) : 0;
            float *maxima = edged(pp3_blocks(vocab) * sizeof *maxima);
            struct pp3_row r = row_open(z, bias, vocab, PP3_TARGET_LOGITS);
            struct pp3_row_fault why;
            for (uint32_t j = 0; j < vocab; j++)
                z[j] = roll(&d, 9) ? (float)roll(&d, 30) : -INFINITY;
            z[0] = 0;
            for (uint32_t j = 1; j < vocab; j++)
                best = z[j] > z[best] ? j : best;
            EQUAL(pp3_row_argmax(&r, maxima, &why), best);
            edged_free_all();
            tried(1);
        }
    }
}

/* A row may begin far below or above its largest entry, or with nothing. */
static void any_range_of_logits_adds_up_to_one(void)
{
    static const float starts[] = {-INFINITY, -1e5f, 0, 120, 1e30f};
    static const double scales[] = {1e-300, 1e-40, 1, 1e300};

    for (int path = next_path(-1); path >= 0; path = next_path(path))
        for (int i = 0; i < SIZES; i++)
            for (int s = 0; s < 5 * 4; s++) {
                uint32_t vocab = sizes[i], half = vocab / 2;
                float *z = row_of(vocab, 1);
                struct pp3_row r = row_open(z, 0, vocab, PP3_TARGET_LOGITS);
                struct pp3_row_fault why;
                double all = 0, *mass = edged(pp3_blocks(vocab) * sizeof *mass);
                for (uint32_t j = 0; j < half; j++)
                    z[j] = starts[s % 5];
                EQUAL(pp3_row_open(&r, scales[s / 5], &why), PP3_FAULT_NONE);
                CHECK(fabs(pp3_row_residual(&r, 1, 0, mass) - 1) < 1e-9);
                for (uint32_t j = 0; j < vocab; j += vocab > 33 ? vocab / 7 : 1) {
                    double p = pp3_row_at(&r, j);
                    CHECK(p >= 0 && p <= 1.0001);
                    CHECK(z[j] > -INFINITY || p == 0); /* a mask holds at any T */
                    all += p;
                }
                CHECK(vocab > 33 || fabs(all - 1) < 1e-9);
                edged_free_all();
                tried(1);
            }
}

/* By the dice: a row, a support; p in all, and what is left of it. */
struct rest {
    struct pp3_row r;
    struct pp3_support s;
    double keep, *p, *mass, total;
};

static void rest_open(struct rest *x, struct dice *d, uint32_t vocab)
{
    float *z = row_of(vocab, -INFINITY);
    double *p = edged(vocab * sizeof *p);
    struct pp3_row_fault why;

    for (uint32_t i = 0; i < vocab; i++)
        if (i == 0 || roll(d, 4))
            z[i] = (float)(int32_t)roll(d, 4096) / 256 - 8;
    x->r = row_open(z, 0, vocab, PP3_TARGET_LOGITS);
    EQUAL(pp3_row_open(&x->r, 1, &why), PP3_FAULT_NONE);
    x->keep = roll(d, 2) ? 1 : (double)roll(d, 1000) / 1000;
    x->s.k = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        p[i] = x->keep * pp3_row_at(&x->r, i);
        if (x->s.k < PP3_VERIFY_SUPPORT && !roll(d, 3)) {
            x->s.ids[x->s.k] = (int32_t)i;
            x->s.q[x->s.k++] = p[i] * 0.75 * (double)roll(d, 4);
            p[i] -= x->s.q[x->s.k - 1];
            p[i] = p[i] > 0 ? p[i] : 0;
        }
    }
    x->p = p;
    x->mass = edged(x->r.blocks * sizeof *x->mass);
    x->total = pp3_row_residual(&x->r, x->keep, &x->s, x->mass);
}

static void a_residual_is_what_is_left_entry_by_entry(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct dice d = dice_of(24);
        for (int i = 0; i < SIZES - 1; i++) {
            struct rest x;
            double all = 0;
            rest_open(&x, &d, sizes[i]);
            for (uint32_t b = 0; b < x.r.blocks; b++) {
                double mass = 0;
                for (uint32_t j = b * PP3_BLOCK; j < sizes[i] && j / PP3_BLOCK == b; j++)
                    mass += x.p[j];
                CHECK(fabs(mass - x.mass[b]) < 1e-12);
                all += x.mass[b];
            }
            CHECK(fabs(all - x.total) < 1e-12);
            edged_free_all();
            tried(1);
        }
    }
}

static void a_draw_is_where_the_sum_passes_it(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct dice d = dice_of(25);
        for (uint32_t i = 0; i < SIZES - 1 + 5 * effort; i++) {
            struct rest x; /* the small sizes again */
            rest_open(&x, &d, sizes[i < SIZES - 1 ? i : i % 5]);
            for (int n = 0; n < 16 && x.total > 0; n++) {
                double u = n == 0 ? 0 : n == 1 ? 1 - 0x1p-53
                                               : (double)(roll64(&d) >> 11) * 0x1p-53;
                int32_t got = pp3_row_draw(&x.r, x.keep, &x.s, x.mass, x.total, u);
                double below = 0;
                for (int32_t j = 0; j < got; j++)
                    below += x.p[j];
                CHECK(got >= 0 && (uint32_t)got < x.r.vocab && x.p[got] > 0);
                CHECK(below <= u * x.total + 1e-12 &&
                      u * x.total <= below + x.p[got] + 1e-12);
            }
            edged_free_all();
            tried(16);
        }
    }
}

/* What rounding might leave beyond the end of a block, or of all. */
static void beyond_the_end_the_last_one_is_drawn(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        float *p = row_of(1300, 0);
        struct pp3_row r = row_open(p, 0, 1300, PP3_TARGET_PROBS);
        struct pp3_row_fault why;
        double mass[3];
        p[600] = p[700] = p[1100] = p[1200] = 0.25f;
        EQUAL(pp3_row_open(&r, 0, &why), PP3_FAULT_NONE);
        EQUAL(pp3_row_residual(&r, 1, 0, mass), 1);
        EQUAL(pp3_row_draw(&r, 1, 0, mass, 1, 0), 600);
        EQUAL(pp3_row_draw(&r, 1, 0, mass, 1, 0.5), 1100);
        EQUAL(pp3_row_draw(&r, 1, 0, mass, 1.5, 0.9), 1200);
        mass[1] += 0.3; /* more than the block holds */
        EQUAL(pp3_row_draw(&r, 1, 0, mass, 1, 0.7), 700);
        edged_free_all();
    }
}

const struct test row_tests[] = {
    {"logits that are none are named", logits_that_are_none_are_named},
    {"probabilities that are none are named", probabilities_that_are_none_are_named},
    {"the argmax is the lowest of the largest", the_argmax_is_the_lowest_of_the_largest},
    {"any range of logits adds up to one", any_range_of_logits_adds_up_to_one},
    {"a residual is what is left, entry by entry",
     a_residual_is_what_is_left_entry_by_entry},
    {"a draw is where the sum passes it", a_draw_is_where_the_sum_passes_it},
    {"beyond the end the last one is drawn", beyond_the_end_the_last_one_is_drawn},
    {0, 0},
};
