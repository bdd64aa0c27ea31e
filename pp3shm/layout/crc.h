/* CRC-32 (the zlib polynomial), by the fastest means of the CPU it runs on.
 *
 * A run takes a message as blocks of 128 bytes that the caller holds in its own
 * memory, so that a frame is read once: copied, and folded from the copy.
 *
 *     pp3_crc_begin(&run, crc of what came before, 0 for nothing);
 *     for each block: pp3_crc_block(&run, block);
 *     crc = pp3_crc_end(&run);
 */
#ifndef PP3_LAYOUT_CRC_H
#define PP3_LAYOUT_CRC_H

#include <stddef.h>
#include <stdint.h>

#ifndef PP3_SMALL
#define PP3_CRC_BLOCK 128
#endif

/* The ways to compute it. Every one gives the same number. */
enum pp3_crc_path {
    PP3_CRC_TABLE = 0,  /* slicing by 8, on any CPU */
    PP3_CRC_PCLMUL = 1, /* x86-64: carry-less multiplication, 64 bytes at once */
    PP3_CRC_ARM = 2,    /* aarch64: the CRC32 instructions */
    PP3_CRC_WIDE = 3,   /* x86-64: the same as PCLMUL, 64 bytes in one register */
};

struct pp3_crc_way;

/* One message under way. Its bytes mean something to its own way only. */
struct pp3_crc_run {
    _Alignas(64) uint8_t lanes[64]; /* PCLMUL: 4 x 128 bits not yet reduced */
    const struct pp3_crc_way *way;
    uint32_t state;  /* the register, inverted as usual between messages */
    uint32_t folded; /* blocks in the lanes: 0 or more than 0 */
};

void pp3_crc_begin(struct pp3_crc_run *run, uint32_t crc);
void pp3_crc_block(struct pp3_crc_run *run, const uint8_t block[PP3_CRC_BLOCK]);
uint32_t pp3_crc_end(struct pp3_crc_run *run);

/* The CRC of n more bytes after those that gave crc (0 at the start), as zlib's. */
uint32_t pp3_crc32(uint32_t crc, const void *data, size_t n);

/* The way in use: an enum pp3_crc_path. */
int pp3_crc_path(void);

/* For tests: use this way from now on. 0, or -EINVAL where this CPU has it not. */
int pp3_crc_force(int path);

#endif
