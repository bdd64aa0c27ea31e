"""The one loop of a proxy: sessions, and whatever is rare in one.

A thread and a process run the same loop; they differ in who starts it. It is driven
by one thread and touches control words only through the core. Rounds and replies pass
through the pump, which comes back here for what it does not decide.
"""

import time
from collections.abc import Callable
from typing import Protocol

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
from pp3shm.layout.frames import ErrorBody, Kind, Reset, Status
from pp3shm.layout.validate import INCIDENTS, REASON_STATUS, REASONS, check_reply
from pp3shm.proxy.board import Board
from pp3shm.proxy.conversation import Conversation
from pp3shm.proxy.dial import Dialler
from pp3shm.proxy.greet import Greeting, greet
from pp3shm.proxy.hands import Hands
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.proxy.pump import Pump
from pp3shm.proxy.staged import StagedPump
from pp3shm.proxy.state import Event, Session, SessionState, step
from pp3shm.ring.ring import ProxyEnd

SLEEP_NS = 10_000_000
SLICE_NS = 50_000_000
"""A process comes back from the pump so often, to let signals in."""
BROKEN_FRAME = ("frame", "crc")
HELD = (SessionState.REFUSED, SessionState.INCIDENT)
"""States that only the user ends."""


class FarEnd(Protocol):
    """Who answers STEPs, as a loop needs him: behind a link, or in this process."""

    def pump(self, hands: Hands, control_fd: int) -> Pump:
        """The data path of the loop's sessions."""

    def dial(self) -> Greeting:
        """Open a session.

        Raises:
            Pp3Error: why there is none.
        """


class Remote:
    """A worker behind a link.

    Args:
        plan: its address, key and profile.
        rounds: at most in flight.
    """

    def __init__(self, plan: ProxyPlan, rounds: int) -> None:
        self._plan = plan
        self._rounds = rounds

    def pump(self, hands: Hands, control_fd: int) -> Pump:
        """See ``FarEnd``."""
        slice_ns = SLICE_NS if control_fd >= 0 else 0
        kind = StagedPump if self._plan.by_rdma else Pump
        return kind(hands, control_fd, self._plan.waiting, slice_ns)

    def dial(self) -> Greeting:
        """See ``FarEnd``."""
        return greet(self._plan, self._rounds)


