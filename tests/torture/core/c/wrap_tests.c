/* Every counter of the protocol, started near every power of two it can reach. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "frames.h"
#include "harness.h"
#include "layout/crc.h"
#include "proxy/exchange.h"
#include "world.h"

enum { NEAR = 7, ROUNDS = 3 }; /* steps across the power, about half before it */

/* 2^k - NEAR / 2, in 64 bits; 2^64 is 0. At least 1. */
static uint64_t before(unsigned k)
{
    uint64_t power = k < 64 ? UINT64_C(1) << k : 0, from = power - NEAR / 2;

    return power != 0 && power <= NEAR / 2 ? 1 : from;
}

/* Every word that counts, near 2^k where it is as wide as that. */
static void set_words(struct world *w, unsigned k)
{
    uint64_t wide = before(k);
    uint32_t narrow = (uint32_t)before(k < 32 ? k : 32);
    struct pp3_header *h = w->engine->header;

    for (uint32_t e = 0; e < w->shape.rounds; e++) {
        PP3_STORE(&w->engine->entries[e].seq, narrow, relaxed);
        /* Left behind by killed sleepers; 2^32 of them on one entry are not tried. */
        if (k < 32)
            PP3_STORE(&w->engine->entries[e].waiters, narrow, relaxed);
    }
    PP3_STORE(&h->work_seq, narrow, relaxed);
    if (k < 32)
        PP3_STORE(&h->work_waiters, narrow, relaxed);
    for (uint32_t i = 0; i < PP3_COUNTERS; i++)
        PP3_STORE(&h->counters[i], wide, relaxed);
    PP3_STORE(&h->note_version, wide & ~UINT64_C(1), relaxed);
    PP3_STORE(&w->engine->engine->last_owner, narrow, relaxed);
}

/* One round, ended in one of five ways; what it leaves is looked at. */
static void one_round(struct world *w, struct pp3_ring *proxy, uint64_t t)
{
    uint64_t heads[6] = {t, t, t, t, t, t}, word = 0, got[3];
    uint32_t index = 0, way = (uint32_t)(t % 5);

    EQUAL(pp3_claim(w->engine, heads, way == 1 ? 1 : FAR), t);
    memcpy(pp3_request_of(w->engine, t), &t, 8);
    if (way != 0)
        EQUAL(pp3_submit(w->engine, t), 0);
    uint64_t mine = way != 0 ? take_one(proxy) : 0;
    if (way != 0)
        EQUAL(pp3_ticket(mine), t);
    if (way == 0)
        EQUAL(pp3_cancel(w->engine, t), 0);
    else if (way == 1)
        (void)pp3_expire(w->engine, 2);
    else if (way == 2)
        EQUAL(pp3_resolve(w->engine, t, PP3_ORPHANED, &word), 0);
    if (way != 0)
        EQUAL(answer(proxy, mine), way < 3 ? -ESTALE : 0);
    EQUAL(pp3_wait(w->engine, t, FAR, 0, &word), 0);
    EQUAL(pp3_ticket(word), t);
    int status = pp3_read(w->engine, word, &index);
    EQUAL(status, way == 0 ? PP3_CANCELLED : way == 1 ? PP3_EXPIRED
                  : way == 2 ? PP3_ORPHANED : 0);
    if (status > 0) {
        memcpy(got, w->engine->failed + index * w->engine->failed_stride, sizeof got);
        CHECK(got[0] == t && got[1] == t && got[2] == (uint64_t)status);
    } else {
        EQUAL(page_words(w->engine, index)[WORDS - 1], t);
    }
    EQUAL(pp3_wait(w->engine, t + (UINT64_C(1) << 32), FAR, 0, &word), -ESTALE);
    release_all(w, t);
    tried(1);
}

static void a_ticket_passes_every_power_of_two(void)
{
    for (unsigned k = 1; k <= 40; k++)
        for (uint32_t rounds = 1; rounds <= 8; rounds += rounds == 1 ? 2 : 5) {
            struct world w;
            world_open(&w, rounds, 2 * rounds, RANKS);
            world_ranks(&w);
            set_words(&w, k);
            uint64_t from = before(k), last = from + NEAR + rounds;
            EQUAL(pp3_skip_tickets(w.engine, from), 0);
            struct pp3_ring *proxy = world_proxy(&w);
            proxy->cursor = from - 1;
            for (uint64_t t = from; t < last && t < PP3_LAST_TICKET; t++)
                one_round(&w, proxy, t);
            if (last > PP3_LAST_TICKET)
                for (int i = 0; i < 3; i++)
                    EQUAL(pp3_claim(w.engine, 0, FAR), -EOVERFLOW);
            world_close(&w);
        }
}

