"""All that verification and proposals cost, against their goals: `make bench-compute`.

    python benchmarks/compute.py [--out FOLDER] [--seconds S]

Runs bench_verify, bench_propose, bench_accept, bench_scatter and bench_native, each in
a process of its own, prints their tables and then every goal with what was found, and
writes compute.json and compute.png (a bar per goal, the goal at 1). All goals are
ratios within one run, but for the time of one call and the resident memory.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pp3shm.proposal.proposal import propose_chain
from pp3shm.verify import Request, VerifyKeys, verify

HERE = Path(__file__).resolve().parent
BENCHES = ("verify", "propose", "accept", "scatter", "native")
REQUESTS, VOCAB = 256, 151936
DENSE_MB = REQUESTS * VOCAB * 4 / 1e6  # of q, a single depth

Results = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """One figure.

    Attributes:
        text: what it is.
        limit: of its value.
        value: from the results of all benches.
        least: True where more is better.
        unit: of value and limit.
    """

    text: str
    limit: float
    value: Callable[[Results], float]
    least: bool = False
    unit: str = "x"

    def met(self, found: float) -> bool:
        """Whether that is as good as it should be."""
        return found >= self.limit if self.least else found <= self.limit


def us(bench: str, group: str, run: str) -> Callable[[Results], float]:
    """The median of one row."""

    def value(results: Results) -> float:
        rows = results[bench]
        if isinstance(rows, dict):  # of bench_scatter: by name, one group
            return float(rows[run]["p50_us"])
        name = "way" if bench == "accept" else "run"
        # a read is named with what reads
        found = [
            row["p50_us"]
            for row in rows
            if row["group"] == group and row[name].split(" (")[0] == run
        ]
        if len(found) != 1:
            raise KeyError(f"{bench}: expected one row {group}, {run}: {len(found)}")
        return float(found[0])

    return value


def over(
    above: Callable[[Results], float], below: Callable[[Results], float]
) -> Callable[[Results], float]:
    """The ratio of two medians."""
    return lambda results: above(results) / below(results)


def _best_accept(results: Results) -> float:
    return min(
        float(row["p50_us"])
        for row in results["accept"]
        if row["group"] == "B4 depth 5" and row["way"].startswith("accept")
    )


def _worst_row(results: Results) -> float:
    typical = us("propose", "1 row, random", "core")(results)
    return max(
        us("propose", f"1 row, {shape}", "core")(results) / typical
        for shape in ("constant", "ascending", "descending", "two values")
    )


def _native(results: Results) -> float:
    return max(float(row["times_native"]) for row in results["native"])


def ratio(bench: str, group: str, above: str, below: str) -> Callable[[Results], float]:
    """Of two rows of one group."""
    return over(us(bench, group, above), us(bench, group, below))


CHAIN = "4 x 5 rows"  # groups of bench_propose
BIASED = "4 x 5, bias of a function, hot"
GOALS = (
    Goal("verify, mixed, cold: to the read", 1.2,
         ratio("verify", "mixed, cold", "core", "read")),
    Goal("verify, mixed, hot: to the read", 2.5,
         ratio("verify", "mixed, hot", "core", "read")),
    Goal("Hugging Face to verify, mixed, cold", 40,
         ratio("verify", "mixed, cold", "Hugging Face x4", "core"), least=True),
    Goal("propose, cold: to the read", 1.5,
         ratio("propose", f"{CHAIN}, cold", "core", "read")),
    Goal("propose, hot: to the read", 1.6,
         ratio("propose", f"{CHAIN}, hot", "core", "read")),
    Goal("torch.topk alone to propose, cold", 5,
         ratio("propose", f"{CHAIN}, cold", "top_k", "core"), least=True),
    Goal("torch.topk alone to propose, hot", 15,
         ratio("propose", f"{CHAIN}, hot", "top_k", "core"), least=True),
    Goal("propose, the worst row to a typical one", 5, _worst_row),
    Goal("propose with a bias: to the read of rows and biases", 1.5,
         ratio("propose", BIASED, "core", "read_both")),
    Goal("check and scatter a REPLY, one call", 0.45, _best_accept, unit="us"),
    Goal("the NumPy checks to that call", 50,
         over(us("accept", "B4 depth 5", "numpy"), _best_accept), least=True),
    Goal("the plain build to a native one, the worst of three", 1.1, _native),
    Goal("zero and scatter to scatter_q", 100,
         ratio("scatter", "", "rebuild", "scatter_q"), least=True),
    Goal("memory of verifying 256 requests at 151936 ids", DENSE_MB / 10,
         lambda results: results["memory"]["grown_mb"], unit="MB"),
)  # fmt: skip


def grown() -> dict[str, float]:
    """What verifying many requests adds to the largest resident size, in megabytes.

    All requests share one target row, so that what grows is the library's.
    """
    g = np.random.default_rng(1)
    row = g.normal(0, 3, (1, 1, VOCAB)).astype(np.float32)
    out = propose_chain(row, keys=[(1, 2)], round=9, positions=[0])
    shape = (REQUESTS, 2, VOCAB)
    logits = np.lib.stride_tricks.as_strided(row, shape, (0, 0, 4))
    many = {name: np.repeat(getattr(out, name), REQUESTS, axis=0)
            for name in ("tokens", "ids", "q")}  # fmt: skip
    page = SimpleNamespace(round=np.uint64(9), status=np.zeros(REQUESTS, np.int32),
                           mask=np.ones(REQUESTS, np.int32), **many)  # fmt: skip
    key = VerifyKeys.derive(b"bench memory 16b", 0, 1, 0)
    asked = [Request(slot, 0, key) for slot in range(REQUESTS)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = verify(page, logits, asked, round=9, vocab=VOCAB, logits=True, engine="c")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if found.count.min() < 1:
        sys.exit("a request emitted nothing")
    return {"grown_mb": (after - before) * 1024 / 1e6, "dense_mb": DENSE_MB}


def run(bench: str, out: Path, words: list[str]) -> dict[str, Any]:
    """One bench in a process of its own; what it wrote."""
    path = out / f"{bench}.json"
    print(f"== {bench}", flush=True)
    command = [sys.executable, str(HERE / f"bench_{bench}.py"), "--json", str(path)]
    subprocess.run(command + words, check=True)
    kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return kept


def judged(results: Results) -> list[dict[str, Any]]:
    """Every goal with what was found; printed as a table."""
    lines = []
    print(f"\n{'figure':54}{'goal':>14}{'found':>10}")
    for goal in GOALS:
        found = goal.value(results)
        wanted = f"{'>=' if goal.least else '<='} {goal.limit:g} {goal.unit}"
        verdict = "met" if goal.met(found) else "missed"
        print(f"{goal.text:54}{wanted:>14}{found:10.2f}  {verdict}")
        lines.append({"figure": goal.text, "goal": wanted, "found": found,
                      "times_goal": found / goal.limit, "least": goal.least,
                      "met": goal.met(found)})  # fmt: skip
    return lines


def draw(path: Path, lines: list[dict[str, Any]], title: str) -> None:
    """A bar per goal, how far it is from it; to the left of 1 is better."""
    figure = Figure(figsize=(10, 0.8 + 0.4 * len(lines)), layout="constrained")
    axes = figure.subplots()
    for at, line in enumerate(reversed(lines)):
        share = 1 / line["times_goal"] if line["least"] else line["times_goal"]
        axes.barh(at, share, color="tab:green" if line["met"] else "tab:red")
        axes.text(max(share, 1e-2), at, f" {line['found']:,.2f}", va="center", size=8)
    axes.set_yticks(range(len(lines)))
    axes.set_yticklabels(
        [f"{x['figure']} ({x['goal']})" for x in reversed(lines)], size=8
    )
    axes.set_xscale("log")
    axes.set_xlim(left=1e-2)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_xlabel("of the goal; left of the line is better")
    axes.set_title(title, size=9)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Runs all, judges, writes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("bench-results"))
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(grown()))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    seconds = ["--seconds", str(options.seconds)]
    kept = {
        bench: run(bench, options.out, [] if bench == "scatter" else seconds)
        for bench in BENCHES
    }
    words = [sys.executable, __file__, "--memory"]
    memory = subprocess.run(words, capture_output=True, text=True, check=True)
    results = {bench: found["results"] for bench, found in kept.items()}
    results["memory"] = json.loads(memory.stdout)
    lines = judged(results)
    where = kept["verify"]["machine"]
    path = options.out / "compute.json"
    content = {"machine": where, "goals": lines, "results": results}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    title = f"{where['cpu']}, {where['path']}, pp3shm {where['pp3shm']}"
    draw(path.with_suffix(".png"), lines, title)
    print(f"written: {path}, {path.with_suffix('.png')}")


if __name__ == "__main__":
    main()
