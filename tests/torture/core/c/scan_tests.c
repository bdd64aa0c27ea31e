/* Vector loops, and the k largest of a row. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "proposal/scan.h"
#include "proposal/top.h"
#include "rows.h"

enum { MOST = 3000, LONG = 1 << 20 };

static float *drawn_row(struct dice *d, uint32_t n, uint32_t kinds)
{
    float *z = malloc(n * sizeof *z);

    if (!z)
        abort();
    for (uint32_t i = 0; i < n; i++)
        z[i] = (float)(int32_t)roll(d, kinds) * 0.25f - 8;
    return z;
}

static void paths_are_those_of_this_cpu(void)
{
    EQUAL(pp3_scan_force(PP3_SCAN_PATHS), -ENOTSUP);
    EQUAL(pp3_scan_force(PP3_SCAN_PORTABLE), 0);
    EQUAL(pp3_scan_path(), PP3_SCAN_PORTABLE);
    for (int path = next_path(-1); path >= 0; path = next_path(path))
        EQUAL(pp3_scan_path(), path);
#if defined(__aarch64__)
    EQUAL(pp3_scan_force(PP3_SCAN_AVX2), -ENOTSUP);
    EQUAL(pp3_scan_path(), PP3_SCAN_PORTABLE);
#endif
    CHECK(pp3_scan_here()->maxima != 0);
}

static void check_maxima(struct dice *d)
{
    uint32_t n = 1 + roll(d, MOST), span = 1 + roll(d, 200), spans = (n - 1) / span + 1;
    float *z = drawn_row(d, n, 1000), *bias = drawn_row(d, n, 1000);
    float *out = malloc(spans * sizeof *out);
    int with = (int)roll(d, 2), nan = !roll(d, 3);

    if (nan)
        z[roll(d, n)] = NAN;
    int said = pp3_scan_here()->maxima(z, with ? bias : 0, n, span, out);
    EQUAL(said != 0, nan);
    for (uint32_t s = 0; s < spans; s++) {
        float most = -INFINITY;
        for (uint32_t i = s * span; i < n && i < (s + 1) * span; i++) {
            float x = with ? z[i] + bias[i] : z[i];
            most = x > most ? x : most;
        }
        CHECK(out[s] == most);
    }
    free(z);
    free(bias);
    free(out);
}

static void check_count(struct dice *d)
{
    uint32_t n = roll(d, 300), wanted = 0;
    int32_t *keys = malloc((n + 1) * sizeof *keys), least = (int32_t)roll(d, 100) - 50;

    for (uint32_t i = 0; i < n; i++) {
        keys[i] = (int32_t)roll(d, 100) - 50;
        wanted += keys[i] >= least;
    }
    EQUAL(pp3_scan_here()->count(keys, n, least), wanted);
    free(keys);
}

/* above: ids in ascending order, at most `room` of them, told where there are more. */
static void check_above(struct dice *d)
{
    uint32_t n = 1 + roll(d, MOST), room = roll(d, 2) ? n : 1 + roll(d, 40), kept = 0;
    uint32_t kinds = roll(d, 2) ? 100000 : 4, found;
    float *z = drawn_row(d, n, kinds), *bias = drawn_row(d, n, kinds);
    uint32_t *ids = malloc(room * sizeof *ids);
    int with = (int)roll(d, 2);
    float least = z[roll(d, n)];

    found = pp3_scan_here()->above(z, with ? bias : 0, n, least, ids, room);
    for (uint32_t i = 0; i < n; i++) {
        float x = with ? z[i] + bias[i] : z[i];
        if (x >= least && kept++ < room)
            EQUAL(ids[kept - 1], i);
    }
    CHECK(kept <= room ? found == kept : found > room);
    free(z);
    free(bias);
    free(ids);
}

static void check_add_scaled(struct dice *d)
{
    uint32_t n = 1 + roll(d, 100), terms = 1 + roll(d, 9);
    int first = (int)roll(d, 2);
    float *from = drawn_row(d, n * terms, 999), *factor = drawn_row(d, terms, 999);
    float *to = drawn_row(d, n, 999), *wanted = malloc(n * sizeof *wanted);

    for (uint32_t i = 0; i < n; i++) {
        volatile float sum = first ? factor[0] * from[i] : to[i];
        for (uint32_t r = first ? 1 : 0; r < terms; r++) {
            volatile float product = factor[r] * from[r * n + i];
            sum = sum + product;
        }
        wanted[i] = sum;
    }
    pp3_scan_here()->add_scaled(to, from, n, factor, terms, first, n);
    CHECK(memcmp(to, wanted, n * sizeof *to) == 0);
    free(from);
    free(factor);
    free(to);
    free(wanted);
}

