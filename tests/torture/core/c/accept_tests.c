/* REPLYs: known ones, every check by itself, and drawn faults. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "frames.h"
#include "harness.h"
#include "layout/crc.h"
#include "layout/draft.h"

static void known_replies_give_their_known_pages(void)
{
    for (unsigned i = 0; i < n_known_frames; i++) {
        struct pair p;
        uint64_t round = 0;
        pair_open(&p, &known_frames[i]);
        EQUAL(p.page_bytes, p.known->page_bytes);
        EQUAL(pair_accept(&p), PP3_REASON_NONE);
        CHECK(memcmp(p.page, p.known->page, p.page_bytes) == 0);
        EQUAL(pp3_reply_round(p.reply, p.reply_bytes, &round), 0);
        EQUAL(round, p.known->round);
        EQUAL(pp3_reply_round(p.reply, FRAME + 7, &round), -EINVAL);
        pair_close(&p);
    }
    tried(n_known_frames);
}

static void known_bad_replies_give_their_known_reasons(void)
{
    for (unsigned i = 0; i < n_known_bads; i++) {
        const struct known_bad *bad = &known_bads[i];
        struct pair p;
        pair_open(&p, &known_frames[bad->base]);
        free(p.reply);
        p.reply = copied(bad->reply, p.reply_bytes = bad->reply_bytes);
        EQUAL(pair_accept(&p), bad->reason);
        EQUAL(p.fault.reason, bad->reason);
        pair_close(&p);
    }
    tried(n_known_bads);
}

/* One word of the reply's body changed, and the CRC made right. */
static void spoilt(const struct known_frame *k, size_t at, uint32_t value, int reason)
{
    struct pair p;

    pair_open(&p, k);
    put32(p.reply + FRAME + at, value);
    EQUAL(pair_accept_sealed(&p), reason);
    pair_close(&p);
    tried(1);
}

static void every_field_of_a_reply_is_held_against_its_step(void)
{
    const struct known_frame *k = &known_frames[1], *mixed = &known_frames[2];
    const struct known_frame *greedy = &known_frames[5];
    struct pp3_reply_at at = pp3_reply_at(&k->layout, 4);

    for (size_t word = 0; word < 6; word++) /* round, n, depth, flags, zero */
        spoilt(k, 4 * word, 9, PP3_REASON_HEADER);
    spoilt(k, at.generation, 1, PP3_REASON_ECHO);
    spoilt(k, at.status, UINT32_MAX, PP3_REASON_ECHO);
    spoilt(k, at.status, 9, PP3_REASON_ECHO);
    for (size_t word = 0; word < 4; word++)
        spoilt(k, at.trailer + 4 * word, 77, PP3_REASON_TRAILER);
    spoilt(k, at.mask, 0, PP3_REASON_MASK);
    spoilt(k, at.tokens, k->layout.vocab, PP3_REASON_TOKEN);
    spoilt(k, at.confidence, 0x3f800001, PP3_REASON_TOKEN); /* above 1 */
    spoilt(k, at.confidence, 0xbf800000, PP3_REASON_TOKEN);
    spoilt(k, at.ids, get32(k->reply + FRAME + at.ids + 4), PP3_REASON_SUPPORT);
    spoilt(k, at.q, 0x00000001, PP3_REASON_PROBABILITY); /* denormal */
    spoilt(k, at.q, 0x7f800000, PP3_REASON_PROBABILITY);
    spoilt(k, at.q, 0x3f800001, PP3_REASON_MASS); /* above 1 */
    spoilt(greedy, at.tokens, greedy->layout.vocab, PP3_REASON_TOKEN);
    for (uint32_t row = 0, greedy_rows = 0; row < 4 && !greedy_rows; row++)
        if (!get32(mixed->reply + FRAME + at.mask + 4 * row)) {
            greedy_rows++;
            spoilt(mixed, at.q + (size_t)row * 5 * 128, 0x33800000,
                   PP3_REASON_PROBABILITY);
            spoilt(mixed, at.ids + (size_t)row * 5 * 128, 3, PP3_REASON_SUPPORT);
        }
}

static void the_token_must_be_in_the_support_with_some_mass(void)
{
    const struct known_frame *k = &known_frames[1];
    struct pp3_reply_at at = pp3_reply_at(&k->layout, 4);
    uint32_t token = get32(k->reply + FRAME + at.tokens), place = 0;

    while (get32(k->reply + FRAME + at.ids + 4 * (size_t)place) != token)
        place++;
    uint32_t other = place ? 0 : 1;
    spoilt(k, at.tokens, get32(k->reply + FRAME + at.ids + 124) == 129279 ? 129278 : 129279,
           PP3_REASON_MASS); /* not among the ids */
    struct pair p;
    pair_open(&p, k);
    uint8_t *q = p.reply + FRAME + at.q;
    float all = 0, one;
    memcpy(&one, q + 4 * (size_t)place, 4);
    memcpy(&all, q + 4 * (size_t)other, 4);
    all += one; /* exact: both are counts / 2^24 */
    memcpy(q + 4 * (size_t)other, &all, 4);
    put32(q + 4 * (size_t)place, 0);
    EQUAL(pair_accept_sealed(&p), PP3_REASON_MASS);
    EQUAL(p.fault.index, -1);
    pair_close(&p);
}

