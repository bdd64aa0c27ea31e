"""Triton is loaded when one of its engines is asked for, never before."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import TYPE_CHECKING

import torch

from pp3shm.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType


def kernels(name: str, device: torch.device) -> ModuleType:
    """The module of kernels ``pp3shm.gpu.<name>``, fit to run on this device.

    Raises:
        ImportError: there is no Triton; the error names the extra.
        ConfigError: a device that Triton's compiler has no code for. The CPU is one,
            unless Triton interprets (``TRITON_INTERPRET=1`` before its first import).
    """
    try:
        import triton  # noqa: PLC0415 - only who asks for it needs it
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise  # it is there and broken: its own error says more
        raise ImportError(
            "pp3shm.gpu: expected triton, found none: pip install 'pp3shm[gpu]'",
            name="triton",
        ) from error
    module = import_module(f"pp3shm.gpu.{name}")
    compiled = isinstance(module.ANY_KERNEL, triton.JITFunction)
    if compiled and device.type != "cuda":
        expected = "cuda, or TRITON_INTERPRET=1 before triton is imported"
        raise ConfigError("device", expected, device)
    return module


def on_device_of(tensor: torch.Tensor) -> AbstractContextManager[object]:
    """Makes the tensor's CUDA device the current one, on which Triton launches."""
    if not tensor.is_cuda:
        return nullcontext()
    return torch.cuda.device(tensor.device)


def power_of_two(least: int) -> int:
    """The least power of two that is not below ``least``."""
    return 1 << (least - 1).bit_length()
