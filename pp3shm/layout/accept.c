#include "layout/accept.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "layout/crc.h"
#include "layout/draft.h"
#include "layout/draft_wide.h"

_Static_assert(sizeof(struct pp3_trailer) == 16, "wire page, section 5");
_Static_assert(PP3_SUPPORT * 4 == PP3_CRC_BLOCK, "ids or q of one draft are one block");

enum {
    FRAME_HEAD = sizeof(struct pp3_frame_head),
    BODY_HEAD = sizeof(struct pp3_body_head),
    MOST_DRAFTS = PP3_MOST_SLOTS * PP3_MOST_DEPTH,
    /* All of a REPLY before ids: headers, 3 words a row, 2 words a draft, trailer. */
    MOST_HEAD = FRAME_HEAD + BODY_HEAD + 12 * PP3_MOST_SLOTS + 8 * MOST_DRAFTS +
                (int)sizeof(struct pp3_trailer),
};

/* Bytes were copied to local: from here on they are read from there. The compiler is
 * told that memory may have changed, so it cannot fetch from the source again. */
#define COPIED(local) __asm__ volatile("" : : "r"(local) : "memory")

/* One REPLY under judgement. */
struct pass {
    const struct pp3_layout *l;
    struct pp3_fault *fault;
    uint8_t *page;
    struct pp3_page_at to;
    struct pp3_reply_at from;
    struct pp3_crc_run crc;
    struct pp3_body_head asked;                  /* the STEP's */
    struct pp3_step_row rows[PP3_MOST_SLOTS];    /* the STEP's; slots are in range */
    bool sampled[PP3_MOST_SLOTS];                /* T > 0 and status OK: carries q */
    bool ok[PP3_MOST_SLOTS];                     /* status OK */
    uint32_t place[MOST_DRAFTS];                 /* 1 + where the token is in ids, or 0 */
    uint8_t head[MOST_HEAD];                     /* the frame's bytes before ids */
};

struct pp3_reply_at pp3_reply_at(const struct pp3_layout *l, uint32_t n)
{
    struct pp3_reply_at at;
    size_t rows = n, drafts = rows * l->depth;
    size_t support = l->sampled ? drafts * PP3_SUPPORT * 4 : 0;
    at.status = BODY_HEAD;
    at.generation = at.status + 4 * rows;
    at.tokens = at.generation + 4 * rows;
    at.confidence = at.tokens + 4 * drafts;
    at.trailer = at.confidence + 4 * drafts;
    at.mask = at.trailer + (l->sampled ? sizeof(struct pp3_trailer) : 0);
    at.ids = at.mask + (l->sampled ? 4 * rows : 0);
    at.q = at.ids + support;
    at.end = at.q + support;
    return at;
}

int pp3_reply_round(const uint8_t *frame, size_t frame_bytes, uint64_t *round)
{
    if (frame_bytes < FRAME_HEAD + sizeof *round)
        return -EINVAL;
    memcpy(round, frame + FRAME_HEAD, sizeof *round);
    return 0;
}

/* Notes a failed check unless an earlier one of section 6, or an earlier place of
 * the same one, is known: places come in ascending order. */
static void blame(struct pass *p, int reason, uint32_t row, uint32_t depth, int index)
{
    struct pp3_fault *known = p->fault;
    if (known->reason == PP3_REASON_NONE || reason < known->reason)
        *known = (struct pp3_fault){reason, (int32_t)row, (int32_t)depth, index};
}

#define NOBODY UINT32_MAX /* -1 as a row or depth */