static void a_late_reply_is_told_from_a_broken_one(void)
{
    const struct known_frame *k = &known_frames[1];
    struct pair p;

    pair_open(&p, k);
    free(p.step);
    p.step = 0; /* nobody awaits it */
    EQUAL(pair_accept(&p), PP3_REASON_HEADER);
    p.reply[FRAME + 100] ^= 1;
    EQUAL(pair_accept(&p), PP3_REASON_CRC);
    p.reply[0] ^= 1;
    EQUAL(pair_accept(&p), PP3_REASON_FRAME);
    p.reply[0] ^= 1;
    put32(p.reply + FRAME + 8, 0);
    EQUAL(pair_accept(&p), PP3_REASON_FRAME);
    put32(p.reply + FRAME + 8, 5);
    EQUAL(pair_accept(&p), PP3_REASON_FRAME);
    free(p.reply);
    p.reply_bytes = FRAME + BODY - 1;
    p.reply = copied(k->reply, p.reply_bytes);
    EQUAL(pair_accept(&p), PP3_REASON_FRAME);
    pair_close(&p);
}

static void every_field_of_a_frames_head_counts(void)
{
    const struct known_frame *k = &known_frames[1];

    for (size_t at = 0; at < FRAME; at++) {
        struct pair p;
        pair_open(&p, k);
        p.reply[at] ^= 0x10;
        EQUAL(pair_accept(&p), PP3_REASON_FRAME);
        pair_close(&p);
    }
    struct pp3_layout none = {0};
    struct pair p;
    pair_open(&p, k);
    EQUAL(pp3_accept(&none, p.step, p.reply, p.reply_bytes, k->session,
                     k->reply_sequence, p.page, &p.fault), PP3_REASON_FRAME);
    pair_close(&p);
    spoilt(&known_frames[5], 0, 1, PP3_REASON_HEADER);
}

static void a_step_that_is_none_gives_no_page(void)
{
    const struct known_frame *k = &known_frames[1];
    struct pp3_step_at at = pp3_step_at(&k->layout, 4);
    const struct { size_t at; uint32_t value; } bad[] = {
        {8, 0}, {8, 5}, {at.rows, 4}, {at.rows + 3 * 32, UINT32_MAX},
    };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct pair p;
        pair_open(&p, k);
        put32(p.step + bad[i].at, bad[i].value);
        EQUAL(pair_accept(&p), PP3_REASON_HEADER);
        pair_close(&p);
    }
}

/* The wide checks take two registers: any of their 32 places may be the wrong one. */
static void every_place_of_a_support_is_checked(void)
{
    static const struct { uint32_t word; int reason; } bad[] = {
        {0x80000000, PP3_REASON_PROBABILITY}, /* -0.0 */
        {0xbf000000, PP3_REASON_PROBABILITY}, {0x7fc00000, PP3_REASON_PROBABILITY},
        {0xff800000, PP3_REASON_PROBABILITY}, {0x337fffff, PP3_REASON_PROBABILITY},
        {0x33c00000, PP3_REASON_PROBABILITY}, /* one and a half counts */
        {0x40000000, PP3_REASON_MASS},        {0x3f800000, PP3_REASON_MASS},
    };
    const struct known_frame *k = &known_frames[1];
    struct pp3_reply_at at = pp3_reply_at(&k->layout, 4);

    for (size_t place = 0; place < PP3_SUPPORT; place++) {
        size_t id = at.ids + 4 * place;
        spoilt(k, id, k->layout.vocab, PP3_REASON_SUPPORT);
        spoilt(k, id, UINT32_MAX, PP3_REASON_SUPPORT);
        if (place > 0)
            spoilt(k, id, get32(k->reply + FRAME + id - 4), PP3_REASON_SUPPORT);
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
            spoilt(k, at.q + 4 * place, bad[i].word, bad[i].reason);
    }
}

