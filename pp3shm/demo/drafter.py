"""The demo's drafter: an n-gram in a file that the worker process loads.

The file holds counts, not objects: loading runs no code from it, and what was loaded
must hash to the identity written beside it.
"""

import hashlib
import importlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pp3shm.demo.ngram import Counts, NgramModel, RowCache, Tokens
from pp3shm.demo.target import check_temperature
from pp3shm.errors import ConfigError

ENVIRONMENT = "PP3SHM_DEMO_DRAFTER"
FORMAT = "pp3shm-demo-ngram-1"
TAU = 0.7  # the temperature at which a proposal is made of logits (wire page, 8)
_IDENTITIES = ("id_map_sha256", "target_sha256")
# What NumPy, zipfile and json raise on bytes that are not what was saved.
_MALFORMED = (
    AttributeError,
    EOFError,
    KeyError,
    MemoryError,  # a size that no file of ours has
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)


class DraftRow(Protocol):
    """What a drafter reads of a request; the worker's session rows have more."""

    @property
    def slot(self) -> int:
        """Slot of the request."""
        ...

    @property
    def generation(self) -> int:
        """Generation of the slot."""
        ...

    @property
    def prefix(self) -> NDArray[np.int32]:
        """(m,) int32, the committed tokens."""
        ...


class DemoDrafter(Protocol):
    """A worker's drafter that knows which profile it was made for."""

    @property
    def suffix(self) -> str:
        """How the name of its file ends."""
        ...

    @property
    def profile_fields(self) -> dict[str, int | str]:
        """``vocab`` and the identities that the profile of its session must have."""
        ...

    def save(self, path: Path) -> None:
        """Write the file another process loads the same drafter from."""
        ...

    def logits(
        self, rows: Sequence[DraftRow], drafted: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Logits of the next token of each row: (n, vocab) float32."""
        ...


class NgramDrafter:
    """Drafts from an n-gram, at the target's temperature.

    A proposal is ``exp(z / 0.7)`` over the 32 largest logits. Logits of
    ``0.7 / T * log r`` make it the n-gram ``r`` to the power of 1/T, which is what the
    target does to its own law; of the scales tried, this one met the target best
    (largest mean of ``sum min(p, q)``) at each temperature.

    Attributes:
        model: the n-gram r.
        temperature: the target's T.
        profile_fields: ``vocab``, ``id_map_sha256``, ``target_sha256``,
            ``draft_sha256``.
    """

    suffix = ".npz"

    def __init__(
        self, model: NgramModel, temperature: float, identities: Mapping[str, str]
    ) -> None:
        """Draft from a model.

        Args:
            model: the n-gram.
            temperature: the target's temperature.
            identities: hex ``id_map_sha256`` and ``target_sha256``.
        """
        self.model = model
        self.temperature = check_temperature(temperature)
        self.profile_fields: dict[str, int | str] = {
            "vocab": model.vocab,
            **{name: identities[name] for name in _IDENTITIES},
            "draft_sha256": _draft_identity(model, temperature),
        }
        self._scale = TAU / temperature
        self._cache: RowCache[np.float32] = RowCache()

    def row(self, context: Tokens) -> NDArray[np.float32]:
        """Logits after a context: (vocab,) float32, read-only, all finite."""
        key = self.model.context_key(context)
        return self._cache.row(key, lambda: self._scaled(context))

    def logits(
        self, rows: Sequence[DraftRow], drafted: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Logits of the next token of each row.

        Args:
            rows: the requests of a STEP, n of them.
            drafted: (n, i) int32, the tokens drafted after each prefix in this STEP.

        Returns:
            (n, vocab) float32.
        """
        reach = self.model.order - 1
        out = np.empty((len(rows), self.model.vocab), np.float32)
        for r, row in enumerate(rows):
            prefix = row.prefix[max(0, len(row.prefix) - reach) :]
            out[r] = self.row([*prefix.tolist(), *drafted[r].tolist()])
        return out

    def _scaled(self, context: Tokens) -> NDArray[np.float32]:
        """Scale in float64, then round once."""
        return (self._scale * np.log(self.model.probs(context))).astype(np.float32)

    def save(self, path: Path) -> None:
        """Write the file that :func:`load_drafter` reads; the same one each time.

        Raises:
            ConfigError: the file cannot be written.
        """
        meta = {
            "format": FORMAT,
            "vocab": self.model.vocab,
            "sizes": [len(c.keys) for c in self.model.counts],
            "temperature": self.temperature,
            **{k: v for k, v in self.profile_fields.items() if k != "vocab"},
        }
        text = json.dumps(meta, sort_keys=True).encode()
        counts = self.model.counts
        try:
            with path.open("wb") as file:
                np.savez(  # arrays of integers: nothing is pickled
                    file,
                    meta=np.frombuffer(text, np.uint8),
                    keys=np.concatenate([c.keys for c in counts]),
                    counts=np.concatenate([c.counts for c in counts]),
                )
        except OSError as error:
            raise ConfigError(
                f"drafter file {str(path)!r}", "a writable place", error.strerror
            ) from error


def load_drafter(path: Path) -> NgramDrafter:
    """Load exactly the drafter that was saved.

    Args:
        path: a file of :meth:`NgramDrafter.save`.

    Returns:
        The drafter: equal logits, equal ``profile_fields``.

    Raises:
        ConfigError: missing, not such a file, or not what its identity says.
    """
    place = f"drafter file {str(path)!r}"
    try:
        # Opened here, not by NumPy: on a file that is no archive np.load would leave
        # its own handle to the garbage collector.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            meta = json.loads(data["meta"].tobytes())
            if not isinstance(meta, dict) or meta.get("format") != FORMAT:
                raise ConfigError(place, f"format {FORMAT}", "another")
            counts = _counts(data["keys"], data["counts"], meta["sizes"])
        model = NgramModel(int(meta["vocab"]), counts)
        found = NgramDrafter(model, float(meta["temperature"]), meta)
        expected = str(meta["draft_sha256"])
    except OSError as error:
        reason = error.strerror or "an unreadable one"
        raise ConfigError(place, "a readable file", reason) from error
    except _MALFORMED as error:
        raise ConfigError(place, f"format {FORMAT}", type(error).__name__) from error
    if (ours := found.profile_fields["draft_sha256"]) != expected:
        raise ConfigError(f"{place} draft_sha256", expected, ours)
    return found


class EnvironmentDrafter:
    """The drafter in the file that ``PP3SHM_DEMO_DRAFTER`` names, loaded when asked.

    A ``.json`` file names a Hugging Face model, any other holds an n-gram. An object
    and not a factory: a worker reads ``profile_fields`` of it as it starts, so that a
    file it cannot use is an error then, and every session drafts from one model.
    """

    @cached_property
    def loaded(self) -> DemoDrafter:
        """The drafter itself.

        Raises:
            ConfigError: the variable is not set, or the file is not usable.
        """
        name = os.environ.get(ENVIRONMENT)
        if not name:
            raise ConfigError(
                f"environment {ENVIRONMENT}", "path of a drafter", "nothing"
            )
        path = Path(name)
        if path.suffix == ".json":
            # Only then is torch needed; besides, hf imports this module.
            hf = importlib.import_module("pp3shm.demo.hf")
            drafter: DemoDrafter = hf.load_drafter(path)
            return drafter
        return load_drafter(path)

    @property
    def profile_fields(self) -> dict[str, int | str]:
        """``vocab`` and the identities."""
        return self.loaded.profile_fields

    def logits(
        self, rows: Sequence[DraftRow], drafted: NDArray[np.int32]
    ) -> NDArray[np.float32]:
        """Logits of the next token of each row: (n, vocab) float32."""
        return self.loaded.logits(rows, drafted)


def _counts(
    keys: NDArray[np.generic], counts: NDArray[np.generic], sizes: Sequence[int]
) -> list[Counts]:
    """Counts of a file, order by order, of the one type they are saved in."""
    if keys.dtype != np.int64 or counts.dtype != np.int64:
        raise TypeError(keys.dtype)
    if keys.shape != (sum(sizes),) or min(sizes) < 1:
        raise ValueError(keys.shape)
    cuts = np.cumsum(sizes)[:-1]
    parts = (np.split(array.astype(np.int64), cuts) for array in (keys, counts))
    return [Counts(k, c) for k, c in zip(*parts, strict=True)]


def _draft_identity(model: NgramModel, temperature: float) -> str:
    """Hex SHA-256 of all that determines the logits."""
    text = f"{FORMAT} {model.sha256} {float(temperature).hex()}"
    return hashlib.sha256(text.encode()).hexdigest()


# For ``pp3shm worker --drafter pp3shm.demo.drafter:from_environment``.
from_environment = EnvironmentDrafter()
