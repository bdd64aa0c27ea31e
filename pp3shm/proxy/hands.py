"""The rounds a proxy holds: taken, answered, failed, swept. All of it by the C core."""

import errno
import time
from typing import Any, NamedTuple

from pp3shm._core import ffi, lib
from pp3shm.errors import RingError
from pp3shm.layout.core import c_layout
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import STEP_HEADER, STEP_ROW, Status, step_packing
from pp3shm.layout.validate import REASONS
from pp3shm.ring.ring import ProxyEnd


class Place(NamedTuple):
    """Where one row of a STEP stands: the fields that decide on a RESET."""

    slot: int
    generation: int
    position: int
    committed: int


_place_of = STEP_ROW.pick("slot", "generation", "position", "count")


class Taken:
    """One round in hand: its state word and our own checked copy of its STEP.

    Attributes:
        places: of each row of the STEP.
    """

    __slots__ = ("buffer", "mine", "places", "pointer", "sent_ns", "size", "taken_ns")

    def __init__(self, mine: int, pointer: Any, buffer: bytearray, size: int) -> None:
        self.taken_ns = time.monotonic_ns()
        self.sent_ns = 0
        self.places: tuple[Place, ...] = ()
        self.mine = mine
        self.pointer = pointer
        self.buffer = buffer
        self.size = size

    @property
    def round(self) -> int:
        """The round, which is the ticket of the state word."""
        return self.mine >> 24

    @property
    def body(self) -> memoryview:
        """The STEP's body without its CRC, valid until the next take."""
        return memoryview(self.buffer)[: self.size]


class Answer(NamedTuple):
    """What became of a REPLY: at most one of the two is set.

    Attributes:
        reason: the check it failed, None if it passed. Its round, if it was in hand,
            still is, to be failed.
        late: True if its round was resolved meanwhile.
    """

    reason: str | None
    late: bool


class Hands:
    """Takes rounds from the ring and resolves each exactly once.

    Args:
        end: the proxy's end of the ring.
        profile: gives sizes and bounds.
    """

    def __init__(self, end: ProxyEnd, profile: Profile) -> None:
        self._end = end
        self._profile = profile
        shape, rounds = end.region.shape, int(end.region.shape.rounds)
        self._layout = c_layout(profile)
        self._mine = ffi.new("uint64_t *")
        self._size = ffi.new("uint32_t *")
        self._fault = ffi.new("struct pp3_fault *")
        self._trace = ffi.new("struct pp3_trace *")
        self._words = ffi.new("uint64_t[]", rounds + 1)
        buffers = [bytearray(shape.request_bytes) for _ in range(rounds + 1)]
        self._spare = [(ffi.from_buffer("uint8_t[]", one), one) for one in buffers]
        self._taken: dict[int, Taken] = {}
        self._resolved: set[int] = set()
        self._most_unanswered = 2 * rounds

    @property
    def congested(self) -> bool:
        """True where the worker owes two replies for every entry of the ring.

        What was sent to it then waits behind rounds that have failed long since, so
        more of it could only be late too.
        """
        return len(self._taken) + len(self._resolved) >= self._most_unanswered

    def take(self) -> Taken | None:
        """The next submitted round, or None.

        Raises:
            RingError: the round's request was no STEP (it has been failed and given
                back), or a word of the region is not one of ours.
        """
        if not self._spare:
            # More than the ring has entries: some were failed since the last sweep.
            self.sweep()
        pointer, buffer = self._spare[-1]
        outcome = lib.pp3_take_step(
            self._end.handle, self._layout, self._mine, pointer, len(buffer), self._size
        )
        if outcome == 0:
            return None
        if outcome == -errno.EINVAL:
            place = f"request of round {self._mine[0] >> 24}"
            raise RingError(place, "a STEP of this round", bytes(buffer[:24]).hex())
        if outcome < 0:
            self._end.refuse(outcome)
        self._spare.pop()
        taken = Taken(self._mine[0], pointer, buffer, self._size[0])
        self._taken[taken.round] = taken
        taken.places = self._places(buffer)
        return taken

    def find(self, round_: int) -> Taken | None:
        """The round if it is in hand."""
        return self._taken.get(round_)

    def answer(
        self, taken: Taken, frame: memoryview, session: bytes, sequence: int
    ) -> Answer:
        """Check a REPLY, scatter it into the round's page and publish: one C call."""
        trace = self._trace
        trace.taken_ns, trace.sent_ns = taken.taken_ns, taken.sent_ns
        trace.received_ns = time.monotonic_ns()
        outcome = lib.pp3_answer(
            self._end.handle,
            self._layout,
            taken.mine,
            taken.pointer,
            ffi.from_buffer(frame),
            len(frame),
            session,
            sequence,
            trace,
            self._fault,
        )
        if outcome > 0:
            return Answer(REASONS[outcome - 1], late=False)
        self._put_down(taken)
        self._answered(taken.round)
        if outcome not in (0, -errno.ESTALE):
            self._end.refuse(outcome)
        return Answer(None, late=outcome != 0)

    def unawaited(
        self, round_: int, frame: memoryview, session: bytes, sequence: int
    ) -> Answer:
        """Judge a REPLY whose round is not in hand: late if it once was."""
        outcome = lib.pp3_accept(
            self._layout,
            ffi.NULL,
            ffi.from_buffer(frame),
            len(frame),
            session,
            sequence,
            ffi.NULL,
            self._fault,
        )
        reason = REASONS[outcome - 1]
        if reason != "header" or round_ not in self._resolved:
            return Answer(reason, late=False)
        self._answered(round_)
        return Answer(None, late=True)

    def fail(self, taken: Taken, status: Status) -> bool:
        """Publish the round as failed; False if it was resolved meanwhile."""
        lost = lib.pp3_answer_failed(
            self._end.handle, self._layout, taken.mine, taken.pointer, int(status)
        )
        self._put_down(taken)
        return bool(lost == 0)

    def fail_all(self, status: Status) -> int:
        """Publish all rounds in hand as failed; how many were still open."""
        return sum(self.fail(taken, status) for taken in list(self._taken.values()))

    def sweep(self) -> None:
        """Give back what was fenced: its round was failed by somebody else."""
        if not self._taken:
            return
        for place, taken in enumerate(self._taken.values()):
            self._words[place] = taken.mine
        left = lib.pp3_sweep(self._end.handle, self._words, len(self._taken))
        if left == len(self._taken):
            return
        kept = set(self._words[0:left])
        for taken in [one for one in self._taken.values() if one.mine not in kept]:
            self._put_down(taken)

    def end_session(self) -> None:
        """Replies of this session cannot come any more."""
        self._resolved.clear()

    def _answered(self, round_: int) -> None:
        """Replies come in the order of their STEPs: none of these comes any more."""
        self._resolved = {later for later in self._resolved if later > round_}

    def _places(self, step: bytearray) -> tuple[Place, ...]:
        """Of each row of a STEP that was checked."""
        n = STEP_HEADER.unpack(step)["n"]
        packing = step_packing(
            n,
            self._profile.depth,
            self._profile.is_sampled,
            self._profile.context_bytes,
        )
        rows = STEP_ROW.rows(step, packing.offset["rows"], n)
        return tuple(map(Place._make, map(_place_of, rows)))

    def _put_down(self, taken: Taken) -> None:
        """The round is resolved; its reply, if it still comes, is late."""
        del self._taken[taken.round]
        self._spare.append((taken.pointer, taken.buffer))
        if taken.sent_ns:
            self._resolved.add(taken.round)
