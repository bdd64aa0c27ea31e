"""The session of a proxy with its worker, as a pure state machine.

No sockets, no threads, no clock: the loop carries events here and does what the
state it gets back asks for. ``TRANSITIONS`` is the whole truth; a pair that is not
in it is an error of the program, not a thing to be tolerated.
"""

from dataclasses import dataclass
from enum import Enum, IntEnum

from pp3shm.errors import SessionError

FIRST_RETRY_NS = 10_000_000
LAST_RETRY_NS = 1_000_000_000


class SessionState(IntEnum):
    """Where a session stands. The number is what the region shows to the engine."""

    WAITING = 0
    """No session; the next dial is due at ``retry_at_ns``."""
    DIALING = 1
    """Connecting, proving the key, exchanging HELLO."""
    READY = 2
    """Rounds go to the worker."""
    REFUSED = 3
    """The worker's profile differs; only the user can decide to try again."""
    INCIDENT = 4
    """The worker computed wrongly; opened again only when the user says so."""
    CLOSED = 5
    """The proxy ends."""


class Event(Enum):
    """What happens to a session."""

    DIAL = "the time of a dial has come"
    ACCEPTED = "HELLO and HELLO_ACK agree"
    ANSWERED = "the session's first good reply is in"
    UNREACHABLE = "no connection, no proof, or no HELLO_ACK"
    MISMATCH = "the profiles differ"
    LOST = "the connection ended"
    FAULT = "a frame failed one of the checks `frame` to `trailer`"
    INCIDENT = "a reply failed one of the checks `mask` to `mass`"
    REOPEN = "the user asks for a session again"
    STOP = "the proxy is told to end"


TRANSITIONS: dict[tuple[SessionState, Event], SessionState] = {
    (SessionState.WAITING, Event.DIAL): SessionState.DIALING,
    (SessionState.DIALING, Event.ACCEPTED): SessionState.READY,
    (SessionState.DIALING, Event.UNREACHABLE): SessionState.WAITING,
    (SessionState.DIALING, Event.MISMATCH): SessionState.REFUSED,
    (SessionState.READY, Event.ANSWERED): SessionState.READY,
    (SessionState.READY, Event.LOST): SessionState.WAITING,
    (SessionState.READY, Event.FAULT): SessionState.WAITING,
    (SessionState.READY, Event.INCIDENT): SessionState.INCIDENT,
    (SessionState.REFUSED, Event.REOPEN): SessionState.WAITING,
    (SessionState.INCIDENT, Event.REOPEN): SessionState.WAITING,
    # Asking for a session again while there is one, or while one is coming, is a
    # wish already granted.
    (SessionState.WAITING, Event.REOPEN): SessionState.WAITING,
    (SessionState.DIALING, Event.REOPEN): SessionState.DIALING,
    (SessionState.READY, Event.REOPEN): SessionState.READY,
    **{
        (state, Event.STOP): SessionState.CLOSED
        for state in SessionState
        if state is not SessionState.CLOSED
    },
}


@dataclass(frozen=True, slots=True)
class Session:
    """A session's state and when it is to be dialled next.

    Attributes:
        state: where it stands.
        failures: dials and sessions that ended badly since the last good one.
        retry_at_ns: earliest next dial, in the clock of ``step``'s ``now_ns``.
    """

    state: SessionState = SessionState.WAITING
    failures: int = 0
    retry_at_ns: int = 0


def step(session: Session, event: Event, now_ns: int) -> Session:
    """The session after ``event``.

    A session that had answered and is lost is dialled again at once, since a worker
    that was only restarted is back in a moment. Each failure after that doubles the
    pause, from 10 ms to 1 s, until a session answers again: a peer that accepts
    every HELLO and then says nothing good earns no storm of dials.

    Args:
        session: the session before.
        event: what happened.
        now_ns: the time of it, any monotonic clock in nanoseconds.

    Raises:
        SessionError: the state knows no such event.
    """
    state = TRANSITIONS.get((session.state, event))
    if state is None:
        raise SessionError(session.state, event)
    if event in (Event.ANSWERED, Event.REOPEN):
        return Session(state, 0, now_ns)
    if state is not SessionState.WAITING:
        return Session(state, session.failures, session.retry_at_ns)
    pause = min(FIRST_RETRY_NS << min(session.failures, 30), LAST_RETRY_NS)
    if event is Event.LOST and session.failures == 0:
        pause = 0
    return Session(state, session.failures + 1, now_ns + pause)
