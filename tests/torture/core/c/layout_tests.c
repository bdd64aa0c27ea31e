/* STEPs, offsets, and pages of rounds that failed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "frames.h"
#include "harness.h"

static void a_layout_is_one_that_a_profile_can_give(void)
{
    const struct pp3_layout good = {129280, 5, 4, 1 << 20, 1, 0};
    const struct pp3_layout bad[] = {
        {31, 5, 4, 1 << 20, 1, 0},         {0x80000000u, 5, 4, 1 << 20, 1, 0},
        {129280, 3, 4, 1 << 20, 1, 0},     {129280, 6, 4, 1 << 20, 1, 0},
        {129280, 5, 0, 1 << 20, 1, 0},     {129280, 5, 5, 1 << 20, 1, 0},
        {129280, 5, 4, 1 << 20, 2, 0},     {129280, 5, 4, 1 << 20, 1, (1u << 24) + 1},
    };

    EQUAL(pp3_layout_ok(&good), 1);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EQUAL(pp3_layout_ok(&bad[i]), 0);
}

static void offsets_are_the_known_ones(void)
{
    for (unsigned i = 0; i < n_known_layouts; i++) {
        const struct known_layout *k = &known_layouts[i];
        struct pp3_layout l = {129280, k->depth, k->max_slots, 1 << 20, k->sampled, 0};
        struct pp3_page_at at = pp3_page_at(&l);
        const size_t is[7] = {at.status, at.tokens, at.confidence, at.mask,
                              at.ids,    at.q,      at.end};
        for (int f = 0; f < 7; f++)
            EQUAL(is[f], k->at[f]);
        tried(1);
    }
}

static int step_of(struct pair *p)
{
    uint32_t bytes = 0;
    int error = pp3_step_check(&p->known->layout, p->step, p->step_bytes, &bytes);

    if (error == 0)
        EQUAL(bytes, p->step_bytes);
    return error;
}

static void known_steps_are_taken(void)
{
    for (unsigned i = 0; i < n_known_frames; i++) {
        struct pair p;
        uint32_t bytes;
        pair_open(&p, &known_frames[i]);
        EQUAL(step_of(&p), 0);
        EQUAL(pp3_step_check(&p.known->layout, p.step, p.step_bytes - 1, &bytes), -EINVAL);
        EQUAL(pp3_step_check(&p.known->layout, p.step, BODY - 1, &bytes), -EINVAL);
        struct pp3_layout none = {0};
        EQUAL(pp3_step_check(&none, p.step, p.step_bytes, &bytes), -EINVAL);
        pair_close(&p);
    }
}

/* One word of the STEP at an offset gets a value that it must be refused for. */
static void spoilt_step(const struct known_frame *known, size_t at, uint32_t value)
{
    struct pair p;

    pair_open(&p, known);
    put32(p.step + at, value);
    EQUAL(step_of(&p), -EINVAL);
    pair_close(&p);
    tried(1);
}

static void every_bad_field_of_a_step_is_refused(void)
{
    const struct known_frame *k = &known_frames[1]; /* B4 depth 5 */
    struct pp3_step_at at = pp3_step_at(&k->layout, 4);

    spoilt_step(k, 8, 0);                       /* n */
    spoilt_step(k, 8, 5);
    spoilt_step(k, 12, 4);                      /* depth */
    spoilt_step(k, 16, 0);                      /* flags */
    spoilt_step(k, 20, 1);                      /* zero */
    spoilt_step(k, at.draws + 3 * 16 + 8, 2);   /* sampled */
    spoilt_step(k, at.draws + 3 * 16 + 12, 1);  /* its zero */
    spoilt_step(k, at.rows + 32, 4);            /* slot */
    spoilt_step(k, at.rows + 32, 77);
    spoilt_step(k, at.rows + 32, get32(k->step + FRAME + at.rows)); /* twice */
    spoilt_step(k, at.rows + 24, 7);            /* count */
    spoilt_step(k, at.rows + 28, 1);            /* context bytes */
    spoilt_step(k, at.committed, k->layout.vocab);
    spoilt_step(&known_frames[5], 16, 2); /* flags of another mode */
    struct pair p;
    pair_open(&p, k);
    put32(p.step + at.rows + 24, 2); /* two committed, so the third place is -1 */
    put32(p.step + at.committed, 5);
    put32(p.step + at.committed + 4, 6);
    put32(p.step + at.committed + 8, 7);
    EQUAL(step_of(&p), -EINVAL);
    for (size_t place = 2; place < 6; place++)
        put32(p.step + at.committed + 4 * place, UINT32_MAX);
    EQUAL(step_of(&p), 0);
    pair_close(&p);
}

static void a_failed_page_has_its_status_and_nothing_else(void)
{
    for (unsigned i = 0; i < n_known_frames; i++) {
        struct pair p;
        pair_open(&p, &known_frames[i]);
        const struct pp3_layout *l = &p.known->layout;
        struct pp3_page_at to = pp3_page_at(l);
        pp3_fail_page(l, p.step, 7, p.page);
        CHECK(memcmp(p.page, p.step, 8) == 0);
        uint32_t failed = 0;
        for (uint32_t slot = 0; slot < l->max_slots; slot++) {
            uint32_t status = get32(p.page + to.status + 4 * slot);
            CHECK(status == 7 || status == PP3_STATUS_ABSENT);
            failed += status == 7;
            EQUAL((int32_t)get32(p.page + to.tokens + 4 * slot * l->depth), -1);
        }
        EQUAL(failed, p.known->n);
        put32(p.step + 8, 5); /* not a STEP: no row is taken */
        pp3_fail_page(l, p.step, 7, p.page);
        EQUAL(get32(p.page + to.status), PP3_STATUS_ABSENT);
        put32(p.step + 8, 1);
        put32(p.step + pp3_step_at(l, 1).rows, 4); /* no such slot */
        pp3_fail_page(l, p.step, 7, p.page);
        EQUAL(get32(p.page + to.status), PP3_STATUS_ABSENT);
        pair_close(&p);
    }
}

const struct test layout_tests[] = {
    {"a layout is one that a profile can give", a_layout_is_one_that_a_profile_can_give},
    {"offsets are the known ones", offsets_are_the_known_ones},
    {"known steps are taken", known_steps_are_taken},
    {"every bad field of a step is refused", every_bad_field_of_a_step_is_refused},
    {"a failed page has its status and nothing else",
     a_failed_page_has_its_status_and_nothing_else},
    {0, 0},
};
