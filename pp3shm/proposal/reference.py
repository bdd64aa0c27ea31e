"""The proposal of one position, to be read beside section 8 of the wire page.

The C core (``draft.c``) does the same faster and must agree to the bit. What could
make them differ, and why it does not:

- ``exp`` is the C library's in both: ``math.exp`` here, ``exp`` there. NumPy's own
  vectorised one may differ from it in the last bit, so it is not used.
- The sum runs over the support in ascending id, one addition after the other.
- A bias is added in FP32, once, before anything else looks at the logits; see
  :func:`biased` and :func:`low_rank_bias` for the order.
- The build forbids the compiler to contract a product and a sum into one rounding.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from pp3shm.errors import ProposalError
from pp3shm.rng import Key, draw24

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

MASS = 2**24
SUPPORT = 32
TAU_MILLI = 700

Rule = Literal["floor-first", "largest-remainder"]


class Categorical(NamedTuple):
    """An exact distribution over a small support.

    Attributes:
        ids: (k,) int32, strictly ascending.
        counts: (k,) int64, ``q * 2**24``; they add up to exactly 2**24.
    """

    ids: NDArray[np.int32]
    counts: NDArray[np.int64]

    @property
    def q(self) -> NDArray[np.float32]:
        """(k,) float32 probabilities; exact, for a count has at most 24 bits."""
        return self.counts.astype(np.float32) * np.float32(1 / MASS)


def place_of(*indices: int) -> str:
    """``logits[2, 0, 511]``: how errors name a row, or an entry, of the logits."""
    return f"logits{list(indices)}" if indices else "logits"


def check_logits(logits: NDArray[np.float32], where: tuple[int, ...] = ()) -> None:
    """Refuse what no proposal can be made from.

    Args:
        logits: (vocab,) float32, bias included.
        where: indices of the row, for errors.

    Raises:
        ProposalError: a NaN or +inf (the first by id is named), or nothing finite.
    """
    wrong = np.flatnonzero(np.isnan(logits) | (logits == np.inf))
    if wrong.size:
        at = int(wrong[0])
        raise ProposalError(
            place_of(*where, at), "a number below +inf", float(logits[at])
        )
    if not np.isfinite(logits).any():
        raise ProposalError(place_of(*where), "a finite entry", "only -inf")


def top(logits: NDArray[np.float32], k: int = SUPPORT) -> NDArray[np.int32]:
    """The support: the k largest logits, ties to the lower id.

    Args:
        logits: (vocab,) float32 without NaN; -inf marks a masked token.
        k: size of the support, at most vocab.

    Returns:
        (k,) int32, strictly ascending. Where fewer than k logits are finite, the
        lowest of the masked ids complete it (to -inf they are all tied).
    """
    order = np.argsort(-logits, kind="stable")  # -0.0 == 0.0 here as well
    return np.sort(order[:k]).astype(np.int32)


def allocate(
    values: NDArray[np.float32],
    tau_milli: int = TAU_MILLI,
    rule: Rule = "floor-first",
    where: tuple[int, ...] = (),
) -> NDArray[np.int64]:
    """Whole counts of 2**-24 for the logits of a support.

    Args:
        values: (k,) float32 logits of the support in ascending id, one finite at least.
        tau_milli: temperature in thousandths.
        rule: who gets what rounding down leaves over.
        where: indices of the row, for errors.

    Returns:
        (k,) int64, adding up to 2**24. A masked token never gets any: no more is left
        over than there are shares with a fraction.

    Raises:
        ProposalError: what is left over is not in ``[0, 2**24)``.
    """
    tau = tau_milli / 1000
    peak = float(values.max())
    weights = [math.exp((float(z) - peak) / tau) for z in values]
    total = 0.0
    for weight in weights:
        total += weight
    shares = [weight / total * MASS for weight in weights]
    counts = [math.floor(share) for share in shares]
    rest = MASS - sum(counts)
    if not 0 <= rest < MASS:
        raise ProposalError(place_of(*where), f"a rest in [0, {MASS})", rest)
    if rule == "floor-first":
        counts[int(values.argmax())] += rest
    else:
        fractions = [share - count for share, count in zip(shares, counts, strict=True)]
        order = sorted(range(len(counts)), key=lambda i: (-fractions[i], i))
        for i in order[:rest]:
            counts[i] += 1
    return np.array(counts, dtype=np.int64)


def categorical(
    logits: NDArray[np.float32],
    tau_milli: int = TAU_MILLI,
    rule: Rule = "floor-first",
    k: int = SUPPORT,
    where: tuple[int, ...] = (),
) -> Categorical:
    """The distribution proposed for one position.

    Args:
        logits: (vocab,) float32, bias included; vocab at least k.
        tau_milli: temperature in thousandths.
        rule: ``floor-first``, or ``largest-remainder``.
        k: size of the support.
        where: indices of the row, for errors.

    Returns:
        Support and counts.

    Raises:
        ProposalError: the logits cannot be used.
    """
    check_logits(logits, where)
    ids = top(logits, k)
    return Categorical(ids, allocate(logits[ids], tau_milli, rule, where))


def pick(counts: NDArray[np.int64], draw24: int) -> int:
    """Where a draw falls.

    Args:
        counts: (k,) int64 in ascending id.
        draw24: integer in ``[0, 2**24)``.

    Returns:
        Index of the first entry whose cumulative count exceeds ``draw24``.
    """
    return int(np.searchsorted(np.cumsum(counts), draw24, side="right"))


def biased(
    logits: NDArray[np.float32], bias: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Logits with the bias of the previous token: one FP32 addition per entry.

    Whatever leaves the range of FP32 becomes an infinity or a NaN and is refused by
    :func:`check_logits` as that.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return logits + bias


def low_rank_bias(
    left: NDArray[np.float32], right: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The row ``left @ right`` in the order the C core adds it.

    Args:
        left: (rank,) float32, the previous token's row of U.
        right: (rank, vocab) float32, V.

    Returns:
        (vocab,) float32: ``left[0] * right[0]``, then plus ``left[r] * right[r]`` for
        r = 1, 2, ..., each product and each sum rounded to FP32. BLAS promises no
        order, hence no ``@``.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # refused later, as above
        total: NDArray[np.float32] = left[0] * right[0]
        for factor, row in zip(left[1:], right[1:], strict=True):
            total = total + factor * row
    return total


def propose(
    logits: NDArray[np.float32],
    draw24: int,
    *,
    tau_milli: int = TAU_MILLI,
    rule: Rule = "floor-first",
    k: int = SUPPORT,
    where: tuple[int, ...] = (),
) -> tuple[Categorical, int]:
    """The distribution of one position and the draw from it.

    Args:
        logits: (vocab,) float32, bias included.
        draw24: integer in ``[0, 2**24)``.
        tau_milli: temperature in thousandths.
        rule: who gets what rounding down leaves over.
        k: size of the support.
        where: indices of the row, for errors.

    Returns:
        The distribution, and the index in its support of the token drawn.

    Raises:
        ProposalError: the logits cannot be used.
    """
    shown = categorical(logits, tau_milli, rule, k, where)
    return shown, pick(shown.counts, draw24)


def chain(
    logits: NDArray[np.float32],
    bias: Callable[[int], NDArray[np.float32]] | None,
    *,
    key: Key,
    round_: int,
    position: int,
    previous: int | None = None,
    tau_milli: int = TAU_MILLI,
    rule: Rule = "floor-first",
    k: int = SUPPORT,
    where: tuple[int, ...] = (),
) -> list[tuple[Categorical, int]]:
    """One request's chain: each position is biased by the token drawn before it.

    Args:
        logits: (depth, vocab) float32, without bias.
        bias: gives a token's row of (vocab,) float32; None: no bias anywhere.
        key: the request's key for proposals.
        round_: u64.
        position: of the first drafted token; draft i is drawn at ``position + i``.
        previous: the last committed token, whose bias position 0 gets; None: none.
        tau_milli: temperature in thousandths.
        rule: who gets what rounding down leaves over.
        k: size of the support.
        where: index of the request, for errors.

    Returns:
        Per depth what :func:`propose` returns.

    Raises:
        ProposalError: the logits of some depth cannot be used.
    """
    drafted: list[tuple[Categorical, int]] = []
    for depth, base in enumerate(logits):
        row = base if bias is None or previous is None else biased(base, bias(previous))
        draw = draw24(key, round_, position + depth)
        shown, at = propose(
            row, draw, tau_milli=tau_milli, rule=rule, k=k, where=(*where, depth)
        )
        previous = int(shown.ids[at])
        drafted.append((shown, at))
    return drafted
