#include "verify/scatter.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { K = PP3_SCATTER_SUPPORT, TARGET_ONLY = 0, GREEDY = 1, SAMPLED = 2, OK = 0 };

/* The compiler may not read the page again where the copy is asked for. */
static void copy_once(void *to, const void *from, size_t n)
{
    memcpy(to, from, n);
    __asm__ volatile("" : : "r"(to), "r"(from) : "memory");
}

/* Ascending within the vocabulary, so that every write lies inside its row. */
static bool ids_ok(const int32_t id[K], uint32_t vocab)
{
    int wrong = id[0] < 0;
    for (int i = 1; i < K; i++)
        wrong |= id[i] <= id[i - 1];
    return !wrong && (uint32_t)id[K - 1] < vocab;
}

/* No negative and no NaN, 1 in all, and something for the draft: exact for what the
 * proxy lets through, where each q is a multiple of 2^-24. */
static bool q_ok(const int32_t id[K], const float q[K], int32_t draft)
{
    double mass = 0;
    float drawn = 0;
    int wrong = 0;
    for (int i = 0; i < K; i++) {
        wrong |= !(q[i] >= 0);
        drawn = id[i] == draft ? q[i] : drawn;
        mass += (double)q[i];
    }
    return !wrong && mass == 1.0 && drawn > 0;
}

static int fault_of(const struct pp3_scatter_rows *r, const int32_t *draft, int32_t mask)
{
    int fault = 0;
    if (mask != 0 && mask != 1)
        return PP3_SCATTER_MASK;
    for (uint32_t i = 0; i < r->depth; i++)
        if ((uint32_t)draft[i] >= r->vocab)
            return PP3_SCATTER_TOKEN;
    for (uint32_t i = 0; mask == 1 && i < r->depth; i++) {
        const int32_t *id = r->seen_ids + (size_t)i * K;
        if (!ids_ok(id, r->vocab))
            return PP3_SCATTER_IDS;
        if (!q_ok(id, r->seen_q + (size_t)i * K, draft[i]))
            fault = PP3_SCATTER_Q; /* unless a later one's ids are wrong */
    }
    return fault;
}

/* Back to zeros. */
static void erase(const struct pp3_scatter_rows *r, uint32_t slot)
{
    size_t row = (size_t)slot * r->depth;
    for (uint32_t i = 0; r->written[slot] && i < r->depth; i++) {
        float *probs = r->probs + (row + i) * r->vocab;
        const int64_t *id = r->ids + (row + i) * K;
        for (int k = 0; k < K; k++)
            probs[id[k]] = 0;
    }
}

static void write(const struct pp3_scatter_rows *r, uint32_t slot)
{
    size_t row = (size_t)slot * r->depth;
    for (uint32_t i = 0; i < r->depth; i++) {
        float *probs = r->probs + (row + i) * r->vocab;
        const int32_t *id = r->seen_ids + (size_t)i * K;
        const float *q = r->seen_q + (size_t)i * K;
        int64_t *kept = r->ids + (row + i) * K;
        for (int k = 0; k < K; k++) {
            probs[id[k]] = q[k];
            kept[k] = id[k];
        }
    }
}

/* The support of a slot without q, as in a page: any 32 ids do. */
static void forget(const struct pp3_scatter_rows *r, uint32_t slot)
{
    int64_t *kept = r->ids + (size_t)slot * r->depth * K;
    for (size_t i = 0; r->written[slot] && i < (size_t)r->depth * K; i++)
        kept[i] = (int64_t)(i % K);
}

/* 0: usable; a fault; -1: failed, absent or of another round. */
static int take(const struct pp3_scatter_rows *r, const struct pp3_scatter_page *p,
                uint32_t slot, bool of_round, int32_t *draft, int32_t *mask)
{
    size_t all = (size_t)r->depth * K;
    int32_t status;
    copy_once(&status, p->status + slot, sizeof status);
    if (status != OK || !of_round)
        return -1;
    copy_once(draft, p->tokens + (size_t)slot * r->depth, r->depth * sizeof *draft);
    *mask = 0;
    if (p->mask)
        copy_once(mask, p->mask + slot, sizeof *mask);
    if (*mask == 1) {
        copy_once(r->seen_ids, p->ids + slot * all, all * sizeof *r->seen_ids);
        copy_once(r->seen_q, p->q + slot * all, all * sizeof *r->seen_q);
    }
    return fault_of(r, draft, *mask);
}

void pp3_scatter_q(const struct pp3_scatter_rows *r, const struct pp3_scatter_page *p,
                   uint64_t round, const uint8_t *stale)
{
    uint64_t found;
    copy_once(&found, p->round, sizeof found);
    for (uint32_t slot = 0; slot < r->slots; slot++) {
        int32_t *draft = r->seen_ids + (size_t)r->depth * K, mask = 0;
        int fault = take(r, p, slot, found == round, draft, &mask);
        bool usable = fault == 0 && !(stale && stale[slot]);
        int64_t mode = usable ? (int64_t)mask + GREEDY : TARGET_ONLY;
        erase(r, slot);
        if (mode == SAMPLED)
            write(r, slot);
        else
            forget(r, slot);
        r->written[slot] = mode == SAMPLED;
        for (uint32_t i = 0; i < r->depth; i++)
            r->drafts[(size_t)slot * r->depth + i] = usable ? draft[i] : -1;
        r->mode[slot] = mode;
        r->fault[slot] = fault > 0 ? fault : 0;
        r->round[slot] = found == round ? (int64_t)round : -1;
    }
}
