"""What the kernels of sparse verification share: entries of the target, and codes.

Weights are FP32, sums of them FP64: a sum of 2**13 numbers of 24 bits is all but exact
in FP64, so that neither block sizes nor the order of a reduction show in the result,
and the sum of a run agrees with the running sum that later walks it. It costs one
conversion and one addition per logit, which is below the rate of memory even where
FP64 runs at a 64th of FP32.

A program takes REQS requests, along the first axis of everything. On CUDA that is one,
and a branch on "any of them" is its own; the interpreter, whose cost is per operation
and not per element, takes many.
"""

# ruff: noqa: N803 - compile-time constants have capitals
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from pp3shm.gpu.kernel_math import power_of_two, run_of, weights

# Of Mode and Fault; a test compares them.
TARGET_ONLY = tl.constexpr(0)
GREEDY = tl.constexpr(1)
SAMPLED = tl.constexpr(2)
GOOD = tl.constexpr(0)
BAD_MASK = tl.constexpr(6)
BAD_TOKEN = tl.constexpr(7)
BAD_SUPPORT = tl.constexpr(8)
BAD_MASS = tl.constexpr(10)
STALE = tl.constexpr(11)
OTHER_MODE = tl.constexpr(12)
BAD_TARGET = tl.constexpr(13)
NO_ROUND = tl.constexpr(-1)
UNITS = tl.constexpr(16777216.0)  # 2**24 shares of q
TOLERANCE = tl.constexpr(1e-3)  # MASS_TOLERANCE


@triton.jit
def place(b, i, v, stride_b, stride_i, stride_v):
    """Where entry (b, i, v) lies; int64, for logits outgrow 2**31 entries."""
    rows = b.to(tl.int64) * stride_b + i.to(tl.int64) * stride_i
    return rows + v.to(tl.int64) * stride_v


@triton.jit
def entries(
    target_p, at, added_p, at_added, here, LOGITS: tl.constexpr, ADDED: tl.constexpr
):
    """Entries of the target, -inf elsewhere.

    Logits in FP32, with the mask added in FP32; probabilities in FP64.
    """
    z = tl.load(target_p + at, mask=here, other=-float("inf"))
    if LOGITS:
        z = z.to(tl.float32)
        if ADDED:
            z += tl.load(added_p + at_added, mask=here, other=0.0).to(tl.float32)
    else:
        z = z.to(tl.float64)
    return z


@triton.jit
def chances(z, largest, scale, total, rate, high, low, LOGITS: tl.constexpr):
    """Probabilities, float64, of entries of runs whose largest is given.

    z is -inf where there is none; ``largest`` is of their runs, float64; ``scale`` is
    the row's greatest exponent and ``total`` its sum of weights; the rates are those of
    the request's temperature.
    """
    if LOGITS:
        top = largest.to(tl.float32)
        base, shift, whole, exponent = run_of(top, rate)
        w = weights(z, top, high, low, base, shift, whole).to(tl.float64)
        p = w * power_of_two(exponent - scale) / total
    else:
        p = tl.where(z > 0.0, z, 0.0)
    return p


@triton.jit
def masses(largest, sums, rate, AXIS: tl.constexpr, LOGITS: tl.constexpr):
    """Sums of runs (along AXIS) at the row's greatest exponent, and that exponent."""
    if LOGITS:
        _, _, _, exponent = run_of(largest.to(tl.float32), rate)
        scale = tl.max(exponent, AXIS)
        scale = tl.where(scale > -float("inf"), scale, 0.0)
        mass = sums * power_of_two(exponent - tl.expand_dims(scale, AXIS))
    else:
        mass = sums
        scale = tl.sum(sums, AXIS) * 0.0
    return mass, scale