class ProxyLoop:
    """Takes rounds, asks the worker, publishes what it answers.

    Args:
        end: the proxy's end of the ring.
        plan: the worker's address, key and profile.
        control_fd: readable when whoever started us wants attention; -1: none.
        on_control: called when it is; True ends the loop.
        clock: monotonic nanoseconds.
        far: who answers; None: the plan's worker.
    """

    def __init__(
        self,
        end: ProxyEnd,
        plan: ProxyPlan,
        control_fd: int = -1,
        on_control: Callable[[], bool] = lambda: True,
        clock: Callable[[], int] = time.monotonic_ns,
        far: FarEnd | None = None,
    ) -> None:
        self._end = end
        self._profile = plan.profile
        self._control_fd = control_fd
        self._on_control = on_control
        self._clock = clock
        self._board = Board(end)
        self._prefix = np.empty(plan.profile.max_positions, np.int32)
        expect_layout(end.region.layout_id, plan.profile)
        self._hands = Hands(end, plan.profile)
        self._rounds = int(end.region.shape.rounds)
        far = far or Remote(plan, self._rounds)
        self._pump = far.pump(self._hands, control_fd)
        self._dialler = Dialler(far.dial)
        self._talk: Conversation | None = None
        self._session = Session()
        if self._board.get("incident"):  # it outlasts the proxy that met it
            self._session = Session(SessionState.INCIDENT)
        self._board.put_state(self._end.owner, self._session.state)

    # -- the turn ------------------------------------------------------------------

    def stop(self) -> None:
        """Ask the loop to end; it says BYE. For any thread and signal handlers."""
        self._pump.stop()

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
        """One pass: heed, dial; then in a session the pump, else fail what is asked."""
        self._heed()
        self._dial()
        if self._talk is not None:
            self._carry(self._talk)
        else:
            self._hands.sweep()
            self._fail_rounds()
            self._sleep()

    def _sleep(self) -> None:
        """Until a round, a dial's outcome or an order comes, at most 10 ms."""
        state = self._session.state
        if state is SessionState.CLOSED:
            return
        sleep = SLEEP_NS
        if state is SessionState.WAITING:
            sleep = max(0, min(sleep, self._session.retry_at_ns - self._clock()))
        wake = lib.pp3_proxy_sleep(
            self._end.handle, self._dialler.fd, self._control_fd, 0, sleep
        )
        if wake > 0 and wake & lib.PP3_WAKE_CONTROL:
            self._control()

    def _control(self) -> None:
        if self._on_control():
            self.stop()

    def _heed(self) -> None:
        """Do what the user asked for: end, or open a session again."""
        if self._pump.stopped:
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
        self._talk = Conversation(greeting, self._profile, self._pump)
        self._pump.c.tell_answer = 1
        self._board.count("sessions")
        self._board.note(None)
        self._step(Event.ACCEPTED)
        try:
            for slot in range(self._profile.max_slots):
                self._send_reset(self._talk, slot)
        except LinkError as error:
            self._end_session(Event.LOST, error)

    # -- engine to worker ----------------------------------------------------------

    def _fail_rounds(self) -> None:
        """Without a session every round fails at once."""
        # Bounded, so that a flood of rounds keeps no order waiting.
        for _ in range(self._rounds):
            try:
                if self._hands.take() is None:
                    return
            except RingError as error:
                self._refused_take(error)
                return
            self._board.count("peer_died", self._hands.fail_all(Status.PEER_DIED))

    def _refused_take(self, error: RingError) -> None:
        self._board.count("bad_request")
        self._board.note(error)

    def _carry(self, talk: Conversation) -> None:
        """Let the pump carry rounds and replies, and see to what it came back with."""
        try:
            why = self._pump()
        except FrameError as error:  # what came by RDMA does not belong there
            self._refuse("frame", error)
            return
        except LinkError as error:
            self._end_session(Event.LOST, error)
            return
        seen_to = ON_RETURN.get(why)
        if seen_to is None:
            self._end_session(Event.LOST, talk.lost(why))
        else:
            seen_to(self)

    def _nothing(self) -> None:
        """The turn that follows heeds whatever was asked."""

    def _bad_take(self) -> None:
        try:
            self._hands.refuse(self._pump.error, self._pump.c.subject)
        except RingError as error:
            self._refused_take(error)

    def _ring_failed(self) -> None:
        self._end.refuse(self._pump.error)

    def _restate(self) -> None:
        """Slots of the round in hand are restated; the pump then sends its STEP."""
        talk, taken = self._talk, self._pump.subject
        if talk is None or taken is None:
            return
        try:
            for place in taken.places(self._profile):
                if talk.needs_reset(place):
                    self._send_reset(talk, place.slot, place.position)
        except LinkError as error:
            self._end_session(Event.LOST, error)

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

    def _answered(self) -> None:
        """The session's first good reply is in."""
        if self._session.failures:
            self._step(Event.ANSWERED)

    def _header_refused(self) -> None:
        if self._talk is not None:
            self._refuse("frame", self._talk.refused_header())

    def _reject(self) -> None:
        """A reply failed a check: fail its round, then say why.

        That it was an incident is noted before anybody can see the failed round, so
        that neither a death here nor a ``reopen`` in between is lost.
        """
        talk, taken = self._talk, self._pump.subject
        if talk is None:
            return
        reason = REASONS[self._pump.error - 1]
        body = None if taken is None else taken.body
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
        self._refuse(reason, self._explain(reason, body, talk))

    def _note_incident(self) -> None:
        self._board.put("incident", 1)
        self._board.put_state(self._end.owner, SessionState.INCIDENT)
        self._board.reopen_seen()  # what was asked before does not speak of this one

    def _explain(
        self, reason: str, body: bytes | None, talk: Conversation
    ) -> ReplyError:
        """The refusal in words, by the readable reference."""
        try:
            check_reply(self._profile, body, talk.frame, talk.session, talk.received)
        except ReplyError as error:
            return error
        return ReplyError(reason, "reply", "both checkers to agree", "one refused it")

    def _refuse(self, reason: str, why: Pp3Error) -> None:
        """A frame failed a check: end the session, and say so to the worker."""
        self._board.count(reason)
        status = int(REASON_STATUS[reason])
        event = Event.INCIDENT if reason in INCIDENTS else Event.FAULT
        self._end_session(event, why, ErrorBody(status, str(why)))

    def _farewell(self) -> None:
        if self._talk is None:
            return
        try:
            kind, words = self._talk.last_words()
        except FrameError as error:
            self._refuse("crc" if error.place == "crc" else "frame", error)
            return
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
        self._board.note(why)
        self._step(event)
        if talk is not None and error is not None:
            talk.error(error)
        elif talk is not None:
            talk.close()


ON_RETURN: dict[int, Callable[[ProxyLoop], None]] = {
    lib.PP3_PUMP_IDLE: ProxyLoop._nothing,  # noqa: SLF001
    lib.PP3_PUMP_STOPPED: ProxyLoop._nothing,  # noqa: SLF001
    lib.PP3_PUMP_CONTROL: ProxyLoop._control,  # noqa: SLF001
    lib.PP3_PUMP_RESET: ProxyLoop._restate,  # noqa: SLF001
    lib.PP3_PUMP_ANSWERED: ProxyLoop._answered,  # noqa: SLF001
    lib.PP3_PUMP_FRAME: ProxyLoop._farewell,  # noqa: SLF001
    lib.PP3_PUMP_HEADER: ProxyLoop._header_refused,  # noqa: SLF001
    lib.PP3_PUMP_REFUSED: ProxyLoop._reject,  # noqa: SLF001
    lib.PP3_PUMP_REQUEST: ProxyLoop._bad_take,  # noqa: SLF001
    lib.PP3_PUMP_RING: ProxyLoop._ring_failed,  # noqa: SLF001
}
"""What is done about each reason the pump comes back for; else the session is lost.
A table of the class: bound methods in a loop would keep it, and its ring, alive."""