struct crossing {
    struct world w;
    uint64_t from, last;
    struct pp3_ring *proxy, *rank;
};

static void *serve_across(void *argument)
{
    struct crossing *x = argument;

    for (uint64_t t = x->from; t < x->last;) {
        uint64_t mine = take_one(x->proxy);
        if (!mine) {
            (void)pp3_proxy_sleep(x->proxy, -1, -1, 0, 100000000);
            continue;
        }
        EQUAL(pp3_ticket(mine), t);
        EQUAL(answer(x->proxy, mine), 0);
        t++;
    }
    return 0;
}

static void read_across(struct crossing *x, struct pp3_ring *r, uint32_t rank, uint64_t t)
{
    uint64_t word = 0;
    uint32_t index = 0;
    int status;

    while ((status = pp3_wait(r, t, FAR, 0, &word)) == -ESTALE)
        doze(); /* not claimed yet */
    EQUAL(status, 0);
    EQUAL(pp3_read(r, word, &index), 0);
    EQUAL(page_words(r, index)[0], t);
    EQUAL(pp3_release(r, rank, t), 0);
    (void)x;
}

static void *rank_across(void *argument)
{
    struct crossing *x = argument;

    for (uint64_t t = x->from; t < x->last; t++)
        read_across(x, x->rank, 1, t);
    return 0;
}

static void sleepers_are_woken_across_every_power_of_two(void)
{
    for (unsigned k = 1; k <= 40; k++) {
        struct crossing x = {.from = before(k)};
        pthread_t thread[2];
        int64_t t;
        x.last = x.from + NEAR < PP3_LAST_TICKET ? x.from + NEAR : PP3_LAST_TICKET;
        world_open(&x.w, ROUNDS, 2 * ROUNDS, 2);
        world_ranks(&x.w);
        set_words(&x.w, k);
        EQUAL(pp3_skip_tickets(x.w.engine, x.from), 0);
        x.proxy = world_proxy(&x.w);
        x.proxy->cursor = x.from - 1;
        x.rank = world_end(&x.w, 0);
        CHECK(pthread_create(&thread[0], 0, serve_across, &x) == 0);
        CHECK(pthread_create(&thread[1], 0, rank_across, &x) == 0);
        for (uint64_t next = x.from; next < x.last;) {
            if ((t = ask(x.w.engine, FAR)) < 0) {
                CHECK(t == -EBUSY || t == -EAGAIN);
                doze();
                continue;
            }
            EQUAL(t, next);
            read_across(&x, x.w.engine, 0, next++);
            tried(1);
        }
        for (int i = 0; i < 2; i++)
            (void)pthread_join(thread[i], 0);
        world_close(&x.w);
    }
}

static void a_wake_across_the_end_of_seq_is_no_lost_one(void)
{
    struct world w;

    world_open(&w, 1, 2, 1);
    struct pp3_entry *n = &w.engine->entries[0];
    for (unsigned k = 1; k <= 32; k++) {
        uint32_t seen = (uint32_t)before(k) + NEAR / 2 - 1; /* 2^k - 1 */
        PP3_STORE(&n->seq, seen + 1, relaxed);
        pp3_note_late(w.engine, n, seen);
        tried(1);
    }
    EQUAL(pp3_counter(w.engine, PP3_COUNT_LOST_WAKES), 0);
    PP3_STORE(&n->seq, UINT32_MAX, relaxed);
    pp3_note_late(w.engine, n, UINT32_MAX); /* that one is */
    EQUAL(pp3_counter(w.engine, PP3_COUNT_LOST_WAKES), 1);
    world_close(&w);
}

static void generations_go_up_to_the_last_one(void)
{
    const int32_t token = 7;

    for (unsigned k = 1; k <= 32; k++) {
        struct world w;
        uint32_t read, live;
        uint64_t length;
        int32_t out;
        world_open(&w, 1, 2, 1);
        struct pp3_slot *s = (struct pp3_slot *)(void *)w.engine->slot;
        PP3_STORE(&s->version, before(2 * k) & ~UINT64_C(1), relaxed);
        for (uint64_t g = before(k) & UINT32_MAX, i = 0; i < NEAR; i++, g++) {
            if (g > UINT32_MAX)
                break;
            EQUAL(pp3_slot_reset(w.engine, 0, (uint32_t)g, &token, 1), 0);
            EQUAL(pp3_slot_read(w.engine, 0, &out, 1, &read, &live, &length), 0);
            EQUAL(read, g);
            EQUAL(pp3_slot_reset(w.engine, 0, (uint32_t)g, &token, 1), -EINVAL);
            EQUAL(pp3_slot_reset(w.engine, 0, (uint32_t)g - 1, &token, 1), -EINVAL);
            EQUAL(pp3_slot_reset(w.engine, 0, (uint32_t)g / 2, &token, 1), -EINVAL);
            tried(1);
        }
        if (k == 32)
            EQUAL(pp3_slot_reset(w.engine, 0, 0, &token, 1), -EINVAL); /* no way round */
        world_close(&w);
    }
}

