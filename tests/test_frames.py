"""Frames and bodies: byte counts, round trips, what a changed byte or field does."""

import random
import zlib

import numpy as np
import pytest
import strategies as given_
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.errors import FrameError
from pp3shm.layout.core import Core
from pp3shm.layout.frames import (
    CRC_BYTES,
    FLAG_SAMPLED,
    HEADER_BYTES,
    NO_ROUND,
    ErrorBody,
    Kind,
    Reset,
    Step,
    StepRow,
    body_bounds,
    body_lengths_ok,
    decode_error,
    decode_header,
    decode_reply,
    decode_reset,
    decode_step,
    encode_error,
    encode_frame,
    encode_reply,
    encode_reset,
    encode_step,
    open_body,
)
from pp3shm.layout.tables import ENDPOINT, FRAME

SESSION = given_.SESSION
U32 = st.integers(0, 2**32 - 1)


def step_of(profile, n=1, **changes):
    row = {
        "generation": 1,
        "position": 2,
        "digest": 3,
        "committed": (1, 2),
        "context": bytes(profile.context_bytes),
    } | changes
    rows = tuple(StepRow(**({"slot": slot} | row)) for slot in range(n))
    return Step(9, rows)


@pytest.mark.parametrize(("slots", "size"), [(1, 1416), (4, 5412)])
def test_a_sampled_reply_frame_of_depth_5_has_the_page_s_byte_count(slots, size):
    """1416 bytes for B1, 5412 for B4."""
    profile = given_.make_profile(slots, 5)
    reply = given_.make_reply(profile, step_of(profile, slots), seed=1)
    assert size == len(given_.reply_frame(profile, reply)) == profile.reply_bytes


def test_a_header_has_40_bytes_and_an_endpoint_body_52():
    """The two records nobody else's size follows from."""
    assert HEADER_BYTES == FRAME.size == 40
    assert ENDPOINT.size == 52


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


@given_.examples(150)
@given(given_.profiles(), st.data(), given_.seeds())
def test_a_reply_comes_back_as_it_was_sent(profile, data, seed):
    """All seven arrays, bit by bit."""
    step = data.draw(given_.steps(profile))
    body = encode_reply(profile, given_.make_reply(profile, step, seed))
    assert body == encode_reply(profile, decode_reply(profile, body))
    assert body_lengths_ok(Kind.REPLY, len(body) + CRC_BYTES, profile)


@given_.examples(100)
@given(st.lists(st.integers(0, 110), max_size=40), st.integers(0, 3), U32)
def test_a_reset_comes_back_as_it_was_sent(prefix, slot, generation):
    """The empty prefix too: a new request."""
    profile = given_.make_profile(vocab=111)
    sent = Reset(slot, generation, np.array(prefix, np.int32))
    body = encode_reset(profile, sent)
    told = decode_reset(profile, body)
    assert (slot, generation, prefix) == (
        told.slot,
        told.generation,
        told.prefix.tolist(),
    )
    assert body_lengths_ok(Kind.RESET, len(body) + CRC_BYTES, profile)


@given_.examples(100)
@given(st.integers(0, 8), st.text(max_size=300), given_.u64())
def test_an_error_comes_back_as_it_was_sent(code, text, round_):
    """Any text of Unicode, also beyond what fits: that is cut between characters."""
    told = decode_error(encode_error(ErrorBody(code, text, round_)))
    assert (code, round_) == (told.code, told.round)
    assert text.startswith(told.text)
    assert told.text == text or len(told.text.encode()) > 1020


def test_an_error_text_is_cut_at_1024_bytes_between_two_characters():
    """Its length must not keep the end of a session from the peer."""
    body = encode_error(ErrorBody(5, "a" + "\u20ac" * 500))
    assert decode_error(body).text == "a" + "\u20ac" * 341
    assert decode_error(body).round == NO_ROUND
    assert decode_error(encode_error(ErrorBody(5, "\ud800"))).text == "\\ud800"


def frames_of_every_kind():
    profile = given_.make_profile(vocab=111, context=3)
    step = encode_step(profile, step_of(profile, 2))
    reply = encode_reply(profile, given_.make_reply(profile, step_of(profile, 2), 3))
    reset = encode_reset(profile, Reset(0, 1, np.arange(5, dtype=np.int32)))
    error = encode_error(ErrorBody(5, "no", 4))
    bodies = {
        Kind.HELLO: profile.canonical_json(),
        Kind.HELLO_ACK: profile.canonical_json(),
        Kind.STEP: step,
        Kind.REPLY: reply,
        Kind.RESET: reset,
        Kind.ERROR: error,
        Kind.BYE: b"",
    }
    flagged = {Kind.STEP: FLAG_SAMPLED, Kind.REPLY: FLAG_SAMPLED}
    return profile, {
        kind: encode_frame(kind, SESSION, 5, body, flagged.get(kind, 0))
        for kind, body in bodies.items()
    }


