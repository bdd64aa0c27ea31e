"""A worker behind real sockets, and peers that keep no rule."""

import contextlib
import dataclasses
import json
import secrets
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from worker_client import Client, opened, reset_body, row, step_body

from pp3shm.errors import ConfigError, LinkError
from pp3shm.layout import keyproof
from pp3shm.layout.frames import (
    ErrorBody,
    Kind,
    Status,
    encode_error,
    encode_frame,
)
from pp3shm.layout.profile import Profile
from pp3shm.link import connect
from pp3shm.worker import Patience, Worker
from pp3shm.worker.drafters import UniformDrafter, seeded_table

SHAPE = {"vocab": 64, "depth": 4, "max_slots": 3, "max_positions": 40}
SAMPLED = Profile.sampled(**SHAPE)
GREEDY = Profile.greedy(**SHAPE)
KEY = b"0123456789abcdef"
LOCAL = "tcp://127.0.0.1:0"
SOON = 30.0


@pytest.fixture
def worker():
    """A sampled worker on TCP."""
    with Worker(seeded_table, SAMPLED, [LOCAL]) as running:
        yield running


def wait_until(condition):
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def serves(worker, profile=SAMPLED):
    """A new engine is served from HELLO to REPLY."""
    with opened(worker.addresses[0], profile) as engine:
        engine.reset()
        reply = engine.step(1, row(sampled=profile.is_sampled))
        return reply.status.tolist() == [0]


# ---- the way it should go ----


