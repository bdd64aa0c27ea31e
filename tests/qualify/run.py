"""Qualifies every engine of verification: `make qualify`.

Each engine verifies real rounds of each family and vocabulary; what it emits is tested
against the target, how often it accepts against the sum of min(p, q). Then every wrong
verifier of `controls.py` is shown to fail the same tests. It writes a receipt (JSON)
and a picture of all p-values beside the line they lie on where everything is right.
A run that ended early goes on where it stood (journal.jsonl beside the receipt), unless
a line of the code has changed since.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if not Path("/dev/nvidiactl").exists():  # before anything imports triton
    os.environ.setdefault("TRITON_INTERPRET", "1")

import numpy as np
import torch
from matplotlib.figure import Figure
from qualify import controls, engines
from qualify.engines import Verify
from qualify.families import FAMILIES, VOCABS, Pair, pair
from qualify.judge import Judged, acceptance, chi_square, holm

import pp3shm
from pp3shm import __version__

SEED = 20261130
ALPHA = 1e-3  # of the smallest adjusted p-value of a run
NOTICED = 1e-6  # a control has to be below


class Plan(NamedTuple):
    """How much of what an engine is asked.

    Attributes:
        verify: It.
        size: Rounds of a call, by vocabulary.
        rounds: Rounds of a family, by vocabulary.
        vocabs: Those it is asked, where none are named.
    """

    verify: Verify
    size: Callable[[int], int]
    rounds: Callable[[int], int]
    vocabs: tuple[int, ...] = VOCABS


def plans(scale: float) -> dict[str, Plan]:
    """What the issue of a receipt takes, or a part of it."""

    def many(_vocab: int) -> int:
        return int(2_000_000 * scale)

    def interpreted(vocab: int) -> int:
        device = torch.cuda.is_available()
        return many(vocab) if device else int(20_000 * scale)

    def fewer(vocab: int) -> int:
        return int((2_000_000 if vocab <= 8193 else 20_000) * scale)

    return {
        "c": Plan(engines.by_c, lambda _vocab: 20_000, many),
        "torch": Plan(
            engines.by_torch, lambda vocab: max(8, min(4096, 4_000_000 // vocab)), fewer
        ),
        "triton": Plan(engines.by_triton, lambda _vocab: 500, interpreted, (64,)),
    }


def judge(
    engine: str, plan: Plan, family: str, vocab: int, where: Pair
) -> Iterator[Judged]:
    """All tests of one engine, family and vocabulary."""
    rounds = plan.rounds(vocab)
    slot = list(FAMILIES).index(family)
    first, accepted, bonus = engines.run(
        plan.verify, where, slot, rounds, plan.size(vocab)
    )
    made = partial(Judged, engine, family, vocab=vocab, rounds=rounds)
    yield made("first token", p_value=chi_square(first, where.p))
    yield made("acceptance", p_value=acceptance(accepted, rounds, where.accepted))
    yield made("bonus token", p_value=chi_square(bonus, where.p))


class Journal:
    """What is done already, a line of JSON each, so that a run that ended goes on.

    Args:
        path: None: nothing is kept.
        text: of the engines; what was found with another is done again.
    """

    def __init__(self, path: Path | None, text: str) -> None:
        self._path = path
        self._text = text
        self._found: dict[tuple[object, ...], list[Judged]] = {}
        lines = path.read_text().splitlines() if path and path.exists() else []
        for line in map(json.loads, lines):
            if line["seed"] == SEED and line["text"] == text:
                found = [Judged(**one) for one in line["tests"]]
                self._found[self._key(found[0])] = found

    @staticmethod
    def _key(one: Judged) -> tuple[object, ...]:
        return one.engine, one.family, one.vocab, one.rounds

    def get(self, *key: object) -> list[Judged] | None:
        """Tests of an engine, family, vocabulary and number of rounds."""
        return self._found.get(key)

    def add(self, found: list[Judged]) -> None:
        """Keep the tests of one engine, family and vocabulary."""
        if self._path:
            line = {"seed": SEED, "text": self._text, "tests": [*map(asdict, found)]}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a") as out:
                out.write(json.dumps(line) + "\n")


def text_of() -> str:
    """A digest of what is qualified, and of what qualifies it."""
    digest = hashlib.sha256()
    package = Path(pp3shm.__file__).parent
    for folder in (package, Path(__file__).parent):
        for path in sorted(folder.rglob("*")):
            if path.suffix in {".py", ".so"}:
                digest.update(path.read_bytes())
    return digest.hexdigest()


def qualify(
    scale: float,
    names: list[str],
    vocabs: tuple[int, ...] | None,
    threads: int,
    journal: Journal | None = None,
) -> list[Judged]:
    """Every engine, family and vocabulary, corrected for their number."""
    kept = journal or Journal(None, "")
    chosen = {name: plan for name, plan in plans(scale).items() if name in names}
    tasks = [
        (name, plan, family, vocab)
        for name, plan in chosen.items()
        for vocab in vocabs or plan.vocabs
        for family in FAMILIES
    ]

    def one(task: tuple[str, Plan, str, int]) -> list[Judged]:
        name, plan, family, vocab = task
        begin = time.monotonic()
        found = kept.get(name, family, vocab, plan.rounds(vocab)) or []
        if not found:
            where = pair(family, vocab, SEED)
            found = list(judge(name, plan, family, vocab, where))
            kept.add(found)
        shown = "  ".join(f"{j.what} {j.p_value:.3g}" for j in found)
        took = time.monotonic() - begin
        print(f"{name:8}{vocab:8}  {family:13} {shown}  {took:.1f} s", flush=True)
        return found

    with ThreadPoolExecutor(threads) as pool:
        every = [j for found in pool.map(one, tasks) for j in found]
    adjusted = holm([j.p_value for j in every])
    return [replace(j, adjusted=a) for j, a in zip(every, adjusted, strict=True)]


def unnoticed(scale: float = 1.0) -> Iterator[tuple[str, float]]:
    """Each control and its p-value."""
    for name, control in controls.CONTROLS.items():
        where, rounds = controls.pair_of(name), int(controls.rounds_of(name) * scale)
        seen = np.zeros(where.vocab, np.int64)
        for start, end in engines.spans(rounds, 100_000):
            out = control(where, start, end - start)
            seen += np.bincount(out.first, minlength=where.vocab)
        yield name, chi_square(seen, where.p)


def picture(every: list[Judged], path: Path) -> None:
    """Sorted p-values beside the diagonal."""
    figure = Figure(figsize=(6, 6))
    axes = figure.add_subplot()
    for engine in dict.fromkeys(j.engine for j in every):
        found = sorted(j.p_value for j in every if j.engine == engine)
        at = (np.arange(len(found)) + 0.5) / len(found)
        axes.plot(at, found, ".", label=f"{engine}: {len(found)} tests")
    axes.plot([0, 1], [0, 1], "k-", linewidth=0.5)
    axes.set_xlabel("expected p-value")
    axes.set_ylabel("p-value")
    axes.legend()
    figure.savefig(path, dpi=100)


def main() -> int:
    """1 where a test failed or a control was not noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="part of all rounds")
    parser.add_argument("--engines", nargs="+", default=["c", "torch", "triton"])
    parser.add_argument("--vocabs", nargs="+", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("qualified"))
    given = parser.parse_args()
    begin = time.monotonic()
    every = qualify(
        given.scale,
        given.engines,
        given.vocabs and tuple(given.vocabs),
        given.threads,
        Journal(given.out / "journal.jsonl", text_of()),
    )
    noticed = dict(unnoticed())
    for name, p_value in noticed.items():
        print(f"control: {name}: p = {p_value:.2g}")
    least = min(j.adjusted for j in every)
    bad = least < ALPHA or any(p >= NOTICED for p in noticed.values())
    rounds = sum(j.rounds for j in every if j.what == "first token")
    print(
        f"{len(every)} tests over {rounds:,} rounds, seed {SEED}: least p-value "
        f"{min(j.p_value for j in every):.3g}, after Holm's correction {least:.3g}; "
        f"{len(noticed)} controls; {time.monotonic() - begin:.0f} s; "
        f"{'NOT QUALIFIED' if bad else 'qualified'}"
    )
    given.out.mkdir(parents=True, exist_ok=True)
    receipt = {
        "seed": SEED,
        "rounds": rounds,
        "qualified": not bad,
        "least_adjusted": least,
        "versions": {"pp3shm": __version__, "numpy": np.__version__,
                     "python": platform.python_version(),
                     "machine": platform.machine()},
        "controls": noticed,
        "tests": [asdict(j) for j in every],
    }  # fmt: skip
    (given.out / "receipt.json").write_text(json.dumps(receipt, indent=1) + "\n")
    picture(every, given.out / "p_values.png")
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
