"""One connection from accept to close: proof, HELLO, frames in and out, ERROR, BYE.

Sections 2, 3 and 9 of the wire page stand here. One thread runs it; whatever the peer
does ends this connection and nothing else.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pp3shm.errors import FrameError, LinkError, ProfileError
from pp3shm.layout.frames import (
    ErrorBody,
    FrameHeader,
    body_lengths_ok,
    decode_error,
    encode_error,
    encode_frame,
    open_body,
    profile_flags,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import (
    FRAME,
    HEADER_BYTES,
    Kind,
    Status,
)
from pp3shm.link import FrameReader, RdmaAddress, SocketLink
from pp3shm.link.proof import demand_proof
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import DrafterFault, DrafterSource
from pp3shm.worker.session import Refusal, Session
from pp3shm.worker.staged import StagedFrames, open_lane

logger = logging.getLogger("pp3shm.worker")

FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a peer may take, in seconds.

    Attributes:
        handshake_s: from accept to a whole HELLO, key proof included.
        frame_s: from the first byte of a frame to its last.
        send_s: to take a frame that was sent to it.
    """

    handshake_s: float = 5.0
    frame_s: float = 10.0
    send_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Host:
    """What the worker lends to each of its connections.

    Attributes:
        profile: the worker's own.
        psk: the pre-shared key, or None.
        source: of drafters.
        counts: of the worker.
        patience: with peers.
        stop: a descriptor that becomes readable when the worker closes.
        stopping: the same as a question.
        admit: takes a session's 16 bytes for as long as it lasts; raises ``Refusal``
            where it is in use or there are too many.
    """

    profile: Profile
    psk: bytes | None
    source: DrafterSource
    counts: Counts
    patience: Patience
    stop: int
    stopping: Callable[[], bool]
    admit: Callable[[bytes], contextlib.AbstractContextManager[None]]


