"""From logits to the target's probabilities, in float64."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from pp3shm.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


def target_probs(logits: Tensor, temperature: Sequence[float] | Tensor) -> Tensor:
    """Softmax of ``logits / T`` in float64, one-hot at the argmax where T is 0.

    Float64 because an FP32 softmax over a large vocabulary errs by 1e-5, which moves
    acceptance more than anything else here; and because distinct logits may become
    equal in FP32 after the division. One-hot rows keep the argmax of the raw logits
    (ties: the lower id) for greedy requests. Does not synchronise.

    Args:
        logits: (B, depth + 1, vocab) of any floating type: the target's, after its
            own processors, before the temperature, without padded columns. -inf is a
            masked token.
        temperature: (B,), T of each request.

    Returns:
        (B, depth + 1, vocab) float64. A row with a NaN, with +inf or with nothing
        finite is NaN throughout, and so is every row of a temperature that is
        negative or NaN: verification reports it for its request alone.

    Raises:
        ConfigError: logits that are not three-dimensional floats, or not one
            temperature per request.
    """
    if logits.dim() != 3 or not logits.is_floating_point():
        raise ConfigError(
            "logits",
            "floats (B, depth + 1, vocab)",
            f"{logits.dtype} {tuple(logits.shape)}",
        )
    scale = torch.as_tensor(temperature, dtype=torch.float64)
    if scale.shape != logits.shape[:1]:
        raise ConfigError("temperature", tuple(logits.shape[:1]), tuple(scale.shape))
    scale = scale.to(logits.device, non_blocking=True)[:, None, None]
    z = logits.double()
    top, at = z.max(dim=-1, keepdim=True)
    soft = (z / torch.where(scale > 0, scale, 1.0)).softmax(-1)
    hard = torch.zeros_like(soft).scatter_(2, at, 1.0)
    probs = torch.where(scale > 0, soft, hard)
    usable = (top < torch.inf) & (top > -torch.inf) & (scale >= 0)
    return torch.where(usable, probs, torch.nan)
