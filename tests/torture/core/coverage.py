"""Figure 16: every branch of the C core is taken by the test program, or named.

gcov counts how often each branch of each line was taken, per function and compiled
file; of a header's function the counts of all files that use it are added. A function
counts as one more branch, which its call takes.

`uncovered.txt` names what the program does not reach, by the text of its line. A branch
that is not reached and not named is bad; so is one that is named and reached, or gone.
"""

import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from torture.compiler import missing
from torture.core import program
from torture.figure import CORE, Batch, Figure, Form

TABLE = Path(__file__).resolve().parent / "uncovered.txt"
INLINED = "inlined"  # where gcov names no function: it has no copy of its own
WHOLE, NOT_CALLED = "*", "* not called"
TOOLS = program.Toolchain(("-O0", "--coverage"), link=("-Wl,-u,__gcov_dump",))
EFFORT = {"short": 1, "medium": 2, "long": 10}


@dataclass
class Line:
    """A line of the package that has branches, or begins a function.

    Attributes:
        file: As "ring/ring.h".
        function: Where it stands.
        text: The line, without the blanks around it.
        taken: How often each branch was.
    """

    file: str
    function: str
    text: str
    taken: list[int] = field(default_factory=list)

    @property
    def missed(self) -> int:
        """How many of its branches were never taken."""
        return sum(not count for count in self.taken)


@dataclass(frozen=True)
class Named:
    """An entry of the table.

    Attributes:
        file: As of a line.
        function: The same.
        text: The same.
        missed: How many branches of it are not taken.
        at_most: True where chance or the CPU decides, and so many are the most.
        reason: Why.
    """

    file: str
    function: str
    text: str
    missed: int
    at_most: bool
    reason: str


def table(path: Path = TABLE) -> list[Named]:
    """The entries of the table.

    An entry is `FILE FUNCTION N`, with a `?` behind N where N is the most; the line of
    the text behind two blanks, or `*` for all of the function, or `* not called` for
    all of it where none of it ran; its reason behind two blanks and a `#`. A `#` at
    the margin begins a comment.
    """
    found: list[Named] = []
    head: list[str] = []
    text, reasons = "", []

    def close() -> None:
        if head:
            missed, at_most = int(head[2].rstrip("?")), head[2].endswith("?")
            found.append(
                Named(head[0], head[1], text, missed, at_most, " ".join(reasons))
            )

    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("  # "):
            reasons.append(line[4:])
        elif line.startswith("  "):
            text = line.strip()
        elif line and not line.startswith("#"):
            close()
            head, text, reasons = line.split(), "", []
    close()
    return found


def _said(where: Path) -> list[dict]:  # type: ignore[type-arg]
    done = subprocess.run(
        ["gcov", "--json-format", "--branch-probabilities", "--stdout",
         *sorted(path.name for path in where.glob("*.gcno"))],
        cwd=where, capture_output=True, text=True, check=True,
    )  # fmt: skip
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    return [file for report in reports for file in report["files"]]


def lines(where: Path) -> list[Line]:
    """What was taken, of every line of the package that has branches.

    Args:
        where: The directory of a build that ran.

    Returns:
        The lines, in the order of their files.
    """
    found: dict[tuple[str, int, str], Line] = {}
    calls: dict[tuple[str, int, str], int] = defaultdict(int)
    for file in _said(where):
        path = Path(file["file"])
        if not path.is_relative_to(CORE):
            continue
        name, texts = str(path.relative_to(CORE)), path.read_text().splitlines()
        for line in file["lines"]:
            counts = [branch["count"] for branch in line["branches"]]
            key = (name, line["line_number"], line.get("function_name") or INLINED)
            if counts:
                text = texts[line["line_number"] - 1].strip()
                known = found.setdefault(
                    key, Line(name, key[2], text, [0] * len(counts))
                )
                known.taken = [a + b for a, b in zip(known.taken, counts, strict=True)]
        for function in file["functions"]:
            key = (name, function["start_line"], function["name"])
            calls[key] += function["execution_count"]
    for (name, number, function), count in calls.items():
        key = (name, number, f"{function}()")
        found[key] = Line(name, function, f"{function}()", [count])
    return [found[key] for key in sorted(found)]


