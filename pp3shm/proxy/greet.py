"""From an address to an agreed session: connection, key proof, HELLO, HELLO_ACK.

And ENDPOINT each way, where the address says ``rdma://``.
"""

import contextlib
import secrets
import time
from dataclasses import dataclass
from typing import Protocol

from pp3shm.errors import FrameError, LinkError, PeerDied, ProfileError
from pp3shm.layout.frames import (
    HEADER_BYTES,
    Endpoint,
    FrameHeader,
    Kind,
    body_lengths_ok,
    decode_endpoint,
    decode_error,
    decode_header,
    encode_endpoint,
    encode_frame,
    open_body,
)
from pp3shm.layout.profile import Profile
from pp3shm.link import rdma
from pp3shm.link.address import RdmaAddress
from pp3shm.link.base import Buffer
from pp3shm.link.lane import Lane
from pp3shm.link.reader import FrameReader
from pp3shm.link.socket import SocketLink, connect
from pp3shm.link.staging import slots_for
from pp3shm.link.verbs import Shape
from pp3shm.proxy.plan import ProxyPlan


class Talk(Protocol):
    """What a session needs of a connection once it is agreed."""

    @property
    def peer(self) -> str:
        """The other side, for messages."""

    def fileno(self) -> int:
        """The descriptor to poll; -1: there is none."""

    def send(self, frame: Buffer, timeout_s: float = 5.0) -> None:
        """One whole frame; see ``Link.send``."""

    def finish(self, timeout_s: float = 0.5) -> None:
        """Close so that what was sent last still arrives."""

    def close(self) -> None:
        """Give the connection up."""


@dataclass(slots=True)
class Greeting:
    """An agreed session.

    Attributes:
        link: the connection.
        session: 16 bytes.
        reader: of its frames; None where there are none.
        lane: what carries STEPs and REPLYs where it is not the connection.
        slots: staging slots of the lane.
        sequence: of the next frame, the same in both directions.
    """

    link: Talk
    session: bytes
    reader: FrameReader | None = None
    lane: Lane | None = None
    slots: int = 0
    sequence: int = 1

    def close(self) -> None:
        """Give it up without a word."""
        self.link.close()
        if self.lane is not None:
            with contextlib.suppress(LinkError):  # counted: rdma.lost_areas()
                self.lane.close()


def greet(plan: ProxyPlan, rounds: int) -> Greeting:
    """Dial the worker and agree on the profile.

    Args:
        plan: the worker's address, key and our profile.
        rounds: at most in flight: each has a staging slot of its own.

    Returns:
        The session.

    Raises:
        ConfigError: a bad address.
        LinkError: nobody there, no proof, no answer in time, or the worker refused us
            for now: its ERROR says why.
        ProfileError: the worker's profile differs, by name; whoever saw it first.
    """
    deadline = time.monotonic() + plan.dial_timeout_s
    link = connect(plan.worker, plan.dial_timeout_s, plan.psk)
    try:
        greeting = agree(link, plan.profile, deadline)
        if isinstance(link.address, RdmaAddress):
            _open_lane(greeting, link, link.address, plan.profile, rounds, deadline)
        return greeting  # noqa: TRY300 - what was opened is closed below
    except BaseException:
        link.close()
        raise


