"""The same scatter in the C core, for buffers on the CPU: one call, no torch in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pp3shm._core import ffi, lib
from pp3shm.layout.tables import SUPPORT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pp3shm.gpu.scatter import SlotRows
    from pp3shm.gpu.views import ReplyTensors

_CTYPES = {
    torch.int64: "int64_t *",
    torch.int32: "int32_t *",
    torch.float32: "float *",
}
_KNOWN = 4096  # pages remembered; then all are looked at again


def _at(tensor: Tensor) -> Any:
    return ffi.cast(_CTYPES[tensor.dtype], tensor.data_ptr())


class CoreRows:
    """The C view of a ``SlotRows`` on the CPU, and of the pages it was given.

    Args:
        rows: their tensors keep their places for as long as they live.
    """

    def __init__(self, rows: SlotRows) -> None:
        depth = rows.depth
        self._written = ffi.new("uint8_t[]", rows.max_slots)
        self._seen = (
            ffi.new("int32_t[]", depth * (SUPPORT + 1)),
            ffi.new("float[]", depth * SUPPORT),
        )
        self._c = ffi.new(
            "struct pp3_scatter_rows *",
            {
                "probs": _at(rows.buffer),
                "ids": _at(rows.ids),
                "drafts": _at(rows.drafts),
                "mode": _at(rows.mode_of_slot),
                "fault": _at(rows.fault_of_slot),
                "round": _at(rows.round_of_slot),
                "written": self._written,
                "seen_ids": self._seen[0],
                "seen_q": self._seen[1],
                "slots": rows.max_slots,
                "depth": depth,
                "vocab": rows.vocab,
            },
        )
        # By identity, and kept alive for as long: a page's tensors are made once.
        self._pages: dict[int, tuple[ReplyTensors, Any]] = {}

    def take(
        self,
        rows: SlotRows,
        views: ReplyTensors,
        round_: int,
        stale: Sequence[int],
    ) -> bool:
        """Erase and write, as ``SlotRows`` does.

        Returns:
            False: these tensors do not lie as a page does, and nothing was done.

        Raises:
            ConfigError: views of another device or layout, or an impossible round.
        """
        known = self._pages.get(id(views))
        if known is None or not 0 <= round_ < 2**63:
            rows.expect(views, round_)
            known = (views, self._page(rows, views))
            if known[1] is None:
                # whoever writes now keeps `ids`, and not what C knows beside them
                ffi.memmove(self._written, b"\1" * rows.max_slots, rows.max_slots)
                return False
            if len(self._pages) >= _KNOWN:
                self._pages.clear()
            self._pages[id(views)] = known
        failed = ffi.NULL
        if stale:
            failed = bytearray(rows.max_slots)
            for slot in stale:
                failed[slot] = 1
            failed = ffi.from_buffer(failed)
        lib.pp3_scatter_q(self._c, known[1], round_, failed)
        return True

    @staticmethod
    def _page(rows: SlotRows, views: ReplyTensors) -> Any:
        """``struct pp3_scatter_page *``, or None where something lies otherwise."""
        slots, depth = rows.max_slots, rows.depth
        wide = (slots, depth, SUPPORT)
        wanted = {
            "round": (views.round, (), torch.int64),
            "status": (views.status, (slots,), torch.int32),
            "tokens": (views.tokens, (slots, depth), torch.int32),
        }
        if views.mask is not None and views.ids is not None and views.q is not None:
            wanted |= {
                "mask": (views.mask, (slots,), torch.int32),
                "ids": (views.ids, wide, torch.int32),
                "q": (views.q, wide, torch.float32),
            }
        for tensor, shape, dtype in wanted.values():
            fits = tuple(tensor.shape) == shape and tensor.dtype == dtype
            if not fits or not tensor.is_contiguous() or tensor.device != rows.device:
                return None
        fields = {name: _at(tensor) for name, (tensor, _, _) in wanted.items()}
        fields["round"] = ffi.cast("uint64_t *", views.round.data_ptr())
        return ffi.new("struct pp3_scatter_page *", fields)
