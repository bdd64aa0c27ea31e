"""Verification of several requests of one round, each with its own keys and errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from pp3shm.errors import ConfigError, VerifyError
from pp3shm.rng import accept_uniform, residual_uniform
from pp3shm.verify.reference import (
    Floats,
    Last,
    RowResult,
    Rows,
    greedy,
    probability_row,
    softmax_row,
    standard,
    target_only,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pp3shm.verify.keys import VerifyKeys


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


def verify(
    page: Page | None,
    target: Sequence[Floats] | NDArray[np.float32] | NDArray[np.float64],
    requests: Sequence[Request],
    *,
    round: int,  # noqa: A002 (the wire page's word)
    vocab: int,
    logits: bool = False,
) -> Verified:
    """Verifies one round's drafts, request by request.

    A request whose row failed emits one token of its unchanged target. A request whose
    row is of another round, or whose target or q cannot be used, gets an error and no
    token; the others are not touched by it.

    Args:
        page: the reply, by slot; None: every request is target-only.
        target: (n, depth + 1, width) by request, or n arrays of (depth + 1, width);
            float32 or float64. ``[..., :vocab]`` is used: a model's padded columns
            beyond are never read, nor is any row after a request's stop; of a
            target-only request row 0 is.
        requests: n requests, in distinct slots.
        round: the round that is verified.
        vocab: size of the target's vocabulary.
        logits: the target comes as logits: softmax at each request's temperature, in
            float64. Otherwise as probabilities, after the target's own processors.

    Returns:
        Tokens, counts and errors.

    Raises:
        ConfigError: an argument of another shape or range.
    """
    _check(page, target, requests, vocab)
    depth = len(target[0]) - 1 if page is None else int(page.tokens.shape[1])
    n = len(requests)
    tokens = np.full((n, depth + 1), -1, np.int32)
    count, accepted = np.zeros(n, np.int32), np.zeros(n, np.int32)
    no_mass = np.zeros(n, np.bool_)
    last: list[Last | None] = [None] * n
    errors: list[VerifyError | None] = [None] * n
    for row, request in enumerate(requests):
        rows = _rows(target[row], request, vocab, logits=logits)
        try:
            result = _one(page, rows, request, round)
        except VerifyError as error:
            errors[row] = VerifyError(
                f"slot {request.slot}: {error.place}", error.expected, error.found
            )
            continue
        count[row] = len(result.tokens)
        tokens[row, : count[row]] = result.tokens
        accepted[row], no_mass[row] = result.accepted, result.no_mass
        last[row] = result.last
    return Verified(tokens, count, accepted, tuple(last), no_mass, tuple(errors))


def _one(page: Page | None, rows: Rows, request: Request, round_: int) -> RowResult:
    slot, keys, sampled = request.slot, request.keys, request.temperature > 0

    def accept(i: int) -> float:
        return accept_uniform(keys.accept, round_, request.position + i)

    def residual(i: int) -> float:
        return residual_uniform(keys.residual, round_, request.position + i)

    if page is not None:
        shown = int(np.broadcast_to(page.round, page.status.shape)[slot])
        if shown != round_:
            raise VerifyError("round", round_, shown)
    failed = page is None or int(page.status[slot]) != 0
    if page is None or failed:
        if sampled:
            return target_only(rows, residual)
        return greedy(rows, (), failed=True)
    mask = 0 if page.mask is None else int(page.mask[slot])
    if mask != sampled:
        raise VerifyError("mask", int(sampled), mask)
    if not sampled:
        return greedy(rows, page.tokens[slot])
    return standard(
        rows,
        page.tokens[slot],
        page.ids[slot],
        page.q[slot],
        accept=accept,
        residual=residual,
    )


def _rows(target: Floats, request: Request, vocab: int, *, logits: bool) -> Rows:
    def row(i: int) -> NDArray[np.float64]:
        if logits:
            return softmax_row(target[i], vocab, request.temperature, i)
        return probability_row(target[i], vocab, i)

    return row


def _check(
    page: Page | None, target: Any, requests: Sequence[Request], vocab: int
) -> None:
    if not requests or len(target) != len(requests):
        raise ConfigError("target", "one per request, one at least", len(target))
    slots = [request.slot for request in requests]
    if len(set(slots)) != len(slots):
        raise ConfigError("slots", "distinct", slots)
    for request, rows in zip(requests, target, strict=True):
        if page is not None and not 0 <= request.slot < len(page.status):
            raise ConfigError("slot", f"0 to {len(page.status) - 1}", request.slot)
        if not 0 <= request.temperature < math.inf:
            raise ConfigError("temperature", "0 or above", request.temperature)
        needed = 1 if page is None else page.tokens.shape[1] + 1
        if len(rows) < needed or rows.shape[-1] < vocab:
            raise ConfigError(
                "target", f"{needed} rows of {vocab} at least", rows.shape
            )
