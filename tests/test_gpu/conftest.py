"""Devices, pages and random rows for the tests of ``pp3shm.gpu``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

import pp3shm.verify as reference
from pp3shm.layout.reply import ReplyLayout
from pp3shm.layout.tables import Status
from pp3shm.verify.keys import VerifyKeys

with contextlib.suppress(ModuleNotFoundError):  # then every test here is skipped
    import torch

    from pp3shm.gpu import DraftProbs, Page, ReplyTensors, verify

SUPPORT = 32
EPOCH = bytes(range(16))


@dataclass(frozen=True)
class Row:
    """A slot's part of a page: drafts, and q where it is sampled."""

    drafts: NDArray[np.int32]  # (depth,)
    ids: NDArray[np.int32] | None = None  # (depth, 32)
    q: NDArray[np.float32] | None = None  # (depth, 32)
    status: int = Status.OK


@dataclass(frozen=True)
class Pages:
    """Makes pages and rows; every draw comes from the generator that is given."""

    device: str

    @staticmethod
    def sampled(rng: np.random.Generator, vocab: int, depth: int) -> Row:
        """Dyadic q on random supports, some counts 0, and drafts drawn from it."""
        ids = np.sort(
            np.stack([rng.choice(vocab, SUPPORT, replace=False) for _ in range(depth)])
        )
        counts = rng.multinomial(2**24, rng.dirichlet(np.full(SUPPORT, 0.3), depth))
        at = [rng.choice(SUPPORT, p=row / 2**24) for row in counts]
        return Row(
            ids[np.arange(depth), at].astype(np.int32),
            ids.astype(np.int32),
            (counts / 2**24).astype(np.float32),
        )

    @staticmethod
    def greedy(rng: np.random.Generator, vocab: int, depth: int) -> Row:
        """Any drafts, no q."""
        return Row(rng.integers(0, vocab, depth).astype(np.int32))

    @staticmethod
    def failed(depth: int, status: int = Status.TIMEOUT) -> Row:
        """No drafts, no q."""
        return Row(np.full(depth, -1, np.int32), status=status)

    @staticmethod
    def fill(
        layout: ReplyLayout, round_: int, rows: Mapping[int, Row], page: bytearray
    ) -> None:
        """Overwrite ``page``; slots without a row are absent."""
        page[:] = layout.failed(Status.ABSENT, ())
        views = layout.views(page)
        views.round[()] = round_
        for slot, row in rows.items():
            views.status[slot] = row.status
            views.tokens[slot] = row.drafts
            if row.q is None or row.ids is None:
                continue
            assert views.mask is not None
            assert views.ids is not None
            assert views.q is not None
            views.mask[slot], views.ids[slot], views.q[slot] = 1, row.ids, row.q

    def load(
        self,
        rows: Mapping[int, Row],
        round_: int,
        *,
        depth: int = 5,
        max_slots: int = 4,
        spoil: Callable[..., None] | None = None,
    ) -> ReplyTensors:
        """Tensors of a new page on the device; ``spoil`` gets its NumPy views."""
        layout = ReplyLayout(max_slots, depth, sampled=True)
        page = bytearray(layout.size)
        self.fill(layout, round_, rows, page)
        if spoil is not None:
            spoil(layout.views(page))
        return Page(layout, page, self.device).load()


def _target(random, row, vocab, depth):
    """FP32 target rows near the row's q, far from it, or apart from it; some zeros."""
    p = random.dirichlet(np.full(vocab, random.choice([0.05, 0.5, 5.0])), depth + 1)
    kind = random.integers(0, 3)
    if row.q is not None and kind < 2:
        q = np.zeros((depth, vocab))
        np.put_along_axis(q, row.ids.astype(np.int64), row.q.astype(np.float64), 1)
        if kind == 0:
            p[:depth] = 0.9 * q + 0.1 * p[:depth]
        else:
            p[:depth] = np.where(q > 0, 0.0, p[:depth] + 1e-9)
    elif row.q is None and kind < 2:
        p[np.arange(depth), np.maximum(row.drafts, 0)] += 1.0
    p[random.random(p.shape) < 0.2] = 0.0
    p[:, random.integers(0, vocab)] += 1e-3
    return (p / p.sum(1, keepdims=True)).astype(np.float32)


class Round:
    """One random round: a page, and a request for each slot of it."""

    def __init__(self, random, pages, vocab, depth, modes=None):
        self.vocab, self.depth, self.device = vocab, depth, pages.device
        self.round = int(random.integers(1, 2**40))
        modes = random.integers(0, 4, 4) if modes is None else modes
        make = (
            lambda: pages.sampled(random, vocab, depth),
            lambda: pages.greedy(random, vocab, depth),
            lambda: pages.failed(depth, int(random.integers(2, 9))),
            lambda: pages.failed(depth, 1),
        )
        self.rows = {slot: make[mode]() for slot, mode in enumerate(modes)}
        self.temperature = [
            float(mode == 0 or (mode > 1 and random.random() < 0.5)) for mode in modes
        ]
        self.target = np.stack(
            [_target(random, self.rows[slot], vocab, depth) for slot in range(4)]
        )
        self.positions = random.integers(0, 2**40, 4).tolist()
        self.keys = [
            VerifyKeys.derive(EPOCH, slot, int(random.integers(2**32)), slot - 2)
            for slot in range(4)
        ]
        layout = ReplyLayout(4, depth, sampled=True)
        buffer = bytearray(layout.size)
        pages.fill(layout, self.round, self.rows, buffer)
        self.page = layout.views(buffer)
        self.views = Page(layout, buffer, pages.device).load()
        self.drafts = DraftProbs(4, depth, vocab, pages.device)
        self.drafts.scatter_q(self.views, self.round)

    def run(self, rows=(0, 1, 2, 3), target=None, **changes):
        """The torch verifier on some requests, with some arguments changed."""
        slots = list(rows)
        if target is None:
            target = torch.from_numpy(self.target[slots]).to(self.device)
        arguments = {
            "slots": slots,
            "round_": self.round,
            "positions": [self.positions[s] for s in slots],
            "keys": [self.keys[s] for s in slots],
            "sampled": [self.temperature[s] > 0 for s in slots],
        }
        return verify(target, self.drafts, **(arguments | changes))

    def reference(self, slots=(0, 1, 2, 3), target=None, *, page=True, logits=False):
        """The NumPy reference on the same page."""
        target = self.target if target is None else target
        return reference.verify(
            self.page if page else None,
            [target[s] for s in slots],
            [
                reference.Request(
                    s, self.positions[s], self.keys[s], self.temperature[s]
                )
                for s in slots
            ],
            round=self.round,
            vocab=self.vocab,
            logits=logits,
        )


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """These tensors are small: threads that wait for each other only cost."""
    torch.set_num_threads(1)


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, torch finds none")
    return str(request.param)


@pytest.fixture
def triton_device(device: str) -> str:
    """Where Triton's kernels run: on the CPU only by their interpreter."""
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("needs Triton's interpreter, which a CUDA device rules out here")
    return device


@pytest.fixture
def pages(device: str) -> Pages:
    return Pages(device)


@pytest.fixture
def make_round(pages: Pages) -> Callable[..., Round]:
    """A function of (generator, vocab, depth, modes) that gives a Round."""
    return lambda random, *args, **names: Round(random, pages, *args, **names)
