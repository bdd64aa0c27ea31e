"""The demo's text: what is read, what is refused, and how it is split."""

import errno
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.demo.text import (
    MAX_BYTES,
    MIN_CHARACTERS,
    load_text,
    split_text,
    strip_markup,
)
from pp3shm.errors import ConfigError

TEXT = "The quick brown fox jumps over the lazy dog.\n\n" * 200


def refusal(path: Path | None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_text(path)
    assert "\n" not in str(caught.value)
    if path is not None:
        assert str(path) in str(caught.value)
    return caught.value


def test_reference_text_is_large_and_always_the_same() -> None:
    text = load_text()
    assert len(text) > 200_000
    assert load_text() == text
    assert "Assignment statements\n" in text
    assert "\n****" not in text


def test_no_paragraph_of_the_reference_text_stands_in_both_parts() -> None:
    split = split_text(load_text())
    parts = [
        {" ".join(p.split()) for p in part.split("\n\n") if len(p) > 80}
        for part in (split.train, split.held_out)
    ]
    assert parts[1]
    assert not parts[0] & parts[1]


def test_a_python_without_reference_text_is_told_to_give_a_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    assert "--text" in str(refusal(None))


def test_a_file_is_read_with_one_kind_of_line_end(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert load_text(path) == TEXT


@pytest.mark.parametrize(
    ("data", "found"),
    [
        pytest.param(b"", "empty", id="empty"),
        pytest.param(b"short", "5 characters", id="too small"),
        pytest.param(b" \n" * MIN_CHARACTERS, "0 characters", id="blank"),
        pytest.param(TEXT.encode() + b"\0", f"byte {len(TEXT)}", id="NUL"),
        pytest.param(TEXT.encode() + b"\xff\xfe", "0xff", id="not UTF-8"),
        pytest.param(b"\x7fELF" + bytes(range(256)) * 40, "NUL", id="binary"),
        pytest.param(b"x" * (MAX_BYTES + 1), str(MAX_BYTES + 1), id="too large"),
    ],
)
def test_an_unusable_file_is_refused_in_one_line(
    tmp_path: Path, data: bytes, found: str
) -> None:
    path = tmp_path / "text"
    path.write_bytes(data)
    assert found in str(refusal(path).found)


def test_what_is_no_file_is_refused_in_one_line(tmp_path: Path) -> None:
    assert "No such file" in str(refusal(tmp_path / "missing").found)
    assert "directory" in str(refusal(tmp_path).found)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)  # opening it would wait for a writer
    assert "special" in str(refusal(fifo).found)
    assert "special" in str(refusal(Path("/dev/zero")).found)
    with pytest.raises(ConfigError):
        load_text("a\0b")


def test_an_unreadable_file_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "text"
    path.write_text(TEXT)

    def refuse(_path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read every file
    assert "denied" in str(refusal(path).found)


@given(st.text(min_size=1, alphabet="ab \n").map(lambda t: t * 4200))
def test_every_character_of_a_text_goes_to_exactly_one_part(text: str) -> None:
    split = split_text(text)
    assert len(split.train) + len(split.held_out) == len(text)
    assert split.train
    assert split.held_out


def test_about_a_tenth_is_held_out() -> None:
    split = split_text(load_text())
    share = len(split.held_out) / (len(split.train) + len(split.held_out))
    assert 0.08 < share < 0.12


@pytest.mark.parametrize(
    ("marked", "plain"),
    [
        ("Title\n*****\n\nText", "Title\n\nText"),
        ("an *emphasised word* and **bold**.", "an emphasised word and bold."),
        ("x = 2 * y * z", "x = 2 * y * z"),
        ('"*args" and "**kwargs"', '"*args" and "**kwargs"'),
        ("Above\n\n+---+---+\n| a | b |\n+===+===+\n\nBelow", "Above\n\nBelow"),
        ('rule ::= "a"\n         | "b"', 'rule ::= "a"\n         | "b"'),
        (
            "This line was broken by whoever rendered the page\nand goes on here.",
            "This line was broken by whoever rendered the page and goes on here.",
        ),
        ("if a:\n    b()\nelse:\n    c()", "if a:\n    b()\nelse:\n    c()"),
    ],
)
def test_only_the_typography_is_stripped(marked: str, plain: str) -> None:
    assert strip_markup(marked) == plain
