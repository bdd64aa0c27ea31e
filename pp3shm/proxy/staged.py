"""The pump of an ``rdma://`` worker: the same work, by writes into staging areas.

A STEP goes out with one write into the worker's staging slot, its REPLY comes with one
into ours of the same number. All that the C pump keeps of a session stands in the same
struct, and all that it comes back for is come back for here with the same words.
What waits, waits in the core or in a poll, without the GIL.
"""

import errno
import select
import time
from collections import deque
from typing import Any

from pp3shm._core import ffi, lib
from pp3shm.errors import FrameError, LinkError
from pp3shm.layout.frames import (
    HEADER_BYTES,
    FrameHeader,
    Kind,
    Status,
    body_lengths_ok,
    encode_frame,
    profile_flags,
)
from pp3shm.layout.tables import STEP_HEADER, frame_bytes, reply_packing
from pp3shm.link.lane import Lane
from pp3shm.link.reader import FrameReader
from pp3shm.link.staging import Arrival, Slots
from pp3shm.link.verbs import Completion
from pp3shm.proxy.board import Board
from pp3shm.proxy.greet import Greeting
from pp3shm.proxy.hands import Hands, Taken
from pp3shm.proxy.pump import Pump
from pp3shm.ring.waiting import Waiting

SLEEP_NS = 10_000_000
LAST_WORDS_S = 0.5
"""How long an ERROR or BYE waits for the REPLYs that were sent before it: the two ways
of a session are in no order but that of the sequences."""
_STATUS_AT = HEADER_BYTES + STEP_HEADER.size


