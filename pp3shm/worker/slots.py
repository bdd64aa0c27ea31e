"""What a session knows of one slot: generation, committed prefix, last two rounds."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from pp3shm.layout.digest import PrefixDigest, token_bytes
from pp3shm.layout.frames import Reset, Status, StepRow

_FIRST_CAPACITY = 256


class Slot:
    """One slot of one session.

    Attributes:
        generation: None until the first RESET.
        length: committed tokens held.
        broken: the drafter could not take this generation; its rows fail.
        rounds: the last two rounds it stood in, whatever became of them.
    """

    def __init__(self, max_positions: int) -> None:
        self._max_positions = max_positions
        self.generation: int | None = None
        self.length = 0
        self.broken = False
        self.rounds: deque[int] = deque(maxlen=2)
        self._tokens: NDArray[np.int32] = np.empty(0, np.int32)
        self._digest = PrefixDigest()

    @property
    def prefix(self) -> NDArray[np.int32]:
        """(length,) int32, read-only. Its entries never change afterwards."""
        view = self._tokens[: self.length]
        view.flags.writeable = False
        return view

    def reset(self, reset: Reset) -> None:
        """Open or restate a generation; the caller has refused an older one.

        Fresh memory, so that a prefix handed out before stays as it was.
        """
        digest = PrefixDigest()
        digest.update(reset.prefix)
        self._tokens = np.array(reset.prefix, np.int32)
        self._digest = digest
        self.length = len(reset.prefix)
        self.generation = reset.generation
        self.broken = False

    def take(self, row: StepRow) -> Status:
        """Append what a row commits, if all of it fits what is held.

        Returns:
            OK; or the row's status of refusal, and then nothing has changed: ABSENT
            where the slot was never reset, STALE for an older generation, REFUSED
            where position, overlap or digest do not fit (a generation not opened
            yet included), so that the proxy restates the slot.
        """
        if self.generation is None:
            return Status.ABSENT
        if row.generation < self.generation:
            return Status.STALE
        committed = row.committed
        start = row.position - len(committed)
        known = self.length - start  # how many of the committed tokens are held
        if (
            row.generation > self.generation
            or start < 0
            or not 0 <= known <= len(committed)
            or row.position > self._max_positions
        ):
            return Status.REFUSED
        if known:
            if self._tokens[start : self.length].tolist() != list(committed[:known]):
                return Status.REFUSED
            committed = committed[known:]
        return self._append(committed, row.digest)

    def _append(self, tail: tuple[int, ...], expected: int) -> Status:
        digest = self._digest
        if tail:
            # Another one: a digest that does not fit must leave the held one alone.
            digest = digest.longer(token_bytes(tail))
        if digest.value != expected:
            return Status.REFUSED
        if tail:
            self._digest = digest
            end = self.length + len(tail)
            if end > len(self._tokens):
                self._grow(end)
            self._tokens[self.length : end] = tail
            self.length = end
        return Status.OK

    def _grow(self, needed: int) -> None:
        capacity = max(needed, _FIRST_CAPACITY, 2 * len(self._tokens))
        tokens = np.empty(min(capacity, self._max_positions), np.int32)
        tokens[: self.length] = self._tokens[: self.length]
        self._tokens = tokens