static void every_path_gives_the_same_numbers(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct dice d = dice_of(5);
        for (uint32_t i = 0; i < 100 * effort; i++) {
            check_maxima(&d);
            check_count(&d);
            check_above(&d);
            check_add_scaled(&d);
        }
        tried(100 * effort);
    }
}

/* The k largest as they are defined: one after the other, ties to the lower id. */
static void slow_top(const float *z, uint32_t n, uint32_t k, uint8_t *chosen)
{
    memset(chosen, 0, n);
    while (k-- > 0) {
        uint32_t best = n;
        for (uint32_t i = 0; i < n; i++)
            if (!chosen[i] && (best == n || z[i] > z[best]))
                best = i;
        chosen[best] = 1;
    }
}

static void check_top(struct dice *d, uint32_t kinds)
{
    uint32_t k = 1 + roll(d, PP3_SUPPORT_MAX), n = k + roll(d, MOST);
    float *z = drawn_row(d, n, kinds), *zero = calloc(n, sizeof *zero);
    float values[PP3_SUPPORT_MAX];
    int32_t ids[PP3_SUPPORT_MAX], bad;
    uint8_t *chosen = malloc(n);

    for (uint32_t i = roll(d, 2) * n; i < n; i += 1 + roll(d, 4))
        z[i] = roll(d, 2) ? -INFINITY : -0.0f;
    slow_top(z, n, k, chosen);
    EQUAL(pp3_top(z, roll(d, 2) ? zero : 0, n, k, ids, values, &bad), 0);
    EQUAL(bad, -1);
    for (uint32_t i = 0; i < k; i++) {
        CHECK(ids[i] >= 0 && (uint32_t)ids[i] < n && chosen[ids[i]]);
        CHECK(i == 0 || ids[i] > ids[i - 1]);
        CHECK(values[i] == z[ids[i]]);
    }
    free(z);
    free(zero);
    free(chosen);
}

static void the_k_largest_are_found_whatever_the_row(void)
{
    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct dice d = dice_of(6);
        for (uint32_t i = 0; i < 60 * effort; i++)
            check_top(&d, i % 3 == 0 ? 1 : i % 3 == 1 ? 5 : 100000);
        tried(60 * effort);
    }
}

static void a_row_of_a_million_is_no_different(void)
{
    float *z = calloc(LONG, sizeof *z), values[3];
    int32_t ids[3], bad;

    z[LONG - 1] = 3;
    z[77777] = 2;
    EQUAL(pp3_top(z, 0, LONG, 2, ids, values, &bad), 0);
    CHECK(ids[0] == 77777 && ids[1] == LONG - 1 && values[1] == 3);
    EQUAL(pp3_top(z, 0, LONG, 3, ids, values, &bad), 0); /* far more reach the third */
    CHECK(ids[0] == 0 && ids[1] == 77777 && ids[2] == LONG - 1 && values[0] == 0);
    free(z);
}

static void what_is_no_row_is_refused(void)
{
    float z[64] = {0}, bias[64] = {0}, values[PP3_SUPPORT_MAX];
    int32_t ids[PP3_SUPPORT_MAX], bad;

    EQUAL(pp3_top(z, 0, 64, 0, ids, values, &bad), -EINVAL);
    EQUAL(pp3_top(z, 0, 64, 65, ids, values, &bad), -EINVAL);
    EQUAL(pp3_top(z, 0, 64, PP3_SUPPORT_MAX + 1, ids, values, &bad), -EINVAL);
    EQUAL(pp3_top(z, 0, 5, 6, ids, values, &bad), -EINVAL);
    EQUAL(pp3_top(z, 0, 0x80000000u, 6, ids, values, &bad), -EINVAL);
    z[40] = INFINITY;
    EQUAL(pp3_top(z, 0, 64, 6, ids, values, &bad), -EDOM);
    EQUAL(bad, 40);
    bias[40] = -INFINITY; /* the sum is no number */
    EQUAL(pp3_top(z, bias, 64, 6, ids, values, &bad), -EDOM);
    EQUAL(bad, 40);
    z[40] = 0;
    EQUAL(pp3_top(z, bias, 64, 6, ids, values, &bad), 0);
}

const struct test scan_tests[] = {
    {"scan paths are those of this CPU", paths_are_those_of_this_cpu},
    {"every scan path gives the same numbers", every_path_gives_the_same_numbers},
    {"the k largest are found, whatever the row",
     the_k_largest_are_found_whatever_the_row},
    {"a row of a million is no different", a_row_of_a_million_is_no_different},
    {"what is no row is refused", what_is_no_row_is_refused},
    {0, 0},
};
