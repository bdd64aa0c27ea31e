"""Whether what was emitted has the target's distribution, and whether one would see it.

First emitted tokens are counted by context and compared with the target's exact law
after that context by a chi-square test. A test that passes says little unless a wrong
verifier fails it: the negative control judges the very same drafts as if q were a point
mass in the ratio alone (accept with probability p(d), not p(d)/q(d); the residual as it
should be), and must be seen to fail.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pp3shm.demo.optional import require
from pp3shm.errors import ConfigError

PASS_ABOVE = 1e-3  # a right verifier is called wrong once in a thousand runs
FAIL_BELOW = 1e-6
LEAST_EXPECTED = 5.0  # in a cell, for the chi-square law to hold (Cochran 1954)
_MOST_SAMPLES = 2**40

Law = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Goodness:
    """Outcome of one chi-square test over several contexts.

    Attributes:
        samples: tokens counted.
        cells: cells compared, small ones pooled.
        degrees: degrees of freedom, cells less contexts.
        statistic: sum of (observed - expected)^2 / expected.
        p_value: how often counts of that very law would be at least as far from it.
    """

    samples: int
    cells: int
    degrees: int
    statistic: float
    p_value: float


@dataclass(frozen=True, slots=True)
class DistributionCheck:
    """The emitted tokens and the negative control, judged alike.

    Attributes:
        contexts: number of contexts counted apart.
        emitted: the test of what was emitted.
        control: the test of the negative control on the same drafts.
        needed: samples at which the control fails in 999 of 1000 runs.
    """

    contexts: int
    emitted: Goodness
    control: Goodness
    needed: int

    @property
    def emitted_passes(self) -> bool:
        """Whether nothing speaks against the emitted tokens."""
        return self.emitted.p_value > PASS_ABOVE

    @property
    def control_fails(self) -> bool:
        """Whether the same test sees through the wrong verifier."""
        return self.control.p_value < FAIL_BELOW


class FirstTokens:
    """Counts first emitted tokens by context, and draws the control's beside them."""

    def __init__(self, target: Law, draft: Law, seed: int) -> None:
        """Begin with no counts.

        Args:
            target: (G, V) the exact law of the first token after each context.
            draft: (G, V) the q its drafts are drawn from, 0 off support.
            seed: of the control's uniforms, which are its own.
        """
        self._target = target.astype(np.float64)
        self._draft = draft.astype(np.float64)
        self._rng = np.random.default_rng(seed)
        self.emitted: Counts = np.zeros(target.shape, np.int64)
        self.control: Counts = np.zeros(target.shape, np.int64)

    @cached_property
    def needed(self) -> int:
        """Samples at which the control fails in 999 of 1000 runs.

        Raises:
            ConfigError: no number of samples shows the control here.
        """
        pairs = zip(self._target, self._draft, strict=True)
        wrong = np.array([point_mass_law(p, q) for p, q in pairs])
        return samples_needed(self._target, wrong)

    def add(
        self, context: int, drafts: NDArray[np.int32], emitted: NDArray[np.int32]
    ) -> None:
        """Count some rounds of one context.

        Args:
            context: its row in the laws.
            drafts: (n,) the first drafted tokens; -1 where the round failed.
            emitted: (n,) the first emitted tokens.
        """
        uniforms = self._rng.random((2, len(drafts)))
        wrong = point_mass_ratio_only(
            self._target[context], self._draft[context], drafts, *uniforms
        )
        vocab = self._target.shape[1]
        self.emitted[context] += np.bincount(emitted, minlength=vocab)
        self.control[context] += np.bincount(wrong, minlength=vocab)

    def judge(self) -> DistributionCheck:
        """Test both counts.

        Raises:
            ConfigError: too few samples for a test.
        """
        return DistributionCheck(
            contexts=len(self._target),
            emitted=goodness(self.emitted, self._target),
            control=goodness(self.control, self._target),
            needed=self.needed,
        )


def goodness(counts: Counts, law: Law) -> Goodness:
    """Test counts against a law, context by context.

    Args:
        counts: (G, V) how often each token was seen after each context.
        law: (G, V) its probability; rows are normalised here.

    Returns:
        One test of all contexts together. A token of probability 0 that was seen
        makes the statistic infinite.

    Raises:
        ConfigError: no context has samples for two cells.
    """
    observed: list[NDArray[np.float64]] = []
    expected: list[NDArray[np.float64]] = []
    for seen, row in zip(counts, law, strict=True):
        fair = row / row.sum() * seen.sum()
        if seen[fair == 0].any():
            return Goodness(int(counts.sum()), 1, 1, float("inf"), 0.0)
        cells = pooled(fair)
        if (size := int(cells.max(initial=0))) > 0:
            observed.append(_summed(cells, seen.astype(np.float64), size + 1))
            expected.append(_summed(cells, fair, size + 1))
    if not observed:
        raise ConfigError("distribution check: samples", "more", int(counts.sum()))
    found, fair = np.concatenate(observed), np.concatenate(expected)
    # Each context's total is given: all but one of these are taken off here, the
    # remaining one by the function itself.
    test = require("scipy.stats", "demo").chisquare(found, fair, ddof=len(observed) - 1)
    return Goodness(
        samples=int(counts.sum()),
        cells=len(found),
        degrees=len(found) - len(observed),
        statistic=float(test.statistic),
        p_value=float(test.pvalue),
    )


