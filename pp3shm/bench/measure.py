"""What is measured of a subject, and how: rounds, floods, CPU use, quantiles."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999))
CDF_POINTS = 201


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured of each subject in one repetition.

    Attributes:
        repetitions: of everything.
        rounds: timed ones.
        warm: rounds before them.
        flood: rounds with several in flight.
        flood_s: at most so long at them.
        pauses: rounds with a pause of 10 ms before each.
        deaths: proxies killed, and children of the floor.
        seconds: at most so long at the rounds of one subject.
    """

    repetitions: int = 5
    rounds: int = 3000
    warm: int = 300
    flood: int = 20000
    flood_s: float = 0.5
    pauses: int = 60
    deaths: int = 12
    seconds: float = 2.0

    @classmethod
    def quick(cls) -> "Sizes":
        """Enough to see that all of it works."""
        return cls(1, 100, 10, 200, 0.1, 5, 2, 0.2)


@dataclass(slots=True)
class Found:
    """One repetition of one subject.

    Attributes:
        ns: of each round.
        cpu: share of one core by the name of each process, of the measured time.
        per_second: rounds a second with ``in_flight`` of them under way; None: not
            measured.
        stages: nanoseconds of each stage, by name, a median.
        notes: figures of this subject alone, by name.
    """

    ns: list[int]
    cpu: dict[str, float] = field(default_factory=dict)
    per_second: float | None = None
    stages: dict[str, float] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)


def cores() -> tuple[int, int]:
    """The core of the asking process and that of the answering one."""
    mine = sorted(os.sched_getaffinity(0))
    return mine[0], mine[-1]


def cpu_ns(pid: int) -> int:
    """CPU time of a process so far, all its threads; 0: it is gone."""
    # The clock of another process, as clock_getcpuclockid(3) makes it.
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


class Usage:
    """CPU use of processes from here to ``shares``.

    Args:
        pids: by name.
    """

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = pids
        self._from = time.monotonic_ns()
        self._cpu = {name: cpu_ns(pid) for name, pid in pids.items()}

    def shares(self) -> dict[str, float]:
        """Shares of one core, by name."""
        spent = max(1, time.monotonic_ns() - self._from)
        return {
            name: max(0, cpu_ns(pid) - self._cpu[name]) / spent
            for name, pid in self._pids.items()
        }


def rounds_of(
    once: Callable[[], int],
    sizes: Sizes,
    pids: dict[str, int],
    pause_s: float = 0.0,
) -> Found:
    """Rounds after a warm-up, as many as fit in the time.

    Args:
        once: one round; its nanoseconds.
        sizes: how many and how long.
        pids: whose CPU use to look at.
        pause_s: slept before each.
    """
    count = sizes.pauses if pause_s else sizes.rounds
    for _ in range(min(sizes.warm, count)):
        once()
    spent: list[int] = []
    usage, until = Usage(pids), time.monotonic() + sizes.seconds
    while len(spent) < count and (len(spent) < 20 or time.monotonic() < until):
        if pause_s:
            time.sleep(pause_s)
        spent.append(once())
    return Found(spent, usage.shares())


def flood_of(
    ask: Callable[[], object], hear: Callable[[], object], sizes: Sizes, in_flight: int
) -> float:
    """Rounds a second with so many under way; the first fill and the drain count."""
    start = time.monotonic_ns()
    until, done = start + int(sizes.flood_s * 1e9), in_flight
    for _ in range(in_flight):
        ask()
    while done < sizes.flood and time.monotonic_ns() < until:
        hear()
        ask()
        done += 1
    for _ in range(in_flight):
        hear()
    return done * 1e9 / (time.monotonic_ns() - start)


def quantiles(ns: Sequence[int]) -> dict[str, float]:
    """Microseconds by name, ``max`` included."""
    found = np.quantile(ns, [part for _, part in QUANTILES]) * 1e-3
    named = {name: float(us) for (name, _), us in zip(QUANTILES, found, strict=True)}
    return {**named, "max": max(ns) * 1e-3}


def cdf(ns: Sequence[int]) -> list[float]:
    """Microseconds at evenly spaced shares from 0 to 1."""
    shares = np.linspace(0, 1, CDF_POINTS)
    return [float(us) for us in np.quantile(ns, shares) * 1e-3]


def median(values: Sequence[float]) -> float:
    """Of repetitions."""
    return float(np.median(values))
