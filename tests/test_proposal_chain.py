"""Chains: each position is biased by the token drawn before it."""

import numpy as np
import pytest

from pp3shm._core import lib
from pp3shm.errors import ConfigError, ProposalError
from pp3shm.proposal import reference
from pp3shm.proposal.markov import Markov
from pp3shm.proposal.proposal import propose_chain

N, DEPTH = 3, 5
KEYS = [(11, 12), (21, 22), (31, 32)]
POSITIONS = [100, 2**40, 7]


def low_rank(g, vocab):
    return Markov.low_rank(
        g.normal(0, 1, (vocab, 23)).astype(np.float32),
        g.normal(0, 1, (23, vocab)).astype(np.float32),
    )


def function(g, vocab):
    left = g.normal(0, 1, vocab).astype(np.float32)
    return Markov.function(lambda token: left * left[token])


FORMS = {
    "none": lambda _g, _vocab: None,
    "table": lambda g, v: Markov.table(g.normal(0, 2, (v, v)).astype(np.float32)),
    "low rank": low_rank,
    "function": function,
}


def draft(logits, markov, **options):
    given = {"keys": KEYS, "round": 9, "positions": POSITIONS} | options
    return propose_chain(logits, markov=markov, **given)


def logits_of(g, vocab):
    return g.normal(0, 2, (N, DEPTH, vocab)).astype(np.float32)


@pytest.mark.parametrize("previous", [None, [None, 5, 31]], ids=["none", "some"])
@pytest.mark.parametrize("vocab", [32, 111, 1300])
@pytest.mark.parametrize("path", [0, 1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_drafts_what_the_reference_drafts(form, path, vocab, previous):
    g = np.random.default_rng(vocab)
    markov, logits = FORMS[form](g, vocab), logits_of(g, vocab)
    if lib.pp3_scan_force(path):
        pytest.skip("this build or CPU lacks it")
    try:
        out = draft(logits, markov, previous=previous)
    finally:
        lib.pp3_scan_force(-1)
    assert out.errors == (None,) * N
    for row in range(N):
        expected = reference.chain(
            logits[row],
            None if markov is None else markov.row,
            key=KEYS[row],
            round_=9,
            position=POSITIONS[row],
            previous=previous and previous[row],
        )
        for i, (shown, at) in enumerate(expected):
            assert shown.ids.tolist() == out.ids[row, i].tolist()
            assert shown.q.tolist() == out.q[row, i].tolist()
            assert shown.ids[at] == out.tokens[row, i]
            assert shown.q[at] == out.confidence[row, i]


def test_the_bias_of_the_drawn_token_steers_the_next():
    """A table that allows t -> t + 1 alone makes the chain count up."""
    vocab = 40
    table = np.full((vocab, vocab), -np.inf, np.float32)
    table[np.arange(vocab), (np.arange(vocab) + 1) % vocab] = 0
    out = draft(np.zeros((N, DEPTH, vocab), np.float32), Markov.table(table),
                previous=[3, 38, None])  # fmt: skip
    assert out.tokens[0].tolist() == [4, 5, 6, 7, 8]
    assert out.tokens[1].tolist() == [39, 0, 1, 2, 3]
    first = int(out.tokens[2, 0])  # not biased
    assert out.tokens[2].tolist() == [(first + i) % vocab for i in range(DEPTH)]


@pytest.mark.parametrize("form", FORMS)
def test_requests_are_drafted_as_if_alone(form):
    g = np.random.default_rng(1)
    markov, logits = FORMS[form](g, 64), logits_of(g, 64)
    together = draft(logits, markov, previous=[1, 2, 3])
    for row in range(N):
        one = slice(row, row + 1)
        alone = draft(
            logits[one],
            markov,
            keys=KEYS[one],
            positions=POSITIONS[one],
            previous=[row + 1],
        )
        for name in ("ids", "q", "tokens", "confidence"):
            expected, found = getattr(alone, name)[0], getattr(together, name)[row]
            assert expected.tobytes() == found.tobytes()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("depth", [0, 2, 4])
def test_a_bad_row_fails_its_request_alone(form, bad, depth):
    g = np.random.default_rng(2)
    markov, logits = FORMS[form](g, 64), logits_of(g, 64)
    good = draft(logits, markov)
    if bad == -np.inf:
        logits[1, depth] = bad
        place = f"logits[1, {depth}]"
    else:
        logits[1, depth, 33:] = bad
        place = f"logits[1, {depth}, 33]"
    out = draft(logits, markov, on_error="report")
    assert [error is None for error in out.errors] == [True, False, True]
    assert out.errors[1].place == place
    for row in (0, 2):
        assert good.q[row].tobytes() == out.q[row].tobytes()
        assert good.tokens[row].tolist() == out.tokens[row].tolist()
    assert out.tokens[1].tolist() == [-1] * DEPTH
    assert out.ids[1].tolist() == [list(range(32))] * DEPTH
    assert not out.q[1].any()
    assert not out.confidence[1].any()
    with pytest.raises(ProposalError) as caught:
        draft(logits, markov)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"keys": KEYS[:2]}, "keys"),
        ({"positions": POSITIONS[:2]}, "positions"),
        ({"positions": [0, 0, 2**64 - DEPTH + 1]}, "position"),
        ({"previous": [1]}, "previous"),
        ({"previous": [1, -1, 2]}, "previous"),
        ({"previous": [1, 64, 2]}, "previous"),
        ({"round": 2**64}, "round"),
        ({"markov": Markov.table(np.zeros((63, 63), np.float32))}, "markov.vocab"),
        ({"k": 65}, "k"),
        ({"tau_milli": 2**32}, "tau_milli"),
    ],
)
def test_a_bad_argument_is_named(change, place):
    given = {"keys": KEYS, "round": 1, "positions": POSITIONS} | change
    with pytest.raises(ConfigError) as caught:
        propose_chain(np.zeros((N, DEPTH, 64), np.float32), **given)
    assert caught.value.place == place


