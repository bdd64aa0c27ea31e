"""Opening a session: every field that differs, and first frames that are no HELLO."""

import contextlib
import dataclasses
import json
import socket
import struct

import pytest
from worker_client import (
    GREEDY,
    JSON,
    LOCAL,
    SAMPLED,
    SHAPE,
    Client,
    opened,
    row,
    serves,
    wait_until,
)

from pp3shm.layout.frames import (
    Kind,
    Status,
)
from pp3shm.layout.profile import Profile
from pp3shm.worker import Worker
from pp3shm.worker.drafters import seeded_table


@pytest.fixture
def worker():
    """A sampled worker on TCP."""
    with Worker(seeded_table, SAMPLED, [LOCAL]) as running:
        yield running


OTHER = {
    "vocab": 65,
    "depth": 5,
    "max_slots": 2,
    "max_positions": 41,
    "context_bytes": 1,
    "id_map_sha256": "1" * 64,
    "target_sha256": "2" * 64,
    "draft_sha256": "3" * 64,
    "markov_sha256": "4" * 64,
    "semantic": "top32/tau.7/dyadic24-standard-v1",
}


@pytest.mark.parametrize("field", OTHER)
def test_engine_whose_profile_differs_is_refused_by_name(worker, field):
    other = Profile.sampled(**(SHAPE | {field: OTHER[field]}))
    with Client(worker.addresses[0], other) as engine:
        engine.send(Kind.HELLO, other.canonical_json())
        said = engine.receive_error()
    assert said.code == Status.REFUSED
    ours, theirs = getattr(SAMPLED, field), OTHER[field]
    assert f"profile.{field}: ours {ours}, theirs {theirs}" == said.text
    assert serves(worker)


FIELDS = [field.name for field in dataclasses.fields(SAMPLED)]


@pytest.mark.parametrize("field", [*FIELDS, "step_bytes", "reply_bytes", "layout_bytes",
                                   "page_bytes"])  # fmt: skip
@pytest.mark.parametrize("how", ["another", "another type", "missing"])
def test_any_field_that_is_not_ours_is_refused_by_name(worker, field, how):
    values = json.loads(SAMPLED.canonical_json())
    value = values.pop(field)
    if how == "another":
        values[field] = value + 1 if isinstance(value, int) else f"{value}x"
    if how == "another type":
        values[field] = str(value) if isinstance(value, int) else 3
    text = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    with Client(worker.addresses[0], SAMPLED) as engine:
        engine.send(Kind.HELLO, text)
        said = engine.receive_error()
    # What follows from another field is named in its place where they contradict.
    followers = (
        {"step_bytes", "reply_bytes", "layout_bytes"} if how == "another" else ()
    )
    named = said.text.split(":")[0].removeprefix("profile.")
    assert said.code == Status.REFUSED
    assert named == field or named in followers


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(SAMPLED, GREEDY), (GREEDY, SAMPLED)],
    ids=["greedy", "sampled"],
)
def test_engine_of_the_other_mode_is_never_downgraded(ours, theirs):
    with Worker(seeded_table, ours, [LOCAL]) as worker:
        with Client(worker.addresses[0], theirs) as engine:
            engine.send(Kind.HELLO, theirs.canonical_json())
            assert "profile.sample_mode" in engine.receive_error().text
        assert serves(worker, ours)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff" * 100,
        b" " + JSON,
        JSON + b"\n",
        JSON.replace(b'"depth":4', b'"depth":4,"depth":4'),
        JSON.replace(b'"depth":4', b'"depth":4.0'),
        JSON.replace(b'"depth":4', b'"depth":04'),
        JSON.replace(b'"depth":4', b'"depth":[4]'),
        JSON.replace(b'"depth":4', b'"depth":true'),
        JSON.replace(b'"depth":4', b'"depth":' + b"9" * 5000),
        JSON.replace(b'"depth"', b'"zdepth"'),
        JSON[:-1] + b',"zzz":1}',
        b'{"' + b"x" * 8000 + b'":1}',
        b"[" * 8192,
    ],
)
def test_hello_that_is_not_canonical_is_refused(worker, body):
    with Client(worker.addresses[0], SAMPLED) as engine:
        engine.send(Kind.HELLO, body)
        said = engine.receive_error()
    assert said.code == Status.REFUSED
    assert said.text.startswith("profile.")
    assert serves(worker)


