"""A byte-level BPE vocabulary trained on the demo's text.

Every byte has an id, so that any text can be encoded, and decoding gives it back.
"""

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp3shm.demo.optional import require
from pp3shm.errors import ConfigError

BYTES = 256  # ids that are single bytes; a vocabulary cannot be smaller
DEFAULT_SIZE = 2048
MAX_SIZE = 6208  # the largest V with V**5 < 2**63: 5-grams are counted as int64
_MAX_TOKEN_CHARACTERS = 32
# Training reads a whole word again for each merge in it: without a bound, a text that
# is one word of megabytes would take hours.
_LONG_RUN = r"\S{64}|\s{64}"


class Vocabulary:
    """Token ids of a text and back.

    Attributes:
        size: number of ids; ids are ``0 .. size - 1``.
        sha256: hex identity of the map from ids to tokens, for ``id_map_sha256``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.size: int = tokenizer.get_vocab_size()
        ids = range(self.size)
        names = [tokenizer.id_to_token(i) for i in ids]
        self.sha256 = hashlib.sha256(json.dumps(names).encode()).hexdigest()

    @classmethod
    def train(cls, text: str, size: int = DEFAULT_SIZE) -> "Vocabulary":
        """Learn merges from a text; the same text gives the same vocabulary.

        Args:
            text: the text to learn from.
            size: ids wanted, :data:`BYTES` to :data:`MAX_SIZE`. A small text gives
                fewer when no pair of tokens is left that stands in it twice.

        Returns:
            The vocabulary, of 256 to ``size`` ids.

        Raises:
            ConfigError: the size is out of range, or ``tokenizers`` is not installed.
        """
        if not BYTES <= size <= MAX_SIZE:
            raise ConfigError("vocabulary size", f"{BYTES}..{MAX_SIZE}", size)
        library = require("tokenizers", "demo")
        tokenizer = library.Tokenizer(library.models.BPE())
        splits = library.pre_tokenizers
        byte_level = splits.ByteLevel
        tokenizer.pre_tokenizer = splits.Sequence(
            [
                splits.Split(library.Regex(_LONG_RUN), "isolated"),
                byte_level(add_prefix_space=False),
            ]
        )
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            show_progress=False,
            initial_alphabet=sorted(byte_level.alphabet()),
            max_token_length=_MAX_TOKEN_CHARACTERS,
        )
        tokenizer.train_from_iterator([text], trainer)
        return cls(tokenizer)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Ids of a text, (n,) int32."""
        return np.array(self._tokenizer.encode(text).ids, np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; bytes that are not UTF-8 come out as U+FFFD."""
        text: str = self._tokenizer.decode([int(i) for i in ids])
        return text
