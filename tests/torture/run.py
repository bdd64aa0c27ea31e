"""Runs the figures of docs/reliability.md: `make torture`, `make torture-long`.

Each finished step is a line of the journal, so that a run which was stopped goes on
where it was. Lines of another text of the package or the figure are not counted.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from torture.figure import (
    CORES,
    FORMS,
    ROOT,
    Batch,
    Figure,
    Form,
    digest,
    figures,
    together,
)


@dataclass(frozen=True)
class Line:
    """One finished step.

    Attributes:
        name: The figure's.
        form: Which one.
        index: The step's.
        digest: Of the text it ran over.
        seconds: How long it took.
        batch: What it found.
    """

    name: str
    form: str
    index: int
    digest: str
    seconds: float
    batch: Batch


class Journal:
    """The finished steps, in a file that only grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        # A run that was killed may have left half a line at the end.
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        records = [json.loads(line) for line in whole.splitlines()]
        self._lines = [Line(**{**r, "batch": Batch(**r["batch"])}) for r in records]

    def of(self, figure: Figure, form: Form) -> dict[int, Line]:
        """Its finished steps over the present text, by their index."""
        now = digest(figure)
        return {
            line.index: line
            for line in self._lines
            if (line.name, line.form, line.digest) == (figure.name, form, now)
        }

    def add(self, line: Line) -> None:
        """Keeps a finished step."""
        self._lines.append(line)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(line)) + "\n")


def _timed(figure: Figure, form: Form, where: Path, index: int, now: str) -> Line:
    begin = time.monotonic()
    batch = figure.step(where, index, form)
    seconds = time.monotonic() - begin
    return Line(figure.name, form, index, now, seconds, batch)


def finish(figure: Figure, form: Form, where: Path, journal: Journal) -> list[Line]:
    """Runs the steps that are not in the journal yet.

    Args:
        figure: Whose.
        form: Which.
        where: Where it may build.
        journal: What is done, and where to note what will be.

    Returns:
        A line for every step of the form.
    """
    done = journal.of(figure, form)
    left = [index for index in range(figure.steps[form]) if index not in done]
    now = digest(figure)
    with ThreadPoolExecutor(max(1, CORES // figure.cores)) as pool:
        running = [pool.submit(_timed, figure, form, where, i, now) for i in left]
        for future in as_completed(running):
            line = future.result()
            journal.add(line)
            done[line.index] = line
    return [done[index] for index in range(figure.steps[form])]


def bound(figure: Figure, total: Batch) -> str:
    """What zero bad tries say of the rate, by the rule of three (95 %)."""
    if total.bad or not figure.random or not total.tried:
        return ""
    return f", < {3 / total.tried:.1e} a try"


def sentence(figure: Figure, lines: list[Line], planted: str) -> str:
    """A figure's line, as docs/reliability.md has it."""
    total = together([line.batch for line in lines])
    seconds = sum(line.seconds for line in lines)
    facts = "; ".join(f"{name} {fact}" for name, fact in total.facts.items())
    tail = f" [{facts}]" if facts else ""
    seeds = f", seeds 0 to {len(lines) - 1}" if figure.random else ""
    counts = f"{total.tried:,} {figure.unit} tried, {total.bad} bad"
    counts += bound(figure, total) + seeds
    return f"{figure.number} {figure.name}: {counts}; {planted}; {seconds:.0f} s{tail}"


def plant(figure: Figure, where: Path) -> tuple[str, bool]:
    """Runs every planted fault.

    Args:
        figure: Whose.
        where: Where it may build.

    Returns:
        How many were found, in words, and whether all were.
    """
    found = {name: run(where).bad > 0 for name, run in figure.planted.items()}
    unseen = [name for name, seen in found.items() if not seen]
    tail = f", NOT {', '.join(unseen)}" if unseen else ""
    return (
        f"{sum(found.values())} of {len(found)} planted faults found{tail}",
        not unseen,
    )


def main() -> int:
    """Prints a line per figure; 1 where one is bad or a planted fault was not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", choices=FORMS, default="medium")
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[])
    parser.add_argument("--directory", type=Path, default=ROOT / ".torture")
    arguments = parser.parse_args()
    chosen = [f for f in figures() if not arguments.only or f.name in arguments.only]
    unknown = set(arguments.only) - {figure.name for figure in chosen}
    if unknown:
        names = ", ".join(figure.name for figure in figures())
        parser.error(f"no figure {', '.join(sorted(unknown))}; there are: {names}")
    journal = Journal(arguments.directory / "journal.jsonl")
    worst = 0
    for figure in chosen:
        if missing := figure.missing():
            print(f"{figure.number} {figure.name}: skipped, {missing}", flush=True)
            continue
        where = arguments.directory / figure.name.replace(" ", "-")
        where.mkdir(exist_ok=True)
        planted, all_found = plant(figure, where)
        lines = finish(figure, arguments.form, where, journal)
        print(sentence(figure, lines, planted), flush=True)
        for line in lines:
            if line.batch.bad:
                print(f"  step {line.index}: {line.batch.first}", flush=True)
        worst |= any(line.batch.bad for line in lines) or not all_found
    return int(worst)


if __name__ == "__main__":
    sys.exit(main())
