/* Philox, proposals and chains. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faults.h"
#include "frames.h"
#include "harness.h"
#include "proposal/draft.h"
#include "proposal/scan.h"
#include "proposal/top.h"

enum { TAU = 700, MASS = 1 << 24 };

static void known_blocks_of_philox(void)
{
    for (unsigned i = 0; i < n_known_blocks; i++) {
        const struct known_block *k = &known_blocks[i];
        uint32_t out[4];
        pp3_philox(k->counter, k->key, out);
        CHECK(memcmp(out, k->words, sizeof out) == 0);
    }
    tried(n_known_blocks);
}

static void known_proposals_are_made(void)
{
    for (unsigned i = 0; i < n_known_proposals; i++) {
        const struct known_proposal *k = &known_proposals[i];
        float *z = (float *)(void *)copied(k->logits, k->logits_bytes);
        float q[PP3_SUPPORT_MAX], confidence;
        int32_t ids[PP3_SUPPORT_MAX], token;
        struct pp3_draft_fault fault;
        EQUAL(pp3_propose(z, 0, k->vocab, 32, TAU, k->rule, k->draw24, ids, q, &token,
                          &confidence, &fault), 0);
        CHECK(memcmp(ids, k->ids, sizeof k->ids) == 0);
        for (int j = 0; j < 32; j++)
            EQUAL(q[j] * MASS, k->counts[j]);
        EQUAL(token, k->token);
        free(z);
    }
    tried(n_known_proposals);
}

static void known_rows_are_refused(void)
{
    for (unsigned i = 0; i < n_known_refusals; i++) {
        const struct known_refused *k = &known_refusals[i];
        float *z = (float *)(void *)copied(k->logits, k->logits_bytes);
        float q[PP3_SUPPORT_MAX], confidence;
        int32_t ids[PP3_SUPPORT_MAX], token;
        struct pp3_draft_fault fault;
        int kind = pp3_propose(z, 0, (uint32_t)(k->logits_bytes / 4), 32, TAU, 0, 0, ids,
                               q, &token, &confidence, &fault);
        EQUAL(kind, fault.id < 0 ? -ENODATA : -EDOM);
        CHECK(fault.id < 0 || !(fault.value < INFINITY));
        free(z);
    }
}

static void a_proposal_takes_arguments_in_range(void)
{
    float z[40] = {0}, bias[40] = {0}, q[32], confidence;
    int32_t ids[32], token;
    struct pp3_draft_fault fault;
    const struct { uint32_t tau; int rule; uint32_t draw; } bad[] = {
        {0, 0, 0}, {TAU, -1, 0}, {TAU, PP3_RULES, 0}, {TAU, 0, MASS},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EQUAL(pp3_propose(z, 0, 40, 32, bad[i].tau, bad[i].rule, bad[i].draw, ids, q,
                          &token, &confidence, &fault), -EINVAL);
    bias[3] = NAN;
    EQUAL(pp3_propose(z, bias, 40, 32, TAU, 0, 0, ids, q, &token, &confidence, &fault),
          -EDOM);
    CHECK(fault.id == 3 && isnan(fault.value));
    EQUAL(pp3_propose(z, 0, 40, 41, TAU, 0, 0, ids, q, &token, &confidence, &fault),
          -EINVAL);
}

static void an_exp_that_is_wrong_gives_no_proposal(void)
{
    float z[3] = {1, 0, 0}, q[3], confidence;
    int32_t ids[3], token;
    struct pp3_draft_fault fault;

    exp_instead = 1.7e308; /* the sum is infinite, each share nothing */
    fail(EXP, 0, 2, 1);
    EQUAL(pp3_propose(z, 0, 2, 2, TAU, 0, 0, ids, q, &token, &confidence, &fault),
          -ERANGE);
    exp_instead = -0.15; /* cut towards 0, the counts add up to more than there is */
    fail(EXP, 1, 2, 1);
    EQUAL(pp3_propose(z, 0, 3, 3, TAU, 0, 0, ids, q, &token, &confidence, &fault),
          -ERANGE);
    fail_no_more();
}

