"""One round's outcome, as an engine or another rank reads it."""

import contextlib
import errno
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Protocol, Self

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
from pp3shm.ring.waiting import Waiting
from pp3shm.slots import slots_of

NEVER_NS = 2**64 - 1
_STATUS_AT: int = ffi.offsetof("struct pp3_heard", "status")
_HEARD = ffi.typeof("struct pp3_heard *")
_AGAIN = -errno.EAGAIN
# Looked up once: they are called each step.
_new, _hear, _let_go = ffi.new, lib.pp3_hear, lib.pp3_let_go
_blank: Callable[[type["Reply"]], "Reply"] = object.__new__
_references = sys.getrefcount


def _unshared() -> int:
    """References to a struct that a list and a local name refer to, and nobody else.

    Counted as ``ReplyReader.read`` counts: interpreters differ in what a call adds.
    """
    held = [object()]
    one = held[0]
    return _references(one)


_KNOWN = {(3, 11): 3, (3, 12): 3, (3, 13): 3, (3, 14): 2}
"""``_unshared()`` by version: the list, the name, before 3.14 the call's argument."""
_TRUSTED = (
    sys.implementation.name == "cpython"
    and "t" not in sys.abiflags  # free-threaded
    and not (hasattr(sys, "_jit") and sys._jit.is_enabled())  # noqa: SLF001 - no other
    and _KNOWN.get(sys.version_info[:2]) == _unshared()
)
"""A count of references says whether a struct may be used again.

Without an interpreter's lock it does not: a count is two words there, one for the
object's own thread, and whoever adds them up while a reply passes between others can
miss a reference. An interpreter that nobody has looked at may count in other ways, and
so does one whose frames a debugger keeps; what it then costs is a new struct a round.
"""
_UNSHARED = _unshared() if _TRUSTED else 0


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

    __slots__ = ("_heard", "_release", "_status", "_views", "round")

    # Set by ``ReplyReader.read``, without an __init__: a call of one takes as long as
    # all the rest of it.
    _heard: Any
    _views: ReplyViews
    _release: Callable[[int], None]
    _status: NDArray[np.int32] | None
    round: int

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
        self._release(self.round)


class Adopted(Protocol):
    """Something that lives on a reader's buffers, such as a registration with CUDA."""

    def stats(self) -> dict[str, int]:
        """Counters by name."""

    def close(self) -> None:
        """Nothing of the buffers is used after this."""


class ReplyReader:
    """What engine and ranks share: views of every buffer made once, rounds read.

    Args:
        profile: gives the layout.
        end: the reader's end of the ring.
        waiting: how it waits.

    Attributes:
        layout: of every buffer.
        buffers: read-only; every page, then every failed buffer.
        adopted: what lives on the buffers and is closed before them.
    """

    def __init__(self, profile: Profile, end: Reader, waiting: Waiting) -> None:
        self.layout = ReplyLayout(profile.max_slots, profile.depth, profile.is_sampled)
        self.buffers = [*end.pages, *end.failed]
        self.adopted: list[Adopted] = []
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
                "rank": end.rank,
                "slots": profile.max_slots,
                "status_at": self.layout.offset["status"],
            },
        )
        waiting.tell(ffi.addressof(self._c, "waiter"))
        self._release = self.release  # bound once
        self._heard = [_new(_HEARD) for _ in range(8)]

    def knows(self, asking: Any) -> None:
        """The engine's own rank can tell by itself what is stale.

        Args:
            asking: ``struct pp3_ask *``, which lives as long as its engine.
        """
        self._asking = asking
        self._c.ask = asking

    def read(self, ticket: int, limit_ns: int = NEVER_NS, stale: int = 0) -> Reply:
        """Wait for a round; see ``Engine.reply``.

        Args:
            ticket: of the round.
            limit_ns: when the caller's own patience ends; see ``after``.
            stale: slots that the caller was told of, a bit each.
        """
        try:
            heard = self._heard[ticket & 7]
            # Kept by an older reply or its status, or not to be told (_TRUSTED).
            if _references(heard) > _UNSHARED:
                heard = self._heard[ticket & 7] = _new(_HEARD)
            place = _hear(self._c, self._ring, ticket, limit_ns, stale, heard)
            while place == _AGAIN:  # it comes back now and then, for signals
                place = _hear(self._c, self._ring, ticket, limit_ns, stale, heard)
        except (OverflowError, TypeError):
            self._expect(ticket)
            raise
        if place < 0:
            self._refused(place, ticket, heard)
        reply = _blank(Reply)
        reply.round = ticket
        reply._heard = heard  # noqa: SLF001 - this is its __init__
        try:
            reply._views = self._views[place]  # noqa: SLF001
        except IndexError:  # closed by another thread meanwhile
            self._expect(ticket)
            raise
        reply._release = self._release  # noqa: SLF001
        reply._status = None  # noqa: SLF001
        return reply

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

    def adopted_stats(self) -> dict[str, int]:
        """Counters of all that lives on the buffers."""
        return {name: n for part in self.adopted for name, n in part.stats().items()}

    def close(self) -> None:
        """Let go of every view, and of what lives on the buffers before."""
        self._ring = None
        with contextlib.ExitStack() as last_to_first:
            last_to_first.callback(self._views.clear)
            last_to_first.callback(self.buffers.clear)
            while self.adopted:
                last_to_first.callback(self.adopted.pop().close)


def after(seconds: float) -> int:
    """The time so many seconds from now, nanoseconds of CLOCK_MONOTONIC.

    Raises:
        ConfigError: a negative number, or none.
    """
    when = int(lib.pp3_after(seconds))
    if when == 0:
        raise ConfigError("timeout_s", "0 or more seconds", seconds)
    return when
