"""REPLY: encoding and decoding of a body in row order; judging it is validate.py's."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import FrameError
from pp3shm.layout.profile import Profile
from pp3shm.layout.record import Packing, shown
from pp3shm.layout.step import profile_flags
from pp3shm.layout.tables import REPLY_HEADER, SUPPORT, TRAILER, reply_packing


@dataclass(frozen=True, slots=True, eq=False)
class Reply:
    """The arrays of a REPLY, rows in the order of the STEP's rows.

    Attributes:
        round: the STEP answered.
        generation: (n,) uint32, echo.
        status: (n,) int32, ``Status``.
        tokens: (n, depth) int32; -1 in a failed row.
        confidence: (n, depth) float32 of 0..1.
        mask: (n,) int32, 1 = sampled row; None in a greedy session.
        ids: (n, depth, 32) int32, ascending; None in a greedy session.
        q: (n, depth, 32) float32, counts / 2**24; None in a greedy session.
    """

    round: int
    generation: NDArray[np.uint32]
    status: NDArray[np.int32]
    tokens: NDArray[np.int32]
    confidence: NDArray[np.float32]
    mask: NDArray[np.int32] | None = None
    ids: NDArray[np.int32] | None = None
    q: NDArray[np.float32] | None = None


ARRAYS: tuple[str, ...] = ("status", "generation", "tokens", "confidence")
SAMPLED_ARRAYS: tuple[str, ...] = ("mask", "ids", "q")


def _packing(profile: Profile, n: int) -> Packing:
    if not 1 <= n <= profile.max_slots:
        raise FrameError("reply.n", f"1..{profile.max_slots}", shown(n))
    return reply_packing(n, profile.depth, profile.is_sampled)


def encode_reply(profile: Profile, reply: Reply) -> bytes:
    """The body of a REPLY, without its CRC.

    Only shapes are checked: what the values mean is the receiver's to judge.

    Raises:
        FrameError: an array is missing, or of another shape or type.
    """
    n = len(reply.status)
    packing = _packing(profile, n)
    body = bytearray(packing.size)
    views = packing.views(body)
    body[: REPLY_HEADER.size] = REPLY_HEADER.pack(
        round=reply.round,
        n=n,
        depth=profile.depth,
        flags=profile_flags(profile),
        zero=0,
    )
    names = ARRAYS
    if profile.is_sampled:
        names += SAMPLED_ARRAYS
        at = packing.offset["trailer"]
        body[at : at + TRAILER.size] = TRAILER.pack(
            magic=b"PP3Q", version=1, n=n, depth=profile.depth
        )
    for name in names:
        _put(name, views[name], getattr(reply, name))
    return bytes(body)


def _put(name: str, view: NDArray[Any], value: NDArray[Any] | None) -> None:
    if value is None:
        raise FrameError(f"reply.{name}", f"an array of {view.shape}", "none")
    if value.shape != view.shape:
        raise FrameError(f"reply.{name}", f"shape {view.shape}", value.shape)
    if not np.can_cast(value.dtype, view.dtype, "safe"):
        raise FrameError(f"reply.{name}", view.dtype, value.dtype)
    view[...] = value


def decode_reply(profile: Profile, body_without_crc: bytes) -> Reply:
    """The arrays in a body, read-only views of it, unjudged.

    Raises:
        FrameError: the length is not that of its n.
    """
    data = bytes(body_without_crc)
    head = REPLY_HEADER.read(data)
    packing = _packing(profile, head["n"])
    if len(data) != packing.size:
        raise FrameError("reply.bytes", packing.size, len(data))
    views = packing.views(data)
    return Reply(
        head["round"],
        views["generation"],
        views["status"],
        views["tokens"],
        views["confidence"],
        views.get("mask"),
        views.get("ids"),
        views.get("q"),
    )


def unused_support(n: int, depth: int) -> NDArray[np.int32]:
    """(n, depth, 32) int32: the ids of rows that carry no q, 0..31."""
    return np.broadcast_to(
        np.arange(SUPPORT, dtype=np.int32), (n, depth, SUPPORT)
    ).copy()
