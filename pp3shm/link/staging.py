"""Staging slots: which round each belongs to, and when its memory may be used again.

A peer writes into a slot by RDMA, without asking anybody. What it writes is checked
elsewhere, as a copy; here it is decided whose it is. No verbs, no clock, no threads.

    FREE --post--> POSTED --arrived--> FREE
                     |
                   fence (its round was resolved without it)
                     v
                QUARANTINED --arrived (late)--> FREE

A quarantined slot is given to no round: the write that was asked for can still come.
It is free again when that write has come, or with all others when the queue pair is
destroyed, after which nothing can.
"""

from collections import deque
from collections.abc import Container
from enum import Enum
from typing import NamedTuple

from pp3shm.errors import FrameError
from pp3shm.layout.tables import MOST_STAGING_SLOTS

PAGE_BYTES = 4096
MOST_BYTES = 256 << 20
"""Of one area; a peer must not be able to have more pinned than that."""


class SlotState(Enum):
    """Where a slot stands."""

    FREE = "free"
    POSTED = "posted"
    QUARANTINED = "quarantined"


class Arrival(NamedTuple):
    """A write that has come.

    Attributes:
        slot: where it lies.
        round: which it must answer.
        size: bytes that were written.
        late: its round had been resolved before.
    """

    slot: int
    round: int
    size: int
    late: bool


def slots_for(rounds: int, frame_bytes: int) -> int:
    """How many slots a session has.

    One for each round in flight, as far as pinned memory may go: two at least, where
    there are two rounds.

    Args:
        rounds: at most in flight.
        frame_bytes: the largest frame that goes into a slot, of either direction.
    """
    room = max(2, MOST_BYTES // slot_bytes(frame_bytes))
    return min(rounds, room, MOST_STAGING_SLOTS)


def slot_bytes(frame_bytes: int) -> int:
    """Bytes from one slot to the next: whole pages, so that no two frames share one."""
    return -(-frame_bytes // PAGE_BYTES) * PAGE_BYTES


class Slots:
    """The staging slots of one session.

    Args:
        count: how many.
        lengths: bytes that a frame of the profile may have.

    Attributes:
        count: of all slots.
    """

    def __init__(self, count: int, lengths: Container[int]) -> None:
        self.count = count
        self._state = [SlotState.FREE] * count
        self._round = [0] * count
        self._lengths = lengths
        # In turn: what was used last is used again last.
        self._free = deque(range(count))

    def ready(self, but: Container[int] = ()) -> bool:
        """Whether a round may have a slot that is none of these."""
        return any(slot not in but for slot in self._free)

    @property
    def quarantined(self) -> int:
        """Slots of resolved rounds whose write has not come."""
        return self._state.count(SlotState.QUARANTINED)

    def post(self, round_: int, but: Container[int] = ()) -> int:
        """Give a round its slot.

        Args:
            round_: the round.
            but: slots that it cannot have now, though they are free.

        Raises:
            IndexError: there is none; the caller has asked :meth:`ready`.
        """
        slot = next((slot for slot in self._free if slot not in but), None)
        if slot is None:
            raise IndexError(f"round {round_}: expected a free slot, found none")
        self._free.remove(slot)
        self._state[slot] = SlotState.POSTED
        self._round[slot] = round_
        return slot

    def fence(self, open_rounds: Container[int]) -> int:
        """Quarantine the slots of rounds that are no longer open; how many."""
        fenced = 0
        for slot, state in enumerate(self._state):
            if state is SlotState.POSTED and self._round[slot] not in open_rounds:
                self._state[slot] = SlotState.QUARANTINED
                fenced += 1
        return fenced

    def arrived(self, immediate: int, size: int) -> Arrival:
        """A write's completion; its slot is free only after :meth:`done`.

        Args:
            immediate: what the peer said with it: the slot.
            size: how many bytes it wrote.

        Raises:
            FrameError: no such slot, one that no round waits for, or a length that no
                frame has. The session cannot go on.
        """
        if not 0 <= immediate < len(self._state):
            place = f"0..{len(self._state) - 1}"
            raise FrameError("rdma.immediate", place, immediate)
        state = self._state[immediate]
        if state is SlotState.FREE:
            raise FrameError(f"rdma.slot[{immediate}]", "a round's", "one of no round")
        if size not in self._lengths:
            raise FrameError(
                f"rdma.bytes of slot {immediate}", "a length of the profile", size
            )
        late = state is SlotState.QUARANTINED
        return Arrival(immediate, self._round[immediate], size, late)

    def done(self, slot: int) -> None:
        """What lay there has been taken or dropped."""
        self._state[slot] = SlotState.FREE
        self._free.append(slot)
