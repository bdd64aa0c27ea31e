"""Our own subjects: rounds from Python, step to checked reply to release.

    engine (Python) --- STEP, 356 bytes ---> [proxy ---> ] native drafter
                    <-- page, 5320 bytes ---
    |<------------------------ timed ------------------------->|

At the ring the drafter takes its rounds from the region, two parties; over a link
there are three, and the proxy is a thread or a process. In both the reply is a frame
that is held to the ten checks. Between rounds, untimed: three tokens are committed in
each slot.
"""

import contextlib
import os
import signal
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray

from pp3shm.bench import exchange
from pp3shm.bench.drafter import TICKET_BYTES
from pp3shm.bench.ends import (
    ROUNDS_IN_RING,
    Running,
    at_the_region,
    at_the_ring,
    over_a_link,
    pinned,
    process,
    until,
)
from pp3shm.bench.measure import Found, Sizes, flood_of, median, rounds_of
from pp3shm.engine import Engine
from pp3shm.errors import Busy, RegionError
from pp3shm.layout.tables import Status
from pp3shm.proxy.state import SessionState
from pp3shm.rank import Rank
from pp3shm.reply import Reply
from pp3shm.ring.waiting import Wait
from pp3shm.slots import Row

STAGES = ("taken", "sent", "received", "checked", "read")
TIMEOUT_S = 5.0
SHORT_S = 5e-5
DEADLY_S = 0.3
"""A proxy that lived so long did start; the watchdog starts the next at once."""

Open = Callable[[], AbstractContextManager[Running]]


class Rounds:
    """Rounds of one engine, all its slots.

    Args:
        engine: with or without further ranks.
        tell: called with each ticket, for ranks in other processes.
        ranks: further ranks in this one, which has read the round and lets it go for
            each of them.
    """

    def __init__(
        self,
        engine: Engine,
        tell: Callable[[int], object] | None = None,
        ranks: tuple[Rank, ...] = (),
    ) -> None:
        self._engine = engine
        self._tell = tell
        self._ranks = ranks
        self._slots = range(engine.profile.max_slots)
        self._rows = [Row(slot, user_seed=7) for slot in self._slots]
        self._open: list[int] = []
        # Numbers and no objects: what is kept must not set the collector going.
        self._stamps = array("q")
        self.steps: list[int] = []
        for slot in self._slots:
            engine.reset(slot, exchange.COMMITTED)

    def once(self) -> int:
        """One round; its nanoseconds."""
        engine, tell = self._engine, self._tell
        while True:
            start = time.monotonic_ns()
            try:
                ticket = engine.step(self._rows, timeout_s=TIMEOUT_S)
            except Busy:  # a rank is eight rounds behind; its time is not this round's
                time.sleep(SHORT_S)
            else:
                break
        asked = time.monotonic_ns()
        if tell is not None:
            tell(ticket)
        with engine.reply(ticket) as reply:
            pass
        for rank in self._ranks:
            rank.release(ticket)
        end = time.monotonic_ns()
        expect_whole(reply)
        if reply.trace is not None:
            self._stamps.extend((start, *reply.trace, end))
        self.steps.append(asked - start)
        for slot in self._slots:
            engine.commit(slot, exchange.COMMITTED)
        return end - start

    def look(self) -> None:
        """One round, untimed: its bytes are those of the drafter.

        Raises:
            RegionError: they are not.
        """
        sent = exchange.reply()
        ticket = self._engine.step(self._rows, timeout_s=TIMEOUT_S)
        if self._tell is not None:
            self._tell(ticket)
        for rank in self._ranks:
            with rank.reply(ticket):
                pass
        with self._engine.reply(ticket) as reply:
            expect_whole(reply)
            for name in ("tokens", "confidence", "ids", "q"):
                if not np.array_equal(getattr(reply, name), getattr(sent, name)):
                    raise RegionError(f"page {name}", "what was drafted", "other bytes")

    def ask(self) -> None:
        """Begin a round; where the oldest one's rank is slow, wait for it."""
        while True:
            try:
                ticket = self._engine.step(self._rows, timeout_s=TIMEOUT_S)
            except Busy:
                continue
            self._open.append(ticket)
            return

    def hear(self) -> None:
        """End the oldest of those begun."""
        with self._engine.reply(self._open.pop(0)) as reply:
            expect_whole(reply)

    def stamps(self, last: int) -> NDArray[np.int64]:
        """(at most last, 6): of the last rounds that were answered, nanoseconds."""
        return np.array(self._stamps).reshape(-1, len(STAGES) + 1)[-last:]

    def stage_medians(self, last: int) -> dict[str, float]:
        """Nanoseconds of each stage, of the last rounds."""
        steps = np.diff(self.stamps(last), axis=1)
        return {name: median(steps[:, i].tolist()) for i, name in enumerate(STAGES)}

    def notes(self, last: int) -> dict[str, float]:
        """What the call of ``step`` takes, and the way from it to the checked page."""
        stamps = self.stamps(last)
        checked = stamps[:, 4] - stamps[:, 0]
        p50, p99 = np.quantile(checked, [0.5, 0.99]) * 1e-3
        return {
            "step_p50_us": median(self.steps) * 1e-3,
            "checked_p50_us": float(p50),
            "checked_p99_us": float(p99),
        }


