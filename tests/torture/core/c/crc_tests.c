/* CRC-32, by every way this CPU has. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "known.h"
#include "layout/crc.h"

enum { WAYS = 4, BYTES = 1200 };

/* As the polynomial is defined: bit by bit. */
static uint32_t slow_crc(uint32_t crc, const uint8_t *data, size_t n)
{
    crc = ~crc;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1u)));
    }
    return ~crc;
}

static void every_way_gives_the_same_number(void)
{
    struct dice d = dice_of(2);
    int best = pp3_crc_path(), ways = 0;
    uint8_t *data = malloc(BYTES);

    for (int i = 0; i < BYTES; i++)
        data[i] = (uint8_t)roll(&d, 256);
    for (int way = 0; way < WAYS; way++) {
        if (pp3_crc_force(way) != 0)
            continue;
        ways++;
        EQUAL(pp3_crc_path(), way);
        EQUAL(pp3_crc32(0, "123456789", 9), 0xCBF43926);
        for (uint32_t i = 0; i < 300 * effort; i++) {
            size_t from = roll(&d, 64), n = roll(&d, i % 2 ? 40 : BYTES - 64);
            uint32_t before = roll(&d, UINT32_MAX);
            EQUAL(pp3_crc32(before, data + from, n), slow_crc(before, data + from, n));
        }
        tried(300 * effort);
    }
    EQUAL(ways, best == PP3_CRC_TABLE ? 1 : best == PP3_CRC_WIDE ? 3 : 2);
    EQUAL(pp3_crc_force(best), 0);
    free(data);
}

static void the_best_way_was_chosen_and_others_are_refused(void)
{
#if defined(__aarch64__)
    EQUAL(pp3_crc_path(), PP3_CRC_ARM);
    EQUAL(pp3_crc_force(PP3_CRC_PCLMUL), -EINVAL);
    EQUAL(pp3_crc_force(PP3_CRC_WIDE), -EINVAL);
#else
    CHECK(pp3_crc_path() != PP3_CRC_ARM);
    EQUAL(pp3_crc_force(PP3_CRC_ARM), -EINVAL);
#endif
    EQUAL(pp3_crc_force(WAYS), -EINVAL);
    EQUAL(pp3_crc_force(-1), -EINVAL);
}

static void a_message_in_blocks_is_the_message_at_once(void)
{
    struct dice d = dice_of(3);
    uint8_t block[9][PP3_CRC_BLOCK];
    struct pp3_crc_run run;

    for (size_t i = 0; i < sizeof block; i++)
        ((uint8_t *)block)[i] = (uint8_t)roll(&d, 256);
    for (int best = pp3_crc_path(), way = 0; way < WAYS; way++) {
        if (pp3_crc_force(way) != 0)
            continue;
        for (size_t n = 0; n <= 9; n++) {
            pp3_crc_begin(&run, 0x1234567);
            for (size_t i = 0; i < n; i++)
                pp3_crc_block(&run, block[i]);
            EQUAL(pp3_crc_end(&run), slow_crc(0x1234567, block[0], n * PP3_CRC_BLOCK));
        }
        EQUAL(pp3_crc_force(best), 0);
    }
}

static void every_known_frame_ends_with_its_crc(void)
{
    for (unsigned i = 0; i < n_known_frames; i++) {
        const struct known_frame *f = &known_frames[i];
        uint32_t crc;
        memcpy(&crc, f->step + f->step_bytes - 4, 4);
        EQUAL(pp3_crc32(0, f->step + 40, f->step_bytes - 44), crc);
        memcpy(&crc, f->reply + f->reply_bytes - 4, 4);
        EQUAL(pp3_crc32(0, f->reply + 40, f->reply_bytes - 44), crc);
    }
}

const struct test crc_tests[] = {
    {"every way gives the same CRC", every_way_gives_the_same_number},
    {"the best way was chosen, and others are refused",
     the_best_way_was_chosen_and_others_are_refused},
    {"a message in blocks has the CRC of the message at once",
     a_message_in_blocks_is_the_message_at_once},
    {"every known frame ends with its CRC", every_known_frame_ends_with_its_crc},
    {0, 0},
};
