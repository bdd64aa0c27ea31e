"""Profile: canonical bytes only, every field by name, nothing guessed."""

import dataclasses
import json

import pytest
import strategies as given_
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.errors import ProfileError
from pp3shm.layout.profile import (
    MOST_POSITIONS,
    NAMES,
    SEMANTIC,
    ZEROS,
    Profile,
)

OURS = Profile.sampled(vocab=129280, depth=5, max_slots=4, max_positions=32768)
GREEDY = Profile.greedy(vocab=129280, depth=5, max_slots=4, max_positions=32768)
STANDARD = "top32/tau.7/dyadic24-standard-v1"


def spelled(values):
    return json.dumps(values, sort_keys=True, separators=(",", ":")).encode("ascii")


@given_.examples(100)
@given(given_.profiles())
def test_a_profile_comes_back_from_its_canonical_bytes(profile):
    """And has the same layout id, which no other has."""
    twin = Profile.from_json(profile.canonical_json())
    assert profile == twin
    assert profile.layout_id == twin.layout_id
    assert len(profile.layout_id) == 32
    other = dataclasses.replace(profile, max_positions=5)
    assert profile.layout_id != other.layout_id


def test_the_fields_are_those_of_the_page_in_its_order():
    """Twenty-two, the derived ones last."""
    names = """wire_version sample_mode capability semantic verifier rng_abi precision
        vocab depth max_slots max_positions support temperature_milli id_map_sha256
        target_sha256 draft_sha256 markov_sha256 context_bytes step_bytes reply_bytes
        layout_bytes page_bytes"""
    assert tuple(names.split()) == NAMES == tuple(OURS.values())
    sizes = (OURS.step_bytes, OURS.reply_bytes, OURS.layout_bytes, OURS.page_bytes)
    assert sizes == (356, 5412, 5320, 65536)
    assert GREEDY.layout_bytes == 184


OTHERS = {
    "vocab": 128256,
    "depth": 4,
    "max_slots": 3,
    "max_positions": 4096,
    "id_map_sha256": "a" * 64,
    "target_sha256": "b" * 64,
    "draft_sha256": "c" * 64,
    "markov_sha256": "d" * 64,
    "context_bytes": 16,
    "semantic": STANDARD,
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_field_two_sides_may_choose_is_compared_by_name(name):
    """Field, our value, theirs."""
    theirs = dataclasses.replace(OURS, **{name: OTHERS[name]})
    with pytest.raises(ProfileError) as caught:
        OURS.expect_same(theirs)
    assert (name, getattr(OURS, name), OTHERS[name]) == (
        caught.value.field,
        caught.value.ours,
        caught.value.theirs,
    )
    OURS.expect_same(dataclasses.replace(OURS))


def test_a_greedy_peer_is_refused_and_nobody_is_downgraded():
    """The first field that differs is the mode."""
    for ours, theirs in ((OURS, GREEDY), (GREEDY, OURS)):
        with pytest.raises(ProfileError, match=r"^profile\.sample_mode: "):
            ours.expect_same(theirs)


WRONG = {
    "wire_version": [0, 2, "1", 2**70],
    "sample_mode": [1, 3, "2", -2],
    "capability": [0, 9, 24],
    "semantic": ["greedy", "top32", "", "\x1b[2J", "\u00e9" * 50],
    "verifier": ["block", "synthetic", "standard-v2"],
    "rng_abi": ["none", "philox"],
    "precision": ["fp16", "FP32"],
    "vocab": [31, 0, -1, 2**31, "129280", 10**400],
    "depth": [0, 3, 6, "5", 2**64],
    "max_slots": [0, 5, -1, 2**32],
    "max_positions": [0, -5, 2**31, MOST_POSITIONS + 1],
    "support": [0, 31, 64],
    "temperature_milli": [0, 699, 1000],
    "id_map_sha256": ["", "0" * 63, "0" * 65, "A" * 64, "g" * 64, 0],
    "target_sha256": ["x"],
    "draft_sha256": [7],
    "markov_sha256": ["\ud800" * 64],
    "context_bytes": [-1, 2**24, 2**40],
    "step_bytes": [355, 0, 2**64],
    "reply_bytes": [5411, "5412"],
    "layout_bytes": [5321],
    "page_bytes": [4096, 131072],
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for n, values in WRONG.items() for v in values], ids=repr
)
def test_a_value_v1_does_not_allow_is_refused_by_name(name, value):
    """In a peer's HELLO, and where it can be given, in the constructor."""
    with pytest.raises(ProfileError) as caught:
        Profile.from_json(spelled(OURS.values() | {name: value}))
    assert caught.value.field == name
    assert str(caught.value).isascii()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300
    if name in OTHERS:
        with pytest.raises(ProfileError, match=rf"^profile\.{name}: .*allowed"):
            dataclasses.replace(OURS, **{name: value})


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_field_and_a_boolean_or_float_are_refused_by_name(name):
    """True is not 1, 1.0 is not 1."""
    values = OURS.values()
    without = {key: value for key, value in values.items() if key != name}
    for changed in (without, *(values | {name: v} for v in (True, None, [], {}))):
        with pytest.raises(ProfileError) as caught:
            Profile.from_json(spelled(changed))
        assert caught.value.field == name
    with pytest.raises(ProfileError):
        Profile.from_json(spelled(values | {name: 1.0}))


