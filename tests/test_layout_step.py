"""STEP: round trips, and what section 4 refuses whole, by the reference and by C."""

import random

import pytest
import strategies as given_
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.errors import FrameError
from pp3shm.layout.core import Core
from pp3shm.layout.frames import (
    CRC_BYTES,
    Kind,
    body_lengths_ok,
    decode_step,
    encode_step,
)


@given_.examples(150)
@given(st.data())
def test_a_step_comes_back_as_it_was_sent(data):
    """Any shape; C finds the same length, also with bytes of the capacity after it."""
    profile = data.draw(given_.profiles())
    step = data.draw(given_.steps(profile))
    body = encode_step(profile, step)
    assert step == decode_step(profile, body)
    assert len(body) == Core(profile).check_step(body)
    assert len(body) == Core(profile).check_step(body + b"\xff" * 40)
    assert body_lengths_ok(Kind.STEP, len(body) + CRC_BYTES, profile)


@given_.examples(300)
@given(st.data(), given_.seeds())
def test_a_changed_step_is_refused_alike_by_the_reference_and_by_c(data, seed):
    """Boundary values in every field; what both take, they encode to the same bytes."""
    profile = data.draw(given_.profiles())
    good = encode_step(profile, data.draw(given_.steps(profile)))
    rng, core = random.Random(seed), Core(profile)
    for _ in range(30):
        body = given_.mutate_step(rng, profile, good)
        try:
            size = core.check_step(body)
        except FrameError:
            with pytest.raises(FrameError):
                decode_step(profile, body)
            continue
        step = decode_step(profile, body[:size])
        if profile.is_sampled:
            assert body[:size] == encode_step(profile, step)
        if size < len(body):
            with pytest.raises(FrameError, match=r"^step\.bytes"):
                decode_step(profile, body)


STEP_FAULTS = {
    "n": (8, 5),
    "n of none": (8, 0),
    "depth": (12, 4),
    "flags": (16, 0),
    "zero": (20, 1),
    "draw.sampled": (24 + 8, 2),
    "draw.zero": (24 + 12, 1),
    "slot": (56, 4),
    "slot again": (56, 1),
    "count": (56 + 24, 7),
    "context_bytes": (56 + 28, 4),
    "committed": (120, 111),
    "committed negative": (120, 2**32 - 2),
    "committed after count": (120 + 8, 0),
}


@pytest.mark.parametrize("name", STEP_FAULTS)
def test_what_section_4_refuses_whole_is_refused_by_name(name):
    """Each of the whole-refusals, by the reference with its place, and by C."""
    profile = given_.make_profile(vocab=111, context=3)
    body = bytearray(encode_step(profile, given_.step_of(profile, 2)))
    at, value = STEP_FAULTS[name]
    body[at : at + 4] = value.to_bytes(4, "little")
    with pytest.raises(FrameError) as caught:
        decode_step(profile, bytes(body))
    assert name.split()[0].replace("draw", "step.draw") in caught.value.place
    with pytest.raises(FrameError):
        Core(profile).check_step(bytes(body))


def test_c_reads_no_step_beyond_its_capacity():
    """Every shorter capacity is refused."""
    profile = given_.make_profile(vocab=111, context=3)
    body = encode_step(profile, given_.step_of(profile, 2))
    for size in range(len(body)):
        with pytest.raises(FrameError):
            Core(profile).check_step(body[:size])


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"slot": 4}, r"step\.rows\[0\]\.slot"),
        ({"slot": -1}, r"step\.rows\[0\]\.slot"),
        ({"generation": 2**32}, r"step\.row"),
        ({"position": -1}, r"step\.row"),
        ({"committed": (0,) * 7}, r"step\.rows\[0\]\.count"),
        ({"committed": (111,)}, r"step\.committed\[0, 0\]"),
        ({"context": b""}, r"step\.rows\[0\]\.context_bytes"),
        ({"user_seed": 2**63}, r"step\.draw"),
    ],
)
def test_a_step_the_receiver_would_refuse_is_not_sent(change, place):
    """The sender's error names the same place."""
    profile = given_.make_profile(vocab=111, context=3)
    with pytest.raises(FrameError, match=f"^{place}"):
        encode_step(profile, given_.step_of(profile, **change))


def test_a_greedy_session_has_no_row_of_positive_temperature():
    """Nor does its STEP say so: the sampled records are not there."""
    profile = given_.make_profile(sampled=False)
    with pytest.raises(FrameError, match="T = 0"):
        encode_step(profile, given_.step_of(profile, sampled=True))
    seeded = decode_step(
        profile, encode_step(profile, given_.step_of(profile, user_seed=4))
    )
    assert seeded.rows[0].user_seed == 0
