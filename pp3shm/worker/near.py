"""A drafter in the proxy's own process: a session without a link.

What a worker does with a frame is done by the same ``Session``; what a proxy does with
a reply by the same C core, all ten checks included.
"""

import logging
import secrets

from pp3shm._core import ffi, lib
from pp3shm.errors import LinkError
from pp3shm.layout.frames import (
    HEADER_BYTES,
    ErrorBody,
    Kind,
    decode_error,
    decode_header,
    encode_error,
    encode_frame,
    open_body,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import STEP_HEADER
from pp3shm.link.base import Buffer
from pp3shm.proxy.greet import Greeting
from pp3shm.proxy.hands import Hands
from pp3shm.proxy.pump import Pump
from pp3shm.ring.waiting import Waiting
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import DrafterFault, DrafterSource
from pp3shm.worker.near_session import NearSession
from pp3shm.worker.session import Refusal

logger = logging.getLogger("pp3shm.worker")

_STEP: int = lib.PP3_PUMP_STEP
_FRAME: int = lib.PP3_PUMP_FRAME
_N_AT = STEP_HEADER.offset["n"]
PEER = "the region's engine"


class NearLink:
    """What a proxy says to a worker beside STEPs, said to a session of this process.

    Args:
        session: the worker's end.
        counts: the worker's.

    Attributes:
        session: the same.
        refusal: what the session refused; it is over then.
    """

    peer = "the drafter of this process"

    def __init__(self, session: NearSession, counts: Counts) -> None:
        self.session = session
        self.refusal: Refusal | None = None
        self._counts = counts
        self._ended = False

    def fileno(self) -> int:
        """There is no descriptor."""
        return -1

    def send(self, frame: Buffer, timeout_s: float = 5.0) -> None:
        """A RESET, an ERROR or a BYE; see ``Link.send``."""
        del timeout_s  # nobody is waited for
        data = bytes(frame)
        kind = decode_header(data[:HEADER_BYTES]).kind
        body = open_body(data[HEADER_BYTES:])
        if kind == Kind.RESET:
            try:
                self.session.reset(body)
            except Refusal as refusal:
                self.refusal = refusal
        elif kind == Kind.ERROR:
            self._counts.add("errors_received")
            said = decode_error(body).text
            logger.warning("%s: it ended with: %a", PEER, said)

    def finish(self, timeout_s: float = 0.5) -> None:
        """The session is over."""
        del timeout_s
        self.close()

    def close(self) -> None:
        """The session is over; again changes nothing."""
        if not self._ended:
            self._ended = True
            self.session.end()


class NearPump(Pump):
    """A pump that drafts: of each round two calls of the C core, one of the session.

    Args:
        hands: the rounds it takes and resolves.
        control_fd: readable when the engine is gone or an end is asked for.
        waiting: how it waits for rounds.
    """

    def __init__(self, hands: Hands, control_fd: int, waiting: Waiting) -> None:
        # It runs in a thread that takes part in nobody's signals: no slices.
        super().__init__(hands, control_fd, waiting, 0)
        size = ffi.new("uint32_t *")
        room = lib.pp3_near_room(self.c, size)
        self._room = memoryview(ffi.buffer(room, size[0]))
        self._head = room - HEADER_BYTES
        self._link: NearLink | None = None

    def open(self, greeting: Greeting) -> None:
        """A session begins."""
        if not isinstance(greeting.link, NearLink):
            raise LinkError(f"session: expected {NearLink.peer}, found another link")
        self._link = greeting.link
        self._link.session.write_into(self._room)
        lib.pp3_near_open(self.c, greeting.session)

    def __call__(self) -> int:
        """Draft rounds until something rare happens: a ``PP3_PUMP_...``."""
        link, c = self._link, self.c
        if link is None:  # not opened: as a link that was lost
            return int(lib.PP3_PUMP_LOST)
        answer, near, control_fd = link.session.answer, lib.pp3_near, self._control_fd
        drafted = 0
        while link.refusal is None:
            why: int = near(c, drafted, control_fd, 0)
            if why != _STEP:
                return why
            taken = c.subject
            try:
                body = ffi.buffer(taken.frame + HEADER_BYTES, taken.body_bytes)[:]
                drafted = answer(body, body[_N_AT])  # below 256: at most max_slots
            except Refusal as refusal:
                link.refusal = refusal
        self._say(link.refusal)
        return _FRAME

    def _say(self, refusal: Refusal | None) -> None:
        """The session's refusal becomes the frame that the proxy ends it by."""
        if refusal is None:
            return
        text = ErrorBody(refusal.code, refusal.text, refusal.round)
        session = bytes(ffi.buffer(self.c.session))
        frame = encode_frame(Kind.ERROR, session, self.c.received, encode_error(text))
        ffi.memmove(self._head, frame, len(frame))
        self.c.frame, self.c.frame_bytes = self._head, len(frame)


class NearDrafter:
    """The far end of a loop whose drafter is in its process.

    Args:
        source: where each session's drafter comes from.
        profile: what was agreed with the engine.
        counts: of the worker.
        waiting: how it waits for rounds.
        session: what answers.
    """

    def __init__(
        self,
        source: DrafterSource,
        profile: Profile,
        counts: Counts,
        waiting: Waiting,
        session: type[NearSession] = NearSession,
    ) -> None:
        self._session = session
        self._source = source
        self._profile = profile
        self._counts = counts
        self._waiting = waiting

    def pump(self, hands: Hands, control_fd: int) -> Pump:
        """See ``FarEnd``."""
        return NearPump(hands, control_fd, self._waiting)

    def dial(self) -> Greeting:
        """A new session, with a drafter of its own if they are made by a factory.

        Raises:
            LinkError: no drafter could be made.
        """
        name = secrets.token_bytes(16)
        try:
            session = self._session(self._profile, name, self._source, self._counts)
        except DrafterFault as fault:
            raise LinkError("drafter: expected one, found that it failed") from fault
        self._counts.add("sessions")
        return Greeting(NearLink(session, self._counts), name)
