"""What does drafting 4 x 5 tokens from 129280 logits cost, beside reading them once?

    logits (4, 5, vocab) --> support, counts, draw --> ids, q, tokens
    |<------------------- timed -------------------->|

The C core (one call) stands beside a plain read of the same rows (NumPy's ``max``,
one thread), torch.topk of the rows alone and the same chain written in NumPy, all in
this run. ``hot``: the same rows each time; ``cold``: rotating over more rows than the
last-level cache holds. Then one row of each shape that a top-k may dislike, and the
Markov heads. Every result is checked against the readable reference, outside the timed
part.

    python benchmarks/bench_propose.py [--json FILE] [--vocab N] [--seconds S]
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import _harness
import numpy as np
import torch
from numpy.typing import NDArray

from pp3shm._core import lib
from pp3shm.proposal import reference
from pp3shm.proposal.markov import Markov
from pp3shm.proposal.proposal import propose_chain
from pp3shm.rng import draw24

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, DEPTH, K = 4, 5, 32
KEYS = [(row + 1, row + 2) for row in range(ROWS)]
POSITIONS = [100 * row for row in range(ROWS)]
PATHS = ("portable", "avx2", "avx512")
COLD_BYTES = 100_000_000

Logits = NDArray[np.float32]


def read(logits: Logits, _markov: Markov | None) -> Any:
    """Every byte once, nothing else."""
    return logits.max()


def top_k(logits: Logits, _markov: Markov | None) -> Any:
    """``torch.topk`` of the rows alone, one thread: no ties, no q, no draw."""
    return torch.topk(torch.from_numpy(logits), K)


def core(logits: Logits, markov: Markov | None) -> Any:
    """The library."""
    n = logits.shape[0]
    return propose_chain(
        logits, keys=KEYS[:n], round=9, positions=POSITIONS[:n],
        previous=[1] * n, markov=markov,
    )  # fmt: skip


def numpy_chain(logits: Logits, markov: Markov | None) -> Any:
    """The same in NumPy, with ``argpartition`` (which does not promise the ties)."""
    tokens = np.empty(logits.shape[:2], np.int64)
    for row, chain in enumerate(logits):
        before = 1
        for i, base in enumerate(chain):
            z = base if markov is None else base + markov.row(before)
            ids = np.sort(np.argpartition(-z, K)[:K])
            weight = np.exp((z[ids] - z[ids].max()).astype(np.float64) / 0.7)
            counts = np.floor(weight / weight.sum() * 2**24).astype(np.int64)
            counts[z[ids].argmax()] += 2**24 - counts.sum()
            draw = draw24(KEYS[row], 9, POSITIONS[row] + i)
            before = int(ids[np.searchsorted(np.cumsum(counts), draw, side="right")])
            tokens[row, i] = before
    return tokens


def timed(
    run: Callable[[Logits, Markov | None], Any],
    batches: list[Logits],
    markov: Markov | None,
    seconds: float,
) -> dict[str, float]:
    """Microseconds a call, and what that makes of the bytes."""
    spent = _harness.timed(
        lambda i: run(batches[i % len(batches)], markov),
        seconds,
        warm=max(3, len(batches)),
    )
    found = _harness.quantiles(spent)
    rate = batches[0].nbytes / found["p50_us"] * 1e-3
    return {**found, "calls": len(spent), "gb_per_s": rate}


def check(logits: Logits, markov: Markov | None) -> None:
    """The core's answer is the reference's, to the bit."""
    out = core(logits, markov)
    for row, chain in enumerate(logits):
        expected = reference.chain(
            chain, None if markov is None else markov.row, key=KEYS[row], round_=9,
            position=POSITIONS[row], previous=1,
        )  # fmt: skip
        for i, (shown, at) in enumerate(expected):
            if (
                shown.ids.tolist() != out.ids[row, i].tolist()
                or shown.q.tolist() != out.q[row, i].tolist()
                or shown.ids[at] != out.tokens[row, i]
            ):
                sys.exit(f"the core differs from the reference at {row}, {i}")


def bf16(row: Logits) -> Logits:
    """The values that a bfloat16 model gives."""
    return (row.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


def shapes(g: np.random.Generator, vocab: int) -> dict[str, Logits]:
    """One row of each kind."""
    row = g.normal(0, 3, vocab).astype(np.float32)
    masked = np.where(g.random(vocab) < 0.5, row, -np.inf).astype(np.float32)
    return {
        "random": row,
        "rounded to bf16": bf16(row),
        "constant": np.zeros(vocab, np.float32),
        "two values": np.where(np.arange(vocab) % 2 == 0, 1, 2).astype(np.float32),
        "ascending": np.sort(row),
        "descending": np.sort(row)[::-1].copy(),
        "half masked": masked,
    }


class Report:
    """Prints a table as it grows, and keeps it for ``--json``."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.rows: list[dict[str, Any]] = []

    def group(
        self,
        title: str,
        batches: list[Logits],
        markov: Markov | None = None,
        runs: tuple[Callable[[Logits, Markov | None], Any], ...] = (read, core),
    ) -> None:
        """Measures each run on the same batches; ratios are to the first, the read."""
        check(batches[0], markov)
        base = 0.0
        for run in runs:
            row: dict[str, Any] = {"group": title, "run": run.__name__}
            row |= timed(run, batches, markov, self.seconds)
            base = base or row["p50_us"]
            row["times_read"] = row["p50_us"] / base
            self.rows.append(row)
            print(
                f"{title:34}{row['run']:12}{_harness.shown(row)}"
                f"{row['gb_per_s']:9.1f}{row['times_read']:9.2f}"
            )