static void a_draw_follows_its_counts(void)
{
    struct dice d = dice_of(7);
    float z[200], q[200], confidence;
    int32_t ids[200], token;
    struct pp3_draft_fault fault;

    for (uint32_t i = 0; i < 200 * effort; i++) {
        uint32_t k = 1 + roll(&d, 200), draw = roll(&d, MASS), below = 0;
        for (int j = 0; j < 200; j++)
            z[j] = (float)roll(&d, 64) * 0.125f;
        EQUAL(pp3_propose(z, 0, 200, k, TAU, (int)(i % 2), draw, ids, q, &token,
                          &confidence, &fault), 0);
        uint32_t mass = 0, found = 0;
        for (uint32_t j = 0; j < k; j++) {
            uint32_t count = (uint32_t)(q[j] * MASS);
            mass += count;
            if (ids[j] == token) {
                found = 1;
                CHECK(below <= draw && draw < below + count && confidence == q[j]);
            }
            below += count;
        }
        CHECK(mass == MASS && found);
    }
    tried(200 * effort);
}

enum { VOCAB = 1100, ROWS = 3, DEPTH = 3, K = 32, RANK = 11 };

struct chain {
    struct pp3_chain c;
    float *logits, *left, *right, *scratch;
    uint32_t keys[2 * ROWS];
    uint64_t positions[ROWS];
    int32_t previous[ROWS], ids[ROWS * DEPTH * K], tokens[ROWS * DEPTH];
    float q[ROWS * DEPTH * K], confidence[ROWS * DEPTH];
    struct pp3_draft_fault faults[ROWS];
};

static float *floats(struct dice *d, size_t n)
{
    float *to = malloc(n * sizeof *to);

    if (!to)
        abort();
    for (size_t i = 0; i < n; i++)
        to[i] = (float)(int32_t)roll(d, 4096) / 512 - 4;
    return to;
}

static void chain_open(struct chain *x, struct dice *d, uint32_t rank)
{
    memset(x, 0, sizeof *x);
    x->c = (struct pp3_chain){ROWS, DEPTH, VOCAB, K, TAU, PP3_FLOOR_FIRST, 99, rank};
    x->logits = floats(d, (size_t)ROWS * DEPTH * VOCAB);
    x->left = floats(d, (size_t)VOCAB * (rank ? rank : VOCAB));
    x->right = floats(d, (size_t)VOCAB * (rank ? rank : 1));
    x->scratch = floats(d, (size_t)ROWS * VOCAB);
    for (int row = 0; row < ROWS; row++) {
        x->keys[2 * row] = roll(d, UINT32_MAX);
        x->positions[row] = roll64(d);
        x->previous[row] = row == 1 ? -1 : (int32_t)roll(d, VOCAB);
    }
}

static void chain_close(struct chain *x)
{
    free(x->logits);
    free(x->left);
    free(x->right);
    free(x->scratch);
}

static int chain_run(struct chain *x, const float *left)
{
    return pp3_draft_chain(&x->c, x->logits, x->keys, x->positions, x->previous, left,
                           x->right, x->scratch, x->ids, x->q, x->tokens, x->confidence,
                           x->faults);
}

/* Each draft of a chain is the proposal of its row and bias by itself. */
static void check_links(struct chain *x, const float *left)
{
    float *bias = malloc(VOCAB * sizeof *bias), q[K], confidence;
    int32_t ids[K], token;
    struct pp3_draft_fault fault;

    for (uint32_t row = 0; row < ROWS; row++)
        for (uint32_t i = 0; i < DEPTH; i++) {
            size_t at = (size_t)row * DEPTH + i;
            int32_t before = i ? x->tokens[at - 1] : x->previous[row];
            for (uint32_t v = 0; left && before >= 0 && v < VOCAB; v++) {
                volatile float sum = x->c.rank ? 0 : left[(size_t)before * VOCAB + v];
                for (uint32_t r = 0; r < x->c.rank; r++) {
                    volatile float product = left[(size_t)before * x->c.rank + r] *
                                             x->right[(size_t)r * VOCAB + v];
                    sum = r ? sum + product : product;
                }
                bias[v] = sum;
            }
            EQUAL(pp3_draft_row(x->logits + at * VOCAB, left && before >= 0 ? bias : 0,
                                VOCAB, K, TAU, x->c.rule, x->keys + 2 * row, x->c.round,
                                x->positions[row] + i, ids, q, &token, &confidence,
                                &fault), 0);
            EQUAL(x->tokens[at], token);
            CHECK(memcmp(ids, x->ids + at * K, sizeof ids) == 0);
            CHECK(memcmp(q, x->q + at * K, sizeof q) == 0);
        }
    free(bias);
}

