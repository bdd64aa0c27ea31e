"""What a figure of docs/reliability.md is made of: steps, and faults it has to catch.

Every folder beside this file has a `figures.py` with `FIGURES`, a tuple of Figure.
`tests/torture/run.py` runs them in three forms; `tests/test_torture.py` runs the short
form of each, and its planted faults, as part of `make test`.
"""

import hashlib
import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORE = ROOT / "pp3shm"
CORES = min(2, os.cpu_count() or 1)

Form = Literal["short", "medium", "long"]
FORMS: tuple[Form, ...] = ("short", "medium", "long")
Fact = int | str


@dataclass(frozen=True)
class Batch:
    """What one step found.

    Attributes:
        tried: How many tries, in the figure's own unit.
        bad: How many of them ended in a way that is forbidden.
        facts: What else was counted. Numbers of all steps are added, except those
            whose name begins with "max ": of them the largest stands; of texts all
            different ones stand.
        first: The first bad one, so that it can be found again; empty where none was.
    """

    tried: int
    bad: int
    facts: Mapping[str, Fact] = field(default_factory=dict)
    first: str = ""


def together(batches: list[Batch]) -> Batch:
    """The sum of several steps."""
    facts: dict[str, Fact] = {}
    for batch in batches:
        for name, fact in batch.facts.items():
            facts[name] = _joined(name, facts[name], fact) if name in facts else fact
    first = next((batch.first for batch in batches if batch.first), "")
    tried = sum(batch.tried for batch in batches)
    return Batch(tried, sum(batch.bad for batch in batches), facts, first)


def _joined(name: str, one: Fact, other: Fact) -> Fact:
    if isinstance(one, int) and isinstance(other, int):
        return max(one, other) if name.startswith("max ") else one + other
    texts = str(one).split(", ")
    return str(one) if str(other) in texts else f"{one}, {other}"


@dataclass(frozen=True)
class Figure:
    """One line of docs/reliability.md, and how it is found again.

    Attributes:
        number: Its place in the table.
        name: Of its command: `python tests/torture/run.py --only NAME`.
        unit: What is tried, in the plural: "kills", "executions".
        claim: What no try may show, as a sentence.
        steps: How many steps each form takes. A step is the unit of resuming: some
            seconds, at most a few minutes.
        step: Runs one step: where to build and keep files (the same directory for all
            steps of a run), its index from 0, the form. A random step takes its seeds
            from the index alone, so that it can be run again.
        planted: For each planted fault a run that has to find it, that is, return a
            Batch with `bad` > 0; given a directory.
        missing: What is needed and is not here, or nothing.
        random: True where tries are drawn, so that zero bad ones bound a rate.
        cores: How many cores a step keeps busy.
    """

    number: int
    name: str
    unit: str
    claim: str
    steps: Mapping[Form, int]
    step: Callable[[Path, int, Form], Batch]
    planted: Mapping[str, Callable[[Path], Batch]]
    missing: Callable[[], str] = lambda: ""
    random: bool = True
    cores: int = 1


def figures() -> list[Figure]:
    """Every figure of every folder, in the order of their numbers."""
    found: list[Figure] = []
    for path in sorted(HERE.glob("*/figures.py")):
        found += importlib.import_module(f"torture.{path.parent.name}.figures").FIGURES
    return sorted(found, key=lambda figure: figure.number)


def digest(figure: Figure) -> str:
    """Of every text that the outcome depends on: the package and the figure's folder.

    Args:
        figure: Whose folder is taken.

    Returns:
        Sixteen hexadecimal digits.
    """
    folder = HERE / figure.step.__module__.split(".")[1]
    ends = {".py", ".c", ".h", ".cdef", ".cpp", ".txt", ".pml"}
    paths = [p for top in (CORE, folder) for p in top.rglob("*") if p.suffix in ends]
    total = hashlib.sha256()
    for path in sorted(paths):
        total.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()[:16]
