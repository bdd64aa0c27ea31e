"""Frames: header, CRC and the lengths each kind may have (wire page, section 2).

The bodies' codecs stand in step.py, control.py, endpoint.py and replies.py, their
tables in tables.py; all are named here too, so that a user needs this one module.
"""

import zlib
from functools import lru_cache
from typing import NamedTuple

from pp3shm.errors import FrameError
from pp3shm.layout.control import (
    ErrorBody,
    Reset,
    decode_error,
    decode_reset,
    encode_error,
    encode_reset,
)
from pp3shm.layout.endpoint import Endpoint, decode_endpoint, encode_endpoint
from pp3shm.layout.profile import Profile
from pp3shm.layout.record import shown
from pp3shm.layout.replies import Reply, decode_reply, encode_reply
from pp3shm.layout.step import Step, StepRow, decode_step, encode_step, profile_flags
from pp3shm.layout.tables import (
    CRC_BYTES,
    ENDPOINT,
    ERROR_HEADER,
    ERROR_TEXT_BYTES,
    FLAG_SAMPLED,
    FRAME,
    HEADER_BYTES,
    HELLO_JSON_BYTES,
    MASS,
    NO_ROUND,
    RESET_HEADER,
    SESSION_BYTES,
    SUPPORT,
    WIRE_VERSION,
    Kind,
    Status,
    reply_packing,
    step_packing,
)

__all__ = [
    "CRC_BYTES",
    "FLAG_SAMPLED",
    "HEADER_BYTES",
    "MASS",
    "NO_ROUND",
    "SUPPORT",
    "Endpoint",
    "ErrorBody",
    "FrameHeader",
    "Kind",
    "Reply",
    "Reset",
    "Status",
    "Step",
    "StepRow",
    "body_bounds",
    "body_lengths_ok",
    "decode_endpoint",
    "decode_error",
    "decode_header",
    "decode_reply",
    "decode_reset",
    "decode_step",
    "encode_endpoint",
    "encode_error",
    "encode_frame",
    "encode_reply",
    "encode_reset",
    "encode_step",
    "open_body",
    "profile_flags",
]

_FLAGGED = (Kind.STEP, Kind.REPLY)


class FrameHeader(NamedTuple):
    """The 40 bytes before a body, magic and version taken for granted.

    ``body_bytes`` counts the CRC; ``session`` has 16 bytes.
    """

    kind: Kind
    flags: int
    body_bytes: int
    sequence: int
    session: bytes


def encode_frame(
    kind: Kind,
    session: bytes,
    sequence: int,
    body_without_crc: bytes | memoryview,
    flags: int = 0,
) -> bytes:
    """A whole frame: header, body, CRC.

    Args:
        kind: of the frame.
        session: 16 bytes.
        sequence: of this direction, from 0 without gaps.
        body_without_crc: as the ``encode_...`` functions give it.
        flags: ``FLAG_SAMPLED`` on STEP and REPLY of a sampled session, else 0.

    Raises:
        FrameError: a header field out of range.
    """
    if len(session) != SESSION_BYTES:
        raise FrameError("frame.session", f"{SESSION_BYTES} bytes", len(session))
    _check_flags(kind, flags)
    header = FRAME.pack(
        magic=b"PP3F",
        version=WIRE_VERSION,
        kind=int(kind),
        flags=flags,
        body_bytes=len(body_without_crc) + CRC_BYTES,
        sequence=sequence,
        session=session,
    )
    crc = zlib.crc32(body_without_crc).to_bytes(CRC_BYTES, "little")
    return b"".join((header, body_without_crc, crc))


def decode_header(data: bytes) -> FrameHeader:
    """The header in the first 40 bytes of ``data``.

    Raises:
        FrameError: too short; magic, version, kind or flags not of this wire version.
    """
    found = FRAME.unpack(data)
    kind = Kind(found["kind"])
    _check_flags(kind, found["flags"])
    return FrameHeader(
        kind, found["flags"], found["body_bytes"], found["sequence"], found["session"]
    )


def _check_flags(kind: int, flags: int) -> None:
    if flags != 0 and kind not in _FLAGGED:
        raise FrameError("frame.flags", f"0 on {Kind(kind).name}", shown(flags))


def _lengths(kind: Kind, profile: Profile | None) -> range | tuple[int, ...]:
    """Body lengths, CRC included, that a kind may announce."""
    if kind in (Kind.HELLO, Kind.HELLO_ACK):
        return range(CRC_BYTES, HELLO_JSON_BYTES + CRC_BYTES + 1)
    if kind is Kind.ERROR:
        least = ERROR_HEADER.size + CRC_BYTES
        return range(least, least + ERROR_TEXT_BYTES + 1)
    if kind is Kind.BYE:
        return (CRC_BYTES,)
    if kind is Kind.ENDPOINT:
        return (ENDPOINT.size + CRC_BYTES,)
    if profile is None:
        raise FrameError(
            "frame.kind", "no STEP, REPLY or RESET before HELLO", kind.name
        )
    if kind is Kind.RESET:
        least = RESET_HEADER.size + CRC_BYTES
        return range(least, least + 4 * profile.max_positions + 1, 4)
    return _lengths_by_n(
        kind is Kind.STEP,
        profile.max_slots,
        profile.depth,
        profile.is_sampled,
        profile.context_bytes,
    )


@lru_cache(maxsize=64)
def _lengths_by_n(
    step: bool, max_slots: int, depth: int, sampled: bool, context_bytes: int
) -> tuple[int, ...]:
    """Of a STEP, else of a REPLY, for each number of rows."""
    return tuple(
        (
            step_packing(n, depth, sampled, context_bytes)
            if step
            else reply_packing(n, depth, sampled)
        ).size
        + CRC_BYTES
        for n in range(1, max_slots + 1)
    )


def body_bounds(kind: Kind, profile: Profile | None) -> tuple[int, int]:
    """Least and most bytes, CRC included, of a body of this kind.

    Raises:
        FrameError: the kind needs a profile and none is agreed yet.
    """
    lengths = _lengths(kind, profile)
    return lengths[0], lengths[-1]


def body_lengths_ok(kind: Kind, length: int, profile: Profile | None) -> bool:
    """Whether a body of this kind may have this length, CRC included.

    Ask before anything is allocated or read.

    Raises:
        FrameError: the kind needs a profile and none is agreed yet.
    """
    return length in _lengths(kind, profile)


def open_body(body: bytes | memoryview) -> bytes:
    """The body without its CRC.

    Raises:
        FrameError: too short, or the CRC is not that of the bytes.
    """
    if len(body) < CRC_BYTES:
        raise FrameError("crc", f"at least {CRC_BYTES} bytes of body", len(body))
    inner = bytes(body[:-CRC_BYTES])
    found = int.from_bytes(body[-CRC_BYTES:], "little")
    expected = zlib.crc32(inner)
    if found != expected:
        raise FrameError("crc", f"{expected:#010x}", f"{found:#010x}")
    return inner
