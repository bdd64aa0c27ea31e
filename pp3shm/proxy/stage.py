"""What the parts of a pump share of one session by RDMA."""

import select
import time
from typing import Any

from pp3shm._core import ffi
from pp3shm.errors import LinkError
from pp3shm.layout.tables import frame_bytes, reply_packing
from pp3shm.link.reader import FrameReader
from pp3shm.link.staging import Slots
from pp3shm.proxy.board import Board
from pp3shm.proxy.greet import Greeting
from pp3shm.proxy.hands import Hands, Taken


class Stage:
    """One session.

    Args:
        hands: the rounds it takes and resolves.
        c: ``struct pp3_pump *``: what is kept of a session.
        board: for what is counted.
        greeting: the agreed session.

    Attributes:
        c: as above.
        hands: likewise.
        board: likewise.
        profile: of the session.
        lane: what carries STEPs and REPLYs.
        reader: of what the connection carries.
        slots: the staging slots.
        poll: readable when the connection or the lane is.
        moved_ns: when a frame went out or came in, the first since somebody set it 0.

    Raises:
        LinkError: the greeting is not one by RDMA.
    """

    def __init__(self, hands: Hands, c: Any, board: Board, greeting: Greeting) -> None:
        if greeting.lane is None or greeting.reader is None:
            raise LinkError(
                f"session: expected a lane and a reader of {greeting.link.peer}, "
                "found another link"
            )
        self.hands, self.c, self.board = hands, c, board
        self.profile = profile = hands.profile
        self.lane = greeting.lane
        self.reader: FrameReader = greeting.reader
        lengths = frozenset(
            frame_bytes(reply_packing(n, profile.depth, profile.is_sampled))
            for n in range(1, profile.max_slots + 1)
        )
        self.slots = Slots(greeting.slots, lengths)
        self.moved_ns = 0
        self._link_fd = greeting.link.fileno()
        self.poll = select.epoll()
        self.poll.register(self._link_fd, select.EPOLLIN)
        self.poll.register(self.lane.fileno(), select.EPOLLIN)

    def move(self) -> None:
        """A frame goes out or comes in: what was waited for is there."""
        self.moved_ns = self.moved_ns or time.monotonic_ns()

    def come_back(self, why: int, subject: Any = ffi.NULL, error: int = 0) -> int:
        """Why the pump returns, and what about."""
        self.c.subject, self.c.error = subject, error
        return int(why)

    def hang_up(self) -> None:
        """What comes over the connection from now on wakes nobody."""
        self.poll.unregister(self._link_fd)

    def fence(self) -> None:
        """Quarantine slots of rounds that were resolved without their REPLY."""
        hand = self.hands.c
        open_rounds = {Taken(hand.taken[i]).round for i in range(hand.in_hand)}
        fenced = self.slots.fence(open_rounds)
        if fenced:
            self.board.count("slots_quarantined", fenced)
            self.show()

    def show(self) -> None:
        """How many slots are in quarantine now."""
        self.board.put("slots_held", self.slots.quarantined)
