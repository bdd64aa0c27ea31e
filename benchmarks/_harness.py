"""What all benchmarks share: the machine, calls timed, percentiles, the JSON file."""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from pp3shm import __version__

QUANTILES = (("p50_us", 0.5), ("p99_us", 0.99), ("p99.9_us", 0.999))
HEAD = f"{'p50 us':>11}{'p99 us':>11}{'p99.9 us':>11}"


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser that knows the module's question and ``--json``."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    return parser


def pin() -> int:
    """Keeps the calling thread on the first core it may use; which one."""
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def machine(**more: object) -> dict[str, object]:
    """What the numbers were taken on, printed as one line; ``more`` is added to it."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    where = {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "pp3shm": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        **more,
    }
    print(*(f"{name}: {value}" for name, value in where.items()), sep="; ")
    return where


def quantiles(spent_ns: Sequence[float]) -> dict[str, float]:
    """Microseconds by name."""
    found = np.quantile(spent_ns, [part for _, part in QUANTILES]) * 1e-3
    return {name: float(us) for (name, _), us in zip(QUANTILES, found, strict=True)}


def shown(spent: dict[str, float]) -> str:
    """The columns under ``HEAD``."""
    return "".join(f"{spent[name]:11.2f}" for name, _ in QUANTILES)


def timed(
    call: Callable[[int], object], seconds: float, *, least: int = 20, warm: int = 3
) -> list[float]:
    """Nanoseconds a call, of at least ``least`` calls.

    A call shorter than the clock is fine is timed in groups: one number is then the
    mean of a group that takes some ten microseconds.

    Args:
        call: gets the number of the call, never the same twice, so that it can rotate
            over its data.
        seconds: how long to go on.
        least: but at least so many numbers.
        warm: calls before the first that counts.
    """
    at = count()

    def group_of(size: int) -> int:
        start = time.perf_counter_ns()
        for _ in range(size):
            call(next(at))
        return time.perf_counter_ns() - start

    for _ in range(warm):
        call(next(at))
    group = 1
    while (once := group_of(group)) < 10_000:
        group *= 2
    spent = [once / group]
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(spent) < least:
        spent.append(group_of(group) / group)
    return spent


def write(path: Path | None, where: dict[str, object], results: Any) -> None:
    """Keeps machine and results, where a file was asked for."""
    if path is not None:
        kept = {"machine": where, "results": results}
        path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
