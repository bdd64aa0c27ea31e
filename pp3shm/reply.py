"""One round's outcome, as an engine or another rank reads it."""

import errno
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from pp3shm._core import ffi, lib
from pp3shm.errors import ConfigError, RegionError, RingError, Stale
from pp3shm.layout.profile import Profile
from pp3shm.layout.reply import ReplyLayout, ReplyViews
from pp3shm.layout.tables import Status
from pp3shm.ring.clock import Clock
from pp3shm.ring.end import expect_ticket
from pp3shm.ring.ring import Reader
from pp3shm.slots import slots_of

NEVER_NS = 2**64 - 1
_STATUS_AT: int = ffi.offsetof("struct pp3_heard", "status")
_HEARD = ffi.typeof("struct pp3_heard *")
_AGAIN = -errno.EAGAIN
# Looked up once: both are called each step.
_new, _hear, _let_go = ffi.new, lib.pp3_hear, lib.pp3_let_go


class Trace(NamedTuple):
    """When a round passed the proxy, nanoseconds of CLOCK_MONOTONIC."""

    taken_ns: int
    sent_ns: int
    received_ns: int
    checked_ns: int


class Reply:
    """Zero-copy views of a resolved round; leaving the context releases its page.

    After the release the views show whatever stands in the page next, so nothing of
    them may be used then.

    Attributes:
        round: the round; the same number as its ticket.
        status: (max_slots,) int32, a ``Status`` per slot, a copy of the page's. A slot
            in ``stale`` is STALE here.
        tokens: (max_slots, depth) int32, the drafts; -1 where there are none.
        confidence: (max_slots, depth) float32.
        mask: (max_slots,) int32, 1 where ids and q are those of a sampled row; None in
            a greedy session, and so are ``ids`` and ``q``.
        ids: (max_slots, depth, 32) int32, ascending.
        q: (max_slots, depth, 32) float32, multiples of 2**-24 that add up to 1.
        stale: slots that were closed or opened anew since the round was asked.
        failed: the ``Status`` the round as a whole failed with, None where it was
            published. A published round can still hold failed rows.
        trace: when the round passed the proxy; None where no reply was accepted.
        place: index of its buffer among ``Engine.buffers`` or ``Rank.buffers``.
    """

    __slots__ = ("_heard", "_release", "_status", "_views")

    def __init__(
        self, heard: Any, views: ReplyViews, release: Callable[[int], None]
    ) -> None:
        self._heard = heard
        self._views = views
        self._release = release
        self._status: NDArray[np.int32] | None = None

    @property
    def round(self) -> int:
        """The round; the same number as its ticket."""
        return int(self._heard.round)

    @property
    def status(self) -> NDArray[np.int32]:
        """(max_slots,) int32, a ``Status`` per slot, a copy of the page's."""
        if self._status is None:
            own = ffi.buffer(self._heard)  # keeps what it shows
            slots = len(self._views.status)
            self._status = np.frombuffer(own, np.int32, slots, _STATUS_AT)
        return self._status

    @property
    def tokens(self) -> NDArray[np.int32]:
        """(max_slots, depth) int32, the drafts; -1 where there are none."""
        return self._views.tokens

    @property
    def confidence(self) -> NDArray[np.float32]:
        """(max_slots, depth) float32."""
        return self._views.confidence

    @property
    def mask(self) -> NDArray[np.int32] | None:
        """(max_slots,) int32, 1 where ids and q are those of a sampled row."""
        return self._views.mask

    @property
    def ids(self) -> NDArray[np.int32] | None:
        """(max_slots, depth, 32) int32, ascending."""
        return self._views.ids

    @property
    def q(self) -> NDArray[np.float32] | None:
        """(max_slots, depth, 32) float32, multiples of 2**-24 that add up to 1."""
        return self._views.q

    @property
    def stale(self) -> tuple[int, ...]:
        """Slots that were closed or opened anew since the round was asked."""
        return tuple(slots_of(self._heard.stale))

    @property
    def failed(self) -> Status | None:
        """The status the round as a whole failed with; None: it was published."""
        failed = self._heard.failed
        return Status(failed) if failed else None

    @property
    def trace(self) -> Trace | None:
        """When the round passed the proxy; None where no reply was accepted."""
        trace = self._heard.trace
        if not trace.checked:  # published as failed, or not at all
            return None
        stamps = trace.taken, trace.sent, trace.received, trace.checked
        return Trace(*map(Clock().ns_of, stamps))

    @property
    def place(self) -> int:
        """Index of its buffer among ``Engine.buffers`` or ``Rank.buffers``."""
        return int(self._heard.place)

    def __enter__(self) -> Self:
        """The reply itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Release the page."""
        self._release(self._heard.round)