@pytest.mark.parametrize("kind", ["tcp", "unix", "abstract"])
@pytest.mark.parametrize("profile", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_engine_is_served_over_every_kind_of_address(tmp_path, kind, profile):
    address = {
        "tcp": LOCAL,
        "unix": f"unix://{tmp_path}/socket",
        "abstract": f"unix://@pp3shm-test-{secrets.token_hex(8)}",
    }[kind]
    with Worker(seeded_table, profile, [address]) as worker:
        assert serves(worker, profile)
    assert list(tmp_path.iterdir()) == []


def test_worker_answers_with_its_own_profile_and_the_same_session(worker):
    with Client(worker.addresses[0], SAMPLED) as engine:
        assert engine.hello() == SAMPLED


def test_sequences_of_both_directions_have_no_gaps(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        for round_ in range(5):
            engine.send_step(round_, row())
            header, _ = engine.receive()
            assert round_ + 1 == header.sequence
            assert (header.kind, header.flags) == (Kind.REPLY, 2)


def test_repeated_step_gets_the_same_body_under_the_next_sequence(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        engine.send_step(9, row())
        first = engine.receive()
        engine.send_step(9, row())
        second = engine.receive()
        assert first[1] == second[1]
        assert [first[0].sequence, second[0].sequence] == [1, 2]


def test_steps_sent_ahead_are_answered_in_their_order(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        for round_ in range(30):
            engine.send_step(round_, row())
        assert list(range(30)) == [engine.reply().round for _ in range(30)]


def test_one_worker_serves_several_addresses_and_engines(tmp_path):
    addresses = [LOCAL, f"unix://{tmp_path}/a", LOCAL]
    with Worker(seeded_table, SAMPLED, addresses) as worker:
        engines = [opened(address, SAMPLED) for address in worker.addresses * 2]
        for engine in engines:
            engine.reset(prefix=(1, 2))
        rows = row(prefix=(1, 2)), row(slot=1)
        replies = [engine.step(1, *rows) for engine in engines]
        assert {(0, 1)} == {tuple(reply.status) for reply in replies}
        # The session is part of the key: no two of them share their noise.
        assert len({tuple(reply.tokens[0]) for reply in replies}) > 1
        assert len(engines) == worker.stats()["sessions_open"]
        for engine in engines:
            engine.sock.close()
        wait_until(lambda: worker.stats()["sessions_open"] == 0)


def test_two_engines_at_once_do_not_disturb_each_other(worker):
    def run(session):
        with opened(worker.addresses[0], SAMPLED, session=session) as engine:
            engine.reset()
            return [engine.step(r, row()).tokens.tolist() for r in range(1, 40)]

    def alone(session):
        wait_until(lambda: worker.stats()["sessions_open"] == 0)
        return run(session)

    sessions = [bytes(15) + b"\1", bytes(15) + b"\2"]
    expected = [alone(session) for session in sessions]
    wait_until(lambda: worker.stats()["sessions_open"] == 0)
    with ThreadPoolExecutor(2) as pool:
        assert expected == list(pool.map(run, sessions))


def test_orderly_engine_leaves_with_bye_and_hears_nothing_more(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.send(Kind.BYE, b"")
        assert engine.read(1) == b""
    wait_until(lambda: worker.stats()["sessions_open"] == 0)
    assert "connections_refused" not in worker.stats()


def test_engine_that_ends_with_an_error_is_heard(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.send(Kind.ERROR, encode_error(ErrorBody(5, "mass: \x1b[31mwrong", 7)))
        assert engine.read(1) == b""
    wait_until(lambda: worker.stats().get("errors_received") == 1)


def test_closing_worker_says_bye_to_all_and_is_gone():
    worker = Worker(seeded_table, SAMPLED, [LOCAL]).start()
    engines = [opened(worker.addresses[0], SAMPLED) for _ in range(3)]
    worker.close()
    worker.close()
    for engine in engines:
        header, body = engine.receive()
        assert (header.kind, header.sequence, body) == (Kind.BYE, 1, b"")
        assert engine.read(1) == b""
        engine.sock.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("pp3shm")]
    with pytest.raises(LinkError):
        connect(worker.addresses[0])


# ---- HELLO ----

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


JSON = SAMPLED.canonical_json()


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


# ---- faults in an open session ----

STEP = step_body(SAMPLED, 7, row())
RESET = reset_body(SAMPLED, 1)


def plain(kind, body, flags=0, **changed):
    """What sends a frame with these faults."""
    return lambda engine: engine.send(kind, body, flags, **changed)


def raw(build):
    """What sends bytes made from the engine's next frame."""

    def send(engine):
        frame = bytearray(engine.frame(Kind.STEP, STEP, 2))
        engine.sock.sendall(build(frame))

    return send


def changed(at, form, value):
    def build(frame):
        struct.pack_into(form, frame, at, value)
        return frame

    return raw(build)


FAULTS = {
    "second HELLO": (plain(Kind.HELLO, JSON), Status.CORRUPT, "frame.kind"),
    "HELLO_ACK": (plain(Kind.HELLO_ACK, JSON), Status.CORRUPT, "frame.kind"),
    "REPLY": (plain(Kind.REPLY, bytes(500), 2), Status.CORRUPT, "frame.kind"),
    "ENDPOINT": (plain(Kind.ENDPOINT, bytes(60)), Status.CORRUPT, "frame.kind"),
    "magic": (changed(0, "<I", 0), Status.CORRUPT, "frame.magic"),
    "version": (changed(4, "<H", 2), Status.CORRUPT, "frame.version"),
    "kind 0": (changed(6, "<H", 0), Status.CORRUPT, "frame.kind"),
    "kind 9": (changed(6, "<H", 9), Status.CORRUPT, "frame.kind"),
    "flag 1": (changed(8, "<I", 3), Status.CORRUPT, "frame.flags"),
    "flags of a RESET": (changed(6, "<H", 5), Status.CORRUPT, "frame.flags"),
    "greedy STEP": (plain(Kind.STEP, STEP), Status.CORRUPT, "frame.flags"),
    "length 0": (changed(12, "<I", 0), Status.INVALID, "frame.body_bytes"),
    "length one less": (
        changed(12, "<I", len(STEP) + 3), Status.INVALID, "frame.body_bytes"
    ),
    "length one more": (
        changed(12, "<I", len(STEP) + 5), Status.INVALID, "frame.body_bytes"
    ),
    "length 4 GiB": (changed(12, "<I", 2**32 - 1), Status.INVALID, "frame.body_bytes"),
    "sequence again": (
        plain(Kind.STEP, STEP, 2, sequence=1), Status.CORRUPT, "frame.sequence"
    ),
    "sequence gap": (
        plain(Kind.STEP, STEP, 2, sequence=3), Status.CORRUPT, "frame.sequence"
    ),
    "sequence 2**64 - 1": (
        plain(Kind.STEP, STEP, 2, sequence=2**64 - 1), Status.CORRUPT, "frame.sequence"
    ),
    "another session": (
        plain(Kind.STEP, STEP, 2, session=b"x" * 16), Status.CORRUPT, "frame.session"
    ),
    "RESET of another session": (
        plain(Kind.RESET, RESET, session=b"x" * 16), Status.CORRUPT, "frame.session"
    ),
    "CRC": (raw(lambda f: f[:-1] + bytes([f[-1] ^ 1])), Status.CORRUPT, "crc"),
    "a bit of the body": (
        raw(lambda f: f[:50] + bytes([f[50] ^ 1]) + f[51:]), Status.CORRUPT, "crc"
    ),
    "n of 0": (plain(Kind.STEP, bytes(24), 2), Status.INVALID, "frame.body_bytes"),
    "n of 4": (plain(Kind.STEP, bytes(24 + 4 * 68), 2), Status.INVALID, "frame"),
    "n that is not the length's": (
        plain(Kind.STEP, STEP[:8] + b"\2" + STEP[9:], 2), Status.INVALID, "step.bytes"
    ),
    "committed token outside": (
        plain(Kind.STEP, STEP[:72] + b"\0" + STEP[73:], 2),
        Status.INVALID,
        "step.committed",
    ),
    "RESET too long": (
        plain(Kind.RESET, RESET + bytes(4 * 41)), Status.INVALID, "frame.body_bytes"
    ),
    "RESET no multiple of 4": (
        plain(Kind.RESET, RESET + b"\0"), Status.INVALID, "frame.body_bytes"
    ),
    "RESET of an older generation": (
        plain(Kind.RESET, reset_body(SAMPLED, 0, 0)), Status.STALE, "reset.generation"
    ),
    "RESET of a slot too many": (
        plain(Kind.RESET, b"\3" + RESET[1:]), Status.INVALID, "reset.slot"
    ),
    "BYE with a body": (plain(Kind.BYE, b"!"), Status.INVALID, "frame.body_bytes"),
    "ERROR too long": (
        plain(Kind.ERROR, bytes(16 + 1025)), Status.INVALID, "frame.body_bytes"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_fault_ends_the_session_with_an_error_that_names_it(worker, name):
    send, code, place = FAULTS[name]
    with opened(worker.addresses[0], SAMPLED) as bystander:
        bystander.reset()
        with opened(worker.addresses[0], SAMPLED) as engine:
            engine.reset()
            send(engine)
            said = engine.receive_error()
        assert (code, place) == (said.code, said.text[: len(place)])
        assert bystander.step(1, row()).status.tolist() == [0]
    assert serves(worker)


@pytest.mark.parametrize(
    ("round_", "changed_row", "code"),
    [
        (7, {"user_seed": 1}, Status.INVALID),
        (6, {}, Status.STALE),
        (0, {}, Status.STALE),
    ],
    ids=["altered", "older", "oldest"],
)
def test_round_that_cannot_be_repeated_ends_the_session(
    worker, round_, changed_row, code
):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        engine.step(7, row())
        engine.send_step(round_, row(**changed_row))
        said = engine.receive_error()
    assert (code, round_) == (said.code, said.round)
    assert serves(worker)


def test_fault_behind_good_frames_is_named_after_their_answers(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        engine.send_step(1, row())
        engine.send_step(2, row())
        engine.send(Kind.STEP, STEP, 2, sequence=99)
        engine.send(Kind.STEP, STEP * 1000, 2)
        assert [engine.reply().round, engine.reply().round] == [1, 2]
        assert "frame.sequence" in engine.receive_error().text


def test_error_text_of_a_long_fault_fits_its_bound(worker):
    with Client(worker.addresses[0], SAMPLED) as engine:
        engine.send(Kind.HELLO, JSON[:-1] + b',"z' + b"\\u1234" * 1200 + b'":1}')
        assert len(engine.receive_error().text.encode()) <= 1024


# ---- peers that take their time ----

QUICK = Patience(handshake_s=0.3, frame_s=0.3, send_s=0.3)


@pytest.mark.parametrize("said", [0, 1, 39, 40, 100])
def test_peer_that_does_not_finish_its_handshake_is_closed(said):
    with Worker(seeded_table, SAMPLED, [LOCAL], patience=QUICK) as worker:
        with Client(worker.addresses[0], SAMPLED) as engine:
            engine.sock.sendall(engine.frame(Kind.HELLO, JSON)[:said])
            assert engine.read(1) == b""
        assert serves(worker)


@pytest.mark.parametrize("psk", [None, KEY], ids=["no key", "key"])
def test_trickled_handshake_is_closed(psk):
    with Worker(seeded_table, SAMPLED, [LOCAL], psk, patience=QUICK) as worker:
        with Client(worker.addresses[0], SAMPLED) as engine:
            stop = threading.Event()
            first = keyproof.first(bytes(32)) if psk else b""

            def trickle():
                for byte in (first + engine.frame(Kind.HELLO, JSON))[:200]:
                    if stop.wait(0.02):
                        return
                    try:
                        engine.sock.send(bytes([byte]))
                    except OSError:
                        return

            thread = threading.Thread(target=trickle)
            thread.start()
            heard = engine.read(1000)
            stop.set()
            thread.join()
        assert len(heard) in ((0, 68) if psk else (0,))


@pytest.mark.parametrize("said", [1, 40, 60])
def test_half_a_frame_ends_the_session_and_an_idle_one_lives(said):
    with Worker(seeded_table, SAMPLED, [LOCAL], patience=QUICK) as worker:
        idle = opened(worker.addresses[0], SAMPLED)
        idle.reset()
        with opened(worker.addresses[0], SAMPLED) as engine:
            engine.sock.sendall(engine.frame(Kind.STEP, STEP, 2)[:said])
            assert engine.read(1) == b""
        assert idle.step(1, row()).status.tolist() == [0]
        idle.sock.close()


def test_engine_that_does_not_read_its_replies_is_closed_alone():
    with Worker(seeded_table, SAMPLED, [LOCAL], patience=QUICK) as worker:
        with Client(worker.addresses[0], SAMPLED) as deaf:
            deaf.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.hello()
            deaf.reset()
            deaf.sock.settimeout(0.05)
            rows = [row(slot=slot) for slot in range(3)]
            flood = (deaf.send_step(round_, *rows) for round_ in range(100_000))
            with pytest.raises(OSError):
                list(flood)
            wait_until(lambda: worker.stats()["sessions_open"] == 0)
        assert serves(worker)


def test_crowd_that_never_says_hello_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr("pp3shm.worker.server._PENDING_MOST", 8)
    patience = Patience(handshake_s=600)
    with Worker(seeded_table, SAMPLED, [LOCAL], patience=patience) as worker:
        crowd = [Client(worker.addresses[0], SAMPLED) for _ in range(40)]
        assert serves(worker)
        wait_until(lambda: len(worker._threads) <= 8 + 1)
        for client in crowd:
            client.sock.close()


# ---- the key ----


def keyed(address, key=KEY, profile=SAMPLED):
    """A client that has given the proof."""
    client = Client(address, profile)
    nonce = secrets.token_bytes(32)
    client.sock.sendall(keyproof.first(nonce))
    theirs = keyproof.check_answer(key, nonce, client.read(68))
    client.sock.sendall(keyproof.second(key, nonce, theirs))
    return client


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_engine_with_the_key_is_served(tmp_path, kind):
    address = LOCAL if kind == "tcp" else f"unix://{tmp_path}/socket"
    with (
        Worker(seeded_table, SAMPLED, [address], KEY) as worker,
        keyed(worker.addresses[0]) as engine,
    ):
        engine.hello()
        engine.reset()
        assert engine.step(1, row()).status.tolist() == [0]


UNPROVED = {
    "a HELLO": encode_frame(Kind.HELLO, bytes(16), 0, JSON),
    "nothing": b"",
    "half a nonce": keyproof.first(bytes(32))[:20],
    "no tag": keyproof.first(bytes(32)),
    "a wrong tag": keyproof.first(bytes(32)) + b"PP3K" + bytes(32),
    "a HELLO for a tag": keyproof.first(bytes(32))
    + encode_frame(Kind.HELLO, bytes(16), 0, JSON),
}


@pytest.mark.parametrize("name", UNPROVED)
def test_keyed_worker_tells_an_unproved_peer_nothing_of_itself(name):
    with Worker(seeded_table, SAMPLED, [LOCAL], KEY, patience=QUICK) as worker:
        with Client(worker.addresses[0], SAMPLED) as engine:
            engine.sock.sendall(UNPROVED[name])
            heard = engine.read(10_000)
        # At most the proof's own message, which the definition has it send first.
        assert heard == b"" or (len(heard), heard[:4]) == (68, b"PP3K")
        assert "sessions" not in worker.stats()
        assert worker.stats()["proofs_failed"] == 1


def test_engine_with_a_key_meets_no_worker_without_one():
    with Worker(seeded_table, SAMPLED, [LOCAL], patience=QUICK) as worker:
        with pytest.raises(LinkError):
            connect(worker.addresses[0], SOON, KEY)
        assert serves(worker)


# ---- what a worker cannot be made of ----


@pytest.mark.parametrize(
    "arguments",
    [
        {"listen": []},
        {"listen": ["tcp://0.0.0.0:0"]},
        {"listen": ["rdma://127.0.0.1:1"]},
        {"listen": [LOCAL, "nonsense"]},
        {"psk": b"short"},
        {"psk": b"x" * 65},
        {"max_sessions": 0},
        {"drafter": 3},
        {"drafter": object()},
    ],
    ids=str,
)
def test_worker_that_cannot_be_is_refused_and_leaves_nothing(arguments):
    given = {"drafter": UniformDrafter, "profile": SAMPLED, "listen": [LOCAL]}
    with pytest.raises(ConfigError):
        Worker(**(given | arguments)).start()
    assert not [t for t in threading.enumerate() if t.name.startswith("pp3shm")]


def test_address_in_use_leaves_the_others_free(tmp_path):
    with Worker(seeded_table, SAMPLED, [LOCAL]) as first:
        taken = first.addresses[0]
        with pytest.raises(LinkError, match="Address already in use"):
            Worker(seeded_table, SAMPLED, [f"unix://{tmp_path}/s", taken]).start()
    assert list(tmp_path.iterdir()) == []


def test_end_asked_for_before_the_start_is_not_forgotten():
    worker = Worker(seeded_table, SAMPLED, [LOCAL])
    worker.request_stop()
    worker.serve_forever()
    worker.serve_forever()
    with pytest.raises(ConfigError, match="not started yet"):
        worker.start()


@pytest.mark.parametrize("seed", range(8))
def test_spoilt_frames_end_their_session_and_never_the_worker(worker, seed):
    random = np.random.default_rng(seed)
    good = [
        lambda e: e.frame(Kind.STEP, step_body(SAMPLED, 1, row(), row(slot=1)), 2),
        lambda e: e.frame(Kind.RESET, reset_body(SAMPLED, 0, 2, range(20))),
        lambda e: e.frame(Kind.ERROR, encode_error(ErrorBody(5, "no"))),
    ]
    for _ in range(20):
        with opened(worker.addresses[0], SAMPLED) as engine:
            engine.reset()
            frame = bytearray(good[random.integers(len(good))](engine))
            for _ in range(random.integers(1, 4)):
                frame[random.integers(len(frame))] ^= 1 << int(random.integers(8))
            engine.sock.sendall(frame[: random.integers(1, len(frame) + 1)])
            engine.sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(EOFError):
                while True:
                    header, _ = engine.receive()
                    assert header.kind == Kind.ERROR
    assert serves(worker)
    assert worker.stats()["sessions_open"] <= 1