def main() -> None:
    """Runs all groups."""
    parser = _harness.arguments(__doc__)
    parser.add_argument("--vocab", type=int, default=129280)
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement")
    options = parser.parse_args()
    vocab: int = options.vocab
    torch.set_num_threads(1)
    where = _harness.machine(
        pinned_core=_harness.pin(), path=PATHS[lib.pp3_scan_path()], vocab=vocab
    )
    print(f"{'':46}{_harness.HEAD}{'GB/s':>9}{'x read':>9}")
    g = np.random.default_rng(1)
    count = max(2, COLD_BYTES // (ROWS * DEPTH * vocab * 4))
    cold = [
        g.normal(0, 3, (ROWS, DEPTH, vocab)).astype(np.float32) for _ in range(count)
    ]
    hot = cold[:1]
    report = Report(options.seconds)
    report.group("4 x 5 rows, hot", hot, runs=(read, core, top_k, numpy_chain))
    report.group("4 x 5 rows, cold", cold, runs=(read, core, top_k, numpy_chain))
    for path, name in enumerate(PATHS):
        if not lib.pp3_scan_force(path):
            report.group(f"4 x 5 rows, hot, {name}", hot)
    lib.pp3_scan_force(-1)
    for name, row in shapes(g, vocab).items():
        report.group(f"1 row, {name}", [row.reshape(1, 1, vocab)])
    bias = g.normal(0, 1, (8, vocab)).astype(np.float32)
    called = Markov.function(lambda token: bias[token % 8])

    def read_both(logits: Logits, _markov: Markov | None) -> Any:
        """Every byte of the rows, and of a bias for each."""
        return logits.max(), [bias[i % 8].max() for i in range(ROWS * DEPTH)]

    report.group(
        "4 x 5, bias of a function, hot", hot, called, (read_both, core, numpy_chain)
    )
    for rank in (4, 64):
        left = g.normal(0, 0.1, (vocab, rank)).astype(np.float32)
        right = g.normal(0, 1, (rank, vocab)).astype(np.float32)
        head = Markov.low_rank(left, right)
        report.group(f"4 x 5, bias of rank {rank}, hot", hot, head)
    _harness.write(options.json, where, report.rows)


if __name__ == "__main__":
    main()
