/* The ring's readers of words that anybody may write, one -D each. */
#include "words.h"

#include "ring/note.c"
#include "ring/slots.c"

int main(void)
{
    struct pp3_ring *r = end_of(8, 8);
    uint64_t word = nondet_u64(), ticket = nondet_u64();
    uint32_t index = UINT32_MAX;
    ASSUME(ticket <= PP3_LAST_TICKET && r->cursor <= PP3_LAST_TICKET);
#if defined(READ)
    int status = pp3_read(r, word, &index);
    HOLDS(status < 0 || index < (status == 0 ? PAGES : ROUNDS * PP3_CAUSES));
    HOLDS(status <= 8);
#elif defined(LOOK)
    HOLDS(pp3_look(r, ticket, word) <= 1);
#elif defined(PLACES)
    uint8_t *page = pp3_page(r, word), *request = pp3_request(r, word);
    HOLDS(!page || (size_t)(page - r->page) + 8 <= 8 * PAGES);
    HOLDS(!request || (size_t)(request - r->request) + 8 <= 8 * PAGES);
#elif defined(NEXT)
    if (pp3_next(r, &word) == 1)
        HOLDS(pp3_page_of(word) < PAGES);
#elif defined(TAKE)
    if (pp3_take(r, &word) == 1)
        HOLDS(pp3_page_of(word) < PAGES && pp3_state(word) == PP3_WRITING);
#elif defined(PUBLISH)
    (void)pp3_publish(r, word);
#elif defined(GIVE)
    pp3_give_back(r, word);
#elif defined(SWEEP)
    uint64_t taken[2] = {word, nondet_u64()};
    HOLDS(pp3_sweep(r, taken, 2) <= 2);
#elif defined(RELEASE)
    (void)pp3_release(r, nondet_u32(), ticket);
#elif defined(EXPIRE)
    (void)pp3_expire(r, nondet_u32());
#elif defined(NOTE)
    uint8_t *out = malloc(8 * PP3_NOTE_WORDS);
    ASSUME(out != NULL);
    HOLDS(pp3_note_read(r, out) <= (int)(8 * PP3_NOTE_WORDS));
#elif defined(SLOT)
    uint64_t room = nondet_u64(), length = 0;
    ASSUME(room <= 2 * POSITIONS);
    int32_t *out = malloc(4 * room);
    uint32_t generation, live;
    ASSUME(out != NULL);
    if (pp3_slot_read(r, nondet_u32(), out, room, &generation, &live, &length) == 0)
        HOLDS(length <= room && length <= POSITIONS);
#endif
    (void)index;
    return 0;
}
