"""What verification of several requests takes and gives, whatever the engine."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from pp3shm._core import lib
from pp3shm.errors import VerifyError
from pp3shm.verify.reference import Last

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from pp3shm.verify.keys import VerifyKeys

Rule = Literal["standard", "block"]
"""Token by token, or the block as a whole (arXiv 2403.10444): the same law."""

EngineName = Literal["auto", "numpy", "c"]


class Page(Protocol):
    """What verification reads of a reply: arrays by slot, as a page's views are."""

    @property
    def round(self) -> Any:
        """() or (max_slots,) u64: the round that all rows, or each, are of."""

    @property
    def status(self) -> Any:
        """(max_slots,) i32, 0 where the row is good."""

    @property
    def tokens(self) -> Any:
        """(max_slots, depth) i32."""

    @property
    def mask(self) -> Any:
        """(max_slots,) i32, 1 where q is present; None in greedy mode."""

    @property
    def ids(self) -> Any:
        """(max_slots, depth, k) i32; None in greedy mode."""

    @property
    def q(self) -> Any:
        """(max_slots, depth, k) f32; None in greedy mode."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request to verify.

    Attributes:
        slot: its slot in the page.
        position: u64, of its first draft.
        keys: its acceptance and residual streams.
        temperature: 0: greedy. Above 0: sampled; where the target comes as logits they
            are divided by it, probabilities are taken as they are.
    """

    slot: int
    position: int
    keys: VerifyKeys
    temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class Verified:
    """What the requests emit, in their order.

    Attributes:
        tokens: (n, depth + 1) int32, -1 after the last emitted token.
        count: (n,) int32, tokens emitted; 0 where an error is.
        accepted: (n,) int32, how many of them are drafts.
        last: per request what its last token is (see ``RowResult``); None on error.
        no_mass: (n,) bool, corrections drawn from p because the residual had no mass.
        errors: per request None, or why nothing can be emitted.
    """

    tokens: NDArray[np.int32]
    count: NDArray[np.int32]
    accepted: NDArray[np.int32]
    last: tuple[Last | None, ...]
    no_mass: NDArray[np.bool_]
    errors: tuple[VerifyError | None, ...]


class Mode(IntEnum):
    """What is done with a request."""

    TARGET = lib.PP3_MODE_TARGET
    """One draw of the unchanged target: its row failed, or there is no page."""
    GREEDY = lib.PP3_MODE_GREEDY
    SAMPLED = lib.PP3_MODE_SAMPLED
    TARGET_GREEDY = lib.PP3_MODE_TARGET_GREEDY
    """The argmax of the unchanged target."""


class Modes:
    """What a page says of its slots, read once for all requests."""

    def __init__(self, page: Page | None, round_: int) -> None:
        self._page, self._round = page, round_
        if page is None:
            return
        slots = len(page.status)
        self._status = page.status.tolist()
        self._mask = [0] * slots if page.mask is None else page.mask.tolist()
        rounds = np.asarray(page.round).tolist()  # of a Reply it is a plain number
        self._rounds = rounds if isinstance(rounds, list) else [rounds] * slots

    def of(self, request: Request) -> Mode:
        """What is done with a request.

        Raises:
            VerifyError: its row is of another round, or greedy where the request is
                not, or the reverse.
        """
        sampled, slot = request.temperature > 0, request.slot
        if self._page is not None and self._rounds[slot] != self._round:
            raise VerifyError("round", self._round, self._rounds[slot])
        if self._page is None or self._status[slot] != 0:
            return Mode.TARGET if sampled else Mode.TARGET_GREEDY
        if self._mask[slot] != sampled:
            raise VerifyError("mask", int(sampled), self._mask[slot])
        return Mode.SAMPLED if sampled else Mode.GREEDY


def named(request: Request, error: VerifyError) -> VerifyError:
    """The error with the request's slot before its place."""
    place = f"slot {request.slot}: {error.place}"
    return VerifyError(place, error.expected, error.found)
