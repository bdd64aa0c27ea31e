"""Two Hugging Face causal language models as target and drafter."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pp3shm.demo.drafter import TAU, DraftRow
from pp3shm.demo.hfmodel import HfModel, load_model
from pp3shm.demo.pair import MIN_HELD_OUT, ModelPair
from pp3shm.demo.target import check_temperature, usable_drafts
from pp3shm.demo.text import split_text
from pp3shm.errors import ConfigError

FORMAT = "pp3shm-demo-hf-1"


class HfTarget:
    """A model at a temperature; see :class:`pp3shm.demo.target.TargetModel`."""

    def __init__(self, model: HfModel, temperature: float, sha256: str) -> None:
        self.model = model
        self.temperature = check_temperature(temperature)
        self.sha256 = sha256

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.model.vocab

    def target_rows(
        self,
        slot: int,
        generation: int,
        prefix: NDArray[np.int32],
        drafts: NDArray[np.int32],
    ) -> NDArray[np.float32]:
        """See :meth:`pp3shm.demo.target.TargetModel.target_rows`.

        Raises:
            ConfigError: an empty prefix, or more tokens than the model reads.
        """
        scored = usable_drafts(drafts).tolist()
        tokens = [*prefix.tolist(), *scored]
        logits = self.model.logits(slot, generation, tokens, len(scored) + 1)
        z = logits.astype(np.float64) / self.temperature
        weights = np.exp(z - z.max(axis=1, keepdims=True))
        rows = np.empty((len(drafts) + 1, self.vocab), np.float32)
        rows[: len(z)] = weights / weights.sum(axis=1, keepdims=True)
        rows[len(z) :] = rows[len(z) - 1]
        return rows


class HfDrafter:
    """Drafts from a model, at the target's temperature.

    Its logits are scaled by ``0.7 / T`` for the reason that
    :class:`pp3shm.demo.drafter.NgramDrafter` gives.

    Attributes:
        model: the model.
        temperature: the target's T.
        profile_fields: ``vocab`` and the identities.
    """

    suffix = ".json"

    def __init__(
        self,
        model: HfModel,
        temperature: float,
        target_sha256: str,
        *,
        local_files_only: bool = False,
    ) -> None:
        """Draft from a model.

        Args:
            model: the model.
            temperature: the target's temperature.
            target_sha256: hex identity of the target.
            local_files_only: whether the worker may not download the model either.
        """
        self.model = model
        self.temperature = check_temperature(temperature)
        self.profile_fields: dict[str, int | str] = {
            "vocab": model.vocab,
            "id_map_sha256": model.id_map_sha256(),
            "target_sha256": target_sha256,
            "draft_sha256": _draft_identity(model, temperature),
        }
        self._local = local_files_only
        self._scale = np.float32(TAU / temperature)

    def logits(
        self, rows: Sequence[DraftRow], drafted: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Logits of the next token of each row, one model call per row.

        Args:
            rows: the requests of a STEP, n of them, none with an empty prefix.
            drafted: (n, i) int32, the tokens drafted after each prefix in this STEP.

        Returns:
            (n, vocab) float32.
        """
        out = np.empty((len(rows), self.model.vocab), np.float32)
        for r, row in enumerate(rows):
            tokens = [*row.prefix.tolist(), *drafted[r].tolist()]
            out[r] = self.model.logits(row.slot, row.generation, tokens, 1)[0]
        out *= self._scale
        return out

    def save(self, path: Path) -> None:
        """Write the file that :func:`load_drafter` reads: names, not weights.

        Raises:
            ConfigError: the file cannot be written.
        """
        meta = {
            "format": FORMAT,
            "name": self.model.name,
            "temperature": self.temperature,
            "local_files_only": self._local,
            **self.profile_fields,
        }
        try:
            path.write_text(json.dumps(meta, sort_keys=True), encoding="utf-8")
        except OSError as error:
            raise ConfigError(
                f"drafter file {str(path)!r}", "a writable place", error.strerror
            ) from error


