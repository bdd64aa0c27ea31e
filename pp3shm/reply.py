"""One round's outcome, as an engine or another rank reads it."""

import contextlib
import errno
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from pp3shm._core import ffi, lib
from pp3shm.calls import Heard, Hearer, address
from pp3shm.errors import ConfigError, RegionError, RingError, Stale
from pp3shm.layout.profile import Profile
from pp3shm.layout.reply import ReplyLayout
from pp3shm.layout.tables import Status
from pp3shm.ring.clock import Clock
from pp3shm.ring.end import expect_ticket
from pp3shm.ring.ring import Reader
from pp3shm.ring.waiting import Waiting
from pp3shm.slots import slots_of

NEVER_NS = 2**64 - 1


class Trace(NamedTuple):
    """When a round passed the proxy, nanoseconds of CLOCK_MONOTONIC."""

    taken_ns: int
    sent_ns: int
    received_ns: int
    checked_ns: int


class Reply(Heard):
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

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        """Neither copied nor pickled: it shows a page, and only while that is held.

        Raises:
            TypeError: always.
        """
        raise TypeError("Reply: expected its arrays to be copied, found itself")

    @property
    def status(self) -> NDArray[np.int32]:
        """(max_slots,) int32, a ``Status`` per slot, a copy of the page's."""
        status: NDArray[np.int32] | None = self._status
        if status is None:
            slots = len(self._views.status)
            status = np.frombuffer(self._statuses, np.int32, slots)
            self._status = status
        return status

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
        return tuple(slots_of(self._stale))

    @property
    def failed(self) -> Status | None:
        """The status the round as a whole failed with; None: it was published."""
        failed = self._failed
        return Status(failed) if failed else None

    @property
    def trace(self) -> Trace | None:
        """When the round passed the proxy; None where no reply was accepted."""
        stamps = self._trace
        if not stamps[-1]:  # not checked: published as failed, or not at all
            return None
        return Trace(*map(Clock().ns_of, stamps))


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
        read: waits for a round, see ``Engine.reply``: its ticket; when the caller's own
            patience ends (see ``after``, else NEVER_NS); slots that the caller was told
            are stale, a bit each (else 0).
        release: lets a round go, see ``Engine.release``; again changes nothing.
    """

    def __init__(self, profile: Profile, end: Reader, waiting: Waiting) -> None:
        self.layout = ReplyLayout(profile.max_slots, profile.depth, profile.is_sampled)
        self.buffers = [*end.pages, *end.failed]
        self.adopted: list[Adopted] = []
        self._end = end
        views = tuple(self.layout.views(buffer) for buffer in self.buffers)
        recorder = lib.pp3_recorder_new(end.handle, end.rank)
        if recorder == ffi.NULL:
            raise RingError("recorder", "memory for one", "none")
        recorder = ffi.gc(recorder, lib.pp3_recorder_free)
        self._c = ffi.new(
            "struct pp3_hear *",
            {
                "recorder": recorder,
                "released": end.released,
                "rank": end.rank,
                "slots": profile.max_slots,
                "status_at": self.layout.offset["status"],
            },
        )
        waiting.tell(ffi.addressof(self._c, "waiter"))
        keep = self._c, recorder, end.released, end.handle
        self._hearer = Hearer(
            address(self._c), address(end.handle), keep, views, self._refuse, Reply
        )
        self.read: Callable[..., Reply] = self._hearer.read
        self.release: Callable[[int], None] = self._hearer.release

    def knows(self, asking: Any) -> None:
        """The engine's own rank can tell by itself what is stale.

        Args:
            asking: ``struct pp3_ask *``, which lives as long as its engine.
        """
        self._asking = asking
        self._c.ask = asking

    def _refuse(self, code: int, ticket: int, found: int) -> NoReturn:
        """Raises what a return code of ``read`` or ``release`` means."""
        if code == -errno.EBADF:
            raise RingError("ring", "an open end", "a closed one")
        expect_ticket(ticket)
        if code == -errno.EDOM:
            raise TypeError(f"ticket: expected an integer, found {ticket!r}")
        if code == -errno.EBADE:
            raise RegionError("page round", ticket, found)
        if code == -errno.EALREADY:
            raise Stale(f"round {ticket}", "not yet released", "released by this rank")
        self._end.refuse(code, ticket)

    def adopted_stats(self) -> dict[str, int]:
        """Counters of all that lives on the buffers."""
        return {name: n for part in self.adopted for name, n in part.stats().items()}

    def close(self) -> None:
        """Read no more, let go of what lives on the buffers, and then of these."""
        self._hearer.close()
        with contextlib.ExitStack() as last_to_first:
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
