"""Real sockets: frames, deadlines, files left behind, and the key proof."""

import contextlib
import json
import os
import secrets
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pp3shm.errors import ConfigError, FrameError, LinkError, PeerDied
from pp3shm.layout import keyproof
from pp3shm.layout.frames import Kind, encode_frame
from pp3shm.link import (
    FrameReader,
    SocketLink,
    connect,
    listen,
    parse,
    read_exactly,
    wait_for,
)
from pp3shm.link import socket as link_socket
from pp3shm.link.proof import demand_proof

SESSION = bytes(range(16))
KEY = b"k" * 16
SOON = 30.0  # only a fault takes that long


def soon():
    return time.monotonic() + SOON


@pytest.fixture(params=["tcp", "tcp6", "unix", "abstract"])
def address(request, tmp_path):
    """Something to listen at, of each family."""
    if request.param == "tcp6":
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 loopback here")
    return {
        "tcp": "tcp://127.0.0.1:0",
        "tcp6": "tcp://[::1]:0",
        "unix": f"unix://{tmp_path}/socket",
        "abstract": f"unix://@pp3shm-test-{secrets.token_hex(8)}",
    }[request.param]


@pytest.fixture
def pair():
    """Two connected links."""
    a, b = socket.socketpair()
    with SocketLink(a, "a") as left, SocketLink(b, "b") as right:
        yield left, right


def accepted(listener):
    link = None
    while link is None:
        assert select.select([listener], [], [], SOON)[0]
        link = listener.accept()
    return link


def admit_all(_header):
    return None


def frame(body=b"x" * 100, sequence=0):
    return encode_frame(Kind.STEP, SESSION, sequence, body, 2)


# ---- connecting and listening ----


def test_frames_go_both_ways_over_every_family(address):
    listener = listen(address)
    with connect(listener.address) as near, accepted(listener) as far:
        for sender, receiver in ((near, far), (far, near)):
            reader = FrameReader(receiver, admit_all)
            for sequence in range(3):
                sender.send(frame(sequence=sequence))
                assert frame(sequence=sequence) == reader.read(soon(), SOON)
    listener.close()


def test_small_frames_leave_at_once_over_tcp():
    listener = listen("tcp://127.0.0.1:0")
    with connect(listener.address) as near, accepted(listener) as far:
        for link in (near, far):
            sock = link._sock
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    listener.close()


def test_connecting_to_nobody_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for address in (f"tcp://127.0.0.1:{port}", f"unix://{tmp_path}/none"):
        with pytest.raises(LinkError, match="expected a listening worker") as caught:
            connect(address, 5.0)
        assert "\n" not in str(caught.value)


def test_connecting_needs_a_port():
    with pytest.raises(ConfigError, match="a port to connect to"):
        connect("tcp://127.0.0.1:0")


@pytest.mark.parametrize("function", [connect, listen])
@pytest.mark.parametrize("host", ["10.255.255.1", "0.0.0.0", "[::]", "192.0.2.1"])
def test_address_that_is_not_loopback_needs_a_key(function, host):
    with pytest.raises(ConfigError, match="loopback address, or a pre-shared key"):
        function(f"tcp://{host}:7333")


@pytest.mark.parametrize("function", [connect, listen])
def test_name_that_stands_for_an_outside_address_too_needs_a_key(function, monkeypatch):
    def lookup(_host, port, **_more):
        return [
            (socket.AF_INET, 1, 6, "", ("127.0.0.1", port)),
            (socket.AF_INET, 1, 6, "", ("192.0.2.7", port)),
        ]

    monkeypatch.setattr(link_socket.socket, "getaddrinfo", lookup)
    with pytest.raises(ConfigError, match=r"192\.0\.2\.7"):
        function("tcp://worker.example:7333")


def test_name_with_a_family_this_host_lacks_is_listened_at_by_the_other(monkeypatch):
    def lookup(_host, port, **_more):
        return [
            (socket.AF_INET, 1, 6, "", ("192.0.2.1", port)),
            (socket.AF_INET, 1, 6, "", ("127.0.0.1", port)),
        ]

    monkeypatch.setattr(link_socket.socket, "getaddrinfo", lookup)
    with listen("tcp://worker.example:0", KEY) as listener:
        monkeypatch.undo()
        connect(f"tcp://127.0.0.1:{listener.address.port}").close()