struct seqlocks { struct world w; unsigned k; _Atomic int over; };

static void *read_locks(void *argument)
{
    struct seqlocks *x = argument;
    uint8_t note[8 * PP3_NOTE_WORDS];
    int32_t out[60];
    uint32_t generation, live;
    uint64_t length;

    while (!atomic_load(&x->over)) {
        int error = pp3_slot_read(x->w.engine, 0, out, 60, &generation, &live, &length);
        CHECK(error == 0 || error == -EAGAIN);
        for (uint64_t i = 0; error == 0 && i < length; i++)
            CHECK(out[i] == (int32_t)generation);
        int n = pp3_note_read(x->w.engine, note);
        CHECK(n >= 0 || n == -EAGAIN);
        for (int i = 1; i < n; i++)
            CHECK(note[i] == note[0]);
    }
    return 0;
}

static void versions_wrap_under_a_reader(void)
{
    for (unsigned k = 1; k <= 64; k++) {
        struct seqlocks x = {.k = k};
        uint8_t note[8 * PP3_NOTE_WORDS];
        int32_t tokens[60];
        pthread_t thread;
        world_open(&x.w, 1, 2, 1);
        struct pp3_slot *s = (struct pp3_slot *)(void *)x.w.engine->slot;
        PP3_STORE(&s->version, before(k) & ~UINT64_C(1), relaxed);
        PP3_STORE(&x.w.engine->header->note_version, before(k) & ~UINT64_C(1), relaxed);
        CHECK(pthread_create(&thread, 0, read_locks, &x) == 0);
        for (uint32_t g = 1; g <= 20 * effort; g++) {
            for (int i = 0; i < 60; i++)
                tokens[i] = (int32_t)g;
            memset(note, (int)(g & 255), sizeof note);
            EQUAL(pp3_slot_reset(x.w.engine, 0, g, tokens, 60), 0);
            EQUAL(pp3_note_write(x.w.engine, note, sizeof note), 0);
            tried(1);
        }
        atomic_store(&x.over, 1);
        (void)pthread_join(thread, 0);
        EQUAL(PP3_LOAD(&s->version, relaxed),
              (before(k) & ~UINT64_C(1)) + 40 * (uint64_t)effort);
        world_close(&x.w);
    }
}

static void owner_ids_stay_apart_when_their_counter_wraps(void)
{
    for (unsigned k = 1; k <= 32; k++)
        for (int full = 0; full < 2; full++) {
            struct world w;
            uint32_t seen[PP3_MAX_OWNERS + 1] = {0};
            world_open(&w, 1, 2, 1);
            PP3_STORE(&w.engine->engine->last_owner, (uint32_t)before(k), relaxed);
            int wanted = full ? (int)PP3_MAX_OWNERS : NEAR;
            for (int i = 0; i < wanted; i++) {
                int id = pp3_owner_add(w.engine);
                /* where the counter wraps a look is lost: 2^32 is no multiple of 255 */
                if (id == -EUSERS && i == wanted - 1)
                    id = pp3_owner_add(w.engine);
                CHECK(id > 0 && id <= (int)PP3_MAX_OWNERS && seen[id]++ == 0);
                tried(1);
            }
            world_close(&w);
        }
}

static void clocks_and_counters_pass_every_power_of_two(void)
{
    for (unsigned k = 1; k < 64; k++) {
        struct world w;
        uint64_t power = UINT64_C(1) << k, word = 0;
        world_open(&w, 2, 4, 1);
        set_words(&w, k);
        EQUAL(pp3_claim(w.engine, 0, power), 1);
        EQUAL(pp3_claim(w.engine, 0, power + 2), 2);
        EQUAL(pp3_expire(w.engine, power - 1), power);
        EQUAL(pp3_word(w.engine, 1, &word), 0);
        EQUAL(pp3_state(word), PP3_CLAIMED);
        EQUAL(pp3_expire(w.engine, power), power + 2);
        EQUAL(pp3_word(w.engine, 1, &word), 0);
        EQUAL(pp3_state(word), PP3_FAILED + PP3_EXPIRED);
        EQUAL(pp3_expire(w.engine, power + 2), power + 2 + PP3_IDLE_NS);
        EQUAL(pp3_counter(w.engine, PP3_COUNT_EXPIRED), before(k) + 2);
        tried(2);
        world_close(&w);
    }
}

