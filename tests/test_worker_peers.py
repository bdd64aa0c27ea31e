"""Peers that take their time, and peers without the key."""

import secrets
import socket
import threading

import pytest
from worker_client import (
    JSON,
    KEY,
    LOCAL,
    QUICK,
    SAMPLED,
    SOON,
    Client,
    opened,
    row,
    serves,
    step_body,
    wait_until,
)

from pp3shm.errors import LinkError
from pp3shm.layout import keyproof
from pp3shm.layout.frames import (
    Kind,
    encode_frame,
)
from pp3shm.link import connect
from pp3shm.worker import Patience, Worker
from pp3shm.worker.drafters import seeded_table


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
            engine.sock.sendall(
                engine.frame(Kind.STEP, step_body(SAMPLED, 1, row()), 2)[:said]
            )
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
