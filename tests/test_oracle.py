"""The oracle: exact chances, and nothing of the target's is lost."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pp3shm import oracle
from pp3shm.conformance.numbers import FORMATS, conditionals_of
from pp3shm.errors import ConfigError, Mismatch
from pp3shm.oracle import Conditional

CASES = json.loads(
    (Path(__file__).parent / "vectors" / "verify_exact.json").read_text()
)["cases"]


@st.composite
def models(draw):
    """Two models over 2 to 4 tokens, with depth 1 to 3; zeros are common."""
    depth = draw(st.integers(1, 3))
    vocab = draw(st.integers(2, 4 if depth < 3 else 2))
    weights = st.lists(st.integers(0, 5), min_size=vocab, max_size=vocab).filter(any)

    def row():
        row = draw(weights)
        return [Fraction(weight, sum(row)) for weight in row]

    prefixes, found = [()], {}
    for length in range(depth + 1):
        for prefix in prefixes:
            found[prefix] = Conditional(row(), row() if length < depth else None)
        prefixes = [(*prefix, token) for prefix in prefixes for token in range(vocab)]
    return found, depth


def test_every_known_law_comes_out():
    assert CASES
    for case in CASES:
        FORMATS["verify_exact"](case, None)


@pytest.mark.parametrize("case", CASES[:3])
def test_a_law_that_is_off_by_a_little_is_noticed(case):
    tokens = next(iter(case["emitted"]))
    numerator, denominator = case["emitted"][tokens]
    emitted = case["emitted"] | {tokens: [numerator * 1000 + 1, denominator * 1000]}
    with pytest.raises(Mismatch, match="emitted"):
        FORMATS["verify_exact"](case | {"emitted": emitted}, None)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(models())
def test_nothing_is_lost_for_any_two_models(given_models):
    conditionals, depth = given_models
    law = oracle.emitted_law(conditionals, depth)
    assert sum(law.values()) == 1
    completed = oracle.completed_law(law, conditionals, depth + 1)
    assert oracle.target_law(conditionals, depth + 1) == completed


@settings(derandomize=True, deadline=None, max_examples=60)
@given(models())
def test_tokens_are_as_many_as_the_models_overlap(given_models):
    """Expected tokens: 1 plus, per depth, the chance that all drafts to it stand."""
    conditionals, depth = given_models
    law = oracle.emitted_law(conditionals, depth)

    def overlap(prefix):
        if len(prefix) == depth:
            return Fraction(1)
        p, q = conditionals[prefix]
        return 1 + sum(
            min(a, b) * overlap((*prefix, token))
            for token, (a, b) in enumerate(zip(p, q, strict=True))
        )

    mean = sum(len(tokens) * chance for tokens, chance in law.items())
    assert overlap(()) == mean
    if depth == 1:
        assert oracle.accepted_mass(conditionals[()]) == mean - 1


@pytest.mark.parametrize("case", CASES)
def test_the_drafters_law_is_a_law(case):
    law = oracle.drafted_law(conditionals_of(case), case["depth"])
    assert sum(law.values()) == 1
    assert {len(path) for path in law} == {case["depth"]}


HALF = [Fraction(1, 2)] * 2
WRONG = [Fraction(1, 2), Fraction(1, 3)]
BELOW = [Fraction(3, 2), Fraction(-1, 2)]


@pytest.mark.parametrize(
    ("conditionals", "place"),
    [
        ({}, "conditionals[]"),
        ({(): Conditional(HALF, None)}, "conditionals[]"),
        ({(): Conditional(HALF, HALF)}, "conditionals[0]"),
        ({(): Conditional(WRONG, HALF)}, "conditionals[].p"),
        ({(): Conditional(HALF, WRONG)}, "conditionals[].q"),
        ({(): Conditional(HALF, BELOW)}, "conditionals[].q"),
    ],
)
def test_models_that_are_none_are_refused(conditionals, place):
    with pytest.raises(ConfigError) as caught:
        oracle.emitted_law(conditionals, 1)
    assert caught.value.place == place
