/* The laws of verification: the known ones by the places where decisions change, and
 * drawn requests against the rules as they are written, in FP64 and dense. */
#include <math.h>
#include <string.h>

#include "harness.h"
#include "known.h"
#include "rows.h"

/* ---- known laws ------------------------------------------------------------------- */

enum { MOST_SEQUENCES = 200, FINE = 32 }; /* bits of a residual's border */
#define NEVER (1 - 0x1p-29)

static uint32_t power(uint32_t base, uint32_t n) { return n ? base * power(base, n - 1) : 1; }

/* Sequences of n tokens are numbered behind the shorter ones. */
static uint32_t number_of(uint32_t vocab, const int32_t *tokens, uint32_t n)
{
    uint32_t value = 0, before = 0;

    for (uint32_t i = 0; i < n; i++) {
        value = value * vocab + (uint32_t)tokens[i];
        before += power(vocab, i);
    }
    return before + value;
}

/* Rows of p and q along a path of drafts; the support is every token. */
static void lay(struct case_ *c, const struct known_law *k, const int32_t *path)
{
    for (uint32_t i = 0; i <= k->depth; i++) {
        uint32_t at = number_of(k->vocab, path, i) * k->vocab;
        for (uint32_t v = 0; v < k->vocab; v++) {
            c->z[i * k->vocab + v] = (float)k->p[at + v] / (float)k->denominator;
            if (i < k->depth)
                c->q[i * k->vocab + v] = (float)k->q[at + v] / (float)k->denominator;
        }
        if (i < k->depth) {
            c->drafts[i] = path[i];
            c->accept[i] = c->batch.rule == PP3_RULE_BLOCK ? NEVER : 0;
        }
        c->residual[i] = 0;
    }
}

/* How many of the uniforms of draft i take it: a share of all. */
static double taken(struct case_ *c, uint32_t i)
{
    uint32_t low = 0, high = 1u << 29; /* `low` of them do, the one at `high` does not */
    double kept = c->accept[i];

    while (low < high) {
        uint32_t middle = (low + high) / 2;
        c->accept[i] = (double)middle * 0x1p-29;
        EQUAL(case_run(c), PP3_FAULT_NONE);
        if (c->out.accepted > (int32_t)i)
            low = middle + 1;
        else
            high = middle;
    }
    c->accept[i] = kept;
    return (double)low * 0x1p-29;
}

/* The share of residual i's uniforms below which only tokens up to t come out. */
static double up_to(struct case_ *c, uint32_t i, int32_t t)
{
    uint64_t low = 0, high = UINT64_C(1) << FINE;

    while (low < high) {
        uint64_t middle = (low + high) / 2;
        c->residual[i] = ldexp((double)middle, -FINE);
        EQUAL(case_run(c), PP3_FAULT_NONE);
        EQUAL(c->out.accepted, i);
        if (c->tokens[i] <= t)
            low = middle + 1;
        else
            high = middle;
    }
    return ldexp((double)low, -FINE);
}

static void end_at(struct case_ *c, const struct known_law *k, uint32_t i, double chance,
                   double *law)
{
    int32_t emitted[8];
    double before = 0;

    memcpy(emitted, c->drafts, i * sizeof *emitted);
    for (int32_t t = 0; (uint32_t)t < k->vocab; t++) {
        double share = up_to(c, i, t);
        emitted[i] = t;
        law[number_of(k->vocab, emitted, i + 1)] += chance * (share - before);
        before = share;
    }
    CHECK(before == 1);
}

/* Adds what this path of drafts, drawn with `chance`, emits. */
static void add_path(struct case_ *c, const struct known_law *k, double chance,
                     double *law)
{
    double share[8], stop[8];
    int block = c->batch.rule == PP3_RULE_BLOCK;

    for (uint32_t i = 0; i < k->depth; i++)
        share[i] = taken(c, i);
    for (uint32_t i = 0; i <= k->depth; i++) { /* that it stops with i drafts */
        stop[i] = chance;
        for (uint32_t j = 0; j < k->depth; j++)
            if (block)
                stop[i] *= j + 1 == i ? share[j] : j + 1 > i ? 1 - share[j] : 1;
            else
                stop[i] *= j < i ? share[j] : j == i ? 1 - share[j] : 1;
    }
    for (uint32_t i = 0; i <= k->depth; i++) {
        for (uint32_t j = 0; j < k->depth; j++)
            c->accept[j] = block ? (j + 1 == i ? 0 : NEVER) : j < i ? 0 : NEVER;
        if (stop[i] > 0)
            end_at(c, k, i, stop[i], law);
    }
}

