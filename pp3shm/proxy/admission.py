"""What is said at an engine's door, on both sides, until the region is handed over.

worker: proof of the key, if there is one; ``ASK``; HELLO with its profile.
engine: HELLO_ACK and, behind it, the attach record with the region's descriptors; or
an ERROR that says why not. worker: ``READY``, once the region is mapped; ``LEFT``, once
it is not touched any more.
"""

import os
import socket
import time

from pp3shm._core import lib
from pp3shm.errors import FrameError, LinkError, ProfileError, RegionError
from pp3shm.layout.frames import (
    HEADER_BYTES,
    ErrorBody,
    FrameHeader,
    Kind,
    Status,
    body_lengths_ok,
    encode_error,
    encode_frame,
    open_body,
)
from pp3shm.layout.profile import Profile
from pp3shm.link import FrameReader, SocketLink
from pp3shm.link.proof import prove_to_worker
from pp3shm.link.reader import read_exactly
from pp3shm.proxy.greet import agree
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.ring.handover import peer_of
from pp3shm.ring.record import PROXY
from pp3shm.ring.ring import EngineEnd

ASK = b"PP3R"
"""What a worker says first: it wants the region, and is no proxy that dials."""
READY = b"have"
LEFT = b"left"


def ask(link: SocketLink, plan: ProxyPlan, deadline: float) -> None:
    """The worker's side, up to the answer to HELLO.

    Args:
        link: just connected.
        plan: our profile and key.
        deadline: on the clock of ``time.monotonic``.

    Raises:
        LinkError: another user's door, no proof or no answer in time, or a refusal.
        ProfileError: the engine's profile differs, by field.
    """
    with socket.socket(fileno=os.dup(link.fileno())) as plain:
        uid = peer_of(plain)[1]
    if uid != os.geteuid():  # of whoever listens there
        user = f"an engine of user {os.geteuid()}"
        raise LinkError(f"{plan.worker}: expected {user}, found user {uid}")
    if plan.psk is not None:
        prove_to_worker(link, plan.psk, deadline)
    link.send(ASK)
    agree(link, plan.profile, deadline)


def _admit(header: FrameHeader) -> None:
    if header.kind != Kind.HELLO or header.sequence != 0:
        raise FrameError("frame.kind", "HELLO", Kind(header.kind).name)
    if not body_lengths_ok(header.kind, header.body_bytes, None):
        raise FrameError("frame.body_bytes", "a HELLO's", header.body_bytes)


def hear(
    link: SocketLink, profile: Profile, deadline: float, stop: int
) -> bytes | None:
    """The engine's side: the session's name, once a region of this profile is wanted.

    Args:
        link: with its proof behind it.
        profile: ours.
        deadline: on the clock of ``time.monotonic``.
        stop: a descriptor that ends the wait by becoming readable.

    Returns:
        None where ``stop`` ended it.

    Raises:
        FrameError, LinkError, RegionError: it says something else, or nothing in time.
        ProfileError: its profile differs; it has been told by which field.
    """
    asked = read_exactly(link, len(ASK), deadline, stop)
    if asked != ASK:
        raise RegionError("ask", repr(ASK), repr(asked))
    reader = FrameReader(link, _admit)
    frame = reader.read(deadline, max(0.0, deadline - time.monotonic()), stop)
    if frame is None or reader.header is None:
        return None
    session = reader.header.session
    try:
        profile.expect_same(Profile.from_json(open_body(frame[HEADER_BYTES:])))
    except ProfileError as error:
        refuse(link, session, str(error))
        raise
    return session


def refuse(link: SocketLink, session: bytes, text: str) -> None:
    """Tell a worker why it does not get the region, and close.

    Raises:
        LinkError: it does not listen.
    """
    body = encode_error(ErrorBody(Status.REFUSED, text))
    link.send(encode_frame(Kind.ERROR, session, 0, body))
    link.finish()


def give(
    link: SocketLink, session: bytes, profile: Profile, ring: EngineEnd, owner: int
) -> None:
    """The answer to HELLO, and the region behind it.

    Args:
        link: of a worker that is an owner from now on.
        session: its name.
        profile: ours.
        ring: the engine's end.
        owner: its owner id.

    Raises:
        LinkError, OSError, RegionError: it has been given nothing.
    """
    region = ring.region
    fds = [*region.share(PROXY).values()]
    try:
        fds.append(os.dup(lib.pp3_bell_fd(ring.handle)))
        record = region.record_for(PROXY, owner=owner)
        ours = profile.canonical_json()
        link.send(encode_frame(Kind.HELLO_ACK, session, 0, ours))
        with socket.socket(fileno=os.dup(link.fileno())) as plain:
            socket.send_fds(plain, [record], fds)
    finally:
        for fd in fds:
            os.close(fd)
