"""Tests of what was emitted, and the correction for making many of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats


@dataclass(frozen=True)
class Judged:
    """One test.

    Attributes:
        engine, family, what: Which.
        vocab: Size of the vocabulary.
        rounds: How many.
        p_value: Of the test.
        adjusted: The same after Holm's correction over all tests of a run.
    """

    engine: str
    family: str
    what: str
    vocab: int
    rounds: int
    p_value: float
    adjusted: float = float("nan")


def chi_square(seen: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    """p-value that counts were drawn from p; 0 where something impossible came out.

    Tokens that are expected less than five times are put together, in the order of
    their chances.
    """
    total = int(seen.sum())
    if total == 0:
        return 1.0
    if seen[p == 0].any():
        return 0.0
    order = np.argsort(p, kind="stable")
    order = order[p[order] > 0]
    expected = p[order] / p.sum() * total
    # Ten at a time of what is expected less than five times: then each bin has five,
    # but for the last, which goes to its neighbour.
    rare = expected < 5
    bins = ((np.cumsum(expected) - expected) // 10).astype(np.int64)
    bins[~rare] = bins[rare].max(initial=-1) + 1 + np.arange((~rare).sum())
    wanted = np.bincount(bins, weights=expected)
    found = np.bincount(bins, weights=seen[order])
    last = int(bins[rare].max(initial=-1))
    if 0 <= last and wanted[last] < 5 and wanted.size > 1:
        near = last + 1 if last + 1 < wanted.size else last - 1
        wanted[near] += wanted[last]
        found[near] += found[last]
        wanted, found = np.delete(wanted, last), np.delete(found, last)
    if wanted.size < 2:
        return 1.0
    return float(stats.chisquare(found, wanted).pvalue)


def acceptance(accepted: int, rounds: int, chance: float) -> float:
    """Two-sided p-value that drafts are accepted with this chance."""
    if chance < 1e-12 or chance > 1 - 1e-12:
        return float(accepted == round(chance * rounds))
    return float(stats.binomtest(accepted, rounds, chance).pvalue)


def holm(p_values: list[float]) -> list[float]:
    """Holm's adjusted p-values, in the order given."""
    n = len(p_values)
    order = np.argsort(p_values)
    ordered = np.array(p_values)[order] * (n - np.arange(n))
    adjusted = np.empty(n)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(ordered))
    return [float(value) for value in adjusted]
