/* Slots and the note: two seqlocks. */
#include <errno.h>
#include <stdlib.h>

#include "harness.h"
#include "world.h"

static void a_slot_is_read_as_it_was_written(void)
{
    struct world w;
    struct dice d = dice_of(1);
    int32_t tokens[64], out[64];
    uint32_t generation, live;
    uint64_t length, n = 0;

    for (int i = 0; i < 64; i++)
        tokens[i] = (int32_t)roll(&d, 129280);
    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_end(&w, 1);
    for (uint32_t g = 0; g < 20 * effort; g++) {
        n = roll(&d, 20);
        EQUAL(pp3_slot_reset(w.engine, 1, g, tokens, n), 0);
        uint64_t more = roll(&d, 40);
        EQUAL(pp3_slot_append(w.engine, 1, tokens + n, more), 0);
        EQUAL(pp3_slot_read(proxy, 1, out, 64, &generation, &live, &length), 0);
        CHECK(generation == g && live == 1 && length == n + more);
        CHECK(memcmp(out, tokens, 4 * (n + more)) == 0);
    }
    EQUAL(pp3_slot_close(w.engine, 1), 0);
    EQUAL(pp3_slot_read(proxy, 1, out, 64, &generation, &live, &length), 0);
    CHECK(live == 0 && generation == 20 * effort - 1);
    tried(20 * effort);
    world_close(&w);
}

static void a_slot_refuses_what_does_not_fit(void)
{
    struct world w;
    int32_t tokens[65] = {0};
    uint32_t generation, live;
    uint64_t length;

    world_open(&w, 2, 4, 1);
    struct pp3_ring *proxy = world_end(&w, 1);
    EQUAL(pp3_slot_reset(proxy, 0, 1, tokens, 1), -EINVAL);
    EQUAL(pp3_slot_reset(w.engine, 2, 1, tokens, 1), -EINVAL);
    EQUAL(pp3_slot_append(w.engine, 0, tokens, 1), -ENOENT);
    EQUAL(pp3_slot_append(proxy, 0, tokens, 1), -EINVAL);
    EQUAL(pp3_slot_close(proxy, 0), -EINVAL);
    EQUAL(pp3_slot_reset(w.engine, 0, 5, tokens, 65), -ENOSPC);
    EQUAL(pp3_slot_reset(w.engine, 0, 5, tokens, 60), 0);
    EQUAL(pp3_slot_reset(w.engine, 0, 5, tokens, 1), -EINVAL);
    EQUAL(pp3_slot_append(w.engine, 0, tokens, 5), -ENOSPC);
    FORKED(EQUAL(pp3_slot_append(w.engine, 0, tokens, 1), -EOWNERDEAD));
    FORKED(EQUAL(pp3_slot_read(proxy, 0, tokens, 64, &generation, &live, &length),
                 -EOWNERDEAD));
    EQUAL(pp3_slot_read(proxy, 0, tokens, 10, &generation, &live, &length), -ENOBUFS);
    EQUAL(length, 60);
    EQUAL(pp3_slot_read(proxy, 2, tokens, 10, &generation, &live, &length), -EINVAL);
    proxy->slot = 0;
    EQUAL(pp3_slot_read(proxy, 0, tokens, 10, &generation, &live, &length), -EINVAL);
    world_close(&w);
}

static void a_slot_left_half_written_is_no_slot(void)
{
    struct world w;
    int32_t tokens[64] = {0};
    uint32_t generation, live;
    uint64_t length;

    world_open(&w, 2, 4, 1);
    struct pp3_slot *s = (struct pp3_slot *)(void *)w.engine->slot;
    PP3_STORE(&s->version, 1, relaxed);
    EQUAL(pp3_slot_read(w.engine, 0, tokens, 64, &generation, &live, &length), -EAGAIN);
    PP3_STORE(&s->version, 2, relaxed);
    PP3_STORE(&s->length, 65, relaxed); /* more than there is room for */
    EQUAL(pp3_slot_read(w.engine, 0, tokens, 64, &generation, &live, &length), -EBADMSG);
    world_close(&w);
}

/* What is read is written over the slot's own version: as if by a writer beside it. */
static void a_slot_that_changed_meanwhile_is_read_again(void)
{
    struct world w;
    const int32_t token = 64;
    uint32_t generation, live;
    uint64_t length;

    world_open(&w, 2, 4, 1);
    struct pp3_slot *s = (struct pp3_slot *)(void *)w.engine->slot;
    EQUAL(pp3_slot_reset(w.engine, 0, 3, &token, 1), 0);
    EQUAL(pp3_slot_read(w.engine, 0, (int32_t *)(void *)s, 1, &generation, &live,
                        &length), 0);
    CHECK(generation == 3 && length == 1);
    EQUAL(PP3_LOAD(&s->version, relaxed), 64);
    world_close(&w);
}

static void a_note_is_read_as_it_was_written(void)
{
    struct world w;
    uint8_t in[8 * PP3_NOTE_WORDS + 1], out[8 * PP3_NOTE_WORDS];

    for (size_t i = 0; i < sizeof in; i++)
        in[i] = (uint8_t)(i * 7);
    world_open(&w, 2, 4, 1);
    EQUAL(pp3_note_read(w.engine, out), 0);
    for (uint32_t n = 0; n < sizeof in; n += 5) {
        EQUAL(pp3_note_write(w.engine, in, n), 0);
        EQUAL(pp3_note_read(w.engine, out), n);
        CHECK(memcmp(in, out, n) == 0);
    }
    EQUAL(pp3_note_write(w.engine, in, sizeof in), -EMSGSIZE);
    FORKED(EQUAL(pp3_note_write(w.engine, in, 1), -EOWNERDEAD));
    FORKED(EQUAL(pp3_note_read(w.engine, out), -EOWNERDEAD));
    world_close(&w);
}

static void read_in_between(void *argument)
{
    uint8_t out[8 * PP3_NOTE_WORDS];

    EQUAL(pp3_note_read(argument, out), -EAGAIN);
}

static void a_note_left_half_written_is_no_note_until_the_next(void)
{
    struct world w;
    uint8_t out[8 * PP3_NOTE_WORDS];

    world_open(&w, 2, 4, 1);
    at_point(PP3_AT_NOTING, 9, read_in_between, w.engine);
    EQUAL(pp3_note_write(w.engine, (const uint8_t *)"abc", 3), 0);
    EQUAL(pp3_note_read(w.engine, out), 3);
    PP3_STORE(&w.engine->header->note_version, 7, relaxed); /* killed in the middle */
    EQUAL(pp3_note_read(w.engine, out), -EAGAIN);
    EQUAL(pp3_note_write(w.engine, (const uint8_t *)"abcd", 4), 0);
    EQUAL(pp3_note_read(w.engine, out), 4);
    PP3_STORE(&w.engine->header->note_bytes, 8 * PP3_NOTE_WORDS + 1, relaxed);
    EQUAL(pp3_note_read(w.engine, out), -EBADMSG);
    world_close(&w);
}

const struct test slots_tests[] = {
    {"a slot is read as it was written", a_slot_is_read_as_it_was_written},
    {"a slot refuses what does not fit", a_slot_refuses_what_does_not_fit},
    {"a slot left half written is no slot", a_slot_left_half_written_is_no_slot},
    {"a slot that changed meanwhile is read again",
     a_slot_that_changed_meanwhile_is_read_again},
    {"a note is read as it was written", a_note_is_read_as_it_was_written},
    {"a note left half written is no note until the next",
     a_note_left_half_written_is_no_note_until_the_next},
    {0, 0},
};