class Connection:
    """The worker's end of one connection.

    Args:
        link: just accepted.
        host: of the worker.
    """

    def __init__(self, link: SocketLink, host: Host) -> None:
        self._link = link
        self._host = host
        self._stream = FrameReader(link, self._admit_hello)
        self._reader: FrameReader | StagedFrames = self._stream
        self._staged: StagedFrames | None = None
        self._session = b""
        self._expects: tuple[Kind, ...] = (Kind.STEP, Kind.RESET, Kind.ERROR, Kind.BYE)
        self._received = 0
        self._sent = 0

    def serve(self, proved: Callable[[], None]) -> None:
        """Run to the end; raises nothing that a peer could cause.

        Args:
            proved: called when the handshake is through.
        """
        with contextlib.closing(self._link), self._faults_answered():
            deadline = time.monotonic() + self._host.patience.handshake_s
            if self._host.psk is not None:
                self._demand_proof(self._host.psk, deadline)
            frame = self._reader.read(deadline, FOREVER, self._host.stop)
            if frame is None:
                return  # the worker closes; there is no session to end with a BYE
            self._compare(self._open(frame))
            with self._host.admit(self._session):
                self._run_session(proved)

    @contextlib.contextmanager
    def _faults_answered(self) -> Iterator[None]:
        """What ends a connection ends here, with an ERROR where one may be sent."""
        try:
            yield
        except Refusal as refusal:
            self._refuse(refusal)
        except FrameError as error:
            self._refuse(Refusal(fault_of(error), str(error)))
        except LinkError as error:
            self._host.counts.add("connections_lost")
            logger.info("%s", error)

    def _demand_proof(self, psk: bytes, deadline: float) -> None:
        try:
            demand_proof(self._link, psk, deadline, self._host.stop)
        except LinkError:
            self._host.counts.add("proofs_failed")
            raise

    def _compare(self, body: bytes) -> None:
        try:
            self._host.profile.expect_same(Profile.from_json(body))
        except ProfileError as error:
            raise Refusal(Status.REFUSED, str(error)) from error

    def _run_session(self, proved: Callable[[], None]) -> None:
        host = self._host
        proved()  # now, for it may wait for its drafter behind others
        try:
            session = Session(host.profile, self._session, host.source, host.counts)
        except DrafterFault as fault:
            raise Refusal(
                Status.WORKER_ERROR, "drafter: expected one, found that it failed"
            ) from fault
        try:
            # Inside: the peer hears of its fault before the drafter hears of the end.
            with self._faults_answered():
                self._send(Kind.HELLO_ACK, host.profile.canonical_json())
                host.counts.add("sessions")
                self._reader.admit = self._admit
                if isinstance(self._link.address, RdmaAddress):
                    self._open_lane(self._link.address)
                else:
                    self._stream.ahead = True
                while self._turn(session):
                    pass
        finally:
            session.end()
            if self._staged is not None:
                self._staged.close()

    def _open_lane(self, address: RdmaAddress) -> None:
        """The proxy's ENDPOINT, then ours; STEPs and REPLYs go by RDMA from now on."""
        reader, patience = self._stream, self._host.patience
        self._expects = (Kind.ENDPOINT, Kind.ERROR, Kind.BYE)
        frame = reader.read(
            time.monotonic() + patience.handshake_s, patience.frame_s, self._host.stop
        )
        header = reader.header
        if frame is None or header is None:
            raise LinkError(f"{self._link.peer}: the worker closes")
        body = self._open(frame)
        self._received += 1
        if header.kind != Kind.ENDPOINT:
            self._hear(header, body)
            raise LinkError(f"{self._link.peer}: expected ENDPOINT, it ended")
        try:
            opened = open_lane(self._link, address, self._host.profile, body)
        except LinkError as error:
            raise Refusal(Status.REFUSED, str(error)) from error
        self._staged = self._reader = StagedFrames(reader, opened, self._next)
        self._expects = (Kind.STEP, Kind.RESET, Kind.ERROR, Kind.BYE)
        self._send(Kind.ENDPOINT, opened.body)
        self._host.counts.add("rdma_sessions")

    def _next(self) -> int:
        """The sequence of the frame that is next."""
        return self._received

    def _turn(self, session: Session) -> bool:
        """Take one frame; False at the session's orderly end."""
        frame = None
        if not self._host.stopping():
            frame = self._reader.read(
                FOREVER, self._host.patience.frame_s, self._host.stop
            )
        if frame is None:
            self._send(Kind.BYE, b"")
            self._link.finish()
            return False
        header = self._reader.header
        body = self._open(frame)
        self._received += 1
        if header is None or header.kind not in (Kind.STEP, Kind.RESET):
            self._hear(header, body)
            return False
        if header.kind == Kind.RESET:
            session.reset(body)
        else:
            flags = profile_flags(self._host.profile)
            self._send(Kind.REPLY, session.step(body), flags)
        return True

    def _open(self, frame: memoryview) -> bytes:
        try:
            return open_body(frame[HEADER_BYTES:])
        except FrameError as error:
            raise Refusal(Status.CORRUPT, str(error)) from error

    def _hear(self, header: FrameHeader | None, body: bytes) -> None:
        """The engine's side ended the session."""
        if header is not None and header.kind == Kind.ERROR:
            self._host.counts.add("errors_received")
            said = decode_error(body)
            logger.warning("%s: the peer ended with: %a", self._link.peer, said.text)

    # ---- what a header may say, judged before its body is read ----

    def _admit_hello(self, header: FrameHeader) -> None:
        self._session = header.session
        expect("frame.kind", Kind.HELLO, header.kind)
        expect("frame.flags", 0, header.flags)
        expect("frame.sequence", 0, header.sequence)
        self._expect_length(header)
        self._received = 1

    def _admit(self, header: FrameHeader) -> None:
        if header.kind not in self._expects:
            *others, last = (kind.name for kind in self._expects)
            expected = f"{', '.join(others)} or {last}"
            raise FrameError("frame.kind", expected, Kind(header.kind).name)
        flags = profile_flags(self._host.profile) if header.kind == Kind.STEP else 0
        expect("frame.flags", flags, header.flags)
        if self._staged is None:  # which else puts the two ways in order
            expect("frame.sequence", self._received, header.sequence)
        if header.session != self._session:
            raise FrameError("frame.session", self._session.hex(), header.session.hex())
        self._expect_length(header)

    def _expect_length(self, header: FrameHeader) -> None:
        if not body_lengths_ok(header.kind, header.body_bytes, self._host.profile):
            raise FrameError(
                "frame.body_bytes",
                f"a length of {Kind(header.kind).name}",
                header.body_bytes,
            )

    # ---- sending ----

    def _send(self, kind: Kind, body: bytes, flags: int = 0) -> None:
        frame = encode_frame(kind, self._session, self._sent, body, flags)
        self._sent += 1
        if self._staged is not None and kind is Kind.REPLY:
            self._staged.reply(frame, self._host.patience.send_s)
        else:
            self._link.send(frame, self._host.patience.send_s)

    def _refuse(self, refusal: Refusal) -> None:
        """Say why, as long as the peer was understood so far, and close."""
        self._host.counts.add("connections_refused")
        logger.warning("%s: refused: %a", self._link.peer, refusal.text)
        if not self._session and not self._name_session():
            return
        body = encode_error(ErrorBody(refusal.code, refusal.text, refusal.round))
        try:
            self._send(Kind.ERROR, body)
            self._host.counts.add(f"errors_{refusal.code.name.lower()}")
            self._link.finish()
        except LinkError:
            self._host.counts.add("connections_lost")

    def _name_session(self) -> bool:
        """Take the session from a header that was refused for its version or kind.

        False where the peer does not speak this protocol, and is told nothing.
        """
        header = FRAME.read(self._reader.raw_header)
        if header["magic"] != b"PP3F":
            return False
        self._session = header["session"]
        return True


def expect(place: str, expected: int, found: int) -> None:
    """Raise FrameError where the two differ."""
    if expected != found:
        raise FrameError(place, int(expected), int(found))


def fault_of(error: FrameError) -> Status:
    """The code of an ERROR about a header.

    A length that is not the profile's is what a STEP of another n or depth shows
    first, so it has their code.
    """
    return Status.INVALID if error.place == "frame.body_bytes" else Status.CORRUPT