static void the_first_wrong_entry_is_named(void)
{
    int32_t id[PP3_SUPPORT];
    float q[PP3_SUPPORT] = {0};

    for (int i = 0; i < PP3_SUPPORT; i++)
        id[i] = i;
    EQUAL(pp3_wrong_id(id, 100, true), -1);
    EQUAL(pp3_wrong_id(id, 100, false), -1);
    EQUAL(pp3_wrong_id(id, 9, true), 9);
    EQUAL(pp3_ids_ok(id, 31), 0);
    EQUAL(pp3_wrong_q(q, true), -1);
    EQUAL(pp3_wrong_q(q, false), -1);
    EQUAL(pp3_used_q(q), -1);
    EQUAL(pp3_place(id, 5), 6);
    EQUAL(pp3_place(id, 50), 0);
    q[7] = 1.5f * 0x1p-24f;
    EQUAL(pp3_wrong_q(q, true), 7); /* one and a half counts */
    q[7] = 0x1p-25f;
    EQUAL(pp3_wrong_q(q, true), 7); /* less than one */
    q[7] = -1;
    EQUAL(pp3_wrong_q(q, true), 7);
    q[7] = 2;
    EQUAL(pp3_wrong_q(q, false), 7);
    EQUAL(pp3_used_q(q), 7);
    id[3] = 9;
    EQUAL(pp3_wrong_id(id, 100, true), 4);
    EQUAL(pp3_wrong_id(id, 100, false), 3);
    id[0] = -1;
    EQUAL(pp3_wrong_id(id, 100, true), 0);
    EQUAL(pp3_ids_ok(id, 100), 0);
    for (int i = 0; i < PP3_SUPPORT; i++)
        id[i] = 4;
    EQUAL(pp3_place(id, 4), 0); /* the places add up to more than there are */
}

static const uint32_t odd_words[] = {0,          1,          2,          5,
                                     129280,     0x3f800000, 0x7f800000, 0x7fc00000,
                                     0x80000000, 0xffffffff};

static void spoil(struct dice *d, uint8_t *block, size_t size)
{
    for (uint32_t times = roll(d, 4); times > 0 && size >= 4; times--) {
        uint32_t word = roll(d, 2) ? odd_words[roll(d, 10)] : roll(d, UINT32_MAX);
        size_t at = 4 * (size_t)roll(d, (uint32_t)(size / 4));
        size_t end = roll(d, 4) ? at + 4 : at + 128;
        for (; at + 4 <= size && at < end; at += 4)
            put32(block + at, word);
    }
}

static void one_faulty_reply(struct dice *d, unsigned long given[11])
{
    struct pair p;
    uint32_t bytes;
    uint64_t round;

    pair_open(&p, &known_frames[roll(d, n_known_frames)]);
    if (!roll(d, 20)) {
        free(p.reply);
        p.reply_bytes = roll(d, (uint32_t)p.known->reply_bytes);
        p.reply = copied(p.known->reply, p.reply_bytes);
    }
    size_t kept = p.reply_bytes > FRAME && roll(d, 8) ? FRAME : 0;
    spoil(d, p.reply + kept, p.reply_bytes - kept);
    if (!roll(d, 10)) { /* what a proxy holds is as long as a request may be */
        uint8_t *longest = calloc(1, pp3_step_at(&p.known->layout, 4).end);
        memcpy(longest, p.step, p.step_bytes);
        free(p.step);
        spoil(d, p.step = longest, p.step_bytes);
    }
    (void)pp3_step_check(&p.known->layout, p.step, roll(d, (uint32_t)p.step_bytes + 1),
                         &bytes);
    (void)pp3_reply_round(p.reply, p.reply_bytes, &round);
    int reason = p.reply_bytes >= FRAME + PP3_CRC_BYTES && roll(d, 8)
                     ? pair_accept_sealed(&p) : pair_accept(&p);
    CHECK(reason >= 0 && reason <= PP3_REASON_MASS && reason == p.fault.reason);
    given[reason]++;
    pp3_fail_page(&p.known->layout, p.step, 2, p.page);
    pair_close(&p);
}

static void no_faulty_reply_leads_outside_its_memory(void)
{
    struct dice d = dice_of(4);
    unsigned long given[11] = {0};

    for (uint32_t i = 0; i < 1000 * effort; i++) {
        one_faulty_reply(&d, given);
    }
    for (int reason = 0; reason < 11; reason++)
        CHECK(given[reason] > 0);
    tried(1000 * effort);
}

const struct test accept_tests[] = {
    {"known replies give their known pages", known_replies_give_their_known_pages},
    {"known bad replies give their known reasons",
     known_bad_replies_give_their_known_reasons},
    {"every field of a reply is held against its step",
     every_field_of_a_reply_is_held_against_its_step},
    {"the token must be in the support, with some mass",
     the_token_must_be_in_the_support_with_some_mass},
    {"a late reply is told from a broken one", a_late_reply_is_told_from_a_broken_one},
    {"every byte of a frame's head counts", every_field_of_a_frames_head_counts},
    {"a step that is none gives no page", a_step_that_is_none_gives_no_page},
    {"every place of a support is checked", every_place_of_a_support_is_checked},
    {"the first wrong entry is named", the_first_wrong_entry_is_named},
    {"no faulty reply leads outside its memory",
     no_faulty_reply_leads_outside_its_memory},
    {0, 0},
};