static int32_t int_at(const uint8_t *from)
{
    int32_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static void put_int(uint8_t *to, int32_t value)
{
    memcpy(to, &value, sizeof value);
}

static float float_at(const uint8_t *from)
{
    float value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* Copies the STEP's rows. False where pp3_step_check would not have let it pass, as
 * far as that would lead outside the page. */
static bool read_step(struct pass *p, const uint8_t *step)
{
    memcpy(&p->asked, step, sizeof p->asked);
    if (p->asked.n < 1 || p->asked.n > p->l->max_slots)
        return false;
    struct pp3_step_at at = pp3_step_at(p->l, p->asked.n);
    for (uint32_t i = 0; i < p->asked.n; i++) {
        struct pp3_step_draw draw = {0};
        if (p->l->sampled)
            memcpy(&draw, step + at.draws + i * sizeof draw, sizeof draw);
        memcpy(&p->rows[i], step + at.rows + i * sizeof p->rows[i], sizeof p->rows[i]);
        p->sampled[i] = draw.sampled == 1;
        if (p->rows[i].slot >= p->l->max_slots)
            return false;
    }
    return true;
}

/* Check 1, but for the length, which the caller has compared. */
static bool frame_ok(const struct pass *p, size_t frame_bytes, const uint8_t session[16],
                     uint64_t sequence)
{
    struct pp3_frame_head head;
    memcpy(&head, p->head, sizeof head);
    return memcmp(head.magic, "PP3F", 4) == 0 && head.version == 1 &&
           head.kind == PP3_KIND_REPLY &&
           head.flags == (p->l->sampled ? PP3_FLAG_SAMPLED : 0u) &&
           head.body_bytes == frame_bytes - FRAME_HEAD && head.sequence == sequence &&
           memcmp(head.session, session, sizeof head.session) == 0;
}

/* Checks 3 to 5, which need no place below the row. */
static void check_head(struct pass *p)
{
    const uint8_t *body = p->head + FRAME_HEAD;
    struct pp3_body_head head;
    memcpy(&head, body, sizeof head);
    if (head.round != p->asked.round || head.n != p->asked.n ||
        head.depth != p->asked.depth || head.flags != p->asked.flags || head.zero != 0)
        blame(p, PP3_REASON_HEADER, NOBODY, NOBODY, -1);

    for (uint32_t row = 0; row < p->asked.n; row++) {
        int32_t status = int_at(body + p->from.status + 4 * row);
        uint32_t generation = (uint32_t)int_at(body + p->from.generation + 4 * row);
        if (generation != p->rows[row].generation || status < PP3_STATUS_OK ||
            status > PP3_STATUS_REFUSED)
            blame(p, PP3_REASON_ECHO, row, NOBODY, -1);
        p->ok[row] = status == PP3_STATUS_OK;
        p->sampled[row] = p->sampled[row] && p->ok[row];
    }

    struct pp3_trailer trailer;
    if (!p->l->sampled)
        return;
    memcpy(&trailer, body + p->from.trailer, sizeof trailer);
    if (memcmp(trailer.magic, "PP3Q", 4) != 0 || trailer.version != 1 ||
        trailer.n != p->asked.n || trailer.depth != p->asked.depth)
        blame(p, PP3_REASON_TRAILER, NOBODY, NOBODY, -1);
}

/* Checks 6 and 7, and the part of the page that they are about. */
static void check_rows(struct pass *p)
{
    const uint8_t *body = p->head + FRAME_HEAD;
    uint32_t depth = p->l->depth;
    for (uint32_t row = 0; row < p->asked.n; row++) {
        size_t slot = p->rows[row].slot;
        put_int(p->page + p->to.status + 4 * slot,
                int_at(body + p->from.status + 4 * row));
        if (p->l->sampled) {
            int32_t mask = int_at(body + p->from.mask + 4 * row);
            if (mask != p->sampled[row])
                blame(p, PP3_REASON_MASK, row, NOBODY, -1);
            put_int(p->page + p->to.mask + 4 * slot, mask);
        }
        for (uint32_t i = 0; i < depth; i++) {
            int32_t token = int_at(body + p->from.tokens + 4 * (row * depth + i));
            const uint8_t *bits = body + p->from.confidence + 4 * (row * depth + i);
            float confidence = float_at(bits);
            bool fits = p->ok[row] ? (uint32_t)token < p->l->vocab : token == -1;
            /* a NaN compares false with all */
            if (!fits || !(confidence >= 0.0f && confidence <= 1.0f))
                blame(p, PP3_REASON_TOKEN, row, i, -1);
            put_int(p->page + p->to.tokens + 4 * (slot * depth + i), token);
            put_int(p->page + p->to.confidence + 4 * (slot * depth + i),
                    p->ok[row] ? int_at(bits) : 0);
        }
    }
}

/* Check 8 for one draft; notes where its token is among the ids. */
static void check_ids(struct pass *p, uint32_t row, uint32_t depth,
                      const int32_t id[PP3_SUPPORT])
{
    uint32_t draft = row * p->l->depth + depth, vocab = p->l->vocab;
    bool used = p->sampled[row];
    if (!(used ? pp3_ids_ok(id, vocab) : pp3_ids_unused(id)))
        blame(p, PP3_REASON_SUPPORT, row, depth, pp3_wrong_id(id, vocab, used));
    if (used)
        p->place[draft] = pp3_place(
            id, int_at(p->head + FRAME_HEAD + p->from.tokens + 4 * draft));
}

/* Checks 9 and 10 for one draft. */
static void check_q(struct pass *p, uint32_t row, uint32_t depth,
                    const float q[PP3_SUPPORT])
{
    if (!p->sampled[row]) {
        int used = pp3_used_q(q);
        if (used >= 0)
            blame(p, PP3_REASON_PROBABILITY, row, depth, used);
        return;
    }
    int32_t count[PP3_SUPPORT];
    struct pp3_q_sum sum = pp3_sum_q(q, count);
    uint32_t place = p->place[row * p->l->depth + depth];
    if (sum.odd)
        blame(p, PP3_REASON_PROBABILITY, row, depth, pp3_wrong_q(q, true));
    else if (sum.above)
        blame(p, PP3_REASON_MASS, row, depth, pp3_wrong_q(q, false));
    else if (sum.mass != PP3_MASS || place == 0 || count[place - 1] == 0)
        blame(p, PP3_REASON_MASS, row, depth, -1);
}

/* The ids of all drafts, then their q: the order of the frame, so that the CRC can
 * go along. Each block is copied once; all else is done on the copy. */
static void take_ids(struct pass *p, const uint8_t *body)
{
    for (uint32_t row = 0, draft = 0; row < p->asked.n; row++)
        for (uint32_t depth = 0; depth < p->l->depth; depth++, draft++) {
            _Alignas(64) int32_t id[PP3_SUPPORT];
            memcpy(id, body + p->from.ids + draft * sizeof id, sizeof id);
            COPIED(id);
            pp3_crc_block(&p->crc, (const uint8_t *)id);
            check_ids(p, row, depth, id);
            size_t at = (size_t)p->rows[row].slot * p->l->depth + depth;
            memcpy(p->page + p->to.ids + at * sizeof id, id, sizeof id);
        }
}

static void take_q(struct pass *p, const uint8_t *body)
{
    for (uint32_t row = 0, draft = 0; row < p->asked.n; row++)
        for (uint32_t depth = 0; depth < p->l->depth; depth++, draft++) {
            _Alignas(64) float q[PP3_SUPPORT];
            memcpy(q, body + p->from.q + draft * sizeof q, sizeof q);
            COPIED(q);
            pp3_crc_block(&p->crc, (const uint8_t *)q);
            check_q(p, row, depth, q);
            size_t at = (size_t)p->rows[row].slot * p->l->depth + depth;
            memcpy(p->page + p->to.q + at * sizeof q, q, sizeof q);
        }
}

#if defined(__x86_64__)
/* The same with every block in two registers: read once, folded, checked and stored
 * from there. What is not well is judged by the portable checks, on its copy. */
PP3_WIDE static void take_ids_wide(struct pass *p, const uint8_t *body, __m512i two[2])
{
    __m512i even = _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)p->crc.state));
    __m512i odd = _mm512_setzero_si512();
    for (uint32_t row = 0, draft = 0; row < p->asked.n; row++)
        for (uint32_t depth = 0; depth < p->l->depth; depth++, draft++) {
            const uint8_t *from = body + p->from.ids + draft * 4 * PP3_SUPPORT;
            size_t at = (size_t)p->rows[row].slot * p->l->depth + depth;
            uint8_t *to = p->page + p->to.ids + at * 4 * PP3_SUPPORT;
            __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
            COPIED(&a);
            COPIED(&b);
            even = draft ? pp3_fold_two(even, a) : _mm512_xor_si512(even, a);
            odd = pp3_fold_two(odd, b); /* nothing before the first: 0 stays 0 */
            _mm512_storeu_si512(to, a);
            _mm512_storeu_si512(to + 64, b);
            if (p->sampled[row] && pp3_wide_ids_ok(a, b, p->l->vocab)) {
                int32_t token = int_at(p->head + FRAME_HEAD + p->from.tokens + 4 * draft);
                p->place[draft] = pp3_wide_place(a, b, token);
            } else {
                _Alignas(64) int32_t id[PP3_SUPPORT];
                _mm512_store_si512(id, a);
                _mm512_store_si512(id + 16, b);
                check_ids(p, row, depth, id);
            }
        }
    two[0] = even;
    two[1] = odd;
}

