"""Arguments of one value per request, on the device, in buffers made once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from pp3shm.errors import ConfigError
from pp3shm.gpu.views import signed
from pp3shm.rng import MASK64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class Staging:
    """A place per argument; what is already a fitting tensor is used where it lies.

    A tensor of the right device, type and shape costs nothing and may stand in a
    captured graph. Anything else is copied into this object's own buffer, which a
    graph would only ever see as it was at the capture.

    Args:
        most: requests at most.
        device: where they are needed.
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self._most = most
        self._device = device
        self._buffers: dict[str, Tensor] = {}

    def column(
        self,
        name: str,
        values: Sequence[int] | Sequence[float] | Tensor,
        n: int,
        dtype: torch.dtype = torch.int64,
        width: int | None = None,
        below: float = math.inf,
    ) -> Tensor:
        """(n,) or (n, width) of ``dtype``.

        Args:
            name: of the argument.
            values: one per request; only a sequence's are looked at here.
            n: requests.
            dtype: what the kernels read.
            width: of a row, where there is one.
            below: a sequence's values are from 0 to below this.

        Raises:
            ConfigError: another shape, a value out of range, or floats where integers
                are wanted.
        """
        shape = (n,) if width is None else (n, width)
        if not isinstance(values, torch.Tensor):
            for value in values:
                if not 0 <= value < below:
                    raise ConfigError(name, f"at least 0, below {below}", value)
            if dtype == torch.int64:
                values = [signed(int(value)) for value in values]
            values = torch.tensor(values, dtype=dtype)
        wrong = values.is_floating_point() and not dtype.is_floating_point
        if tuple(values.shape) != shape or wrong:
            found = f"{values.dtype} {tuple(values.shape)}"
            raise ConfigError(name, f"{dtype} {shape}", found)
        fits = values.dtype == dtype and values.device == self._device
        if fits and values.is_contiguous():
            return values
        return self._own(name, shape, dtype)[:n].copy_(values, non_blocking=True)

    def round(self, value: int | Tensor) -> Tensor:
        """() int64, two's complement.

        Raises:
            ConfigError: a number that is no round, or a tensor of another kind.
        """
        if isinstance(value, torch.Tensor):
            kind = (value.dtype, tuple(value.shape), value.device)
            if kind != (torch.int64, (), self._device):
                raise ConfigError("round", f"int64 () on {self._device}", kind)
            return value
        if not 0 <= value < MASK64:
            raise ConfigError("round", "0 to 2**64 - 2", value)
        return self._own("round", (), torch.int64).fill_(signed(value))

    def _own(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        found = self._buffers.get(name)
        if found is None:
            full = (self._most, *shape[1:]) if shape else ()
            found = torch.empty(full, dtype=dtype, device=self._device)
            self._buffers[name] = found
        return found
