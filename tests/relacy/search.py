"""Compiles the scenes, searches them, and hunts mutants through them.

`python tests/relacy/report.py` prints the tables of scenes and of mutants.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from relacy import mutate

Item = TypeVar("Item")
Answer = TypeVar("Answer")
HERE = Path(__file__).resolve().parent
HEADER = Path("/usr/include/relacy/relacy.hpp")
# How a mutant is hunted: every scene a little, then every scene more.
HUNT = (("random", 3_000), ("random", 30_000), ("full", 100_000))
CORES = min(2, os.cpu_count() or 1)


def missing() -> str:
    """What is needed and is not here, or nothing."""
    if shutil.which("g++") is None:
        return "needs g++"
    return "" if HEADER.exists() else "needs relacy-dev"


@dataclass(frozen=True)
class Outcome:
    """What one search said.

    Attributes:
        executions: How many were tried.
        outcome: complete, random or capped; else what is wrong.
        events: What happened how often, or never happened.
    """

    scene: str
    mode: str
    executions: int
    outcome: str
    events: str

    @property
    def clean(self) -> bool:
        """True where nothing forbidden was seen and what has to happen did."""
        fine = self.outcome in {"complete", "random", "capped"}
        return fine and "never" not in self.events

    @property
    def refutes(self) -> bool:
        """True where something forbidden was seen."""
        return self.outcome not in {"complete", "random", "capped"}


def build(target: Path, *, switched: bool) -> Path:
    """Compiles the scenes over the text, or over its copy with switches.

    Args:
        target: A directory for the program and the copy.
        switched: Whether mutants can be planted.

    Returns:
        The program.
    """
    text = target if switched else mutate.ROOT / "pp3shm"
    if switched:
        mutate.write_switched(target)
    program = target / ("mutants" if switched else "scenes")
    flags = ["-std=c++11", "-w", "-O1" if switched else "-O2", f"-I{text}"]
    flags += ["-DPP3_MUTATED"] if switched else []
    command = ["g++", *flags, f"-I{HERE}", str(HERE / "scenes.cpp"), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


def run(program: Path, scene: str, *arguments: object) -> Outcome:
    """One search.

    Args:
        program: As built.
        scene: Its name.
        arguments: The mode, its numbers, and what to plant.

    Returns:
        What it said.

    Raises:
        RuntimeError: It said nothing.
    """
    command = [str(program), scene, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    parts = done.stdout.strip().split("|")
    if len(parts) != 5:
        message = f"{command}: {done.returncode} {done.stdout} {done.stderr}"
        raise RuntimeError(message)
    return Outcome(parts[0], parts[1], int(parts[2]), parts[3], parts[4].strip())


def scenes(program: Path) -> list[str]:
    """The names of all scenes."""
    listed = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    return [line.split("|")[0] for line in listed.stdout.splitlines()]


def hunt(
    program: Path, mutant: mutate.Mutant, plan: Iterable[tuple[str, tuple[object, ...]]]
) -> Outcome | None:
    """Searches until the mutant is refuted.

    Args:
        program: Built with switches.
        mutant: What to plant.
        plan: Pairs of a scene and a mode with its numbers, in their order.

    Returns:
        The search that refuted it, or None: it lives.
    """
    for scene, mode in plan:
        outcome = run(program, scene, *mode, *mutant.switch)
        if outcome.refutes:
            return outcome
    return None


def hunting_plan(
    names: Iterable[str], *modes: tuple[object, ...]
) -> list[tuple[str, tuple[object, ...]]]:
    """Every scene in the first mode, then every scene in the next."""
    listed = list(names)
    return [(scene, mode) for mode in modes for scene in listed]


def in_parallel(work: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """As `map`, a program per core."""
    with ThreadPoolExecutor(CORES) as pool:
        return list(pool.map(work, items))
