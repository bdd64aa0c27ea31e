"""What an inference engine imports: rounds out, replies in."""

import errno
import os
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from pp3shm._core import lib
from pp3shm.calls import Asker
from pp3shm.errors import (
    ConfigError,
    LinkError,
    ProfileError,
    RegionError,
    RingError,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import Status
from pp3shm.parts import Choices, Parts
from pp3shm.proxy.board import Board
from pp3shm.proxy.door import Door
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.proxy.state import SessionState
from pp3shm.reply import Adopted, Reply, after
from pp3shm.ring.flights import ROOM
from pp3shm.ring.ring import Behind
from pp3shm.ring.waiting import SPIN_NS, Wait, Waiting
from pp3shm.slots import Row, SlotTable
from pp3shm.stats import Histograms, Stats
from pp3shm.tracing import read_rounds, write_trace

REPLACE_S = 0.1
"""How long a claim waits for the death of a proxy that held every page."""


def _close(asker: Asker, parts: Parts) -> None:
    asker.close()
    parts.close()


class Engine:
    """The engine's end: a region, a proxy, a watchdog, and rank 0.

    One thread calls ``step`` and the slot operations; ``reply`` and ``release`` may be
    called by another. Make one with ``Engine.create`` and use it as a context manager.

    Attributes:
        profile: what was agreed with the worker.
        epoch: 16 bytes, the region's; keys the verifier's draws.
        layout: the ``ReplyLayout`` of every page.
    """

    def __init__(self, profile: Profile, parts: Parts) -> None:
        self.profile = profile
        self.layout = parts.reader.layout
        self.epoch: bytes = parts.ring.region.epoch
        self._ring = parts.ring
        self._reader = parts.reader
        self._doorman = parts.doorman
        self._proxy = parts.proxy
        self._board = Board(parts.ring)
        self._slots = SlotTable(profile, parts.ring, self.layout)
        self._reader.knows(self._slots.c)
        self._ask = self._slots.asker.step  # both bound once
        self._read = self._reader.read
        self._histograms = Histograms(parts.ring)
        # An engine that is dropped, or still open when the interpreter ends, is closed.
        self._finalizer = weakref.finalize(self, _close, self._slots.asker, parts)

    # -- life ----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        profile: Profile,
        *,
        worker: str,
        proxy: Literal["process", "thread"] = "process",
        rounds: int = 8,
        ranks: int = 1,
        kind: Literal["memfd", "posix"] = "memfd",
        psk: bytes | None = None,
        wait: Wait = "hybrid",
        spin_ns: int = SPIN_NS,
        connect_timeout_s: float = 10.0,
    ) -> Self:
        """Make the region, start proxy and watchdog, and greet the worker.

        Args:
            profile: what the worker must agree to, field by field.
            worker: its address: ``tcp://host:port``, ``unix:///path``, ``unix://@name``.
                Or the engine's own door, ``region://@name``, ``region:///path`` or
                ``region://`` for a random name (``door``): a worker of this host comes
                there for the region and is its own proxy.
            proxy: a process of its own, or a thread of this one; not of a door.
            rounds: entries of the ring, so rounds in flight, 1 to 1024.
            ranks: readers of every reply, 1 to 16; this process is rank 0.
            kind: ``memfd`` (no names at all) or ``posix`` (names under /dev/shm, gone
                as soon as all have attached).
            psk: pre-shared key of 16 to 64 bytes; needed beyond loopback.
            wait: how engine and proxy wait: ``futex`` sleeps at once, ``spin`` never
                sleeps and burns a core, ``hybrid`` spins as long as its last waits say
                that it pays.
            spin_ns: the longest spin of a hybrid.
            connect_timeout_s: how long to wait for the first session; 0: do not wait.

        Raises:
            ConfigError: an argument out of range.
            ProfileError: the worker's profile differs, by field.
            LinkError: no session within ``connect_timeout_s``.
            RegionError: the region cannot be made.
        """
        choices = Choices(rounds, ranks, kind, proxy)
        plan = ProxyPlan(profile, worker, psk, Waiting(wait, spin_ns))
        try:
            engine = cls(profile, Parts.make(profile, plan, choices))
        except OSError as error:  # of descriptors or memory, wherever it was found out
            raise RegionError("engine", "descriptors and memory", error) from error
        try:
            engine.wait_connected(connect_timeout_s)
        except BaseException:
            engine.close()
            raise
        return engine

    def wait_connected(self, timeout_s: float) -> None:
        """Wait until rounds go to the worker.

        Raises:
            ProfileError: the worker's profile differs, by field.
            LinkError: refused, or no session in time; the text says why.
        """
        limit = time.monotonic() + timeout_s
        while timeout_s > 0:
            state = self.session_state
            if state is SessionState.READY:
                return
            held = state in (SessionState.REFUSED, SessionState.INCIDENT)
            pending = self._board.reopen_pending()
            why = self._board.noted()
            if held and not pending and self.session_state is state:
                raise why if isinstance(why, ProfileError) else LinkError(str(why))
            why = why or self._proxy.trouble()
            if time.monotonic() >= limit:
                expected = (
                    f"worker: expected a session within {timeout_s} s, found none"
                )
                if isinstance(why, ProfileError):
                    raise why
                raise LinkError(expected if why is None else str(why))
            time.sleep(0.001)

    def close(self) -> None:
        """End proxy, watchdog and region. Safe to call twice."""
        self._finalizer()

    def __enter__(self) -> Self:
        """The engine itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    # -- slots ---------------------------------------------------------------------

    def reset(self, slot: int, prefix: Sequence[int]) -> int:
        """Open the next generation of ``slot`` with a request's committed prefix.

        Args:
            slot: 0 to max_slots - 1; rounds of its older generations become stale.
            prefix: token ids; at most max_positions.

        Returns:
            The generation, which keys the request's draws.

        Raises:
            ConfigError: no such slot, or a token outside the vocabulary.
            FrameError: tokens that are no 32-bit integers.
            RingError: more tokens than max_positions.
        """
        self._slots.expect(slot, live=False)
        tokens = self._slots.tokens(prefix)
        self._ring.slot_reset(slot, self._slots.generation(slot) + 1, tokens)
        return self._slots.opened(slot, tokens)

    def commit(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens that verification emitted to the request in ``slot``.

        Raises:
            Busy: the slot stands in an unresolved round. Cancel it first.
            ConfigError: a closed slot, or a token outside the vocabulary.
            RingError: the request would grow beyond max_positions.
        """
        self._slots.append(slot, tokens)

    def close_slot(self, slot: int) -> None:
        """The request is over: its slot is no longer restated to workers."""
        self._slots.expect(slot)
        self._ring.slot_close(slot)
        self._slots.closed(slot)

    @property
    def buffers(self) -> list[memoryview]:
        """Read-only; every page, then every failed buffer (``Reply.place``).

        For what reads pages by itself, such as ``pp3shm.gpu.Page``.
        """
        return self._reader.buffers

    def adopt(self, part: Adopted) -> None:
        """Close ``part`` before the mapping goes, and count it in ``stats``.

        For what lives on ``buffers``, such as a registration with CUDA
        (``pp3shm.gpu.pin``).
        """
        self._reader.adopted.append(part)

    @property
    def rounds_in_flight(self) -> int:
        """Entries of the ring: how many rounds can be open at once."""
        return int(self._ring.region.shape.rounds)

    def position(self, slot: int) -> int:
        """Tokens committed in ``slot``; where its next draft will stand."""
        self._slots.expect(slot)
        return self._slots.position(slot)

    def generation(self, slot: int) -> int:
        """The generation of ``slot``."""
        self._slots.expect(slot)
        return self._slots.generation(slot)

    # -- rounds --------------------------------------------------------------------

    def step(self, rows: Sequence[Row], *, timeout_s: float = 0.05) -> int:
        """Ask for drafts: claim a round, write its STEP, submit it.

        Args:
            rows: 1 to max_slots rows of distinct slots.
            timeout_s: the round's deadline from now; then it has failed.

        Returns:
            The ticket, which is also the round's number.

        Raises:
            Busy: the next entry is still in use; ``behind`` says by whom, since when.
            ConfigError: a slot that is closed or does not exist.
            RingError: not all ranks have attached.
            Exhausted: quarantine holds every spare page.
            FrameError: a row that is no STEP row, by name.
        """
        asked = tuple(rows)
        if asked != self._slots.rows:  # by identity first: the same rows cost nothing
            self._slots.ask_for(asked)
        ticket = self._ask(timeout_s)
        return ticket if ticket > 0 else self._ask_again(ticket, timeout_s)

    def _ask_again(self, code: int, timeout_s: float) -> int:
        """Raises why a step was refused, or repeats it without a stopped proxy.

        A stopped process can hold its pages for ever, a dead one cannot: its pages
        come back as soon as its death is known. See ``Exhausted``.
        """
        if code == -errno.EDOM:
            raise ConfigError("timeout_s", "0 or more seconds", timeout_s)
        if code == -errno.ENOENT:
            self._slots.expect(self._slots.c.closed)
        limit = time.monotonic() + REPLACE_S
        if code == -errno.ENOBUFS and self._proxy.replace():
            while code == -errno.ENOBUFS and time.monotonic() < limit:
                time.sleep(0.001)
                code = self._ask(timeout_s)
        if code == -errno.EBADF:
            raise RingError("ring", "an open end", "a closed one")
        if code < 0:
            self._ring.refuse(code)
        return code

    def reply(self, ticket: int, *, timeout_s: float | None = None) -> Reply:
        """Wait for a round to be resolved; at its deadline it is, whatever happened.

        Args:
            ticket: from ``step``.
            timeout_s: own patience; None waits to the round's deadline.

        Raises:
            WaitTimeout: ``timeout_s`` ended first; the round is still open.
            Stale: the ticket was released or never given.
            RegionError: somebody spoiled the page: it is of another round.
        """
        if timeout_s is None:
            return self._read(ticket)
        return self._read(ticket, after(timeout_s))

    def stale(self, ticket: int) -> list[int]:
        """Slots of a round that were closed or opened anew since it was asked.

        ``reply`` marks them STALE by itself; a further rank is told of them, so that
        all ranks take the same rows for failed.
        """
        return self._slots.stale(ticket)

    def release(self, ticket: int) -> None:
        """Rank 0 has read the round: nothing of its page is used after this."""
        self._reader.release(ticket)

    def cancel(self, ticket: int, *, told: bool = False) -> None:
        """Fail a round now, with status REFUSED, unless it is resolved already.

        Args:
            ticket: from ``step``.
            told: True if anybody was told of it, another rank or a thread that waits:
                they see the failed round, and all ranks release it.
        """
        if told:
            self._ring.resolve(ticket, int(Status.REFUSED))
        else:
            self._ring.cancel(ticket)
            lib.pp3_ask_over(self._slots.c, ticket)

    # -- looking -------------------------------------------------------------------

    @property
    def invitation(self) -> str:
        """What ``Rank.attach`` wants, in each further rank's process.

        Raises:
            ConfigError: there is one rank only.
        """
        if self._doorman is None:
            raise ConfigError("ranks", "more than one", 1)
        return self._doorman.address

    @property
    def door(self) -> str:
        """What ``pp3shm worker --region`` and ``RegionWorker`` want.

        Raises:
            ConfigError: the worker's address is no ``region://``.
        """
        if not isinstance(self._proxy, Door):
            raise ConfigError("worker", "region://...", "an address of another kind")
        return self._proxy.address

    def wait_ranks(self, timeout_s: float = 30.0) -> None:
        """Wait until all ranks have attached.

        Raises:
            RegionError: naming those that have not.
        """
        if self._doorman is not None:
            self._doorman.wait(timeout_s)

    @property
    def session_state(self) -> SessionState:
        """Where the proxy's session with the worker stands."""
        return self._board.state_of(self._proxy.owner)

    def reopen(self) -> None:
        """Allow a session again after an incident or a profile that differed."""
        self._board.ask_reopen()

    def behind(self) -> Behind | None:
        """Who holds the oldest round that is not over, and since when.

        From the thread that calls ``step``; it is the first that ``step`` could be
        refused for. None: every round is over.
        """
        return self._ring.behind()

    def stats(self) -> Stats:
        """Counters by name, and the times of each stage as ``stats().stages``.

        The counters are the proxy's (among them one for each reason a reply can be
        refused for), the ring's, the watchdog's and the flight recorder's.
        """
        pages = self._ring.stats()
        counters = {
            **self._board.all(),
            "session_state": int(self.session_state),
            **self._ring.counters(),
            "free_pages": pages.free_pages,
            "quarantined": pages.quarantined,
            **self._proxy.stats(),
            **self._reader.adopted_stats(),
        }
        return self._histograms.stats(counters)

    def trace(self, path: str | Path, *, last: int = ROOM) -> int:
        """Write the last rounds, stage by stage, for ui.perfetto.dev.

        As ``pp3shm trace`` does for an engine of another process.

        Args:
            path: a new file, or one to write over.
            last: at most so many rounds, of the 1024 that each rank's recorder holds.

        Returns:
            How many rounds were written.

        Raises:
            ConfigError: ``last`` is below 1.
            OSError: the file cannot be written.
        """
        if last < 1:
            raise ConfigError("last", "1 or more", last)
        region = self._ring.region
        with region.opened("acks") as fd:
            found = read_rounds(fd, region.shape)
        name = (region.prefix or f"engine {os.getpid()}").lstrip("/")
        return write_trace(path, found, region.shape, name, last)

    def last_error(self) -> Exception | None:
        """Why there is no session, or why the last one ended; None: all is well."""
        return self._board.noted()
