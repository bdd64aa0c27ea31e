"""What the loop asks of a target model, and the n-gram that answers it."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pp3shm.demo.ngram import NgramModel, RowCache, Tokens
from pp3shm.errors import ConfigError


class TargetModel(Protocol):
    """A language model with a temperature, asked for all rows of one verification.

    Attributes:
        vocab: ids are ``0 .. vocab - 1``.
        sha256: hex identity of the model, for ``target_sha256``.
    """

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        ...

    @property
    def sha256(self) -> str:
        """Hex identity of the model."""
        ...

    def target_rows(
        self,
        slot: int,
        generation: int,
        prefix: NDArray[np.int32],
        drafts: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        """Target probabilities at the drafted positions and the one after them.

        Args:
            slot: the request's slot; with ``generation`` it names the request, so
                that a model can keep what it computed for the same prefix before.
            generation: generation of the slot.
            prefix: (m,) int32, the committed tokens, m at least 1.
            drafts: (depth,) int32, the drafted tokens. A failed request has -1 in all
                places.

        Returns:
            (depth + 1, vocab) float32; row i is the law of the token after the prefix
            and ``drafts[:i]``. Rows beyond the first draft that is -1 are of no use to
            a verifier; they repeat the row of that draft.
        """
        ...


COLDEST, HOTTEST = 1e-3, 1e3
"""Temperatures at which FP32 logits stay apart, and stay finite."""


def usable_drafts(drafts: NDArray[np.int32]) -> NDArray[np.int32]:
    """The drafts before the first -1."""
    failed = np.flatnonzero(drafts < 0)
    return drafts[: failed[0]] if failed.size else drafts


def check_temperature(temperature: float) -> float:
    """Refuse a temperature that no softmax of FP32 logits can be taken at.

    Raises:
        ConfigError: not a number of 0.001 to 1000.
    """
    if not COLDEST <= temperature <= HOTTEST:  # NaN is not
        raise ConfigError("temperature", f"{COLDEST:g}..{HOTTEST:g}", temperature)
    return temperature


class NgramTarget:
    """An n-gram at a temperature: ``p`` to the power of 1/T, normalised."""

    def __init__(self, model: NgramModel, temperature: float) -> None:
        self.model = model
        self.temperature = check_temperature(temperature)
        self._cache: RowCache[np.float32] = RowCache()

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.model.vocab

    @property
    def sha256(self) -> str:
        """Hex identity of the model, whatever the temperature."""
        return self.model.sha256

    def row(self, context: Tokens) -> NDArray[np.float32]:
        """Law of the token after a context: (vocab,) float32, read-only."""
        key = self.model.context_key(context)
        return self._cache.row(key, lambda: self._tempered(context))

    def target_rows(
        self,
        slot: int,
        generation: int,
        prefix: NDArray[np.int32],
        drafts: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        """See :meth:`TargetModel.target_rows`; counts need no memory of a request."""
        del slot, generation
        reach = self.model.order - 1
        scored = usable_drafts(drafts).tolist()
        tokens = [*prefix[max(0, len(prefix) - reach) :].tolist(), *scored]
        begin = len(tokens) - len(scored)
        rows = np.empty((len(drafts) + 1, self.vocab), np.float32)
        for i in range(len(scored) + 1):
            rows[i] = self.row(tokens[: begin + i])
        rows[len(scored) + 1 :] = rows[len(scored)]
        return rows

    def _tempered(self, context: Tokens) -> NDArray[np.float32]:
        """Raise to 1/T by way of the logarithm, in float64."""
        logits = np.log(self.model.probs(context))
        weights = np.exp((logits - logits.max()) / self.temperature)
        row: NDArray[np.float32] = (weights / weights.sum()).astype(np.float32)
        return row
