"""Figure 3: two checkers of different kinds, one axiomatic, one operational, agree.

Each shape (literature.txt, edges.txt) is judged by our RC11 over z3 and by a complete
search of Relacy. RC11 is the verdict. Where Relacy finds less, one of its limits has to
explain it: the axioms with this limit give Relacy's verdict; and the axioms with all
its limits give Relacy's verdict always.
"""

import importlib.util
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from relacy import mutate, search
from torture.figure import Batch, Figure, Form
from torture.litmus import library, places, relacy_side
from torture.litmus.shape import Orders, Shape

# Assignments of orders to each shape, and how many of them are one step.
MOST = {"short": 0, "medium": 100, "long": 4096}
PORTION = {"short": 1, "medium": 1000, "long": 512}
FIXED = 2  # steps before: the literature, the text and its mutants
# What of Relacy's explains a difference; the first that does is named.
LIMITS = (
    ("C++11's release sequences", ("C++11",)),
    ("stores in the order of the schedule", ("schedule",)),
    ("the two newest stores", ("window",)),
    ("strong seq_cst fences", ("strong fences",)),
    ("several limits at once", ("C++11", "schedule", "window", "strong fences")),
)
_building = threading.Lock()


def missing() -> str:
    """What is needed and is not here, or nothing."""
    absent = "" if importlib.util.find_spec("z3") else "needs z3-solver"
    return ", ".join(filter(None, (absent, search.missing())))


def _program(where: Path) -> Path:
    with _building:
        return relacy_side.build(where)


def _checker(shape: Shape) -> Any:
    # z3 is a tool that may not be there: this file is imported all the same
    return importlib.import_module("torture.litmus.axioms").Checker(shape)


class Tally:
    """What a step counts."""

    def __init__(self) -> None:
        self.tried = 0
        self.wrong: list[str] = []
        self.facts: Counter[str] = Counter()

    def check(self, *, right: bool, what: str) -> None:
        """A verdict: counted, and kept where it is wrong."""
        self.tried += 1
        if not right:
            self.wrong.append(what)

    def batch(self) -> Batch:
        """As a step returns it."""
        first = self.wrong[0] if self.wrong else ""
        return Batch(self.tried, len(self.wrong), dict(self.facts), first)


def compare(
    program: Path,
    shape: Shape,
    tries: list[Orders],
    tally: Tally,
    told: Callable[[Orders], Orders] = lambda orders: orders,
    checker: Any = None,
) -> list[bool]:
    """Judges a shape by both.

    Args:
        program: Relacy's side.
        shape: Which.
        tries: Assignments of orders.
        tally: Counts each.
        told: What Relacy is told instead; a planted fault.
        checker: The shape's, where there is one already.

    Returns:
        RC11's verdicts.
    """
    checker = checker or _checker(shape)
    verdicts = []
    for orders, found in zip(
        tries,
        relacy_side.search(program, shape, map(told, tries)),
        strict=True,
    ):
        allowed = checker.allows(orders)
        verdicts.append(allowed)
        what = f"{shape.name} {' '.join(orders)}: RC11 {allowed}, Relacy {found}"
        as_relacy = checker.allows(orders, limits=LIMITS[-1][1]) == found.bad
        tally.facts["executions of Relacy"] += found.executions
        if allowed == found.bad:
            tally.check(right=as_relacy, what=f"{what}; not with its limits")
            continue
        why = [
            name
            for name, limits in LIMITS
            if allowed and checker.allows(orders, limits=limits) == found.bad
        ]
        tally.check(right=bool(why) and as_relacy, what=what)
        if why:
            tally.facts[f"explained by {why[0]}"] += 1
    return verdicts


def _uses_seq_cst_accesses(shape: Shape) -> bool:
    """Relacy has them otherwise than RC11, and the text has none."""
    return any(
        "seq_cst" in shape.orders[line.site : line.site + 1]
        for _, line in shape.lines
        if line.verb in {"load", "store", "add", "swap"}
    )


def _uses_seq_cst_accesses(shape: Shape) -> bool:
    """Relacy has them otherwise than RC11, and the text has none."""
    return any(
        "seq_cst" in shape.orders[line.site : line.site + 1]
        for _, line in shape.lines
        if line.verb in {"load", "store", "add", "swap"}
    )


def answers(known: Iterable[library.Known], **changed: Iterable[str]) -> Batch:
    """The checker against the known answers.

    Args:
        known: The shapes with answers.
        changed: Axioms left out or limits put in; a planted fault.

    Returns:
        A try for each answer.
    """
    tally = Tally()
    for one in known:
        allowed = _checker(one.shape).allows(one.shape.orders, **changed)
        what = f"{one.shape.name}: expected {one.allowed}, found {allowed}"
        tally.check(right=allowed == one.allowed, what=what)
        tally.facts["known answers"] += 1
    return tally.batch()


def literature(
    program: Path | None, known: Iterable[library.Known], **changed: Iterable[str]
) -> Batch:
    """The checker against the known answers, and Relacy beside it.

    Args:
        program: Relacy's side, if it is asked too.
        known: The shapes with answers.
        changed: Axioms left out or limits put in; a planted fault.

    Returns:
        A try for each answer and one for each comparison.
    """
    tally = Tally()
    for one in known:
        shape, checker = one.shape, _checker(one.shape)
        allowed = checker.allows(shape.orders, **changed)
        what = f"{shape.name}: expected {one.allowed}, found {allowed}"
        tally.check(right=allowed == one.allowed, what=what)
        tally.facts["known answers"] += 1
        if program and not _uses_seq_cst_accesses(shape):
            compare(program, shape, [shape.orders], tally, checker=checker)
    return tally.batch()


