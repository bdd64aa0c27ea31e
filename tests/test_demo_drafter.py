"""The demo's drafter: the file gives the worker exactly the one that was built."""

import contextlib
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from pp3shm.demo.drafter import (
    ENVIRONMENT,
    EnvironmentDrafter,
    NgramDrafter,
    load_drafter,
)
from pp3shm.demo.ngram import NgramModel
from pp3shm.errors import ConfigError

VOCAB = 40
TOKENS = np.random.default_rng(3).integers(0, VOCAB, 400) // 2 * 2 % VOCAB
MODEL = NgramModel.estimate(TOKENS, VOCAB, 2)
NAMES = {"id_map_sha256": "1" * 64, "target_sha256": "2" * 64}
DRAFTER = NgramDrafter(MODEL, 0.8, NAMES)


@dataclass
class Row:
    """What a drafter reads of a session's row."""

    prefix: NDArray[np.int32]
    slot: int = 0
    generation: int = 1


def row(*tokens: int) -> Row:
    return Row(np.array(tokens, np.int32))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drafter") / "drafter.npz"
    DRAFTER.save(path)
    return path


def test_the_file_gives_the_same_logits_and_identities(file: Path) -> None:
    loaded = load_drafter(file)
    assert loaded.profile_fields == DRAFTER.profile_fields
    rows = [row(1, 2), row(4), row(0, 0, 6)]
    drafted = np.array([[3], [8], [2]], np.int32)
    np.testing.assert_array_equal(
        loaded.logits(rows, drafted), DRAFTER.logits(rows, drafted)
    )


def test_another_process_loads_the_drafter_the_environment_names(file: Path) -> None:
    code = (
        "from pp3shm.demo.drafter import from_environment;"
        "print(from_environment.profile_fields['draft_sha256'])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, ENVIRONMENT: str(file)},
        text=True,
        capture_output=True,
        check=False,
    )
    assert ran.stdout.strip() == DRAFTER.profile_fields["draft_sha256"], ran.stderr


def test_the_profile_fields_are_those_of_both_models() -> None:
    assert {"vocab", "id_map_sha256", "target_sha256", "draft_sha256"} == set(
        DRAFTER.profile_fields
    )
    other = NgramDrafter(MODEL, 0.9, NAMES).profile_fields
    assert other["draft_sha256"] != DRAFTER.profile_fields["draft_sha256"]
    assert other["vocab"] == VOCAB


def test_each_row_is_drafted_from_its_own_prefix_and_drafts() -> None:
    rows = [row(1, 2, 3), row(5)]
    none = np.empty((2, 0), np.int32)
    first = DRAFTER.logits(rows, none)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, [DRAFTER.row([3]), DRAFTER.row([5])])
    drafted = np.array([[7, 9], [9, 11]], np.int32)
    then = DRAFTER.logits(rows, drafted)
    np.testing.assert_array_equal(then, [DRAFTER.row([9]), DRAFTER.row([11])])


@pytest.mark.parametrize("temperature", [0.5, 0.7, 0.8, 1.0, 1.5])
def test_a_proposal_at_tau_is_the_model_at_the_targets_temperature(
    temperature: float,
) -> None:
    drafter = NgramDrafter(MODEL, temperature, NAMES)
    weights = np.exp(drafter.row([2]).astype(np.float64) / 0.7)
    law = MODEL.probs([2]) ** (1 / temperature)
    np.testing.assert_allclose(weights / weights.sum(), law / law.sum(), rtol=1e-5)


def test_an_unset_variable_or_missing_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(ConfigError, match=ENVIRONMENT):
        _ = EnvironmentDrafter().profile_fields
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "missing.npz"))
    with pytest.raises(ConfigError, match="No such file"):
        _ = EnvironmentDrafter().profile_fields
    with pytest.raises(ConfigError, match="writable"):
        DRAFTER.save(tmp_path / "missing" / "file.npz")


@given(st.data())
def test_a_spoilt_file_is_refused_or_the_same_drafter(
    file: Path, data: st.DataObject
) -> None:
    """One byte changed, or the end cut off: never another drafter, never a crash."""
    spoilt = bytearray(file.read_bytes())
    at = data.draw(st.integers(0, len(spoilt) - 1))
    if data.draw(st.booleans()):
        spoilt[at] ^= data.draw(st.integers(1, 255))
    else:
        del spoilt[at:]
    path = file.with_suffix(".spoilt")
    path.write_bytes(spoilt)
    with contextlib.suppress(ConfigError):
        assert load_drafter(path).profile_fields == DRAFTER.profile_fields


def rewritten(file: Path, name: str, array: NDArray[np.generic]) -> Path:
    """The file with one of its arrays replaced and every checksum right."""
    out = file.with_suffix(".rewritten")
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(out, "w") as new:
        for item in old.namelist():
            buffer = io.BytesIO(old.read(item))
            if item == f"{name}.npy":
                buffer = io.BytesIO()
                np.save(buffer, array, allow_pickle=True)
            new.writestr(item, buffer.getvalue())
    return out


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("counts", np.concatenate([c.counts for c in MODEL.counts]) + 1),
        ("counts", np.concatenate([c.counts for c in MODEL.counts])[1:]),
        ("counts", np.concatenate([c.counts for c in MODEL.counts]) + 0.5),
        ("keys", np.concatenate([c.keys for c in MODEL.counts])[::-1]),
        ("keys", np.concatenate([c.keys for c in MODEL.counts]) - 1),
        ("keys", np.array([object()] * 3)),
        ("meta", np.frombuffer(b"[]", np.uint8)),
        ("meta", np.frombuffer(b'{"format": "other"}', np.uint8)),
        ("meta", np.frombuffer(b'{"format": "pp3shm-demo-ngram-1"}', np.uint8)),
        ("meta", np.frombuffer(b"\xff", np.uint8)),
    ],
)
def test_a_file_of_other_content_is_refused(
    file: Path, name: str, array: NDArray[np.generic]
) -> None:
    with pytest.raises(ConfigError, match=r"drafter file|counts of"):
        load_drafter(rewritten(file, name, array))


@pytest.mark.parametrize(
    ("field", "value"), [("vocab", 2**31 - 1), ("vocab", 2**62), ("sizes", [2**50])]
)
def test_a_file_that_says_vast_sizes_is_refused(
    file: Path, field: str, value: object
) -> None:
    with np.load(file) as data:
        meta = json.loads(data["meta"].tobytes())
    meta[field] = value
    vast = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    with pytest.raises(ConfigError, match=r"drafter file|counts"):
        load_drafter(rewritten(file, "meta", vast))


def test_an_archive_that_says_a_vast_array_is_refused(
    file: Path, tmp_path: Path
) -> None:
    # in the header of the array, whose check sum NumPy reads only at its end
    with zipfile.ZipFile(file) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    head = b"{'descr': '<i8', 'fortran_order': False, 'shape': (%d,), }" % (2**55)
    made = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    path = tmp_path / "vast.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, made if name == "keys.npy" else data)
    with pytest.raises(ConfigError, match="drafter file"):
        load_drafter(path)


@pytest.mark.parametrize("data", [b"", b"no archive", b"\x93NUMPY"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file.npz"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="drafter file"):
        load_drafter(path)
