"""Figures 6 and 7: random SIGKILLs under load, and proxies that are stopped, not dead.

At the ring: C programs over the package's own sources, with its watchdog, hundreds of
kills a second. The whole stack: engines, workers and ranks of the package as they are
used, with the proxies that the engines start.
"""

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from torture.compiler import missing
from torture.figure import Batch, Figure, Form, together
from torture.kills.planted import FAULTS, Fault, copy_of_the_ring, number_of
from torture.kills.processes import NAMES
from torture.kills.programs import (
    NO_END,
    SEEDS,
    program,
    run_program,
    run_stack,
    run_stops,
)

EPISODES = {"short": 12, "medium": 50, "long": 25}
STORM_S = {"short": 2, "medium": 15, "long": 30}
TRIES = {"short": 200, "medium": 1000, "long": 1000}
STOPS_S = {"short": 2, "medium": 10, "long": 20}
RING_KILLS = ("proxies", "ranks", "engines")
STACK_KILLS = tuple(name for name in NAMES if "kills" in name)
SLACK_MS = 800
"""For a planted fault by which something never happens."""


def _named(batch: Batch, begin: str, counted: tuple[str, ...]) -> Batch:
    """With its own names in front, and what was tried added up."""
    facts = {f"{begin}{name}": fact for name, fact in batch.facts.items()}
    tried = sum(int(batch.facts.get(name, 0)) for name in counted)
    return dataclasses.replace(batch, tried=tried, facts=facts)


def _kills(where: Path, index: int, form: Form) -> Batch:
    seed = SEEDS + index
    ring = run_program(program(where, "kills"), seed, EPISODES[form])
    stack = run_stack(seed, STORM_S[form])
    return together(
        [_named(ring, "ring: ", RING_KILLS), _named(stack, "stack: ", STACK_KILLS)]
    )


def _stopped(where: Path, index: int, form: Form) -> Batch:
    seed = SEEDS + index
    ring = run_program(program(where, "stopped"), seed, TRIES[form])
    stack = run_stops(seed, STOPS_S[form])
    return together([_named(ring, "", ("tries",)), _named(stack, "stack: ", ())])


def _ring_fault(name: str, amount: int, fault: Fault, where: Path) -> Batch:
    path = program(where / "faults", name, copy_of_the_ring(where))
    return _caught(run_program(path, SEEDS, amount, SLACK_MS, number_of(fault)))


def _stack_fault(plant: str, where: Path) -> Batch:
    del where
    return _caught(run_stack(SEEDS, 10, SLACK_MS / 1000, plant))


def _caught(batch: Batch) -> Batch:
    """As it is; a program that did not get so far as to look has caught nothing."""
    if not batch.facts or NO_END in batch.first:
        raise RuntimeError(batch.first or "nothing counted")
    return batch


STACK_FAULTS = (
    "another round",  # a worker that answers with another round's bytes
    "nobody resolves",  # watchdog and proxy are off
    "a leak",  # a descriptor
    "an outliving process",
)

Planted = Mapping[str, Callable[[Path], Batch]]
KILL_FAULTS: Planted = {
    **{f.name: partial(_ring_fault, "kills", 60, f) for f in FAULTS if f.kills},
    **{f"stack, {plant}": partial(_stack_fault, plant) for plant in STACK_FAULTS},
}
STOP_FAULTS: Planted = {
    f.name: partial(_ring_fault, "stopped", 200, f) for f in FAULTS if f.stopped
}

FIGURES = (
    Figure(
        number=6,
        name="random kills",
        unit="kills",
        claim="a torn or foreign reply, two outcomes, none, or anything that is left",
        steps={"short": 1, "medium": 4, "long": 40},
        step=_kills,
        planted=KILL_FAULTS,
        missing=lambda: missing("gcc"),
    ),
    Figure(
        number=7,
        name="stopped not dead",
        unit="stops in the middle of a copy",
        claim="a late publication that counts, or a byte of another round changed",
        steps={"short": 1, "medium": 4, "long": 10},
        step=_stopped,
        planted=STOP_FAULTS,
        missing=lambda: missing("gcc"),
    ),
)
