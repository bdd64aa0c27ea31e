"""A page as torch tensors: zero-copy on the CPU, one small copy on a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pp3shm._core import ffi
from pp3shm.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Buffer

    from pp3shm.layout.reply import ReplyLayout

# torch computes on no unsigned 64-bit integers: a round is held as two's complement.
DTYPES = {
    "uint64": torch.int64,
    "int32": torch.int32,
    "float32": torch.float32,
}


@dataclass(frozen=True, slots=True)
class ReplyTensors:
    """The arrays of one ReplyLayout, by slot; B = max_slots.

    Attributes:
        round: () int64, the round as two's complement (see :func:`signed`).
        status: (B,) int32, 0 is OK.
        tokens: (B, depth) int32.
        confidence: (B, depth) float32.
        mask: (B,) int32, 1 for a sampled row; None in a greedy profile.
        ids: (B, depth, 32) int32, ascending; None in a greedy profile.
        q: (B, depth, 32) float32, counts / 2**24; None in a greedy profile.
    """

    round: Tensor
    status: Tensor
    tokens: Tensor
    confidence: Tensor
    mask: Tensor | None = None
    ids: Tensor | None = None
    q: Tensor | None = None


def signed(round_: int) -> int:
    """A u64 as the int64 of the same bits, which is how tensors hold a round."""
    return round_ - (1 << 64) if round_ >> 63 else round_


def _views(layout: ReplyLayout, flat: Tensor) -> ReplyTensors:
    """Views of a byte tensor; shapes and types are those of the NumPy views."""
    arrays = layout.views(bytearray(layout.size))
    tensors = {}
    for name in ReplyTensors.__slots__:
        array = getattr(arrays, name)
        if array is None:
            continue
        start = layout.offset[name]
        part = flat[start : start + array.nbytes]
        tensors[name] = part.view(DTYPES[array.dtype.name]).view(array.shape)
    return ReplyTensors(**tensors)


def _bytes(layout: ReplyLayout, buffer: Buffer) -> Tensor:
    """The page as a uint8 tensor over the same memory, writable or not.

    torch has no read-only tensors and warns of buffers that are. cffi makes a
    buffer object over the address that says nothing of it, and keeps the owner
    alive. Nothing in this package writes to it; into a page mapped read-only
    (which is how ranks map them) a write is a fault of the writer's process.
    """
    view = memoryview(buffer).cast("B")
    if view.nbytes < layout.size:
        raise ConfigError("page", f"at least {layout.size} bytes", view.nbytes)
    flat = torch.frombuffer(
        ffi.buffer(ffi.from_buffer(view), layout.size), dtype=torch.uint8
    )
    if flat.data_ptr() % 8:
        raise ConfigError("page", "an address divisible by 8", hex(flat.data_ptr()))
    return flat


class Page:
    """Tensors of one page; made once per page, then loaded once per round.

    Args:
        layout: the negotiated layout.
        buffer: the page, at least ``layout.size`` bytes; it may be read-only, and
            it stays alive (and exported) as long as this object or its tensors.
        device: where the tensors live. On the CPU they are the page itself.

    Raises:
        ConfigError: the buffer is too small or not aligned to 8 bytes.
    """

    def __init__(
        self,
        layout: ReplyLayout,
        buffer: Buffer,
        device: torch.device | str = "cpu",
    ) -> None:
        self._host = _bytes(layout, buffer)
        self._flat = self._host
        if torch.device(device).type != "cpu":
            self._flat = torch.empty(layout.size, dtype=torch.uint8, device=device)
        self.tensors = _views(layout, self._flat)

    def load(self) -> ReplyTensors:
        """The tensors of what stands in the page now.

        On the CPU: the same zero-copy views every time, nothing is done. On a
        device: one copy of the page is put on the current stream, without
        synchronisation. From pageable memory the driver has taken the bytes when
        this returns; where the page is pinned (registered with CUDA), it may only
        be released after the stream has passed this point.

        Returns:
            Views of one buffer, overwritten by the next ``load`` of this object.
        """
        if self._flat is not self._host:
            self._flat.copy_(self._host, non_blocking=True)
        return self.tensors
