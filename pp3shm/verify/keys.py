"""The verifier's two streams of one request, disjoint from the drafter's."""

from __future__ import annotations

from typing import NamedTuple

from pp3shm.rng import Key, Purpose, request_key


class VerifyKeys(NamedTuple):
    """The Philox keys that verification of one request draws under.

    Attributes:
        accept: of the acceptance uniforms.
        residual: of correction, bonus and target-only draws.
    """

    accept: Key
    residual: Key

    @classmethod
    def derive(
        cls, epoch: bytes, slot: int, generation: int, user_seed: int = 0
    ) -> VerifyKeys:
        """The keys of a request; equal on every rank, and after any reconnect.

        Args:
            epoch: the region's 16 bytes.
            slot: u32.
            generation: u32.
            user_seed: signed 64 bits.

        Raises:
            ConfigError: an argument does not fit its field.
        """
        return cls(
            request_key(Purpose.ACCEPT, epoch, slot, generation, user_seed),
            request_key(Purpose.RESIDUAL, epoch, slot, generation, user_seed),
        )
