"""The ends of a ring: the engine's, a rank's and the proxy's.

Here and in ``end`` a return code of the C core becomes an exception. Every view of a
page, request or failed buffer is made once. Times are CLOCK_MONOTONIC, in nanoseconds.
"""

import errno
import os
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Self

from pp3shm._core import ffi, lib
from pp3shm.errors import RingError
from pp3shm.ring.behind import Behind, owners_of, pid_of, refusal
from pp3shm.ring.end import CAUSES, Bytes, End, Outcome, Reader, describe
from pp3shm.ring.record import PROXY, RANK, new_record
from pp3shm.ring.region import Region

__all__ = [
    "CAUSES",
    "Behind",
    "EngineEnd",
    "Outcome",
    "ProxyEnd",
    "RankEnd",
    "Reader",
    "Stats",
    "describe",
]


class Stats(NamedTuple):
    """Where the pages are.

    Attributes:
        free_pages: pages no round holds.
        quarantined: pages that a fenced proxy has not let go of.
        owners: pages in quarantine by owner id.
    """

    free_pages: int
    quarantined: int
    owners: dict[int, int]


class EngineEnd(Reader):
    """The engine's end, and rank 0. One thread claims.

    Args:
        region: a fresh one of ``Region.create``; closed with this end.
        templates: the failed buffers for ``CAUSES``, one behind the other.

    Raises:
        RingError: templates of another size, or no memory.
    """

    def __init__(self, region: Region, templates: Bytes) -> None:
        """Fills the failed buffers and gives the region its magic."""
        wanted = len(CAUSES) * region.shape.failed_bytes
        if len(templates) != wanted:
            region.close()
            raise RingError("templates", f"{wanted} bytes", f"{len(templates)} bytes")
        error = ffi.new("int *")
        ring = lib.pp3_ring_create(
            ffi.addressof(region.shape),
            region.parts(),
            ffi.from_buffer(templates),
            error,
        )
        super().__init__(region, ring, error, 0, owns=True)
        self._request = self._requests()
        self._first = region.addresses["pages"] + self._places.request_start
        self._threads: set[int] = set()
        self.pid_of_owner: Callable[[int], int | None] = lambda _owner: None
        """Set by whoever starts proxy processes; for the words of an error only."""

    def _behind(self, code: int, why: Any) -> Behind | None:
        """Who holds the round that a refused claim met."""
        if code == -errno.ENOBUFS:
            if why.held_ticket == 0:
                return None
            ticket, asked, owner = why.held_ticket, why.held_asked_ns, why.held_owner
            return Behind(ticket, asked, None, owner, self._pid_of(owner))
        ticket, asked = why.ticket, why.asked_ns
        if code == -errno.EBUSY and why.rank >= 0:
            pidfd = lib.pp3_rank_pidfd(self.handle, why.rank)
            pid = pid_of(pidfd) if why.rank else os.getpid()
            return Behind(ticket, asked, why.rank, None, pid)
        owner = (self.word(ticket) & 255) or None
        return Behind(ticket, asked, None, owner, self._pid_of(owner))

    def _pid_of(self, owner: int | None) -> int | None:
        if owner is None:
            return None
        return os.getpid() if owner in self._threads else self.pid_of_owner(owner)

    def behind(self) -> Behind | None:
        """Who holds the oldest round that is not over; from the thread that claims.

        That round is not always the one the next claim will meet, but it is the first
        that a claim can be refused for. None: every round is over.
        """
        why = ffi.new("struct pp3_why *")
        code = lib.pp3_oldest(self.handle, why)
        if code in (-errno.EAGAIN, -errno.EBUSY):
            return self._behind(code, why)
        if code < 0:
            self._refused(code)
        return None

    def _refused(self, code: int, ticket: int = 0) -> NoReturn:
        why = ffi.new("struct pp3_why *")
        lib.pp3_why(self.handle, why)
        if code in (-errno.EAGAIN, -errno.EBUSY, -errno.ENOBUFS):
            raise refusal(code, why, self._behind(code, why))
        if code == -errno.ENOTCONN:
            found = f"rank {why.rank} is not"
            raise RingError("ranks", "all attached before the first claim", found)
        if code == -errno.EOVERFLOW:
            raise RingError("ticket", "below 2**40 - 1", "all of them used")
        if code == -errno.EMSGSIZE:
            most = self.region.shape.request_bytes
            raise RingError("request", f"8 to {most} bytes", "another size")
        if code == -errno.EUSERS:
            raise RingError("owner", "a free id of 255", "all living or named")
        super()._refused(code, ticket)

    def _heads(self, heads: Bytes | None) -> Any:
        if heads is None:
            return ffi.NULL
        wanted = len(CAUSES) * self.region.shape.head_bytes
        if len(heads) != wanted:
            raise RingError("heads", f"{wanted} bytes", f"{len(heads)} bytes")
        return ffi.from_buffer(heads)

    def step(self, request: Bytes, deadline_ns: int, heads: Bytes | None = None) -> int:
        """Claims a round, copies its request, stamps the ticket, submits: one C call.

        Args:
            request: at least 8 bytes; the first 8 become the ticket.
            deadline_ns: CLOCK_MONOTONIC; past it the round is failed with status 2.
            heads: the first ``head_bytes`` of the failed buffers for ``CAUSES``, one
                behind the other; the first 8 bytes of each become the ticket. None
                leaves those of the templates.

        Returns:
            The ticket: rounds are numbered from 1, without gaps.

        Raises:
            Busy: the entry's last round is open, or a rank has not released it.
            Exhausted: no free page; the error names who holds them.
            RingError: ranks missing, tickets spent, a size, a hostile word.
        """
        data = ffi.from_buffer(request)
        ticket = lib.pp3_step(
            self.handle, data, len(data), self._heads(heads), deadline_ns
        )
        if ticket < 0:
            self._refused(ticket)
        return int(ticket)

    def claim(self, deadline_ns: int, heads: Bytes | None = None) -> int:
        """The first half of ``step``: the request may now be written in place."""
        ticket = lib.pp3_ask(self.handle, self._heads(heads), deadline_ns)
        if ticket < 0:
            self._refused(ticket)
        return int(ticket)

    def request(self, ticket: int) -> memoryview:
        """Where the request of a claimed round stands; writable until submitted.

        Raises:
            Stale: the entry holds another round.
        """
        at = lib.pp3_request_of(self.handle, ticket)
        if at == ffi.NULL:
            self._refused(-errno.ESTALE, ticket)
        # by what was claimed here, never by the shared word: that may be spoiled
        return self._request[int((at - self._first) // self._places.request_stride)]

    def submit(self, ticket: int) -> None:
        """The second half of ``step``: the round may be taken.

        Raises:
            Stale: the entry holds another round.
        """
        code = lib.pp3_submit(self.handle, ticket)
        if code < 0:
            self._refused(code, ticket)

    def cancel(self, ticket: int) -> None:
        """Ends a round that no rank was told of; it needs no release.

        Raises:
            Busy: a stream still has to submit it.
            Stale: the entry holds another round.
        """
        code = lib.pp3_cancel(self.handle, ticket)
        if code < 0:
            self._refused(code, ticket)

    def attach_rank(self, rank: int, pidfd: int) -> None:
        """Counts a rank as attached; before the first claim.

        Args:
            rank: 1 or more.
            pidfd: of its process; copied.

        Raises:
            RingError: no such rank, or it was attached before.
        """
        code = lib.pp3_rank_attach(self.handle, rank, pidfd)
        if code < 0:
            self._refused(code)

    def rank_dead(self, rank: int) -> bool:
        """True where the rank's process is known to be gone."""
        return bool(lib.pp3_rank_dead(self.handle, rank) == 1)

    def add_owner(self) -> int:
        """An owner id for a proxy whose end ``owner_dead`` will be told of.

        Raises:
            RingError: all 255 are living, or still named by a round.
        """
        owner = lib.pp3_owner_add_thread(self.handle)
        if owner < 0:
            self._refused(owner)
        return int(owner)

    def add_thread_owner(self) -> int:
        """As ``add_owner``, for a thread of this process."""
        owner = self.add_owner()
        self._threads.add(owner)
        return owner

    def owner_dead(self, owner: int) -> int:
        """It touches nothing any more: what it was writing fails with status 7.

        Returns:
            How many rounds that were.
        """
        failed = lib.pp3_owner_dead(self.handle, owner)
        if failed < 0:
            self._refused(failed)
        self._threads.discard(owner)
        return int(failed)

    def slot_reset(self, slot: int, generation: int, tokens: Any) -> None:
        """Opens a generation of a slot with its committed prefix.

        Args:
            slot: its index.
            generation: larger than every one before it.
            tokens: int32 buffer.

        Raises:
            RingError: a generation that does not grow, or too many tokens.
        """
        words = _int32(tokens)
        code = lib.pp3_slot_reset(self.handle, slot, generation, words, len(words))
        if code < 0:
            self.slot_refused(code, slot, len(words), generation)

    def slot_append(self, slot: int, tokens: Any) -> None:
        """Adds committed tokens to a live slot.

        Raises:
            RingError: the slot is closed, or would grow beyond ``max_positions``.
        """
        words = _int32(tokens)
        code = lib.pp3_slot_append(self.handle, slot, words, len(words))
        if code < 0:
            self.slot_refused(code, slot, len(words))

    def slot_close(self, slot: int) -> None:
        """The request in it is over; its generation is kept."""
        code = lib.pp3_slot_close(self.handle, slot)
        if code < 0:
            self._refused(code)

    def slot_refused(
        self, code: int, slot: int, n: int, generation: int | None = None
    ) -> NoReturn:
        """Raises why ``n`` tokens were not put into a slot."""
        place = f"slot {slot}"
        if code == -errno.ENOENT:
            raise RingError(place, "a live one", "closed, or never reset")
        if code == -errno.ENOSPC:
            most = self.region.shape.max_positions
            raise RingError(place, f"at most {most} tokens", f"{n} more")
        if code == -errno.EINVAL and slot < self.region.shape.slots:
            raise RingError(place, "a larger generation", generation)
        self._refused(code)

    def stats(self) -> Stats:
        """Where the pages are; from the thread that claims."""
        why = ffi.new("struct pp3_why *")
        lib.pp3_why(self.handle, why)
        return Stats(why.free_pages, why.quarantined, owners_of(why))


class RankEnd(Reader):
    """The end of a rank other than 0.

    Args:
        region: attached with a rank's record, and then closed with this end; or the
            engine's own, for a rank that is a thread of its process.
        rank: needed only with the engine's own.
    """

    def __init__(self, region: Region, rank: int | None = None) -> None:
        """Makes the end of an attached region."""
        own = region.record.role == RANK
        record = region.record if own else new_record(ffi.addressof(region.shape))
        error = ffi.new("int *")
        ring = lib.pp3_ring_attach(record, region.parts(), -1, error)
        number = record.rank if rank is None else rank
        super().__init__(region, ring, error, number, owns=own)


class ProxyEnd(End):
    """The end of a proxy; one thread uses it.

    Args:
        region: attached with a proxy's record, and then closed with this end; or the
            engine's own, for a proxy that is a thread of its process.
        bell: the eventfd that was handed over; copied.
        owner: needed only with the engine's own region.
    """

    def __init__(self, region: Region, bell: int, owner: int | None = None) -> None:
        """Makes the end; its cursor starts a lap before the newest round."""
        own = region.record.role == PROXY
        record = region.record
        if not own:
            record = new_record(ffi.addressof(region.shape))
            record.owner = owner or 0
        error = ffi.new("int *")
        ring = lib.pp3_ring_attach(record, region.parts(), bell, error)
        super().__init__(region, ring, error, owns=own)
        self.owner = int(record.owner)
        self._page = self._pages()
        self._request = [view.toreadonly() for view in self._requests()]

    @classmethod
    def thread(cls, engine: EngineEnd) -> Self:
        """An end for a thread of the engine's process.

        Whoever joins the thread calls ``engine.owner_dead(end.owner)``.
        """
        owner = engine.add_thread_owner()
        try:
            return cls(engine.region, lib.pp3_bell_fd(engine.handle), owner)
        except BaseException:
            engine.owner_dead(owner)  # nobody ever had it
            raise

    def take(self) -> int | None:
        """The word of the next submitted round, which is now this proxy's, or None.

        Raises:
            RingError: a hostile state word.
        """
        word = ffi.new("uint64_t *")
        code = lib.pp3_take(self.handle, word)
        if code < 0:
            self._refused(code)
        return int(word[0]) if code else None

    def _at(self, word: int) -> int:
        page = word >> 8 & 4095
        if page >= len(self._page):
            raise RingError("state word", f"a page below {len(self._page)}", page)
        return page

    def page(self, word: int) -> memoryview:
        """The page of a taken round, to be filled before ``publish``."""
        return self._page[self._at(word)]

    def request(self, word: int) -> memoryview:
        """The request of a taken round, read-only."""
        return self._request[self._at(word)]

    def publish(self, word: int) -> bool:
        """Publishes a taken round whose page is filled.

        Returns:
            False: the round had been failed; its page has been given back and must not
            be touched again.
        """
        code = lib.pp3_publish(self.handle, word)
        if code < 0 and code != -errno.ESTALE:
            self._refused(code)
        return bool(code == 0)

    def give_back(self, word: int) -> None:
        """Lets go of page and request of a fenced round: its last touch of them."""
        lib.pp3_give_back(self.handle, word)

    def sweep(self, words: list[int]) -> list[int]:
        """Gives back the taken rounds that have been failed; returns the others."""
        taken = ffi.new("uint64_t[]", words)
        kept = lib.pp3_sweep(self.handle, taken, len(words))
        if kept < 0:
            self._refused(kept)
        return list(taken[0:kept])

    @property
    def bell_fd(self) -> int:
        """Readable once work came after ``prepare``; poll it with the link's socket."""
        return int(lib.pp3_bell_fd(self.handle))

    def prepare(self) -> bool:
        """Counts this proxy among the sleepers; ``done`` must follow.

        Returns:
            True: do not sleep, there is something to take.
        """
        lib.pp3_work_prepare(self.handle)
        return bool(lib.pp3_work_pending(self.handle))

    def done(self) -> None:
        """Awake again; drains the bell."""
        lib.pp3_work_done(self.handle)


def _int32(tokens: Any) -> Any:
    view = memoryview(tokens)
    if view.itemsize != 4 or view.format not in ("i", "<i", "l", "=i"):
        raise RingError("tokens", "int32", f"items of format {view.format}")
    return ffi.from_buffer("int32_t[]", view)