def test_numpys_integers_are_taken_as_numbers():
    g = np.random.default_rng(6)
    logits, markov = logits_of(g, 64), FORMS["table"](g, 64)
    expected = draft(logits, markov, previous=[1, 2, 3])
    found = draft(
        logits, markov, keys=np.array(KEYS, np.uint32), round=np.uint64(9),
        positions=np.array(POSITIONS, np.uint64), previous=np.array([1, 2, 3]),
    )  # fmt: skip
    assert expected.tokens.tolist() == found.tokens.tolist()


def test_the_last_position_of_all_can_be_drafted():
    last = [2**64 - DEPTH] * N
    out = draft(np.zeros((N, DEPTH, 64), np.float32), None, positions=last)
    expected = reference.chain(
        np.zeros((DEPTH, 64), np.float32), None, key=KEYS[0], round_=9, position=last[0]
    )
    assert [int(s.ids[at]) for s, at in expected] == out.tokens[0].tolist()


@pytest.mark.parametrize(
    "row", [np.zeros(63, np.float32), np.zeros(64), np.zeros((1, 64), np.float32)]
)
def test_a_function_that_gives_another_row_is_refused(row):
    with pytest.raises(ConfigError, match="markov"):
        draft(np.zeros((N, DEPTH, 64), np.float32), Markov.function(lambda _t: row))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Markov.table(np.zeros((3, 4), np.float32)),
        lambda: Markov.table(np.zeros((4, 4))),
        lambda: Markov.low_rank(
            np.zeros((4, 2), np.float32), np.zeros((3, 4), np.float32)
        ),
        lambda: Markov.low_rank(np.zeros((4, 2), np.float32), np.zeros((2, 4))),
        lambda: Markov.low_rank(
            np.zeros((4, 0), np.float32), np.zeros((0, 4), np.float32)
        ),
    ],
)
def test_a_head_of_another_shape_or_type_is_refused(make):
    with pytest.raises(ConfigError, match="markov"):
        make()


def test_low_rank_sums_round_to_fp32_in_ascending_rank():
    """In any other order, or with fused products, this sum is another number."""
    left = np.array([1.0, 1.0, -1.0], np.float32)
    right = np.array([[1.0], [2.0**24], [2.0**24]], np.float32)
    assert reference.low_rank_bias(left, right).tolist() == [0.0]
    assert reference.low_rank_bias(left[::-1], right[::-1]).tolist() == [1.0]
