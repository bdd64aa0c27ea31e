"""Faults of the wake-up protocol that show on any machine, by their switch.

A missing seq_cst fence is none of them: on x86 the swap is a full fence by itself, so
only the weak-memory checker can see it (figure 2).
"""

from torture.planted import Edit

RING, ENGINE, PROXY = "ring/ring.h", "ring/engine.h", "ring/proxy.h"
WAIT, WATCH, EXCHANGE = "ring/wait.h", "ring/watch.h", "proxy/exchange.c"

FAULTS = {
    # name: switch, the play that shows it
    "the wake before the swap": (1, "processes"),
    "waiters looked at before the swap": (2, "processes"),
    "the futex word not raised": (3, "processes"),
    "raised, and nobody woken": (4, "threads"),
    "a sleeper counted after its look": (5, "threads"),
    "the futex word read after the state": (6, "processes"),
    "sleeping proxies looked at before the bell": (7, "bell"),
    "a sleeping proxy counted after its look": (8, "bell"),
    "the watchdog's announcement read before the claim": (9, "nudge"),
    "the watchdog announcing after its look": (10, "nudge"),
}

_PUBLISHING = "    PP3_STEP(PP3_AT_PUBLISHING);\n"
_PUBLISHED = "        pp3_woke(n);\n        return 0;\n"
_RAISE = "    PP3_ADD(&n->seq, 1, release); /* E4: the"
_WAKE = "    PP3_FUTEX_WAKE(&n->seq);\n}\n"
_COUNTED = "        PP3_ADD(&n->waiters, 1, relaxed); /* the fence orders it */\n"
_LEFT = "        PP3_ADD(&n->waiters, UINT32_MAX /* -1 */, relaxed);\n"
_SLEEP = "        ran_out = PP3_FUTEX_WAIT(\n"
_SLEPT = "        PP3_STEP(PP3_AT_WAITED); /* returning is no acquire: look again */\n"
_STATE = "        *word = PP3_LOAD(&n->state, acquire /* E2 */);\n        if ((look"
_BELL = "    PP3_STORE(&pp3_entry_of(r, t)->bell, t, release /* E1 */);\n"
_PROXIES = "    if (PP3_LOAD(&r->header->work_waiters, relaxed) != 0) {\n"
_PREPARE = "    pp3_work_prepare(r);\n    int ready = pp3_work_pending(r) ?"
_CLAIM = "    t = g->next;\n    e = (uint32_t)(t % r->rounds);\n"
_NUDGE = "    if (deadline_ns < PP3_LOAD(&g->wake_at_ns, relaxed))\n"
_ANNOUNCE = "    PP3_STORE(&r->engine->wake_at_ns, now + PP3_IDLE_NS, relaxed);"
_EXPIRE = "    return pp3_expire(r, now);\n}\n\n/* It sleeps"


def _unless(number: int, text: str) -> str:
    return f"    if (!PP3_FAULT({number}))\n    {text}"


EDITS = (
    Edit(
        PROXY,
        _PUBLISHING,
        "    uint32_t early = PP3_LOAD(&n->waiters, relaxed);\n"
        f"{_PUBLISHING}    if (PP3_FAULT(1))\n        pp3_woke(n);\n",
    ),
    Edit(
        PROXY,
        _PUBLISHED,
        "        if (!PP3_FAULT(1) && (!PP3_FAULT(2) || early != 0))\n"
        f"    {_PUBLISHED}",
    ),
    Edit(RING, _RAISE, _unless(3, _RAISE)),
    Edit(RING, _WAKE, _unless(4, _WAKE)),
    Edit(WAIT, _COUNTED, _unless(5, _COUNTED)),
    Edit(WAIT, _LEFT, _unless(5, _LEFT)),
    Edit(
        WAIT,
        _SLEEP,
        "        if (PP3_FAULT(5))\n"
        f"            PP3_ADD(&n->waiters, 1, relaxed);\n{_SLEEP}",
    ),
    Edit(
        WAIT,
        _SLEPT,
        f"{_SLEPT}        if (PP3_FAULT(5))\n"
        "            PP3_ADD(&n->waiters, UINT32_MAX, relaxed);\n",
    ),
    Edit(
        WAIT,
        _STATE,
        _STATE.replace(
            "        if ((look",
            "        if (PP3_FAULT(6))\n"
            "            seq = PP3_LOAD(&n->seq, acquire);\n        if ((look",
        ),
    ),
    Edit(
        ENGINE,
        _BELL,
        # Some time between the two, else it shows only where both run freely.
        "    uint32_t early = PP3_LOAD(&r->header->work_waiters, relaxed);\n"
        "    if (PP3_FAULT(7))\n"
        "        for (uint64_t i = t % 64 * 32; i > 0; i--)\n"
        f"            PP3_PAUSE();\n{_BELL}",
    ),
    Edit(
        ENGINE,
        _PROXIES,
        "    if ((PP3_FAULT(7) ? early :\n"
        "         PP3_LOAD(&r->header->work_waiters, relaxed)) != 0) {\n",
    ),
    Edit(
        EXCHANGE,
        _PREPARE,
        "    int early = pp3_work_pending(r);\n    pp3_work_prepare(r);\n"
        "    int ready = (PP3_FAULT(8) ? early : pp3_work_pending(r)) ?",
    ),
    Edit(
        ENGINE,
        _CLAIM,
        f"    uint64_t early = PP3_LOAD(&g->wake_at_ns, relaxed);\n{_CLAIM}",
    ),
    Edit(
        ENGINE,
        _NUDGE,
        "    if (deadline_ns < (PP3_FAULT(9) ? early :\n"
        "                       PP3_LOAD(&g->wake_at_ns, relaxed)))\n",
    ),
    Edit(
        WATCH,
        _ANNOUNCE,
        f"    uint64_t early = PP3_FAULT(10) ? pp3_expire(r, now) : 0;\n{_ANNOUNCE}",
    ),
    Edit(
        WATCH,
        _EXPIRE,
        _EXPIRE.replace(
            "return pp3_expire", "return PP3_FAULT(10) ? early : pp3_expire"
        ),
    ),
)
