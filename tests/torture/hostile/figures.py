"""Figure 9: a region with any words in it.

What a right answer is stands in operations.h for the C core, and in python.py for the
package: nothing is repaired, and nothing outside the region's own bounds is ever named.
"""

import subprocess
import sys
from pathlib import Path

from torture import compiler, planted
from torture.figure import Batch, Figure, Form
from torture.hostile.faults import (
    BETWEEN,
    EDITS,
    ENDLESS,
    FAULTS,
    PROCESS,
    STILL,
    THREAD,
)
from torture.hostile.planted_python import PLANTS

HERE = Path(__file__).resolve().parent
DRIVER = HERE / "hostile.c"
PARTS = (
    "ring/atomics",
    "ring/ring",
    "ring/watchdog",
    "layout/accept",
    "layout/page",
    "layout/step",
    "layout/crc",
)
# Cases of a step: of the C core while nobody writes, a thread, a process, a writer that
# is timed to the loads; of Python.
CASES: dict[Form, tuple[int, int, int, int, int]] = {
    "short": (2_500, 500, 500, 2_500, 160),
    "medium": (8_000, 1_500, 1_500, 8_000, 400),
    "long": (18_000, 2_000, 2_000, 18_000, 600),
}
STEPS: dict[Form, int] = {"short": 1, "medium": 5, "long": 25}
CASES_TO_FIND = 5_000
LIMIT_S = 600
WRITERS = (STILL, THREAD, PROCESS, BETWEEN)
PATIENCE_S = 60  # of 64 cases, in which a hang is one


def _program(where: Path, *, switched: bool) -> Path:
    return planted.program(
        where, DRIVER, PARTS, EDITS, *compiler.SANITIZED, switched=switched
    )


def _run(command: list[str], what: str) -> tuple[list[int], Batch | None]:
    """What a run printed, or the batch of one that was bad."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return [], Batch(0, 1, {}, f"{what}: no end")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if _tells(line)]
        return [], Batch(
            0, 1, {}, f"{what}: {done.returncode}: {'; '.join(lines)[:600]}"
        )
    return [int(word) for word in done.stdout.split()], None


def _tells(line: str) -> bool:
    return any(w in line for w in ("wrong:", "ERROR:", "error:", "seed ", "Error"))


def _core(
    program: Path, seed: int, cases: int, flipping: int, fault: int, patience: int
) -> Batch:
    words = [str(n) for n in (seed, 0, cases, flipping, fault, patience)]
    counts, bad = _run([str(program), *words], f"hostile {' '.join(words)}")
    if bad is not None:
        return bad
    tried, operations, kinds, attached, refused = counts
    facts = {
        "C operations": operations,
        "C cases under a writer": tried if flipping else 0,
        "max kinds of operation": kinds,
        "records attached": attached,
        "records refused": refused,
    }
    return Batch(tried, 0, facts)


def _python(seed: int, cases: int, fault: str = "") -> Batch:
    command = [sys.executable, str(HERE / "python.py"), str(seed), str(cases), fault]
    counts, bad = _run(command, f"python.py {seed} {cases} {fault}")
    if bad is not None:
        return bad
    tried, right, refused, kinds = counts
    facts = {
        "Python cases": tried,
        "Python calls answered": right,
        "Python calls refused": refused,
        "max Python error classes": kinds,
    }
    return Batch(tried, 0, facts)


def _sum(batches: list[Batch]) -> Batch:
    facts: dict[str, int | str] = {}
    for batch in batches:
        for name, n in batch.facts.items():
            before = int(facts.get(name, 0))
            more = name.startswith("max ")
            facts[name] = max(before, int(n)) if more else before + int(n)
    first = next((batch.first for batch in batches if batch.first), "")
    tried, bad = sum(b.tried for b in batches), sum(b.bad for b in batches)
    return Batch(tried, bad, facts, first)


def _step(where: Path, index: int, form: Form) -> Batch:
    program = _program(where, switched=False)
    *core, python = CASES[form]
    batches = [
        _core(program, index * 4 + flipping, cases, flipping, 0, PATIENCE_S)
        for flipping, cases in zip(WRITERS, core, strict=True)
    ]
    return _sum([*batches, _python(index, python)])


def _plant_core(where: Path, fault: int, flipping: int) -> Batch:
    # Of a hang enough to be seen; elsewhere no slow machine may look like a find.
    patience = 3 if fault == ENDLESS else PATIENCE_S
    program = _program(where, switched=True)
    found = Batch(0, 0)
    for seed in range(5):  # each has another shape
        found = _core(program, seed, CASES_TO_FIND, flipping, fault, patience)
        if found.bad:
            break
    return found


def _planted(name: str):
    fault, flipping = FAULTS[name]
    return lambda where: _plant_core(where, fault, flipping)


def _plant_python(name: str) -> Batch:
    found = Batch(0, 0)
    for seed in range(8):
        found = _python(seed, 200, name)
        if found.bad:
            break
    return found


def _planted_python(name: str):
    return lambda _: _plant_python(name)


FIGURES = (
    Figure(
        number=9,
        name="hostile region",
        unit="regions",
        claim="a signal, a hang, a touch outside, an unnamed error or a wrong answer",
        steps=STEPS,
        step=_step,
        planted={
            **{name: _planted(name) for name in FAULTS},
            **{name: _planted_python(name) for name in PLANTS},
        },
        missing=lambda: compiler.missing("gcc"),
        cores=2,
    ),
)
