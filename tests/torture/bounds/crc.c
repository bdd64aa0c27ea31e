/* The portable way of the CRC, for every length up to a block and some, and every block.
 * The CPU's own ways are vectors, which the prover does not take: figure 10 runs them. */
#include "small.h"

#undef memcpy
#include <errno.h>
#include <stdatomic.h>
#undef __x86_64__
#undef __aarch64__
#include "layout/crc.c"

int main(void)
{
    size_t n = nondet_size();
    ASSUME(n <= PP3_CRC_BLOCK + 9);
    uint8_t *data = malloc(n);
    ASSUME(data != NULL);
    struct pp3_crc_run run;
    (void)pp3_crc32(nondet_u32(), data, n);
    pp3_crc_begin(&run, nondet_u32());
    if (n >= PP3_CRC_BLOCK)
        pp3_crc_block(&run, data);
    (void)pp3_crc_end(&run);
    HOLDS(pp3_crc_force(nondet_i32()) <= 0 && pp3_crc_path() == PP3_CRC_TABLE);
    return 0;
}
