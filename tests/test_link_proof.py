"""The key proof: who hears what, and no more."""

import contextlib
import json
import secrets
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from link_ends import KEY, SOON, accepted, admit_all, frame, soon

from pp3shm.errors import ConfigError, LinkError, PeerDied
from pp3shm.layout import keyproof
from pp3shm.link import (
    FrameReader,
    SocketLink,
    connect,
    listen,
    read_exactly,
)
from pp3shm.link.proof import demand_proof


def proving(address, key):
    """A listener's side in a thread; gives what ``demand_proof`` made of a peer."""
    listener = listen(address, key)

    def serve():
        with accepted(listener) as link:
            demand_proof(link, key, time.monotonic() + 2)
            link.send(frame())

    pool = ThreadPoolExecutor(1)
    served = pool.submit(serve)
    pool.shutdown(wait=False)
    return listener, served


@pytest.mark.parametrize("size", [16, 33, 64])
def test_both_sides_with_one_key_are_let_through(address, size):
    key = secrets.token_bytes(size)
    listener, served = proving(address, key)
    with connect(listener.address, SOON, key) as link:
        assert frame() == FrameReader(link, admit_all).read(soon(), SOON)
    served.result(SOON)
    listener.close()


def test_other_key_is_refused_by_the_side_that_hears_it_first():
    listener, served = proving("tcp://127.0.0.1:0", KEY)
    with pytest.raises(LinkError, match="tag of our key"):
        connect(listener.address, SOON, b"another key of 16")
    with pytest.raises(LinkError):
        served.result(SOON)
    listener.close()


@pytest.mark.parametrize("size", [0, 1, 15, 65])
def test_key_of_a_wrong_length_is_refused_by_name(size):
    listener, served = proving("tcp://127.0.0.1:0", KEY)
    with pytest.raises(ConfigError, match="16 to 64 bytes"):
        connect(listener.address, SOON, bytes(size))
    with pytest.raises(LinkError):
        served.result(SOON)
    listener.close()


FIRST = keyproof.first(bytes(32))


@pytest.mark.parametrize(
    ("said", "answer_bytes"),
    [
        (b"", 0),
        (b"PP3", 0),
        (frame(), 0),
        (FIRST[:-1], 0),
        (b"PP3X" + FIRST[4:], 0),
        (FIRST, 68),
        (FIRST + b"PP3K" + bytes(32), 68),
        (FIRST + b"PP3K" + bytes(31), 68),
        (FIRST + FIRST, 68),
    ],
    ids=["nothing", "short magic", "a frame", "short nonce", "other magic",
         "no tag", "a wrong tag", "a short tag", "a nonce for a tag"],
)  # fmt: skip
def test_unproved_peer_hears_no_more_than_the_nonce_and_tag(said, answer_bytes):
    listener, served = proving("tcp://127.0.0.1:0", KEY)
    where = listener.address
    with socket.create_connection((where.host, where.port)) as peer:
        peer.sendall(said)
        heard = b""
        with contextlib.suppress(OSError):  # it may have closed already
            peer.shutdown(socket.SHUT_WR)
            while more := peer.recv(1000):
                heard += more
    assert answer_bytes == len(heard)
    with pytest.raises(LinkError):
        served.result(SOON)
    listener.close()


def test_worker_that_only_echoes_proves_nothing():
    listener = listen("tcp://127.0.0.1:0", KEY)

    def serve():
        with accepted(listener) as link:
            first = read_exactly(link, 36, soon())
            link.send(first + bytes(32))
            with pytest.raises((PeerDied, LinkError)):
                read_exactly(link, 1, soon())

    with ThreadPoolExecutor(1) as pool:
        served = pool.submit(serve)
        with pytest.raises(LinkError, match="tag of our key"):
            connect(listener.address, SOON, KEY)
        served.result(SOON)
    listener.close()


def test_silent_worker_does_not_hold_a_connecting_proxy():
    listener = listen("tcp://127.0.0.1:0", KEY)
    with pytest.raises(LinkError, match="in time"):
        connect(listener.address, 0.1, KEY)
    listener.close()


def test_key_proof_vectors_are_what_goes_over_the_wire(monkeypatch):
    path = Path(__file__).parent / "vectors" / "keyproof.json"
    for case in json.loads(path.read_text())["cases"]:
        nonces = {name: bytes.fromhex(case[name]) for name in ("nonce_p", "nonce_w")}
        key = bytes.fromhex(case["psk"])
        a, b = socket.socketpair()
        with SocketLink(a, "a") as link, b, ThreadPoolExecutor(1) as pool:
            monkeypatch.setattr(
                secrets, "token_bytes", lambda _n, w=nonces["nonce_w"]: w
            )
            proving_ = pool.submit(demand_proof, link, key, soon())
            b.sendall(bytes.fromhex(case["proxy_first"]))
            assert case["worker"] == b.recv(1000).hex()
            b.sendall(bytes.fromhex(case["proxy_second"]))
            proving_.result(SOON)
