"""Devices, pages and random rows for the tests of ``pp3shm.gpu``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pp3shm.gpu import Page, ReplyTensors
from pp3shm.layout.reply import ReplyLayout
from pp3shm.layout.tables import Status

SUPPORT = 32


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
        return Row(rng.integers(0, vocab, depth).astype(np.int32))

    @staticmethod
    def failed(depth: int, status: int = Status.TIMEOUT) -> Row:
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


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, torch finds none")
    return str(request.param)


@pytest.fixture
def pages(device: str) -> Pages:
    return Pages(device)
