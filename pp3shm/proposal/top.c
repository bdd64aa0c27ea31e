#include "top.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "scan.h"

/* How it works: a tournament of spans.
 *
 * The row is cut into spans and the maximum of each is taken: the one full pass. Let t
 * be the k-th largest of the maxima. k spans hold an entry of at least t, so the k
 * largest entries all are at least t: a span whose maximum is below t is out. Of spans
 * whose maximum equals t the first k stay: each holds an entry equal to t, and ties go
 * to the lower id. Fewer than k spans have a larger maximum, so at most 2k - 1 stay,
 * whatever the row looks like: ascending, constant, or rounded to bf16. They are cut
 * again, until spans are single entries; then "the first k that equal t" is the answer
 * itself, less those above t.
 *
 * Mostly the entries of at least t in the spans that stay are few: then they are
 * gathered at once, and nothing is cut.
 */
#define FANOUT 8u       /* spans are cut into this many */
#define COARSE 512u     /* first spans, FANOUT ^ 3 */
#define SPANS_MAX 1024u /* of the first level; longer rows get longer first spans */
/* The widest level: all that may stay, cut once. */
#define WIDEST (2u * PP3_SUPPORT_MAX * FANOUT)

_Static_assert(COARSE == FANOUT * FANOUT * FANOUT, "a coarse span is cut three times");
_Static_assert(WIDEST >= SPANS_MAX, "one array serves every level");
_Static_assert(sizeof(float) == 4, "logits are FP32");

static float entry(const float *z, const float *bias, size_t i)
{
    return bias ? z[i] + bias[i] : z[i];
}

/* FP32 as integers of the same order; adding +0.0 turns -0.0 into 0.0. */
static int32_t key_of(float x)
{
    int32_t bits;
    float plain = x + 0.0f;
    memcpy(&bits, &plain, sizeof bits);
    return bits ^ (int32_t)((uint32_t)(bits >> 31) >> 1);
}

static float float_of(int32_t key)
{
    int32_t bits = key ^ (int32_t)((uint32_t)(key >> 31) >> 1);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* A value that at least k of n keys reach and fewer than k exceed, k <= n: built bit by
 * bit from the top, it ends as the k-th largest key. Where exactly k keys reach a value
 * on the way, that one serves as well and ends the search. */
static int32_t kth_largest(const struct pp3_scan *use, const int32_t *keys, uint32_t n,
                           uint32_t k)
{
    /* Offset by 2^31, so that bits grow upwards from the least key. */
    uint32_t reached = use->count(keys, n, 0) >= k ? 0x80000000u : 0u;
    for (uint32_t bit = 0x40000000u; bit; bit >>= 1) {
        uint32_t tried = reached | bit;
        uint32_t have = use->count(keys, n, (int32_t)(tried ^ 0x80000000u));
        if (have >= k)
            reached = tried;
        if (have == k)
            break;
    }
    return (int32_t)(reached ^ 0x80000000u);
}

/* A level: n spans of one length, in ascending order of their first ids. */
struct level {
    uint32_t n;
    uint32_t span;
    uint32_t from[WIDEST];
    int32_t key[WIDEST];
};

/* Keeps the spans that can hold one of the k largest, and returns the key that each of
 * these reaches; at single entries, with `exact`, those k themselves. If exactly k keys reach a t that none of them equals, those above
 * it are the k that stay, and both budgets of equal ones go unused. */
static int32_t keep(const struct pp3_scan *use, struct level *l, uint32_t k, int exact)
{
    if (l->n <= k)
        return INT32_MIN;
    int32_t t = kth_largest(use, l->key, l->n, k);
    /* t + 1 is a key's value: no entry is above the largest float. */
    uint32_t equal = exact ? k - use->count(l->key, l->n, t + 1) : k;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->n; i++)
        if (l->key[i] > t || (l->key[i] == t && equal && equal--))
            l->from[kept++] = l->from[i];
    l->n = kept;
    return t;
}

