"""Kernels that store what the package's device functions give, for tests."""

# ruff: noqa: N803 - compile-time constants have capitals

import triton
import triton.language as tl

from pp3shm.gpu.kernel_math import (
    accept_uniform,
    philox,
    rate_of,
    residual_uniform,
    run_of,
    weights,
)


@triton.jit
def streams(key_p, round_p, position_p, words_p, uniforms_p, N: tl.constexpr):
    """Four words and two uniforms of N keys, each with its round and position."""
    i = tl.arange(0, N)
    key, round_ = tl.load(key_p + i), tl.load(round_p + i)
    position = tl.load(position_p + i)
    w0, w1, w2, w3 = philox(key, round_, position)
    tl.store(words_p + i * 4, w0.to(tl.int64))
    tl.store(words_p + i * 4 + 1, w1.to(tl.int64))
    tl.store(words_p + i * 4 + 2, w2.to(tl.int64))
    tl.store(words_p + i * 4 + 3, w3.to(tl.int64))
    tl.store(uniforms_p + i * 2, accept_uniform(key, round_, position))
    tl.store(uniforms_p + i * 2 + 1, residual_uniform(key, round_, position))


@triton.jit
def weigh(z_p, temperature_p, weights_p, exponent_p, N: tl.constexpr):
    """Weights of a run of N logits per program, each at its own temperature."""
    at = tl.program_id(0) * N + tl.arange(0, N)
    z = tl.load(z_p + at)
    largest = tl.max(z, 0)
    rate, high, low = rate_of(tl.load(temperature_p + tl.program_id(0)))
    base, shift, whole, exponent = run_of(largest, rate)
    tl.store(weights_p + at, weights(z, largest, high, low, base, shift, whole))
    tl.store(exponent_p + tl.program_id(0), exponent)
