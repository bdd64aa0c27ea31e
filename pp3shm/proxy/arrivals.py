"""From the worker to the engine: REPLYs by RDMA, last words over the connection."""

import errno
import time
from collections import deque
from functools import partial

from pp3shm._core import ffi, lib
from pp3shm.errors import FrameError, LinkError
from pp3shm.layout.frames import (
    HEADER_BYTES,
    FrameHeader,
    Kind,
    Status,
    body_lengths_ok,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import STEP_HEADER
from pp3shm.link.staging import Arrival
from pp3shm.link.verbs import Completion
from pp3shm.proxy.hands import Taken
from pp3shm.proxy.stage import Stage

LAST_WORDS_S = 0.5
"""How long an ERROR or BYE waits for the REPLYs that were sent before it: the two ways
of a session are in no order but that of the sequences."""
_STATUS_AT = HEADER_BYTES + STEP_HEADER.size


def _admit(profile: Profile, header: FrameHeader) -> None:
    """What may come over the connection; a REPLY may not."""
    if header.kind not in (Kind.ERROR, Kind.BYE):
        raise FrameError("frame.kind", "ERROR or BYE", Kind(header.kind).name)
    if not body_lengths_ok(header.kind, header.body_bytes, profile):
        place = f"frame.body_bytes of {Kind(header.kind).name}"
        raise FrameError(place, "a length of the profile", header.body_bytes)


class Arrivals:
    """What comes in one session.

    Args:
        stage: the session.
    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        # Of the profile alone: a method here would be a cycle, which keeps the ring.
        stage.reader.admit = partial(_admit, stage.profile)
        self._came: deque[Completion] = deque()
        self._shown: Arrival | None = None  # whose frame the last return was about
        self._words: FrameHeader | None = None  # of an ERROR or BYE that waits
        self._words_until = 0.0

    def settle(self) -> None:
        """What the last return was about is done with."""
        if self._shown is not None:
            c = self._stage.c
            c.received += 1
            c.frame, c.frame_bytes = ffi.NULL, 0
            self._done(self._shown)

    def _done(self, arrival: Arrival) -> None:
        self._shown = None
        self._stage.slots.done(arrival.slot)
        if arrival.late:
            self._stage.show()

    # -- by RDMA -------------------------------------------------------------------

    def take(self) -> int | None:
        """Take every write that has come; why the pump has to come back, or None.

        Raises:
            FrameError: a write that belongs to no round.
            LinkError: the lane failed.
        """
        stage = self._stage
        self._came.extend(stage.lane.take())
        while self._came:
            completion = self._came.popleft()
            arrival = stage.slots.arrived(completion.slot, completion.size)
            if arrival.late:
                stage.board.count("late_writes")
            stage.move()
            why = self._take_reply(arrival)
            if why is not None:
                return why
        return None

    def _take_reply(self, arrival: Arrival) -> int | None:
        """Check and publish by the C call that takes a socket's frames, too.

        It loads each word once: what was checked is what the page holds, whatever the
        worker writes there meanwhile.
        """
        stage, c, hand = self._stage, self._stage.c, self._stage.hands.c
        frame = ffi.cast("const uint8_t *", stage.lane.address(arrival.slot))
        told = (frame, arrival.size, c.session, c.received)
        taken = lib.pp3_hand_find(hand, arrival.round)
        if taken != ffi.NULL:
            outcome = lib.pp3_hand_answer(hand, taken, *told, lib.pp3_tick())
        else:
            answered = stage.lane.read(arrival.slot, HEADER_BYTES + 8)[HEADER_BYTES:]
            outcome = lib.pp3_hand_late(hand, int.from_bytes(answered, "little"), *told)
        if outcome > 0:
            c.frame, c.frame_bytes = frame, arrival.size
            self._shown = arrival
            return stage.come_back(lib.PP3_PUMP_REFUSED, taken, outcome)
        if outcome < 0 and outcome != -errno.ESTALE:
            return stage.come_back(lib.PP3_PUMP_RING, taken, outcome)
        on_time = taken != ffi.NULL and outcome == 0
        stage.board.count("replies" if on_time else "late")
        if taken != ffi.NULL:
            self._heed_rows(Taken(taken), arrival.slot)
        c.received += 1
        self._done(arrival)
        if not c.tell_answer:
            return None
        c.tell_answer = 0
        return stage.come_back(lib.PP3_PUMP_ANSWERED)

    def _heed_rows(self, taken: Taken, slot: int) -> None:
        """Count refused rows; what the worker holds of their slots is not known.

        The worker may have changed them since: then it is restated, or refuses, again.
        """
        profile = self._stage.profile
        head = self._stage.lane.read(slot, _STATUS_AT + 4 * profile.max_slots)
        if not any(head[_STATUS_AT : _STATUS_AT + 4 * taken.rows]):
            return
        for row, place in enumerate(taken.places(profile)):
            at = _STATUS_AT + 4 * row
            status = int.from_bytes(head[at : at + 4], "little")
            if not Status.ABSENT <= status <= Status.REFUSED:
                continue
            self._stage.board.count(f"row_status_{status}")
            if status != Status.WORKER_ERROR:
                self._stage.c.told[place.slot].known = 0

    # -- over the connection -------------------------------------------------------

    def last_words(self) -> int | None:
        """An ERROR or BYE, after the REPLYs sent before it; as :meth:`take`.

        Raises:
            FrameError: a frame that does not belong on the connection.
            LinkError: the connection is gone, or part of a frame took too long.
        """
        stage, c = self._stage, self._stage.c
        if self._words is None:
            frame = stage.reader.feed()
            if frame is None or stage.reader.header is None:
                self._expect_whole()
                return None
            self._words = stage.reader.header
            self._words_until = time.monotonic() + LAST_WORDS_S
            self._kept = ffi.from_buffer("uint8_t[]", bytes(frame))
            # Nothing more is read from there: its end, which stays readable, would
            # keep us awake for as long as the words wait.
            stage.hang_up()
        sequence = self._words.sequence
        if sequence != c.received:
            if time.monotonic() < self._words_until:
                return None
            # Those writes are lost, as their rounds are; it is the worker's word still.
            if 0 < sequence - c.received <= stage.slots.count:
                c.received = sequence
        c.frame, c.frame_bytes = self._kept, len(self._kept)
        return stage.come_back(lib.PP3_PUMP_FRAME)

    def _expect_whole(self) -> None:
        """What began on the connection must not take for ever."""
        began = self._stage.reader.began
        limit_s = self._stage.c.trickle_ns / 1e9
        if began is not None and time.monotonic() - began > limit_s:
            raise LinkError("frame: expected whole in time, found part of one")
