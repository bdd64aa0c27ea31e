"""What the ends of a ring share: return codes that become errors, views, waiting."""

import errno
import functools
import os
from typing import Any, NamedTuple, NoReturn, Self

from pp3shm._core import ffi, lib
from pp3shm.errors import RingError, Stale, WaitTimeout
from pp3shm.ring.region import Region

Bytes = bytes | bytearray | memoryview
CAUSES = (2, 7, 8)
"""The statuses the core itself gives: past its deadline, owner dead, cancelled."""

RING_COUNTERS: dict[str, int] = {
    "rounds_expired": lib.PP3_COUNT_EXPIRED,
    "rounds_orphaned": lib.PP3_COUNT_ORPHANED,
    "rounds_cancelled": lib.PP3_COUNT_CANCELLED,
    "publications_fenced": lib.PP3_COUNT_FENCED,
    "sleeps": lib.PP3_COUNT_SLEPT,
    "lost_wakes": lib.PP3_COUNT_LOST_WAKES,
}
"""What the core counts itself, by name."""

LAST_TICKET = 2**40 - 1
"""Tickets fill 40 bits of a state word."""

NOTE_BYTES: int = 8 * lib.PP3_NOTE_WORDS
"""Room of the note."""

_PUBLISHED, _FAILED = 3, 7  # states of a word; above 7 it failed with state - 7
_SIGNAL_NS = 50_000_000  # a wait comes back to Python so often, to let signals in


class Outcome(NamedTuple):
    """A resolved round, as a rank reads it until it releases it.

    Attributes:
        ticket: the round.
        status: 0: published, ``view`` is a page; else one of ``CAUSES``, and ``view``
            is the failed buffer of that cause.
        view: read-only bytes.
        place: of the page in ``pages``, or of the buffer in ``failed``.
        word: the state word, for whoever passes it on.
    """

    ticket: int
    status: int
    view: memoryview
    place: int
    word: int


def describe(word: int) -> str:
    """A state word in words, e.g. ``ticket 7, state 2, page 3, owner 1``."""
    return (
        f"ticket {word >> 24}, state {word >> 20 & 15}, "
        f"page {word >> 8 & 4095}, owner {word & 255}"
    )


def _free(_addresses: dict[str, Any], ring: Any) -> None:
    lib.pp3_ring_free(ring)


def expect_ticket(ticket: int) -> None:
    """Refuse a number that no round can have.

    Raises:
        RingError: below 1.
        Stale: beyond the last that there can be, so of no entry.
    """
    if ticket < 1:
        raise RingError("ticket", f"1..{LAST_TICKET}", ticket)
    if ticket > LAST_TICKET:
        raise Stale(f"round {ticket}", "still in its entry", "no such ticket")


