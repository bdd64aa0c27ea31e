"""The demo's vocabulary: whole, deterministic, reversible."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.demo import vocabulary as module
from pp3shm.demo.vocabulary import BYTES, MAX_SIZE, Vocabulary
from pp3shm.errors import ConfigError

TEXT = "".join(f"line {i} of {i * i} says it is {i % 7}\n" for i in range(500))
SMALL = Vocabulary.train(TEXT, 400)


@given(st.text())
def test_any_text_comes_back_from_its_ids(text: str) -> None:
    ids = SMALL.encode(text)
    assert ids.dtype == np.int32
    assert ids.size == 0 or (ids.min() >= 0 and ids.max() < SMALL.size)
    assert SMALL.decode(ids) == text


def test_another_process_trains_the_same_vocabulary() -> None:
    code = (
        "from pp3shm.demo.vocabulary import Vocabulary; import sys;"
        "print(Vocabulary.train(sys.stdin.read(), 400).sha256)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        input=TEXT,
        text=True,
        capture_output=True,
        check=False,
    )
    assert ran.stdout.strip() == SMALL.sha256, ran.stderr


def test_another_text_or_size_has_another_identity() -> None:
    others = [Vocabulary.train(TEXT, 401), Vocabulary.train(TEXT.upper(), 400)]
    assert len({SMALL.sha256, *(v.sha256 for v in others)}) == 3


def test_a_text_too_poor_for_the_size_gives_fewer_ids() -> None:
    poor = Vocabulary.train("ab" * 40, 2048)
    assert BYTES <= poor.size < 300
    assert poor.decode(poor.encode("any text")) == "any text"


def test_one_endless_word_gives_bounded_tokens() -> None:
    word = Vocabulary.train("a" * 20_000, 2048)
    assert len(word.encode("a" * 20_000)) >= 20_000 // 32


@pytest.mark.parametrize("run", ["x", " ", "ab", "\n "])
def test_a_run_without_end_is_cut_into_words(run: str) -> None:
    """A megabyte of it would take hours to learn from as one word, and hangs here."""
    text = run * (2**20 // len(run))
    learnt = Vocabulary.train(text, 600)
    assert learnt.decode(learnt.encode(text)) == text


@pytest.mark.parametrize("size", [-1, 0, 32, BYTES - 1, MAX_SIZE + 1])
def test_a_size_out_of_range_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"expected {BYTES}..{MAX_SIZE}"):
        Vocabulary.train(TEXT, size)


def test_a_missing_tokenizer_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"pp3shm\[demo\]"):
        module.Vocabulary.train(TEXT)
