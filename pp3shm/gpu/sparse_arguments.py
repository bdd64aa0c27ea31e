"""What the sparse verifier's tensors must be; values are the kernels' to judge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pp3shm.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from pp3shm.gpu.views import ReplyTensors

LOGITS = (torch.float32, torch.bfloat16, torch.float16)
PROBS = (torch.float32, torch.float64)

Shape = tuple[int, int, int]


def expect_target(
    target: Tensor, shape: Shape, device: torch.device, *, logits: bool
) -> None:
    """At least ``shape``, here, of a type that the kernels read.

    Raises:
        ConfigError: it is not.
    """
    name = "target_logits" if logits else "target_probs"
    found = tuple(target.shape)
    if len(found) != 3 or found[1] < shape[1] or found[2] < shape[2]:
        raise ConfigError(f"{name}.shape", shape, found)
    dtypes = LOGITS if logits else PROBS
    if target.dtype not in dtypes:
        raise ConfigError(f"{name}.dtype", dtypes, target.dtype)
    if target.device != device:
        raise ConfigError(f"{name}.device", device, target.device)


def expect_page(
    page: ReplyTensors, depth: int, support: int, device: torch.device
) -> None:
    """Contiguous tensors of one layout, here.

    Raises:
        ConfigError: one is not.
    """
    slots = len(page.status)
    wanted: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "round": (torch.int64, ()),
        "status": (torch.int32, (slots,)),
        "tokens": (torch.int32, (slots, depth)),
    }
    if page.ids is not None:
        wanted["mask"] = (torch.int32, (slots,))
        wanted["ids"] = (torch.int32, (slots, depth, support))
        wanted["q"] = (torch.float32, (slots, depth, support))
    for name, kind in wanted.items():
        tensor = getattr(page, name)
        found = None if tensor is None else (tensor.dtype, tuple(tensor.shape))
        if tensor is None or found != kind:
            raise ConfigError(f"page.{name}", kind, found)
        if tensor.device != device:
            raise ConfigError(f"page.{name}.device", device, tensor.device)
        if not tensor.is_contiguous():
            raise ConfigError(f"page.{name}", "contiguous", tensor.stride())


def expand_mask(
    mask: Tensor, shape: Shape, device: torch.device, *, logits: bool
) -> Tensor:
    """An additive mask of logits in the target's shape, without a copy.

    Raises:
        ConfigError: it does not broadcast to it, or is none.
    """
    if not logits or mask.dtype not in LOGITS:
        raise ConfigError("logit_mask", f"for logits, one of {LOGITS}", mask.dtype)
    if mask.device != device:
        raise ConfigError("logit_mask.device", device, mask.device)
    cut = mask[..., : shape[2]]
    if cut.dim() > 1:
        cut = cut[..., : shape[1], :]
    try:
        return cut.expand(shape)
    except RuntimeError:
        raise ConfigError("logit_mask.shape", shape, tuple(mask.shape)) from None
