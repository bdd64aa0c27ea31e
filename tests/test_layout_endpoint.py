"""ENDPOINT: its bytes, and that no others pass for one."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.errors import FrameError
from pp3shm.layout.endpoint import Endpoint, decode_endpoint, encode_endpoint
from pp3shm.layout.frames import (
    HEADER_BYTES,
    Kind,
    body_lengths_ok,
    decode_header,
    encode_frame,
    open_body,
)
from pp3shm.layout.tables import MTUS

FRAME_BYTES = 5412
GOOD = Endpoint(
    queue_pair=17,
    packet_sequence=0xABCDEF,
    mtu=1024,
    gid_index=1,
    gid=bytes(range(16)),
    address=0x7F00_0000_1000,
    rkey=0xDEAD_BEEF,
    slot_bytes=8192,
    slots=8,
)
U24 = st.integers(0, 2**24 - 1)
U32 = st.integers(0, 2**32 - 1)
ENDPOINTS = st.builds(
    Endpoint,
    queue_pair=U24,
    packet_sequence=U24,
    mtu=st.sampled_from(MTUS),
    gid_index=U32,
    gid=st.binary(min_size=16, max_size=16),
    address=st.integers(0, 2**63),
    rkey=U32,
    slot_bytes=st.integers(FRAME_BYTES, 2**32 - 1),
    slots=st.integers(1, 256),
)


def test_the_bytes_stand_where_the_wire_page_says():
    body = encode_endpoint(GOOD)
    assert 52 == len(body)
    assert bytes.fromhex("11000000 efcdab00 0004 0000 01000000") == body[:16]
    assert bytes(range(16)) == body[16:32]
    assert GOOD.address == int.from_bytes(body[32:40], "little")
    assert GOOD.rkey == int.from_bytes(body[40:44], "little")
    assert [8192, 8] == [int.from_bytes(body[i : i + 4], "little") for i in (44, 48)]


@given(ENDPOINTS)
def test_what_is_encoded_is_decoded(endpoint):
    assert endpoint == decode_endpoint(encode_endpoint(endpoint), FRAME_BYTES)


@given(st.binary(max_size=80))
def test_any_other_bytes_are_refused_or_are_an_endpoint_of_the_profile(data):
    try:
        found = decode_endpoint(data, FRAME_BYTES)
    except FrameError:
        return
    assert data == encode_endpoint(found)
    assert found.slot_bytes >= FRAME_BYTES
    assert 1 <= found.slots <= 256
    assert found.at(found.slots) <= 2**64


@pytest.mark.parametrize(
    ("field", "value", "place"),
    [
        ("queue_pair", 2**24, "endpoint.queue_pair"),
        ("packet_sequence", 2**24, "endpoint.packet_sequence"),
        ("mtu", 0, "endpoint.mtu"),
        ("mtu", 1500, "endpoint.mtu"),
        ("mtu", 8192, "endpoint.mtu"),
        ("slots", 0, "endpoint.slots"),
        ("slots", 257, "endpoint.slots"),
        ("gid", bytes(15), "endpoint.gid"),
        ("rkey", 2**32, "endpoint"),
    ],
)
def test_a_field_out_of_range_is_refused_by_name_both_ways(field, value, place):
    wrong = dataclasses.replace(GOOD, **{field: value})
    with pytest.raises(FrameError, match=place):
        encode_endpoint(wrong)


@pytest.mark.parametrize(
    ("at", "data", "place"),
    [
        (3, b"\x01", "endpoint.queue_pair"),
        (7, b"\x01", "endpoint.packet_sequence"),
        (8, b"\x01", "endpoint.mtu"),
        (10, b"\x01", "endpoint.zero"),
        (44, b"\0\0\0\0", "endpoint.slot_bytes"),
        (44, b"\x23\x15\0\0", "endpoint.slot_bytes"),
        (48, b"\0", "endpoint.slots"),
        (49, b"\x01", "endpoint.slots"),
        (32, b"\xff" * 8, "endpoint.address"),
    ],
)
def test_bytes_that_are_not_so_are_refused_by_name(at, data, place):
    body = bytearray(encode_endpoint(GOOD))
    body[at : at + len(data)] = data
    with pytest.raises(FrameError, match=place):
        decode_endpoint(bytes(body), FRAME_BYTES)


@pytest.mark.parametrize("size", [0, 51, 53])
def test_another_length_is_refused(size):
    body = (encode_endpoint(GOOD) + b"\0")[:size]
    with pytest.raises(FrameError, match=r"endpoint\.bytes: expected 52"):
        decode_endpoint(body, FRAME_BYTES)


def test_another_number_of_slots_than_was_offered_is_refused():
    body = encode_endpoint(GOOD)
    assert GOOD == decode_endpoint(body, FRAME_BYTES, 8)
    with pytest.raises(FrameError, match=r"endpoint\.slots: expected 4, found 8"):
        decode_endpoint(body, FRAME_BYTES, 4)


def test_its_frame_has_one_length_and_every_changed_byte_is_seen():
    frame = encode_frame(Kind.ENDPOINT, bytes(16), 1, encode_endpoint(GOOD))
    header = decode_header(frame[:HEADER_BYTES])
    assert (Kind.ENDPOINT, 56) == (header.kind, header.body_bytes)
    for length in range(120):
        assert (56 == length) == body_lengths_ok(Kind.ENDPOINT, length, None)
    for at in range(HEADER_BYTES, len(frame)):
        wrong = bytearray(frame)
        wrong[at] ^= 1 << at % 8
        with pytest.raises(FrameError, match="crc"):
            open_body(bytes(wrong[HEADER_BYTES:]))
