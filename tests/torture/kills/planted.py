"""Faults of the ring's text that the programs of figures 6 and 7 have to catch.

All of them stand in one copy of the text, each behind ``rig_fault(number)``, which asks
the environment: one build serves all.
"""

import shutil
import threading
from dataclasses import dataclass
from pathlib import Path

from torture.figure import CORE

_copying = threading.Lock()


@dataclass(frozen=True)
class Fault:
    """One change of one header.

    Attributes:
        name: in words.
        header: of pp3shm/ring.
        old: stands there once.
        new: in its place, with ``rig_fault(#)`` for the fault's number.
        stopped: True where figure 7 must catch it.
        kills: True where figure 6 must.
    """

    name: str
    header: str
    old: str
    new: str
    stopped: bool = True
    kills: bool = True


FAULTS = (
    Fault(
        "reuse without quarantine",
        "engine.h",
        "    if (pp3_state(w) != PP3_PUBLISHED && owner != 0 &&",
        "    if (!rig_fault(#) && pp3_state(w) != PP3_PUBLISHED && owner != 0 &&",
    ),
    Fault(
        "publish by a store",
        "proxy.h",
        "    if (PP3_CAS(&n->state, &seen, pp3_with(mine, PP3_PUBLISHED, r->owner),\n",
        "    if (rig_fault(#))\n"
        "        PP3_STORE(&n->state, pp3_with(mine, PP3_PUBLISHED, r->owner),\n"
        "                  release);\n"
        "    if (rig_fault(#) ||\n"
        "        PP3_CAS(&n->state, &seen, pp3_with(mine, PP3_PUBLISHED, r->owner),\n",
    ),
    Fault(
        "a failure that drops the owner",
        "ring.h",
        "pp3_with(w, PP3_FAILED + status, pp3_owner_of(w))",
        "pp3_with(w, PP3_FAILED + status, rig_fault(#) ? 0 : pp3_owner_of(w))",
    ),
    Fault(
        "a page given back before its last touch",
        "proxy.h",
        "            r->cursor = pp3_ticket(writing);\n",
        "            r->cursor = pp3_ticket(writing);\n"
        "            if (rig_fault(#))\n"
        "                PP3_STORE(&r->give[pp3_page_of(w)], pp3_ticket(w),\n"
        "                          release);\n",
    ),
    Fault(
        "a watchdog that keeps no deadline",
        "watch.h",
        "        if (now >= deadline) {",
        "        if (!rig_fault(#) && now >= deadline) {",
    ),
    Fault(
        "a page never given back",
        "proxy.h",
        "    PP3_COUNT(r, PP3_COUNT_FENCED);\n    pp3_give_back(r, mine);\n",
        "    PP3_COUNT(r, PP3_COUNT_FENCED);\n"
        "    if (!rig_fault(#))\n        pp3_give_back(r, mine);\n",
        kills=False,  # the next kill gives it back
    ),
    Fault(
        "a death that fails no round",
        "watch.h",
        "        if (pp3_state(w) == PP3_WRITING && pp3_owner_of(w) == id &&",
        "        if (!rig_fault(#) && pp3_state(w) == PP3_WRITING &&\n"
        "            pp3_owner_of(w) == id &&",
        stopped=False,
    ),
    Fault(
        "a claim that waits for no rank",
        "engine.h",
        "        if (PP3_LOAD(&r->acks[k * r->ack_words + e], acquire /* E3 */) < t &&",
        "        if (!rig_fault(#) &&\n"
        "            PP3_LOAD(&r->acks[k * r->ack_words + e], acquire /* E3 */) < t &&",
        stopped=False,
    ),
    Fault(
        "a dead rank that is waited for",
        "engine.h",
        "    return life == PP3_DEAD;\n",
        "    return !rig_fault(#) && life == PP3_DEAD;\n",
        stopped=False,
    ),
)


def number_of(fault: Fault) -> int:
    """What ``rig_fault`` is asked for."""
    return FAULTS.index(fault) + 1


def copy_of_the_ring(where: Path) -> Path:
    """An include directory whose `ring/` has every fault behind its switch.

    Args:
        where: a directory for it.

    Returns:
        The directory, made anew.

    Raises:
        RuntimeError: the text has changed, and a fault has to follow it.
    """
    with _copying:
        include = where / "planted"
        texts: dict[str, str] = {}
        for fault in FAULTS:
            path = CORE / "ring" / fault.header
            text = texts.get(fault.header) or path.read_text(encoding="ascii")
            if text.count(fault.old) != 1:
                raise RuntimeError(f"{fault.name}: {fault.header} has another text now")
            new = fault.new.replace("#", str(number_of(fault)))
            texts[fault.header] = text.replace(fault.old, new)
        shutil.rmtree(include, ignore_errors=True)
        shutil.copytree(CORE / "ring", include / "ring")
        for header, text in texts.items():
            (include / "ring" / header).write_text(text, encoding="ascii")
        return include
