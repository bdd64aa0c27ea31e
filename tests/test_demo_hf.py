"""Hugging Face models as target and drafter, on tiny ones made here."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tiny_models import PADDED, TEXT, save_model, save_tokenizer

from pp3shm.demo.drafter import ENVIRONMENT, EnvironmentDrafter
from pp3shm.demo.hf import HfDrafter, HfTarget, load_drafter, load_pair
from pp3shm.demo.hfmodel import HfModel, load_model
from pp3shm.errors import ConfigError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NEAR = {"rtol": 1e-4, "atol": 1e-5}  # FP32 sums in another order


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass
class Row:
    """What a drafter reads of a session's row."""

    slot: int
    generation: int
    prefix: NDArray[np.int32]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("models")
    return save_model(root / "big", 1), save_model(root / "small", 2)


def plain_logits(model: HfModel, tokens: list[int]) -> NDArray[np.float32]:
    """Logits after every token, read at once by the model itself."""
    with torch.no_grad():
        out = model._model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    rows: NDArray[np.float32] = out.numpy()
    return rows


@pytest.mark.parametrize("kind", ["llama", "gpt2", "mamba"])
def test_kept_keys_and_values_change_no_logits(tmp_path: Path, kind: str) -> None:
    """Requests grow, are cut back, change, and are begun anew, in a random order."""
    model = load_model(save_model(tmp_path, 3, kind), "--target")
    rng = np.random.default_rng(11)
    requests: dict[tuple[int, int], list[int]] = {}
    for _ in range(80):
        slot, generation = int(rng.integers(4)), int(rng.integers(1, 5))
        tokens = requests.get((slot, generation), [1])
        tokens = tokens[: int(rng.integers(1, len(tokens) + 1))]
        tokens = [*tokens, *rng.integers(0, PADDED, rng.integers(0, 7)).tolist()][:64]
        requests[slot, generation] = tokens
        count = int(rng.integers(1, min(len(tokens), 6) + 1))
        rows = model.logits(slot, generation, tokens, count)
        assert rows.shape == (count, PADDED)
        expected = plain_logits(model, tokens)[-count:]
        np.testing.assert_allclose(rows, expected, **NEAR)
    assert len(model._kept) == (0 if kind == "mamba" else 8)


