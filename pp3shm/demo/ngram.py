"""Interpolated Kneser-Ney n-grams: honest distributions over a whole vocabulary.

The probability of a token after a context of ``k - 1`` tokens is its discounted share
of the counts there, plus what the discounts left over, spread as the model of the next
shorter context says; below the single tokens stands the uniform law, so that every
token has a positive probability after every context. Discounts are those of Chen and
Goodman (1998): one each for counts of one, two, and three or more.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import ConfigError

_KEY_LIMIT = 2**63  # an n-gram is one int64: its tokens as the digits of base V
_MOST_TOKENS = 2**24
_CACHE_ROWS = 2048  # 16 KiB each at V = 2048

Tokens = Sequence[int] | NDArray[np.integer]
ContextKey = tuple[int, int]
_Scalar = TypeVar("_Scalar", bound=np.generic)


class RowCache(Generic[_Scalar]):
    """Rows made before, by what of their context matters; bounded in number."""

    def __init__(self, rows: int = _CACHE_ROWS) -> None:
        self._limit = rows
        self._kept: dict[ContextKey, NDArray[_Scalar]] = {}

    def row(
        self, key: ContextKey, make: Callable[[], NDArray[_Scalar]]
    ) -> NDArray[_Scalar]:
        """The row of this key, made if it is not kept; read-only, for it is shared."""
        row = self._kept.get(key)
        if row is None:
            row = make()
            row.flags.writeable = False
            if len(self._kept) >= self._limit:
                self._kept.clear()  # cheaper to refill than to keep an order of use
            self._kept[key] = row
        return row


@dataclass(frozen=True, slots=True)
class Counts:
    """How often each k-gram was seen, for one k.

    Attributes:
        keys: (n,) int64, strictly ascending; a k-gram's tokens in base V, oldest first.
        counts: (n,) int64, at least 1. For the longest k the occurrences, below it the
            number of distinct tokens seen before the k-gram (Kneser-Ney).
    """

    keys: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Table:
    """One order ready for look-up: contexts in CSR form with discounted shares."""

    row: dict[int, int]  # packed context -> its row
    start: list[int]  # row r owns entries start[r] .. start[r + 1]
    ids: NDArray[np.intp]
    share: NDArray[np.float64]
    left: list[float]  # mass that the discounts of a row left over


class NgramModel:
    """A language model of one order.

    Attributes:
        vocab: number of tokens V.
        order: tokens in the longest n-gram, at least 1; contexts are one shorter.
        sha256: hex identity of the counts, and so of every distribution.
    """

    def __init__(self, vocab: int, counts: Sequence[Counts]) -> None:
        """Build the tables from the counts of orders 1 to n.

        Args:
            vocab: number of tokens.
            counts: counts of the 1-grams, 2-grams and so on.

        Raises:
            ConfigError: counts that no text of this vocabulary can give.
        """
        self.vocab = vocab
        self.order = len(counts)
        self.counts = tuple(counts)
        _check_counts(vocab, counts)
        self.sha256 = _identity(vocab, counts)
        base = np.full(vocab, 1.0 / vocab)
        first = _table(counts[0], vocab)
        base *= first.left[0]
        base[first.ids] += first.share
        self._base = base
        self._tables = [_table(c, vocab) for c in counts[1:]]
        self._cache: RowCache[np.float64] = RowCache()

    @classmethod
    def estimate(
        cls, tokens: NDArray[np.integer], vocab: int, order: int
    ) -> "NgramModel":
        """Count a text.

        Args:
            tokens: (n,) ids in ``[0, vocab)``, at least ``order`` of them.
            vocab: number of tokens.
            order: tokens in the longest n-gram.

        Returns:
            The model.

        Raises:
            ConfigError: too few tokens, a token out of range, or an order whose n-grams
                do not fit 63 bits.
        """
        if order < 1 or vocab**order >= _KEY_LIMIT:
            raise ConfigError("order", f"at least 1 and {vocab}**order < 2**63", order)
        if len(tokens) < order:
            raise ConfigError("tokens", f"at least {order}", len(tokens))
        if tokens.min() < 0 or tokens.max() >= vocab:
            worst = tokens.min() if tokens.min() < 0 else tokens.max()
            raise ConfigError("tokens", f"ids in [0, {vocab})", worst)
        keys, seen = np.unique(_grams(tokens, vocab, order), return_counts=True)
        counts = [Counts(keys, seen.astype(np.int64))]
        for k in range(order - 1, 0, -1):
            keys, seen = np.unique(counts[0].keys % vocab**k, return_counts=True)
            counts.insert(0, Counts(keys, seen.astype(np.int64)))
        return cls(vocab, counts)

    def context_key(self, context: Tokens) -> ContextKey:
        """What of a context matters: (tokens looked at, those tokens packed)."""
        length = min(self.order - 1, len(context))
        key = 0
        for token in context[len(context) - length :]:
            key = key * self.vocab + int(token)
        return length, key

    def probs(self, context: Tokens) -> NDArray[np.float64]:
        """Distribution of the next token.

        Args:
            context: ids before it; only the last ``order - 1`` are looked at.

        Returns:
            (V,) float64, read-only; every entry positive, sum 1.
        """
        length, key = self.context_key(context)
        return self._cache.row((length, key), lambda: self._row(length, key))

    def logits(self, context: Tokens) -> NDArray[np.float32]:
        """Natural logarithms of :meth:`probs`: (V,) float32, all finite."""
        return np.log(self.probs(context)).astype(np.float32)

    def perplexity(self, tokens: NDArray[np.integer]) -> float:
        """Exponential of the mean surprise (nats) at each token after those before it.

        Args:
            tokens: (n,) ids the model was not estimated from, n at least 1.

        Returns:
            The perplexity; the uniform law has V.
        """
        ids = tokens.tolist()
        reach = self.order - 1
        seen = [self.probs(ids[max(0, i - reach) : i])[t] for i, t in enumerate(ids)]
        return float(np.exp(-np.mean(np.log(seen))))

    def _row(self, length: int, key: int) -> NDArray[np.float64]:
        """Interpolate from the single tokens up to the longest context seen."""
        row = self._base.copy()
        for k, table in enumerate(self._tables[:length], start=1):
            at = table.row.get(key % self.vocab**k)
            if at is None:  # then no longer context that ends in it was seen either
                break
            low, high = table.start[at], table.start[at + 1]
            row *= table.left[at]
            row[table.ids[low:high]] += table.share[low:high]
        return row


def sample(
    model: NgramModel, context: Iterable[int], count: int, seed: int
) -> list[int]:
    """Draw tokens one after the other from a model, for a look at what it writes.

    Args:
        model: the model.
        context: ids to begin after.
        count: tokens to draw.
        seed: of the generator.

    Returns:
        The drawn ids, without the context.
    """
    rng = np.random.default_rng(seed)
    ids = list(context)
    begin = len(ids)
    for u in rng.random(count):
        cumulative = np.cumsum(model.probs(ids))
        at = np.searchsorted(cumulative, u * cumulative[-1], side="right")
        ids.append(min(int(at), model.vocab - 1))
    return ids[begin:]


def _grams(tokens: NDArray[np.integer], vocab: int, order: int) -> NDArray[np.int64]:
    """Every n-gram of a text, packed."""
    size = len(tokens) - order + 1
    keys = np.zeros(size, np.int64)
    for i in range(order):
        keys = keys * vocab + tokens[i : i + size]
    return keys


def _discounts(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Discounts of counts 1, 2 and 3 or more; each below its count.

    A small or odd text can lack the counts that the estimate divides by, or give one
    outside its bounds. Any discount within them gives an honest distribution, so it is
    held there.
    """
    n1, n2, n3, n4 = (int(np.count_nonzero(counts == c)) for c in (1, 2, 3, 4))
    y = n1 / (n1 + 2 * n2) if n1 else 0.5
    steps = ((1, n1, n2), (2, n2, n3), (3, n3, n4))
    raw = [c - (c + 1) * y * above / at if at else y for c, at, above in steps]
    return np.clip(raw, 0.1, (0.9, 1.9, 2.9))


