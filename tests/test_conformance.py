"""The conformance runner: every handed case, and files that are not as they should."""

import copy
import json
import os
import random
from pathlib import Path

import pytest

from pp3shm.conformance.frames import FORMATS
from pp3shm.conformance.runner import Failure, run

VECTORS = Path(__file__).parent / "vectors"


def cases(stem):
    return json.loads((VECTORS / f"{stem}.json").read_bytes())


@pytest.fixture
def folder(tmp_path):
    """Writes files beside a true frames.json and gives the report's files by name."""

    def write(**files):
        for name, content in ({"frames": cases("frames")} | files).items():
            text = (
                content if isinstance(content, bytes) else json.dumps(content).encode()
            )
            (tmp_path / f"{name}.json").write_bytes(text)
        report = run(tmp_path, FORMATS)
        return report, {file.name: file for file in report.files}

    return write


@pytest.mark.parametrize("stem", sorted(FORMATS))
def test_every_case_of_a_handed_file_passes(stem, folder):
    """By the reference and by C, where there are both."""
    report, files = folder(**{stem: cases(stem)})
    file = files[f"{stem}.json"]
    assert file.failures == []
    assert len(cases(stem)["cases"]) == file.passed
    assert f"{stem}.json: {file.passed} passed, 0 failed" in list(report.lines())
    assert report.ok


def flipped(text):
    """Hex with its last digit changed."""
    return text[:-1] + ("0" if text[-1] != "0" else "1")


@pytest.mark.parametrize(
    ("stem", "key"),
    [
        ("bad_replies", "reply"), ("control", "frame"), ("frames", "step"),
        ("frames", "reply"), ("hello", "frame"), ("hello", "layout_id"),
        ("keyproof", "proxy_first"), ("keyproof", "worker"),
        ("keyproof", "proxy_second"), ("pages", "page"),
    ],
)  # fmt: skip
def test_a_wrong_expectation_fails_its_case_and_no_other(stem, key, folder):
    """The runner believes no file: one changed digit is found, expected and found."""
    content = cases(stem)
    chosen = next(i for i, case in enumerate(content["cases"]) if key in case)
    if stem == "bad_replies":  # its last case: an accepted frame that must not be
        base = next(c for c in cases("frames")["cases"] if c["name"] == "B4 depth 5")
        content["cases"][chosen][key] = base["reply"]
    else:
        content["cases"][chosen][key] = flipped(content["cases"][chosen][key])
    report, files = folder(**{stem: content})
    file = files[f"{stem}.json"]
    assert (len(content["cases"]) - 1, 1) == (file.passed, len(file.failures))
    assert file.failures[0].case.startswith(f"case {chosen}")
    assert file.failures[0].expected != file.failures[0].found
    assert not report.ok


def test_a_wrong_reason_offset_or_digest_fails_its_case(folder):
    """Expected and found are told as they are."""
    bad, layouts, prefix = (cases(s) for s in ("bad_replies", "layouts", "prefix"))
    bad["cases"][0]["reason"] = "crc"
    layouts["cases"][3]["offsets"]["q"] += 4
    prefix["cases"][1]["digest"] += 1
    report, files = folder(bad_replies=bad, layouts=layouts, prefix=prefix)
    failure = files["bad_replies.json"].failures[0]
    assert (
        failure.place,
        failure.expected,
        failure.found,
    ) == ("reason", "crc", "frame")
    assert "q" in files["layouts.json"].failures[0].expected
    assert len(files["prefix.json"].failures) == 1
    assert not report.ok


def test_an_unknown_empty_or_unreadable_file_fails(folder, tmp_path):
    """Nothing that stands in the directory is passed over in silence."""
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "folder.json").mkdir()
    os.mkfifo(tmp_path / "prefix.json.fifo")
    (tmp_path / ".hidden").write_text("x")
    report, files = folder(
        unknown={"cases": [{}]}, prefix={"cases": []}, hello=b"", pages=b"{",
        layouts=b"[" * 100_000, keyproof=[], control={"cases": {}},
        bad_replies=b"\xff\xfe",
    )  # fmt: skip
    failed = {name for name, file in files.items() if file.failures}
    assert failed == set(files) - {"frames.json"}
    assert len(files) == 12
    assert all(file.passed == 0 for name, file in files.items() if name in failed)
    assert not report.ok
    assert all(line.isprintable() for line in report.lines())


def test_a_missing_or_empty_directory_fails(tmp_path):
    """No case has run, so none has passed."""
    for path in (tmp_path, tmp_path / "none", tmp_path / "nul\0", __file__):
        report = run(path, FORMATS)
        assert not report.ok
        assert len(list(report.lines())) == 2


WRONG = (
    None,
    True,
    -1,
    2**80,
    1.5,
    "zz",
    "\x1b[2J\ud800",
    [],
    {},
    [[]],
    "0" * 9,
    1e300,
)


@pytest.mark.parametrize("stem", sorted(FORMATS))
def test_malformed_content_fails_its_case_and_nothing_more(stem, folder):
    """Every key missing or of a wrong type, in rows too; one printable line each."""
    rng = random.Random(3)
    content = cases(stem)
    good = content["cases"][0]
    broken = [None, 5, [], "x"]
    for key in good:
        broken.append({k: v for k, v in good.items() if k != key})
        broken += [good | {key: wrong} for wrong in WRONG if wrong != good[key]]
    broken += [inside(good, rng) for _ in range(60)]
    spare = {"name", "why", "reply_rows", "step_rows"}  # titles, and parts of them
    report, files = folder(**{stem: {"cases": [*broken, good]}})
    file = files[f"{stem}.json"]
    assert len(broken) + 1 == file.passed + len(file.failures)
    assert len(file.failures) > len(broken) // 2
    assert not report.ok
    for line in report.lines():
        assert line.isprintable()
        assert len(line) < 400
    assert all(isinstance(failure, Failure) for failure in file.failures)
    for index, case in enumerate(broken):
        if isinstance(case, dict) and set(good) - set(case) - spare:
            titles = [failure.case for failure in file.failures]
            assert any(title.split(" (")[0] == f"case {index}" for title in titles)


def inside(good, rng):
    """A case with one value replaced, at any depth."""
    case = copy.deepcopy(good)
    node = case
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        key = rng.choice(keys)
        if isinstance(node[key], (dict, list)) and node[key] and rng.random() < 0.8:
            node = node[key]
            continue
        node[key] = rng.choice(WRONG)
        return case


def test_a_base_that_is_nowhere_fails_its_case(folder, tmp_path):
    """The name is in the error; so is a frames.json that is missing."""
    pages = cases("pages")
    pages["cases"][0]["base"] = "B9 depth 9"
    _, files = folder(pages=pages)
    assert "B9 depth 9" in str(files["pages.json"].failures[0])
    (tmp_path / "frames.json").unlink()
    report = run(tmp_path, FORMATS)
    assert [len(file.failures) for file in report.files] == [6]
