"""Reading flight recorders: the last rounds of each rank, as its part of acks has them.

A segment is read as a file: nothing of it is mapped, so that whoever cuts it short or
writes into it harms no reader; see ``recorder.h`` for why two looks are enough.
"""

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp3shm._core import lib
from pp3shm.errors import RegionError

ROOM: int = lib.PP3_FLIGHTS
"""Records that a recorder holds: the last so many rounds of its rank."""

_MOST = 2**41  # a round each, and there are no more tickets than half of that
_HEAD: int = lib.PP3_RECORDER_HEAD
_RECORD = np.dtype(
    [
        ("mark", "<u8"),
        ("word", "<u8"),
        ("released", "<u8"),
        ("before", "<u4", 7),
        ("info", "<u4"),
        ("zero", "<u8"),
    ]
)


@dataclass(frozen=True, slots=True)
class Flights:
    """What stood whole in one recorder.

    Attributes:
        rank: whose.
        pid: its process, in that one's own namespace; 0: it never attached.
        count: records it has written since it attached.
        lost: of those asked for, how many were written over, or not whole.
        word: (n,) uint64, state words, the oldest record first.
        info: (n,) uint32, how each round ended; see ``pp3shm.stages``.
        stamps: (n, 8) uint64, ticks at each stage; 0: it never came to that.
    """

    rank: int
    pid: int
    count: int
    lost: int
    word: NDArray[np.uint64]
    info: NDArray[np.uint32]
    stamps: NDArray[np.uint64]


def place_of(shape: Any, rank: int) -> int:
    """Where the recorder of a rank begins in acks, in bytes.

    Args:
        shape: ``struct pp3_shape`` that was checked.
        rank: below its ranks.
    """
    first = int(shape.bytes[4]) - int(shape.ranks) * int(lib.PP3_RECORDER_BYTES)
    return first + rank * int(lib.PP3_RECORDER_BYTES)


def epoch_of(fd: int, shape: Any) -> bytes:
    """16 bytes, of the region that an acks segment is part of.

    Raises:
        RegionError: the segment is shorter than its region's shape says.
    """
    return _read(fd, 16, place_of(shape, 0) + 16)


def read_flights(fd: int, shape: Any, rank: int, since: int | None = None) -> Flights:
    """The whole records of one rank, without disturbing it.

    Args:
        fd: of the acks segment.
        shape: ``struct pp3_shape`` that was checked.
        rank: below its ranks.
        since: how many records were read before, an earlier look's count; None: the
            last there are.

    Raises:
        RegionError: the segment is shorter than its region's shape says.
    """
    at = place_of(shape, rank)
    count, pid = np.frombuffer(_read(fd, 16, at), "<u8").tolist()
    if count > _MOST:
        count = 0  # no rank can have written so many
    oldest = max(0, count - ROOM)
    asked = since if since is not None and since <= count else oldest
    raw = _whole(fd, at + _HEAD, max(asked, oldest), count)
    return Flights(rank, pid, count, count - asked - len(raw), *_columns(raw))


def _whole(fd: int, at: int, first: int, end: int) -> NDArray[Any]:
    """Records first to end - 1 that were the same at two looks, under their mark."""
    looks: list[bytes] = []
    for _ in range(2):
        parts = [_read(fd, n, at + start) for start, n in _spans(first, end)]
        looks.append(b"".join(parts))
        lib.pp3_recorder_between()
    one, two = (np.frombuffer(look, f"V{_RECORD.itemsize}") for look in looks)
    records = np.frombuffer(looks[0], _RECORD)
    marks = np.arange(first, end, dtype=np.uint64) * np.uint64(2) + np.uint64(2)
    whole: NDArray[Any] = records[(one == two) & (records["mark"] == marks)]
    return whole


def _spans(first: int, end: int) -> list[tuple[int, int]]:
    """Offset and bytes of the one or two pieces that records first to end - 1 are."""
    start, n = first % ROOM, end - first
    head = min(n, ROOM - start)
    size = _RECORD.itemsize
    return [(start * size, head * size), (0, (n - head) * size)]


def _read(fd: int, size: int, at: int) -> bytes:
    found = os.pread(fd, size, at)
    if len(found) != size:
        raise RegionError("segment acks", f"{at + size} bytes", "fewer of them")
    return found


def _columns(raw: NDArray[Any]) -> tuple[Any, Any, Any]:
    info = raw["info"] & np.uint32(2**24 - 1)
    # 63 at most: more is no shift that a recorder makes, and none that a CPU has
    shift = np.minimum(raw["info"] >> np.uint32(24), 63).astype(np.uint64)
    before = raw["before"].astype(np.uint64)
    ago = before << shift[:, None]
    stamps = np.empty((len(raw), 8), np.uint64)
    stamps[:, :7] = np.where(before != 0, raw["released"][:, None] - ago, 0)
    stamps[:, 7] = raw["released"]
    return raw["word"].copy(), info, stamps
