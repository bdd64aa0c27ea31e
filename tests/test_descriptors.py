"""Descriptors of any number: a user's process may have thousands open."""

import ast
import contextlib
import errno
import gc
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from far_ends import RegionProcess, connected, table

import pp3shm
from pp3shm import Engine, Profile, Row, Status
from pp3shm.ring import handover
from pp3shm.ring.handover import Doorman, attach_rank, is_dead, pidfd_of
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd
from pp3shm.worker import RegionWorker

MOST_OF_SELECT = 1024  # FD_SETSIZE
ROOT = Path(pp3shm.__file__).parent


@pytest.fixture
def crowded():
    """Every descriptor from here on has a number that select() cannot take."""
    wanted = MOST_OF_SELECT + 512
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"{hard} descriptors at most here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        last = 0
        while last < MOST_OF_SELECT:
            last = os.open(os.devnull, os.O_RDONLY)
            held.callback(os.close, last)
        yield


def uses_of_select(text: str) -> list[int]:
    """Lines that name ``select.select``, however it is imported."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and node.attr == "select":
            if isinstance(node.value, ast.Name) and node.value.id == "select":
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module == "select":
            found += [node.lineno for name in node.names if name.name == "select"]
    return found


def test_uses_of_select_are_found():
    assert [1] == uses_of_select("select.select([a], [], [])")
    assert [1] == uses_of_select("from select import poll, select")
    assert [] == uses_of_select("import select\nselect.poll()\nselect.epoll()")


def test_nothing_of_the_package_uses_select():
    """It takes no descriptor above 1023; poll does."""
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 100
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if (lines := uses_of_select(path.read_text()))
    }
    assert {} == found


@pytest.mark.usefixtures("crowded")
def test_a_death_is_seen_by_a_pidfd_of_any_number(eventually):
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
    ) as child:
        pidfd = os.pidfd_open(child.pid)
        assert pidfd > MOST_OF_SELECT
        assert not is_dead(pidfd)
        child.kill()
        eventually(lambda: is_dead(pidfd), "the death")
        child.wait()
        assert is_dead(pidfd)
        os.close(pidfd)


def test_of_a_descriptor_that_is_closed_nothing_is_known():
    pidfd = os.pidfd_open(os.getpid())
    os.close(pidfd)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        is_dead(pidfd)


@pytest.mark.usefixtures("crowded")
def test_a_peer_is_watched_over_a_link_of_any_number(monkeypatch):
    """Also by a kernel that gives no pidfd of a peer."""
    monkeypatch.setattr(handover, "_SO_PEERPIDFD", 9999)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pidfd = pidfd_of(ours)
        assert pidfd > MOST_OF_SELECT
        assert not is_dead(pidfd)
        os.close(pidfd)


@pytest.mark.usefixtures("crowded")
def test_ranks_come_in_at_a_door_of_any_number():
    shape = Shape(
        rounds=1,
        ranks=2,
        page_bytes=64,
        request_bytes=64,
        failed_bytes=16,
        head_bytes=16,
        slots=1,
        max_positions=4,
    )
    region = Region.create(shape, layout_id=bytes(32), kind="memfd")
    with (
        EngineEnd(region, bytes(48)) as engine,
        Doorman(engine) as door,
        attach_rank(door.address, 1) as rank,
    ):
        door.wait()
        assert 1 == rank.rank


@pytest.mark.parametrize("way", ["thread", "region"])
@pytest.mark.usefixtures("crowded")
def test_rounds_are_whole_with_descriptors_of_any_number(way):
    profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=512)
    with connected(way, profile) as engine:
        engine.reset(0, [5])
        with engine.reply(engine.step([Row(0)], timeout_s=10)) as reply:
            assert Status.OK == reply.status[0]


@pytest.mark.usefixtures("crowded")
def test_a_door_of_any_number_sees_a_death_and_lets_the_next_one_in(eventually):
    profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=512)
    with Engine.create(profile, worker="region://", connect_timeout_s=0) as engine:
        engine.reset(0, [5])
        with RegionProcess(engine.door, profile) as worker:
            engine.wait_connected(30)
            os.kill(worker.pid, signal.SIGKILL)
            eventually(lambda: engine._proxy._holder is None, "that it is free")
        with RegionWorker(table(), profile, engine.door):
            engine.wait_connected(30)
            with engine.reply(engine.step([Row(0)], timeout_s=10)) as reply:
                assert Status.OK == reply.status[0]


@pytest.mark.parametrize("way", ["thread", "process", "region"])
def test_a_closed_engine_that_is_kept_holds_no_descriptor(way, eventually):
    """They come back when it is closed, not when it is collected."""
    profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=512)

    def closed():
        with connected(way, profile) as engine:
            engine.reset(0, [5])
            with engine.reply(engine.step([Row(0)], timeout_s=10)) as reply:
                assert Status.OK == reply.status[0]
        return engine

    def held():
        return len(list(Path("/proc/self/fd").iterdir()))

    closed()  # what is opened once
    gc.collect()
    before = held()
    kept = [closed() for _ in range(3)]
    eventually(lambda: held() <= before, "the descriptors")
    assert 3 == len(kept)
