"""The demo's check: it passes what is right and sees through what is wrong."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from pp3shm.demo.check import (
    FAIL_BELOW,
    LEAST_EXPECTED,
    PASS_ABOVE,
    FirstTokens,
    goodness,
    point_mass_law,
    point_mass_ratio_only,
    pooled,
    samples_needed,
)
from pp3shm.errors import ConfigError

VOCAB = 500
CONTEXTS = 6
SAMPLES = 4000  # of each context: what a few seconds of the demo give
Law = NDArray[np.float64]


def laws(seed: int) -> tuple[Law, Law]:
    """A target as uneven as language, and a draft of 32 tokens near it."""
    rng = np.random.default_rng(seed)
    target = rng.dirichlet(np.full(VOCAB, 0.05), CONTEXTS) + 1e-7
    draft = np.zeros_like(target)
    for p, q in zip(target, draft, strict=True):
        top = np.argsort(-p)[:32]
        q[top] = p[top] * rng.uniform(0.3, 2, 32)
    return (
        target / target.sum(axis=1, keepdims=True),
        draft / draft.sum(axis=1, keepdims=True),
    )


def right_verifier(
    p: Law, q: Law, drafts: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """The tokenwise ratio with the full residual."""
    residual = np.maximum(p - q, 0)
    instead = rng.choice(VOCAB, len(drafts), p=residual / residual.sum())
    return np.where(rng.random(len(drafts)) * q[drafts] < p[drafts], drafts, instead)


def counted(seed: int, samples: int = SAMPLES) -> FirstTokens:
    target, draft = laws(seed)
    rng = np.random.default_rng(seed)
    first = FirstTokens(target, draft, seed)
    for context, (p, q) in enumerate(zip(target, draft, strict=True)):
        drafts = rng.choice(VOCAB, samples, p=q)
        emitted = right_verifier(p, q, drafts, rng)
        half = samples // 2
        first.add(context, drafts[:half].astype("i4"), emitted[:half].astype("i4"))
        first.add(context, drafts[half:].astype("i4"), emitted[half:].astype("i4"))
    return first


@pytest.mark.parametrize("seed", range(10))
def test_the_right_verifier_passes_and_the_point_mass_fails(seed: int) -> None:
    check = counted(seed).judge()
    assert check.contexts == CONTEXTS
    assert check.emitted.samples == check.control.samples == CONTEXTS * SAMPLES
    assert check.emitted.p_value > PASS_ABOVE
    assert check.control.p_value < FAIL_BELOW
    assert check.emitted_passes
    assert check.control_fails


def test_p_values_of_the_true_law_are_uniform() -> None:
    """Pooling is chosen by the law alone, so that small cells skew nothing."""
    target, _ = laws(3)
    rng = np.random.default_rng(5)
    found = [
        goodness(np.array([rng.multinomial(300, p) for p in target]), target).p_value
        for _ in range(400)
    ]
    assert stats.kstest(found, "uniform").pvalue > 1e-3


def test_the_control_fails_at_the_samples_said_to_be_needed() -> None:
    target, draft = laws(4)
    wrong = np.array([point_mass_law(p, q) for p, q in zip(target, draft, strict=True)])
    needed = samples_needed(target, wrong)
    rng = np.random.default_rng(6)
    each = needed // CONTEXTS + 1
    seen = 0
    for _ in range(200):
        counts = np.array([rng.multinomial(each, r) for r in wrong])
        seen += goodness(counts, target).p_value < FAIL_BELOW
    assert seen >= 195
    assert samples_needed(target, (wrong + 9 * target) / 10) > 10 * needed


def test_two_equal_laws_need_no_number_of_samples() -> None:
    target, _ = laws(4)
    with pytest.raises(ConfigError, match="two that differ"):
        samples_needed(target, target)


@given(st.lists(st.integers(0, 40), min_size=1, max_size=60))
def test_cells_hold_enough_and_every_token_has_one(amounts: list[int]) -> None:
    expected = np.array(amounts, np.float64)
    cells = pooled(expected)
    sums = np.bincount(cells, expected)
    assert cells.min() == 0
    assert len(sums) == 1 or sums.min() >= LEAST_EXPECTED
    large = np.flatnonzero(expected >= LEAST_EXPECTED)
    assert len(np.unique(cells[large])) == len(large)


def test_the_statistic_is_pearsons_over_all_contexts() -> None:
    law = np.array([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]])
    counts = np.array([[40, 30, 30], [15, 15, 70]])
    test = goodness(counts, law)
    statistic = sum(
        (c - 100 * p) ** 2 / (100 * p)
        for p, c in zip(law.ravel(), counts.ravel(), strict=True)
    )
    assert test.statistic == pytest.approx(statistic)
    assert (test.cells, test.degrees, test.samples) == (6, 4, 200)
    assert test.p_value == pytest.approx(stats.chi2.sf(statistic, 4))


def test_a_context_without_samples_for_two_cells_is_left_out() -> None:
    law = np.array([[0.5, 0.5], [0.5, 0.5]])
    assert goodness(np.array([[20, 20], [1, 1]]), law).degrees == 1
    with pytest.raises(ConfigError, match="samples: expected more, found 2"):
        goodness(np.array([[0, 0], [1, 1]]), law)


def test_a_token_of_probability_zero_fails_whatever_the_rest() -> None:
    law = np.array([[0.5, 0.5, 0.0]])
    assert goodness(np.array([[500, 500, 0]]), law).p_value > PASS_ABOVE
    assert goodness(np.array([[500, 499, 1]]), law).p_value == 0


@given(
    st.lists(st.integers(0, 9), min_size=3, max_size=6).filter(any),
    st.lists(st.integers(0, 9), min_size=3, max_size=6).filter(any),
)
def test_the_controls_law_is_its_enumeration(ps: list[int], qs: list[int]) -> None:
    """Exactly, over every draft and both outcomes."""
    size = min(len(ps), len(qs))
    ps, qs = ps[:size], qs[:size]
    if not sum(ps) or not sum(qs):
        return
    p = [Fraction(c, sum(ps)) for c in ps]
    q = [Fraction(c, sum(qs)) for c in qs]
    residual = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
    total = sum(residual)
    instead = [r / total for r in residual] if total else p
    law = [Fraction(0)] * size
    for draft in range(size):
        law[draft] += q[draft] * p[draft]
        for token in range(size):
            law[token] += q[draft] * (1 - p[draft]) * instead[token]
    found = point_mass_law(np.array(ps, float), np.array(qs, float))
    np.testing.assert_allclose(found, [float(x) for x in law], atol=1e-12)


def test_the_control_draws_from_its_law_and_a_failed_round_from_the_target() -> None:
    target, draft = laws(8)
    p, q = target[0], draft[0]
    rng = np.random.default_rng(8)
    drafts = rng.choice(VOCAB, 20_000, p=q).astype(np.int32)
    tokens = point_mass_ratio_only(p, q, drafts, *rng.random((2, len(drafts))))
    counts = np.bincount(tokens, minlength=VOCAB)[None]
    assert goodness(counts, point_mass_law(p, q)[None]).p_value > PASS_ABOVE
    assert goodness(counts, p[None]).p_value < FAIL_BELOW
    failed = np.full(20_000, -1, np.int32)
    tokens = point_mass_ratio_only(p, q, failed, *rng.random((2, len(drafts))))
    counts = np.bincount(tokens, minlength=VOCAB)[None]
    assert goodness(counts, p[None]).p_value > PASS_ABOVE


def test_the_control_never_emits_a_token_of_probability_zero() -> None:
    p, q = np.array([0.0, 0.5, 0.5, 0.0]), np.array([0.5, 0.0, 0.0, 0.5])
    drafts = np.array([0, 3] * 3, np.int32)
    edges = np.array([0.0, 0.0, 0.5, 0.5, 1 - 2**-53, 1 - 2**-53])
    tokens = point_mass_ratio_only(p, q, drafts, np.zeros(6), edges)
    assert tokens.tolist() == [1, 1, 2, 2, 2, 2]
