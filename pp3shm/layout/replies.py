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
    records = {
        "header": REPLY_HEADER.pack(
            round=reply.round,
            n=n,
            depth=profile.depth,
            flags=profile_flags(profile),
            zero=0,
        ),
        "trailer": TRAILER.pack(magic=b"PP3Q", version=1, n=n, depth=profile.depth),
    }
    return b"".join(
        records.get(name) or _array(name, packing, getattr(reply, name))
        for name in packing.shape
    )


def _array(name: str, packing: Packing, value: NDArray[Any] | None) -> memoryview:
    """The array as it stands in the body, the same one if it already does."""
    shape, dtype = packing.shape[name], packing.dtype[name]
    if value is None:
        raise FrameError(f"reply.{name}", f"an array of {shape}", "none")
    if value.shape != shape:
        raise FrameError(f"reply.{name}", f"shape {shape}", value.shape)
    if value.dtype != dtype and not np.can_cast(value.dtype, dtype, "safe"):
        raise FrameError(f"reply.{name}", dtype, value.dtype)
    return np.ascontiguousarray(value, dtype).data


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


_UNUSED = np.arange(SUPPORT, dtype=np.int32)


def unused_support(n: int, depth: int) -> NDArray[np.int32]:
    """(n, depth, 32) int32: the ids of rows that carry no q, 0..31."""
    ids = np.empty((n, depth, SUPPORT), np.int32)
    ids[:] = _UNUSED
    return ids
