"""Faults in an open session: each ends it by name, and nothing else."""

import contextlib
import socket
import struct

import numpy as np
import pytest
from worker_client import (
    JSON,
    LOCAL,
    SAMPLED,
    Client,
    opened,
    reset_body,
    row,
    serves,
    step_body,
)

from pp3shm.layout.frames import (
    ErrorBody,
    Kind,
    Status,
    encode_error,
)
from pp3shm.worker import Worker
from pp3shm.worker.drafters import seeded_table


@pytest.fixture
def worker():
    """A sampled worker on TCP."""
    with Worker(seeded_table, SAMPLED, [LOCAL]) as running:
        yield running


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
