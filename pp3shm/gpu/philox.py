"""Philox4x32-10 in torch integer operations: the uniforms of many requests at once.

The words are held in int64 tensors as values in ``[0, 2**32)``. No product leaves
the 63 positive bits, so that nothing rests on how a signed overflow behaves.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11);
:mod:`pp3shm.rng` is the readable reference that the tests compare with.
"""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor

from pp3shm.rng import MASK32, MULTIPLIERS, ROUNDS, WEYL

Words: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor]


def _multiply(word: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of ``word * factor``, by halves below 2**49."""
    low = word * (factor & 0xFFFF)
    rest = word * (factor >> 16) + (low >> 16)
    return rest >> 16, ((rest & 0xFFFF) << 16) | (low & 0xFFFF)


def philox4x32_10(counter: Words, key: tuple[Tensor, Tensor]) -> Words:
    """The four output words of each counter under its key.

    Args:
        counter: four int64 tensors of words, broadcastable against each other.
        key: two int64 tensors of words, broadcastable against the counter.

    Returns:
        Four int64 tensors of words, of the common shape.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = _multiply(c0, MULTIPLIERS[0])
        high1, low1 = _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + WEYL[0]) & MASK32, (k1 + WEYL[1]) & MASK32
    return c0, c1, c2, c3


def words(key: Tensor, round_: int, position: Tensor) -> Words:
    """Words of the counter ``(round, position)`` under each request's key.

    Args:
        key: (B, 2) int64, the Philox key words of each request.
        round_: the round, ``0 <= round_ < 2**64``.
        position: (B, n) int64, absolute positions (u64, as two's complement).

    Returns:
        Four (B, n) int64 tensors.
    """
    low, high = position & MASK32, (position >> 32) & MASK32
    counter = (
        low.new_full((), round_ & MASK32),
        low.new_full((), round_ >> 32),
        low,
        high,
    )
    return philox4x32_10(counter, (key[:, 0, None], key[:, 1, None]))


def accept_uniform(key: Tensor, round_: int, position: Tensor) -> Tensor:
    """The uniforms of acceptance, ``(word0 >> 3) * 2**-29``: (B, n) float64."""
    word0, _, _, _ = words(key, round_, position)
    return (word0 >> 3).double() * 2.0**-29


def residual_uniform(key: Tensor, round_: int, position: Tensor) -> Tensor:
    """The uniforms of corrections and bonuses: (B, n) float64 of 53 bits.

    ``((word0 << 32 | word1) >> 11) * 2**-53``, shifted so that bit 63 stays free.
    """
    word0, word1, _, _ = words(key, round_, position)
    return ((word0 << 21) | (word1 >> 11)).double() * 2.0**-53
