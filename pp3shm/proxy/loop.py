"""The one loop of a proxy: rounds from the ring to the worker and back.

A thread and a process run the same loop; they differ in who starts it. It is driven
by one thread, touches control words only through the core, and never waits longer
than 10 ms, except for a worker that does not take a frame.
"""

import struct
import threading
import time
from collections.abc import Callable

import numpy as np

from pp3shm._core import lib
from pp3shm.attach import expect_layout
from pp3shm.errors import (
    FrameError,
    LinkError,
    Pp3Error,
    ProfileError,
    ReplyError,
    RingError,
)
from pp3shm.layout.frames import HEADER_BYTES, ErrorBody, Kind, Reset, Status
from pp3shm.layout.tables import reply_packing
from pp3shm.layout.validate import INCIDENTS, REASON_STATUS, check_reply
from pp3shm.proxy.board import Board
from pp3shm.proxy.conversation import Conversation
from pp3shm.proxy.dial import Dialler
from pp3shm.proxy.greet import Greeting
from pp3shm.proxy.hands import Hands, Taken
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.proxy.state import Event, Session, SessionState, step
from pp3shm.ring.ring import ProxyEnd

SLEEP_NS = 10_000_000
BROKEN_FRAME = ("frame", "crc")
HELD = (SessionState.REFUSED, SessionState.INCIDENT)
"""States that only the user ends."""


