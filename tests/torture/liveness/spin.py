"""Makes the model's table from ring.h, compiles the model, runs its checks."""

import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MODEL = HERE / "ring.pml"
# The model's names of ring.h's states; FAILED+s is any of the last three.
STATES = {
    "FREE": "FREE",
    "CLAIMED": "CLAIMED",
    "WRITING": "WRITING",
    "PUBLISHED": "PUBLISHED",
    "FAILED+2": "EXPIRED",
    "FAILED+7": "ORPHANED",
    "FAILED+8": "CANCELLED",
}
Row = tuple[str, str, str]


def table(text: str) -> list[Row]:
    """The transitions that ring.h's first table grants.

    Args:
        text: Of ring.h.

    Returns:
        From, to and verb of each, as ring.h has them but for FAILED+s, which is written
        out.
    """
    lines = text.partition(" * state  ")[2].partition("\n * Submitted")[0]
    rows: list[Row] = []
    left: list[str] = []
    joined = False
    waiting: list[tuple[str, str]] = []
    for line in lines.splitlines()[1:]:
        state, rest = line[3:13].strip(), line[13:]
        if state:
            left = [*left, state] if joined else [state]
            joined = state.endswith(",")
        found = [
            (to, verb)
            for to, one, other in re.findall(
                r"\b(FAILED\+\d|CLAIMED|WRITING|PUBLISHED)\s+([a-z]+)(?:; ([a-z]+))?",
                rest,
            )
            for verb in (one, other)
            if verb
        ]
        waiting += found
        if joined:
            continue
        for name in left:
            bare = name.rstrip(",")
            froms = (
                [s for s in STATES if s.startswith("FAILED")]
                if bare == "FAILED+s"
                else [bare]
            )
            rows += [(one, to, verb) for one in froms for to, verb in waiting]
        waiting = []
    return rows


def promela(rows: list[Row]) -> str:
    """The table as the model includes it."""
    verbs = sorted({verb for _, _, verb in rows})
    lines = [f"#define {name} {i}" for i, name in enumerate(STATES.values())]
    lines += [f"#define {verb.upper()} {i}" for i, verb in enumerate(verbs)]
    lines += [
        "c_decl {",
        "\\#include <stdlib.h>",
        "static int setting(const char *name) { return atoi(getenv(name)); }",
        f"static void taken(int row) {{ static char seen[{len(rows)}];",
        '    if (!seen[row]) { seen[row] = 1; printf("ROW %d\\n", row); } }',
        "}",
        "inline moved(from, to, verb) {",
        "    if",
    ]
    for i, (from_, to, verb) in enumerate(rows):
        test = (
            f"from == {STATES[from_]} && to == {STATES[to]} && verb == {verb.upper()}"
        )
        lines.append(f"    :: {test} -> c_code {{ taken({i}); }}")
    return "\n".join([*lines, "    :: else -> assert(false)", "    fi", "}", ""])


# What a configuration changes.
BASE = {
    "rounds": 1,
    "pages": 2,
    "ranks": 1,
    "owners": 2,  # proxies, one after another
    "last": 2,  # tickets
    "kills": 0,  # of proxies, at any step
    "stops": 0,  # of proxies, for good
    "rank_kills": 0,
    "watched": 1,  # there is a watchdog
    "helped": 1,  # a waiter past the deadline fails the round itself
    "sliced": 1,  # no sleep is longer than a slice
    "wakes": 1,  # whoever resolves wakes sleepers
    "cancels": 0,  # the engine may cancel a round
    "refusals": 0,  # a proxy may find that a request is none
    "unanswered": 0,  # a proxy's reply may never come
    "kill_stopped": 1,  # a stopped proxy is killed before it gets a successor
    "quarantined": 1,  # a fenced page waits until its proxy has let go
    "swept": 1,  # a proxy gives back what was fenced meanwhile
    "beside": 0,  # a successor begins beside a proxy that is neither killed nor stopped
}
LIVENESS = ("resolved", "verdict", "goes_on")
PROPERTIES = ("safety", *LIVENESS)
MEMORY_MIB = 6000


@dataclass(frozen=True)
class Search:
    """What pan said.

    Attributes:
        states: How many it stored.
        depth: The longest path.
        rows: Rows of the table that were taken, by their number.
        wrong: What is wrong, or nothing: a violation, or a search without an end.
    """

    states: int
    depth: int
    rows: frozenset[int]
    wrong: str


def build(where: Path, rows: list[Row], what: str, level: str) -> Path:
    """Compiles the model, once for each text of it and kind of property.

    Args:
        where: A directory.
        rows: The table.
        what: One of PROPERTIES.
        level: How far the compiler optimizes; that takes longer than a small search.

    Returns:
        The program.

    Raises:
        RuntimeError: Spin or the compiler refused.
    """
    model, generated = MODEL.read_text(), promela(rows)
    defines = ["-DSAFETY", "-DNOCLAIM"] if what == "safety" else ["-DNFAIR=3"]
    defines += ["-DCOLLAPSE", f"-DMEMLIM={MEMORY_MIB}", level]
    everything = f"{model}{generated}{defines}"
    digest = hashlib.sha256(everything.encode()).hexdigest()[:16]
    folder = where / f"pan-{digest}"
    program = folder / "pan"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ring.pml").write_text(model)
    (folder / "table.pml").write_text(generated)
    for command in (
        ["spin", "-a", "ring.pml"],
        ["gcc", "-w", *defines, "-o", "pan.half", "pan.c"],
    ):
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    (folder / "pan.half").rename(program)
    return program


def search(
    program: Path, settings: Mapping[str, int], what: str, timeout_s: int = 3600
) -> Search:
    """Searches every state.

    Args:
        program: As built.
        settings: Of the configuration, as they differ from BASE.
        what: One of PROPERTIES; safety is assertions, the table and no deadlock.
        timeout_s: Then it is given up, which is wrong.

    Returns:
        What was found.
    """
    unknown = settings.keys() - BASE.keys()
    if unknown:
        raise KeyError(f"no setting {', '.join(sorted(unknown))}")
    numbers = {name: str(value) for name, value in (BASE | dict(settings)).items()}
    arguments = [] if what == "safety" else ["-a", "-f", "-N", what]
    with tempfile.TemporaryDirectory(dir=program.parent) as folder:
        try:
            done = subprocess.run(
                [str(program), *arguments, "-m2000000", "-w20"],
                cwd=folder,
                env=os.environ | numbers,
                capture_output=True,
                text=True,
                check=False,
                timeout=timeout_s,
            )
        except subprocess.TimeoutExpired:
            return Search(0, 0, frozenset(), "no end in time")
    return _said(done.stdout)


def _said(text: str) -> Search:
    errors = re.search(r"depth reached (\d+), errors: (\d+)", text)
    stored = re.search(r"^\s*([\d.e+]+) states, stored", text, re.MULTILINE)
    rows = frozenset(int(row) for row in re.findall(r"^ROW (\d+)", text, re.MULTILINE))
    if errors is None or stored is None:
        return Search(0, 0, rows, text[-500:] or "pan said nothing")
    found = re.search(r"^pan:\d+: (.*)", text, re.MULTILINE)
    wrong = found[1] if found else "errors" if int(errors[2]) else ""
    for sign in ("Search not completed", "max search depth too small"):
        if sign in text:
            wrong = wrong or sign
    return Search(int(float(stored[1])), int(errors[1]), rows, wrong)
