/* Weights of logits and their sums, by every path. */
#include <math.h>
#include <string.h>

#include "harness.h"
#include "proposal/scan.h"
#include "rows.h"
#include "verify/weights.h"

static const uint32_t lengths[] = {1,  2,  3,  4,  5,   7,   8,   9,   15,  16,  17, 31,
                                   32, 33, 63, 64, 65, 127, 128, 129, 511, 512};
static const uint32_t long_lengths[] = {1, 15, 31, 32, 33, 511, 512, 513, 1025, 8193};

static double weight_of(float x, float peak, float scale)
{
    return exp2(((double)x - (double)peak) * (double)scale);
}

/* n logits, some of them masked, and a bias for them or none. */
static void draw(struct dice *d, uint32_t n, float **z, float **bias)
{
    *z = edged(n * sizeof **z);
    *bias = roll(d, 2) ? edged(n * sizeof **bias) : 0;
    for (uint32_t i = 0; i < n; i++) {
        (*z)[i] = roll(d, 9) ? (float)(int32_t)roll(d, 65536) / 4096 - 12 : -INFINITY;
        if (*bias)
            (*bias)[i] = roll(d, 9) ? (float)(int32_t)roll(d, 512) / 256 : -INFINITY;
    }
}

static float at(const float *z, const float *bias, uint32_t i)
{
    return bias ? z[i] + bias[i] : z[i];
}

static void check_block(struct dice *d, uint32_t n, float peak, float scale)
{
    float *z, *bias, *weight = edged(n * sizeof *weight);
    double sum = 0, same;

    draw(d, n, &z, &bias);
    pp3_weights_here()->block(z, bias, n, peak, scale, weight);
    for (uint32_t i = 0; i < n; i++) {
        double exact = weight_of(at(z, bias, i), peak, scale);
        double off = fabs((double)weight[i] - exact);
        CHECK(exact > 0x1p-20 ? off <= 8e-7 * exact : off <= 1e-11);
        CHECK(at(z, bias, i) > -INFINITY || weight[i] == 0);
        sum += (double)weight[i];
    }
    CHECK(fabs(pp3_weights_here()->total(weight, n) - sum) <= 1e-13 * sum);
    pp3_weights_here()->sums(z, bias, n, peak, scale, &same);
    CHECK(fabs(same - sum) <= 1e-5 * sum);
    edged_free_all();
}

static void weights_are_powers_of_two(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct dice d = dice_of(21);
        for (uint32_t round = 0; round < 2 * effort; round++)
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                if (roll(&d, 2))
                    check_block(&d, lengths[i], 0, (float)(1 + roll(&d, 40)) / 16.1f);
                else /* a product that is no whole number is a factor of all weights */
                    check_block(&d, lengths[i], (float)roll(&d, 9) - 1,
                                (float)(1 + roll(&d, 2)));
        tried(2 * effort * sizeof lengths / sizeof *lengths);
    }
}

static void check_sums(struct dice *d, uint32_t n)
{
    uint32_t blocks = pp3_blocks(n);
    float *z, *bias;
    double *sum = edged(blocks * sizeof *sum);

    draw(d, n, &z, &bias);
    pp3_weights_here()->sums(z, bias, n, 4, 1.5f, sum);
    for (uint32_t b = 0; b < blocks; b++) {
        double exact = 0;
        for (uint32_t i = b * PP3_BLOCK; i < n && i < (b + 1) * PP3_BLOCK; i++)
            exact += weight_of(at(z, bias, i), 4, 1.5f);
        CHECK(fabs(sum[b] - exact) <= 1e-5 * exact + 1e-9);
    }
    edged_free_all();
}

static void a_row_is_summed_block_by_block(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct dice d = dice_of(22);
        for (uint32_t round = 0; round < effort; round++)
            for (size_t i = 0; i < sizeof long_lengths / sizeof *long_lengths; i++)
                check_sums(&d, long_lengths[i]);
        tried(effort * sizeof long_lengths / sizeof *long_lengths);
    }
}

/* One odd entry among 0: its block's weight and the sums of a row. */
static void spoilt(float odd, float peak, float scale, float *weight, double sum[2])
{
    static const uint32_t places[] = {0, 17, 511, 512, 520};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        float *z = edged(521 * sizeof *z), *out = edged(PP3_BLOCK * sizeof *out);
        uint32_t place = places[i], b = place / PP3_BLOCK;
        memset(z, 0, 521 * sizeof *z);
        z[place] = odd;
        pp3_weights_here()->sums(z, 0, 521, peak, scale, sum);
        pp3_weights_here()->block(z + b * PP3_BLOCK, 0, b ? 9 : PP3_BLOCK, peak, scale,
                                  out);
        *weight = out[place % PP3_BLOCK];
        if (odd > 0 && peak == 0)
            CHECK(sum[0] == (double)INFINITY || sum[1] == (double)INFINITY ||
                  isnan(sum[b]));
        else if (isnan(odd))
            CHECK(isnan(sum[b]) && isnan(*weight));
        else
            CHECK(*weight == 0 && sum[b] < (double)INFINITY);
        edged_free_all();
    }
    tried(sizeof places / sizeof *places);
}

static void odd_entries_are_zero_infinite_or_poison(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        float weight;
        double sum[2];
        spoilt(NAN, 0, 1, &weight, sum);
        spoilt(-NAN, 1e5f, 1, &weight, sum); /* beyond the range of the table */
        spoilt(INFINITY, 0, 1, &weight, sum);
        spoilt(1e30f, 0, 1, &weight, sum);
        spoilt(200, 0, 1, &weight, sum);
        spoilt(-INFINITY, 0, 1, &weight, sum);
        spoilt(-INFINITY, 1e5f, 1, &weight, sum);
        spoilt(-1e30f, 0, 1, &weight, sum);
        spoilt(-200, 0, 1, &weight, sum);
    }
}

static void a_peak_far_from_zero_is_like_any(void)
{
    static const float peaks[] = {1e5f, -1e5f, 65536.5f, 3e8f, -3e8f};

    for (int path = next_path(-1); path >= 0; path = next_path(path))
        for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++) {
            float z[20], weight[20];
            double sum;
            for (int j = 0; j < 20; j++)
                z[j] = j % 3 ? peaks[i] : -INFINITY;
            pp3_weights_here()->sums(z, 0, 20, peaks[i], 2, &sum);
            pp3_weights_here()->block(z, 0, 20, peaks[i], 2, weight);
            CHECK(fabs(sum - 13) < 1e-5);
            for (int j = 0; j < 20; j++)
                CHECK(fabsf(weight[j] - (j % 3 != 0)) < 1e-6f);
            tried(1);
        }
}

const struct test weights_tests[] = {
    {"weights are powers of two", weights_are_powers_of_two},
    {"a row is summed block by block", a_row_is_summed_block_by_block},
    {"odd entries are zero, infinite or poison", odd_entries_are_zero_infinite_or_poison},
    {"a peak far from zero is like any", a_peak_far_from_zero_is_like_any},
    {0, 0},
};