def _mutants_of(shape: Shape) -> dict[str, Orders]:
    named = set(shape.places.values())
    return {
        name: shape.with_order(place, index, order)
        for name, (place, index, order) in (
            places.weakened() | places.weakened_beside()
        ).items()
        if (place, index) in named
    }


def text(
    program: Path,
    edges: Iterable[library.Edge],
    equivalent: Iterable[str],
    told: Callable[[Orders], Orders] = lambda orders: orders,
) -> Batch:
    """The shapes of the edges with the text's orders, each one weakened, each fault.

    Args:
        program: Relacy's side.
        edges: The shapes.
        equivalent: The mutants that no shape may refute; every other one has to be.
        told: What Relacy is told instead; a planted fault.

    Returns:
        A try for each comparison and one for each mutant: refuted somewhere, or not.
    """
    tally = Tally()
    refuted = dict.fromkeys(places.weakened(), False)
    beside: dict[str, bool] = {}
    for edge in edges:
        mutants = _mutants_of(edge.shape)
        tries = [edge.shape.orders, *mutants.values()]
        of_text, *of_mutants = compare(program, edge.shape, tries, tally, told)
        tally.check(right=not of_text, what=f"{edge.shape.name}: the text is refuted")
        for name, allowed in zip(mutants, of_mutants, strict=True):
            ledger = refuted if name in refuted else beside
            ledger[name] = ledger.get(name, False) or allowed
        for name, shape in edge.faults.items():
            (found,) = compare(program, shape, [shape.orders], tally, told)
            tally.check(right=found, what=f"{edge.shape.name}: {name} is not refuted")
            tally.facts["faults refuted by both"] += found
    argued = set(equivalent)
    for name, found in (refuted | beside).items():
        what = f"{name}: {'refuted' if found else 'not refuted'}, unlike the scenes"
        tally.check(right=found != (name in argued), what=what)
    tally.facts["mutants refuted by both"] = sum(refuted.values())
    tally.facts["beside the text refuted by both"] = sum(beside.values())
    tally.facts["equivalent for both"] = len(refuted) - sum(refuted.values())
    return tally.batch()


def _portions(form: Form) -> list[tuple[Shape, int]]:
    """For each further step a shape and where its portion begins."""
    if not MOST[form]:
        return []
    return [
        (shape, begin)
        for shape in library.bodies()
        for begin in range(
            0, min(MOST[form], prod(map(len, shape.choices.values()))), PORTION[form]
        )
    ]


def _step(where: Path, index: int, form: Form) -> Batch:
    program = _program(where)
    if index == 0:
        return literature(program, library.literature())
    if index == 1:
        return text(program, library.edges(), mutate.EQUIVALENT)
    shape, begin = _portions(form)[index - FIXED]
    tally = Tally()
    chosen = shape.assignments(MOST[form])[begin : begin + PORTION[form]]
    compare(program, shape, chosen, tally)
    return tally.batch()


# A known answer that is missed where an axiom is absent.
SHOWN_BY = {
    "coherence": "CoRR O=relaxed",
    "swaps": "swaps O=relaxed",
    "no cycle of rf": "LB R=relaxed W=relaxed",
    "psc": "SB fences L=seq_cst R=seq_cst",
    "release sequences": "release sequence W=release R=acquire",
    "fences": "MP fences W=release R=acquire",
}


def _judged(name: str, _: Path, **changed: Iterable[str]) -> Batch:
    """A checker with an axiom less, or a limit of Relacy's, on a known answer."""
    known = [one for one in library.literature() if one.shape.name == name]
    return literature(None, known, **changed)


def _weaker_text(where: Path) -> Batch:
    """The text with one order weakened, held for the text."""
    place, index, order = places.weakened()["pp3_submit: FENCE seq_cst -> acq_rel"]
    edge = next(e for e in library.edges() if e.shape.name == "E4 bell")
    body = edge.shape.text.replace("@ pp3_submit: FENCE", order)
    if place != "pp3_submit: FENCE" or index:
        raise ValueError(place)
    weaker = library.Edge(Shape("E4 bell", "", body), {})
    return text(_program(where), [weaker], places.weakened())


def _false_argument(where: Path) -> Batch:
    """Mutants are called equivalent that are not: those a shape refutes."""
    edges = [e for e in library.edges() if e.shape.name == "E3 release"]
    return text(_program(where), edges, places.weakened())


def _deaf(where: Path) -> Batch:
    """Relacy is told relaxed for everything."""
    edges = [e for e in library.edges() if e.shape.name == "E1 request"]
    told = lambda orders: tuple("relaxed" for _ in orders)  # noqa: E731
    return text(_program(where), edges, places.weakened(), told)


FIGURES = (
    Figure(
        number=3,
        name="second opinion",
        unit="verdicts",
        claim="a known answer missed, a shape of the text that may go wrong, a mutant "
        "on which the checkers disagree, a difference that no named limit explains",
        steps={form: FIXED + len(_portions(form)) for form in MOST},
        step=_step,
        planted={
            **{
                f"no axiom: {axiom}": partial(_judged, name, without=(axiom,))
                for axiom, name in SHOWN_BY.items()
            },
            "C++11's release sequences for C++20's": partial(
                _judged, "release sequence ended W=release R=acquire", limits=("C++11",)
            ),
            "an order of the text weakened": _weaker_text,
            "a mutant called equivalent": _false_argument,
            "Relacy told other orders": _deaf,
        },
        missing=missing,
        random=False,
    ),
)