HELLO_BYTES = len(JSON) + 4


def header(
    *, kind=1, length=HELLO_BYTES, flags=0, sequence=0, version=1, magic=b"PP3F"
):
    return struct.pack(
        "<4sHHIIQ16s", magic, version, kind, flags, length, sequence, b"s" * 16
    )


def test_hello_whose_crc_is_wrong_is_refused(worker):
    with Client(worker.addresses[0], SAMPLED, session=b"s" * 16) as engine:
        engine.sock.sendall(header() + JSON + bytes(4))
        said = engine.receive_error()
    assert (said.code, said.text[:3]) == (Status.CORRUPT, "crc")


@pytest.mark.parametrize(
    ("place", "first"),
    [
        ("version", header(version=2)),
        ("kind", header(kind=0)),
        ("kind", header(kind=9)),
        ("kind", header(kind=Kind.HELLO_ACK)),
        ("kind", header(kind=Kind.STEP, flags=2)),
        ("kind", header(kind=Kind.REPLY, flags=2)),
        ("kind", header(kind=Kind.RESET)),
        ("kind", header(kind=Kind.ERROR)),
        ("kind", header(kind=Kind.BYE)),
        ("kind", header(kind=Kind.ENDPOINT)),
        ("flags", header(flags=1)),
        ("flags", header(flags=2)),
        ("flags", header(flags=2**31)),
        ("sequence", header(sequence=1)),
        ("sequence", header(sequence=2**64 - 1)),
        ("body_bytes", header(length=0)),
        ("body_bytes", header(length=3)),
        ("body_bytes", header(length=8192 + 5)),
        ("body_bytes", header(length=2**32 - 1)),
    ],
)
def test_first_frame_that_is_no_hello_is_refused_before_its_body(worker, place, first):
    with Client(worker.addresses[0], SAMPLED, session=b"s" * 16) as engine:
        engine.sock.sendall(first)
        assert place in engine.receive_error().text
    assert serves(worker)


@pytest.mark.parametrize(
    "said", [header(magic=b"HTTP"), b"GET / HTTP/1.1\r\n" * 10, bytes(40), b""]
)
def test_peer_of_another_protocol_is_told_nothing(worker, said):
    with Client(worker.addresses[0], SAMPLED) as engine:
        with contextlib.suppress(OSError):  # it may have closed already
            engine.sock.sendall(said)
            engine.sock.shutdown(socket.SHUT_WR)
        assert engine.read(1) == b""
    assert serves(worker)


def test_session_in_use_is_refused_and_its_owner_goes_on(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        with Client(worker.addresses[0], SAMPLED, engine.session) as thief:
            thief.send(Kind.HELLO, JSON)
            assert "hello.session" in thief.receive_error().text
        assert engine.step(1, row()).status.tolist() == [0]
        engine.send(Kind.BYE, b"")
        assert engine.read(1) == b""
    wait_until(lambda: worker.stats()["sessions_open"] == 0)
    with opened(worker.addresses[0], SAMPLED, session=engine.session):
        pass


def test_more_sessions_than_allowed_are_refused():
    with Worker(seeded_table, SAMPLED, [LOCAL], max_sessions=2) as worker:
        with (
            opened(worker.addresses[0], SAMPLED),
            opened(worker.addresses[0], SAMPLED),
            Client(worker.addresses[0], SAMPLED) as third,
        ):
            third.send(Kind.HELLO, JSON)
            assert "at most 2 sessions" in third.receive_error().text
        wait_until(lambda: worker.stats()["sessions_open"] == 0)
        assert serves(worker)
