"""Wrong verifiers and wrong drafters, each of which the tests have to notice."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from qualify import engines
from qualify.engines import EPOCH, SESSION, Emitted, by_c, drafted, philox
from qualify.families import M, Pair, counts_of

from pp3shm.rng import Purpose, request_key
from pp3shm.verify.keys import VerifyKeys

Law = Callable[[Pair, int, int], Emitted]


def _small(seed: int = 1) -> Pair:
    """All 32 ids are the support, so that every wrong q is a valid one."""
    g = np.random.default_rng(seed)
    p = g.dirichlet(np.full(32, 0.7))
    return Pair(p, np.arange(32, dtype=np.int32), counts_of(g.dirichlet(np.ones(32))))


def _uniforms(first: int, n: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    keys = VerifyKeys.derive(EPOCH, 0, 1, 0)
    accept = (philox(keys.accept, 1, first, n)[:, 0] >> np.uint64(3)) * 2.0**-29
    words = philox(keys.residual, 1, first, n)
    bits = (words[:, 0] << np.uint64(32) | words[:, 1]) >> np.uint64(11)
    return accept, bits * 2.0**-53


def _draw(
    weight: NDArray[np.float64], uniform: NDArray[np.float64]
) -> NDArray[np.int64]:
    """A draw from each row of weights."""
    cumulative = np.cumsum(weight, axis=1)
    return (cumulative <= uniform[:, None] * cumulative[:, -1:]).sum(axis=1)


def _judged(
    pair: Pair,
    drafts: NDArray[np.int32],
    first: int,
    ratio: NDArray[np.float64],
    rest: NDArray[np.float64],
    accept: NDArray[np.float64] | None = None,
) -> Emitted:
    """A verifier with its own ratio q (n,) and its own residual weights (n, vocab)."""
    u, uniform = _uniforms(first, drafts.size)
    u = u if accept is None else accept
    taken = u * ratio < pair.p[drafts]
    token = np.where(taken, drafts, _draw(rest, uniform))
    return Emitted(token.astype(np.int64), taken, np.empty(0, np.int64))


def _rest(pair: Pair, q: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    return np.broadcast_to(np.maximum(pair.p - q, 0), (n, pair.vocab))


def point_mass_residual(pair: Pair, first: int, n: int) -> Emitted:
    """Ratio with q, residual without the rest of q."""
    drafts = drafted(pair, 0, first, n)
    rest = np.broadcast_to(pair.p, (n, pair.vocab)).copy()
    rest[np.arange(n), drafts] = 0
    return _judged(pair, drafts, first, pair.q[drafts], rest)


def argmax_draft(pair: Pair, first: int, n: int) -> Emitted:
    """The largest of q is drafted, and verified as if it had been drawn."""
    drafts = np.full(n, pair.q.argmax(), np.int32)
    return by_c(pair, drafts, 0, first)


def shared_noise(pair: Pair, first: int, n: int) -> Emitted:
    """Acceptance under the key that drew the draft."""
    key = request_key(Purpose.PROPOSAL, SESSION, 0, 1, 0)
    keys = VerifyKeys(key, VerifyKeys.derive(EPOCH, 0, 1, 0).residual)
    return by_c(pair, drafted(pair, 0, first, n), 0, first, keys=keys)


def stale_row(pair: Pair, first: int, n: int) -> Emitted:
    """The q of the round before: another distribution than was drawn from."""
    old = (counts_of(np.roll(pair.counts, 5)) / M).astype(np.float32)
    return by_c(pair, drafted(pair, 0, first, n), 0, first, q=old)


def rounded_to_bf16(pair: Pair, first: int, n: int) -> Emitted:
    """A q cut to bf16: what a cache of the model's own dtype holds."""
    bits = pair.q.astype(np.float32).view(np.uint32) & np.uint32(0xFFFF0000)
    rounded = bits.view(np.float32).astype(np.float64)
    drafts = drafted(pair, 0, first, n)
    return _judged(pair, drafts, first, rounded[drafts], _rest(pair, rounded, n))


def off_by_one_slot(pair: Pair, first: int, n: int) -> Emitted:
    """The q of the next slot's request."""
    other = (_small(2).counts / M).astype(np.float32)
    return by_c(pair, drafted(pair, 0, first, n), 0, first, q=other)


def fallback_by_token(pair: Pair, first: int, n: int) -> Emitted:
    """Verified unless a certain token was drafted: then one token of the target."""
    drafts = drafted(pair, 0, first, n)
    out = by_c(pair, drafts, 0, first)
    key = VerifyKeys.derive(EPOCH, 1, 1, 0).residual
    uniform = (philox(key, 1, first, n)[:, 0] >> np.uint64(8)) * 2.0**-24
    target = _draw(np.broadcast_to(pair.p, (n, pair.vocab)), uniform)
    fallen = drafts == int((pair.q - pair.p).argmax())
    return Emitted(np.where(fallen, target, out.first), out.accepted, out.bonus)


def always_0(pair: Pair, first: int, n: int) -> Emitted:
    """The acceptance uniform is hard-coded to 0."""
    drafts = drafted(pair, 0, first, n)
    rest = _rest(pair, pair.q, n)
    return _judged(pair, drafts, first, pair.q[drafts], rest, np.zeros(n))


def admission(_pair: Pair, first: int, n: int) -> Emitted:
    """With p = q uniform over two tokens; only a draft of token 0 is admitted.

    It gives 3/4 to token 0. Counts are of `two_tokens()`.
    """
    two = two_tokens()
    drafts = drafted(two, 0, first, n)
    uniform = _uniforms(first, n)[1]
    token = np.where(drafts == 0, 0, (uniform >= 0.5).astype(np.int64))
    return Emitted(token, drafts == 0, np.empty(0, np.int64))


def two_tokens() -> Pair:
    """Half and half, p and q."""
    counts = np.zeros(32, np.int64)
    counts[:2] = M // 2
    return Pair(
        np.array([0.5, 0.5] + [0.0] * 30), np.arange(32, dtype=np.int32), counts
    )


def just_below_a_step() -> Pair:
    """The likeliest token's q loses 2**-7 of itself when its last 16 bits go."""
    counts = counts_of(np.array([0.50389] + [0.49611 / 31] * 31))
    p = np.array([0.45] + [0.55 / 31] * 31)
    return Pair(p, np.arange(32, dtype=np.int32), counts)


def sound(pair: Pair, first: int, n: int) -> Emitted:
    """No control: the engine itself, through the same doors."""
    return engines.by_c(pair, drafted(pair, 0, first, n), 0, first)


CONTROLS: dict[str, Law] = {
    "ratio with q, residual without the rest of q": point_mass_residual,
    "argmax draft, verified with q": argmax_draft,
    "noise shared between draft and acceptance": shared_noise,
    "a stale row of q": stale_row,
    "q rounded to bf16": rounded_to_bf16,
    "q of the next slot": off_by_one_slot,
    "a fallback that depends on the drawn token": fallback_by_token,
    "the acceptance uniform fixed to 0": always_0,
    "admission of one of two tokens": admission,
}


def pair_of(name: str) -> Pair:
    """What a control is judged against."""
    if name.startswith("admission"):
        return two_tokens()
    return just_below_a_step() if "bf16" in name else _small()


def rounds_of(name: str) -> int:
    """Enough to notice it; a rounding takes more."""
    return 2_000_000 if "bf16" in name else 100_000