/* All entries of at least the key t in the spans that stayed, as a level of single
 * ones; or 0: there are more than it holds, or t is no number but lies below -inf. */
static int gather(const struct pp3_scan *use, const float *z, const float *bias,
                  uint32_t vocab, const struct level *from, int32_t t, uint32_t k,
                  struct level *to)
{
    float least = float_of(t);
    to->n = 0;
    to->span = 1;
    for (uint32_t s = 0; s < from->n; s++) {
        uint32_t at = from->from[s], room = WIDEST - to->n;
        uint32_t len = vocab - at < from->span ? vocab - at : from->span;
        uint32_t *ids = to->from + to->n;
        uint32_t found =
            use->above(z + at, bias ? bias + at : NULL, len, least, ids, room);
        if (found > room)
            return 0;
        for (uint32_t i = 0; i < found; i++) {
            ids[i] += at;
            to->key[to->n++] = key_of(entry(z, bias, ids[i]));
        }
    }
    return to->n >= k;
}

/* Cuts every span of `from` into `to`. At most WIDEST come out: at most 2k - 1 spans
 * stay, or there were no more than k of them. */
static void cut(const struct pp3_scan *use, const float *z, const float *bias,
                uint32_t vocab, const struct level *from, struct level *to)
{
    float most[FANOUT];
    to->n = 0;
    to->span = from->span / FANOUT;
    for (uint32_t s = 0; s < from->n; s++) {
        uint32_t at = from->from[s];
        uint32_t len = vocab - at < from->span ? vocab - at : from->span;
        const float *part = bias ? bias + at : NULL;
        if (to->span > 1)
            (void)use->maxima(z + at, part, len, to->span, most);
        for (uint32_t i = 0; i < len; i += to->span) {
            float x = to->span > 1 ? most[i / to->span] : entry(z + at, part, i);
            to->from[to->n] = at + i;
            to->key[to->n++] = key_of(x);
        }
    }
}

static int32_t first_bad(const float *z, const float *bias, uint32_t vocab)
{
    for (uint32_t i = 0; i < vocab; i++) {
        float x = entry(z, bias, i);
        if (x != x || x == INFINITY)
            return (int32_t)i;
    }
    return -1;
}

/* The one full pass. 0, or -EDOM. */
static int first_level(const struct pp3_scan *use, const float *z, const float *bias,
                       uint32_t vocab, struct level *l)
{
    float most[SPANS_MAX];
    uint32_t span = COARSE;
    while ((vocab - 1) / span >= SPANS_MAX)
        span *= FANOUT;
    int nan = use->maxima(z, bias, vocab, span, most);
    l->n = (vocab - 1) / span + 1;
    l->span = span;
    for (uint32_t i = 0; i < l->n; i++) {
        l->from[i] = i * span;
        l->key[i] = key_of(most[i]);
        nan |= most[i] == INFINITY;
    }
    return nan ? -EDOM : 0;
}

int pp3_top(const float *z, const float *bias, uint32_t vocab, uint32_t k,
            int32_t *ids, float *values, int32_t *bad)
{
    struct level levels[2];
    struct level *l = &levels[0], *next = &levels[1];
    *bad = -1;
    if (k < 1 || k > PP3_SUPPORT_MAX || k > vocab || vocab > INT32_MAX)
        return -EINVAL;
    const struct pp3_scan *use = pp3_scan_here();
    if (first_level(use, z, bias, vocab, l)) {
        *bad = first_bad(z, bias, vocab);
        return -EDOM;
    }
    while (l->span > 1) {
        int32_t t = keep(use, l, k, 0);
        if (t == INT32_MIN || !gather(use, z, bias, vocab, l, t, k, next))
            cut(use, z, bias, vocab, l, next);
        struct level *done = l;
        l = next;
        next = done;
    }
    (void)keep(use, l, k, 1);
    for (uint32_t i = 0; i < k; i++) {
        ids[i] = (int32_t)l->from[i];
        values[i] = entry(z, bias, l->from[i]);
    }
    return 0;
}
