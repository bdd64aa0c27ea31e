/* Dense q by slot: what is written, what is erased, what is refused. */
#include <math.h>
#include <string.h>

#include "harness.h"
#include "rows.h"
#include "verify/scatter.h"

enum { SLOTS = 2, DEPTH = 2, VOCAB = 40, K = PP3_SCATTER_SUPPORT, ROUND = 7 };

struct scene {
    struct pp3_scatter_rows rows;
    struct pp3_scatter_page page;
    uint64_t *round;
    int32_t *status, *tokens, *mask, *ids;
    float *q;
};

static void scene_open(struct scene *s)
{
    s->rows = (struct pp3_scatter_rows){
        .probs = edged(SLOTS * DEPTH * VOCAB * sizeof(float)),
        .ids = edged(SLOTS * DEPTH * K * sizeof(int64_t)),
        .drafts = edged(SLOTS * DEPTH * sizeof(int64_t)),
        .mode = edged(SLOTS * sizeof(int64_t)),
        .fault = edged(SLOTS * sizeof(int64_t)),
        .round = edged(SLOTS * sizeof(int64_t)),
        .written = edged(SLOTS),
        .seen_ids = edged(DEPTH * (K + 1) * sizeof(int32_t)),
        .seen_q = edged(DEPTH * K * sizeof(float)),
        .slots = SLOTS, .depth = DEPTH, .vocab = VOCAB,
    };
    memset(s->rows.probs, 0, SLOTS * DEPTH * VOCAB * sizeof(float));
    memset(s->rows.written, 0, SLOTS);
    for (int i = 0; i < SLOTS * DEPTH * K; i++)
        s->rows.ids[i] = i % K;
    s->round = edged(sizeof *s->round);
    s->status = edged(SLOTS * sizeof(int32_t));
    s->tokens = edged(SLOTS * DEPTH * sizeof(int32_t));
    s->mask = edged(SLOTS * sizeof(int32_t));
    s->ids = edged(SLOTS * DEPTH * K * sizeof(int32_t));
    s->q = edged(SLOTS * DEPTH * K * sizeof(float));
    s->page = (struct pp3_scatter_page){s->round, s->status, s->tokens,
                                        s->mask,  s->ids,    s->q};
    *s->round = ROUND;
}

/* Every slot sampled: ids from `first`, halves on the first two, the draft the second. */
static void fill(struct scene *s, int32_t first)
{
    memset(s->q, 0, SLOTS * DEPTH * K * sizeof(float));
    for (int slot = 0; slot < SLOTS; slot++) {
        s->status[slot] = 0;
        s->mask[slot] = 1;
        for (int i = slot * DEPTH; i < (slot + 1) * DEPTH; i++) {
            for (int k = 0; k < K; k++)
                s->ids[i * K + k] = first + k;
            s->q[i * K] = s->q[i * K + 1] = 0.5f;
            s->tokens[i] = first + 1;
        }
    }
}

static void take(struct scene *s, const uint8_t *stale)
{
    pp3_scatter_q(&s->rows, &s->page, ROUND, stale);
    tried(1);
}

/* Halves at `first` and behind it, zeros elsewhere; first < 0: zeros. */
static void dense_is(const struct scene *s, int slot, int first)
{
    for (int i = slot * DEPTH; i < (slot + 1) * DEPTH; i++)
        for (int id = 0; id < VOCAB; id++) {
            int some = first >= 0 && (id == first || id == first + 1);
            CHECK(s->rows.probs[i * VOCAB + id] == (some ? 0.5f : 0.0f));
        }
}

static void slot_is(const struct scene *s, int slot, int mode, int fault, int64_t round)
{
    EQUAL(s->rows.mode[slot], mode);
    EQUAL(s->rows.fault[slot], fault);
    EQUAL(s->rows.round[slot], round);
    if (mode == 0)
        EQUAL(s->rows.drafts[slot * DEPTH], -1);
    else
        EQUAL(s->rows.drafts[slot * DEPTH + 1], s->tokens[slot * DEPTH + 1]);
}

