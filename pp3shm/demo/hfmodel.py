"""A Hugging Face causal language model with keys and values kept per request.

The vocabulary is the model's ``config.vocab_size``, which is at least the tokenizer's:
where a model is padded beyond its tokenizer, the padding ids have whatever probability
the model gives them, and decode to nothing.
"""

import hashlib
import inspect
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp3shm.demo.optional import require
from pp3shm.errors import ConfigError

MIN_VOCAB = 32  # the support of a proposal
_KEPT_REQUESTS = 8  # a cache holds one request's keys and values; twice the slots
_JUDGED_TOKENS = 256


@dataclass(slots=True)
class _Kept:
    """Keys and values of the first tokens of a request."""

    tokens: list[int]
    cache: Any


class HfModel:
    """A causal language model that keeps keys and values per request.

    Calls are made one at a time, as a worker and the demo's loop make them.

    Attributes:
        name: the name it was loaded by.
        vocab: ``config.vocab_size``.
        max_positions: longest input, or None where the model states none.
        tokenizer: its tokenizer.
    """

    def __init__(self, name: str, model: Any, tokenizer: Any) -> None:
        """Wrap a loaded model, see :func:`load_model`.

        Args:
            name: what to call it.
            model: a ``PreTrainedModel`` with a causal head, in evaluation mode.
            tokenizer: its ``PreTrainedTokenizerBase``.
        """
        config = model.config.get_text_config()
        self.name = name
        self.tokenizer = tokenizer
        self.vocab = int(config.vocab_size)
        self.max_positions: int | None = getattr(
            config, "max_position_embeddings", None
        )
        self._model = model
        self._torch = require("torch", "hf")
        self._new_cache = require("transformers", "hf").DynamicCache
        # Recurrent states cannot be cut back to a prefix: such a model reads it again.
        self._keeps = not getattr(model, "_is_stateful", False)
        forward = inspect.signature(model.forward).parameters
        self._cuts_logits = "logits_to_keep" in forward
        # The library renamed the argument; what was renamed warns under the old name.
        self._cache_name = "cache" if "cache" in forward else "past_key_values"
        self._kept: OrderedDict[tuple[int, int], _Kept] = OrderedDict()

    def logits(
        self, slot: int, generation: int, tokens: Sequence[int], count: int
    ) -> NDArray[np.float32]:
        """Logits after each of the last tokens.

        Args:
            slot: with ``generation`` it names the request whose keys and values are
                kept; what is kept of other tokens than these is never used.
            generation: generation of the slot.
            tokens: all tokens of the request, at least ``count``.
            count: rows wanted, at least 1.

        Returns:
            (count, vocab) float32; row ``i`` follows ``tokens[: n - count + 1 + i]``.

        Raises:
            ConfigError: fewer tokens than rows, or more than the model reads.
        """
        longest = self.max_positions or len(tokens)
        if not count <= len(tokens) <= longest:
            raise ConfigError(
                f"model {self.name}: tokens", f"{count}..{longest}", len(tokens)
            )
        with self._torch.inference_mode():
            if not self._keeps:
                return self._forward(tokens, count, None)
            key = (slot, generation)
            kept = self._kept.pop(key, None) or _Kept([], self._new_cache())
            # At least the tokens whose rows are asked for are read (again).
            shared = min(_common(kept.tokens, tokens), len(tokens) - count)
            if surplus := len(kept.tokens) - shared:
                if shared:
                    kept.cache.crop(-surplus)  # a negative length is what to remove
                else:
                    kept.cache = self._new_cache()
            rows = self._forward(tokens[shared:], count, kept.cache)
            kept.tokens = list(tokens)
            self._kept[key] = kept  # only now: after an error nothing stays half made
            if len(self._kept) > _KEPT_REQUESTS:
                self._kept.popitem(last=False)
            return rows

    def encode(self, text: str) -> NDArray[np.int32]:
        """Ids of a text without special tokens, (n,) int32."""
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return np.array(ids, np.int32)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids; ids of the padding beyond the tokenizer give none."""
        known = [int(i) for i in ids if i < len(self.tokenizer)]
        text: str = self.tokenizer.decode(known, clean_up_tokenization_spaces=False)
        return text

    def perplexity(self, tokens: NDArray[np.int32]) -> float:
        """Of at most 256 tokens, each after those before it (the first has none)."""
        ids = tokens[: min(_JUDGED_TOKENS, self.max_positions or _JUDGED_TOKENS)]
        rows = self.logits(-1, 0, ids.tolist(), len(ids))[:-1].astype(np.float64)
        self._kept.pop((-1, 0), None)
        top = rows.max(axis=1)
        mass = np.log(np.exp(rows - top[:, None]).sum(axis=1)) + top
        surprise = mass - rows[np.arange(len(rows)), ids[1:]]
        return float(np.exp(surprise.mean()))

    def weights_sha256(self) -> str:
        """Hex SHA-256 of all weights by name: the same model under any name."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self._model.state_dict().items()):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(flat.view(self._torch.uint8).numpy())
        return digest.hexdigest()

    def id_map_sha256(self) -> str:
        """Hex SHA-256 of the map from ids to tokens and of the number of ids."""
        items = sorted(self.tokenizer.get_vocab().items())
        return hashlib.sha256(json.dumps([self.vocab, items]).encode()).hexdigest()

    def _forward(
        self,
        tokens: Sequence[int],
        count: int,
        cache: Any,
    ) -> NDArray[np.float32]:
        """Read tokens after those in the cache."""
        ids = self._torch.tensor([list(tokens)], device=self._model.device)
        keep = {"logits_to_keep": count} if self._cuts_logits else {}
        use = {self._cache_name: cache, "use_cache": cache is not None}
        out = self._model(input_ids=ids, **use, **keep).logits[0, -count:]
        rows: NDArray[np.float32] = out.float().cpu().numpy()
        return rows


def load_model(name: str, option: str, *, local_files_only: bool = False) -> HfModel:
    """Load a model and its tokenizer, in FP32, on a CUDA device where there is one.

    Args:
        name: a local directory or a name of the hub.
        option: how the user gave it, for errors: ``--target`` or ``--draft``.
        local_files_only: whether nothing may be downloaded. Code that a model brings
            is never run.

    Returns:
        The model.

    Raises:
        ConfigError: the libraries are missing (the error names the extra), no such
            model is found, it is no causal language model, or its vocabulary has fewer
            than 32 ids or fewer than its tokenizer.
    """
    torch = require("torch", "hf")
    transformers = require("transformers", "hf")
    transformers.utils.logging.disable_progress_bar()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            name, local_files_only=local_files_only
        )
        model = transformers.AutoModelForCausalLM.from_pretrained(
            name, local_files_only=local_files_only
        )
    except Exception as error:  # loading raises whatever its parts do
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigError(
            f"{option} {name}", "a causal language model", reason
        ) from error
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = HfModel(name, model.float().to(device).eval(), tokenizer)
    largest = max(tokenizer.get_vocab().values(), default=-1)
    if found.vocab < MIN_VOCAB or largest >= found.vocab:
        least = max(MIN_VOCAB, largest + 1)
        raise ConfigError(f"{option} {name}: vocab_size", f">= {least}", found.vocab)
    return found


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Length of the prefix that two sequences share."""
    size = min(len(ours), len(theirs))
    if ours[:size] == theirs[:size]:  # the usual case, at the speed of C
        return size
    return next(i for i in range(size) if ours[i] != theirs[i])