PP3_WIDE static void take_q_wide(struct pass *p, const uint8_t *body, __m512i two[2])
{
    __m512i even = two[0], odd = two[1];
    for (uint32_t row = 0, draft = 0; row < p->asked.n; row++)
        for (uint32_t depth = 0; depth < p->l->depth; depth++, draft++) {
            const uint8_t *from = body + p->from.q + draft * 4 * PP3_SUPPORT;
            size_t at = (size_t)p->rows[row].slot * p->l->depth + depth;
            uint8_t *to = p->page + p->to.q + at * 4 * PP3_SUPPORT;
            __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + 64);
            COPIED(&a);
            COPIED(&b);
            even = pp3_fold_two(even, a);
            odd = pp3_fold_two(odd, b);
            _mm512_storeu_si512(to, a);
            _mm512_storeu_si512(to + 64, b);
            if (!p->sampled[row] ||
                !pp3_wide_q_ok(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b),
                               p->place[draft])) {
                _Alignas(64) float q[PP3_SUPPORT];
                _mm512_store_ps(q, _mm512_castsi512_ps(a));
                _mm512_store_ps(q + 16, _mm512_castsi512_ps(b));
                check_q(p, row, depth, q);
            }
        }
    two[0] = even;
    two[1] = odd;
}

PP3_WIDE static void take_support_wide(struct pass *p, const uint8_t *body)
{
    __m512i two[2];
    take_ids_wide(p, body, two);
    take_q_wide(p, body, two);
    _mm512_store_si512(p->crc.lanes, pp3_fold(two[0], two[1]));
    p->crc.folded = 1;
}
#endif

