"""Everything a worker can say at a bad moment or in a bad way, and what must follow.

``expected`` is the table: the moment, the kind of frame and the fault decide which
event the session meets; which state follows stands in ``proxy.state.TRANSITIONS``.
"""

import struct
import time
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from scripted_worker import ScriptedWorker, good_reply

from pp3shm.layout.frames import (
    HEADER_BYTES,
    ErrorBody,
    Kind,
    Reset,
    Step,
    StepRow,
    encode_error,
    encode_reply,
    encode_reset,
    encode_step,
    profile_flags,
)
from pp3shm.proxy.state import Event

HEADER = struct.Struct("<4sHHIIQ16s")
KINDS = (*Kind, 9)
"""Those there are, and one that there is not."""

FAULTS = (
    "valid",
    "truncated",
    "cut",
    "oversize",
    "undersize",
    "wrong session",
    "replayed",
    "skipped",
    "wrong crc",
    "wrong flags",
    "wrong version",
    "drip",
)
MOMENTS = ("greeting", "idle", "in flight")

# What may come at each moment; every other kind is refused by its header.
AWAITED = {
    "greeting": (Kind.HELLO_ACK, Kind.ERROR),
    "idle": (Kind.REPLY, Kind.ERROR, Kind.BYE),
    "in flight": (Kind.REPLY, Kind.ERROR, Kind.BYE),
}

READY = ("idle", "in flight")
SAID: dict[tuple[str, int, str], Event | None] = {
    **{(m, kind, "truncated"): Event.LOST for m in READY for kind in AWAITED[m]},
    **{(m, Kind.BYE, "valid"): Event.LOST for m in READY},
    ("in flight", Kind.REPLY, "valid"): None,
}
"""In a session, of what may come: all the rest of it is a fault."""


def expected(moment: str, kind: int, fault: str) -> Event | None:
    """The event that a frame brings about; None: none that changes the session."""
    if moment == "greeting":
        good = (kind, fault) == (Kind.HELLO_ACK, "valid")
        return Event.ACCEPTED if good else Event.UNREACHABLE
    if fault in ("drip", "cut"):
        return Event.LOST  # not even the header comes whole
    if kind not in AWAITED[moment]:
        return Event.FAULT
    return SAID.get((moment, kind, fault), Event.FAULT)


class Moment(NamedTuple):
    """What the worker knows as it speaks."""

    session: bytes
    sequence: int
    step: Step


def body_of(worker: ScriptedWorker, kind: int, moment: Moment) -> bytes:
    """What a frame of this kind says at its best."""
    profile = worker.profile
    row = StepRow(0, 1, 3, 0, (), sampled=True)
    return {
        Kind.HELLO: profile.canonical_json,
        Kind.HELLO_ACK: profile.canonical_json,
        Kind.STEP: lambda: encode_step(profile, Step(1, (row,))),
        Kind.REPLY: lambda: encode_reply(profile, good_reply(profile, moment.step)),
        Kind.RESET: lambda: encode_reset(profile, Reset(0, 1, [5, 6, 7])),
        Kind.ERROR: lambda: encode_error(ErrorBody(5, "step: no")),
        Kind.BYE: lambda: b"",
        Kind.ENDPOINT: lambda: bytes(64),
    }.get(kind, lambda: b"what is this")()


def frame_of(worker: ScriptedWorker, kind: int, fault: str, moment: Moment) -> bytes:
    """The frame with its fault; how it is sent is another's business."""
    body = body_of(worker, kind, moment)
    crc = zlib.crc32(body) ^ (fault == "wrong crc")
    sampled = kind in (Kind.STEP, Kind.REPLY)
    length = len(body) + 4
    header = HEADER.pack(
        b"PP3F",
        2 if fault == "wrong version" else 1,
        kind,
        (profile_flags(worker.profile) if sampled else 0)
        ^ (4 if fault == "wrong flags" else 0),
        {"oversize": 2**32 - 1, "undersize": 3}.get(fault, length),
        moment.sequence + {"replayed": -1, "skipped": 1}.get(fault, 0) & 2**64 - 1,
        bytes(16) if fault == "wrong session" else moment.session,
    )
    frame = header + body + struct.pack("<I", crc)
    if fault == "truncated":
        return frame[: max(HEADER_BYTES, (HEADER_BYTES + len(frame)) // 2)]
    return frame[: HEADER_BYTES // 2] if fault == "cut" else frame


def pieces(frame: bytes, fault: str) -> Iterator[bytes]:
    """The parts it is sent in; a byte at a time if it drips."""
    if fault != "drip":
        yield frame
        return
    for byte in frame:
        yield bytes([byte])
        time.sleep(0.01)


def speak(worker: ScriptedWorker, kind: int, fault: str, moment: Moment) -> None:
    """Sends it to whoever is connected.

    Raises:
        OSError: nobody is, any more.
    """
    for piece in pieces(frame_of(worker, kind, fault, moment), fault):
        worker._connection.sendall(piece)
    if fault == "cut":
        worker.hang_up()