static void what_was_written_last_is_erased(void)
{
    struct scene s;
    uint8_t stale[SLOTS] = {1, 0};
    scene_open(&s);
    for (int32_t first = 0; first <= VOCAB - K; first++) {
        fill(&s, first);
        take(&s, NULL);
        for (int slot = 0; slot < SLOTS; slot++) {
            slot_is(&s, slot, 2, 0, ROUND);
            dense_is(&s, slot, first);
        }
    }
    take(&s, stale);
    slot_is(&s, 0, 0, 0, ROUND);
    slot_is(&s, 1, 2, 0, ROUND);
    dense_is(&s, 0, -1);
    EQUAL(s.rows.ids[K - 1], K - 1); /* as in a page without q */
    s.status[1] = 5;
    take(&s, NULL);
    slot_is(&s, 0, 2, 0, ROUND);
    slot_is(&s, 1, 0, 0, ROUND);
    dense_is(&s, 1, -1);
    *s.round = ROUND + 1;
    take(&s, NULL);
    for (int slot = 0; slot < SLOTS; slot++) {
        slot_is(&s, slot, 0, 0, -1);
        dense_is(&s, slot, -1);
    }
    edged_free_all();
}

static void greedy_rows_have_drafts_and_no_q(void)
{
    struct scene s;
    scene_open(&s);
    fill(&s, 3);
    take(&s, NULL);
    s.mask[0] = 0;
    s.ids[0] = -9; /* of a greedy row nothing is looked at but its drafts */
    take(&s, NULL);
    slot_is(&s, 0, 1, 0, ROUND);
    slot_is(&s, 1, 2, 0, ROUND);
    dense_is(&s, 0, -1);
    s.page.mask = s.page.ids = NULL;
    s.page.q = NULL;
    take(&s, NULL);
    for (int slot = 0; slot < SLOTS; slot++) {
        slot_is(&s, slot, 1, 0, ROUND);
        dense_is(&s, slot, -1);
    }
    edged_free_all();
}

/* Slot 1 spoilt in its last draft: it is refused, and slot 0 goes on. */
static void spoilt_is(void (*spoil)(struct scene *), int fault)
{
    struct scene s;
    scene_open(&s);
    fill(&s, 8);
    take(&s, NULL);
    fill(&s, 2);
    spoil(&s);
    take(&s, NULL);
    slot_is(&s, 0, 2, 0, ROUND);
    dense_is(&s, 0, 2);
    slot_is(&s, 1, 0, fault, ROUND);
    dense_is(&s, 1, -1);
    edged_free_all();
}

enum { LAST = SLOTS * DEPTH - 1 };
static void mask_of_two(struct scene *s) { s->mask[1] = 2; }
static void mask_negative(struct scene *s) { s->mask[1] = -1; }
static void token_beyond(struct scene *s) { s->tokens[LAST] = VOCAB; }
static void token_negative(struct scene *s) { s->tokens[LAST] = -1; }
static void id_negative(struct scene *s) { s->ids[LAST * K] = -1; }
static void id_twice(struct scene *s) { s->ids[LAST * K + 9] = s->ids[LAST * K + 8]; }
static void id_beyond(struct scene *s) { s->ids[LAST * K + K - 1] = VOCAB; }
static void q_negative(struct scene *s)
{
    s->q[LAST * K + 5] = -0.5f;
    s->q[LAST * K + 6] = 0.5f;
}
static void q_no_number(struct scene *s) { s->q[LAST * K + 5] = NAN; }
static void q_without_mass(struct scene *s) { s->q[LAST * K] = 0; }
static void draft_without_q(struct scene *s) { s->tokens[LAST] = 2 + 7; }
static void draft_off_support(struct scene *s) { s->tokens[LAST] = VOCAB - 1; }
static void both(struct scene *s)
{
    s->q[(LAST - 1) * K] = 0;
    s->ids[LAST * K] = -1;
}

static void a_spoilt_row_is_refused_alone(void)
{
    spoilt_is(mask_of_two, PP3_SCATTER_MASK);
    spoilt_is(mask_negative, PP3_SCATTER_MASK);
    spoilt_is(token_beyond, PP3_SCATTER_TOKEN);
    spoilt_is(token_negative, PP3_SCATTER_TOKEN);
    spoilt_is(id_negative, PP3_SCATTER_IDS);
    spoilt_is(id_twice, PP3_SCATTER_IDS);
    spoilt_is(id_beyond, PP3_SCATTER_IDS);
    spoilt_is(q_negative, PP3_SCATTER_Q);
    spoilt_is(q_no_number, PP3_SCATTER_Q);
    spoilt_is(q_without_mass, PP3_SCATTER_Q);
    spoilt_is(draft_without_q, PP3_SCATTER_Q);
    spoilt_is(draft_off_support, PP3_SCATTER_Q);
    spoilt_is(both, PP3_SCATTER_IDS); /* a wild id comes first, wherever it stands */
}

const struct test scatter_tests[] = {
    {"what was written last is erased", what_was_written_last_is_erased},
    {"greedy rows have drafts and no q", greedy_rows_have_drafts_and_no_q},
    {"a spoilt row is refused alone", a_spoilt_row_is_refused_alone},
    {0, 0},
};
