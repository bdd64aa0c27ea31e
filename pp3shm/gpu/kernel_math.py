"""What the Triton kernels compute with: uniforms, and weights ``exp(z / T)``.

No transcendental instruction is used, and fusion of products and sums is left to the
explicit ``fma``: every float here is the same bit for bit on CUDA and in the
interpreter. ``exp(z / T)`` is ``2**(z * c)`` with ``c = log2(e) / T``:

- ``z * c`` is formed as an unevaluated sum of two FP32 numbers, exact to some 2**-36
  of its size, and split into a whole number n and a fraction f in [-1/2, 1/2];
- ``2**f`` is a polynomial of degree 6 (1.6e-8 of 2**f with these coefficients, below
  the 6e-8 of an FP32 rounding), and ``2**n`` is written into the exponent's bits.

A run of logits shares the whole number ``exponent`` that brings its weights near 1, so
that sums of different runs differ by exact powers of two and nothing is rescaled by a
rounded factor. Where ``z * c`` is too large for its fraction to be seen (a tiny T), the
run's largest logit is subtracted first; what then still has a weight is within a factor
of two of it, so that the subtraction is exact.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

__all__ = [
    "accept_uniform",
    "philox",
    "power_of_two",
    "rate_of",
    "residual_uniform",
    "run_of",
    "weights",
]


@triton.jit
def accept_uniform(key, round_, position):
    """(word0 >> 3) * 2**-29, float64: acceptance of the draft at ``position``."""
    word0, _, _, _ = philox(key, round_, position)
    return (word0 >> 3).to(tl.float64) * (2.0**-29)


@triton.jit
def residual_uniform(key, round_, position):
    """((word0 << 32 | word1) >> 11) * 2**-53, float64: the draw at ``position``."""
    word0, word1, _, _ = philox(key, round_, position)
    bits = (word0.to(tl.int64) << 21) | (word1.to(tl.int64) >> 11)
    return bits.to(tl.float64) * (2.0**-53)


@triton.jit
def philox(key, round_, position):
    """The block of counter (round, position) under a key, low word first in each.

    All are int64; key and round are scalars or of the shape of ``position``.
    """
    low = (position & 0xFFFFFFFF).to(tl.uint32)
    high = ((position >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = low ^ low
    first = (round_ & 0xFFFFFFFF).to(tl.uint32) + zero
    second = ((round_ >> 32) & 0xFFFFFFFF).to(tl.uint32) + zero
    return tl.philox(key, first, second, low, high)


@triton.jit
def rate_of(temperature):
    """``c = log2(e) / T`` of a T > 0, at most 2**100: float64, and as two FP32."""
    log2_e = 1.44269502162933349609375 + temperature * 0.0
    log2_e += 1.925963033500011079e-8
    rate = tl.minimum(log2_e / temperature, 1.2676506002282294e30)
    high = rate.to(tl.float32)
    return rate, high, (rate - high.to(tl.float64)).to(tl.float32)


@triton.jit
def run_of(largest, rate):
    """How a run of logits whose largest is given is brought near 1.

    ``largest`` is float32, and -inf where the run has no weight; ``rate`` is c. Given
    are ``base``, ``shift`` and ``whole``, float32, for :func:`weights`, and
    ``exponent``, float64: the run's weights are to be multiplied by ``2**exponent``, a
    whole number; -inf where the run has no weight.
    """
    finite = largest > -float("inf")
    top = tl.where(finite, largest, 0.0)
    far = tl.abs(top.to(tl.float64) * rate) >= 1024.0
    base = tl.where(far, top, 0.0)
    origin = base.to(tl.float64) * rate
    origin_whole = tl.floor(origin + 0.5)
    shift = (origin - origin_whole).to(tl.float32)
    rest = (top - base).to(tl.float64) * rate + shift.to(tl.float64)
    whole = tl.floor(rest + 0.5)
    exponent = tl.where(finite, origin_whole + whole, -float("inf"))
    return base, shift, whole.to(tl.float32), exponent


@triton.jit
def weights(z, largest, high, low, base, shift, whole):
    """``exp(z / T)`` over ``2**exponent`` of its run: FP32 in [2**-126, 1.5), or 0.

    z is float32, at most ``largest`` of its run, and -inf gives 0; ``high`` and ``low``
    are of :func:`rate_of`, and what follows of :func:`run_of`.
    """
    top = tl.where(largest > -float("inf"), largest, 0.0)
    live = (z >= top - 256.0 / high) & (z > -float("inf"))
    d = tl.where(live, z, top) - base
    product = d * high
    rest = tl.fma(d, low, tl.fma(d, high, -product)) + shift
    n = tl.floor(product + rest + 0.5)
    f = (product - n) + rest
    power = tl.fma(f, 0.00015353321214206517, 0.0013398864539340138)
    power = tl.fma(f, power, 0.009618437848985195)
    power = tl.fma(f, power, 0.055503323674201965)
    power = tl.fma(f, power, 0.24022647738456726)
    power = tl.fma(f, power, 0.6931471824645996)
    power = tl.fma(f, power, 1.0)
    steps = n - whole
    live = live & (steps > -126.0)
    bits = (tl.where(live, steps, 0.0).to(tl.int32) + 127) << 23
    return tl.where(live, power * bits.to(tl.float32, bitcast=True), 0.0)


@triton.jit
def power_of_two(exponent):
    """``2**exponent`` of whole numbers at most 0, float64; 0 from -1000 downwards."""
    live = exponent > -1000.0
    bits = (tl.where(live, exponent, 0.0).to(tl.int64) + 1023) << 52
    return tl.where(live, bits.to(tl.float64, bitcast=True), 0.0)
