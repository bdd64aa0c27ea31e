"""The map of a round: what flight recorders say, in words and nanoseconds."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pp3shm._core import lib
from pp3shm.layout.tables import Status
from pp3shm.ring.clock import Clock
from pp3shm.ring.flights import Flights

STAGES = (
    "submit",
    "take",
    "sent",
    "received",
    "validated",
    "published",
    "seen",
    "released",
)
"""What a round passes, in this order."""

STEPS = tuple(f"{a}->{b}" for a, b in pairwise(STAGES))
"""From each to the next."""

WHOLE = "whole"
"""From submit to released."""

_PUBLISHED, _FAILED = 3, 7
_EARLY_NS = 1000
_VALIDATED = STAGES.index("validated")
_BITS, _MASK = 4, 15


@dataclass(frozen=True, slots=True)
class Rounds:
    """Rounds of one rank, as far as their records can be true.

    Attributes:
        rank: whose records these are.
        pid: its process.
        ticket: (n,) int64, the oldest record first.
        state: (n,) int64, of the state word.
        page: (n,) int64.
        owner: (n,) int64, the proxy or co-located worker that took it; 0: nobody.
        info: (n,) uint32, see ``status_of``.
        times: (n, 8) int64, nanoseconds of CLOCK_MONOTONIC by ``STAGES``; -1: it never
            came to that, or is not known. Those that are known never go back.
        lost: records that were written over before they were read, or not whole.
        unlikely: records left out, for no round can have been so.
    """

    rank: int
    pid: int
    ticket: NDArray[np.int64]
    state: NDArray[np.int64]
    page: NDArray[np.int64]
    owner: NDArray[np.int64]
    info: NDArray[np.uint32]
    times: NDArray[np.int64]
    lost: int
    unlikely: int

    @property
    def accepted(self) -> NDArray[np.bool_]:
        """(n,) whether a reply of the worker's was validated and published."""
        validated: NDArray[np.bool_] = self.times[:, _VALIDATED] >= 0
        validated &= self.state == _PUBLISHED
        return validated

    def status_of(self, at: int) -> str:
        """How a round ended: OK, or the reason's name, of all of it or of a slot."""
        state, info = int(self.state[at]), int(self.info[at])
        if state > _FAILED:
            return _name(state - _FAILED)
        if info & lib.PP3_UNSEEN:
            return "not read"
        return "OK" if not any(self._failed(info)) else "some rows failed"

    def rows_of(self, at: int) -> list[str]:
        """The status of each slot; nothing where the rank let go without a look."""
        info = int(self.info[at])
        return [] if info & lib.PP3_UNSEEN else [_name(one) for one in _rows(info)]

    @staticmethod
    def _failed(info: int) -> Iterator[bool]:
        return (one not in (Status.OK, Status.ABSENT) for one in _rows(info))


def _rows(info: int) -> list[int]:
    slots = min(info >> 20 & 7, 4)
    return [info >> _BITS * (1 + slot) & _MASK for slot in range(slots)]


def _name(status: int) -> str:
    return Status(status).name if status in tuple(Status) else f"status {status}"


def rounds_of(flights: Flights) -> Rounds:
    """Turns a recorder's numbers into rounds, and leaves out what can be none.

    A stamp may lie up to a microsecond before the one it follows, for a CPU reads its
    counter when it likes to: then it is taken to be at the same time. More, a time to
    come, or words that no ring has: the record is not used.

    Args:
        flights: as read.
    """
    clock = Clock()
    word = flights.word
    ticket = (word >> np.uint64(24)).astype(np.int64)
    state = (word >> np.uint64(20) & np.uint64(15)).astype(np.int64)
    known = flights.stamps != 0
    times = np.where(known, clock.ns_of_all(flights.stamps), -1)
    latest = np.maximum.accumulate(times, axis=1)
    good = (ticket > 0) & (state > 0) & known[:, 7]
    good &= ~np.any(known & (times < 0), axis=1)
    good &= ~np.any(known & (latest - times > _EARLY_NS), axis=1)
    good &= np.all(times <= clock.ns + _EARLY_NS, axis=1)
    return Rounds(
        flights.rank,
        flights.pid,
        ticket[good],
        state[good],
        (word >> np.uint64(8) & np.uint64(4095)).astype(np.int64)[good],
        (word & np.uint64(255)).astype(np.int64)[good],
        flights.info[good],
        np.where(known, latest, -1)[good],
        flights.lost,
        int(np.count_nonzero(~good)),
    )
