"""Figure 4: what has to happen at last does, by a model of the protocol under Spin.

See ring.pml; tests/test_torture_liveness.py holds it against the ring's text.
"""

import threading
from functools import partial
from pathlib import Path

from torture import compiler
from torture.figure import CORE, Batch, Figure, Form
from torture.liveness import spin

# By form: configurations by what differs from spin.BASE. All properties of each.
SMALL = {
    "one lap": {"owners": 1, "last": 1},
    "one lap, anything but an answer": {
        "owners": 1,
        "last": 1,
        "unanswered": 1,
        "refusals": 1,
        "cancels": 1,
    },
}
MIDDLE = {
    "two laps": {"owners": 1},
    "a proxy killed, no successor": {"owners": 1, "last": 1, "kills": 1},
    "a proxy stopped": {"owners": 1, "last": 1, "stops": 1, "unanswered": 1},
    "nobody but the waiter": {
        "owners": 1,
        "watched": 0,
        "stops": 1,
        "kill_stopped": 0,
        "last": 3,
    },
    "no watchdog": {"owners": 1, "watched": 0, "kills": 1},
    "no slices": {"owners": 1, "sliced": 0, "last": 1},
    "two entries": {"owners": 1, "rounds": 2, "pages": 3},
}
LARGE = {
    "four laps": {"owners": 1, "last": 4},
    "a proxy killed": {"last": 1, "kills": 1},
    "a proxy killed, two laps": {"owners": 1, "kills": 1},
    "a proxy stopped, two laps": {"owners": 1, "stops": 1, "unanswered": 1},
    "a cancel, a refusal, two laps": {"owners": 1, "cancels": 1, "refusals": 1},
    "no slices, a proxy killed": {"owners": 1, "sliced": 0, "last": 1, "kills": 1},
    "two entries, three rounds": {"owners": 1, "rounds": 2, "pages": 3, "last": 3},
    "two ranks, two laps": {"owners": 1, "ranks": 2},
    "two ranks, one killed": {"owners": 1, "ranks": 2, "rank_kills": 1, "last": 1},
    "a successor beside a late one": {"beside": 1},
}
CONFIGURATIONS = {"short": SMALL, "medium": MIDDLE, "long": MIDDLE | LARGE}
# Every row of ring.h's table has to be taken here.
ROWS = {"ranks": 0, "owners": 1, "kills": 1, "cancels": 1, "refusals": 1}
_building = threading.Lock()


def rows() -> list[spin.Row]:
    """The table of ring.h."""
    return spin.table((CORE / "ring" / "ring.h").read_text())


def _program(
    where: Path, form: Form, what: str, table: list[spin.Row] | None = None
) -> Path:
    with _building:
        level = "-O0" if form == "short" else "-O2"
        return spin.build(where, table or rows(), what, level)


def _steps(form: Form) -> list[tuple[str, str]]:
    """A configuration and a property for each step; the first is that of all rows."""
    every = [("every row", "safety")] if form != "short" else []
    return every + [
        (name, what) for name in CONFIGURATIONS[form] for what in spin.PROPERTIES
    ]


def _step(where: Path, index: int, form: Form) -> Batch:
    name, what = _steps(form)[index]
    settings = ROWS if name == "every row" else CONFIGURATIONS[form][name]
    found = spin.search(_program(where, form, what), settings, what)
    wrong = found.wrong
    if name == "every row" and not wrong:
        unseen = set(range(len(rows()))) - found.rows
        wrong = ", ".join(f"never {' '.join(rows()[row])}" for row in sorted(unseen))
    facts = {
        "proved": int(not wrong),
        f"{what} proved": int(not wrong),
        "max depth": found.depth,
        "max states of a search": found.states,
    }
    first = f"{name}, {what}: {wrong}" if wrong else ""
    return Batch(found.states, int(bool(wrong)), facts, first)


def _planted(what: str, settings: dict[str, int], where: Path) -> Batch:
    found = spin.search(_program(where, "short", what), settings, what)
    # a search that did not end, or said nothing, has refuted nothing
    refuted = found.wrong.startswith(("acceptance cycle", "assertion", "invalid end"))
    return Batch(found.states, int(refuted), {}, found.wrong)


def _another_table(where: Path) -> Batch:
    """ring.h grants nobody that a round being written fails at its deadline."""
    table = [row for row in rows() if row != ("WRITING", "FAILED+2", "resolve")]
    found = spin.search(
        _program(where, "short", "safety", table), {"last": 1}, "safety"
    )
    return Batch(
        found.states, int(found.wrong.startswith("assertion")), {}, found.wrong
    )


FAULTS = {
    "no helping and no watchdog": (
        "resolved",
        {"watched": 0, "helped": 0, "unanswered": 1, "owners": 1, "last": 1},
    ),
    "a lost wake without slices": (
        "verdict",
        {"wakes": 0, "sliced": 0, "owners": 1, "last": 1},
    ),
    "stopped proxies hold every page": (
        "safety",
        {"stops": 1, "kill_stopped": 0, "pages": 1, "ranks": 0},
    ),
    "a fenced page is reused at once": ("safety", {"quarantined": 0, "beside": 1}),
    "the sweep gives nothing back": (
        "safety",
        {"swept": 0, "unanswered": 1, "owners": 1, "last": 3},
    ),
}

FIGURES = (
    Figure(
        number=4,
        name="liveness",
        unit="states",
        claim="under weak fairness, a submitted round without an outcome, a waiter "
        "without its verdict, a claim refused for ever",
        steps={form: len(_steps(form)) for form in CONFIGURATIONS},
        step=_step,
        planted={
            **{name: partial(_planted, *fault) for name, fault in FAULTS.items()},
            "a table that lacks a transition": _another_table,
        },
        missing=partial(compiler.missing, "spin", "gcc"),
        random=False,
    ),
)