class End:
    """What all ends share. The mappings live as long as an end or a view of them."""

    def __init__(self, region: Region, ring: Any, error: Any, *, owns: bool) -> None:
        """Takes over a ring of the C core; use a subclass."""
        if ring == ffi.NULL:
            if owns:
                region.close()
            raise RingError("ring", "an end of it", os.strerror(error[0]))
        self.region = region
        self._owns = owns
        self._ring = ffi.gc(ring, functools.partial(_free, dict(region.addresses)))
        places = ffi.new("struct pp3_places *")
        lib.pp3_shape_places(ffi.addressof(region.shape), places)
        self._places = places

    @property
    def handle(self) -> Any:
        """``struct pp3_ring *``, for calls of the C core.

        Raises:
            RingError: the end is closed.
        """
        if self._ring is None:
            raise RingError("ring", "an open end", "a closed one")
        return self._ring

    def _cut(
        self, name: str, start: int, stride: int, size: int, count: int
    ) -> list[memoryview]:
        whole = self.region.view(name)
        ends = (start + i * stride for i in range(count))
        return [whole[at : at + size] for at in ends]

    def _pages(self) -> list[memoryview]:
        shape, places = self.region.shape, self._places
        return self._cut("pages", 0, places.page_stride, shape.page_bytes, shape.pages)

    def _requests(self) -> list[memoryview]:
        shape, places = self.region.shape, self._places
        return self._cut(
            "pages",
            places.request_start,
            places.request_stride,
            shape.request_bytes,
            shape.pages,
        )

    def _refused(self, code: int, ticket: int = 0) -> NoReturn:
        """Raises what a return code means; a subclass knows more of its own."""
        found: object = os.strerror(-code)
        if code == -errno.EOWNERDEAD:
            raise RingError("process", "the one that attached", "a forked child")
        if code == -errno.EBADMSG:
            word = int(lib.pp3_bad_word(self.handle))
            raise RingError("state word", "one this ring can hold", describe(word))
        if code == -errno.ESTALE:
            raise Stale(f"round {ticket}", "still in its entry", "another's entry")
        if code == -errno.ETIMEDOUT:
            raise WaitTimeout(f"round {ticket}: not resolved within the caller's limit")
        raise RingError("call", "arguments within the ring's bounds", found)

    def refuse(self, code: int, ticket: int = 0) -> NoReturn:
        """Raises what a return code of a call made with ``handle`` means."""
        self._refused(code, ticket)

    def resolve(self, ticket: int, status: int) -> int:
        """Ends an open round with one of ``CAUSES``; one that is resolved stays so.

        Returns:
            The resolved state word.

        Raises:
            Stale: the entry holds another round.
            RingError: not one of ``CAUSES``.
        """
        word = ffi.new("uint64_t *")
        code = lib.pp3_resolve(self.handle, ticket, status, word)
        if code < 0:
            self._refused(code, ticket)
        return int(word[0])

    def word(self, ticket: int) -> int:
        """The state word in the entry of a ticket, whatever round it holds."""
        word = ffi.new("uint64_t *")
        code = lib.pp3_word(self.handle, ticket, word)
        if code < 0:
            self._refused(code, ticket)
        return int(word[0])

    def count(self, index: int, n: int = 1) -> None:
        """Adds to one of the region's counters; statistics only."""
        lib.pp3_count(self.handle, index, n)

    def counter(self, index: int) -> int:
        """A counter of the region.

        Raises:
            RingError: a forked child, which has no region.
        """
        if lib.pp3_here(self.handle) < 0:
            self._refused(-errno.EOWNERDEAD)
        return int(lib.pp3_counter(self.handle, index))

    def counters(self) -> dict[str, int]:
        """The ring's own counters by name."""
        return {name: self.counter(index) for name, index in RING_COUNTERS.items()}

    def note_write(self, note: bytes) -> None:
        """Leaves a note for people; of the live proxy alone.

        Raises:
            RingError: longer than ``NOTE_BYTES``.
        """
        code = lib.pp3_note_write(self.handle, note, len(note))
        if code < 0:
            self._refused(code)

    def note_read(self) -> bytes:
        """The note; nothing where none was left, or while it is being written."""
        out = ffi.new("uint8_t[]", NOTE_BYTES)
        length = lib.pp3_note_read(self.handle, out)
        if length == -errno.EAGAIN:
            return b""
        if length < 0:
            self._refused(length)
        return bytes(ffi.buffer(out, length))

    def is_open(self, ticket: int) -> bool:
        """True where the round is in its entry and not resolved."""
        word = self.word(ticket)
        state = word >> 20 & 15
        return word >> 24 == ticket and state != _PUBLISHED and state <= _FAILED

    def slot_read(self, slot: int, out: Any) -> tuple[int, bool, int]:
        """One consistent state of a request slot.

        Args:
            slot: its index.
            out: writable int32 buffer; its first ``length`` words become the committed
                prefix.

        Returns:
            generation, live, length in tokens.

        Raises:
            RingError: ``out`` is too short, the length is not a possible one, or the
                slot was written at each of many looks.
        """
        target = ffi.from_buffer("int32_t[]", out, require_writable=True)
        numbers = ffi.new("uint32_t[2]")
        length = ffi.new("uint64_t *")
        code = lib.pp3_slot_read(
            self.handle, slot, target, len(target), numbers, numbers + 1, length
        )
        if code in (-errno.ENOBUFS, -errno.EBADMSG, -errno.EAGAIN):
            wanted = f"at most {len(target)} tokens"
            found = "being written" if code == -errno.EAGAIN else length[0]
            raise RingError(f"slot {slot}", wanted, found)
        if code < 0:
            self._refused(code)
        return int(numbers[0]), bool(numbers[1]), int(length[0])

    def close(self) -> None:
        """Lets go of the ring, and of the region if it is this end's; idempotent.

        A call of another thread that is under way still ends well, and memory stays
        mapped as long as a view of it is used.
        """
        self._ring = None
        if self._owns:
            self.region.close()

    def __enter__(self) -> Self:
        """The end itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


class Reader(End):
    """What the engine's and a rank's end share: waiting, reading, releasing.

    Attributes:
        rank: its number.
        released: ``uint64_t[rounds]``, the last ticket of each entry it released.
    """

    def __init__(
        self, region: Region, ring: Any, error: Any, rank: int, *, owns: bool
    ) -> None:
        """Takes over a ring; use ``EngineEnd`` or ``RankEnd``."""
        super().__init__(region, ring, error, owns=owns)
        self.rank = rank
        shape = region.shape
        buffers = shape.rounds * len(CAUSES)
        stride = self._places.failed_stride
        failed = self._cut("failed", 0, stride, shape.failed_bytes, buffers)
        self.released: Any = ffi.new("uint64_t[]", shape.rounds)
        self._failed = [view.toreadonly() for view in failed]
        self._read = [page.toreadonly() for page in self._pages()]

    @property
    def pages(self) -> list[memoryview]:
        """Read-only views of all pages, by index."""
        return self._read

    @property
    def failed(self) -> list[memoryview]:
        """Read-only views of the failed buffers, by entry, and in it by ``CAUSES``."""
        return self._failed

    def wait(
        self, ticket: int, *, limit_ns: int | None = None, spin_ns: int = 0
    ) -> Outcome:
        """Waits for a round that this rank was told of; past its deadline it fails it.

        Args:
            ticket: the round.
            limit_ns: when the caller's own patience ends, CLOCK_MONOTONIC; None: never,
                for the round's deadline ends the wait.
            spin_ns: how long to spin before sleeping.

        Returns:
            The resolved round; its view stays unchanged until ``release``.

        Raises:
            WaitTimeout: the limit came first; the round is not failed by that.
            Stale: the entry holds another round.
            RingError: a hostile state word, or a forked child.
        """
        ring = self.handle
        expect_ticket(ticket)
        if ticket <= self.released[ticket % len(self.released)]:
            raise Stale(f"round {ticket}", "not yet released", "released by this rank")
        word = ffi.new("uint64_t *")
        now = lib.pp3_now()
        spun_at = now + spin_ns
        while True:
            until = now + _SIGNAL_NS  # ends a spin too, which then goes on
            last = limit_ns is not None and limit_ns <= until
            spin = min(max(0, spun_at - now), _SIGNAL_NS)
            code = lib.pp3_wait(ring, ticket, limit_ns if last else until, spin, word)
            if code != -errno.ETIMEDOUT or last:
                break
            now = lib.pp3_now()
        if code < 0:
            self._refused(code, ticket)
        return self.outcome(word[0])

    def try_wait(self, ticket: int) -> Outcome | None:
        """As ``wait``, but returns None at once while the round is open."""
        try:
            return self.wait(ticket, limit_ns=0)
        except WaitTimeout:
            return None

    def outcome(self, word: int) -> Outcome:
        """What a resolved word points to.

        Raises:
            RingError: it points nowhere in this region.
        """
        index = ffi.new("uint32_t *")
        status = lib.pp3_read(self.handle, word, index)
        if status < 0:
            self._refused(status)
        views = self._failed if status else self._read
        return Outcome(word >> 24, status, views[index[0]], index[0], word)

    def release(self, ticket: int) -> None:
        """This rank's last touch of a round; again changes nothing.

        Raises:
            Stale: the entry holds another round.
        """
        expect_ticket(ticket)
        code = lib.pp3_release(self.handle, self.rank, ticket)
        if code < 0:
            self._refused(code, ticket)
        at = ticket % len(self.released)
        # An older round released once more takes nothing back.
        self.released[at] = max(self.released[at], ticket)
