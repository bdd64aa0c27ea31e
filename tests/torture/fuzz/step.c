/* Target: STEP bodies, from a proxy's request area or a peer, and what is made of one.
 *
 * Input: which layout, then a body without its CRC. libFuzzer hands over a heap block
 * that ends with the input, so that the first byte read behind the capacity is poison. */
#include "common.h"
#include "inputs.h"

#include "layout/accept.h"
#include "layout/page.h"

static uint8_t *page[LAYOUTS];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    for (int i = 0; i < LAYOUTS; i++)
        page[i] = exact(NULL, pp3_layout_ok(&layout[i]) ? pp3_page_at(&layout[i]).end : 0);
    return 0;
}

/* Section 4 again, plainly: what a STEP that was let pass has to be. */
static void hold_step(const struct pp3_layout *l, const uint8_t *body, size_t bytes)
{
    struct pp3_body_head head;
    memcpy(&head, body, sizeof head);
    HOLDS(head.n >= 1 && head.n <= l->max_slots && head.depth == l->depth);
    HOLDS(head.zero == 0 && head.flags == (l->sampled ? 2u : 0u));
    size_t rows = 24 + (l->sampled ? 16 * (size_t)head.n : 0);
    size_t committed = rows + 32 * (size_t)head.n;
    size_t places = l->depth + 1;
    HOLDS(bytes == committed + head.n * (4 * places + l->context_bytes));
    for (uint32_t i = 0; i < head.n; i++) {
        struct pp3_step_row row;
        memcpy(&row, body + rows + i * sizeof row, sizeof row);
        HOLDS(row.slot < l->max_slots && row.count <= places);
        HOLDS(row.context_bytes == l->context_bytes);
        for (uint32_t j = 0; j < i; j++)
            HOLDS(word_at(body + rows + j * sizeof row) != row.slot);
        for (uint32_t k = 0; k < places; k++) {
            int32_t token = (int32_t)word_at(body + committed + 4 * (i * places + k));
            HOLDS(k < row.count ? token >= 0 && (uint32_t)token < l->vocab : token == -1);
        }
        if (l->sampled) {
            HOLDS(word_at(body + 24 + 16 * i + 8) <= 1);
            HOLDS(word_at(body + 24 + 16 * i + 12) == 0);
        }
    }
}

static void hold_page(const struct pp3_layout *l, const uint8_t *body, const uint8_t *to)
{
    size_t rows = 24 + (l->sampled ? 16 * (size_t)word_at(body + 8) : 0);
    uint32_t failed = 0;
    for (uint32_t slot = 0; slot < l->max_slots; slot++)
        failed += word_at(to + 8 + 4 * (size_t)slot) == 2;
    HOLDS(failed == word_at(body + 8));
    for (uint32_t i = 0; i < word_at(body + 8); i++)
        HOLDS(word_at(to + 8 + 4 * (size_t)word_at(body + rows + 32 * (size_t)i)) == 2);
    HOLDS(memcmp(to, body, 8) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return -1;
    int chosen = data[0] % LAYOUTS;
    const struct pp3_layout *l = &layout[chosen];
    const uint8_t *body = data + 1;
    uint32_t bytes = UINT32_MAX;
    int refused = pp3_step_check(l, body, size - 1, &bytes);
    KEEP(refused);
    if (refused == 0) {
        HOLDS(bytes <= size - 1);
        keep_bytes(body, bytes);
        hold_step(l, body, bytes);
        pp3_fail_page(l, body, 2, page[chosen]);
        keep_bytes(page[chosen], pp3_page_at(l).end);
        hold_page(l, body, page[chosen]);
    } else {
        HOLDS(bytes == UINT32_MAX);
    }
    uint64_t round = 0;
    KEEP(pp3_reply_round(body, size - 1, &round));
    KEEP(round);
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    struct draws d = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1};
    if (plain() || size < 29 || draw(&d, 3) == 0)
        return LLVMFuzzerMutate(data, size, most);
    for (uint32_t times = 1 + draw(&d, 3); times > 0; times--)
        change_word(&d, data + 1, size - 1);
    if (draw(&d, 16) == 0)
        size -= draw(&d, (uint32_t)size - 1);
    return size;
}