/* A frame whose fields are near 2^k, held against one that differs in bit k alone. */
static void wire_fields_near(unsigned k)
{
    struct pair p;
    struct pp3_reply_at at;
    struct pp3_step_at from;
    uint64_t round = before(k), bit = UINT64_C(1) << (k < 64 ? k : 63);
    uint64_t sequence = ~before(k);

    pair_open(&p, &known_frames[1]);
    struct known_frame k2 = *p.known;
    p.known = &k2;
    at = pp3_reply_at(&k2.layout, 4);
    from = pp3_step_at(&k2.layout, 4);
    k2.reply_sequence = sequence;
    memcpy(p.step, &round, 8);
    memcpy(p.reply + FRAME, &round, 8);
    memcpy(p.reply + 16, &sequence, 8);
    put32(p.step + from.rows + 4, (uint32_t)before(k));
    put32(p.reply + FRAME + at.generation, (uint32_t)before(k));
    EQUAL(pair_accept_sealed(&p), PP3_REASON_NONE);
    CHECK(memcmp(p.page, &round, 8) == 0);
    round ^= bit;
    memcpy(p.reply + FRAME, &round, 8);
    EQUAL(pair_accept_sealed(&p), PP3_REASON_HEADER);
    round ^= bit;
    memcpy(p.reply + FRAME, &round, 8);
    k2.reply_sequence ^= bit;
    EQUAL(pair_accept_sealed(&p), PP3_REASON_FRAME);
    k2.reply_sequence ^= bit;
    if (k < 32) {
        put32(p.reply + FRAME + at.generation, (uint32_t)(before(k) ^ bit));
        EQUAL(pair_accept_sealed(&p), PP3_REASON_ECHO);
    }
    pair_close(&p);
    tried(1);
}

static void wire_fields_count_in_every_bit(void)
{
    for (unsigned k = 0; k <= 64; k++)
        wire_fields_near(k);
}

static void a_step_of_another_round_is_found_in_every_bit(void)
{
    for (unsigned k = 1; k < 64; k++) {
        struct pair p;
        pair_open(&p, &known_frames[1]);
        struct pp3_shape shape = {
            .rounds = 2, .pages = 4, .ranks = 1, .page_bytes = 8192,
            .request_bytes = (uint32_t)p.step_bytes, .failed_bytes = 24,
            .head_bytes = 16, .slots = 1, .max_positions = 64,
        };
        struct world w;
        world_open_shape(&w, &shape);
        uint64_t t = before(k < 40 ? k : 40), other, mine = 0;
        uint32_t bytes;
        EQUAL(pp3_skip_tickets(w.engine, t), 0);
        struct pp3_ring *proxy = world_proxy(&w);
        proxy->cursor = t - 1;
        EQUAL(pp3_step(w.engine, p.step, (uint32_t)p.step_bytes, 0, FAR), t);
        EQUAL(pp3_take_step(proxy, &p.known->layout, &mine, p.step, p.step_bytes, &bytes),
              1);
        EQUAL(pp3_claim(w.engine, 0, FAR), t + 1);
        other = (t + 1) ^ UINT64_C(1) << k;
        memcpy(pp3_request_of(w.engine, t + 1), p.step, p.step_bytes);
        memcpy(pp3_request_of(w.engine, t + 1), &other, 8);
        EQUAL(pp3_submit(w.engine, t + 1), 0);
        EQUAL(pp3_take_step(proxy, &p.known->layout, &mine, p.step, p.step_bytes, &bytes),
              -EINVAL);
        world_close(&w);
        pair_close(&p);
        tried(1);
    }
}

const struct test wrap_tests[] = {
    {"wrap: a ticket passes every power of two", a_ticket_passes_every_power_of_two},
    {"wrap: sleepers are woken across every power of two",
     sleepers_are_woken_across_every_power_of_two},
    {"wrap: a wake across the end of seq is no lost one",
     a_wake_across_the_end_of_seq_is_no_lost_one},
    {"wrap: generations go up to the last one", generations_go_up_to_the_last_one},
    {"wrap: versions wrap under a reader", versions_wrap_under_a_reader},
    {"wrap: owner ids stay apart when their counter wraps",
     owner_ids_stay_apart_when_their_counter_wraps},
    {"wrap: clocks and counters pass every power of two",
     clocks_and_counters_pass_every_power_of_two},
    {"wrap: wire fields count in every bit", wire_fields_count_in_every_bit},
    {"wrap: a step of another round is found in every bit",
     a_step_of_another_round_is_found_in_every_bit},
    {0, 0},
};