class StagedPump(Pump):
    """The data path of a proxy whose worker writes into its memory.

    Args: as of ``Pump``.
    """

    def __init__(
        self, hands: Hands, control_fd: int, waiting: Waiting, slice_ns: int
    ) -> None:
        super().__init__(hands, control_fd, waiting, slice_ns)
        self._waiter = ffi.new("struct pp3_waiter *")
        waiting.tell(self._waiter)
        self._hybrid = waiting.wait == "hybrid"
        self._board = Board(hands.end)
        self._profile = hands.profile
        self._lengths = frozenset(
            frame_bytes(reply_packing(n, self._profile.depth, self._profile.is_sampled))
            for n in range(1, self._profile.max_slots + 1)
        )
        self._lost = 0  # regions of lanes that could not be closed
        self._clear()
        self._show()  # what a proxy before us left there is gone with it

    # -- a session -----------------------------------------------------------------

    def _clear(self) -> None:
        """No session."""
        self._lane: Lane | None = None
        self._reader: FrameReader | None = None
        self._slots = Slots(0, self._lengths)
        self._poll: select.epoll | None = None
        self._came: deque[Completion] = deque()
        self._unsent: Taken | None = None
        self._shown: Arrival | None = None  # whose frame the last return was about
        self._words: FrameHeader | None = None  # of an ERROR or BYE that waits
        self._words_until = 0.0
        self._idle_ns = 0  # since when there has been nothing to do; 0: there was
        self._spin_ns = 0  # how long to spin from then on

    def open(self, greeting: Greeting) -> None:
        """See ``Pump.open``; the greeting has a lane."""
        super().open(greeting)
        self.c.sent = self.c.received = greeting.sequence
        self._clear()
        self._lane, self._reader = greeting.lane, greeting.reader
        if self._reader is not None:
            self._reader.admit = self._admit
        self._slots = Slots(greeting.slots, self._lengths)
        self._link_fd = greeting.link.fileno()
        self._poll = select.epoll()
        self._poll.register(self._link_fd, select.EPOLLIN)
        if self._lane is not None:
            self._poll.register(self._lane.fileno(), select.EPOLLIN)
        self._show()

    def close(self) -> None:
        """See ``Pump.close``: the queue pair is destroyed, nothing writes any more."""
        super().close()
        lane, poll = self._lane, self._poll
        self._clear()
        if poll is not None:
            poll.close()
        if lane is not None:
            try:
                lane.close()
            except LinkError as error:  # its memory stays where it is, for ever
                self._board.note(error)
            self._lost += lane.regions
        self._show()

    def _show(self) -> None:
        """What of the lane is to be seen from outside."""
        regions = 0 if self._lane is None else self._lane.regions
        self._board.put("memory_regions", self._lost + regions)
        self._board.put("slots_held", self._slots.quarantined)

    def _admit(self, header: FrameHeader) -> None:
        """What may come over the connection; a REPLY may not."""
        if header.kind not in (Kind.ERROR, Kind.BYE):
            raise FrameError("frame.kind", "ERROR or BYE", Kind(header.kind).name)
        if not body_lengths_ok(header.kind, header.body_bytes, self._profile):
            place = f"frame.body_bytes of {Kind(header.kind).name}"
            raise FrameError(place, "a length of the profile", header.body_bytes)

    # -- the turn ------------------------------------------------------------------

    def __call__(self) -> int:
        """Run until something rare happens: a ``PP3_PUMP_...``.

        Raises:
            FrameError: a write that belongs to no round, or a frame on the connection
                that does not belong there.
            LinkError: the lane or the connection is gone.
        """
        self._settle()
        why = None
        while why is None:
            why = self._turn()
        self._board.count("pump_returns")
        return why

    def _turn(self) -> int | None:
        if self.stopped:
            return int(lib.PP3_PUMP_STOPPED)
        self._hands.sweep()
        self._fence()
        for work in (self._arrivals, self._words_in, self._departures):
            why = work()
            if why is not None:
                return why
        return self._rest()

    def _return(self, why: int, subject: Any = ffi.NULL, error: int = 0) -> int:
        self.c.subject, self.c.error = subject, error
        return int(why)

    def _settle(self) -> None:
        """What the last return was about is done with."""
        if self._shown is not None:
            self.c.received += 1
            self.c.frame, self.c.frame_bytes = ffi.NULL, 0
            self._done(self._shown)

    def _fence(self) -> None:
        """Slots of rounds that were resolved without their REPLY."""
        hand = self._hands.c
        open_rounds = {int(hand.taken[i].mine) >> 24 for i in range(hand.in_hand)}
        fenced = self._slots.fence(open_rounds)
        if fenced:
            self._board.count("slots_quarantined", fenced)
            self._show()

    def _done(self, arrival: Arrival) -> None:
        self._shown = None
        self._slots.done(arrival.slot)
        if arrival.late:
            self._show()

    # -- worker to engine ----------------------------------------------------------

    def _arrivals(self) -> int | None:
        """Take every write that has come."""
        if self._lane is None:
            return None
        self._came.extend(self._lane.take())
        while self._came:
            completion = self._came.popleft()
            arrival = self._slots.arrived(completion.slot, completion.size)
            if arrival.late:
                self._board.count("late_writes")
            self._work()
            why = self._take_reply(arrival, self._lane)
            if why is not None:
                return why
        return None

    def _take_reply(self, arrival: Arrival, lane: Lane) -> int | None:
        """Check and publish by the C call that takes a socket's frames, too.

        It loads each word once: what was checked is what the page holds, whatever the
        worker writes there meanwhile.
        """
        c, hand = self.c, self._hands.c
        frame = ffi.cast("const uint8_t *", lane.address(arrival.slot))
        told = (frame, arrival.size, c.session, c.received)
        taken = lib.pp3_hand_find(hand, arrival.round)
        if taken != ffi.NULL:
            outcome = lib.pp3_hand_answer(hand, taken, *told, lib.pp3_tick())
        else:
            answered = lane.read(arrival.slot, HEADER_BYTES + 8)[HEADER_BYTES:]
            outcome = lib.pp3_hand_late(hand, int.from_bytes(answered, "little"), *told)
        if outcome > 0:
            c.frame, c.frame_bytes = frame, arrival.size
            self._shown = arrival
            return self._return(lib.PP3_PUMP_REFUSED, taken, outcome)
        if outcome < 0 and outcome != -errno.ESTALE:
            return self._return(lib.PP3_PUMP_RING, taken, outcome)
        on_time = taken != ffi.NULL and outcome == 0
        self._board.count("replies" if on_time else "late")
        if taken != ffi.NULL:
            self._heed_rows(Taken(taken), arrival.slot, lane)
        c.received += 1
        self._done(arrival)
        if not c.tell_answer:
            return None
        c.tell_answer = 0
        return self._return(lib.PP3_PUMP_ANSWERED)

    def _heed_rows(self, taken: Taken, slot: int, lane: Lane) -> None:
        """Count refused rows; what the worker holds of their slots is not known.

        The worker may have changed them since: then it is restated, or refuses, again.
        """
        head = lane.read(slot, _STATUS_AT + 4 * self._profile.max_slots)
        if not any(head[_STATUS_AT : _STATUS_AT + 4 * taken.rows]):
            return
        for row, place in enumerate(taken.places(self._profile)):
            at = _STATUS_AT + 4 * row
            status = int.from_bytes(head[at : at + 4], "little")
            if not Status.ABSENT <= status <= Status.REFUSED:
                continue
            self._board.count(f"row_status_{status}")
            if status != Status.WORKER_ERROR:
                self.c.told[place.slot].known = 0

    def _words_in(self) -> int | None:
        """An ERROR or BYE over the connection, after the REPLYs sent before it."""
        if self._words is None:
            frame = None if self._reader is None else self._reader.feed()
            if frame is None or self._reader is None or self._reader.header is None:
                self._expect_whole()
                return None
            self._words = self._reader.header
            self._words_until = time.monotonic() + LAST_WORDS_S
            self._kept = ffi.from_buffer("uint8_t[]", bytes(frame))
        sequence = self._words.sequence
        if sequence != self.c.received:
            if time.monotonic() < self._words_until:
                return None
            # Those writes are lost, as their rounds are; it is the worker's word still.
            if 0 < sequence - self.c.received <= self._slots.count:
                self.c.received = sequence
        self.c.frame, self.c.frame_bytes = self._kept, len(self._kept)
        return self._return(lib.PP3_PUMP_FRAME)

    def _expect_whole(self) -> None:
        """What began on the connection must not take for ever."""
        began = None if self._reader is None else self._reader.began
        if began is not None and time.monotonic() - began > self.c.trickle_ns / 1e9:
            raise LinkError("frame: expected whole in time, found part of one")

    # -- engine to worker ----------------------------------------------------------

    def _may_take(self) -> bool:
        return self._slots.free > 0 and not lib.pp3_hand_full(self._hands.c)

    def _departures(self) -> int | None:
        """Send what was submitted, as long as there are slots for it."""
        hand = self._hands.c
        # Bounded, so that a flood of rounds keeps neither replies nor orders waiting.
        for _ in range(self._slots.count):
            taken = self._unsent
            if taken is not None and not self._in_hand(taken):
                taken = self._unsent = None  # failed meanwhile: it need not be sent
            if taken is None:
                code = lib.pp3_hand_take(hand) if self._may_take() else 0
                if code == 0:
                    return None
                if code < 0:
                    bad = code == -errno.EINVAL
                    about = hand.taken[hand.in_hand] if bad else ffi.NULL
                    return self._return(lib.PP3_PUMP_REQUEST, about, code)
                taken = Taken(hand.taken[hand.in_hand - 1])
                if self._behind(taken):
                    self._unsent = taken
                    return self._return(lib.PP3_PUMP_RESET, taken.c)
            self._unsent = None
            self._send(taken)
        return None

    def _in_hand(self, taken: Taken) -> bool:
        return bool(lib.pp3_hand_find(self._hands.c, taken.round) == taken.c)

    def _behind(self, taken: Taken) -> bool:
        """Whether a slot of the round has to be restated first."""
        return any(map(self.behind, taken.places(self._profile)))

    def _send(self, taken: Taken) -> None:
        if self._lane is None:
            return
        frame = encode_frame(
            Kind.STEP,
            bytes(self.c.session),
            self.c.sent,
            taken.body,
            profile_flags(self._profile),
        )
        slot = self._slots.post(taken.round)
        self.c.sent += 1
        self._lane.send(slot, frame)
        lib.pp3_pump_sent(self.c, taken.c)
        self._work()

    # -- waiting -------------------------------------------------------------------

    def _work(self) -> None:
        """Something was done: the wait before it, if there was one, is over."""
        if self._idle_ns and self._hybrid:
            lib.pp3_waiter_end(self._waiter, time.monotonic_ns() - self._idle_ns)
        self._idle_ns = 0

    def _spin_left(self) -> int:
        """Nanoseconds; the policy says how long when a wait begins."""
        now = time.monotonic_ns()
        if not self._idle_ns:
            self._idle_ns = now
            self._spin_ns = lib.pp3_waiter_begin(self._waiter)
        return int(self._spin_ns) - (now - self._idle_ns)

    def _rest(self) -> int | None:
        """Spin, then sleep, until there is something to do; 10 ms at most."""
        if self._poll is None:
            return int(lib.PP3_PUMP_IDLE)
        if self._unsent is None and self._may_take():
            spin = max(0, min(self._spin_left(), SLEEP_NS))
            wake = lib.pp3_proxy_sleep(
                self._hands.ring, self._poll.fileno(), self._control_fd, spin, SLEEP_NS
            )
            if wake < 0:
                return self._return(lib.PP3_PUMP_RING, error=wake)
            heed = wake & lib.PP3_WAKE_CONTROL
        else:  # what cannot be taken must not keep us awake
            poll = select.poll()
            poll.register(self._poll.fileno(), select.POLLIN)
            if self._control_fd >= 0:
                poll.register(self._control_fd, select.POLLIN)
            ready = [fd for fd, _ in poll.poll(SLEEP_NS // 1_000_000)]
            heed = self._control_fd in ready
        return int(lib.PP3_PUMP_CONTROL) if heed else None
