"""An engine with its worker, whatever stands between them: for tests of all of it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from pp3shm import Engine, Row, Status, Worker
from pp3shm.errors import Busy, Exhausted
from pp3shm.link.address import parse_door
from pp3shm.link.socket import connect
from pp3shm.proxy.admission import LEFT, ask
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.ring.handover import attach_proxy
from pp3shm.ring.waiting import Waiting
from pp3shm.worker import RegionWorker
from pp3shm.worker.drafters import TableDrafter

WAYS = ("thread", "process", "region")
"""A proxy thread, a proxy process, or a worker that is its own proxy."""
HERE = Path(__file__).parent


def table(vocab=64):
    """The drafter of every way, and of ``serve_table``."""
    normal = np.random.default_rng(1).normal(size=(vocab, vocab))
    return TableDrafter(normal.astype(np.float32))


@contextlib.contextmanager
def connected(way, profile, drafter=None, **changes):
    """An engine with a session; its worker is in this process."""
    drafter = drafter or table(profile.vocab)
    with contextlib.ExitStack() as stack:
        if way != "region":
            worker = Worker(drafter, profile, ["tcp://127.0.0.1:0"])
            address = stack.enter_context(worker).addresses[0]
            engine = Engine.create(profile, worker=address, proxy=way, **changes)
            yield stack.enter_context(engine)
            return
        engine = Engine.create(
            profile, worker="region://", connect_timeout_s=0, **changes
        )
        stack.enter_context(engine)
        stack.enter_context(RegionWorker(drafter, profile, engine.door))
        engine.wait_connected(30)
        yield engine


class RegionProcess:
    """``pp3shm worker --region`` in a process of its own, to be killed.

    Args:
        door: the engine's.
        profile: its sizes; the vocabulary is 64, the drafter that of ``serve_table``.
        options: further words of the command.
    """

    def __init__(self, door, profile, *options):
        self._arguments = [
            *(sys.executable, "-m", "pp3shm", "worker", "--region", door),
            *("--sampled", "--drafter", "serve_table:DRAFTER"),
            *("--vocab", str(profile.vocab), "--depth", str(profile.depth)),
            *("--max-slots", str(profile.max_slots)),
            *("--max-positions", str(profile.max_positions)),
            *options,
        ]
        self.start()

    def start(self, *, wait=True):
        """Start it, and wait until it says that it is attached."""
        self.process = subprocess.Popen(
            self._arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=HERE,
        )
        if wait:
            said = self.process.stdout.readline()
            assert b"attached to" in said, (said, self.process.communicate())

    @property
    def pid(self):
        """Of the process that runs."""
        return self.process.pid

    def kill(self):
        """SIGKILL, and wait for the death."""
        self.process.kill()
        self.close()

    def finish(self, limit_s=60.0):
        """Wait for its end: its status, and what it said on standard error."""
        _, said = self.process.communicate(timeout=limit_s)
        return self.process.returncode, said.decode()

    def close(self):
        """Wait for its end and close its pipes."""
        self.process.communicate(timeout=60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        if not self.process.stdout.closed:
            self.close()


class RegionGuest:
    """Somebody of this process who gets the region, and is no worker of ours."""

    def __init__(self, engine):
        self.link = connect(parse_door(engine.door, "door"), 5)
        plan = ProxyPlan(engine.profile, engine.door, None, Waiting())
        ask(self.link, plan, time.monotonic() + 5)
        with socket.socket(fileno=os.dup(self.link.fileno())) as plain:
            self.end, _ = attach_proxy(plain, 5)

    def take(self, eventually):
        """The page of the next round, which it then may write to."""
        words = []
        eventually(lambda: words.append(self.end.take()) or words[-1], "a round")
        return words[-1] >> 8 & 4095

    def leave(self):
        """In order."""
        self.end.close()
        self.link.send(LEFT)

    def close(self):
        self.end.close()
        self.link.close()


def pages_given(engine, rounds=6):
    """Pages of some rounds that nobody answers."""
    seen = set()
    for _ in range(rounds):
        with contextlib.suppress(Busy, Exhausted):
            ticket = engine.step([Row(0)], timeout_s=0.01)
            seen.add(engine._ring.word(ticket) >> 8 & 4095)
            engine.reply(ticket)
            engine.release(ticket)
    return seen


def expect_fenced_page_kept(engine, pid, eventually):
    """Whoever has a round is stopped past its deadline: no other round gets its page.

    It stays stopped.

    Args:
        engine: slot 0 is open; SIGCONT lets ``pid`` answer again.
        pid: of the proxy, or of the worker at the region.
        eventually: the fixture.
    """
    fenced = stopped = False
    limit = time.monotonic() + 60
    while not fenced:
        assert time.monotonic() < limit
        if stopped:
            os.kill(pid, signal.SIGCONT)
        ticket = engine.step([Row(0)], timeout_s=0.02)
        eventually(lambda t=ticket: engine._ring.word(t) & 255, "a take")
        os.kill(pid, signal.SIGSTOP)
        stopped = True
        with engine.reply(ticket) as reply:
            fenced = reply.failed == Status.TIMEOUT
    page = engine._ring.word(ticket) >> 8 & 4095
    seen = pages_given(engine, 20)
    assert seen
    assert page not in seen
    assert engine.stats()["quarantined"] >= 1
