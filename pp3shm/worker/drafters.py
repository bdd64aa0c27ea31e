"""Small drafters: examples to start from, and what conformance runs are made with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import ConfigError
from pp3shm.layout.profile import Profile
from pp3shm.proposal.markov import Markov
from pp3shm.worker.drafter import DraftRow, Logits, Tokens

# What a row follows that has no token before it.
_FIRST = 0
_SEEDED_VOCAB_MOST = 4096


class UniformDrafter:
    """Knows nothing: every token is as good as another.

    Args:
        profile: whose vocabulary it drafts from; so the class is a factory, and
            ``--drafter pp3shm.worker.drafters:UniformDrafter`` serves any profile.
    """

    def __init__(self, profile: Profile) -> None:
        self._vocab = profile.vocab

    def logits(self, rows: Sequence[DraftRow], drafted: Tokens) -> Logits:
        """See ``Drafter.logits``."""
        del drafted
        return np.zeros((len(rows), self._vocab), np.float32)


class TableDrafter:
    """A bigram model: the logits of a position are the row of the token before it.

    Args:
        table: (vocab, vocab) float32; used where it lies.

    Raises:
        ConfigError: another shape or dtype.
    """

    def __init__(self, table: NDArray[np.float32]) -> None:
        self._table = _square(table)

    @property
    def profile_fields(self) -> dict[str, Any]:
        """What a profile for this drafter must say."""
        return {"vocab": len(self._table)}

    def logits(self, rows: Sequence[DraftRow], drafted: Tokens) -> Logits:
        """See ``Drafter.logits``."""
        if drafted.shape[1]:
            before = drafted[:, -1].tolist()
        else:
            before = [last_token(row) for row in rows]
        logits: Logits = self._table[before]
        return logits


class ChainDrafter:
    """The same model as base logits and a Markov head: one C call a STEP.

    Args:
        base: (vocab,) float32, the same at every position.
        table: (vocab, vocab) float32: row t is added after token t.
        depth: positions of a proposal.

    Raises:
        ConfigError: another shape or dtype.

    Attributes:
        markov: the table.
    """

    def __init__(
        self, base: NDArray[np.float32], table: NDArray[np.float32], depth: int
    ) -> None:
        self.markov = Markov.table(_square(table))
        if base.shape != table.shape[:1] or base.dtype != np.float32:
            raise ConfigError(
                "base", f"float32[{len(table)}]", f"{base.dtype}{list(base.shape)}"
            )
        self._all = np.tile(base, (depth, 1))

    @property
    def profile_fields(self) -> dict[str, Any]:
        """What a profile for this drafter must say."""
        return {"vocab": self._all.shape[1], "depth": len(self._all)}

    def parallel_logits(self, rows: Sequence[DraftRow]) -> Logits:
        """See ``Drafter``."""
        return np.broadcast_to(self._all, (len(rows), *self._all.shape))


def seeded_table(profile: Profile) -> TableDrafter:
    """A fixed bigram model for a profile, the same on every machine.

    A factory, for ``--drafter pp3shm.worker.drafters:seeded_table``.

    Raises:
        ConfigError: a vocabulary whose square is too large for a toy.
    """
    vocab = profile.vocab
    if vocab > _SEEDED_VOCAB_MOST:
        raise ConfigError("vocab", f"at most {_SEEDED_VOCAB_MOST}", vocab)
    # Spelled out rather than drawn: no random generator's version matters.
    ids = np.arange(vocab, dtype=np.int64)
    mixed = (ids[:, None] * 7919 + ids[None, :] * 104729 + 12345) % 65521
    return TableDrafter((mixed % 512).astype(np.float32) / np.float32(64))


def last_token(row: DraftRow) -> int:
    """The token before a row's position; 0 where there is none."""
    return int(row.prefix[-1]) if row.position else _FIRST


def _square(table: NDArray[np.float32]) -> NDArray[np.float32]:
    if table.dtype != np.float32 or table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise ConfigError(
            "table", "float32[vocab, vocab]", f"{table.dtype}{list(table.shape)}"
        )
    return table
