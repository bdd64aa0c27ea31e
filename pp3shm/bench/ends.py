"""Engines to measure, with their far ends: all that ``ours.py`` needs running."""

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from pp3shm.bench import exchange
from pp3shm.bench.drafter import config_of
from pp3shm.bench.measure import cores
from pp3shm.engine import Engine
from pp3shm.errors import LinkError
from pp3shm.layout.reply import ReplyLayout
from pp3shm.parts import Parts
from pp3shm.reply import ReplyReader
from pp3shm.ring.handover import Doorman
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd
from pp3shm.ring.waiting import Wait, Waiting
from pp3shm.ring.watchdog import Watchdog

COMMAND = (sys.executable, "-P", "-m", "pp3shm.bench.drafter")
ROUNDS_IN_RING = 8
POSITIONS = 1 << 17
"""Room for what three repetitions of a subject could commit."""
START_S = 30.0


@dataclass(slots=True)
class Running:
    """An engine and who else runs for it.

    Attributes:
        engine: ready for rounds.
        processes: started here, by what they do.
        taker: what the process is that the watchdog started.
    """

    engine: Engine
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    taker: str = "proxy"

    def pids(self) -> dict[str, int]:
        """Of every process that takes part, by what it does."""
        found = {"engine": os.getpid()}
        proxy = self.engine.stats()["proxy_pid"]
        if proxy:
            found[self.taker] = proxy
        return found | {name: one.pid for name, one in self.processes.items()}


class NativeDrafter:
    """A drafter at the region, in the place of an engine's proxy.

    Args:
        ring: the engine's end.
        wait: how it waits.
    """

    def __init__(self, ring: EngineEnd, wait: Wait) -> None:
        config = config_of(POSITIONS, wait, exchange.frame(), core=cores()[1])
        self._watchdog = Watchdog(ring, (*COMMAND, "ring"), config=config)

    @property
    def owner(self) -> int:
        """As that of a proxy."""
        return self._watchdog.stats().owner

    def stats(self) -> dict[str, int]:
        """As those of a proxy."""
        return self._watchdog.stats().counts()

    def trouble(self) -> None:
        """None is looked for."""

    def replace(self) -> bool:
        """Not asked for."""
        return False

    def close(self) -> None:
        """End it."""
        self._watchdog.stop()


@contextlib.contextmanager
def at_the_ring(wait: Wait, ranks: int = 1) -> Iterator[Running]:
    """An engine whose drafter takes its rounds from the region."""
    profile = exchange.profile_of(POSITIONS)
    layout = ReplyLayout(profile.max_slots, profile.depth, sampled=True)
    shape = Shape(
        rounds=ROUNDS_IN_RING,
        ranks=ranks,
        page_bytes=profile.page_bytes,
        request_bytes=profile.step_bytes,
        failed_bytes=layout.size,
        head_bytes=layout.head_bytes,
        slots=profile.max_slots,
        max_positions=profile.max_positions,
    )
    region = Region.create(shape, layout_id=profile.layout_id)
    ring = EngineEnd(region, b"".join(layout.failed(cause, ()) for cause in CAUSES))
    doorman = Doorman(ring) if ranks > 1 else None
    proxy: Any = NativeDrafter(ring, wait)
    reader = ReplyReader(profile, ring, Waiting(wait))
    with Engine(profile, Parts(ring, doorman, proxy, reader)) as engine:
        yield Running(engine, taker="drafter")


@contextlib.contextmanager
def at_the_region(wait: Wait) -> Iterator[Running]:
    """An engine with a worker of Python at its region."""
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(
            Engine.create(
                exchange.profile_of(POSITIONS),
                worker="region://",
                rounds=ROUNDS_IN_RING,
                wait=wait,
                connect_timeout_s=0,
            )
        )
        stack.enter_context(process("region", wait, door=engine.door))
        engine.wait_connected(START_S)
        yield Running(engine, taker="worker")


@contextlib.contextmanager
def over_a_link(
    family: str,
    proxy: Literal["process", "thread"],
    wait: Wait,
    ranks: int = 1,
    role: str = "link",
) -> Iterator[Running]:
    """An engine whose native drafter is behind a socket.

    Args:
        family: "unix" or "tcp".
        proxy: as for ``Engine.create``.
        wait: likewise.
        ranks: likewise.
        role: of the drafter's process, "silent" where it shall not answer.
    """
    address = "tcp://127.0.0.1:0"
    if family == "unix":
        address = f"unix://@pp3shm-bench-{secrets.token_hex(8)}"
    with contextlib.ExitStack() as stack:
        worker, listens = stack.enter_context(process(role, address=address))
        engine = stack.enter_context(
            Engine.create(
                exchange.profile_of(POSITIONS),
                worker=listens,
                proxy=proxy,
                rounds=ROUNDS_IN_RING,
                ranks=ranks,
                wait=wait,
                connect_timeout_s=START_S,
            )
        )
        yield Running(engine, {"worker": worker})


@contextlib.contextmanager
def process(
    role: str, wait: Wait = "futex", **more: object
) -> Iterator[tuple["subprocess.Popen[bytes]", str]]:
    """A process of ``drafter.py`` and the first line that it says.

    Raises:
        LinkError: it ended before it said one.
    """
    frame = exchange.frame() if role in ("link", "silent") else b""
    core = -1 if role == "rank" else cores()[1]
    config = config_of(POSITIONS, wait, frame, core=core, **more)
    with subprocess.Popen(  # noqa: S603 - our own interpreter
        [*COMMAND, role],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as started:
        try:
            if started.stdin is None or started.stdout is None:
                raise LinkError(f"{role}: expected pipes, found none")
            started.stdin.write(config)
            said = started.stdout.readline().decode().strip()
            if not said:
                raise LinkError(f"{role}: expected it to start, found that it ended")
            yield started, said
        finally:
            if started.stdin is not None:
                started.stdin.close()
            _reap(started)


def _reap(process_: "subprocess.Popen[bytes]") -> None:
    try:
        process_.wait(5.0)
    except subprocess.TimeoutExpired:
        process_.kill()


@contextlib.contextmanager
def pinned() -> Iterator[None]:
    """Keeps this thread on the first core; those it started stay where they are."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cores()[0]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def until(condition: Any, what: str, limit_s: float = START_S) -> None:
    """Wait for it.

    Raises:
        LinkError: it did not come.
    """
    limit = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= limit:
            raise LinkError(f"bench: expected {what} in {limit_s} s, found it missing")
        time.sleep(0.002)
