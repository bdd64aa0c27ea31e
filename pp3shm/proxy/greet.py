"""From an address to an agreed session: connection, key proof, HELLO, HELLO_ACK."""

import secrets
import time
from dataclasses import dataclass
from typing import Protocol

from pp3shm.errors import FrameError, LinkError, PeerDied, ProfileError
from pp3shm.layout.frames import (
    FrameHeader,
    Kind,
    body_lengths_ok,
    decode_error,
    decode_header,
    encode_frame,
    open_body,
)
from pp3shm.layout.profile import Profile
from pp3shm.link.base import Buffer
from pp3shm.link.reader import FrameReader
from pp3shm.link.socket import SocketLink, connect
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
    """An agreed session: HELLO was sequence 0 of each direction."""

    link: Talk
    session: bytes


def greet(plan: ProxyPlan) -> Greeting:
    """Dial the worker and agree on the profile.

    Args:
        plan: the worker's address, key and our profile.

    Returns:
        The session; frames of both directions go on from sequence 1.

    Raises:
        ConfigError: a bad address.
        LinkError: nobody there, no proof, no answer in time, or the worker refused us
            for now: its ERROR says why.
        ProfileError: the worker's profile differs, by name; whoever saw it first.
    """
    deadline = time.monotonic() + plan.dial_timeout_s
    link = connect(plan.worker, plan.dial_timeout_s, plan.psk)
    try:
        return agree(link, plan.profile, deadline)
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
    frame = reader.read(deadline, frame_s=max(0.0, deadline - time.monotonic()))
    if frame is None:  # only a stop descriptor ends a read so, and there is none
        raise PeerDied(f"{link.peer}: the greeting was stopped")
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
    return Greeting(link, session)


def plan_capacity(profile: Profile) -> int:
    """Bytes of the largest frame that a worker sends in a session of ``profile``."""
    return max(profile.reply_bytes, 40 + 16 + 1024 + 4)
