"""One round's outcome, as an engine or another rank reads it."""

import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from pp3shm._core import ffi
from pp3shm.errors import ConfigError, RegionError
from pp3shm.layout.profile import Profile
from pp3shm.layout.reply import ReplyLayout, ReplyViews
from pp3shm.layout.tables import Status
from pp3shm.ring.ring import Reader

TRACE_BYTES: int = ffi.sizeof("struct pp3_trace")
"""At the very end of a page, outside the ReplyLayout."""


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

    __slots__ = (
        "_release",
        "confidence",
        "failed",
        "ids",
        "mask",
        "place",
        "q",
        "round",
        "stale",
        "status",
        "tokens",
        "trace",
    )

    def __init__(
        self,
        views: ReplyViews,
        release: Callable[[int], None],
        *,
        ticket: int,
        place: int,
        failed: int,
        trace: Trace | None,
        stale: Iterable[int],
    ) -> None:
        self.round = ticket  # the page was compared with it, and is not read again
        self.stale = tuple(stale)
        self.status: NDArray[np.int32] = views.status.copy()
        for slot in self.stale:
            self.status[slot] = Status.STALE
        self.tokens = views.tokens
        self.confidence = views.confidence
        self.mask = views.mask
        self.ids = views.ids
        self.q = views.q
        self.place = place
        self.failed = Status(failed) if failed else None
        self.trace = trace
        self._release = release

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
        self._spin_ns = spin_ns
        self._first_failed = len(end.pages)
        self._views = [self.layout.views(buffer) for buffer in self.buffers]
        self._traces = [np.frombuffer(page[-TRACE_BYTES:], "<u8") for page in end.pages]

    def read(
        self,
        ticket: int,
        timeout_s: float | None,
        stale: Callable[[], Iterable[int]],
        release: Callable[[int], None],
    ) -> Reply:
        """Wait for a round; see ``Engine.reply``."""
        limit = None if timeout_s is None else after(timeout_s)
        found = self._end.wait(ticket, limit_ns=limit, spin_ns=self._spin_ns)
        place = found.place + (self._first_failed if found.status else 0)
        views = self._views[place]
        shown = int(views.round)  # loaded once: whoever maps the page may write it
        if shown != ticket:
            release(ticket)
            raise RegionError("page round", ticket, shown)
        return Reply(
            views,
            release,
            ticket=ticket,
            place=place,
            failed=found.status,
            trace=None if found.status else self._trace(found.place),
            stale=stale(),
        )

    def _trace(self, page: int) -> Trace | None:
        trace = Trace(*self._traces[page].tolist())
        return trace if trace.checked_ns else None  # 0: published as failed

    def close(self) -> None:
        """Let go of every view."""
        self.buffers.clear()
        self._views.clear()
        self._traces.clear()


LONGEST_S = 1e9
"""Longer waits are this long: 31 years, which fits the region's 64 bits."""


def after(seconds: float) -> int:
    """The time so many seconds from now, nanoseconds of CLOCK_MONOTONIC.

    Raises:
        ConfigError: a negative number, or none.
    """
    if not seconds >= 0:
        raise ConfigError("timeout_s", "0 or more seconds", seconds)
    return time.monotonic_ns() + int(min(seconds, LONGEST_S) * 1e9)