def read_frame(frame, profile):
    """As a receiver reads it: header, length, CRC."""
    header = decode_header(frame[:HEADER_BYTES])
    if not body_lengths_ok(header.kind, header.body_bytes, profile):
        raise FrameError("frame.body_bytes", "a length of its kind", header.body_bytes)
    if header.body_bytes != len(frame) - HEADER_BYTES:
        raise FrameError("frame.bytes", header.body_bytes, len(frame) - HEADER_BYTES)
    return header, open_body(frame[HEADER_BYTES:])


@pytest.mark.parametrize("kind", list(frames_of_every_kind()[1]), ids=lambda k: k.name)
def test_one_changed_byte_is_refused_or_said_by_the_header(kind):
    """In the body: ``crc``. In the header: refused, or another header."""
    profile, frames = frames_of_every_kind()
    frame = frames[kind]
    header, _ = read_frame(frame, profile)
    assert (kind, 5, SESSION) == (header.kind, header.sequence, header.session)
    for at in range(len(frame)):
        bad = bytearray(frame)
        bad[at] ^= 1 << (at % 8)
        if at >= HEADER_BYTES:
            with pytest.raises(FrameError, match=r"^crc: "):
                read_frame(bytes(bad), profile)
        elif refusal(bytes(bad), profile) is None:
            assert header != read_frame(bytes(bad), profile)[0]
        else:
            assert refusal(bytes(bad), profile).startswith("frame.")


def refusal(frame, profile):
    """The place a receiver's error names, or None."""
    try:
        read_frame(frame, profile)
    except FrameError as error:
        return error.place
    return None


@pytest.mark.parametrize("name", ["magic", "version", "kind", "flags"])
def test_a_header_field_of_another_wire_is_refused_by_name(name):
    """Every other flag bit as well, and the sampled bit on a kind that has none."""
    frame = bytearray(frames_of_every_kind()[1][Kind.BYE])
    for value in (0xFF, 0x02 if name == "flags" else 0x09):
        bad = frame.copy()
        bad[FRAME.offset[name]] = value
        with pytest.raises(FrameError, match=rf"^frame\.{name}: "):
            decode_header(bytes(bad))


def test_a_frame_too_short_for_its_header_is_refused():
    """Every length below 40."""
    frame = frames_of_every_kind()[1][Kind.BYE]
    for size in range(HEADER_BYTES):
        with pytest.raises(FrameError, match=r"^frame\.bytes: .*at least 40"):
            decode_header(frame[:size])


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
    profile, frames = frames_of_every_kind()
    body = bytearray(open_body(frames[Kind.STEP][HEADER_BYTES:]))
    at, value = STEP_FAULTS[name]
    body[at : at + 4] = value.to_bytes(4, "little")
    with pytest.raises(FrameError) as caught:
        decode_step(profile, bytes(body))
    assert name.split()[0].replace("draw", "step.draw") in caught.value.place
    with pytest.raises(FrameError):
        Core(profile).check_step(bytes(body))


def test_c_reads_no_step_beyond_its_capacity():
    """Every shorter capacity is refused."""
    profile, frames = frames_of_every_kind()
    body = open_body(frames[Kind.STEP][HEADER_BYTES:])
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
        encode_step(profile, step_of(profile, **change))


def test_a_greedy_session_has_no_row_of_positive_temperature():
    """Nor does its STEP say so: the sampled records are not there."""
    profile = given_.make_profile(sampled=False)
    with pytest.raises(FrameError, match="T = 0"):
        encode_step(profile, step_of(profile, sampled=True))
    seeded = decode_step(profile, encode_step(profile, step_of(profile, user_seed=4)))
    assert seeded.rows[0].user_seed == 0


@pytest.mark.parametrize(
    ("at", "value", "place"),
    [
        (0, 4, "slot"),
        (8, 4, "position"),
        (12, 6, "position"),
        (20, 1, "zero"),
        (24, 111, r"prefix\[0\]"),
        (24, 2**32 - 1, r"prefix\[0\]"),
    ],
)
def test_a_reset_that_contradicts_itself_is_refused_by_name(at, value, place):
    """Slot, lengths, zero and tokens."""
    profile, frames = frames_of_every_kind()
    body = bytearray(open_body(frames[Kind.RESET][HEADER_BYTES:]))
    body[at : at + 4] = value.to_bytes(4, "little")
    with pytest.raises(FrameError, match=rf"^reset\.{place}: "):
        decode_reset(profile, bytes(body))


