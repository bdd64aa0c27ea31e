"""Figure 8: sleeps that ran to their end although the wake had been given.

The driver's `lost` is a proof without a margin; see wakes.c. The core's own counter of
lost wakes is shown beside it as `detected`: it can also rise where the resolver was put
off the processor for more than 20 us between its swap and its wake.
"""

import subprocess
from pathlib import Path

from torture import compiler, planted
from torture.figure import Batch, Figure, Form
from torture.wakes.faults import EDITS, FAULTS

DRIVER = Path(__file__).with_name("wakes.c")
PARTS = (
    "ring/atomics",
    "ring/ring",
    "ring/slots",
    "layout/accept",
    "layout/page",
    "layout/step",
    "layout/crc",
)
# What a step tries in each play: waits, or sleeps of the watchdog. The watchdog's take
# the longest, since it sleeps to each deadline before it can be nudged again.
PLAYS = ("processes", "threads", "bell", "nudge")
TRIES: dict[Form, tuple[int, ...]] = {
    "short": (60_000, 60_000, 20_000, 2_000),
    "medium": (150_000, 150_000, 50_000, 5_000),
    "long": (250_000, 200_000, 60_000, 8_000),
}
BAD = ("lost", "bell_lost", "nudge_lost", "wrong")
LIMIT_S = 300


def _program(where: Path, *, switched: bool) -> Path:
    return planted.program(where, DRIVER, PARTS, EDITS, "-O2", switched=switched)


def _play(program: Path, play: str, seed: int, tries: int, fault: int) -> Batch:
    command = [str(program), play, str(seed), str(tries), str(fault)]
    words = " ".join(command[1:])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return Batch(0, 1, {}, f"{words}: nothing moved any more")
    if done.returncode:
        return Batch(0, 1, {}, f"{words}: {done.returncode} {done.stderr[-300:]}")
    counts = {k: int(n) for k, n in (line.split() for line in done.stdout.splitlines())}
    bad = sum(counts[name] for name in BAD)
    tried = counts["waits"] + counts["bells"] + counts["nudges"]
    facts = {name.replace("_", " "): n for name, n in counts.items()}
    return Batch(tried, bad, facts, f"{words}: {counts}" if bad else "")


def _detector(program: Path) -> Batch:
    """The core's own detector: one wake left out, one given late."""
    found = _play(program, "self", 1, 1, 0)
    wrong = int(found.facts.get("wrong", 1))
    return Batch(0, wrong, {}, found.first if wrong else "")


def _step(where: Path, index: int, form: Form) -> Batch:
    program = _program(where, switched=False)
    plays = [
        _play(program, play, index * len(PLAYS) + i, tries, 0)
        for i, (play, tries) in enumerate(zip(PLAYS, TRIES[form], strict=True))
    ]
    plays.append(_detector(program))
    bad = sum(batch.bad for batch in plays)
    facts = {
        name: sum(int(batch.facts.get(name, 0)) for batch in plays)
        for name in plays[0].facts
    }
    first = next((batch.first for batch in plays if batch.first), "")
    return Batch(sum(batch.tried for batch in plays), bad, facts, first)


def _plant(where: Path, fault: int, play: str) -> Batch:
    program = _program(where, switched=True)
    found = Batch(0, 0)
    for seed in range(24):  # until it shows
        found = _play(program, play, seed, 20_000 if play != "nudge" else 4_000, fault)
        if found.bad:
            break
    return found


def _planted(name: str):
    fault, play = FAULTS[name]
    return lambda where: _plant(where, fault, play)


FIGURES = (
    Figure(
        number=8,
        name="lost wakes",
        unit="sleeps",
        claim="a sleep that ran to its end although its wake had been given",
        steps={"short": 1, "medium": 2, "long": 24},
        step=_step,
        planted={name: _planted(name) for name in FAULTS},
        missing=lambda: compiler.missing("gcc"),
        cores=2,
    ),
)
