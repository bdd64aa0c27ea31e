"""A target and a drafter with one vocabulary: what the demo's loop decodes with."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pp3shm.demo.drafter import ENVIRONMENT, DemoDrafter, NgramDrafter
from pp3shm.demo.ngram import NgramModel
from pp3shm.demo.target import NgramTarget, TargetModel
from pp3shm.demo.text import split_text
from pp3shm.demo.vocabulary import DEFAULT_SIZE, Vocabulary
from pp3shm.errors import ConfigError

DEFAULT_TEMPERATURE = 0.75  # below 1 the n-grams' smoothing shows less
STRONG_ORDER = 5
WEAK_ORDER = 2
DRAFTER = "pp3shm.demo.drafter:from_environment"  # for the worker's --drafter
MIN_TRAIN = 256  # tokens; with fewer there is no language to model
MIN_HELD_OUT = 32


@dataclass(frozen=True, slots=True)
class ModelPair:
    """Two models, their vocabulary, and the text they are shown on.

    Attributes:
        target: the model whose distribution the emitted text has.
        drafter: the other one, as it runs in the worker.
        target_name: what to call the target.
        draft_name: what to call the drafter.
        target_perplexity: of held-out text, at temperature 1.
        draft_perplexity: likewise.
        held_out_text: what the prompts are taken from.
        encode: text to (n,) int32 ids.
        decode: ids to text.
        max_positions: longest request both models can read, or None for any.
    """

    target: TargetModel
    drafter: DemoDrafter
    target_name: str
    draft_name: str
    target_perplexity: float
    draft_perplexity: float
    held_out_text: str
    encode: Callable[[str], NDArray[np.int32]]
    decode: Callable[[Iterable[int]], str]
    max_positions: int | None = None

    @property
    def profile_fields(self) -> dict[str, int | str]:
        """``vocab`` and the identities of the session's profile."""
        return dict(self.drafter.profile_fields)

    def save_drafter(self, directory: Path) -> dict[str, str]:
        """Write what the worker process loads its drafter from.

        Args:
            directory: an existing directory; one file is made in it.

        Returns:
            The environment variable to start the worker with, so that
            :data:`DRAFTER` finds the file.

        Raises:
            ConfigError: the file cannot be written.
        """
        path = directory / f"drafter{self.drafter.suffix}"
        self.drafter.save(path)
        return {ENVIRONMENT: str(path.absolute())}

    def prompts(self, count: int, length: int) -> list[NDArray[np.int32]]:
        """Beginnings to go on from, spread over the held-out text.

        Args:
            count: prompts wanted, at least 1.
            length: tokens of each, at least 1; fewer where the text has no more.

        Returns:
            Arrays of (length,) int32: the beginnings of paragraphs, or where too few
            are long enough, pieces from anywhere.
        """
        paragraphs = [p for p in self.held_out_text.split("\n\n") if p[:1].isalpha()]
        encoded = (self.encode(p) for p in paragraphs)
        long_enough = [ids for ids in encoded if len(ids) > length]
        if len(long_enough) >= count:
            step = len(long_enough) // count
            return [long_enough[i * step][:length] for i in range(count)]
        ids = self.encode(self.held_out_text)
        step = max(0, len(ids) - length) // count
        return [ids[i * step : i * step + length] for i in range(count)]


def build_ngram_pair(
    text: str,
    *,
    vocab: int = DEFAULT_SIZE,
    temperature: float = DEFAULT_TEMPERATURE,
    draft_order: int = WEAK_ORDER,
) -> ModelPair:
    """Estimate a strong and a weak n-gram from nine tenths of a text.

    Args:
        text: a text of :func:`pp3shm.demo.text.load_text`.
        vocab: size of the vocabulary to train; a small text gives fewer ids.
        temperature: the target's, above 0.
        draft_order: order of the weak model.

    Returns:
        The pair; the same arguments always give the same one.

    Raises:
        ConfigError: an argument is out of range, or the text holds too few tokens.
    """
    split = split_text(text)
    vocabulary = Vocabulary.train(split.train, vocab)
    train = vocabulary.encode(split.train)
    held_out = vocabulary.encode(split.held_out)
    for place, ids, least in (
        ("text", train, MIN_TRAIN),
        ("held-out text", held_out, MIN_HELD_OUT),
    ):
        if len(ids) < least:
            raise ConfigError(place, f"at least {least} tokens", f"{len(ids)} tokens")
    strong = NgramModel.estimate(train, vocabulary.size, STRONG_ORDER)
    weak = NgramModel.estimate(train, vocabulary.size, draft_order)
    identities = {"id_map_sha256": vocabulary.sha256, "target_sha256": strong.sha256}
    return ModelPair(
        target=NgramTarget(strong, temperature),
        drafter=NgramDrafter(weak, temperature, identities),
        target_name=f"{strong.order}-gram",
        draft_name=f"{weak.order}-gram",
        target_perplexity=strong.perplexity(held_out),
        draft_perplexity=weak.perplexity(held_out),
        held_out_text=split.held_out,
        encode=vocabulary.encode,
        decode=vocabulary.decode,
    )
