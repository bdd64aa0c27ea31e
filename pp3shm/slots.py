"""The engine's own table of its slots: generation, prefix digest, open rounds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import Busy, ConfigError
from pp3shm.layout.digest import PrefixDigest, token_bytes
from pp3shm.layout.frames import StepRow
from pp3shm.layout.profile import Profile


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a round.

    Attributes:
        slot: its state slot.
        user_seed: signed 64-bit seed of its proposal noise.
        sampled: True for T > 0, False for T = 0; None: as the profile is.
        context: opaque bytes for the drafter, exactly the profile's ``context_bytes``.
    """

    slot: int
    user_seed: int = 0
    sampled: bool | None = None
    context: bytes = b""


class _Slot:
    """What the engine knows of one slot; the region holds what others must know."""

    __slots__ = ("digest", "generation", "live", "rounds", "unsent")

    def __init__(self) -> None:
        self.generation = 0
        self.live = False
        self.digest = PrefixDigest()
        self.unsent: list[int] = []
        self.rounds: list[int] = []


class SlotTable:
    """Slots of one engine, in step with the region's.

    Args:
        profile: gives their number and bounds.
        is_open: whether a ticket's round is unresolved.
    """

    def __init__(self, profile: Profile, is_open: Callable[[int], bool]) -> None:
        self._profile = profile
        self._is_open = is_open
        self._slots = [_Slot() for _ in range(profile.max_slots)]

    def find(self, slot: int, *, live: bool = True) -> _Slot:
        """The state of a slot.

        Raises:
            ConfigError: there is no such slot, or it is closed and ``live`` is asked.
        """
        if not 0 <= slot < len(self._slots):
            raise ConfigError("slot", f"0..{len(self._slots) - 1}", slot)
        state = self._slots[slot]
        if live and not state.live:
            raise ConfigError(f"slots[{slot}]", "one opened by reset", "a closed one")
        return state

    def tokens(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """Token ids as int32.

        Raises:
            ConfigError: an id outside the vocabulary.
            FrameError: no 32-bit integers.
        """
        found = np.frombuffer(token_bytes(tokens), "<i4")
        wrong = np.flatnonzero((found < 0) | (found >= self._profile.vocab))
        if wrong.size:
            place = int(wrong[0])
            raise ConfigError(
                f"tokens[{place}]", f"0..{self._profile.vocab - 1}", int(found[place])
            )
        return found

    def opened(self, slot: int, tokens: NDArray[np.int32]) -> int:
        """A new generation with this prefix; which one."""
        state = self._slots[slot]
        state.generation += 1
        state.live = True
        state.digest = PrefixDigest(tokens)
        state.unsent.clear()
        state.rounds.clear()
        return state.generation

    def expect_resolved(self, slot: int) -> None:
        """Refuse while the slot stands in an open round.

        Raises:
            Busy: naming the round.
        """
        for ticket in self._open_rounds(self.find(slot)):
            raise Busy(f"slots[{slot}]", f"round {ticket} resolved", "it is open")

    def committed(self, slot: int, tokens: NDArray[np.int32]) -> None:
        """Tokens were appended to the slot's prefix."""
        state = self._slots[slot]
        state.digest.update(tokens)
        state.unsent.extend(tokens.tolist())

    def row(self, row: Row) -> StepRow:
        """The STEP's row of a request as it stands."""
        state = self.find(row.slot)
        return StepRow(
            slot=row.slot,
            generation=state.generation,
            position=state.digest.length,
            digest=state.digest.value,
            # Tokens that do not fit a STEP leave a gap, which the proxy sees and
            # closes with a RESET.
            committed=tuple(state.unsent[-(self._profile.depth + 1) :]),
            user_seed=row.user_seed,
            sampled=self._profile.is_sampled if row.sampled is None else row.sampled,
            context=row.context,
        )

    def asked(self, ticket: int, rows: Iterable[StepRow]) -> dict[int, int]:
        """The rows went out with a round; their generations by slot."""
        generations = {}
        for row in rows:
            state = self._slots[row.slot]
            state.unsent.clear()
            state.rounds = [*self._open_rounds(state), ticket]
            generations[row.slot] = row.generation
        return generations

    def stale(self, generations: dict[int, int]) -> list[int]:
        """Slots that were closed or opened anew since they were asked for."""
        return [
            slot
            for slot, generation in generations.items()
            if not self._slots[slot].live or self._slots[slot].generation != generation
        ]

    def _open_rounds(self, state: _Slot) -> list[int]:
        return [ticket for ticket in state.rounds if self._is_open(ticket)]