def test_name_is_resolved_once_and_that_answer_is_used(monkeypatch):
    answers = []

    def lookup(host, port, **_more):
        answers.append(host)
        return [(socket.AF_INET, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(link_socket.socket, "getaddrinfo", lookup)
    listener = listen("tcp://worker.example:0")
    with connect(listener.address), accepted(listener):
        assert answers == ["worker.example", "worker.example"]
    listener.close()


def test_name_that_nobody_answers_for_is_given_up_in_time(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(
        link_socket.socket, "getaddrinfo", lambda *_a, **_k: never.wait(SOON) and []
    )
    with pytest.raises(LinkError, match="no answer in time"):
        connect("tcp://worker.example:7333", 0.05)
    never.set()


def test_name_that_is_none_is_one_line(monkeypatch):
    def lookup(*_args, **_more):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(link_socket.socket, "getaddrinfo", lookup)
    with pytest.raises(LinkError, match="Name or service not known"):
        connect("tcp://worker.example:7333")


def test_listening_twice_at_one_place_is_refused(address):
    first = listen(address)
    with pytest.raises(LinkError, match="expected an"):
        listen(first.address)
    with connect(first.address):
        pass
    first.close()


def test_host_that_is_not_here_cannot_be_listened_at():
    with pytest.raises(LinkError, match="expected an address to listen at"):
        listen("tcp://192.0.2.1:0", KEY)


# ---- Unix socket files ----


def test_socket_file_is_its_owners_alone_and_removed_at_close(tmp_path):
    path = tmp_path / "socket"
    before = os.umask(0)
    try:
        listener = listen(f"unix://{path}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    listener.close()
    listener.close()
    assert list(tmp_path.iterdir()) == []


def test_socket_file_of_a_killed_listener_is_replaced(tmp_path):
    path = tmp_path / "socket"
    script = (
        "import sys, time; from pp3shm.link import listen; "
        "held = listen(sys.argv[1]); print('up', flush=True); time.sleep(600)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, f"unix://{path}"], stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout.readline() == b"up\n"
        with pytest.raises(LinkError, match="found a live listener"):
            listen(f"unix://{path}")
        child.kill()
    assert path.exists()
    listener = listen(f"unix://{path}")
    with connect(f"unix://{path}"), accepted(listener):
        pass
    listener.close()
    assert not path.exists()


def test_of_many_starters_at_a_dead_socket_one_listens(tmp_path):
    path = tmp_path / "socket"
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))

        def start(_number):
            try:
                return listen(f"unix://{path}")
            except LinkError:
                return None

        with ThreadPoolExecutor(8) as pool:
            up = [link for link in pool.map(start, range(8)) if link is not None]
        assert len(up) == 1
        with connect(f"unix://{path}"):
            pass
        up[0].close()


def test_socket_file_of_a_successor_is_not_removed(tmp_path):
    path = tmp_path / "socket"
    first = listen(f"unix://{path}")
    path.unlink()
    second = listen(f"unix://{path}")
    first.close()
    with connect(f"unix://{path}"):
        pass
    second.close()


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_is_no_socket_is_never_removed(tmp_path, kind):
    path = tmp_path / "thing"
    if kind == "file":
        path.write_bytes(b"precious")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="no file or an unused socket"):
        listen(f"unix://{path}")
    assert path.is_symlink() or path.exists()


def test_socket_in_no_folder_is_one_line(tmp_path):
    with pytest.raises(LinkError, match="No such file"):
        listen(f"unix://{tmp_path}/none/socket")


# ---- sending and reading ----


def test_frame_larger_than_the_kernel_takes_arrives_whole(pair):
    left, right = pair
    body = secrets.token_bytes(4_000_000)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(left.send, frame(body), SOON)
        got = FrameReader(right, admit_all).read(soon(), SOON)
        sending.result()
    assert frame(body) == got


def test_peer_that_does_not_read_is_given_up(pair):
    left, _right = pair
    with pytest.raises(LinkError, match="expected to take a frame"):
        left.send(frame(bytes(4_000_000)), 0.05)


def test_peer_that_is_gone_is_named_when_reading_and_writing(pair):
    left, right = pair
    right.close()
    with pytest.raises(PeerDied):
        FrameReader(left, admit_all).read(soon(), SOON)
    with pytest.raises(PeerDied):
        left.send(frame())


@pytest.mark.parametrize("step", [1, 7, 39, 40, 41, 144])
def test_reader_gives_frames_however_the_bytes_are_cut(pair, step):
    left, right = pair
    reader = FrameReader(right, admit_all)
    stream = b"".join(frame(sequence=number) for number in range(5))
    got = []
    for start in range(0, len(stream), step):
        left.send(stream[start : start + step])
        while (one := reader.feed()) is not None:
            got.append(bytes(one))
    assert [frame(sequence=number) for number in range(5)] == got
    assert reader.feed() is None
    assert reader.began is None


def test_reader_tells_when_a_frame_began(pair):
    left, right = pair
    reader = FrameReader(right, admit_all)
    assert reader.feed() is None
    assert reader.began is None
    left.send(frame()[:50])
    assert reader.feed() is None
    began = reader.began
    assert began is not None
    left.send(frame()[50:60])
    assert reader.feed() is None
    assert began == reader.began


def test_reader_keeps_its_buffer_for_frames_it_was_made_for(pair):
    left, right = pair
    reader = FrameReader(right, admit_all, capacity=len(frame()))
    view = reader._view
    for number in range(3):
        left.send(frame(sequence=number))
        assert reader.feed() is not None
    assert view is reader._view


def test_refused_header_leaves_its_body_unread_and_unallocated(pair):
    left, right = pair

    def admit(header):
        raise FrameError("frame.body_bytes", "less", header.body_bytes)

    reader = FrameReader(right, admit)
    size = len(reader._view)
    left.send(frame(bytes(5000)))
    with pytest.raises(FrameError, match="body_bytes"):
        reader.feed()
    assert size == len(reader._view)
    assert len(right._sock.recv(10000)) == 5004


@pytest.mark.parametrize(
    ("place", "at", "value"),
    [
        ("magic", 0, b"X"),
        ("version", 4, b"\2"),
        ("kind", 6, b"\x09"),
        ("flags", 8, b"\1"),
    ],
)
def test_header_that_is_none_is_refused_before_admission(pair, place, at, value):
    left, right = pair
    spoilt = bytearray(frame())
    spoilt[at : at + 1] = value
    left.send(spoilt)

    def admit(_header):
        pytest.fail("asked to admit a header that is none")

    with pytest.raises(FrameError, match=place):
        FrameReader(right, admit).feed()


@pytest.mark.parametrize("size", [0, 1, 39, 40, 60])
def test_half_a_frame_is_not_waited_for_beyond_its_deadline(pair, size):
    left, right = pair
    left.send(frame()[:size])
    idle = time.monotonic() + (0.05 if size == 0 else SOON)
    with pytest.raises(LinkError, match="expected a frame in time"):
        FrameReader(right, admit_all).read(idle, 0.05)


def test_trickling_does_not_stretch_a_deadline(pair):
    left, right = pair
    stop = threading.Event()

    def trickle():
        for byte in frame():
            if stop.wait(0.01):
                return
            left.send(bytes([byte]))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(trickle)
        with pytest.raises(LinkError, match="expected a frame in time"):
            FrameReader(right, admit_all).read(soon(), 0.2)
        stop.set()


def test_waiting_reader_is_woken_by_the_stop_descriptor(pair):
    _left, right = pair
    stop = os.eventfd(0)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(FrameReader(right, admit_all).read, soon(), SOON, stop)
        os.eventfd_write(stop, 1)
        assert reading.result(SOON) is None
    with pytest.raises(LinkError):
        read_exactly(right, 1, soon(), stop)
    os.close(stop)


def test_waiting_ends_when_another_thread_aborts(pair):
    _left, right = pair
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(FrameReader(right, admit_all).read, soon(), SOON)
        right.abort()
        with pytest.raises(PeerDied):
            reading.result(SOON)
    right.close()
    right.abort()


def test_last_words_arrive_although_the_peer_kept_talking():
    listener = listen("tcp://127.0.0.1:0")
    with connect(listener.address) as near, accepted(listener) as far:
        near.send(bytes(50_000))
        assert wait_for(far, select.POLLIN, soon())
        far.send(frame())
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(far.finish, SOON)
            assert frame() == FrameReader(near, admit_all).read(soon(), SOON)
            near.close()
            ending.result(SOON)
    listener.close()


# ---- the key proof ----


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


def test_address_text_is_what_connect_takes(address):
    listener = listen(address)
    assert listener.address == parse(str(listener.address))
    with connect(str(listener.address)), accepted(listener) as far:
        assert str(listener.address) in far.peer
    listener.close()
