"""Frames by RDMA: each with one write into the peer's staging area.

The connection over which a lane was agreed carries everything else of the session, and
its death is the session's.
"""

import ctypes
import select
import time
from collections.abc import Container

from pp3shm.errors import LinkError
from pp3shm.layout.endpoint import Endpoint
from pp3shm.link.verbs import Completion, VerbsEnd

OVERDUE_S = 5.0
"""A write that the device has not completed by then ends the session: whatever the
device was told of retries, some report nothing at all."""


class Lane:
    """One connected queue pair.

    Args:
        end: of this side.
        peer: what the other side said.
        name: the other side, for messages.

    Raises:
        LinkError: the device refused to connect.
    """

    def __init__(self, end: VerbsEnd, peer: Endpoint, name: str) -> None:
        end.connect(peer)
        self._end = end
        self._name = name
        self._posted: dict[int, float] = {}  # slot -> when, of writes under way
        self._came: list[Completion] = []

    @property
    def regions(self) -> int:
        """Memory regions registered now."""
        return self._end.regions

    @property
    def under_way(self) -> Container[int]:
        """Slots whose write of ours has not completed: ``send`` from one waits."""
        return self._posted.keys()

    @property
    def due(self) -> float:
        """When the oldest of our writes is overdue, on the clock of ``time.monotonic``.

        Infinity: none is under way. Who waits for the descriptor looks at it then: a
        device that reports nothing makes nothing readable.
        """
        return min(self._posted.values(), default=float("inf")) + OVERDUE_S

    def fileno(self) -> int:
        """The descriptor to poll; readable means that ``take`` may give something."""
        return self._end.fileno()

    def address(self, slot: int) -> int:
        """Where the peer's frame in a slot lies, in this process."""
        return self._end.inbox(slot)

    def read(self, slot: int, size: int) -> bytes:
        """A copy of the first bytes of a slot: the peer can write there at any time."""
        return ctypes.string_at(self._end.inbox(slot), size)

    def send(self, slot: int, frame: bytes, timeout_s: float = OVERDUE_S) -> None:
        """Write a frame into the peer's slot.

        Args:
            slot: the peer's, and ours: it has the same number on both sides.
            frame: header and body.
            timeout_s: how long an earlier write from the same slot may hold it up.

        Raises:
            LinkError: the device takes no more, or an earlier write failed.
        """
        limit = time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while slot in self._posted:  # its bytes are still being read
            self._look()
            left = limit - time.monotonic()
            if slot in self._posted and left <= 0:
                raise LinkError(
                    f"{self._name}: expected slot {slot} to be written within "
                    f"{timeout_s:g} s, found it under way"
                )
            if slot in self._posted:
                poll.poll(left * 1000)
        self._end.fill(slot, frame)
        self._end.post(slot, len(frame))
        self._posted[slot] = time.monotonic()

    def take(self) -> list[Completion]:
        """Writes of the peer's that have come, without waiting.

        Raises:
            LinkError: a write failed, or one of ours is overdue.
        """
        self._look()
        if time.monotonic() >= self.due:
            raise LinkError(
                f"{self._name}: expected a write to complete within "
                f"{OVERDUE_S:g} s, found it under way"
            )
        came, self._came = self._came, []
        return came

    def _look(self) -> None:
        for completion in self._end.poll():
            if completion.fault:
                side = "a receive" if completion.came else "a write"
                raise LinkError(
                    f"{self._name}: expected {side} to succeed, found "
                    f"{completion.fault}"
                )
            if completion.came:
                self._came.append(completion)
            else:
                self._posted.pop(completion.slot, None)

    def close(self) -> None:
        """Nothing writes any more. Closing twice is closing once."""
        self._end.close()
