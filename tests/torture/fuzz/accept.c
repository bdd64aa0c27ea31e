/* Target: whole REPLY frames against a STEP.
 *
 * Input: which case, how, where in the STEP a byte is spoiled and by what, then the
 * frame. libFuzzer's block ends with the frame; the page is a block of exact size. */
#include "common.h"
#include "inputs.h"

#include "layout/accept.h"
#include "layout/crc.h"

enum { HEADER = 40, PREFIX = 4, SPOILED = 1, UNAWAITED = 2, FILLED = 0xa5 };

/* How often each reason was given; figures.py reads it. */
static uint64_t given[PP3_REASON_MASS + 1];

__attribute__((destructor)) static void tell(void)
{
    fprintf(stderr, "REASONS");
    for (int reason = 0; reason <= PP3_REASON_MASS; reason++)
        fprintf(stderr, " %llu", (unsigned long long)given[reason]);
    fprintf(stderr, "\n");
}

static uint8_t *page[CASES], *step[CASES];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc;
    (void)argv;
    if (getenv("PP3_CRC_BY_TABLE")) /* once: asking a CPU what it has can take long */
        pp3_crc_force(PP3_CRC_TABLE);
    for (int i = 0; i < CASES; i++) {
        /* a STEP's room is that of the largest one, as a proxy's is */
        size_t room = pp3_step_at(&cases[i].l, cases[i].l.max_slots).end;
        page[i] = exact(NULL, pp3_page_at(&cases[i].l).end);
        step[i] = exact(NULL, room);
        memset(step[i], 0, room);
        memcpy(step[i], cases[i].step, cases[i].step_bytes);
    }
    return 0;
}

/* One draft of a row that carries q: sorted ids, whole counts that add up to M, the
 * token among them. In integers where the core uses vectors. */
static void hold_draft(const struct pp3_layout *l, const uint8_t *ids, const uint8_t *q,
                       int32_t token)
{
    uint64_t mass = 0, drawn = 0;
    for (int i = 0; i < PP3_SUPPORT; i++) {
        int32_t id = (int32_t)word_at(ids + 4 * i);
        uint32_t bits = word_at(q + 4 * i), count = 0;
        HOLDS(id >= 0 && (uint32_t)id < l->vocab);
        HOLDS(i == 0 || id > (int32_t)word_at(ids + 4 * i - 4));
        HOLDS(bits <= 0x3f800000); /* 0 to 1, no sign */
        if (bits != 0) {           /* exponent and mantissa, by hand: count = q * 2^24 */
            uint32_t shift = 126 - (bits >> 23); /* a 1 has -1 here */
            uint32_t mantissa = (bits & 0x7fffff) | 0x800000;
            HOLDS(bits >> 23 >= 103);
            count = shift == UINT32_MAX ? 1u << 24 : mantissa >> shift;
            HOLDS(shift == UINT32_MAX || count << shift == mantissa);
        }
        mass += count;
        drawn += id == token ? count : 0;
    }
    HOLDS(mass == 1u << 24 && drawn > 0);
}

/* An accepted reply: what the page holds is what the frame says of each row, by slot. */
static void hold_page(const struct fuzz_case *c, const uint8_t *asked, const uint8_t *body,
                      const uint8_t *to)
{
    const struct pp3_layout *l = &c->l;
    struct pp3_page_at at = pp3_page_at(l);
    uint32_t n = word_at(asked + 8), depth = l->depth, present = 0;
    size_t rows = 24 + (l->sampled ? 16 * (size_t)n : 0);
    const uint8_t *tokens = body + 24 + 8 * (size_t)n, *confidence = tokens + 4 * n * depth;
    const uint8_t *mask = confidence + 4 * n * depth + 16, *ids = mask + 4 * (size_t)n;
    size_t draft = 4 * PP3_SUPPORT, all = n * depth * draft;
    for (uint32_t row = 0; row < n; row++) {
        uint32_t slot = word_at(asked + rows + 32 * (size_t)row);
        int32_t status = (int32_t)word_at(body + 24 + 4 * row);
        HOLDS(slot < l->max_slots && status >= 0 && status <= 8);
        HOLDS((int32_t)word_at(to + at.status + 4 * slot) == status);
        present |= 1u << slot;
        HOLDS(memcmp(to + at.tokens + 4 * slot * depth, tokens + 4 * row * depth,
                     4 * (size_t)depth) == 0);
        /* 1 alone says sampled; a spoiled STEP may say any number there */
        bool carries = l->sampled && word_at(asked + 24 + 16 * row + 8) == 1 && status == 0;
        for (uint32_t i = 0; i < depth; i++) {
            int32_t token = (int32_t)word_at(tokens + 4 * (row * depth + i));
            HOLDS(status ? token == -1 : (uint32_t)token < l->vocab);
            HOLDS(word_at(confidence + 4 * (row * depth + i)) <= 0x3f800000 ||
                  word_at(confidence + 4 * (row * depth + i)) == 0x80000000);
            if (carries)
                hold_draft(l, ids + (row * depth + i) * draft,
                           ids + all + (row * depth + i) * draft, token);
        }
        if (!l->sampled)
            continue;
        HOLDS(word_at(to + at.mask + 4 * slot) == carries && word_at(mask + 4 * row) == carries);
        HOLDS(memcmp(to + at.ids + slot * depth * draft, ids + row * depth * draft,
                     depth * draft) == 0);
        HOLDS(memcmp(to + at.q + slot * depth * draft, ids + all + row * depth * draft,
                     depth * draft) == 0);
    }
    for (uint32_t slot = 0; slot < l->max_slots; slot++)
        HOLDS(present >> slot & 1u ||
              word_at(to + at.status + 4 * slot) == PP3_STATUS_ABSENT);
    HOLDS(memcmp(to, asked, 8) == 0);
}

