#include "rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proposal/scan.h"

enum { MASS = 1 << 24, MOST_EDGED = 64 };

static struct { uint8_t *at; size_t bytes; } spans[MOST_EDGED];
static unsigned n_spans;

int next_path(int path)
{
    while (++path < PP3_SCAN_PATHS)
        if (pp3_scan_force(path) == 0)
            return path;
    EQUAL(pp3_scan_force(-1), 0);
    return -1;
}

void *edged(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (bytes + page - 1) / page * page;
    uint8_t *at = mmap(0, whole + page, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (at == MAP_FAILED || n_spans == MOST_EDGED || mprotect(at + whole, page, PROT_NONE))
        abort();
    spans[n_spans].at = at;
    spans[n_spans++].bytes = whole + page;
    memset(at, 0xff, whole);
    return at + whole - bytes;
}

void edged_free_all(void)
{
    while (n_spans > 0) {
        n_spans--;
        (void)munmap(spans[n_spans].at, spans[n_spans].bytes);
    }
}

const void *edged_copy(const void *from, size_t bytes)
{
    return memcpy(edged(bytes), from, bytes);
}

void case_open(struct case_ *c, uint32_t vocab, uint32_t depth, uint32_t k)
{
    size_t entries = (size_t)(depth + 1) * vocab;

    memset(c, 0, sizeof *c);
    c->z = edged(entries * sizeof *c->z);
    c->bias = edged(entries * sizeof *c->bias);
    c->drafts = edged(depth * sizeof *c->drafts);
    c->ids = edged((size_t)depth * k * sizeof *c->ids);
    c->q = edged((size_t)depth * k * sizeof *c->q);
    c->tokens = edged((depth + 1) * sizeof *c->tokens);
    c->scratch = edged(pp3_verify_scratch(vocab, depth));
    for (uint32_t i = 0; i < depth; i++) {
        c->drafts[i] = 0;
        for (uint32_t n = 0; n < k; n++) {
            c->ids[i * k + n] = (int32_t)n;
            c->q[i * k + n] = n == 0;
        }
    }
    memset(c->z, 0, entries * sizeof *c->z);
    memset(c->bias, 0, entries * sizeof *c->bias);
    c->batch = (struct pp3_verify_batch){
        .depth = depth, .k = k, .vocab = vocab, .round = 7,
        .drafts = c->drafts, .ids = c->ids, .q = c->q,
    };
    c->request = (struct pp3_verify_request){
        .target = (uintptr_t)c->z, .target_stride = vocab, .bias_stride = vocab,
        .temperature = 1, .mode = PP3_MODE_SAMPLED,
    };
}

/* A row of logits with some of them masked, or of probabilities with zeros. */
static void draw_row(struct case_ *c, float *z, float *bias, struct dice *d)
{
    uint32_t vocab = c->batch.vocab, holes = roll(d, 4), alive = roll(d, vocab);
    double sum = 0;

    for (uint32_t i = 0; i < vocab; i++) {
        int hole = i != alive && roll(d, 8) < holes;
        z[i] = (float)(int32_t)roll(d, 4096) / 256 - 8;
        bias[i] = c->request.bias ? (float)(int32_t)roll(d, 4096) / 512 - 4 : 0;
        if (hole && c->request.bias && roll(d, 2))
            bias[i] = -INFINITY;
        else if (hole)
            z[i] = -INFINITY;
    }
    if (c->batch.target == PP3_TARGET_LOGITS)
        return;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)z[i]);
    for (uint32_t i = 0; i < vocab; i++)
        z[i] = (float)(exp((double)z[i]) / sum);
}

/* k ids in ascending order, their counts, and a draft that they can draw. */
static void draw_support(struct case_ *c, uint32_t i, struct dice *d)
{
    uint32_t k = c->batch.k, vocab = c->batch.vocab, taken = 0, left = MASS, one;
    int32_t *ids = c->ids + (size_t)i * k;
    float *q = c->q + (size_t)i * k;

    for (uint32_t id = 0; id < vocab && taken < k; id++)
        if (roll(d, vocab - id) < k - taken)
            ids[taken++] = (int32_t)id;
    one = roll(d, k);
    for (uint32_t n = 0; n < k; n++) {
        uint32_t count = n == one ? 0 : roll(d, left / 2);
        q[n] = (float)count * 0x1p-24f;
        left -= count;
    }
    q[one] = (float)left * 0x1p-24f; /* half of all at least, or k is large */
    do
        one = roll(d, k);
    while (!(q[one] > 0));
    c->drafts[i] = ids[one];
}

void case_draw(struct case_ *c, struct dice *d)
{
    size_t vocab = c->batch.vocab;

    for (uint32_t i = 0; i <= c->batch.depth; i++) {
        draw_row(c, c->z + i * vocab, c->bias + i * vocab, d);
        if (i == c->batch.depth)
            break;
        draw_support(c, i, d);
        c->accept[i] = (double)(roll64(d) >> 35) * 0x1p-29;
    }
    for (uint32_t i = 0; i <= c->batch.depth; i++)
        c->residual[i] = (double)(roll64(d) >> 11) * 0x1p-53;
}

static int ended(struct case_ *c, int said)
{
    EQUAL(said, 0);
    CHECK(c->out.count >= 0 && (uint32_t)c->out.count <= c->batch.depth + 1);
    CHECK((c->out.count == 0) == (c->out.fault != PP3_FAULT_NONE));
    EQUAL(c->out.zero, 0);
    for (uint32_t i = 0; i <= c->batch.depth; i++)
        CHECK((uint32_t)c->tokens[i] < c->batch.vocab
                  ? (int32_t)i < c->out.count
                  : c->tokens[i] == -1 && (int32_t)i >= c->out.count);
    return c->out.fault;
}

int case_run(struct case_ *c)
{
    memset(&c->out, 0xff, sizeof c->out);
    return ended(c, pp3_verify_one(&c->batch, &c->request, c->accept, c->residual,
                                   c->tokens, &c->out, c->scratch));
}

int case_run_keyed(struct case_ *c)
{
    memset(&c->out, 0xff, sizeof c->out);
    return ended(c, pp3_verify(&c->batch, 1, &c->request, c->tokens, &c->out, c->scratch,
                               1));
}
