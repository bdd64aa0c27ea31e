/* Shapes and records of a peer, at the format's full sizes: no sum or product of what
 * pp3_shape_fill lets pass wraps around (unsigned overflow is looked for here). */
#include "small.h"

#include "ring/ring.c"

int main(void)
{
    struct pp3_shape s;
    struct pp3_places p;
    if (pp3_shape_fill(&s) != NULL)
        return 0;
    pp3_shape_places(&s, &p);
    HOLDS(p.page_stride >= s.page_bytes && p.request_stride >= s.request_bytes);
    HOLDS(p.failed_stride >= s.failed_bytes);
    HOLDS(p.slot_stride >= PP3_LINE + 4 * (uint64_t)s.max_positions);
    HOLDS(s.bytes[0] >= sizeof(struct pp3_header) + s.rounds * sizeof(struct pp3_entry) +
                            8 * (uint64_t)s.pages);
    return 0;
}