static void law_of(const struct known_law *k, int rule, double *law)
{
    struct case_ c;

    memset(law, 0, MOST_SEQUENCES * sizeof *law);
    case_open(&c, k->vocab, k->depth, k->vocab);
    c.batch.target = PP3_TARGET_PROBS;
    c.batch.rule = rule;
    for (uint32_t n = 0; n < power(k->vocab, k->depth); n++) {
        int32_t path[8];
        double chance = 1;
        for (uint32_t i = 0, rest = n; i < k->depth; i++, rest /= k->vocab)
            path[k->depth - 1 - i] = (int32_t)(rest % k->vocab);
        for (uint32_t i = 0; i < k->depth; i++)
            chance *= (double)k->q[number_of(k->vocab, path, i) * k->vocab +
                                   (uint32_t)path[i]] / k->denominator;
        if (chance > 0) {
            lay(&c, k, path);
            add_path(&c, k, chance, law);
        }
    }
    edged_free_all();
}

static uint32_t stride(void) { return effort > 1 ? 1 : 4; }

static void known_laws_come_out(void)
{
    for (uint32_t i = (uint32_t)(seed % stride()); i < n_known_laws; i += stride()) {
        const struct known_law *k = &known_laws[i];
        double law[MOST_SEQUENCES], all = 0;
        law_of(k, PP3_RULE_STANDARD, law);
        for (unsigned e = 0; e < k->n_emitted; e++) {
            const struct known_emission *known = &k->emitted[e];
            uint32_t n = number_of(k->vocab, known->tokens, known->n);
            CHECK(fabs(law[n] - known->chance) < 1e-8);
            all += law[n];
        }
        CHECK(fabs(all - 1) < 1e-8); /* and nothing else */
        tried(1);
    }
}

/* Whatever is emitted, with the target's own draws behind it, has the target's law. */
static void both_rules_keep_the_targets_law(void)
{
    for (uint32_t i = (uint32_t)(seed % stride()); i < n_known_laws; i += stride()) {
        const struct known_law *k = &known_laws[i];
        double law[MOST_SEQUENCES];
        law_of(k, PP3_RULE_BLOCK, law);
        for (uint32_t n = 0; n < power(k->vocab, k->depth + 1); n++) {
            int32_t path[8];
            double wanted = 1, found = 0, rest = 1;
            for (uint32_t j = 0, left = n; j <= k->depth; j++, left /= k->vocab)
                path[k->depth - j] = (int32_t)(left % k->vocab);
            for (uint32_t j = k->depth + 1; j-- > 0;) {
                double p = (double)k->p[number_of(k->vocab, path, j) * k->vocab +
                                        (uint32_t)path[j]] / k->denominator;
                found += law[number_of(k->vocab, path, j + 1)] * rest;
                rest *= p;
                wanted *= p;
            }
            CHECK(fabs(found - wanted) < 1e-8);
        }
        tried(1);
    }
}

/* ---- drawn requests, against the rules as they are written ------------------------- */

enum { WIDEST = 8193 };
static double dense[WIDEST]; /* keep p - q of one row, below 0 nothing */

static double exact(const struct case_ *c, uint32_t i, double *p)
{
    uint32_t vocab = c->batch.vocab;
    const float *z = c->z + (size_t)i * vocab, *bias = c->bias + (size_t)i * vocab;
    double peak = -(double)INFINITY, sum = 0;

    if (c->batch.target == PP3_TARGET_PROBS) {
        for (uint32_t v = 0; v < vocab; v++)
            sum += p[v] = (double)z[v];
        return sum;
    }
    for (uint32_t v = 0; v < vocab; v++)
        p[v] = (double)(c->request.bias ? z[v] + bias[v] : z[v]);
    for (uint32_t v = 0; v < vocab; v++)
        peak = fmax(p[v], peak);
    for (uint32_t v = 0; v < vocab; v++)
        sum += p[v] = exp((p[v] - peak) / c->request.temperature);
    for (uint32_t v = 0; v < vocab; v++)
        p[v] /= sum;
    return 1;
}

static double share_of(const struct case_ *c, uint32_t i)
{
    for (uint32_t n = 0; n < c->batch.k; n++)
        if (c->ids[i * c->batch.k + n] == c->drafts[i])
            return (double)c->q[i * c->batch.k + n];
    return 0;
}

/* dense[] = (keep p_i - q_i)+; its sum. */
static double left_of(const struct case_ *c, uint32_t i, double keep, int less_q)
{
    double sum = 0;

    (void)exact(c, i, dense);
    for (uint32_t v = 0; v < c->batch.vocab; v++)
        dense[v] *= keep;
    for (uint32_t n = 0; less_q && n < c->batch.k; n++)
        dense[c->ids[i * c->batch.k + n]] -= (double)c->q[i * c->batch.k + n];
    for (uint32_t v = 0; v < c->batch.vocab; v++)
        sum += dense[v] = dense[v] > 0 ? dense[v] : 0;
    return sum;
}

/* Whether `small < large`, or -1: nearer than the two arithmetics agree. */
static int below(double small, double large)
{
    return fabs(small - large) <= 1e-5 * (small + large) + 1e-12 ? -1 : small < large;
}

/* Whether the token is where dense[] passes the uniform. */
static int drawn_well(const struct case_ *c, int32_t token, double total, double uniform)
{
    double sum = 0;

    for (int32_t v = 0; v < token; v++)
        sum += dense[v];
    return sum <= uniform * total + 3e-6 &&
           uniform * total <= sum + dense[token] + 3e-6 &&
           (dense[token] > 0 || total < 1e-4) && (uint32_t)token < c->batch.vocab;
}

