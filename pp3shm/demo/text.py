"""The text the demo learns from: CPython's own reference, or a file of the user's.

A text is cut into chunks at paragraph ends, and every tenth chunk is held out, so that
the same text always gives the same two parts. Paragraphs that the reference repeats
under several topics are kept once: otherwise much of what is held out would stand in
the other part too, and its perplexity would flatter the models.
"""

import importlib
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from pp3shm.errors import ConfigError

MIN_CHARACTERS = 4096
MAX_BYTES = 4 * 2**20  # takes the models ten seconds and a gigabyte
HELD_OUT_EVERY = 10

_REFERENCE = "pydoc_data.topics"
_BROKEN_AT = 45  # the renderer breaks at 70 columns; a long word may leave this much

# 512 to 2048 characters up to a blank line; where none comes, 2048 characters.
_CHUNK = re.compile(r"(?s).{512,2048}?(?:\n\n|\Z)|.{1,2048}")

# A rule under a heading, or a line of a table drawn with characters.
_DRAWN = re.compile(
    r"^[ \t]*(?:([=*\-~^\"'#+.])\1{2,}|[+|][-=+| ]{3,}|\|.*\|)[ \t]*$\n?",
    re.MULTILINE,
)
_EMPHASIS = re.compile(
    r"(?<![\w*\"])(\*{1,2})(?=[^\s*])([^*\n\"]+?)(?<=[^\s*])\1(?![\w*\"])"
)
_NOT_PROSE = re.compile(r"::=|\||\S {3,}\S|>>>")


@dataclass(frozen=True, slots=True)
class SplitText:
    """One text in two parts that share no chunk.

    Attributes:
        train: what the vocabulary and the models are estimated from.
        held_out: what they are judged on; prompts are taken from it.
    """

    train: str
    held_out: str


def load_text(path: str | Path | None = None) -> str:
    r"""Read the text of a file, or the reference text of CPython.

    Args:
        path: a UTF-8 file, or None for the reference text.

    Returns:
        The text, with ``\n`` as its only line end.

    Raises:
        ConfigError: the file is missing, unreadable, not a regular file, binary, empty,
            too small or too large; or this Python carries no reference text.
    """
    if path is None:
        return _large_enough(_reference_text(), f"text {_REFERENCE}")
    place = f"text {str(path)!r}"
    text = _decoded(_bytes_of(Path(path), place), place)
    return _large_enough(text.replace("\r\n", "\n").replace("\r", "\n"), place)


def split_text(text: str) -> SplitText:
    """Hold out every tenth chunk of a text.

    Args:
        text: any text that :func:`load_text` returned.

    Returns:
        Both parts; together they are the whole text, and the same text always gives
        the same parts.
    """
    chunks = _CHUNK.findall(text)
    last = HELD_OUT_EVERY - 1
    kept = [c for i, c in enumerate(chunks) if i % HELD_OUT_EVERY != last]
    held = [c for i, c in enumerate(chunks) if i % HELD_OUT_EVERY == last]
    if not held:  # fewer than ten chunks: the last one, there are always two
        held, kept = kept[-1:], kept[:-1]
    return SplitText("".join(kept), "".join(held))


def strip_markup(text: str) -> str:
    """Take the typography of rendered reStructuredText off a text.

    Rules under headings go, and tables drawn with characters, and the asterisks of
    emphasis; lines broken by the renderer are joined. Code, quotes, bullets and
    indentation stay.

    Args:
        text: one topic as CPython carries it.

    Returns:
        The text without them.
    """
    text = _EMPHASIS.sub(r"\2", _DRAWN.sub("", text))
    return "\n\n".join(_joined(p) for p in re.split(r"\n(?:[ \t]*\n)+", text))


def _joined(paragraph: str) -> str:
    """Join the lines of a paragraph that was broken to a width.

    Only prose is: every line but the last is long, all but the first are indented
    alike, and the first is too, or opens a bullet whose text hangs below it.
    """
    lines = paragraph.strip("\n").split("\n")
    indents = [len(line) - len(line.lstrip()) for line in lines]
    hangs = lines[0].lstrip().startswith(("* ", "1. ", "2. ", "3. ", "[", "Note: "))
    if (
        len(lines) == 1
        or _NOT_PROSE.search(paragraph)
        or min(map(len, lines[:-1])) < _BROKEN_AT
        or len(set(indents[1:])) != 1
        or (indents[0] != indents[1] and not hangs)
    ):
        return paragraph.strip("\n")
    return " ".join([lines[0], *(line.strip() for line in lines[1:])])


def _reference_text() -> str:
    """Every topic of CPython's reference in the order of its name, repeats left out."""
    try:
        topics: dict[str, str] = importlib.import_module(_REFERENCE).topics
    except ImportError as error:
        raise ConfigError(
            "text", f"{_REFERENCE} in this Python, or --text FILE", "neither"
        ) from error
    seen: set[str] = set()
    paragraphs = []
    for name in sorted(topics):
        for paragraph in strip_markup(topics[name]).split("\n\n"):
            key = " ".join(paragraph.split())
            if key and key not in seen:
                seen.add(key)
                paragraphs.append(paragraph.strip("\n").rstrip())
    return "\n\n".join(paragraphs) + "\n"


def _bytes_of(path: Path, place: str) -> bytes:
    """Read a regular file of bounded size; a pipe or device could block or not end."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a special file"
            raise ConfigError(place, "a regular file", kind)
        if status.st_size > MAX_BYTES:
            raise ConfigError(
                place, f"at most {MAX_BYTES} bytes", f"{status.st_size} bytes"
            )
        return path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(place, "a readable file", reason) from error


def _decoded(data: bytes, place: str) -> str:
    """Decode UTF-8 without NUL: what else there is, is binary."""
    if not data:
        raise ConfigError(place, f"at least {MIN_CHARACTERS} characters", "empty file")
    if (at := data.find(0)) >= 0:
        raise ConfigError(place, "text without NUL bytes", f"a NUL at byte {at}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise ConfigError(place, "UTF-8 text", bad) from error


def _large_enough(text: str, place: str) -> str:
    """Refuse a text that no model can be estimated from."""
    if (size := len(text.strip())) < MIN_CHARACTERS:
        raise ConfigError(
            place, f"at least {MIN_CHARACTERS} characters", f"{size} characters"
        )
    return text