def test_a_request_that_grows_is_not_read_again(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(names[0], "--target")
    read = []
    forward = model._forward

    def counted(tokens: list[int], *rest: object) -> NDArray[np.float32]:
        read.append(len(tokens))
        return forward(tokens, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(model, "_forward", counted)
    model.logits(0, 1, list(range(20)), 1)
    model.logits(0, 1, list(range(25)), 6)
    model.logits(0, 1, [*range(22), 99], 6)
    model.logits(0, 2, list(range(5)), 1)
    assert read == [20, 6, 6, 5]


def test_target_rows_are_the_softmax_at_the_temperature(
    names: tuple[str, str],
) -> None:
    model = load_model(names[0], "--target")
    target = HfTarget(model, 0.7, model.weights_sha256())
    prefix, drafts = np.arange(9, dtype=np.int32), np.array([5, 6, 7], np.int32)
    rows = target.target_rows(0, 1, prefix, drafts)
    z = plain_logits(model, [*range(9), 5, 6, 7])[8:].astype(np.float64) / 0.7
    expected = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(rows, expected, rtol=1e-3, atol=1e-6)
    assert rows.dtype == np.float32
    failed = target.target_rows(0, 1, prefix, np.full(3, -1, np.int32))
    np.testing.assert_allclose(failed, np.tile(expected[0], (4, 1)), rtol=1e-3)


def test_each_row_is_drafted_from_its_own_prefix_and_drafts(
    names: tuple[str, str],
) -> None:
    model = load_model(names[1], "--draft")
    drafter = HfDrafter(model, 1.4, "0" * 64)
    rows = [
        Row(slot, 1, np.arange(slot + 1, slot + 4, dtype=np.int32)) for slot in range(3)
    ]
    drafted = np.empty((3, 0), np.int32)
    for _ in range(3):
        logits = drafter.logits(rows, drafted)
        assert logits.shape == (3, PADDED)
        for row, more, z in zip(rows, drafted, logits, strict=True):
            plain = plain_logits(model, [*row.prefix.tolist(), *more.tolist()])[-1]
            np.testing.assert_allclose(z, plain / 2, **NEAR)
        drafted = np.hstack([drafted, logits.argmax(axis=1)[:, None]]).astype(np.int32)


def test_a_pair_knows_its_text_and_its_limits(names: tuple[str, str]) -> None:
    pair = load_pair(*names, TEXT, temperature=0.9, local_files_only=True)
    assert pair.target.vocab == PADDED
    assert pair.max_positions == 64
    prompt = pair.prompts(2, 4)[1]
    assert pair.decode(prompt) in TEXT
    assert pair.decode([*prompt, 310]) == pair.decode(prompt)  # 310: padding
    ids = pair.encode(pair.held_out_text)[:64]
    model = load_model(names[0], "--target")
    z = torch.tensor(plain_logits(model, ids.tolist())[:-1])
    loss = torch.nn.functional.cross_entropy(z, torch.tensor(ids[1:]).long())
    assert pair.target_perplexity == pytest.approx(float(loss.exp()), rel=1e-4)
    assert pair.target_perplexity != pair.draft_perplexity


def test_the_worker_loads_the_very_model(
    names: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = load_pair(*names, TEXT, temperature=0.9)
    variables = pair.save_drafter(tmp_path)
    monkeypatch.setenv(ENVIRONMENT, variables[ENVIRONMENT])
    loaded = EnvironmentDrafter()
    assert loaded.profile_fields == pair.profile_fields
    rows, none = [Row(0, 1, np.arange(5, dtype=np.int32))], np.empty((1, 0), np.int32)
    np.testing.assert_array_equal(
        loaded.logits(rows, none), pair.drafter.logits(rows, none)
    )


def test_a_worker_with_another_model_is_refused(
    names: tuple[str, str], tmp_path: Path
) -> None:
    load_pair(*names, TEXT, temperature=0.9).save_drafter(tmp_path)
    path = tmp_path / "drafter.json"
    meta = json.loads(path.read_text())
    path.write_text(json.dumps({**meta, "name": names[0]}))
    with pytest.raises(ConfigError, match="draft_sha256: expected"):
        load_drafter(path)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "pp3shm-demo-hf-1"}', "[" * 100_000]
)
def test_a_spoilt_drafter_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "drafter.json"
    with pytest.raises(ConfigError, match="No such file"):
        load_drafter(path)
    path.write_text(text)
    with pytest.raises(ConfigError, match="format pp3shm-demo-hf-1"):
        load_drafter(path)


def test_models_of_different_vocabularies_are_refused_by_name(
    names: tuple[str, str], tmp_path: Path
) -> None:
    wide = save_model(tmp_path / "wide", 4, vocab_size=PADDED + 64)
    other = save_model(tmp_path / "other", 5)
    save_tokenizer(tmp_path / "other", TEXT.upper())
    for draft, place in ((wide, "vocab_size"), (other, "vocabulary")):
        with pytest.raises(ConfigError) as caught:
            load_pair(names[0], draft, TEXT, temperature=1.0)
        assert caught.value.place == f"--draft {draft}: {place}"
        assert names[0] in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_model_smaller_than_its_tokenizer_is_refused(tmp_path: Path) -> None:
    name = save_model(tmp_path, 6, vocab_size=299)
    with pytest.raises(ConfigError, match="vocab_size: expected >= 300, found 299"):
        load_model(name, "--target")


def test_a_model_that_is_not_there_is_refused_in_one_line(
    names: tuple[str, str], tmp_path: Path
) -> None:
    broken = Path(save_model(tmp_path / "broken", 7))
    (broken / "model.safetensors").write_bytes(b"no weights")
    (tmp_path / "empty").mkdir()
    for name in (str(tmp_path / "missing"), str(tmp_path / "empty"), str(broken)):
        with pytest.raises(ConfigError, match="a causal language model") as caught:
            load_pair(names[0], name, TEXT, temperature=1.0, local_files_only=True)
        assert caught.value.place == f"--draft {name}"
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_a_missing_library_names_the_extra(
    names: tuple[str, str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=r"pp3shm\[hf\]"):
        load_model(names[0], "--target")


def test_more_tokens_than_a_model_reads_are_refused(names: tuple[str, str]) -> None:
    model = load_model(names[0], "--target")
    for tokens, count in (([1] * 65, 1), ([], 1), ([1], 2)):
        with pytest.raises(ConfigError, match="tokens: expected"):
            model.logits(0, 1, tokens, count)
