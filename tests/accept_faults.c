/* Faulty STEPs and REPLYs under the sanitizers, in heap blocks of their exact size.
 *
 * usage: accept_faults STEP REPLY N SEED: frames of a B4 depth 5 profile of vocabulary
 * 129280, and how many faults to try. Prints how often each reason was given. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/accept.h"
#include "layout/crc.h"

enum { HEADER = 40, MOST = 8192 };

static uint64_t state;

static uint32_t draw(uint32_t below) /* xorshift: the same in every run */
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}

static size_t read_file(const char *name, uint8_t *to)
{
    FILE *file = fopen(name, "rb");
    size_t size = file ? fread(to, 1, MOST, file) : 0;
    if (file)
        fclose(file);
    return size;
}

static const uint32_t words[] = {0,          1,          2,          5,          129280,
                                 0x3f800000, 0x7f800000, 0x7fc00000, 0x80000000, 0xffffffff};

/* Some words of a block replaced, some stretch of it filled with one word. */
static void spoil(uint8_t *block, size_t size)
{
    for (uint32_t times = draw(4); times > 0 && size >= 4; times--) {
        uint32_t word = draw(2) ? words[draw(10)] : draw(UINT32_MAX);
        size_t at = 4 * (size_t)draw((uint32_t)(size / 4));
        size_t end = draw(4) ? at + 4 : at + 128;
        for (; at + 4 <= size && at < end; at += 4)
            memcpy(block + at, &word, 4);
    }
}

static uint8_t *copy_of(const uint8_t *from, size_t size)
{
    uint8_t *block = calloc(size ? size : 1, 1);
    if (!block)
        abort();
    memcpy(block, from, size);
    return block;
}

int main(int argc, char **argv)
{
    static uint8_t step[MOST], reply[MOST];
    if (argc != 5)
        return 2;
    size_t step_bytes = read_file(argv[1], step), reply_bytes = read_file(argv[2], reply);
    state = strtoull(argv[4], NULL, 10) | 1;
    if (step_bytes < HEADER + 4 || reply_bytes < HEADER + 4)
        return 2;
    step_bytes -= HEADER + 4;
    struct pp3_layout layout = {129280, 5, 4, 1 << 20, 1, 0};
    struct pp3_frame_head head;
    memcpy(&head, reply, sizeof head);
    struct pp3_page_at page_at = pp3_page_at(&layout);
    long given[11] = {0};

    for (long left = strtol(argv[3], NULL, 10); left > 0; left--) {
        size_t size = draw(20) ? reply_bytes : draw((uint32_t)reply_bytes + 64);
        uint8_t *frame = copy_of(reply, size), *body = copy_of(step + HEADER, step_bytes);
        uint8_t *page = copy_of(reply, page_at.end);
        spoil(frame + (size > HEADER && draw(8) ? HEADER : 0),
              size > HEADER ? size - HEADER : size);
        if (!draw(10))
            spoil(body, step_bytes);
        if (size > HEADER + 8 && draw(8)) {
            uint32_t crc = pp3_crc32(0, frame + HEADER, size - HEADER - 4);
            memcpy(frame + size - 4, &crc, 4);
        }
        struct pp3_fault fault;
        uint32_t body_bytes;
        uint64_t round;
        pp3_crc_force((int)draw(PP3_CRC_WIDE + 1));
        pp3_step_check(&layout, body, draw((uint32_t)step_bytes + 1), &body_bytes);
        pp3_reply_round(frame, size, &round);
        given[pp3_accept(&layout, draw(10) ? body : NULL, frame, size, head.session,
                         head.sequence, page, &fault)]++;
        pp3_fail_page(&layout, body, 2, page);
        free(frame);
        free(body);
        free(page);
    }
    for (int reason = 0; reason <= PP3_REASON_MASS; reason++)
        printf("%ld ", given[reason]);
    return 0;
}
