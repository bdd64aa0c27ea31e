"""Backpressure says who is behind: a refused claim names the holder, and since when."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import pytest
from rank_process_client import RankProcess
from scripted_worker import ScriptedWorker

from pp3shm import Engine, Profile, Row
from pp3shm.errors import Busy, Exhausted
from pp3shm.ring.behind import pid_of
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd, ProxyEnd

FAR = 10**18


@pytest.fixture
def engine():
    shape = Shape(
        rounds=2,
        page_bytes=64,
        request_bytes=64,
        failed_bytes=16,
        head_bytes=16,
        slots=1,
        max_positions=4,
    )
    region = Region.create(shape, layout_id=bytes(32))
    with EngineEnd(region, bytes(16 * len(CAUSES))) as end:
        yield end


def _profile() -> Profile:
    return Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=64)


def test_an_open_round_that_nobody_took_is_said_to_be_with_no_proxy(engine):
    """Then it is not a proxy that is slow: there is none, or it does not look."""
    before = time.monotonic_ns()
    first = engine.step(bytes(8), FAR)
    after = time.monotonic_ns()
    engine.step(bytes(8), FAR)
    with pytest.raises(Busy, match=r"still open: no proxy has it, asked 0\.\d+ s") as e:
        engine.step(bytes(8), FAR)
    behind = e.value.behind
    assert (first, None, None, None) == (behind.ticket, *behind[2:])
    assert before <= behind.asked_ns <= after
    assert behind.age_ns > 0


def test_an_open_round_names_the_proxy_that_has_it(engine):
    """By its owner id; a thread's process is this one."""
    with ProxyEnd.thread(engine) as proxy:
        first = engine.step(bytes(8), FAR)
        engine.step(bytes(8), FAR)
        proxy.take()
        with pytest.raises(Busy) as error:
            engine.step(bytes(8), FAR)
        words = f"proxy {proxy.owner} (pid {os.getpid()}) has it"
        assert words in str(error.value)
        assert (first, proxy.owner) == (error.value.behind.ticket, proxy.owner)
        engine.owner_dead(proxy.owner)


def test_a_page_in_quarantine_names_the_proxy_of_the_oldest_round(engine):
    """And since when that round was asked, though its entry has others since."""
    with ProxyEnd.thread(engine) as proxy:
        stamps = []
        for _ in range(4):  # two entries, two spare pages
            stamps.append(time.monotonic_ns())
            ticket = engine.step(bytes(8), FAR)
            proxy.take()
            engine.resolve(ticket, 2)
            engine.release(ticket)
        with pytest.raises(Exhausted, match="still has round 1, asked") as error:
            engine.step(bytes(8), FAR)
        behind = error.value.behind
        assert (1, None, proxy.owner) == behind[:1] + behind[2:4]
        assert stamps[0] <= behind.asked_ns <= stamps[1]


def test_the_oldest_round_is_known_before_a_claim_meets_it(engine):
    """Who is behind can be asked at any time."""
    assert engine.behind() is None
    with ProxyEnd.thread(engine) as proxy:
        for _ in range(2):
            engine.step(bytes(8), FAR)
        assert (1, None, None) == (engine.behind().ticket, *engine.behind()[2:4])
        for _ in range(2):
            proxy.publish(proxy.take())
            assert (1, 0, None) == (engine.behind().ticket, *engine.behind()[2:4])
            assert engine.behind().pid == os.getpid()
        engine.release(1)
        assert engine.behind().ticket == 2
        engine.release(2)
        assert engine.behind() is None
        engine.cancel(engine.step(bytes(8), FAR))
        assert engine.behind() is None
        engine.owner_dead(proxy.owner)


def test_a_silent_rank_is_named_with_its_process():
    """It is the one to look at, and to kill."""
    profile = _profile()
    with (
        ScriptedWorker(profile) as worker,
        Engine.create(
            profile, worker=worker.address, ranks=2, rounds=2, proxy="thread"
        ) as one,
        RankProcess(one.invitation, profile) as rank,
    ):
        one.wait_ranks(30)
        one.reset(0, [1])
        first = one.step([Row(0)], timeout_s=30)
        second = one.step([Row(0)], timeout_s=30)
        for ticket in (first, second):
            one.reply(ticket)
            one.release(ticket)
        with pytest.raises(Busy) as error:
            one.step([Row(0)])
        words = f"no release of it by rank 1 (pid {rank.process.pid}), asked "
        assert words in str(error.value)
        assert (first, 1) == (error.value.behind.ticket, error.value.behind.rank)
        assert one.behind() == error.value.behind


def test_a_stopped_proxy_process_is_named_with_its_process(eventually):
    """By the error of the claim that meets its round."""
    profile = _profile()
    with (
        ScriptedWorker(profile, lambda *_: None) as worker,
        Engine.create(profile, worker=worker.address, rounds=1) as one,
    ):
        one.reset(0, [1])
        ticket = one.step([Row(0)], timeout_s=60)
        eventually(lambda: one._ring.word(ticket) & 255, "a take")
        pid = one.stats()["proxy_pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(Busy, match=rf"proxy \d+ \(pid {pid}\) has it"):
                one.step([Row(0)])
            assert one.behind().pid == pid
        finally:
            os.kill(pid, signal.SIGCONT)


def test_a_pidfd_tells_its_process_until_that_is_gone():
    """A number for people, never a proof of life."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        pidfd = os.pidfd_open(process.pid)
        assert pid_of(pidfd) == process.pid
        with contextlib.suppress(BrokenPipeError):
            process.communicate(b"\n")
        assert pid_of(pidfd) is None
        os.close(pidfd)
    assert pid_of(-1) is None
    assert pid_of(pidfd) is None
