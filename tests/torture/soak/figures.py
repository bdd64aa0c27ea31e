"""Figure 15: nothing grows.

Two halves. A day of the watchdog is simulated: its own loop, its own descriptors, the
ring's own text, on a clock that stands still while anybody works (soak.c). The load is
real and its minutes are: the whole stack in its processes (load.py).
"""

import json
import subprocess
import sys
from pathlib import Path

from torture import compiler, planted
from torture.figure import Batch, Figure, Form
from torture.soak.faults import EDITS, FAULTS

HERE = Path(__file__).resolve().parent
DRIVER = HERE / "soak.c"
PARTS = ("ring/atomics", "ring/ring", "ring/slots")
DAY = 86_400
# The simulated seconds of the first steps, and the real ones of the last.
SIMULATED: dict[Form, tuple[int, ...]] = {
    "short": (7_200,),
    "medium": (DAY,),
    "long": (DAY, DAY, DAY, DAY),
}
REAL: dict[Form, int] = {"short": 2, "medium": 30, "long": 600}
LIMIT_S = 1_200


def _program(where: Path, *, switched: bool) -> Path:
    return planted.program(where, DRIVER, PARTS, EDITS, "-O2", switched=switched)


def _run(command: list[str], tried: int) -> tuple[str, Batch | None]:
    """What a run printed, or the batch of one that was bad."""
    words = " ".join(Path(word).name for word in command)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return "", Batch(tried, 1, {}, f"{words}: no end")
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:]
        return "", Batch(tried, 1, {}, f"{words}: {done.returncode}: {' '.join(said)}")
    return done.stdout, None


def _simulated(program: Path, seed: int, seconds: int, fault: int) -> Batch:
    command = [str(program), str(seed), str(seconds), str(fault)]
    printed, bad = _run(command, seconds)
    if bad is not None:
        return bad
    counts = {k: int(n) for k, n in (line.split() for line in printed.splitlines())}
    facts = {
        "simulated seconds": seconds,
        "rounds answered": counts["answered"],
        "rounds failed": counts["failed"],
        "late answers fenced": counts["fenced"],
        "proxies dead": counts["deaths"],
        "starts that failed": counts["starts_failed"],
        "times at rest": counts["pauses"],
        "max reuse of an owner id": counts["most_reuse"],
        "max descriptors": counts["fds"],
        "max bytes resident more": max(0, counts["grown_bytes"]),
    }
    return Batch(seconds, 0, facts)


def _real(seed: int, seconds: int, *leak: str) -> Batch:
    command = [sys.executable, str(HERE / "load.py"), str(seconds), str(seed), *leak]
    printed, bad = _run(command, seconds)
    if bad is not None:
        return bad
    found = json.loads(printed)
    facts = {
        "real seconds": found["seconds"],
        "real rounds": found["rounds"],
        "real rounds failed": found["failed"],
        "real proxies killed": found["kills"],
        **{f"max bytes more of the {who}": n for who, n in found["grown"].items()},
    }
    return Batch(found["seconds"], 0, facts)


def _step(where: Path, index: int, form: Form) -> Batch:
    days = SIMULATED[form]
    if index < len(days):
        return _simulated(_program(where, switched=False), index, days[index], 0)
    return _real(index, REAL[form])


def _planted(name: str):
    program, fault = lambda where: _program(where, switched=True), FAULTS[name]
    return lambda where: _simulated(program(where), 0, 7_200, fault)


def _planted_load(_: Path) -> Batch:
    """Both leaks have to be named, not one of them alone."""
    found = _real(0, 2, "leak")
    named = "engine descriptors" in found.first and "engine anonymous" in found.first
    return Batch(found.tried, int(named), {}, found.first)


FIGURES = (
    Figure(
        number=15,
        name="soak",
        unit="seconds",
        claim="descriptors, pages, quarantine, memory or processes that grow",
        steps={form: len(days) + 1 for form, days in SIMULATED.items()},
        step=_step,
        planted={
            **{name: _planted(name) for name in FAULTS},
            "a leaking engine under real load": _planted_load,
        },
        missing=lambda: compiler.missing("gcc"),
    ),
)