def load_drafter(path: Path) -> HfDrafter:
    """Load the drafter that a file of :meth:`HfDrafter.save` names.

    Args:
        path: the file.

    Returns:
        The drafter, with the profile fields that the file states.

    Raises:
        ConfigError: not such a file, or the model found is another than it states.
    """
    place = f"drafter file {str(path)!r}"
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(meta, dict) or meta.get("format") != FORMAT:
            raise ConfigError(place, f"format {FORMAT}", "another")
        name, target = str(meta["name"]), str(meta["target_sha256"])
        local = bool(meta["local_files_only"])
        temperature = float(meta["temperature"])
    except OSError as error:
        raise ConfigError(place, "a readable file", error.strerror) from error
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise ConfigError(place, f"format {FORMAT}", type(error).__name__) from error
    model = load_model(name, "--draft", local_files_only=local)
    found = HfDrafter(model, temperature, target, local_files_only=local)
    _expect_fields(place, meta, found.profile_fields)
    return found


def load_pair(
    target: str,
    draft: str,
    text: str,
    *,
    temperature: float,
    local_files_only: bool = False,
) -> ModelPair:
    """Load two models with one tokenizer.

    Args:
        target: name or directory of the target.
        draft: name or directory of the drafter.
        text: what prompts and perplexities are taken from, its held-out part.
        temperature: the target's, above 0.
        local_files_only: whether nothing may be downloaded.

    Returns:
        The pair.

    Raises:
        ConfigError: a model cannot be loaded, their vocabularies differ, or the
            held-out text has too few tokens.
    """
    check_temperature(temperature)
    strong = load_model(target, "--target", local_files_only=local_files_only)
    weak = load_model(draft, "--draft", local_files_only=local_files_only)
    _expect_one_vocabulary(strong, weak)
    held_out = split_text(text).held_out
    ids = strong.encode(held_out)
    if len(ids) < MIN_HELD_OUT:
        raise ConfigError("held-out text", f"at least {MIN_HELD_OUT} tokens", len(ids))
    identity = strong.weights_sha256()
    limits = [m.max_positions for m in (strong, weak) if m.max_positions]
    return ModelPair(
        target=HfTarget(strong, temperature, identity),
        drafter=HfDrafter(
            weak, temperature, identity, local_files_only=local_files_only
        ),
        target_name=target,
        draft_name=draft,
        target_perplexity=strong.perplexity(ids),
        draft_perplexity=weak.perplexity(ids),
        held_out_text=held_out,
        encode=strong.encode,
        decode=strong.decode,
        max_positions=min(limits, default=None),
    )


def _expect_one_vocabulary(target: HfModel, draft: HfModel) -> None:
    """Refuse two models whose ids do not mean the same, naming both."""
    place = f"--draft {draft.name}"
    of_target = f"of --target {target.name}"
    if draft.vocab != target.vocab:
        raise ConfigError(
            f"{place}: vocab_size", f"{target.vocab} {of_target}", draft.vocab
        )
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if ours != theirs:
        token = min(t for t in ours | theirs if ours.get(t) != theirs.get(t))
        raise ConfigError(
            f"{place}: vocabulary",
            f"that {of_target} (id {ours.get(token)} for {token!r})",
            f"id {theirs.get(token)}",
        )


def _expect_fields(
    place: str, expected: Mapping[str, object], found: Mapping[str, object]
) -> None:
    """Refuse a model that is not the one the demo was started with."""
    for name, value in found.items():
        if expected.get(name) != value:
            raise ConfigError(f"{place} {name}", expected.get(name), value)


def _draft_identity(model: HfModel, temperature: float) -> str:
    """Hex SHA-256 of all that determines the logits."""
    text = f"{FORMAT} {model.weights_sha256()} {float(temperature).hex()}"
    return hashlib.sha256(text.encode()).hexdigest()
