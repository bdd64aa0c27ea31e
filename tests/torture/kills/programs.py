"""Building and running what figures 6 and 7 are made of; none of it can hang."""

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from torture.compiler import build
from torture.figure import CORE, ROOT, Batch, Fact

HERE = Path(__file__).resolve().parent
SOURCES = {
    "kills": ("kills", "life", "load", "peers", "rig"),
    "stopped": ("stopped", "victim", "rig"),
}
RING = ("ring", "atomics", "watchdog")
NO_END = "no good end"
"""Said of a program that crashed or hung."""
SEEDS = 20261130  # of step 0
_building = threading.Lock()


def program(where: Path, name: str, include: Path = CORE) -> Path:
    """The program of that name over the ring's sources, built once.

    Args:
        where: a directory for it.
        name: ``kills`` or ``stopped``.
        include: where `ring/` stands; a copy with a fault may be one.
    """
    with _building:
        sources = [HERE / f"{part}.c" for part in SOURCES[name]]
        sources += [include / "ring" / f"{part}.c" for part in RING]
        # Where a run goes on another day, no program of another text may stand there.
        target = where / f"{name}-{_digest(*sources, *include.glob('ring/*.h'))}"
        if target.exists():
            return target
        flags = ("-O1", "-include", str(HERE / "step.h"), f"-I{HERE}")
        return build(target, sources, *flags, include=include)


def _digest(*paths: Path) -> str:
    total = hashlib.sha256()
    for path in sorted({*paths, *HERE.glob("*.h")}):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()[:12]


def run_program(
    path: Path, seed: int, amount: int, slack_ms: int = 30_000, fault: int = 0
) -> Batch:
    """Runs one of the programs and reads what it counted.

    Args:
        path: of the program.
        seed: of everything it draws.
        amount: its own second argument.
        slack_ms: how long what must happen may take before it counts as not happened.
        fault: the planted one that is switched on.
    """
    command = [str(path), str(seed), str(amount), str(slack_ms)]
    return _ran(command, 300 + slack_ms // 1000, RIG_FAULT=str(fault))


def run_stack(seed: int, seconds: float, slack_s: float = 60, plant: str = "") -> Batch:
    """Runs ``storm.py``: whole engines, workers and ranks."""
    script = str(HERE / "storm.py")
    command = [sys.executable, "-P", script, str(seed), str(seconds), str(slack_s)]
    return _ran([*command, plant], 300 + seconds + 3 * slack_s)


def run_stops(seed: int, seconds: float, slack_s: float = 60) -> Batch:
    """Runs ``stops.py``: a whole engine whose proxy's process is stopped."""
    script = str(HERE / "stops.py")
    command = [sys.executable, "-P", script, str(seed), str(seconds), str(slack_s)]
    return _ran(command, 300 + seconds + 3 * slack_s)


def _ran(command: Sequence[str], limit_s: float, **settings: str) -> Batch:
    """What it printed: a name and a number a line, `bad ...` where something was wrong.

    A program that hangs, crashes or leaves word of neither is bad too.
    """
    # Freed memory that the C library keeps for a thread would look like a leak; what
    # is imported is the package that is installed, or that PYTHONPATH names.
    settings["GLIBC_TUNABLES"] = "glibc.malloc.tcache_count=0"
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **settings},
        cwd=ROOT / "tests",
    ) as process:
        try:
            out, err = process.communicate(timeout=limit_s)
            end = f"{NO_END}: {process.returncode}" if process.returncode else ""
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            end = f"{NO_END} within {limit_s} s"
    return _read(" ".join(command), out, err, end)


def _read(command: str, out: str, err: str, end: str) -> Batch:
    facts: dict[str, Fact] = {}
    wrong = [end] if end else []
    for line in out.splitlines():
        name, _, number = line.rpartition(" ")
        if line.startswith("bad "):
            wrong.append(line.removeprefix("bad "))
        elif number.isdecimal():
            facts[name] = int(number)
    if not facts and not wrong:
        wrong.append("nothing counted")
    first = f"{'; '.join(wrong)} ({command}) {err[-500:]}" if wrong else ""
    return Batch(0, len(wrong), facts, first)
