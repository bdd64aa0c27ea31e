"""One draw per row by the inverse CDF, in float64 and in an order that is fixed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor


def inclusive_sum(weights: Tensor) -> Tensor:
    """Running sums along the last axis, the same bits in every run.

    On the CPU in sequence, as NumPy's ``cumsum``. torch's float cumsum on CUDA is
    not deterministic (which would let two ranks emit different tokens): there each
    element is summed by doubling strides, in an order fixed by its index alone.

    Args:
        weights: (B, n) float64.

    Returns:
        (B, n) float64.
    """
    if weights.device.type == "cpu":
        return weights.cumsum(-1)
    return doubling_sum(weights)


def doubling_sum(weights: Tensor) -> Tensor:
    """Running sums in ``ceil(log2(n))`` elementwise additions (Hillis, Steele)."""
    stride, total = 1, weights
    while stride < weights.shape[-1]:
        shifted = torch.nn.functional.pad(total[..., :-stride], (stride, 0))
        total, stride = total + shifted, 2 * stride
    return total


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first id whose cumulative weight exceeds ``uniform * total``.

    Only ids of positive weight are candidates: running sums that are not made in
    sequence may rise at an id of weight 0. If rounding leaves none, the last of them.

    Args:
        weights: (B, vocab) float64, not negative; without mass the result is -1.
        uniform: (B,) float64 in [0, 1).

    Returns:
        (B,) int64.
    """
    vocab = weights.shape[-1]
    running = inclusive_sum(weights)
    point = uniform[:, None] * running[:, -1:]
    index = torch.arange(vocab, dtype=torch.int32, device=weights.device)
    positive = weights > 0.0
    first = torch.where(positive & (running > point), index, vocab).amin(-1)
    last = torch.where(positive, index, -1).amax(-1)
    return torch.where(first < vocab, first, last).to(torch.int64)