def test_a_reset_of_another_length_than_it_says_is_refused():
    """Shorter, longer, and by less than a token."""
    profile, frames = frames_of_every_kind()
    body = open_body(frames[Kind.RESET][HEADER_BYTES:])
    for other in (body[:-4], body + bytes(4), body[:-1], body[:24], body[:23]):
        with pytest.raises(FrameError, match=r"^reset\.bytes: "):
            decode_reset(profile, other)


def test_a_reset_longer_than_the_longest_request_is_refused():
    """Before its tokens are looked at."""
    profile = given_.make_profile()
    with pytest.raises(FrameError, match=r"^reset\.length: .*at most 1048576"):
        encode_reset(profile, Reset(0, 0, np.zeros(2**20 + 1, np.int32)))


def test_an_error_body_that_contradicts_itself_is_refused_by_name():
    """Code, length, and bytes that are no UTF-8."""
    good = encode_error(ErrorBody(5, "text", 4))
    with pytest.raises(FrameError, match=r"^error\.code: "):
        decode_error(b"\x09" + good[1:])
    with pytest.raises(FrameError, match=r"^error\.bytes: "):
        decode_error(good + b"x")
    with pytest.raises(FrameError, match=r"^error\.text: expected UTF-8"):
        decode_error(good[:-4] + b"\xff\xfe\xfd\xfc")
    with pytest.raises(FrameError, match=r"^error\.text_bytes: "):
        decode_error(good[:4] + (1025).to_bytes(4, "little") + good[8:])


def test_lengths_are_known_before_a_body_is_read():
    """Exact for STEP and REPLY, bounded for the rest, and none without a profile."""
    profile = given_.make_profile(4, 5)
    assert body_bounds(Kind.REPLY, profile) == (1376, 5372)
    assert body_bounds(Kind.STEP, profile)[1] == profile.step_bytes - HEADER_BYTES
    assert body_bounds(Kind.HELLO, None) == (4, 8196)
    assert body_bounds(Kind.ERROR, None) == (20, 1044)
    assert body_bounds(Kind.BYE, None) == (4, 4)
    assert body_bounds(Kind.ENDPOINT, profile) == (56, 56)
    assert body_bounds(Kind.RESET, profile) == (28, 28 + 4 * 2**20)
    assert not body_lengths_ok(Kind.RESET, 30, profile)
    assert not body_lengths_ok(Kind.REPLY, 5371, profile)
    assert not body_lengths_ok(Kind.HELLO, 2**32 - 1, None)
    for kind in (Kind.STEP, Kind.REPLY, Kind.RESET):
        with pytest.raises(FrameError, match=r"^frame\.kind: .*before HELLO"):
            body_bounds(kind, None)


def test_a_body_shorter_than_its_crc_is_refused():
    """No bytes to compare with."""
    for size in range(CRC_BYTES):
        with pytest.raises(FrameError, match=r"^crc: "):
            open_body(bytes(size))
    assert open_body(zlib.crc32(b"").to_bytes(4, "little")) == b""


@pytest.mark.parametrize(
    ("session", "sequence", "flags", "place"),
    [
        (bytes(15), 0, 0, "session"),
        (SESSION, 2**64, 0, ""),
        (SESSION, -1, 0, ""),
        (SESSION, 0, 2, "flags"),
        (SESSION, 0, 1, "flags"),
    ],
)
def test_a_frame_that_no_header_can_say_is_not_made(session, sequence, flags, place):
    """Session length, sequence range, flags of the kind."""
    with pytest.raises(FrameError, match=rf"^frame\.?{place}"):
        encode_frame(Kind.BYE, session, sequence, b"", flags)


@pytest.mark.parametrize("field", ["tokens", "confidence", "mask", "ids", "q"])
def test_a_reply_of_another_shape_or_type_is_not_made(field):
    """A wrong array is named; nothing is cast or broadcast silently."""
    profile = given_.make_profile()
    good = given_.make_reply(profile, step_of(profile, 2), 1)
    for bad in (None, getattr(good, field)[:1], getattr(good, field).astype("f8")):
        fields = {name: getattr(good, name) for name in good.__slots__}
        with pytest.raises(FrameError, match=rf"^reply\.{field}: "):
            encode_reply(profile, type(good)(**(fields | {field: bad})))
    with pytest.raises(FrameError, match=r"^reply\.bytes"):
        decode_reply(profile, encode_reply(profile, good) + b"x")
    with pytest.raises(FrameError, match=r"^reply\.n"):
        decode_reply(profile, bytes(2000))
