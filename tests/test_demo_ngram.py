"""The demo's n-grams: honest distributions, the better one of the longer context."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.demo.ngram import Counts, NgramModel, RowCache, sample
from pp3shm.demo.target import NgramTarget
from pp3shm.demo.text import load_text, split_text
from pp3shm.demo.vocabulary import Vocabulary
from pp3shm.errors import ConfigError

VOCAB = 7
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=5, max_size=80)
CONTEXTS = st.lists(st.integers(0, VOCAB - 1), max_size=8)


@given(TOKENS, st.integers(1, 5), CONTEXTS)
def test_every_row_is_a_distribution_over_the_whole_vocabulary(
    tokens: list[int], order: int, context: list[int]
) -> None:
    model = NgramModel.estimate(np.array(tokens), VOCAB, order)
    row = model.probs(context)
    assert row.shape == (VOCAB,)
    assert row.dtype == np.float64
    assert row.min() > 0
    assert row.sum() == pytest.approx(1, abs=1e-12)
    assert np.isfinite(model.logits(context)).all()


@given(TOKENS, CONTEXTS)
def test_a_row_is_what_the_formula_says(tokens: list[int], context: list[int]) -> None:
    """Against a slow model of dictionaries, for order 3."""
    model = NgramModel.estimate(np.array(tokens), VOCAB, 3)
    grams = {3: Counter(zip(tokens, tokens[1:], tokens[2:], strict=False))}
    for k in (2, 1):
        grams[k] = Counter(g[1:] for g in grams[k + 1])
    row = [1 / VOCAB] * VOCAB
    for k in range(1, min(len(context), 2) + 2):
        tail = tuple(context[len(context) - k + 1 :])
        seen = {g[-1]: c for g, c in grams[k].items() if g[:-1] == tail}
        if not seen:
            break
        cut = discounts(grams[k])
        total = sum(seen.values())
        left = sum(cut[min(c, 3)] for c in seen.values()) / total
        row = [left * below for below in row]
        for token, count in seen.items():
            row[token] += (count - cut[min(count, 3)]) / total
    np.testing.assert_allclose(model.probs(context), row, rtol=1e-12)


def discounts(grams: "Counter[tuple[int, ...]]") -> dict[int, float]:
    n = Counter(grams.values())
    y = n[1] / (n[1] + 2 * n[2]) if n[1] else 0.5
    raw = {c: c - (c + 1) * y * n[c + 1] / n[c] if n[c] else y for c in (1, 2, 3)}
    return {c: min(max(d, 0.1), c - 0.1) for c, d in raw.items()}


@given(TOKENS, CONTEXTS, st.sampled_from([0.1, 0.7, 1.0, 2.0]))
def test_target_rows_are_the_tempered_law_after_each_draft(
    tokens: list[int], drafts: list[int], temperature: float
) -> None:
    model = NgramModel.estimate(np.array(tokens), VOCAB, 4)
    target = NgramTarget(model, temperature)
    prefix = np.array(tokens, np.int32)
    rows = target.target_rows(0, 1, prefix, np.array(drafts, np.int32))
    assert rows.shape == (len(drafts) + 1, VOCAB)
    assert rows.dtype == np.float32
    for i, row in enumerate(rows):
        law = model.probs(tokens + drafts[:i]) ** (1 / temperature)
        np.testing.assert_allclose(row, law / law.sum(), rtol=1e-6, atol=1e-30)


def test_rows_after_a_failed_draft_repeat_the_last_one_that_counts() -> None:
    model = NgramModel.estimate(np.arange(50) % VOCAB, VOCAB, 3)
    target = NgramTarget(model, 1.0)
    prefix = np.array([1, 2, 3], np.int32)
    rows = target.target_rows(0, 1, prefix, np.array([4, -1, -1], np.int32))
    np.testing.assert_array_equal(rows[0], target.row([1, 2, 3]))
    for later in rows[1:]:
        np.testing.assert_array_equal(later, target.row([1, 2, 3, 4]))


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan"), float("inf")])
def test_a_temperature_without_a_softmax_is_refused(temperature: float) -> None:
    model = NgramModel.estimate(np.arange(50) % VOCAB, VOCAB, 3)
    with pytest.raises(ConfigError, match="temperature: expected"):
        NgramTarget(model, temperature)


def test_longer_contexts_predict_held_out_text_clearly_better() -> None:
    split = split_text(load_text())
    vocabulary = Vocabulary.train(split.train)
    tokens = vocabulary.encode(split.train)
    held_out = vocabulary.encode(split.held_out)
    uniform = vocabulary.size
    perplexities = [
        NgramModel.estimate(tokens, uniform, order).perplexity(held_out)
        for order in (1, 2, 5)
    ]
    single, weak, strong = perplexities
    assert strong < 0.75 * weak
    assert weak < 0.5 * single
    assert single < 0.75 * uniform


def test_what_is_sampled_follows_the_model() -> None:
    model = NgramModel.estimate(np.arange(700) % VOCAB, VOCAB, 2)
    drawn = sample(model, [0], 400, seed=5)
    assert sample(model, [0], 400, seed=5) == drawn
    follows = sum(b == (a + 1) % VOCAB for a, b in pairwise(drawn))
    assert follows > 390


def test_rows_are_the_same_whether_kept_or_made_again() -> None:
    tokens = np.random.default_rng(1).integers(0, VOCAB, 200)
    model = NgramModel.estimate(tokens, VOCAB, 3)
    contexts = [[a, b] for a in range(VOCAB) for b in range(VOCAB)] + [[3], []]
    first = [model.probs(c).copy() for c in contexts]
    model._cache = RowCache(rows=2)
    for context, row in zip(contexts, first, strict=True):
        np.testing.assert_array_equal(model.probs(context), row)
        np.testing.assert_array_equal(model.probs(context), row)
    with pytest.raises(ValueError, match="read-only"):
        model.probs([1])[0] = 1


@pytest.mark.parametrize(
    ("tokens", "vocab", "order", "place"),
    [
        ([0, 1], 4, 3, "tokens"),
        ([0, 1, 4], 4, 2, "tokens"),
        ([0, -1, 2], 4, 2, "tokens"),
        ([0, 1, 2], 4, 0, "order"),
        ([0, 1, 2], 8192, 5, "order"),
    ],
)
def test_what_cannot_be_counted_is_refused(
    tokens: list[int], vocab: int, order: int, place: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        NgramModel.estimate(np.array(tokens), vocab, order)
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("keys", "counts"),
    [
        ([], []),
        ([0, 1], [1]),
        ([1, 0], [1, 1]),
        ([1, 1], [1, 1]),
        ([-1, 0], [1, 1]),
        ([0, VOCAB], [1, 1]),
        ([0, 1], [1, 0]),
        ([0, 1], [1, 2**41]),
    ],
)
def test_counts_that_no_text_gives_are_refused(
    keys: list[int], counts: list[int]
) -> None:
    bad = Counts(np.array(keys, np.int64), np.array(counts, np.int64))
    with pytest.raises(ConfigError, match="counts of 1-grams"):
        NgramModel(VOCAB, [bad])


def test_the_identity_changes_with_any_count() -> None:
    model = NgramModel.estimate(np.arange(30) % VOCAB, VOCAB, 2)
    assert NgramModel(VOCAB, model.counts).sha256 == model.sha256
    last = model.counts[-1]
    more = Counts(last.keys, last.counts + (last.keys == last.keys[3]))
    assert NgramModel(VOCAB, [model.counts[0], more]).sha256 != model.sha256
    assert NgramModel(VOCAB + 1, model.counts[:1]).sha256 != (
        NgramModel(VOCAB, model.counts[:1]).sha256
    )