static bool untouched(const uint8_t *at, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (at[i] != FILLED)
            return false;
    return true;
}

/* A spoiled STEP may name a slot twice, which pp3_step_check refuses: the rows are then
 * written over each other, within the page. */
static bool slots_differ(const struct fuzz_case *c, const uint8_t *asked)
{
    uint32_t n = word_at(asked + 8), seen = 0;
    size_t rows = 24 + (c->l.sampled ? 16 * (size_t)n : 0);
    for (uint32_t row = 0; row < n; row++) {
        uint32_t slot = word_at(asked + rows + 32 * (size_t)row);
        if (slot >= c->l.max_slots || seen >> slot & 1u)
            return false;
        seen |= 1u << slot;
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < PREFIX)
        return -1;
    int chosen = data[0] % CASES;
    const struct fuzz_case *c = &cases[chosen];
    const uint8_t *frame = data + PREFIX;
    size_t bytes = size - PREFIX, room = pp3_page_at(&c->l).end;
    bool awaited = !(data[1] & UNAWAITED), spoiled = awaited && data[1] & SPOILED;
    /* of the STEP only what leads to places: head and rows */
    size_t place = (8 + data[2]) % c->step_bytes;
    uint8_t before = step[chosen][place];
    struct pp3_fault fault = {-1, -1, -1, -1};

    if (spoiled)
        step[chosen][place] = data[3];
    memset(page[chosen], FILLED, room);
    int reason = pp3_accept(&c->l, awaited ? step[chosen] : NULL, frame, bytes, c->session,
                            c->sequence, page[chosen], &fault);
    KEEP(reason);
    given[reason < 0 || reason > PP3_REASON_MASS ? 0 : reason]++;
    HOLDS(reason == fault.reason && reason >= 0 && reason <= PP3_REASON_MASS);
    HOLDS(awaited || (reason >= PP3_REASON_FRAME && reason <= PP3_REASON_HEADER));
    HOLDS(fault.row < PP3_MOST_SLOTS && fault.depth < PP3_MOST_DEPTH &&
          fault.index < PP3_SUPPORT);
    if (reason == PP3_REASON_FRAME || !awaited)
        HOLDS(untouched(page[chosen], room));
    if (reason == PP3_REASON_NONE) {
        keep_bytes(page[chosen], room);
        HOLDS(word_at(frame + bytes - 4) == pp3_crc32(0, frame + HEADER, bytes - HEADER - 4));
        HOLDS(spoiled || slots_differ(c, step[chosen]));
        if (slots_differ(c, step[chosen]))
            hold_page(c, step[chosen], frame + HEADER, page[chosen]);
    }
    step[chosen][place] = before;
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t most, unsigned seed)
{
    struct draws d = {seed * UINT64_C(0x9e3779b97f4a7c15) | 1};
    const size_t least = PREFIX + HEADER + 4;
    if (plain() || size < least)
        return LLVMFuzzerMutate(data, size, most);
    if (draw(&d, 4) == 0) {
        size_t mutated = LLVMFuzzerMutate(data, size, most);
        if (mutated < size && draw(&d, 4)) /* of another length it is only a bad frame */
            memset(data + mutated, 0, size - mutated);
        else if (mutated < size || draw(&d, 4) == 0)
            size = mutated;
    } else {
        for (uint32_t times = 1 + draw(&d, 3); times > 0; times--)
            change_word(&d, data + PREFIX + HEADER, size - PREFIX - HEADER - 4);
    }
    if (draw(&d, 64) == 0)
        data[draw(&d, 2)] = (uint8_t)draw(&d, 256);
    if (draw(&d, 32) == 0) {
        data[1] = SPOILED;
        data[2] = (uint8_t)draw(&d, 256);
        data[3] = (uint8_t)draw(&d, 256);
    }
    if (size >= least && draw(&d, 32) == 0)
        size = least + draw(&d, (uint32_t)(size - least + 1));
    if (size < least || draw(&d, 8) == 0)
        return size; /* as it came: most such frames end at the CRC */
    uint32_t body = (uint32_t)(size - PREFIX - HEADER);
    if (draw(&d, 2))
        memcpy(data + PREFIX + 12, &body, 4);
    uint32_t crc = pp3_crc32(0, data + PREFIX + HEADER, body - 4);
    memcpy(data + size - 4, &crc, 4);
    return size;
}
