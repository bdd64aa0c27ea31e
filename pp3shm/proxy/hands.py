"""The rounds a proxy has in hand: views and calls of what the C core keeps of them."""

import errno
from typing import Any, NamedTuple

from pp3shm._core import ffi, lib
from pp3shm.errors import RingError
from pp3shm.layout.core import c_layout
from pp3shm.layout.frames import HEADER_BYTES
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import STEP_HEADER, STEP_ROW, Status, step_packing
from pp3shm.ring.ring import ProxyEnd


class Place(NamedTuple):
    """Where one row of a STEP stands: the fields that decide on a RESET."""

    slot: int
    generation: int
    position: int
    committed: int


_place_of = STEP_ROW.pick("slot", "generation", "position", "count")


class Taken(NamedTuple):
    """One round in hand; valid until it is put down and another is taken.

    Attributes:
        c: ``struct pp3_taken *``.
    """

    c: Any

    @property
    def round(self) -> int:
        """The round, which is the ticket of the state word."""
        return int(self.c.mine) >> 24

    @property
    def body(self) -> bytes:
        """The STEP's body without its CRC: a copy of the checked copy."""
        return bytes(ffi.buffer(self.c.frame + HEADER_BYTES, self.c.body_bytes))

    @property
    def rows(self) -> int:
        """How many the STEP has."""
        at = self.c.frame + HEADER_BYTES + STEP_HEADER.offset["n"]
        return int.from_bytes(bytes(ffi.buffer(at, 4)), "little")

    def places(self, profile: Profile) -> tuple[Place, ...]:
        """Of each row of the STEP."""
        step = self.body
        n = STEP_HEADER.unpack(step)["n"]
        packing = step_packing(
            n, profile.depth, profile.is_sampled, profile.context_bytes
        )
        rows = STEP_ROW.rows(step, packing.offset["rows"], n)
        return tuple(map(Place._make, map(_place_of, rows)))


class Hands:
    """Takes rounds from the ring and resolves each exactly once.

    Args:
        end: the proxy's end of the ring.
        profile: gives sizes and bounds.

    Attributes:
        c: ``struct pp3_hand *``, for calls of the C core.
        end: of the proxy.
        profile: of the sessions.
        ring: ``struct pp3_ring *``, likewise.
    """

    def __init__(self, end: ProxyEnd, profile: Profile) -> None:
        self.end = end
        self.profile = profile
        self.ring = end.handle  # the C side uses it as long as there is a hand
        hand = lib.pp3_hand_new(self.ring, c_layout(profile))
        if hand == ffi.NULL:
            raise RingError("hand", "memory for its rounds", "none")
        self.c = ffi.gc(hand, lib.pp3_hand_free)

    @property
    def _resolved(self) -> set[int]:
        """Rounds whose reply, if it still comes, is late."""
        return set(self.c.resolved[0 : self.c.resolved_count])

    def take(self) -> Taken | None:
        """The next submitted round, or None.

        Raises:
            RingError: the round's request was no STEP (it has been failed and given
                back), or a word of the region is not one of ours.
        """
        outcome = lib.pp3_hand_take(self.c)
        if outcome == 0:
            return None
        if outcome < 0:
            self.refuse(outcome, self.c.taken[self.c.in_hand])
        return Taken(self.c.taken[self.c.in_hand - 1])

    def refuse(self, code: int, taken: Any) -> None:
        """Raises what a take's return code means.

        Args:
            code: negative.
            taken: ``struct pp3_taken *`` of the round that was no STEP, where
                ``code`` says so.
        """
        if code != -errno.EINVAL:
            self.end.refuse(code)
        head = bytes(ffi.buffer(taken.frame + HEADER_BYTES, STEP_HEADER.size))
        place = f"request of round {Taken(taken).round}"
        raise RingError(place, "a STEP of this round", head.hex())

    def fail(self, taken: Taken, status: Status) -> bool:
        """Publish the round as failed; False if it was resolved meanwhile."""
        return bool(lib.pp3_hand_fail(self.c, taken.c, int(status)))

    def fail_all(self, status: Status) -> int:
        """Publish all rounds in hand as failed; how many were still open."""
        return int(lib.pp3_hand_fail_all(self.c, int(status)))

    def sweep(self) -> None:
        """Give back what was fenced: its round was failed by somebody else."""
        code = lib.pp3_hand_sweep(self.c)
        if code < 0:
            self.end.refuse(code)
