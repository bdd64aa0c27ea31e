"""Verification of several requests of one round, each with its own keys and errors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from pp3shm.errors import ConfigError, VerifyError
from pp3shm.rng import MASK64, accept_uniform, residual_uniform
from pp3shm.verify import sparse
from pp3shm.verify.batch import (
    EngineName,
    Mode,
    Modes,
    Page,
    Request,
    Rule,
    Verified,
    named,
)
from pp3shm.verify.block import block
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

    Masks = Sequence[NDArray[np.float32]] | NDArray[np.float32]

RULES = {"standard": standard, "block": block}


def verify(
    page: Page | None,
    target: Sequence[Floats] | NDArray[np.float32] | NDArray[np.float64],
    requests: Sequence[Request],
    *,
    round: int,  # noqa: A002 (the wire page's word)
    vocab: int,
    logits: bool = False,
    logit_mask: Masks | None = None,
    rule: Rule = "standard",
    engine: EngineName = "auto",
    threads: int = 1,
) -> Verified:
    """Verifies one round's drafts, request by request.

    A request whose row failed emits one token of its unchanged target. A request whose
    row is of another round, or whose target or q cannot be used, gets an error and no
    token; the others are not touched by it.

    Args:
        page: the reply, by slot; None: every request is target-only.
        target: (n, depth + 1, width) by request, or n arrays of (depth + 1, width);
            float32 or float64. ``[..., :vocab]`` is used: a model's padded columns
            beyond are never read, nor is any row after a request's stop (rule "block"
            reads all rows); of a target-only request row 0 is.
        requests: n requests, in distinct slots.
        round: the round that is verified.
        vocab: size of the target's vocabulary.
        logits: the target comes as logits: softmax at each request's temperature.
            Otherwise as probabilities, after the target's own processors.
        logit_mask: shaped like target, or with fewer leading axes that repeat: float32
            added to the logits in FP32 (-inf forbids a token). None: nothing.
        rule: "standard" is ``standard-v1``; no profile names "block".
        engine: "numpy" is the readable definition, in float64. "c" is one pass over
            each row that is needed, float32 only. "auto": "c" where it can.
        threads: of the C engine; requests are shared out among them.

    Returns:
        Tokens, counts and errors.

    Raises:
        ConfigError: an argument of another shape or range.
    """
    _check(page, target, requests, vocab, round)
    masks = _masks(logit_mask, target, vocab, logits=logits)
    if rule not in RULES:
        raise ConfigError("rule", "standard or block", rule)
    if engine not in {"auto", "numpy", "c"}:
        raise ConfigError("engine", "auto, numpy or c", engine)
    if not 1 <= threads <= sparse.MOST_THREADS:
        raise ConfigError("threads", f"1 to {sparse.MOST_THREADS}", threads)
    lacking = sparse.lacking(page, target)
    if engine == "c" and lacking:
        raise ConfigError(*lacking)
    if engine == "numpy" or lacking:
        return _numpy(
            page, target, requests, round, vocab, logits=logits, masks=masks, rule=rule
        )
    return sparse.verify_sparse(
        page, target, requests, round_=round, vocab=vocab, logits=logits, masks=masks,
        rule=rule, threads=threads,
    )  # fmt: skip


def _numpy(
    page: Page | None,
    target: Sequence[Floats] | NDArray[np.float32] | NDArray[np.float64],
    requests: Sequence[Request],
    round_: int,
    vocab: int,
    *,
    logits: bool,
    masks: Sequence[NDArray[np.float32]] | None,
    rule: Rule,
) -> Verified:
    depth = len(target[0]) - 1 if page is None else int(page.tokens.shape[1])
    n, modes = len(requests), Modes(page, round_)
    tokens = np.full((n, depth + 1), -1, np.int32)
    count, accepted = np.zeros(n, np.int32), np.zeros(n, np.int32)
    no_mass = np.zeros(n, np.bool_)
    last: list[Last | None] = [None] * n
    errors: list[VerifyError | None] = [None] * n
    for row, request in enumerate(requests):
        mask = None if masks is None else masks[row]
        rows = _rows(target[row], request, vocab, logits=logits, mask=mask)
        try:
            result = _one(page, rows, request, round_, rule, modes)
        except VerifyError as error:
            errors[row] = named(request, error)
            continue
        count[row] = len(result.tokens)
        tokens[row, : count[row]] = result.tokens
        accepted[row], no_mass[row] = result.accepted, result.no_mass
        last[row] = result.last
    return Verified(tokens, count, accepted, tuple(last), no_mass, tuple(errors))


def _one(
    page: Page | None,
    rows: Rows,
    request: Request,
    round_: int,
    rule: Rule,
    modes: Modes,
) -> RowResult:
    slot, keys = request.slot, request.keys

    def accept(i: int) -> float:
        return accept_uniform(keys.accept, round_, request.position + i)

    def residual(i: int) -> float:
        return residual_uniform(keys.residual, round_, request.position + i)

    mode = modes.of(request)
    if mode is Mode.TARGET_GREEDY:
        return greedy(rows, (), failed=True)
    if page is None or mode is Mode.TARGET:
        return target_only(rows, residual)
    drafts = page.tokens[slot]
    if mode is Mode.GREEDY:
        return greedy(rows, drafts)
    return RULES[rule](
        rows, drafts, page.ids[slot], page.q[slot], accept=accept, residual=residual
    )


def _rows(
    target: Floats,
    request: Request,
    vocab: int,
    *,
    logits: bool,
    mask: NDArray[np.float32] | None,
) -> Rows:
    def row(i: int) -> NDArray[np.float64]:
        if not logits:
            return probability_row(target[i], vocab, i)
        z = target[i] if mask is None else target[i][:vocab] + mask[i]
        return softmax_row(z, vocab, request.temperature, i)

    return row


def _masks(
    logit_mask: Masks | None, target: Any, vocab: int, *, logits: bool
) -> list[NDArray[np.float32]] | None:
    """Per request (rows, vocab) float32."""
    if logit_mask is None:
        return None
    if not logits:
        raise ConfigError("logit_mask", "none for probabilities", "one")
    by_request = not isinstance(logit_mask, np.ndarray) or logit_mask.ndim == 3
    if by_request and len(logit_mask) != len(target):
        raise ConfigError("logit_mask", f"{len(target)} of them", len(logit_mask))
    n, found = len(target), []
    for row in range(n):
        one = logit_mask[row] if by_request else np.asarray(logit_mask)
        shape = (len(target[row]), vocab)
        fits = one.dtype == np.float32 and one.ndim in {1, 2}
        if not fits or one.shape[-1] < vocab or one.shape[:-1] not in {(), shape[:1]}:
            raise ConfigError(
                f"logit_mask[{row}]", f"float32 {shape}", f"{one.dtype} {one.shape}"
            )
        found.append(np.broadcast_to(one[..., :vocab], shape))
    return found


def _check(
    page: Page | None,
    target: Any,
    requests: Sequence[Request],
    vocab: int,
    round_: int,
) -> None:
    if not 0 <= round_ <= MASK64:
        raise ConfigError("round", "a u64", round_)
    if not requests or len(target) != len(requests):
        raise ConfigError("target", "one per request, one at least", len(target))
    slots = {request.slot for request in requests}
    if len(slots) != len(requests):
        raise ConfigError("slots", "distinct", [r.slot for r in requests])
    needed, bound = 1, None
    if page is not None:
        needed, bound = page.tokens.shape[1] + 1, len(page.status)
    _check_requests(requests, needed, bound)
    even = isinstance(target, np.ndarray)  # all requests have the same shape
    for rows in target[:1] if even else target:
        if len(rows) < needed or rows.shape[-1] < vocab:
            raise ConfigError(
                "target", f"{needed} rows of {vocab} at least", rows.shape
            )


def _check_requests(
    requests: Sequence[Request], needed: int, bound: int | None
) -> None:
    for request in requests:
        if bound is not None and not 0 <= request.slot < bound:
            raise ConfigError("slot", f"0 to {bound - 1}", request.slot)
        if not 0 <= request.temperature < math.inf:
            raise ConfigError("temperature", "0 or above", request.temperature)
        if not 0 <= request.position <= MASK64 - (needed - 1):
            raise ConfigError("position", "a u64, to its last row", request.position)
