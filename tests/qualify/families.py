"""Pairs of target and proposal that are hard on a verifier, at any vocabulary."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

M = 2**24
SUPPORT = 32
VOCABS = (32, 33, 8193, 10_000, 129_280, 151_936)


@dataclass(frozen=True)
class Pair:
    """One position: what is drafted from, and what has to come out.

    Attributes:
        p: (vocab,) float64, adding up to 1: the target.
        ids: (32,) int32, ascending: the support.
        counts: (32,) int64, adding up to 2**24.
    """

    p: NDArray[np.float64]
    ids: NDArray[np.int32]
    counts: NDArray[np.int64]

    @property
    def vocab(self) -> int:
        """Size of the vocabulary."""
        return self.p.size

    @property
    def q(self) -> NDArray[np.float64]:
        """(vocab,) the proposal, 0 off the support."""
        dense = np.zeros(self.vocab)
        dense[self.ids] = self.counts / M
        return dense

    @property
    def accepted(self) -> float:
        """The chance that a draft is accepted."""
        return float(np.minimum(self.p, self.q).sum())


def counts_of(weight: NDArray[np.float64]) -> NDArray[np.int64]:
    """Counts that add up to 2**24, near the weights."""
    counts = np.floor(weight / weight.sum() * M).astype(np.int64)
    counts[counts.argmax()] += M - counts.sum()
    return counts


def _supports(g: np.random.Generator, vocab: int) -> NDArray[np.int32]:
    return np.sort(g.choice(vocab, SUPPORT, replace=False)).astype(np.int32)


def _pair(p: NDArray[np.float64], ids: NDArray[np.int32], weight: object) -> Pair:
    return Pair(p / p.sum(), ids, counts_of(np.asarray(weight, np.float64)))


def disjoint(g: np.random.Generator, vocab: int) -> Pair:
    """Nothing that is drafted is in the target: everything is rejected."""
    ids, p = _supports(g, vocab), g.random(vocab)
    weight = np.where(np.arange(SUPPORT) % 2 == 0, g.random(SUPPORT), 0)
    p[ids[weight > 0]] = 0
    return _pair(p, ids, weight)


def inside(g: np.random.Generator, vocab: int) -> Pair:
    """The target lies within the support."""
    ids, p = _supports(g, vocab), np.zeros(vocab)
    p[ids[::3]] = g.random(ids[::3].size)
    return _pair(p, ids, g.random(SUPPORT))


def outside(g: np.random.Generator, vocab: int) -> Pair:
    """Most of the target lies beside the support."""
    ids, p = _supports(g, vocab), g.random(vocab)
    p[ids] *= 0.1 * vocab / SUPPORT if vocab > 2 * SUPPORT else 0.1
    return _pair(p, ids, g.random(SUPPORT))


def near(g: np.random.Generator, vocab: int) -> Pair:
    """Target and proposal all but equal: a residual of a thousandth."""
    ids = _supports(g, vocab)
    counts = counts_of(g.dirichlet(np.ones(SUPPORT)))
    p = np.zeros(vocab)
    p[ids] = counts / M * (1 + 2e-3 * (g.random(SUPPORT) - 0.5))
    return Pair(p / p.sum(), ids, counts)


def one_hot(g: np.random.Generator, vocab: int) -> Pair:
    """A target without a choice."""
    ids, p = _supports(g, vocab), np.zeros(vocab)
    p[ids[7]] = 1
    return _pair(p, ids, g.random(SUPPORT))


def least(g: np.random.Generator, vocab: int) -> Pair:
    """31 masses of 2**-24 beside one that has all the rest; a flat target."""
    ids = _supports(g, vocab)
    counts = np.ones(SUPPORT, np.int64)
    counts[int(g.integers(SUPPORT))] = M - SUPPORT + 1
    return Pair(np.full(vocab, 1 / vocab), ids, counts)


def tails(g: np.random.Generator, vocab: int) -> Pair:
    """Half of each has no mass at all, and the rest is uneven."""
    ids = _supports(g, vocab)
    p = g.dirichlet(np.full(vocab, 0.5))
    p[g.random(vocab) < 0.5] = 0
    p[ids[0]] = 0.3
    weight = np.where(np.arange(SUPPORT) < SUPPORT // 2, g.random(SUPPORT), 0)
    return _pair(p, ids, weight)


FAMILIES: dict[str, Callable[[np.random.Generator, int], Pair]] = {
    "disjoint": disjoint,
    "inside": inside,
    "outside": outside,
    "near": near,
    "one-hot": one_hot,
    "least masses": least,
    "zero tails": tails,
}


def pair(name: str, vocab: int, seed: int) -> Pair:
    """The pair of a family; the same seed gives the same pair."""
    spread = [seed, vocab, list(FAMILIES).index(name)]
    return FAMILIES[name](np.random.default_rng(spread), vocab)