def expect_whole(reply: Reply) -> None:
    """Every row was drafted and passed.

    Raises:
        RegionError: with what it failed.
    """
    if reply.failed is not None or reply.status.any():
        found = reply.failed or reply.status.tolist()
        raise RegionError("round", "a reply with all rows", found)


class Plain:
    """Rounds one after the other, and then with eight under way.

    Args:
        open_: the engine.
        pause_s: before each round; then there is no flood.
        busy: beside a thread of this process that runs Python and nothing else.
        ranks: further ranks: "" none, "here" three in this process, "there" three in
            processes of their own.
    """

    def __init__(
        self, open_: Open, pause_s: float = 0.0, *, busy: bool = False, ranks: str = ""
    ) -> None:
        self._open = open_
        self._pause_s = pause_s
        self._busy = busy
        self._where = ranks

    def measure(self, sizes: Sizes) -> Found:
        """One repetition."""
        with contextlib.ExitStack() as stack:
            running = stack.enter_context(self._open())
            engine, pids = running.engine, running.pids()
            tell: Callable[[int], None] | None = None
            ranks: tuple[Rank, ...] = ()
            if self._where == "here":
                ranks = stack.enter_context(_ranks_here(engine))
            elif self._where == "there":
                tell = stack.enter_context(_ranks_there(engine))
            rounds = Rounds(engine, tell, ranks)
            rounds.look()
            stack.enter_context(pinned())
            if self._busy:
                stack.enter_context(_busy_thread())
            found = rounds_of(rounds.once, sizes, running.pids() | pids, self._pause_s)
            found.stages = rounds.stage_medians(len(found.ns))
            found.notes = rounds.notes(len(found.ns))
            if not (self._pause_s or self._busy or self._where):
                found.per_second = flood_of(
                    rounds.ask, rounds.hear, sizes, ROUNDS_IN_RING
                )
            rounds.look()
        return found


class Kill:
    """From SIGKILL of the proxy to the failed reply in the hands of the rank."""

    def measure(self, sizes: Sizes) -> Found:
        """One repetition."""
        killed: set[int] = set()
        with over_a_link("unix", "process", "hybrid", role="silent") as running:
            engine = running.engine
            rows = [Row(slot) for slot in range(engine.profile.max_slots)]
            for row in rows:
                engine.reset(row.slot, exchange.COMMITTED)
            with pinned():
                return Found(
                    [_one_death(engine, rows, killed) for _ in range(sizes.deaths)]
                )


def _one_death(engine: Engine, rows: list[Row], killed: set[int]) -> int:
    def ready() -> bool:
        # The last word of the one killed before may still stand there.
        pid = engine.stats()["proxy_pid"]
        return pid not in {0, *killed} and engine.session_state is SessionState.READY

    until(ready, "a session")
    time.sleep(DEADLY_S)
    before = engine.stats()["steps_sent"]
    ticket = engine.step(rows, timeout_s=TIMEOUT_S)
    until(lambda: engine.stats()["steps_sent"] > before, "the STEP to be sent")
    pid = engine.stats()["proxy_pid"]
    killed.add(pid)
    start = time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    with engine.reply(ticket) as reply:
        end = time.monotonic_ns()
        if reply.failed is not Status.PEER_DIED:
            raise RegionError("round", "PEER_DIED", reply.failed)
    return end - start


@contextlib.contextmanager
def _ranks_here(engine: Engine) -> Iterator[tuple[Rank, ...]]:
    with contextlib.ExitStack() as stack:
        ranks = tuple(
            stack.enter_context(Rank.attach(engine.invitation, engine.profile))
            for _ in range(3)
        )
        engine.wait_ranks()
        yield ranks


@contextlib.contextmanager
def _ranks_there(engine: Engine) -> Iterator[Callable[[int], None]]:
    with contextlib.ExitStack() as stack:
        fds = []
        for _ in range(3):
            started = process("rank", invitation=engine.invitation)
            rank, _ = stack.enter_context(started)
            if rank.stdin is not None:
                fds.append(rank.stdin.fileno())
        engine.wait_ranks()

        def tell(ticket: int) -> None:
            told = ticket.to_bytes(TICKET_BYTES, "little")
            for fd in fds:
                os.write(fd, told)

        yield tell


@contextlib.contextmanager
def _busy_thread() -> Iterator[None]:
    stop = threading.Event()

    def run() -> None:
        number = 0
        while not stop.is_set():
            for _ in range(1000):
                number = (number * 31 + 7) % 65537

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def ring(wait: Wait, ranks: int = 1) -> Open:
    """How to open an engine with its drafter at the ring."""
    return lambda: at_the_ring(wait, ranks)


def region(wait: Wait) -> Open:
    """How to open an engine with a worker of Python at its region."""
    return lambda: at_the_region(wait)


def link(family: str, proxy: str, ranks: int = 1, wait: Wait = "hybrid") -> Open:
    """How to open an engine with its drafter behind a socket."""
    way = "thread" if proxy == "thread" else "process"
    return lambda: over_a_link(family, way, wait, ranks)  # type: ignore[arg-type]
