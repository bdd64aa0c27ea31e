"""RESET and ERROR: the bodies beside STEP and REPLY (wire page, sections 3 and 4)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import FrameError
from pp3shm.layout.digest import token_bytes
from pp3shm.layout.profile import Profile
from pp3shm.layout.record import shown
from pp3shm.layout.tables import (
    ERROR_HEADER,
    ERROR_TEXT_BYTES,
    NO_ROUND,
    RESET_HEADER,
)


@dataclass(frozen=True, slots=True, eq=False)
class Reset:
    """Opens a generation of a slot, or states it again.

    Attributes:
        slot: the engine's state slot.
        generation: of the slot; only grows.
        prefix: (position,) int32, the request's whole committed prefix.
    """

    slot: int
    generation: int
    prefix: NDArray[np.int32]


def _check_reset(profile: Profile, slot: int, prefix: NDArray[np.int32]) -> None:
    if not 0 <= slot < profile.max_slots:
        raise FrameError("reset.slot", f"0..{profile.max_slots - 1}", shown(slot))
    if prefix.size > profile.max_positions:
        raise FrameError(
            "reset.length", f"at most {profile.max_positions}", prefix.size
        )
    wrong = np.flatnonzero((prefix < 0) | (prefix >= profile.vocab))
    if wrong.size:
        place = int(wrong[0])
        raise FrameError(
            f"reset.prefix[{place}]", f"0..{profile.vocab - 1}", int(prefix[place])
        )


def encode_reset(profile: Profile, reset: Reset) -> bytes:
    """The body of a RESET, without its CRC.

    Raises:
        FrameError: slot, length or a token out of range.
    """
    tokens = token_bytes(reset.prefix)
    _check_reset(profile, reset.slot, np.frombuffer(tokens, "<i4"))
    length = len(tokens) // 4
    return (
        RESET_HEADER.pack(
            slot=reset.slot,
            generation=reset.generation,
            length=length,
            position=length,
            zero=0,
        )
        + tokens
    )


def decode_reset(profile: Profile, body_without_crc: bytes) -> Reset:
    """The RESET in a body; the prefix is a read-only view of it.

    Raises:
        FrameError: slot, length, position, zero or a token is not what it must be.
    """
    head = RESET_HEADER.unpack(body_without_crc)
    if head["position"] != head["length"]:
        raise FrameError("reset.position", head["length"], head["position"])
    expected = RESET_HEADER.size + 4 * head["length"]
    if len(body_without_crc) != expected:
        raise FrameError("reset.bytes", expected, len(body_without_crc))
    prefix = np.frombuffer(bytes(body_without_crc), "<i4", offset=RESET_HEADER.size)
    _check_reset(profile, head["slot"], prefix)
    return Reset(head["slot"], head["generation"], prefix)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """Why a session ends.

    Attributes:
        code: a ``Status``.
        text: for a person; at most 1024 bytes of UTF-8.
        round: the round it is about, or 2**64 - 1.
    """

    code: int
    text: str
    round: int = NO_ROUND


def encode_error(error: ErrorBody) -> bytes:
    """The body of an ERROR, without its CRC.

    A text beyond 1024 bytes is cut between two characters: it explains an end that
    must reach the peer, so its length may not prevent it.

    Raises:
        FrameError: the code is no status, or the round no u64.
    """
    text = error.text.encode("utf-8", "backslashreplace")
    if len(text) > ERROR_TEXT_BYTES:
        text = text[:ERROR_TEXT_BYTES].decode("utf-8", "ignore").encode()
    head = ERROR_HEADER.pack(
        code=int(error.code), text_bytes=len(text), round=error.round
    )
    return head + text


def decode_error(body_without_crc: bytes) -> ErrorBody:
    """The ERROR in a body. Its text is the peer's: escape it before printing it.

    Raises:
        FrameError: length, code, or a text that is no UTF-8.
    """
    head = ERROR_HEADER.unpack(body_without_crc)
    text = bytes(body_without_crc)[ERROR_HEADER.size :]
    if head["text_bytes"] > ERROR_TEXT_BYTES:
        raise FrameError(
            "error.text_bytes", f"at most {ERROR_TEXT_BYTES}", head["text_bytes"]
        )
    if len(text) != head["text_bytes"]:
        raise FrameError("error.bytes", head["text_bytes"], len(text))
    try:
        return ErrorBody(head["code"], text.decode("utf-8"), head["round"])
    except UnicodeDecodeError:
        raise FrameError("error.text", "UTF-8", shown(text)) from None
