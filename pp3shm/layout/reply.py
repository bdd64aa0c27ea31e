"""ReplyLayout: what stands in a page, by slot (wire page, section 7)."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import FrameError
from pp3shm.layout.record import shown
from pp3shm.layout.tables import DEPTHS, MOST_SLOTS, SUPPORT, Status, page_packing


class ReplyViews(NamedTuple):
    """Views of one page; B is max_slots, ``round`` has shape ().

    ``mask``, ``ids`` and ``q`` are None where the layout is greedy.
    """

    round: NDArray[np.uint64]
    status: NDArray[np.int32]
    tokens: NDArray[np.int32]
    confidence: NDArray[np.float32]
    mask: NDArray[np.int32] | None
    ids: NDArray[np.int32] | None
    q: NDArray[np.float32] | None


class ReplyLayout:
    """Sizes, offsets, views and failed templates of a page.

    Args:
        max_slots: slots, 1 to 4.
        depth: drafted tokens per request, 4 or 5.
        sampled: whether mask, ids and q are there.

    Attributes:
        size: bytes used of a page.
        offset: name -> bytes from the page's start; ``"end"`` is the size.
        head_bytes: round and status, the part that tells how a round ended.
    """

    def __init__(self, max_slots: int, depth: int, sampled: bool) -> None:
        if max_slots not in range(1, MOST_SLOTS + 1):
            raise FrameError("layout.max_slots", f"1..{MOST_SLOTS}", shown(max_slots))
        if depth not in DEPTHS:
            raise FrameError("layout.depth", "4 or 5", shown(depth))
        self.max_slots = max_slots
        self.depth = depth
        self.sampled = sampled
        self._packing = page_packing(max_slots, depth, sampled)
        self.size = self._packing.size
        self.offset: Mapping[str, int] = self._packing.offset
        self.head_bytes = self.offset["tokens"]

    def views(self, buffer: Any) -> ReplyViews:
        """Zero-copy views of the page in ``buffer`` (at least ``size`` bytes).

        Raises:
            FrameError: the buffer is too short.
        """
        found = self._packing.views(buffer)
        return ReplyViews(
            found["round"],
            found["status"],
            found["tokens"],
            found["confidence"],
            found.get("mask"),
            found.get("ids"),
            found.get("q"),
        )

    def failed(self, status: int, slots: Iterable[int]) -> bytes:
        """A whole page, round 0, in which ``slots`` failed with ``status``.

        All other slots are ABSENT.

        Raises:
            FrameError: the status is no failure, or a slot is out of range.
        """
        if status not in range(Status.ABSENT, Status.REFUSED + 1):
            raise FrameError("page.status", "1..8", shown(status))
        page = bytearray(self.size)
        views = self.views(page)
        views.status[:] = Status.ABSENT
        views.tokens[:] = -1
        if views.ids is not None:
            views.ids[:] = np.arange(SUPPORT, dtype=np.int32)
        for slot in slots:
            if slot not in range(self.max_slots):
                raise FrameError("page.slot", f"0..{self.max_slots - 1}", shown(slot))
            views.status[slot] = status
        return bytes(page)
