"""Faults of a reader that trusts shared memory, by their switch."""

from torture.planted import Edit

RING, ENGINE, PROXY = "ring/ring.h", "ring/engine.h", "ring/proxy.h"
WAIT, SLOTS, NOTE = "ring/wait.h", "ring/slots.c", "ring/note.c"
WATCH, EXCHANGE = "ring/watch.h", "proxy/exchange.c"

STILL, THREAD, PROCESS, BETWEEN = 0, 1, 2, 3
ENDLESS = 11
FAULTS = {
    # name: switch, who has to write meanwhile
    "a reader's page out of bounds": (1, STILL),
    "a proxy's page out of bounds": (2, STILL),
    "a state word loaded twice": (3, BETWEEN),
    "a slot's length loaded twice": (4, BETWEEN),
    # Of the three this one has the widest window: another writer that is not timed to
    # the loads hits it on a busy machine too.
    "the same, beside a thread": (4, THREAD),
    "the same, beside a process": (4, PROCESS),
    "a request checked where it stands": (5, BETWEEN),
    "rounds taken from the header": (6, STILL),
    "positions taken from the header": (7, STILL),
    "a length cut to 32 bits": (8, STILL),
    "offset and length added in 32 bits": (9, STILL),
    "a page freed that the word names": (10, STILL),
    "a reader that tries for ever": (ENDLESS, STILL),
    "a deadline that a hostile ticket escapes": (12, STILL),
}

_ENTRY = "    return &r->entries[ticket % r->rounds];"
_READ = "    if (pp3_page_of(word) >= r->pages || (state"
_NEXT = "        if (pp3_page_of(w) >= r->pages ||\n"
_FOUND = "            *word = w;\n            return 1;\n"
_LENGTH = "    int error = n > r->max_positions ? -EBADMSG"
_COPY = "    for (uint64_t i = 0; error == 0 && i < n; i++)\n"
_STEP = "    memcpy(step, pp3_request(r, *mine), capacity);\n"
_CHECK = "    if (pp3_step_check(l, step, capacity, bytes) == 0 &&\n"
_CHECKED = "        round_of(step) == pp3_ticket(*mine))\n        return 1;\n"
_NOTE = "        if (n > NOTE_BYTES)\n            return -EBADMSG;"
_APPEND = "    if (n > r->max_positions - own->length)\n"
_OWN = "pp3_page_of(w) != pp3_page_of(own))"
_PAGE = "    uint32_t page = pp3_page_of(g->claimed[e]), owner"
_TRIES = "    for (int tries = 0; tries < PP3_TRIES; tries++) {"
_HOME = "        if (w == 0 || pp3_resolved(w) || pp3_ticket(w) % r->rounds != e)"


def _switched(number: int, wrong: str, right: str) -> str:
    return f"(PP3_FAULT({number}) ? {wrong} : {right})"


EDITS = (
    Edit(
        RING,
        _ENTRY,
        _ENTRY.replace(
            "r->rounds", _switched(6, "r->header->shape.rounds", "r->rounds")
        ),
    ),
    Edit(WAIT, _READ, _READ.replace(">= r->pages", ">= r->pages + 99 * PP3_FAULT(1)")),
    Edit(PROXY, _NEXT, _NEXT.replace(">= r->pages", ">= r->pages + 99 * PP3_FAULT(2)")),
    Edit(
        PROXY,
        _FOUND,
        _FOUND.replace("= w", "= " + _switched(3, "PP3_LOAD(&n->state, relaxed)", "w")),
    ),
    Edit(
        SLOTS,
        _LENGTH,
        _LENGTH.replace(
            "r->max_positions",
            _switched(7, "r->header->shape.max_positions", "r->max_positions"),
        ),
    ),
    Edit(
        SLOTS,
        _COPY,
        _COPY.replace("< n", "< " + _switched(4, "PP3_LOAD(&s->length, relaxed)", "n")),
    ),
    Edit(
        EXCHANGE,
        _CHECK,
        _CHECK.replace("step,", _switched(5, "pp3_request(r, *mine)", "step") + ","),
    ),
    Edit(
        EXCHANGE,
        _CHECKED,
        _CHECKED.replace(
            "        return 1;", "        return again(r, step, mine, 1);"
        ),
    ),
    Edit(
        EXCHANGE,
        "int pp3_take_step(",
        "static int again(struct pp3_ring *r, uint8_t *step, uint64_t *mine, int n)\n"
        "{\n    if (PP3_FAULT(5))\n"
        "        memcpy(step, pp3_request(r, *mine), r->request_bytes);\n"
        "    return n;\n}\nint pp3_take_step(",
    ),
    Edit(NOTE, _NOTE, _NOTE.replace("(n >", f"({_switched(8, '(uint32_t)n', 'n')} >")),
    Edit(
        SLOTS,
        _APPEND,
        "    if (PP3_FAULT(9) ? (uint32_t)(n + own->length) > r->max_positions\n"
        "                     : n > r->max_positions - own->length)\n",
    ),
    Edit(ENGINE, _OWN, f"(!PP3_FAULT(10) && {_OWN[:-1]}))"),
    Edit(
        ENGINE,
        _PAGE,
        _PAGE.replace("g->claimed[e]", _switched(10, "w", "g->claimed[e]")),
    ),
    Edit(NOTE, _TRIES, _TRIES.replace("; tries++", "; tries += !PP3_FAULT(11)")),
    Edit(
        WATCH,
        _HOME,
        _HOME.replace("|| pp3_ticket", "|| PP3_FAULT(12) ||\n            pp3_ticket"),
    ),
)