class ReplyReader:
    """What engine and ranks share: views of every buffer made once, rounds read.

    Args:
        profile: gives the layout.
        end: the reader's end of the ring.
        spin_ns: how long a wait spins before it sleeps.

    Attributes:
        layout: of every buffer.
        buffers: read-only; every page, then every failed buffer.
    """

    def __init__(self, profile: Profile, end: Reader, spin_ns: int) -> None:
        self.layout = ReplyLayout(profile.max_slots, profile.depth, profile.is_sampled)
        self.buffers = [*end.pages, *end.failed]
        self._end = end
        self._ring: Any = end.handle  # None: closed
        self._views = [self.layout.views(buffer) for buffer in self.buffers]
        recorder = lib.pp3_recorder_new(end.handle, end.rank)
        if recorder == ffi.NULL:
            raise RingError("recorder", "memory for one", "none")
        self._recorder = ffi.gc(recorder, lib.pp3_recorder_free)
        self._c = ffi.new(
            "struct pp3_hear *",
            {
                "recorder": self._recorder,
                "released": end.released,
                "spin_ns": min(spin_ns, MOST_SPIN_NS),
                "rank": end.rank,
                "slots": profile.max_slots,
                "status_at": self.layout.offset["status"],
            },
        )

    def knows(self, asking: Any) -> None:
        """The engine's own rank can tell by itself what is stale.

        Args:
            asking: ``struct pp3_ask *``, which lives as long as its engine.
        """
        self._asking = asking
        self._c.ask = asking

    def read(
        self,
        ticket: int,
        timeout_s: float | None,
        stale: int,
        release: Callable[[int], None],
    ) -> Reply:
        """Wait for a round; see ``Engine.reply``.

        Args:
            ticket: of the round.
            timeout_s: own patience.
            stale: slots that the caller was told of, a bit each.
            release: called to let the round go.
        """
        limit = NEVER_NS if timeout_s is None else after(timeout_s)
        heard = _new(_HEARD)
        try:
            place = _hear(self._c, self._ring, ticket, limit, stale, heard)
            while place == _AGAIN:  # it comes back now and then, for signals
                place = _hear(self._c, self._ring, ticket, limit, stale, heard)
        except (OverflowError, TypeError):
            self._expect(ticket)
            raise
        if place < 0:
            self._refused(place, ticket, heard)
        return Reply(heard, self._views[place], release)

    def _expect(self, ticket: int) -> None:
        """Refuse what C has no words for: a closed end, and no number of a round."""
        if self._ring is None:
            raise RingError("ring", "an open end", "a closed one")
        expect_ticket(ticket)

    def _refused(self, code: int, ticket: int, heard: Any) -> NoReturn:
        self._expect(ticket)
        if code == -errno.EBADE:
            raise RegionError("page round", ticket, int(heard.round))
        if code == -errno.EALREADY:
            raise Stale(f"round {ticket}", "not yet released", "released by this rank")
        self._end.refuse(code, ticket)

    def release(self, ticket: int) -> None:
        """Let a round go; again changes nothing.

        Raises:
            Stale: the entry holds another round.
        """
        try:
            code = _let_go(self._c, self._ring, ticket)
        except (OverflowError, TypeError):
            self._expect(ticket)
            raise
        if code < 0:
            self._expect(ticket)
            self._end.refuse(code, ticket)

    def close(self) -> None:
        """Let go of every view."""
        self._ring = None
        self.buffers.clear()
        self._views.clear()


MOST_SPIN_NS = 10**18
"""Longer spins are this long: 31 years."""


def after(seconds: float) -> int:
    """The time so many seconds from now, nanoseconds of CLOCK_MONOTONIC.

    Raises:
        ConfigError: a negative number, or none.
    """
    when = int(lib.pp3_after(seconds))
    if when == 0:
        raise ConfigError("timeout_s", "0 or more seconds", seconds)
    return when
