"""The demo's pair of n-grams: one vocabulary, a drafter that meets its target."""

import importlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.demo.drafter import (
    ENVIRONMENT,
    EnvironmentDrafter,
    NgramDrafter,
    load_drafter,
)
from pp3shm.demo.pair import DRAFTER, ModelPair, build_ngram_pair
from pp3shm.demo.text import load_text
from pp3shm.errors import ConfigError

SMALL = "".join(f"row {i} holds {i * i % 97} and {i % 7}.\n\n" for i in range(600))


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return build_ngram_pair(load_text())


def overlap(pair: ModelPair, scale: float) -> float:
    """Mean of sum min(p, q) over text the target itself writes, q as on the wire."""
    rng = np.random.default_rng(17)
    drafter = pair.drafter
    assert isinstance(drafter, NgramDrafter)
    total, count = 0.0, 0
    for prompt in pair.prompts(4, 16):
        ids = prompt.tolist()
        for _ in range(40):
            here = np.array(ids, np.int32)
            p = pair.target.target_rows(0, 1, here, here[:0])[0].astype(np.float64)
            z = scale * drafter.row(ids).astype(np.float64)
            top = np.argsort(-z, kind="stable")[:32]
            q = np.zeros_like(p)
            q[top] = np.exp((z[top] - z.max()) / 0.7)
            total += np.minimum(p, q / q.sum()).sum()
            count += 1
            ids.append(int(rng.choice(len(p), p=p / p.sum())))
    return total / count


def test_the_strong_model_is_clearly_the_better_one(pair: ModelPair) -> None:
    assert pair.target_perplexity < 0.75 * pair.draft_perplexity
    assert pair.draft_perplexity < 0.1 * pair.target.vocab


def test_the_same_text_builds_the_same_pair(pair: ModelPair) -> None:
    again = build_ngram_pair(load_text())
    assert again.profile_fields == pair.profile_fields
    other = build_ngram_pair(SMALL).profile_fields
    assert all(other[name] != value for name, value in pair.profile_fields.items())


@pytest.mark.parametrize("temperature", [0.7, 0.8, 1.0])
def test_the_drafter_meets_the_target_and_no_other_scale_does_much_better(
    temperature: float,
) -> None:
    pair = build_ngram_pair(load_text(), temperature=temperature)
    ours = overlap(pair, 1.0)
    assert ours > 0.4
    for scale in (0.6, 0.8, 1.25, 1.6):
        assert overlap(pair, scale) < ours + 0.02


def test_the_worker_loads_the_pairs_drafter(pair: ModelPair, tmp_path: Path) -> None:
    variables = pair.save_drafter(tmp_path)
    loaded = load_drafter(Path(variables[ENVIRONMENT]))
    assert loaded.profile_fields == pair.profile_fields
    module, _, name = DRAFTER.partition(":")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, EnvironmentDrafter)


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # the pair's
@given(st.integers(1, 8), st.integers(1, 40))
def test_prompts_are_as_many_and_as_long_as_asked(
    pair: ModelPair, count: int, length: int
) -> None:
    prompts = pair.prompts(count, length)
    assert [len(p) for p in prompts] == [length] * count
    assert len({p.tobytes() for p in prompts}) == count or length < 8
    assert all(pair.decode(p) in pair.held_out_text for p in prompts)


def test_prompts_of_a_text_without_long_paragraphs_are_taken_from_anywhere() -> None:
    small = build_ngram_pair(SMALL)
    prompts = small.prompts(4, 60)
    assert [len(p) for p in prompts] == [60] * 4
    longest = small.prompts(2, 10**6)
    assert all(len(small.encode(small.held_out_text)) == len(p) for p in longest)


@pytest.mark.parametrize(
    ("text", "arguments", "place"),
    [
        ("abcdefghijklmnopqrstuvwxyz " * 200, {}, "text"),
        (SMALL[:4100], {"vocab": 255}, "vocabulary size"),
        (SMALL[:4100], {"temperature": 0.0}, "temperature"),
        (SMALL[:4100], {"draft_order": 0}, "order"),
    ],
)
def test_a_pair_that_cannot_be_built_is_refused(
    text: str, arguments: dict[str, float], place: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        build_ngram_pair(text, **arguments)  # type: ignore[arg-type]
    assert caught.value.place == place