def pooled(expected: NDArray[np.float64]) -> NDArray[np.intp]:
    """Put tokens into cells of enough expected samples, by the expectation alone.

    Args:
        expected: (V,) expected counts.

    Returns:
        (V,) cell of each token. From the most to the least expected, a cell is closed
        as soon as it holds at least five; what is left over goes to the last one.
    """
    order = np.argsort(-expected, kind="stable")
    cells = np.empty(len(expected), np.intp)
    cell, mass, closed = 0, 0.0, -1
    for token, amount in zip(order.tolist(), expected[order].tolist(), strict=True):
        cells[token] = cell
        mass += amount
        if mass >= LEAST_EXPECTED:
            closed, cell, mass = cell, cell + 1, 0.0
    return np.minimum(cells, max(closed, 0))


def samples_needed(
    law: Law, other: Law, *, level: float = FAIL_BELOW, power: float = 0.999
) -> int:
    """Samples at which counts of another law fail the test.

    Args:
        law: (G, V) the law tested against.
        other: (G, V) the law the samples truly have.
        level: p-value below which a test fails.
        power: how often it must.

    Returns:
        The least power of two that suffices, spread evenly over the contexts.

    Raises:
        ConfigError: the two laws cannot be told apart.
    """
    stats = require("scipy.stats", "demo")
    samples = 64
    while samples <= _MOST_SAMPLES:
        distance, degrees = 0.0, 0
        for p, r in zip(law, other, strict=True):
            share = samples / len(law)
            cells = pooled(p / p.sum() * share)
            size = int(cells.max()) + 1
            fair = _summed(cells, p / p.sum() * share, size)
            odd = _summed(cells, r / r.sum() * share, size)
            distance += float(np.sum((odd - fair) ** 2 / np.maximum(fair, 1e-300)))
            degrees += size - 1
        if degrees and distance > 0:
            limit = stats.chi2.isf(level, degrees)
            if stats.ncx2.sf(limit, degrees, distance) >= power:
                return samples
        samples *= 2
    raise ConfigError("distribution check: laws", "two that differ", "the same twice")


def point_mass_law(target: Law, draft: Law) -> Law:
    """Exact law of what :func:`point_mass_ratio_only` emits.

    Args:
        target: (V,) p.
        draft: (V,) q.

    Returns:
        (V,) q(x) p(x) + (1 - sum q p) r(x), with r the residual (p - q)+ normalised.
    """
    p, q = target / target.sum(), draft / draft.sum()
    accepted = q * p
    law: Law = accepted + (1 - accepted.sum()) * _residual(p, q)
    return law


def point_mass_ratio_only(
    target: Law,
    draft: Law,
    drafts: NDArray[np.int32],
    accept: NDArray[np.float64],
    emit: NDArray[np.float64],
) -> NDArray[np.intp]:
    """The wrong verifier: q as a point mass in the ratio, right in the residual.

    Args:
        target: (V,) p after one context.
        draft: (V,) q its drafts were drawn from.
        drafts: (n,) drafted tokens; -1 where there was none and p alone is drawn from.
        accept: (n,) uniforms in [0, 1) for acceptance.
        emit: (n,) uniforms in [0, 1) for what is emitted in place of a draft.

    Returns:
        (n,) first emitted tokens.
    """
    p, q = target / target.sum(), draft / draft.sum()
    failed = drafts < 0
    accepted = ~failed & (accept < p[drafts])
    instead = np.where(failed, _drawn(p, emit), _drawn(_residual(p, q), emit))
    return np.where(accepted, drafts, instead)


def _residual(p: Law, q: Law) -> Law:
    """(p - q)+ normalised, or p where it has no mass."""
    residual = np.maximum(p - q, 0)
    total = float(residual.sum())
    return residual / total if total > 0 else p


def _summed(cells: NDArray[np.intp], amounts: Law, size: int) -> Law:
    """Amounts by cell: (size,) float64."""
    return np.bincount(cells, amounts, size).astype(np.float64)


def _drawn(law: Law, uniforms: NDArray[np.float64]) -> NDArray[np.intp]:
    """Inverse CDF in ascending id; never a token of probability 0."""
    cumulative = np.cumsum(law)
    at = np.searchsorted(cumulative, uniforms * cumulative[-1], side="right")
    last = np.flatnonzero(law)[-1]  # rounding can leave the end of the sum below 1
    tokens: NDArray[np.intp] = np.minimum(at, last)
    return tokens
