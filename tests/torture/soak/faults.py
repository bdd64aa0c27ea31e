"""What a watchdog may leave behind each time, by its switch."""

from torture.planted import Edit

ENGINE, WATCHDOG, RING = "ring/engine.h", "ring/watchdog.c", "ring/ring.c"

FAULTS = {
    "a page lost with each dead owner": 1,
    "a descriptor lost with each death": 2,
    "a descriptor lost with each start that fails": 3,
    "an owner whose pages are never counted down": 4,
    "memory lost with each end": 5,
    "a claim that does not nudge the watchdog": 6,
    "an owner that is never said to be dead": 7,
}

_PAGE = "        g->free_page[g->free_count++] = h.page;\n"
_SOCKET = "    (void)close(w->pidfd);\n    if (w->socket >= 0)\n"
_ENDS = "        (void)close(ends[0]);\n        return error;\n"
_HELD = "        PP3_ADD(&g->owner[h.owner].held, UINT32_MAX /* -1 */, release);"
_FREE = "        (void)close(r->bell_fd);\n    free(r);\n"
_NUDGE = "        PP3_WAKE_WATCHDOG(r);\n"
_GONE = "    (void)pp3_owner_gone(w->ring, w->owner);\n    status"


def _unless(number: int, line: str, before: str = "") -> str:
    return f"{before}        if (!PP3_FAULT({number}))\n    {line}"


EDITS = (
    Edit(ENGINE, _PAGE, _unless(1, _PAGE)),
    Edit(
        WATCHDOG,
        _SOCKET,
        _SOCKET.replace("socket >= 0", "socket >= 0 && !PP3_FAULT(2)"),
    ),
    Edit(WATCHDOG, _ENDS, _unless(3, _ENDS)),
    Edit(ENGINE, _HELD, _unless(4, _HELD)),
    Edit(RING, _FREE, _FREE.replace("    free", "    if (!PP3_FAULT(5))\n    free")),
    Edit(ENGINE, _NUDGE, _unless(6, _NUDGE)),
    Edit(WATCHDOG, _GONE, _unless(7, _GONE)),
)
