"""``standard-v1`` for one request: what every other verifier must agree with.

Section 10 of the wire page, in its order. All arithmetic is float64: a float32 ``p`` or
``q`` is exact in it, and so is the product ``u * q`` of 29 and 24 bits. Rows are read
one by one as the decision reaches them: nothing after the stop is ever looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import VerifyError
from pp3shm.rng import Key, accept_uniform, residual_uniform

MASS = 2.0**24
MASS_TOLERANCE = 1e-3
"""How far a target row's sum may be from 1: FP32 softmaxes are off by 2e-5, a row that
was filtered and not normalised again by far more."""

Floats = NDArray[np.float32] | NDArray[np.float64]
Rows = Callable[[int], NDArray[np.float64]]
"""Index i in 0..depth to the checked row p_i, (vocab,) float64."""

Uniforms = Callable[[int], float]
"""Index i in 0..depth to the uniform of the token at ``position + i``."""

Last = Literal["correction", "bonus", "target"]


class RowResult(NamedTuple):
    """What one request emits in one round.

    Attributes:
        tokens: the accepted drafts and one more token.
        accepted: how many of them are drafts.
        last: what the last token is: a ``correction`` after a rejection, the ``bonus``
            after the last draft, or a draw of the ``target`` alone (a failed row).
        no_mass: the residual had no mass, so the correction was drawn from p.
    """

    tokens: list[int]
    accepted: int
    last: Last
    no_mass: bool = False


def verify_row(
    target_probs: Floats,
    drafts: Sequence[int] | NDArray[np.int32],
    ids: NDArray[np.int32] | None,
    q: NDArray[np.float32] | None,
    *,
    accept_key: Key,
    residual_key: Key,
    round: int,  # noqa: A002 (the wire page's word)
    position: int,
    sampled: bool = True,
    failed: bool = False,
    vocab: int | None = None,
) -> RowResult:
    """Verifies the drafts of one request.

    Args:
        target_probs: (depth + 1, width) float32 or float64; row i is the target's
            distribution of the token at ``position + i``, given the drafts before it.
        drafts: (depth,) ids; not looked at where ``failed``.
        ids: (depth, k) int32, supports; None for a greedy or failed request.
        q: (depth, k) float32, probabilities of the supports; None likewise.
        accept_key: of ``Purpose.ACCEPT``.
        residual_key: of ``Purpose.RESIDUAL``.
        round: u64.
        position: u64, of the first draft.
        sampled: T > 0; False: the target's argmax (ties: lower id) is followed.
        failed: the reply gave nothing for this request: one token of p_0.
        vocab: the vocabulary; columns beyond it are padding and are never read. None:
            all columns are vocabulary.

    Returns:
        The tokens emitted, and how they came about.

    Raises:
        VerifyError: a row of p or q that was needed cannot be used.
    """
    size = target_probs.shape[-1] if vocab is None else vocab

    def rows(i: int) -> NDArray[np.float64]:
        return probability_row(target_probs[i], size, i)

    def accept(i: int) -> float:
        return accept_uniform(accept_key, round, position + i)

    def residual(i: int) -> float:
        return residual_uniform(residual_key, round, position + i)

    if not sampled:
        return greedy(rows, () if failed else drafts, failed=failed)
    if failed:
        return target_only(rows, residual)
    if ids is None or q is None:
        raise VerifyError("q", "the distribution the drafts were drawn from", None)
    return standard(rows, drafts, ids, q, accept=accept, residual=residual)


def standard(
    rows: Rows,
    drafts: Sequence[int] | NDArray[np.int32],
    ids: NDArray[np.int32],
    q: NDArray[np.float32],
    *,
    accept: Uniforms,
    residual: Uniforms,
) -> RowResult:
    """The law itself, for given uniforms.

    Args:
        rows: gives p_i.
        drafts: (depth,) ids.
        ids: (depth, k) int32, supports.
        q: (depth, k) float32, their probabilities; 0 off the support.
        accept: gives the acceptance uniform of draft i, a multiple of 2**-29.
        residual: gives the uniform for the emitted token i, a multiple of 2**-53.

    Returns:
        The tokens emitted.

    Raises:
        VerifyError: a row of p or q that was needed cannot be used.
    """
    tokens: list[int] = []
    for i, drafted in enumerate(drafts):
        p = rows(i)
        draft = int(drafted)
        support, share = support_row(ids[i], q[i], draft, p.size, i)
        if accept(i) * share[support == draft][0] < p[draft]:
            tokens.append(draft)
            continue
        weight = p.copy()  # the full vocabulary: off the support q is 0
        weight[support] = np.maximum(weight[support] - share, 0.0)
        no_mass = not weight.any()
        tokens.append(inverse_cdf(p if no_mass else weight, residual(i)))
        return RowResult(tokens, i, "correction", no_mass)
    depth = len(tokens)
    tokens.append(inverse_cdf(rows(depth), residual(depth)))
    return RowResult(tokens, depth, "bonus")


def target_only(rows: Rows, residual: Uniforms) -> RowResult:
    """One token of the unchanged target: what a failed request emits."""
    return RowResult([inverse_cdf(rows(0), residual(0))], 0, "target")


def greedy(
    rows: Rows, drafts: Sequence[int] | NDArray[np.int32], *, failed: bool = False
) -> RowResult:
    """T = 0: drafts are accepted while they are the argmax, then it is emitted.

    Args:
        rows: gives probabilities, or logits: only their order counts.
        drafts: (depth,) ids; none of a failed request.
        failed: the request has no drafts because its row failed.

    Returns:
        The tokens emitted.
    """
    tokens: list[int] = []
    for i, draft in enumerate(drafts):
        tokens.append(int(rows(i).argmax()))  # the first, so the lower id
        if tokens[-1] != draft:
            return RowResult(tokens, i, "correction")
    depth = len(tokens)
    tokens.append(int(rows(depth).argmax()))
    return RowResult(tokens, depth, "target" if failed else "bonus")


def inverse_cdf(weight: NDArray[np.float64], uniform: float) -> int:
    """A draw by one uniform.

    Args:
        weight: (vocab,) float64, none negative, not all 0.
        uniform: in ``[0, 1)``.

    Returns:
        The first id whose cumulative weight exceeds ``uniform * total``. Its weight is
        not 0: the sum grew there. If rounding leaves none, the last positive one.
    """
    cumulative = np.cumsum(weight)
    at = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return at if at < weight.size else int(np.flatnonzero(weight)[-1])


def probability_row(row: Floats, vocab: int, i: int) -> NDArray[np.float64]:
    """A target row, checked.

    Args:
        row: (width,) float32 or float64, width at least vocab.
        vocab: columns to use; the others are padding.
        i: index of the row, for errors.

    Returns:
        (vocab,) float64.

    Raises:
        VerifyError: a NaN, an infinity, a negative entry, no mass, or a mass that is
            not 1: somebody filtered the row and did not normalise it again.
    """
    p = _columns("target_probs", row, vocab, i)
    # Written so that a NaN fails as well.
    wrong = np.flatnonzero(~((p >= 0) & (p < np.inf)))
    if wrong.size:
        at = int(wrong[0])
        raise VerifyError(
            f"target_probs[{i}, {at}]", "a finite probability", float(p[at])
        )
    mass = float(p.sum())
    if abs(mass - 1) > MASS_TOLERANCE:
        raise VerifyError(f"target_probs[{i}]", "a mass of 1", mass)
    return p


def softmax_row(
    row: Floats, vocab: int, temperature: float, i: int
) -> NDArray[np.float64]:
    """A target row given as logits: its softmax at ``temperature``, in float64.

    Args:
        row: (width,) float32 or float64, width at least vocab; -inf masks a token.
        vocab: columns to use; the others are padding.
        temperature: above 0; or 0 for the logits themselves, as :func:`greedy` wants.
        i: index of the row, for errors.

    Returns:
        (vocab,) float64.

    Raises:
        VerifyError: a NaN, +inf, or nothing finite.
    """
    z = _columns("target_logits", row, vocab, i)
    wrong = np.flatnonzero(~(z < np.inf))
    if wrong.size:
        at = int(wrong[0])
        raise VerifyError(
            f"target_logits[{i}, {at}]", "a number below +inf", float(z[at])
        )
    peak = z.max()
    if peak == -np.inf:
        raise VerifyError(f"target_logits[{i}]", "a finite entry", "only -inf")
    if temperature == 0:
        return z
    # A tiny temperature sends a difference to -inf, whose weight is 0: as meant.
    with np.errstate(over="ignore", under="ignore"):
        weight = np.exp((z - peak) / temperature)
        share: NDArray[np.float64] = weight / weight.sum()
    return share


def support_row(
    ids: NDArray[np.int32], q: NDArray[np.float32], draft: int, vocab: int, i: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """A row of the reply, checked again: it decides what is emitted.

    Args:
        ids: (k,) the support.
        q: (k,) its probabilities.
        draft: the token drawn from them.
        vocab: size of the vocabulary.
        i: index of the row, for errors.

    Returns:
        (k,) int64 and (k,) float64.

    Raises:
        VerifyError: ids not ascending within the vocabulary, q not whole multiples of
            2**-24 that add up to 1, or a draft that q gives nothing.
    """
    support = ids.astype(np.int64)
    share = q.astype(np.float64)
    if (np.diff(support) <= 0).any() or support[0] < 0 or support[-1] >= vocab:
        raise VerifyError(f"ids[{i}]", f"ascending in [0, {vocab})", support.tolist())
    # Bounded before anything else is made of it; a NaN fails as well.
    if not ((share >= 0) & (share <= 1)).all():
        raise VerifyError(f"q[{i}]", "probabilities", share.tolist())
    counts = share * MASS
    if (counts != np.floor(counts)).any() or counts.sum() != MASS:
        raise VerifyError(f"q[{i}]", "multiples of 2**-24 adding up to 1", share.sum())
    if not share[support == draft].any():
        raise VerifyError(f"drafts[{i}]", "a token that q can draw", draft)
    return support, share


def _columns(name: str, row: Floats, vocab: int, i: int) -> NDArray[np.float64]:
    if row.ndim != 1 or row.size < vocab or row.dtype.kind != "f":
        raise VerifyError(
            f"{name}[{i}]", f"{vocab} floats at least", f"{row.dtype} {row.shape}"
        )
    return row[:vocab].astype(np.float64)
