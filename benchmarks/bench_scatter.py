"""What does it cost to have a page's q as dense FP32 by slot?

    page (5320 bytes) --- ids, q ---> draft_probs (slots, depth, vocab) FP32
    |<------------------------- timed ------------------------->|

Four ways to the same dense tensor, each from a new page:

- ``rebuild``: fill the whole tensor with zeros, write 32 columns of each row;
- ``torch``: a new zero tensor each time, ``scatter`` out of place. Its pages come
  untouched from the kernel, so that its cost falls on whoever reads it: the row
  ``torch, read`` has one pass over the result in the timed part;
- ``erase``: erase the 32 columns written last, write the 32 new ones;
- ``scatter_q``: the same, with the copy, all checks, drafts and rounds by slot.

Beside them, what follows: verification of the four requests, from probabilities.
CPU by default, one thread; ``--device cuda`` times with CUDA events and a cold L2.
"""

import sys
import time
from collections.abc import Callable

import _harness
import numpy as np
import torch

from pp3shm.gpu import DraftProbs, Page, ReplyTensors, key_words, verify
from pp3shm.layout.reply import ReplyLayout
from pp3shm.verify.keys import VerifyKeys

Ways = dict[str, Callable[[int], torch.Tensor]]


def make_pages(
    count: int, slots: int, depth: int, vocab: int, device: str
) -> list[ReplyTensors]:
    """Valid pages of rounds 1 to ``count``, every slot sampled."""
    random = np.random.default_rng(0)
    layout = ReplyLayout(slots, depth, sampled=True)
    pages = []
    for round_ in range(1, count + 1):
        buffer = bytearray(layout.size)
        views = layout.views(buffer)
        assert views.mask is not None
        assert views.ids is not None
        assert views.q is not None
        views.round[()], views.mask[:] = round_, 1
        for row in np.ndindex(slots, depth):
            ids = np.sort(random.choice(vocab, 32, replace=False))
            counts = random.multinomial(2**24, random.dirichlet(np.ones(32)))
            views.ids[row], views.q[row] = ids, counts / 2**24
            views.tokens[row] = ids[counts.argmax()]
        pages.append(Page(layout, buffer, device).load())
    return pages


def time_cpu(call: Callable[[int], object], repeats: int) -> list[float]:
    """Nanoseconds of each call; the first tenth warms up and is dropped."""
    times = []
    for i in range(repeats + repeats // 10):
        start = time.perf_counter_ns()
        call(i)
        times.append(float(time.perf_counter_ns() - start))
    return times[repeats // 10 :]


def time_cuda(call: Callable[[int], object], repeats: int) -> list[float]:
    """Nanoseconds between two events on the stream, the L2 swept before each."""
    sweep = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    pairs = []
    for i in range(repeats + repeats // 10):
        sweep.zero_()
        pair = [
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        ]
        pair[0].record()
        call(i)
        pair[1].record()
        pairs.append(pair)
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e6 for a, b in pairs[repeats // 10 :]]


def check(results: dict[str, torch.Tensor]) -> None:
    """All ways give the same bits; not in the timed part."""
    first, *others = results
    for other in others:
        assert torch.equal(results[first], results[other]), other


def calls(
    pages: list[ReplyTensors], shape: tuple[int, int, int], device: str
) -> tuple[Ways, Ways]:
    """The ways by name, and what stands beside them; call i takes page i.

    A way gives the dense tensor.
    """
    slots, depth, vocab = shape
    dense = torch.zeros(shape, device=device)
    sparse = torch.zeros(shape, device=device)
    last = torch.zeros((slots, depth, 32), dtype=torch.int64, device=device)
    drafts = DraftProbs(slots, depth, vocab, device)

    def page(i: int) -> ReplyTensors:
        return pages[i % len(pages)]

    def drawn(i: int) -> tuple[torch.Tensor, torch.Tensor]:
        ids, q = page(i).ids, page(i).q
        if ids is None or q is None:
            sys.exit("bench: expected a sampled session, found a greedy one")
        return ids.long(), q

    def rebuild(i: int) -> torch.Tensor:
        return dense.zero_().scatter_(2, *drawn(i))

    def plain(i: int) -> torch.Tensor:
        zeros = torch.zeros(shape, device=device)
        return zeros.scatter(2, *drawn(i))

    def plain_read(i: int) -> torch.Tensor:
        result = plain(i)
        result.sum()
        return result

    def erase(i: int) -> torch.Tensor:
        ids, q = drawn(i)
        sparse.scatter_(2, last, 0.0).scatter_(2, ids, q)
        last.copy_(ids)
        return sparse

    def scatter_q(i: int) -> torch.Tensor:
        drafts.scatter_q(page(i), i % len(pages) + 1)
        return drafts.draft_probs

    target = torch.randn(slots, depth + 1, vocab, device=device).mul(3).softmax(-1)
    keys = [VerifyKeys.derive(bytes(16), slot, 1, 0) for slot in range(slots)]
    words = key_words(keys, device)
    places = torch.zeros(slots, dtype=torch.int64, device=device)
    order = torch.arange(slots, device=device)

    def verified(i: int) -> torch.Tensor:
        round_ = i % len(pages) + 1
        drafts.scatter_q(page(i), round_)
        return verify(
            target, drafts, slots=order, round_=round_, positions=places, keys=words
        ).tokens

    ways: Ways = {
        "rebuild": rebuild,
        "torch": plain,
        "torch, read": plain_read,
        "erase": erase,
        "scatter_q": scatter_q,
    }
    return ways, {"scatter_q + verify": verified}


def main() -> None:
    """Run, check, print."""
    parser = _harness.arguments(__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=129280)
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    shape = (args.slots, args.depth, args.vocab)
    pages = make_pages(32, *shape, args.device)
    ways, beside = calls(pages, shape, args.device)
    timer = time_cuda if args.device == "cuda" else time_cpu
    for i in (0, 1, 31):
        check({name: way(i).clone() for name, way in ways.items()})

    megabytes = args.slots * args.depth * args.vocab * 4 / 1e6
    where = _harness.machine(
        device=torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        threads=args.threads,
        torch=str(torch.__version__),
        shape=shape,
    )
    print(f"{f'dense tensor {megabytes:.1f} MB':20}{_harness.HEAD}{'GB/s':>9}")
    table = {}
    for name, way in (ways | beside).items():
        repeats = args.repeats if name in ways else max(args.repeats // 10, 20)
        spent = table[name] = _harness.quantiles(timer(way, repeats))
        rate = ""
        if name in ("rebuild", "torch, read"):
            rate = f"{megabytes * 1e3 / spent['p50_us']:9.1f}"
        print(f"{name:20}{_harness.shown(spent)}{rate}")
    _harness.write(args.json, where, table)


if __name__ == "__main__":
    main()