GOOD = OURS.canonical_json()
MALFORMED = {
    "empty": b"",
    "spaced": GOOD.replace(b",", b", ", 1),
    "trailing space": GOOD + b" ",
    "leading space": b" " + GOOD,
    "two documents": GOOD + GOOD,
    "byte order mark": b"\xef\xbb\xbf" + GOOD,
    "UTF-16": GOOD.decode().encode("utf-16"),
    "not ASCII": GOOD.replace(b"standard-v1", "standard-v\u00b9".encode()),
    "no UTF-8": GOOD.replace(b"standard-v1", b"standard-v\xff"),
    "escaped ASCII": GOOD.replace(b"fp32", b"\\u0066p32"),
    "escaped key": GOOD.replace(b'"depth"', b'"\\u0064epth"'),
    "not sorted": spelled({}) [:1] + b'"wire_version":1,'
    + GOOD.replace(b',"wire_version":1', b"")[1:],
    "repeated": GOOD.replace(b'"depth":5', b'"depth":5,"depth":5'),
    "repeated, another value first": GOOD.replace(b'"depth":5', b'"depth":4,"depth":5'),
    "unknown": spelled(OURS.values() | {"zebra": 1}),
    "unknown of no length": spelled(OURS.values() | {"": 1}),
    "float": GOOD.replace(b'"depth":5', b'"depth":5.0'),
    "exponent": GOOD.replace(b'"depth":5', b'"depth":5e0'),
    "minus zero": GOOD.replace(b'"context_bytes":0', b'"context_bytes":-0'),
    "leading zero": GOOD.replace(b'"depth":5', b'"depth":05'),
    "NaN": GOOD.replace(b'"depth":5', b'"depth":NaN'),
    "Infinity": GOOD.replace(b'"depth":5', b'"depth":-Infinity'),
    "nested": GOOD.replace(b'"depth":5', b'"depth":{"depth":5}'),
    "a list": b"[" + GOOD + b"]",
    "a number": b"5",
    "a string": b'"x"',
    "null": b"null",
    "cut": GOOD[:-1],
    "deep lists": b"[" * 8000,
    "deep objects": b'{"a":' * 1600,
    "deep and closed": b"[" * 4000 + b"]" * 4000,
    "huge integer": GOOD.replace(b'"depth":5', b'"depth":' + b"9" * 7000),
    "integer of 4000 digits": GOOD.replace(b'"depth":5', b'"depth":' + b"9" * 4000),
    "too long": GOOD + b" " * 8192,
    "NUL": GOOD.replace(b"fp32", b"fp32\0"),
    "lone surrogate": GOOD.replace(b"fp32", b"\\ud800"),
}  # fmt: skip


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_bytes_that_are_not_the_canonical_form_are_refused(data):
    """One short printable line, and no error of the parser itself."""
    with pytest.raises(ProfileError) as caught:
        Profile.from_json(data)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


@given_.examples(400)
@given(st.data())
def test_one_changed_byte_of_a_hello_is_refused_or_another_profile(data):
    """What is accepted spells itself."""
    raw = bytearray(GOOD)
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        profile = Profile.from_json(bytes(raw))
    except ProfileError:
        return
    assert bytes(raw) == profile.canonical_json()


@given_.examples(300)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode)))
def test_noise_is_never_a_profile(data):
    """Nor any error but ProfileError."""
    with pytest.raises(ProfileError):
        Profile.from_json(data)


def test_context_bytes_are_bounded_by_the_largest_step():
    """16 MiB a frame, whatever the number of slots; the error says how many fit."""
    with pytest.raises(ProfileError, match=r"context_bytes.*at most (\d+)") as caught:
        given_.make_profile(4, context=2**23)
    most = int(caught.value.theirs.split()[-1].rstrip(")"))
    assert given_.make_profile(4, context=most).step_bytes <= 2**24
    with pytest.raises(ProfileError):
        given_.make_profile(4, context=most + 1)


def test_the_semantic_names_the_rule():
    """What becomes of the rest of the mass; the greedy mode has none."""
    assert OURS.semantic == SEMANTIC
    assert OURS.rule == "floor-first"
    assert dataclasses.replace(OURS, semantic=STANDARD).rule == "largest-remainder"
    assert GREEDY.rule == ""
    assert (GREEDY.rng_abi, GREEDY.support, GREEDY.temperature_milli) == ("none", 0, 0)
    assert GREEDY.target_sha256 == ZEROS
