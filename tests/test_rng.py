"""Draws: named by purpose, request, round and position; never twice the same."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pp3shm import rng
from pp3shm.conformance.numbers import FORMATS
from pp3shm.errors import ConfigError
from pp3shm.proposal import reference
from pp3shm.verify.keys import VerifyKeys
from pp3shm.verify.reference import verify_row

VECTORS = Path(__file__).parent / "vectors"
WORD = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("stem", ["philox", "draws"])
def test_every_known_answer_comes_out(stem):
    cases = json.loads((VECTORS / f"{stem}.json").read_text())["cases"]
    assert cases
    for case in cases:
        FORMATS[stem](case, None)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(WORD, WORD, WORD, WORD, WORD, WORD), min_size=1, max_size=9))
def test_python_numpy_and_c_draw_the_same_blocks(rows):
    table = np.array(rows, np.uint32)
    blocks = rng.philox4x32_10_array(table[:, :4], table[:, 4:])
    for row, block in zip(rows, blocks.tolist(), strict=True):
        expected = rng.philox4x32_10(row[:4], row[4:])
        assert expected == tuple(block)
        assert expected == rng.philox4x32_10_c(row[:4], row[4:])


@pytest.mark.parametrize(
    ("salt", "slot", "generation", "seed"),
    [
        (b"short", 0, 0, 0),
        (bytes(17), 0, 0, 0),
        (bytes(16), -1, 0, 0),
        (bytes(16), 2**32, 0, 0),
        (bytes(16), 0, 2**32, 0),
        (bytes(16), 0, 0, 2**63),
    ],
)
def test_what_does_not_fit_a_key_is_refused(salt, slot, generation, seed):
    with pytest.raises(ConfigError):
        rng.request_key(rng.Purpose.PROPOSAL, salt, slot, generation, seed)


@pytest.mark.parametrize("counter", [(-1, 0), (0, -1), (2**64, 0), (0, 2**64)])
def test_a_counter_beyond_64_bits_is_refused(counter):
    with pytest.raises(ConfigError):
        rng.draw24((1, 2), *counter)


def test_numpys_integers_name_the_same_decision():
    round_, position = 2**63 + 5, 2**40 + 7
    named = np.uint64(round_), np.array(position)
    assert rng.words((5, 6), round_, position) == rng.words((5, 6), *named)
    with pytest.raises(TypeError):
        rng.words((5, 6), 1.0, 2)


def test_uniforms_are_the_bits_and_stay_below_one():
    key = (7, 8)
    for position in range(200):
        bits = rng.accept_bits(key, 5, position)
        assert rng.accept_uniform(key, 5, position) * 2**29 == bits
        assert 0 <= bits < 2**29
        bits = rng.residual_bits(key, 5, position)
        assert rng.residual_uniform(key, 5, position) * 2**53 == bits
        assert 0 <= bits < 2**53
    assert (2**53 - 1) * 2.0**-53 < 1


def play(rounds, slots, keys_of):
    """Drafts and verifies for real; the next round starts where this one stopped."""
    draws = np.random.default_rng(1)
    depth, vocab = 5, 33
    position = dict.fromkeys(range(slots), 100)
    for round_ in range(1, rounds + 1):
        for slot in range(slots):
            key, verify_keys = keys_of(slot)
            logits = draws.normal(0, 1, (depth, vocab)).astype(np.float32)
            drafted = reference.chain(
                logits, None, key=key, round_=round_, position=position[slot]
            )
            weight = np.exp(draws.normal(0, 1, (depth + 1, vocab)))
            result = verify_row(
                weight / weight.sum(axis=1, keepdims=True),
                [int(shown.ids[at]) for shown, at in drafted],
                np.stack([shown.ids for shown, _ in drafted]),
                np.stack([shown.q for shown, _ in drafted]),
                accept_key=verify_keys.accept,
                residual_key=verify_keys.residual,
                round=round_,
                position=position[slot],
                failed=round_ % 7 == 0,
            )
            position[slot] += len(result.tokens)


def repeated(monkeypatch, rounds, keys_of):
    """How many (key, counter) pairs were drawn more than once."""
    seen = Counter()
    block = rng.philox4x32_10

    def recorded(counter, key):
        seen[counter, key] += 1
        return block(counter, key)

    monkeypatch.setattr(rng, "philox4x32_10", recorded)
    play(rounds, 2, keys_of)
    assert seen.total() > 8 * rounds
    return sum(count > 1 for count in seen.values())


def test_no_block_serves_two_decisions_in_a_thousand_rounds(monkeypatch):
    def keys_of(slot):
        return (
            rng.request_key(rng.Purpose.PROPOSAL, b"s" * 16, slot, 1, 0),
            VerifyKeys.derive(b"e" * 16, slot, 1, 0),
        )

    assert repeated(monkeypatch, 1000, keys_of) == 0


@pytest.mark.parametrize("shared", ["draft and accept", "accept and residual"])
def test_a_key_used_for_two_purposes_would_be_seen(monkeypatch, shared):
    def keys_of(slot):
        draft = rng.request_key(rng.Purpose.PROPOSAL, b"s" * 16, slot, 1, 0)
        keys = VerifyKeys.derive(b"s" * 16, slot, 1, 0)
        if shared == "draft and accept":
            return draft, keys._replace(accept=draft)
        return draft, keys._replace(residual=keys.accept)

    assert repeated(monkeypatch, 20, keys_of) > 0