static void take_support(struct pass *p, const uint8_t *body)
{
#if defined(__x86_64__)
    if (pp3_crc_path() == PP3_CRC_WIDE) {
        take_support_wide(p, body);
        return;
    }
#endif
    take_ids(p, body);
    take_q(p, body);
}

static int crc_at(const uint8_t *body, size_t end, uint32_t computed)
{
    uint32_t told;
    memcpy(&told, body + end, sizeof told);
    return told == computed ? PP3_REASON_NONE : PP3_REASON_CRC;
}

/* A reply whose STEP is known, its frame checked and its head copied. */
static void take_body(struct pass *p, const uint8_t *body)
{
    size_t head = p->l->sampled ? p->from.ids : p->from.end;
    pp3_crc_begin(&p->crc, pp3_crc32(0, p->head + FRAME_HEAD, head));
    check_head(p);
    memcpy(p->page, &p->asked.round, sizeof p->asked.round);
    check_rows(p);
    if (p->l->sampled)
        take_support(p, body);
    if (crc_at(body, p->from.end, pp3_crc_end(&p->crc)) != PP3_REASON_NONE)
        blame(p, PP3_REASON_CRC, NOBODY, NOBODY, -1);
}

/* The slots that are not in the round. */
static void fill_absent(struct pass *p)
{
    uint32_t present = 0;
    for (uint32_t row = 0; row < p->asked.n; row++)
        present |= 1u << p->rows[row].slot;
    for (uint32_t slot = 0; slot < p->l->max_slots; slot++)
        if (!(present >> slot & 1u))
            pp3_page_fill(p->l, slot, PP3_STATUS_ABSENT, p->page);
}

int pp3_accept(const struct pp3_layout *l, const uint8_t *step_body,
               const uint8_t *frame, size_t frame_bytes, const uint8_t session[16],
               uint64_t sequence, uint8_t *page, struct pp3_fault *fault)
{
    struct pass pass; /* not zeroed: 1 KB, and each part is written before it is read */
    struct pass *p = &pass;
    const uint8_t *body = frame + FRAME_HEAD;
    p->l = l;
    p->fault = fault;
    p->page = page;
    *fault = (struct pp3_fault){PP3_REASON_FRAME, -1, -1, -1};
    if (!pp3_layout_ok(l) || frame_bytes < FRAME_HEAD + BODY_HEAD)
        return fault->reason;
    memcpy(p->head, frame, FRAME_HEAD + BODY_HEAD);
    COPIED(p->head);

    struct pp3_body_head told;
    memcpy(&told, p->head + FRAME_HEAD, sizeof told);
    if (step_body && !read_step(p, step_body))
        return fault->reason = PP3_REASON_HEADER;
    uint32_t n = step_body ? p->asked.n : told.n;
    if (n < 1 || n > l->max_slots)
        return fault->reason;
    p->from = pp3_reply_at(l, n);
    if (frame_bytes != FRAME_HEAD + p->from.end + PP3_CRC_BYTES ||
        !frame_ok(p, frame_bytes, session, sequence))
        return fault->reason;

    fault->reason = PP3_REASON_NONE;
    if (!step_body) {
        uint32_t crc = pp3_crc32(0, p->head + FRAME_HEAD, BODY_HEAD);
        crc = pp3_crc32(crc, body + BODY_HEAD, p->from.end - BODY_HEAD);
        fault->reason = crc_at(body, p->from.end, crc);
        if (fault->reason == PP3_REASON_NONE)
            fault->reason = PP3_REASON_HEADER;
        return fault->reason;
    }
    size_t more = (l->sampled ? p->from.ids : p->from.end) - BODY_HEAD;
    memcpy(p->head + FRAME_HEAD + BODY_HEAD, body + BODY_HEAD, more);
    COPIED(p->head);
    p->to = pp3_page_at(l);
    take_body(p, body);
    if (fault->reason == PP3_REASON_NONE)
        fill_absent(p);
    return fault->reason;
}