def _table(counts: Counts, vocab: int) -> _Table:
    """Discount the counts of one order and normalise them by context."""
    contexts, ids = np.divmod(counts.keys, vocab)
    cut = _discounts(counts.counts)[np.minimum(counts.counts, 3) - 1]
    unique, start = np.unique(contexts, return_index=True)
    total = np.add.reduceat(counts.counts, start)
    left = np.add.reduceat(cut, start) / total
    per_entry = np.repeat(total, np.diff(start, append=len(contexts)))
    return _Table(
        row=dict(zip(unique.tolist(), range(len(unique)), strict=True)),
        start=[*start.tolist(), len(contexts)],
        ids=ids.astype(np.intp),
        share=(counts.counts - cut) / per_entry,
        left=left.tolist(),
    )


def _check_counts(vocab: int, counts: Sequence[Counts]) -> None:
    """Refuse what would make a look-up wrong: counts may come from a file."""
    if not 1 <= vocab <= _MOST_TOKENS:  # rows of V are made before any is looked at
        raise ConfigError("counts", f"a vocabulary of 1..{_MOST_TOKENS}", vocab)
    if not counts or vocab ** len(counts) >= _KEY_LIMIT:
        raise ConfigError("counts", "orders that fit 63 bits", len(counts))
    for k, c in enumerate(counts, start=1):
        place = f"counts of {k}-grams"
        if c.keys.ndim != 1 or c.keys.shape != c.counts.shape or not c.keys.size:
            raise ConfigError(place, "one count for each key", c.counts.shape)
        if c.keys[0] < 0 or c.keys[-1] >= vocab**k or (np.diff(c.keys) <= 0).any():
            raise ConfigError(place, "ascending keys in range", "others")
        if c.counts.min() < 1 or c.counts.max() > 2**40:
            raise ConfigError(place, "counts in 1..2**40", "others")


def _identity(vocab: int, counts: Sequence[Counts]) -> str:
    """Hex SHA-256 of the counts in one fixed form."""
    digest = hashlib.sha256(f"pp3shm.demo.ngram.v1 {vocab} {len(counts)}".encode())
    for c in counts:
        for array in (c.keys, c.counts):
            digest.update(f" {len(array)} ".encode())
            digest.update(array.astype("<i8").tobytes())
    return digest.hexdigest()