class ProxyLoop:
    """Takes rounds, asks the worker, publishes what it answers.

    Args:
        end: the proxy's end of the ring.
        plan: the worker's address, key and profile.
        control_fd: readable when whoever started us wants attention; -1: none.
        on_control: called when it is; True ends the loop.
        clock: monotonic nanoseconds.
    """

    def __init__(
        self,
        end: ProxyEnd,
        plan: ProxyPlan,
        control_fd: int = -1,
        on_control: Callable[[], bool] = lambda: True,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._end = end
        self._plan = plan
        self._profile = plan.profile
        self._control_fd = control_fd
        self._on_control = on_control
        self._clock = clock
        self._board = Board(end)
        self._prefix = np.empty(plan.profile.max_positions, np.int32)
        expect_layout(end.region.layout_id, plan.profile)
        self._hands = Hands(end, plan.profile)
        self._rounds = int(end.region.shape.rounds)
        self._stopping = threading.Event()
        self._dialler = Dialler(plan)
        self._talk: Conversation | None = None
        self._session = Session()
        if self._board.get("incident"):  # it outlasts the proxy that met it
            self._session = Session(SessionState.INCIDENT)
        self._board.put_state(self._end.owner, self._session.state)

    # -- the turn ------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to end; it says BYE. For any thread and signal handlers."""
        self._stopping.set()

    def run(self) -> None:
        """Turn until stopped. Whatever ends it, no round stays in its hands."""
        try:
            while self._session.state is not SessionState.CLOSED:
                self.turn()
        finally:
            self._hands.fail_all(Status.PEER_DIED)
            if self._talk is not None:
                self._talk.bye()
            self._dialler.close()

    def turn(self) -> None:
        """One pass: sweep, heed, dial, take, receive, sleep."""
        self._hands.sweep()
        self._heed()
        self._dial()
        self._take()
        self._receive()
        self._sleep()

    def _sleep(self) -> None:
        """Until a round, a frame, a dial's outcome or an order comes, at most 10 ms."""
        state = self._session.state
        if state is SessionState.CLOSED:
            return
        sleep = SLEEP_NS
        if state is SessionState.WAITING:
            sleep = max(0, min(sleep, self._session.retry_at_ns - self._clock()))
        wake = lib.pp3_proxy_sleep(
            self._end.handle,
            self._dialler.fd if self._talk is None else self._talk.fileno(),
            self._control_fd,
            self._plan.spin_ns if state is SessionState.READY else 0,
            sleep,
        )
        if wake > 0 and wake & lib.PP3_WAKE_CONTROL and self._on_control():
            self.stop()

    def _heed(self) -> None:
        """Do what the user asked for: end, or open a session again."""
        if self._stopping.is_set():
            self._step(Event.STOP)
        elif self._session.state in HELD and self._board.reopen_pending():
            self._board.put("incident", 0)
            self._step(Event.REOPEN)
            self._board.reopen_seen()  # last: until then the engine waits on

    def _step(self, event: Event) -> None:
        self._session = step(self._session, event, self._clock())
        self._board.put_state(self._end.owner, self._session.state)

    # -- opening -------------------------------------------------------------------

    def _dial(self) -> None:
        """Dial when it is time; rounds go on being failed meanwhile."""
        state = self._session.state
        if state is SessionState.WAITING and self._clock() >= self._session.retry_at_ns:
            self._step(Event.DIAL)
            self._dialler.start()
        elif state is SessionState.DIALING:
            outcome = self._dialler.take()
            if outcome is not None:
                self._greeted(outcome)

    def _greeted(self, outcome: Greeting | Exception) -> None:
        if isinstance(outcome, Greeting):
            self._open(outcome)
            return
        if not isinstance(outcome, (Pp3Error, OSError)):
            raise outcome  # a fault of ours: it must be seen, not dialled away
        self._board.note(outcome)
        if isinstance(outcome, ProfileError):
            self._board.count("mismatches")
            self._board.reopen_seen()
            self._step(Event.MISMATCH)
        else:
            self._board.count("dials_failed")
            self._step(Event.UNREACHABLE)

    def _open(self, greeting: Greeting) -> None:
        self._talk = Conversation(greeting, self._profile)
        self._board.count("sessions")
        self._board.note(None)
        self._step(Event.ACCEPTED)
        try:
            for slot in range(self._profile.max_slots):
                self._send_reset(self._talk, slot)
        except LinkError as error:
            self._end_session(Event.LOST, error)

    # -- engine to worker ----------------------------------------------------------

    def _take(self) -> None:
        # Bounded, so that a flood of rounds keeps neither replies nor orders waiting.
        for _ in range(self._rounds):
            if self._talk is not None and self._hands.congested:
                return
            try:
                taken = self._hands.take()
            except RingError as error:
                self._board.count("bad_request")
                self._board.note(error)
                return
            if taken is None:
                return
            if self._talk is None:
                self._board.count("peer_died", self._hands.fail_all(Status.PEER_DIED))
                continue
            try:
                self._send_step(self._talk, taken)
            except LinkError as error:
                self._end_session(Event.LOST, error)

    def _send_step(self, talk: Conversation, taken: Taken) -> None:
        for place in taken.places:
            if talk.needs_reset(place):
                self._send_reset(talk, place.slot, place.position)
        talk.send_step(taken)
        self._board.count("steps_sent")

    def _send_reset(
        self, talk: Conversation, slot: int, most: int | None = None
    ) -> None:
        """Restate a live slot's committed prefix, its first ``most`` tokens."""
        try:
            generation, live, length = self._end.slot_read(slot, self._prefix)
        except RingError as error:  # being rewritten all the while, or spoiled
            self._board.note(error)
            return
        if not live:
            return
        prefix = self._prefix[:length][:most]
        try:
            talk.send_reset(Reset(slot, generation, prefix))
        except FrameError as error:  # the region's bytes are hostile until checked
            self._board.note(error)
        else:
            self._board.count("resets_sent")

    # -- worker to engine ----------------------------------------------------------

    def _receive(self) -> None:
        while (talk := self._talk) is not None:
            try:
                got = talk.read()
                if got is None:
                    return
                kind, frame = got
                if kind is Kind.REPLY:
                    self._reply(talk, frame)
                else:
                    self._farewell(talk, kind, frame)
                talk.received += 1
            except FrameError as error:
                reason = "crc" if error.place == "crc" else "frame"
                self._refuse(reason, error)
            except LinkError as error:
                self._end_session(Event.LOST, error)

    def _reply(self, talk: Conversation, frame: memoryview) -> None:
        round_ = int.from_bytes(frame[HEADER_BYTES : HEADER_BYTES + 8], "little")
        taken = self._hands.find(round_)
        if taken is None:
            answer = self._hands.unawaited(round_, frame, talk.session, talk.received)
        else:
            answer = self._hands.answer(taken, frame, talk.session, talk.received)
        if answer.reason is not None:
            self._reject(talk, answer.reason, taken, frame)
            return
        self._board.count("late" if answer.late else "replies")
        if self._session.failures:
            self._step(Event.ANSWERED)
        if taken is not None:
            self._heed_rows(talk, taken, frame)

    def _reject(
        self, talk: Conversation, reason: str, taken: Taken | None, frame: memoryview
    ) -> None:
        """A reply failed a check: fail its round, then say why.

        That it was an incident is noted before anybody can see the failed round, so
        that neither a death here nor a ``reopen`` in between is lost.
        """
        if reason in INCIDENTS:
            self._note_incident()
        late = taken is not None and not self._hands.fail(taken, REASON_STATUS[reason])
        if late and reason not in BROKEN_FRAME:
            # What a late reply says is nobody's business; that its frame is whole is,
            # since the next frame begins where it ends.
            self._board.put("incident", 0)
            self._board.put_state(self._end.owner, self._session.state)
            self._board.count("late")
            return
        body = None if taken is None else bytes(taken.body)
        self._refuse(reason, self._explain(reason, body, frame, talk))

    def _note_incident(self) -> None:
        self._board.put("incident", 1)
        self._board.put_state(self._end.owner, SessionState.INCIDENT)
        self._board.reopen_seen()  # what was asked before does not speak of this one

    def _heed_rows(self, talk: Conversation, taken: Taken, frame: memoryview) -> None:
        """Count refused rows; what the worker holds of their slots is not known."""
        places = taken.places
        packing = reply_packing(
            len(places), self._profile.depth, self._profile.is_sampled
        )
        at = HEADER_BYTES + packing.offset["status"]
        statuses = struct.unpack_from(f"<{len(places)}i", frame, at)
        for place, status in zip(places, statuses, strict=True):
            if status in range(1, 9):
                self._board.count(f"row_status_{status}")
                if status != Status.WORKER_ERROR:
                    talk.forget(place.slot)

    def _explain(
        self, reason: str, body: bytes | None, frame: memoryview, talk: Conversation
    ) -> ReplyError:
        """The refusal in words, by the readable reference."""
        try:
            check_reply(self._profile, body, bytes(frame), talk.session, talk.received)
        except ReplyError as error:
            return error
        return ReplyError(reason, "reply", "both checkers to agree", "one refused it")

    def _refuse(self, reason: str, why: Pp3Error) -> None:
        """A frame failed a check: end the session, and say so to the worker."""
        self._board.count(reason)
        status = int(REASON_STATUS[reason])
        event = Event.INCIDENT if reason in INCIDENTS else Event.FAULT
        self._end_session(event, why, ErrorBody(status, str(why)))

    def _farewell(self, talk: Conversation, kind: Kind, frame: memoryview) -> None:
        words = talk.last_words(kind, frame)
        if kind is Kind.ERROR:
            self._board.count("error_frames")
        event = Event.LOST if kind is Kind.BYE else Event.FAULT
        self._end_session(event, LinkError(words))

    def _end_session(
        self, event: Event, why: Pp3Error, error: ErrorBody | None = None
    ) -> None:
        """The session is over, and with it everything in flight."""
        talk, self._talk = self._talk, None
        # First the rounds: whoever waits for them must not wait for a polite goodbye.
        self._board.count("peer_died", self._hands.fail_all(Status.PEER_DIED))
        self._hands.end_session()
        self._board.note(why)
        self._step(event)
        if talk is not None and error is not None:
            talk.error(error)
        elif talk is not None:
            talk.close()
