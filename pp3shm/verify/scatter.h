/* Dense q by slot from a page: a row's last 32 columns erased, its new 32 written.
 *
 * What DraftProbs does on the CPU; pp3shm/gpu/scatter.py has the same in torch, for any
 * device, and says what each fault is.
 */
#ifndef PP3_VERIFY_SCATTER_H
#define PP3_VERIFY_SCATTER_H

#include <stdint.h>

enum { PP3_SCATTER_SUPPORT = 32 };

enum pp3_scatter_fault {
    PP3_SCATTER_MASK = 6,    /* numbered as the checks of a reply */
    PP3_SCATTER_TOKEN = 7,
    PP3_SCATTER_IDS = 8,
    PP3_SCATTER_Q = 10,
};

/* A page's arrays by slot. Bytes that others may change: each is loaded once. */
struct pp3_scatter_page {
    const uint64_t *round;
    const int32_t *status, *tokens; /* [slots], [slots][depth] */
    const int32_t *mask, *ids;      /* [slots], [slots][depth][32]; NULL: all greedy */
    const float *q;                 /* as ids */
};

/* The caller's tensors, all his own. */
struct pp3_scatter_rows {
    float *probs;  /* [slots][depth][vocab]: 0 but at `ids` */
    int64_t *ids;  /* [slots][depth][32]: the columns written last */
    int64_t *drafts, *mode, *fault, *round; /* [slots][depth]; [slots] */
    uint8_t *written;  /* [slots]: 1 where those columns may hold something */
    int32_t *seen_ids; /* [depth][33]: a row's ids are copied to, then its drafts */
    float *seen_q;     /* [depth][32] */
    uint32_t slots, depth;
    uint32_t vocab, zero;
};

/* Takes the page of `round` into every slot. stale: [slots], 1: failed whatever stands
 * in the page; NULL: none is. A row is copied, the copy checked and used. */
void pp3_scatter_q(const struct pp3_scatter_rows *rows, const struct pp3_scatter_page *page,
                   uint64_t round, const uint8_t *stale);

#endif