def uncompiled(seen: list[Line]) -> list[str]:
    """Inline functions of the headers that no file compiled, so that gcov has none."""
    compiled = {line.function for line in seen}
    wrong = []
    for path in sorted(CORE.rglob("*.h")):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^static inline[^(]*?(\w+)\(", text, re.MULTILINE)
        wrong += [
            f"{path.name} {name}: never compiled"
            for name in names
            if name not in compiled
        ]
    return wrong


def unused() -> list[str]:
    """C files of the package that are no part of the program.

    Not those that speak to the interpreter: tests/test_rounds.py and others run them.
    """
    parts = {f"{part}.c" for part in program.TESTED}
    found = {
        str(path.relative_to(CORE))
        for path in CORE.rglob("*.c")
        if '"rounds/calls.h"' not in path.read_text(encoding="utf-8")
    }
    # What cffi writes beside the sources is none of them.
    aside = ("_core", "bench/")
    return sorted(name for name in found - parts if not name.startswith(aside))


def untested(seen: list[Line], names: list[Named]) -> list[str]:
    """Parts of the core that no test of the program calls.

    Args:
        seen: From `lines`.
        names: From `table`; functions that need not be called are left out.

    Returns:
        The parts' names, as "proxy/pump".
    """
    spared = {(n.file, n.function) for n in names if n.text == NOT_CALLED}
    ran: dict[str, int] = defaultdict(int)
    for line in seen:
        if (line.file, line.function) not in spared:
            ran[line.file.rpartition(".")[0]] += sum(line.taken)
    missed = {part for part, count in ran.items() if not count}
    return sorted(missed | {name.rpartition(".")[0] for name in unused()})


def differences(seen: list[Line], names: list[Named]) -> list[str]:
    """What the table does not say as it is.

    Args:
        seen: From `lines`.
        names: From `table`.

    Returns:
        A sentence for each difference; parts that are not tested at all come first.
    """
    parts = untested(seen, names)
    wrong = [f"parts without a test in c/: {', '.join(parts)}"] if parts else []
    called = {(line.file, line.function) for line in seen if any(line.taken)}
    all_of = [name for name in names if name.text in (WHOLE, NOT_CALLED)]
    whole = {
        (name.file, name.function)
        for name in all_of
        if name.text == WHOLE or (name.file, name.function) not in called
    }
    lined = [name for name in names if name not in all_of]
    left = {(name.file, name.function, name.text): name for name in lined}
    missed: dict[tuple[str, str, str], int] = defaultdict(int)
    for line in seen:
        if (line.file, line.function) in whole:
            left.pop((line.file, line.function, line.text), None)
            continue
        missed[line.file, line.function, line.text] += line.missed
    for key, count in missed.items():
        place = f"{key[0]} {key[1]}: {key[2]}"
        named = left.pop(key, None)
        if named is None:
            if count:
                wrong.append(f"{count} not taken and not named: {place}")
        elif count > named.missed or (count < named.missed and not named.at_most):
            wrong.append(f"{count} not taken, {named.missed} named: {place}")
    known = {(line.file, line.function) for line in seen}
    wrong += [f"named, and gone: {' '.join(key)}" for key in left]
    gone = {(name.file, name.function) for name in all_of} - known
    wrong += [f"named, and gone: {' '.join(key)}" for key in sorted(gone)]
    wrong += [f"without a reason: {n.file} {n.text}" for n in names if not n.reason]
    return wrong


def measured(where: Path, *arguments: str) -> tuple[program.Run, list[Line]]:
    """Runs the program, and reads what it took.

    Args:
        where: The figure's directory.
        arguments: Of the program.

    Returns:
        The run, and its lines.
    """
    core = program.build(where / "gcov", TOOLS)
    for old in core.parent.glob("*.gcda"):
        old.unlink()
    done = program.run(core, *arguments)
    return done, lines(core.parent)


def _step(where: Path, index: int, form: Form) -> Batch:
    done, seen = measured(where, "--seed", str(index), "--effort", str(EFFORT[form]))
    wrong = [done.first] if done.first else []
    wrong = wrong or [*differences(seen, table()), *uncompiled(seen)]
    facts = {
        "files": len({line.file for line in seen}),
        "functions": sum(line.text.endswith("()") for line in seen),
        "named": sum(line.missed for line in seen),
    }
    tried = sum(len(line.taken) for line in seen)
    return Batch(tried, len(wrong), facts, "; ".join(wrong[:5]))


def _without(sentence: str) -> Callable[[Path], Batch]:
    """A run that leaves out a test, so that a branch is not taken."""

    def run_it(where: Path) -> Batch:
        _, seen = measured(where, "--skip", sentence)
        wrong = differences(seen, table())
        return Batch(1, len(wrong), {}, wrong[0] if wrong else "")

    return run_it


def _table_with(*, more: bool) -> Callable[[Path], Batch]:
    """A table that names what is taken, or what is not in the text."""

    def run_it(where: Path) -> Batch:
        _, seen = measured(where)
        taken = next(line for line in seen if not line.missed)
        text = taken.text if more else "a line that was there once"
        entry = Named(taken.file, taken.function, text, 1, False, "a reason")
        wrong = differences(seen, [*table(), entry])
        return Batch(1, len(wrong), {}, wrong[0] if wrong else "")

    return run_it


def _part(where: Path) -> Batch:
    """A run of one test, so that most parts are not called: they have to be named."""
    _, seen = measured(where, "--only", "known blocks of Philox")
    first = differences(seen, table())[0]
    said = first.startswith("parts without") and "verify/sparse" in first
    return Batch(1, int(said), {}, first)


FIGURE = Figure(
    number=16,
    name="coverage",
    unit="branches and functions",
    claim="one that is not taken and not named with its reason, or named and taken",
    steps={"short": 1, "medium": 1, "long": 1},
    step=_step,
    planted={
        "a part without a test": _part,
        "a test left out": _without("a proxy needs no environment"),
        "a name for what is taken": _table_with(more=True),
        "a name for what is gone": _table_with(more=False),
    },
    missing=lambda: missing("gcc", "gcov"),
    random=False,
)
