"""``pp3shm bench``: a run, from the first subject to the files."""

import argparse
import contextlib
import statistics
from collections.abc import Callable, Iterator

from pp3shm.bench import floors
from pp3shm.bench.goals import judged
from pp3shm.bench.measure import Found, Sizes
from pp3shm.bench.picture import draw
from pp3shm.bench.plan import Subject, chosen
from pp3shm.bench.report import (
    GOAL_HEAD,
    HEAD,
    cells,
    goal_cells,
    lines_of,
    machine,
    row,
    write,
)
from pp3shm.demo.optional import require
from pp3shm.errors import ConfigError, Pp3Error

PROBE_ROUNDS = 400

Say = Callable[[str], None]


def run(args: argparse.Namespace, say: Say) -> int:
    """Measure and report.

    Args:
        args: of a parser that ``options.add_arguments`` prepared.
        say: told each line of output.

    Returns:
        0, or 1 where a subject failed.

    Raises:
        Pp3Error: the options cannot be used, or the files not be written.
    """
    wanted = chosen(args.only)
    if args.list:
        for line in _listed(wanted):
            say(line)
        return 0
    sizes = _sizes(args)
    if not args.no_picture:
        require("matplotlib", "bench")  # now, not after minutes
    args.out.mkdir(parents=True, exist_ok=True)
    where = machine(sizes)
    say("; ".join(f"{name}: {value}" for name, value in where.items()))
    found, failed = measure([one for one in wanted if one.missing is None], sizes, say)
    missing = {one.name: one.missing for one in wanted if one.missing is not None}
    rows = {name: row(repetitions) for name, repetitions in found.items()}
    goals = judged(rows)
    for line in lines_of(HEAD, [cells(name, one) for name, one in rows.items()]):
        say(line)
    for name, why in {**missing, **failed}.items():
        say(f"{name}: missing: {why}")
    if goals:
        for line in lines_of(GOAL_HEAD, [goal_cells(one) for one in goals]):
            say(line)
    content = {
        "machine": where,
        "subjects": rows,
        "missing": missing,
        "failed": failed,
        "goals": goals,
    }
    written = write(args.out, content)
    if not args.no_picture and rows:
        written.append(draw(args.out / "bench.png", rows))
    say(f"written: {', '.join(map(str, written))}")
    return 1 if failed else 0


def _sizes(args: argparse.Namespace) -> Sizes:
    sizes = Sizes.quick() if args.quick else Sizes()
    if args.repetitions is None:
        return sizes
    if args.repetitions < 1:
        raise ConfigError("--repetitions", "1 or more", args.repetitions)
    if args.quick:
        raise ConfigError("--repetitions", "no --quick beside it", "both")
    return Sizes(repetitions=args.repetitions)


def _listed(wanted: list[Subject]) -> list[str]:
    body = [
        [one.name, one.what if one.missing is None else f"missing: {one.missing}"]
        for one in wanted
    ]
    return lines_of(["subject", ""], body)


def measure(
    wanted: list[Subject], sizes: Sizes, say: Say
) -> tuple[dict[str, list[tuple[Found, float]]], dict[str, str]]:
    """Every subject in turn, and that as often as there are repetitions.

    Beside each, before and after, runs the C floor over shared memory: how far apart
    the two cores are can change from one second to the next.

    Returns:
        What was found of each, with the p50 of those probes; why others failed.
    """
    found: dict[str, list[tuple[Found, float]]] = {}
    failed: dict[str, str] = {}
    for turn in range(1, sizes.repetitions + 1):
        for one in wanted:
            if one.name in failed:
                continue
            say(f"[{turn}/{sizes.repetitions}] {one.name}")
            try:
                with _probed() as probes:
                    got = one.make().measure(sizes)
            except (Pp3Error, OSError) as error:
                failed[one.name] = str(error)
                found.pop(one.name, None)
                continue
            beside = statistics.mean(probes)
            found.setdefault(one.name, []).append((got, beside))
    return found, failed


@contextlib.contextmanager
def _probed() -> Iterator[list[float]]:
    """The p50 of the C floor, ns, before and after."""
    probes = [_probe()]
    yield probes
    probes.append(_probe())


def _probe() -> float:
    ns, _ = floors.run("shm", PROBE_ROUNDS, warm=50)
    return float(statistics.median(ns))
