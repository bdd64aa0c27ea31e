"""Connecting and listening: every family, keys demanded, and Unix socket files."""

import os
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from link_ends import KEY, SOON, accepted, admit_all, frame, soon

from pp3shm.errors import ConfigError, LinkError
from pp3shm.link import (
    FrameReader,
    connect,
    listen,
    parse,
)
from pp3shm.link import socket as link_socket


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


def test_address_text_is_what_connect_takes(address):
    listener = listen(address)
    assert listener.address == parse(str(listener.address))
    with connect(str(listener.address)), accepted(listener) as far:
        assert str(listener.address) in far.peer
    listener.close()


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
