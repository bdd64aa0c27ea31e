"""What does verifying 4 x 5 drafts over 129280 logits cost, beside reading the rows?

    page (ids, q, drafts), target logits (4, 6, vocab) --> tokens, counts
    |<----------------------------- timed ------------------------------>|

The C engine stands beside a plain read of the rows it needs (C, one thread), the
definition in NumPy, this package's dense torch, and Hugging Face's speculative sampling
once per request, all in this run and on one thread. ``none``, ``mixed``, ``all``: what
is accepted is forced, so that every run does the same work: 4, 15 or 24 rows are
needed. ``hot``: the same rows each time; ``cold``: rotating over more than the
last-level cache holds. Results are compared with the definition, outside the timed
part.

    python benchmarks/bench_verify.py [--json FILE] [--vocab N] [--seconds S]
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import _harness
import numpy as np
import torch
from _floor import Reader
from numpy.typing import NDArray
from transformers.generation.utils import _speculative_sampling

from pp3shm._core import lib
from pp3shm.gpu import DraftProbs, ReplyTensors, key_words, target_probs
from pp3shm.gpu import verify as verify_torch
from pp3shm.proposal.proposal import propose_chain
from pp3shm.verify import Request, VerifyKeys, verify

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, DEPTH = 4, 5
PATHS = ("portable", "avx2", "avx512")
COLD_BYTES = 100_000_000
STOPS = {"none": (0, 0, 0, 0), "mixed": (0, 2, 4, 5), "all": (5, 5, 5, 5)}
KEYS = [VerifyKeys.derive(b"bench verify 16b", row, 1, 0) for row in range(ROWS)]
ASKED = [Request(row, 100 * row, KEYS[row]) for row in range(ROWS)]


@dataclass
class Batch:
    """One round of four requests, in each form that a subject takes."""

    page: Any
    logits: NDArray[np.float32]
    needed: list[NDArray[np.float32]]
    tensors: ReplyTensors
    target: torch.Tensor
    log_q: torch.Tensor
    tokens: torch.Tensor


def batch(g: np.random.Generator, vocab: int, stops: tuple[int, ...]) -> Batch:
    """Real drafts, and targets whose logits force where each request stops."""
    drafter = g.normal(0, 3, (ROWS, DEPTH, vocab)).astype(np.float32)
    out = propose_chain(
        drafter, keys=[(row + 1, 2) for row in range(ROWS)], round=9,
        positions=[0] * ROWS,
    )  # fmt: skip
    logits = g.normal(0, 3, (ROWS, DEPTH + 1, vocab)).astype(np.float32)
    for row, stop in enumerate(stops):
        for i, token in enumerate(out.tokens[row]):
            logits[row, i, token] = 40 if i < stop else -40
    page = SimpleNamespace(
        round=np.uint64(9), status=np.zeros(ROWS, np.int32), tokens=out.tokens,
        mask=np.ones(ROWS, np.int32), ids=out.ids, q=out.q,
    )  # fmt: skip
    tensors = ReplyTensors(
        round=torch.tensor(9), status=torch.from_numpy(page.status),
        tokens=torch.from_numpy(out.tokens),
        confidence=torch.from_numpy(out.confidence), mask=torch.from_numpy(page.mask),
        ids=torch.from_numpy(out.ids), q=torch.from_numpy(out.q),
    )  # fmt: skip
    log_q = torch.full((ROWS, DEPTH, vocab), -torch.inf)
    log_q.scatter_(2, torch.from_numpy(out.ids).long(), torch.from_numpy(out.q).log())
    return Batch(
        page, logits, [logits[row, : stop + 1] for row, stop in enumerate(stops)],
        tensors, torch.from_numpy(logits), log_q, tensors.tokens.long(),
    )  # fmt: skip


def core(vocab: int) -> Callable[[Batch], Any]:
    """The C engine."""
    return lambda b: verify(
        b.page, b.logits, ASKED, round=9, vocab=vocab, logits=True, engine="c"
    )


def numpy_engine(vocab: int) -> Callable[[Batch], Any]:
    """The definition."""
    return lambda b: verify(
        b.page, b.logits, ASKED, round=9, vocab=vocab, logits=True, engine="numpy"
    )


def torch_dense(vocab: int) -> Callable[[Batch], Any]:
    """Scatter of q by slot, softmax of all rows, dense verification."""
    dense = DraftProbs(ROWS, DEPTH, vocab)
    keys, places = key_words(KEYS), [request.position for request in ASKED]

    def run(b: Batch) -> Any:
        dense.scatter_q(b.tensors, 9)
        p = target_probs(b.target, [1.0] * ROWS)
        return verify_torch(
            p, dense, slots=list(range(ROWS)), round_=9, positions=places, keys=keys
        )

    return run


def hugging_face(_vocab: int) -> Callable[[Batch], Any]:
    """One call per request; the dense log q is ready."""

    def run(b: Batch) -> Any:
        return [
            _speculative_sampling(
                b.tokens[row : row + 1], b.log_q[row : row + 1], DEPTH,
                b.target[row : row + 1], False,
            )
            for row in range(ROWS)
        ]  # fmt: skip

    return run


SUBJECTS: dict[str, Callable[[int], Callable[[Batch], Any]]] = {
    "core": core,
    "numpy": numpy_engine,
    "torch dense": torch_dense,
    "Hugging Face x4": hugging_face,
}


def check(b: Batch, vocab: int, stops: tuple[int, ...]) -> None:
    """The core emits what the definition does, and stops where it was made to."""
    found, known = core(vocab)(b), numpy_engine(vocab)(b)
    if found.tokens.tolist() != known.tokens.tolist():
        sys.exit("the core differs from the definition")
    if tuple(found.accepted) != stops:
        sys.exit(f"accepted: expected {stops}, found {found.accepted}")


def measure(
    title: str, batches: list[Batch], vocab: int, seconds: float, names: list[str]
) -> list[dict[str, Any]]:
    """A table of the subjects; ratios are to the read of the needed rows."""
    reader, rows, base = Reader(), [], 0.0
    runs: dict[str, Callable[[Batch], Any]] = {
        f"read ({reader.name})": lambda b: [reader(rows) for rows in b.needed]
    }
    runs |= {name: SUBJECTS[name](vocab) for name in names}
    for name, run in runs.items():

        def one(i: int, run: Callable[[Batch], Any] = run) -> object:
            return run(batches[i % len(batches)])

        spent = _harness.timed(one, seconds, warm=max(3, len(batches)))
        found = _harness.quantiles(spent)
        base = base or found["p50_us"]
        rows.append({"group": title, "run": name, **found,
                     "times_read": found["p50_us"] / base})  # fmt: skip
        print(f"{title:22}{name:18}{_harness.shown(found)}"
              f"{found['p50_us'] / base:10.2f}")  # fmt: skip
    return rows


def main() -> None:
    """Runs all groups."""
    parser = _harness.arguments(__doc__)
    parser.add_argument("--vocab", type=int, default=129280)
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement")
    options = parser.parse_args()
    vocab: int = options.vocab
    torch.set_num_threads(1)
    where = _harness.machine(
        pinned_core=_harness.pin(), path=PATHS[lib.pp3_scan_path()], vocab=vocab,
        torch=torch.__version__,
    )  # fmt: skip
    print(f"{'':40}{_harness.HEAD}{'x read':>10}")
    g, kept = np.random.default_rng(1), []
    count = max(2, COLD_BYTES // (ROWS * (DEPTH + 1) * vocab * 4))
    for name, stops in STOPS.items():
        cold = [batch(g, vocab, stops) for _ in range(count)]
        for one in cold:
            check(one, vocab, stops)
        every = list(SUBJECTS)
        kept += measure(f"{name}, hot", cold[:1], vocab, options.seconds, every)
        kept += measure(f"{name}, cold", cold, vocab, options.seconds, every)
        if name == "mixed":
            for path, way in enumerate(PATHS):
                if not lib.pp3_scan_force(path):
                    kept += measure(
                        f"mixed, hot, {way}", cold[:1], vocab, options.seconds, ["core"]
                    )
            lib.pp3_scan_force(-1)
    _harness.write(options.json, where, kept)


if __name__ == "__main__":
    main()