static void a_chain_is_its_links(void)
{
    struct dice d = dice_of(8);

    for (uint32_t i = 0; i < 3 * effort; i++) {
        struct chain x;
        chain_open(&x, &d, i % 3 == 1 ? RANK : 0);
        const float *left = i % 3 == 2 ? 0 : x.left;
        x.c.rule = (int32_t)(i % 2);
        EQUAL(chain_run(&x, left), 0);
        for (int row = 0; row < ROWS; row++)
            EQUAL(x.faults[row].kind, 0);
        check_links(&x, left);
        chain_close(&x);
        tried(ROWS * DEPTH);
    }
}

static void a_row_given_up_leaves_the_others_alone(void)
{
    struct dice d = dice_of(9);
    struct chain x;

    chain_open(&x, &d, RANK);
    x.logits[(size_t)(1 * DEPTH + 1) * VOCAB + 5] = NAN;
    EQUAL(chain_run(&x, x.left), 0);
    CHECK(x.faults[0].kind == 0 && x.faults[2].kind == 0);
    CHECK(x.faults[1].kind == -EDOM && x.faults[1].depth == 1 && x.faults[1].id == 5);
    for (int i = 0; i < DEPTH; i++)
        CHECK(x.tokens[DEPTH + i] == -1 && x.ids[(DEPTH + i) * K + 9] == 9 &&
              x.tokens[2 * DEPTH + i] >= 0);
    x.left = (free(x.left), (float *)0);
    x.c.rank = 0;
    EQUAL(chain_run(&x, 0), 0);
    chain_close(&x);
}

static void a_chain_out_of_range_writes_nothing(void)
{
    struct dice d = dice_of(10);
    struct chain x;
    int refused = 0;
#define REFUSED(field, value)                                                          \
    do {                                                                               \
        struct pp3_chain kept = x.c;                                                   \
        x.c.field = value;                                                             \
        refused += chain_run(&x, x.left) == -EINVAL;                                   \
        x.c = kept;                                                                    \
    } while (0)

    chain_open(&x, &d, RANK);
    REFUSED(rows, 0);
    REFUSED(depth, 0);
    REFUSED(tau_milli, 0);
    REFUSED(k, 0);
    REFUSED(k, PP3_SUPPORT_MAX + 1);
    REFUSED(vocab, 31);
    REFUSED(vocab, 0x80000000u);
    REFUSED(rule, -1);
    REFUSED(rule, PP3_RULES);
    EQUAL(refused, 9);
    float *kept = x.right;
    x.right = 0;
    EQUAL(chain_run(&x, x.left), -EINVAL);
    x.right = kept;
    kept = x.scratch;
    x.scratch = 0;
    EQUAL(chain_run(&x, x.left), -EINVAL);
    x.scratch = kept;
    x.previous[2] = -2;
    EQUAL(chain_run(&x, x.left), -EINVAL);
    x.previous[2] = VOCAB;
    EQUAL(chain_run(&x, x.left), -EINVAL);
    EQUAL(x.tokens[0], 0);
    chain_close(&x);
}

const struct test draft_tests[] = {
    {"known blocks of Philox", known_blocks_of_philox},
    {"known proposals are made", known_proposals_are_made},
    {"known rows are refused", known_rows_are_refused},
    {"a proposal takes arguments in range", a_proposal_takes_arguments_in_range},
    {"an exp that is wrong gives no proposal", an_exp_that_is_wrong_gives_no_proposal},
    {"a draw follows its counts", a_draw_follows_its_counts},
    {"a chain is its links", a_chain_is_its_links},
    {"a row given up leaves the others alone", a_row_given_up_leaves_the_others_alone},
    {"a chain out of range writes nothing", a_chain_out_of_range_writes_nothing},
    {0, 0},
};
