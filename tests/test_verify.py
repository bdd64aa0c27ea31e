"""Verification of one request: what is read, what can never come out."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pp3shm.conformance.numbers import FORMATS
from pp3shm.errors import VerifyError
from pp3shm.verify.keys import VerifyKeys
from pp3shm.verify.reference import (
    inverse_cdf,
    softmax_row,
    standard,
    verify_row,
)

CASES = json.loads(
    (Path(__file__).parent / "vectors" / "verify_draws.json").read_text()
)["cases"]
M = 2**24
EPOCH, SESSION = b"e" * 16, b"s" * 16


def test_every_known_answer_comes_out():
    assert CASES
    for case in CASES:
        FORMATS["verify_draws"](case, None)


def loaded(case):
    """A vector's case as the arguments of verify_row."""
    keys = VerifyKeys.derive(
        bytes.fromhex(case["epoch"]),
        case["slot"],
        case["generation"],
        case["user_seed"],
    )
    arrays = (
        np.stack(
            [np.frombuffer(bytes.fromhex(r), "<f4") for r in case["target_probs"]]
        ),
        np.array(case["drafts"], np.int32),
        np.array(case["ids"], np.int32),
        np.array(case["counts"], np.float32) / np.float32(M),
    )
    options = {
        "accept_key": keys.accept,
        "residual_key": keys.residual,
        "round": case["round"],
        "position": case["position"],
        "sampled": case["temperature_positive"],
        "failed": case["failed"],
    }
    return arrays, options


@pytest.mark.parametrize("poison", [np.nan, np.inf, -1.0])
def test_nothing_after_the_stop_is_read(poison):
    stopped = 0
    for case in CASES:
        (p, drafts, ids, q), options = loaded(case)
        used = len(case["emitted"])
        p, drafts, ids, q = p.copy(), drafts.copy(), ids.copy(), q.copy()
        p[used:], q[used:], ids[used:], drafts[used:] = poison, poison, -1, -1
        if case["failed"] or not case["temperature_positive"]:
            q[:], ids[:] = poison, -1  # neither is q of a request that has none
        assert case["emitted"] == verify_row(p, drafts, ids, q, **options).tokens
        stopped += used <= case["depth"]
    assert stopped > 10


@pytest.mark.parametrize("padding", [np.nan, np.inf, 1e9, -1.0])
def test_padded_columns_are_never_read_and_never_come_out(padding):
    for case in CASES:
        (p, drafts, ids, q), options = loaded(case)
        wide = np.pad(p, ((0, 0), (0, 28)), constant_values=padding)
        result = verify_row(wide, drafts, ids, q, vocab=case["vocab"], **options)
        assert case["emitted"] == result.tokens


def test_a_sampled_request_without_q_is_an_error():
    (p, drafts, _, _), options = loaded(CASES[0])
    assert options["sampled"]
    with pytest.raises(VerifyError, match="q"):
        verify_row(p, drafts, None, None, **options)


def decided(p, q, draft, accept, residual=0.0):
    """One draft over a support that is the whole vocabulary."""
    ids = np.arange(len(q), dtype=np.int32)[None]
    rows = np.array([p, p], np.float64)
    return standard(
        rows.__getitem__, [draft], ids, np.array([q], np.float32),
        accept=lambda _i: accept, residual=lambda _i: residual,
    )  # fmt: skip


def test_a_draft_of_target_probability_0_is_never_accepted():
    result = decided([0, 1, 0, 0], [0.5, 0.5, 0, 0], draft=0, accept=0.0)
    assert result.tokens == [1]
    assert result.last == "correction"


def test_a_draft_no_likelier_than_in_the_target_is_always_accepted():
    result = decided([0.5, 0.5], [0.5, 0.5], draft=0, accept=1 - 2.0**-29)
    assert result.accepted == 1


def test_a_residual_without_mass_falls_to_the_target():
    """Rounding can leave p below q everywhere; u decides that the draft is rejected."""
    p = np.array([0.5, 0.25, 0.25]) * (1 - 2.0**-20)
    result = decided(p, [0.5, 0.25, 0.25], 0, accept=1 - 2.0**-29, residual=0.6)
    assert result.no_mass
    assert result.tokens == [1]


@pytest.mark.parametrize(
    ("uniform", "weight", "expected"),
    [
        (0.0, [0, 0, 2, 1], 2),
        (2 / 3, [0, 0, 2, 1], 3),
        (1 - 2.0**-53, [1, 2, 0, 0], 1),
        (1 - 2.0**-53, [5e-324, 5e-324, 0], 1),  # the product rounds up to the total
        (0.5, [5e-324, 0], 0),
        (0.25, [1, 1, 1, 1], 1),
    ],
)
def test_the_inverse_cdf_takes_the_first_that_exceeds(uniform, weight, expected):
    assert inverse_cdf(np.array(weight, np.float64), uniform) == expected


@settings(derandomize=True, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 1e-300, 1e-17, 0.1, 0.3, 1.0]), min_size=1).filter(
        any
    ),
    st.integers(0, 2**53 - 1),
)
def test_a_token_of_weight_0_never_comes_out(weight, bits):
    weight = np.array(weight)
    assert weight[inverse_cdf(weight, bits * 2.0**-53)] > 0


def test_a_tiny_temperature_is_the_argmax_and_not_a_nan():
    row = softmax_row(np.array([1.0, 3.0, -1e30]), 3, 1e-300, 0)
    assert row.tolist() == [0.0, 1.0, 0.0]


def test_keys_differ_by_everything_that_names_them():
    base = (EPOCH, 1, 2, 3)
    changed = [
        base, (SESSION, 1, 2, 3), (EPOCH, 2, 2, 3), (EPOCH, 1, 3, 3), (EPOCH, 1, 2, -3)
    ]  # fmt: skip
    keys = [key for given in changed for key in VerifyKeys.derive(*given)]
    assert len(set(keys)) == 2 * len(changed)