/* How many drafts stand, the keep of where it ends; or -1: too near to say. */
static int standing(const struct case_ *c, double *keep)
{
    uint32_t depth = c->batch.depth, end = 0;
    double so_far = 1, ends = 1;

    *keep = 1;
    for (uint32_t i = 0; i < depth; i++) {
        double q = share_of(c, i), p, rest;
        int said;
        if (c->batch.rule == PP3_RULE_STANDARD) {
            (void)exact(c, i, dense);
            said = below(c->accept[i] * q, dense[c->drafts[i]]);
            if (said != 1)
                return said ? -1 : (int)i;
            continue;
        }
        rest = left_of(c, i, so_far, 1);
        said = i ? below(c->accept[i - 1] * (rest + 1 - so_far), rest) : 0;
        if (said < 0)
            return -1;
        end = said ? i : end;
        ends = said ? so_far : ends;
        (void)exact(c, i, dense);
        p = dense[c->drafts[i]];
        so_far = fmin(1, so_far * p / q);
    }
    if (c->batch.rule == PP3_RULE_STANDARD)
        return (int)depth;
    int said = below(c->accept[depth - 1], so_far);
    *keep = said ? 1 : ends;
    return said < 0 ? -1 : said ? (int)depth : (int)end;
}

static int check_sampled(struct case_ *c)
{
    double keep, total;
    int stand = standing(c, &keep);
    uint32_t n = (uint32_t)stand, depth = c->batch.depth;

    EQUAL(case_run(c), PP3_FAULT_NONE);
    if (stand < 0)
        return 0;
    EQUAL(c->out.accepted, stand);
    EQUAL(c->out.last, n == depth ? PP3_LAST_BONUS : PP3_LAST_CORRECTION);
    for (uint32_t i = 0; i < n; i++)
        EQUAL(c->tokens[i], c->drafts[i]);
    total = left_of(c, n, keep, n < depth);
    CHECK(drawn_well(c, c->tokens[n], total, c->residual[n]));
    return 1;
}

static void drawn_requests_are_decided_by_the_rule(void)
{
    static const uint32_t vocabs[] = {2, 31, 32, 33, 64, 511, 512, 513, 700, 1025};
    uint32_t decided = 0, all = 0;

    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct dice d = dice_of(26);
        for (uint32_t i = 0; i < 40 * effort; i++, all++) {
            uint32_t vocab = i % 40 == 39 ? WIDEST : vocabs[roll(&d, 10)];
            uint32_t depth = 1 + roll(&d, MOST_DEPTH), most = vocab < 256 ? vocab : 256;
            struct case_ c;
            case_open(&c, vocab, depth, 1 + roll(&d, roll(&d, 2) ? most : 2));
            c.batch.target = (int32_t)roll(&d, 2);
            c.batch.rule = (int32_t)roll(&d, 2);
            if (c.batch.target == PP3_TARGET_LOGITS && roll(&d, 2))
                c.request.bias = (uintptr_t)c.bias;
            c.request.temperature = roll(&d, 2) ? 1 : 0.2 + (double)roll(&d, 300) / 100;
            case_draw(&c, &d);
            decided += (uint32_t)check_sampled(&c);
            edged_free_all();
        }
    }
    CHECK(decided > all * 8 / 10);
    tried(all);
}

/* As proposals are: q near p, so that whole blocks stand. */
static void drafts_near_the_target_mostly_stand(void)
{
    uint32_t stood = 0, all = 0;

    for (int path = next_path(-1); path >= 0; path = next_path(path)) {
        struct dice d = dice_of(27);
        for (uint32_t i = 0; i < 40 * effort; i++, all++) {
            struct case_ c;
            uint32_t depth = 1 + roll(&d, MOST_DEPTH);
            case_open(&c, 64, depth, 8);
            c.batch.rule = (int32_t)(i % 2);
            case_draw(&c, &d);
            for (uint32_t j = 0; j <= depth; j++)
                for (uint32_t n = 0; n < 64; n++)
                    c.z[j * 64 + n] = -9;
            for (uint32_t j = 0; j < depth * 8; j++)
                if (c.q[j] > 0)
                    c.z[j / 8 * 64 + (uint32_t)c.ids[j]] =
                        logf(c.q[j]) + (float)roll(&d, 100) / 200;
            (void)check_sampled(&c);
            stood += (uint32_t)c.out.accepted == depth;
            edged_free_all();
        }
    }
    CHECK(stood > all / 10);
    tried(all);
}

const struct test law_tests[] = {
    {"known laws come out", known_laws_come_out},
    {"both rules keep the target's law", both_rules_keep_the_targets_law},
    {"drawn requests are decided by the rule", drawn_requests_are_decided_by_the_rule},
    {"drafts near the target mostly stand", drafts_near_the_target_mostly_stand},
    {0, 0},
};