def agree(link: SocketLink, profile: Profile, deadline: float) -> Greeting:
    """HELLO and its answer, on a connection whose proof is given.

    Args:
        link: closed by nobody here.
        profile: ours.
        deadline: on the clock of ``time.monotonic``.

    Raises:
        LinkError: no answer in time, or a refusal in the peer's words.
        ProfileError: the peer's profile differs, by name.
    """
    session = secrets.token_bytes(16)
    link.send(encode_frame(Kind.HELLO, session, 0, profile.canonical_json()))

    def admit(header: FrameHeader) -> None:
        """Only the answer to HELLO, and no longer than it may be."""
        if header.kind not in (Kind.HELLO_ACK, Kind.ERROR):
            raise FrameError("kind", "HELLO_ACK", Kind(header.kind).name)
        if not body_lengths_ok(header.kind, header.body_bytes, None):
            raise FrameError("body length", "at most 8 KiB", header.body_bytes)

    reader = FrameReader(link, admit, plan_capacity(profile))
    frame = _read(reader, link, deadline)
    try:
        header = decode_header(bytes(frame[:40]))
        body = open_body(bytes(frame[40:]))
        if header.kind == Kind.ERROR:
            said = decode_error(body).text
            raise ProfileError.told(said) or LinkError(f"{link.peer}: {said}")
        for place, expected, found in (
            ("session", session.hex(), header.session.hex()),
            ("sequence", 0, header.sequence),
        ):
            if expected != found:
                raise FrameError(f"HELLO_ACK {place}", expected, found)
        profile.expect_same(Profile.from_json(body))
    except FrameError as error:
        raise LinkError(f"{link.peer}: {error}") from error
    except ProfileError:
        # Both sides compare every field: the worker is told before we leave.
        link.send(encode_frame(Kind.BYE, session, 1, b""))
        raise
    return Greeting(link, session, reader)


def _read(reader: FrameReader, link: SocketLink, deadline: float) -> memoryview:
    """The next frame.

    Raises:
        LinkError: not in time, or refused by its header.
    """
    try:
        frame = reader.read(deadline, frame_s=max(0.0, deadline - time.monotonic()))
    except FrameError as error:
        raise LinkError(f"{link.peer}: {error}") from error
    if frame is None:  # only a stop descriptor ends a read so, and there is none
        raise PeerDied(f"{link.peer}: the greeting was stopped")
    return frame


def _open_lane(
    greeting: Greeting,
    link: SocketLink,
    address: RdmaAddress,
    profile: Profile,
    rounds: int,
    deadline: float,
) -> None:
    """Make our end, tell the worker of it, connect to what it tells of its own.

    The worker connects before it answers, so that the first STEP finds it ready.
    """
    session = greeting.session
    slots = slots_for(rounds, max(profile.reply_bytes, profile.step_bytes))
    shape = Shape(slots, profile.reply_bytes, profile.step_bytes)
    end = rdma.open_end(link.local_ip, address, shape)
    try:
        body = encode_endpoint(end.local)
        link.send(encode_frame(Kind.ENDPOINT, session, 1, body))
        peer = _worker_endpoint(greeting, link, profile, slots, deadline)
        greeting.lane = Lane(end, peer, link.peer)
    except BaseException:
        with contextlib.suppress(LinkError):  # counted: rdma.lost_areas()
            end.close()
        raise
    greeting.slots = slots
    greeting.sequence = 2


def _worker_endpoint(
    greeting: Greeting,
    link: SocketLink,
    profile: Profile,
    slots: int,
    deadline: float,
) -> Endpoint:
    reader = greeting.reader
    if reader is None:
        raise LinkError(f"{link.peer}: expected a reader of its frames, found none")

    def admit(header: FrameHeader) -> None:
        if header.kind not in (Kind.ENDPOINT, Kind.ERROR):
            raise FrameError("kind", "ENDPOINT", Kind(header.kind).name)
        if not body_lengths_ok(header.kind, header.body_bytes, None):
            raise FrameError("body length", "that of ENDPOINT", header.body_bytes)

    reader.admit = admit
    frame = _read(reader, link, deadline)
    try:
        header = decode_header(bytes(frame[:HEADER_BYTES]))
        body = open_body(bytes(frame[HEADER_BYTES:]))
        if header.kind == Kind.ERROR:
            raise LinkError(f"{link.peer}: {decode_error(body).text}")
        if (header.session, header.sequence) != (greeting.session, 1):
            raise FrameError("ENDPOINT sequence", "1 of this session", header.sequence)
        return decode_endpoint(body, profile.step_bytes, slots)
    except FrameError as error:
        raise LinkError(f"{link.peer}: {error}") from error


def plan_capacity(profile: Profile) -> int:
    """Bytes of the largest frame that a worker sends in a session of ``profile``."""
    return max(profile.reply_bytes, 40 + 16 + 1024 + 4)
