"""Philox4x32-10 and its keys: one stream per purpose, one block per decision.

Nothing here holds state. A draw is named by what it decides: whose (the key: purpose,
session or epoch, slot, generation, user seed) and where (the counter: round and
absolute position of the token). Whoever knows the names can repeat it, and no two
purposes share a key, so that no noise is used twice.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the
wire page, sections 8 and 10.
"""

from __future__ import annotations

import hashlib
import struct
from enum import Enum
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from pp3shm._core import ffi, lib
from pp3shm.errors import ConfigError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Key = tuple[int, int]
"""The two 32-bit key words ``(k0, k1)`` of a Philox stream."""

Words = tuple[int, int, int, int]
"""One Philox block, or its counter: four 32-bit words."""

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
"""Of counter words 0 and 2."""

WEYL = (0x9E3779B9, 0xBB67AE85)
"""What is added to the key words after each round."""

ROUNDS = 10
MASK32 = 0xFFFFFFFF
MASK64 = 0xFFFFFFFFFFFFFFFF
ACCEPT_BITS = 29
RESIDUAL_BITS = 53


class Purpose(Enum):
    """What a stream decides; the value is BLAKE2b's ``person``."""

    PROPOSAL = b"pp3.proposal.v1"
    ACCEPT = b"pp3.accept.v1"
    RESIDUAL = b"pp3.residual.v1"


def philox4x32_10(counter: Words, key: Key) -> Words:
    """One block of Philox4x32-10.

    Args:
        counter: four words, each in ``[0, 2**32)``.
        key: two words, each in ``[0, 2**32)``.

    Returns:
        Four words.

    Source: Random123's ``philox4x32``; its published answers are among the vectors.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        p0 = MULTIPLIERS[0] * c0
        p1 = MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (
            (p1 >> 32) ^ c1 ^ k0,
            p1 & MASK32,
            (p0 >> 32) ^ c3 ^ k1,
            p0 & MASK32,
        )
        k0 = (k0 + WEYL[0]) & MASK32
        k1 = (k1 + WEYL[1]) & MASK32
    return c0, c1, c2, c3


def philox4x32_10_c(counter: Words, key: Key) -> Words:
    """The same block from the C core, as the drafting chain draws it.

    Args:
        counter: four words, each in ``[0, 2**32)``.
        key: two words, each in ``[0, 2**32)``.

    Returns:
        Four words.
    """
    out = ffi.new("uint32_t[4]")
    lib.pp3_philox(counter, key, out)
    return out[0], out[1], out[2], out[3]


def philox4x32_10_array(
    counters: NDArray[np.uint32], keys: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Many blocks at once.

    Args:
        counters: (n, 4) uint32.
        keys: (n, 2) or (2,) uint32.

    Returns:
        (n, 4) uint32, row i the block of counter i under key i.
    """
    low = np.uint64(MASK32)
    half = np.uint64(32)
    c0, c1, c2, c3 = counters.astype(np.uint64).T
    k0, k1 = np.moveaxis(keys.astype(np.uint64), -1, 0)
    for _ in range(ROUNDS):
        p0 = np.uint64(MULTIPLIERS[0]) * c0
        p1 = np.uint64(MULTIPLIERS[1]) * c2
        c0, c1 = (p1 >> half) ^ c1 ^ k0, p1 & low
        c2, c3 = (p0 >> half) ^ c3 ^ k1, p0 & low
        k0 = (k0 + np.uint64(WEYL[0])) & low
        k1 = (k1 + np.uint64(WEYL[1])) & low
    return np.stack((c0, c1, c2, c3), axis=-1).astype(np.uint32)


def request_key(
    purpose: Purpose, salt: bytes, slot: int, generation: int, user_seed: int
) -> Key:
    """The key of one request for one purpose.

    Args:
        purpose: what the stream decides.
        salt: 16 bytes: the session for ``PROPOSAL``, the region's epoch for the others.
        slot: u32, the request's state slot.
        generation: u32, the slot's generation.
        user_seed: signed 64 bits.

    Returns:
        ``(k0, k1)``: the BLAKE2b-64 digest read as two little-endian words.

    Raises:
        ConfigError: an argument does not fit its field.
    """
    if len(salt) != 16:
        raise ConfigError("salt", "16 bytes", f"{len(salt)} bytes")
    try:
        named = struct.pack("<16sIIq", salt, slot, generation, user_seed)
    except struct.error:
        raise ConfigError(
            "request key",
            "slot and generation of 32 bits, user seed of 64 bits, signed",
            (slot, generation, user_seed),
        ) from None
    digest = hashlib.blake2b(named, digest_size=8, person=purpose.value).digest()
    k0, k1 = struct.unpack("<II", digest)
    return k0, k1


def counter_of(round_: int, position: int) -> Words:
    """The counter of the decision about the token at ``position`` in ``round_``.

    Args:
        round_: u64.
        position: u64, absolute position of the token that is drawn or judged.

    Returns:
        Low and high word of each.

    Raises:
        ConfigError: one of them does not fit 64 bits.
    """
    # A NumPy integer, as a page's view gives it, would wrap around in the products.
    round_, position = index(round_), index(position)
    if not (0 <= round_ <= MASK64 and 0 <= position <= MASK64):
        raise ConfigError("counter", "two numbers of 64 bits", (round_, position))
    return round_ & MASK32, round_ >> 32, position & MASK32, position >> 32


def words(key: Key, round_: int, position: int) -> Words:
    """The block that belongs to one decision.

    Args:
        key: from :func:`request_key`.
        round_: u64.
        position: u64.

    Returns:
        Four words.
    """
    return philox4x32_10(counter_of(round_, position), key)


def draw24(key: Key, round_: int, position: int) -> int:
    """The integer in ``[0, 2**24)`` that picks a token among the counts.

    Args:
        key: of :attr:`Purpose.PROPOSAL`.
        round_: u64.
        position: the drafted token's own.

    Returns:
        ``word0 >> 8``.
    """
    return words(key, round_, position)[0] >> 8


def accept_bits(key: Key, round_: int, position: int) -> int:
    """The 29 bits that decide whether a draft is accepted.

    Args:
        key: of :attr:`Purpose.ACCEPT`.
        round_: u64.
        position: the draft's own.

    Returns:
        ``word0 >> 3``, in ``[0, 2**29)``.
    """
    return words(key, round_, position)[0] >> 3


def residual_bits(key: Key, round_: int, position: int) -> int:
    """The 53 bits of a correction, bonus or target-only draw.

    Args:
        key: of :attr:`Purpose.RESIDUAL`.
        round_: u64.
        position: the emitted token's own.

    Returns:
        ``(word0 << 32 | word1) >> 11``, in ``[0, 2**53)``.
    """
    block = words(key, round_, position)
    return (block[0] << 32 | block[1]) >> 11


def accept_uniform(key: Key, round_: int, position: int) -> float:
    """:func:`accept_bits` as a number in ``[0, 1)``, exact: a multiple of 2**-29."""
    return accept_bits(key, round_, position) * 2.0**-ACCEPT_BITS


def residual_uniform(key: Key, round_: int, position: int) -> float:
    """:func:`residual_bits` as a number in ``[0, 1)``: a multiple of 2**-53."""
    return residual_bits(key, round_, position) * 2.0**-RESIDUAL_BITS
