/* Draws near every power of two that round and position can reach. */
#include <string.h>

#include "harness.h"
#include "proposal/draft.h"
#include "rows.h"

/* A little before 2^k, in 64 bits; 2^64 is 0. */
static uint64_t before(unsigned k)
{
    return (k < 64 ? UINT64_C(1) << k : 0) - 1;
}

static void draws_take_every_bit_of_round_and_position(void)
{
    const uint32_t key[2] = {0x01234567, 0x89abcdef};
    float z[64], q[32], confidence;
    int32_t ids[32], token, wanted;
    struct pp3_draft_fault fault;

    for (int i = 0; i < 64; i++)
        z[i] = 0;
    for (unsigned k = 0; k <= 64; k++)
        for (unsigned other = 0; other <= 64; other += 4) {
            uint64_t round = before(k), position = ~before(other);
            uint32_t counter[4] = {(uint32_t)round, (uint32_t)(round >> 32),
                                   (uint32_t)position, (uint32_t)(position >> 32)};
            uint32_t block[4];
            pp3_philox(counter, key, block);
            EQUAL(pp3_propose(z, 0, 64, 32, 700, 0, block[0] >> 8, ids, q, &wanted,
                              &confidence, &fault), 0);
            EQUAL(pp3_draft_row(z, 0, 64, 32, 700, 0, key, round, position, ids, q,
                                &token, &confidence, &fault), 0);
            EQUAL(token, wanted);
            tried(1);
        }
}

/* A request alone: its uniforms are those of the words that Philox gives. */
static void verification_takes_every_bit_of_round_and_position(void)
{
    const uint32_t accept[2] = {3, 0x89abcdef}, residual[2] = {0x01234567, 5};
    struct case_ keyed;

    case_open(&keyed, 64, 2, 1);
    memcpy(keyed.request.accept, accept, sizeof accept);
    memcpy(keyed.request.residual, residual, sizeof residual);
    keyed.z[0] = keyed.z[64] = 4; /* a draft stands or falls by its uniform */
    for (unsigned k = 0; k <= 64; k++)
        for (unsigned other = 0; other <= 64; other += 4) {
            struct case_ given = keyed;
            int32_t tokens[3];
            given.tokens = tokens;
            keyed.batch.round = given.batch.round = before(k);
            keyed.request.position = ~before(other);
            for (uint64_t i = 0; i < 3; i++) {
                uint64_t at = keyed.request.position + i;
                const uint32_t counter[4] = {
                    (uint32_t)before(k), (uint32_t)(before(k) >> 32), (uint32_t)at,
                    (uint32_t)(at >> 32)};
                uint32_t word[4];
                pp3_philox(counter, accept, word);
                given.accept[i] = (double)(word[0] >> 3) * 0x1p-29;
                pp3_philox(counter, residual, word);
                given.residual[i] =
                    (double)(((uint64_t)word[0] << 32 | word[1]) >> 11) * 0x1p-53;
            }
            EQUAL(case_run(&given), PP3_FAULT_NONE);
            EQUAL(case_run_keyed(&keyed), PP3_FAULT_NONE);
            CHECK(memcmp(keyed.tokens, tokens, sizeof tokens) == 0);
            tried(1);
        }
    edged_free_all();
}

const struct test uniform_tests[] = {
    {"wrap: draws take every bit of round and position",
     draws_take_every_bit_of_round_and_position},
    {"wrap: verification takes every bit of round and position",
     verification_takes_every_bit_of_round_and_position},
    {0, 0},
};
