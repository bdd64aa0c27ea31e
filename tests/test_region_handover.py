"""The door: who is let in, with what, and what a refusal says."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pp3shm.errors import RegionError, RingError
from pp3shm.ring import handover
from pp3shm.ring.handover import Doorman, attach_proxy, attach_rank
from pp3shm.ring.record import PROXY, Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd, ProxyEnd


def _engine(ranks: int, kind: str = "memfd") -> EngineEnd:
    shape = Shape(
        rounds=1,
        ranks=ranks,
        page_bytes=64,
        request_bytes=64,
        failed_bytes=16,
        head_bytes=16,
        slots=1,
        max_positions=4,
    )
    return EngineEnd(Region.create(shape, layout_id=bytes(32), kind=kind), bytes(48))


def _fds() -> set[str]:
    return {entry.name for entry in os.scandir("/proc/self/fd")}


@pytest.fixture
def engine():
    with _engine(3) as end:
        yield end


@pytest.mark.parametrize("kind", ["abstract", "path"])
def test_ranks_come_in_with_the_numbers_they_want(engine, kind):
    """In any order; then the engine may claim."""
    with Doorman(engine, kind) as door:
        with pytest.raises(RingError, match="rank 1 is not"):
            engine.step(bytes(8), 10**18)
        with attach_rank(door.address, 2) as two, attach_rank(door.address) as one:
            door.wait()
            assert (one.rank, two.rank) == (1, 2)
            assert engine.step(bytes(8), 10**18) == 1
    if kind == "path":
        assert not Path(door.address).parent.exists()


def test_a_socket_in_a_directory_is_its_owners_alone(engine):
    """Mode 0700: nobody else even reaches the door."""
    with Doorman(engine, "path") as door:
        assert Path(door.address).parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("rank", [0, 1, 3, -2, 2**31 - 1])
def test_a_number_that_is_not_free_is_refused_by_name(engine, rank):
    """Numbers of the living are never given again."""
    with (
        Doorman(engine) as door,
        attach_rank(door.address, 1),
        pytest.raises(RegionError, match=r"rank: expected a free one of \[2\]"),
    ):
        attach_rank(door.address, rank)


def test_a_full_house_lets_nobody_in(engine):
    """Ranks are fixed when the region is made."""
    with (
        Doorman(engine) as door,
        attach_rank(door.address),
        attach_rank(door.address),
        pytest.raises(RegionError, match="a free one"),
    ):
        attach_rank(door.address)


def test_missing_ranks_are_named(engine):
    """By whoever waits for them."""
    with Doorman(engine) as door, attach_rank(door.address, 1):
        with pytest.raises(RegionError, match=r"ranks \[2\]"):
            door.wait(0.05)
        with pytest.raises(RingError, match="rank 2 is not"):
            engine.step(bytes(8), 10**18)


def test_a_closed_door_is_an_error_not_a_wait(engine):
    """Its address is in it."""
    with Doorman(engine) as door:
        address = door.address
    door.close()
    with pytest.raises(RegionError, match=address):
        attach_rank(address)


@pytest.mark.parametrize(
    "ask", [b"", b"x", b"PP3X" + bytes(36), b"PP3R" + bytes(37), b"PP3R" + bytes(4)]
)
def test_nonsense_at_the_door_disturbs_no_rank(engine, ask):
    """It is refused, and the next one is let in."""
    with Doorman(engine) as door:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(b"\0" + door.address[1:].encode())
            link.send(ask)
            assert b"ask" in link.recv(2000)
        with attach_rank(door.address) as rank:
            assert rank.rank == 1


GOES = """
import array, os, socket, sys
link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
link.connect(b"\\0" + sys.argv[1][1:].encode())
link.send(b"PP3R" + (1).to_bytes(4, "little") + bytes(32))
data, fds, _, _ = socket.recv_fds(link, 65536, 8)
print(len(data) > 100, len(fds), flush=True)
if sys.argv[2] == "stay":
    link.close()
    print("closed", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("then", ["go", "stay"])
def test_a_rank_that_never_mapped_keeps_its_number_while_it_lives(engine, then):
    """It may hold descriptors; only its death frees the number."""
    with Doorman(engine) as door:
        with subprocess.Popen(
            [sys.executable, "-c", GOES, door.address, then],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as peer:
            assert peer.stdout.readline() == "True 4\n"
            if then == "stay":
                assert peer.stdout.readline() == "closed\n"
                with pytest.raises(RegionError, match=r"a free one of \[2\]"):
                    attach_rank(door.address, 1)
            peer.stdin.close()
            peer.wait()
        with attach_rank(door.address, 1) as rank:
            assert rank.rank == 1


def test_another_user_is_not_let_in(engine, monkeypatch):
    """The kernel says who is there."""
    with Doorman(engine) as door:
        monkeypatch.setattr(os, "geteuid", lambda: 4242)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.connect(b"\0" + door.address[1:].encode())
            with contextlib.suppress(ConnectionError):
                assert link.recv(2000) == b""


def test_a_door_of_another_user_is_not_gone_through(engine, monkeypatch):
    """An address of a dead engine may be taken by anybody."""
    with Doorman(engine) as door:
        monkeypatch.setattr(handover.os, "geteuid", lambda: 4242)
        with pytest.raises(RegionError, match=f"user 4242, found user {os.getuid()}"):
            attach_rank(door.address)


def test_an_older_kernel_gives_a_pidfd_by_another_way(engine, monkeypatch):
    """SO_PEERPIDFD is new; the pid of a connected peer is its own."""
    monkeypatch.setattr(handover, "_SO_PEERPIDFD", 12345)
    with Doorman(engine) as door, attach_rank(door.address) as rank:
        assert rank.rank == 1


def test_names_go_when_the_last_rank_has_come():
    """A region of POSIX names has none from then on."""
    with _engine(2, "posix") as engine, Doorman(engine) as door:
        name = Path(f"/dev/shm{engine.region.prefix}-control")
        assert name.exists()
        with attach_rank(door.address):
            door.wait()
            assert not name.exists()


def test_names_go_at_once_where_no_other_rank_is_to_come():
    """Rank 0 has attached already."""
    with _engine(1, "posix") as engine, Doorman(engine) as door:
        door.wait()
        assert not Path(f"/dev/shm{engine.region.prefix}-control").exists()


def test_a_forked_child_closes_the_door_it_inherited(engine):
    """And leaves the parent's open, with its directory."""
    with Doorman(engine, "path") as door:
        child = os.fork()
        if child == 0:
            os._exit(0 if door._door.fileno() == -1 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with attach_rank(door.address) as rank:
            assert rank.rank == 1


def _sent(data: bytes, fds: list[int]) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        socket.send_fds(ours, [data], fds)
    return theirs


def test_a_proxy_attaches_with_what_its_socket_brings(engine):
    """Record, descriptors, bell, and its own configuration."""
    region = engine.region
    bell = os.memfd_create("bell")
    shared = region.share(PROXY)
    record = region.record_for(PROXY, owner=9)
    link = _sent(record + b"configuration", [*shared.values(), bell])
    before = _fds()
    with link:
        proxy, config = attach_proxy(link)
        assert config == b"configuration"
        assert proxy.owner == 9
        proxy.close()
    for fd in (*shared.values(), bell):
        os.close(fd)
    assert _fds() < before


@pytest.mark.parametrize("wrong", ["nothing", "short", "fds"])
def test_a_proxy_refuses_half_a_handover(engine, wrong):
    """By name, and no descriptor is left open."""
    region = engine.region
    shared = region.share(PROXY)
    record = region.record_for(PROXY, owner=9)
    fds = [*shared.values()] if wrong == "short" else [*shared.values()][:2]
    link = _sent(record[:50] if wrong == "short" else record, fds)
    if wrong == "nothing":
        link.close()
        link, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        other.close()
    before = _fds()
    with link, pytest.raises(RegionError):
        attach_proxy(link)
    for fd in shared.values():
        os.close(fd)
    assert _fds() < before


def test_a_thread_proxys_end_outlives_no_ring(engine):
    """An owner id out of bounds makes no end."""
    with pytest.raises(RingError, match="ring"):
        ProxyEnd(engine.region, -1, 256)
