"""Runs a directory of known-answer files and reports every case that differs.

A file is ``{"about": ..., "cases": [...]}``; its stem names its format. Files come
from others: whatever stands in a case can fail that case, and nothing more.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from pp3shm.conformance import MODULES
from pp3shm.errors import Mismatch, Pp3Error, ProfileError
from pp3shm.layout.record import shown

MOST_FILE_BYTES = 2**26
_CONTEXT_CHARACTERS = 24  # shown on each side of a difference in a long text

Case = dict[str, Any]


class Context:
    """What a case may need beside itself: other files of its directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._frames: list[Case] | None = None

    def frame(self, name: str) -> Case:
        """The case of ``frames.json`` in the same directory that has this name.

        Raises:
            Mismatch: there is no such file or case.
        """
        if self._frames is None:
            self._frames = read_cases(self.directory / "frames.json")
        for case in self._frames:
            if isinstance(case, dict) and case.get("name") == name:
                return case
        raise Mismatch("base", "the name of a frame in frames.json", shown(name))


Check = Callable[[Case, Context], None]


@dataclass(frozen=True, slots=True)
class Failure:
    """One case, or a whole file, that is not as it says."""

    case: str
    place: str
    expected: str
    found: str

    def __str__(self) -> str:
        """``case 3 (NaN): reason: expected probability, found mass``."""
        return (
            f"{self.case}: {self.place}: expected {self.expected}, found {self.found}"
        )


@dataclass(slots=True)
class FileReport:
    """What became of one file."""

    name: str
    passed: int = 0
    failures: list[Failure] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """What became of all files."""

    files: list[FileReport] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there was something to check, and all of it passed."""
        return bool(self.files) and not any(file.failures for file in self.files)

    def lines(self) -> Iterator[str]:
        """Per file ``N passed, M failed``, then each failing case."""
        for file in self.files:
            yield f"{file.name}: {file.passed} passed, {len(file.failures)} failed"
            for failure in file.failures:
                yield f"  {failure}"


def load_formats() -> dict[str, Check]:
    """Every format this library knows, from all of ``MODULES``.

    Raises:
        Mismatch: two modules claim one format.
    """
    formats: dict[str, Check] = {}
    for name in MODULES:
        for stem, check in import_module(name).FORMATS.items():
            if stem in formats:
                raise Mismatch(f"{name}.FORMATS", "one check a format", stem)
            formats[stem] = check
    return formats


def run(directory: str | Path, formats: Mapping[str, Check] | None = None) -> Report:
    """Runs every file of a directory, in the order of their names.

    Names that begin with a dot are passed over. Anything else that is no known
    ``.json`` file is reported as failed: cases nobody ran must not look like passed.

    Args:
        directory: of known-answer files.
        formats: stem -> check; by default all that the library has.
    """
    path = Path(directory)
    known = load_formats() if formats is None else formats
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except (OSError, ValueError) as error:
        return _failed(
            path.name or str(path), "a readable directory", shown(str(error))
        )
    report = Report()
    context = Context(path)
    for name in names:
        if not name.startswith("."):
            report.files.append(_run_file(path / name, known, context))
    if not report.files:
        return _failed(path.name or str(path), "known-answer files", "none")
    return report


def _failed(name: str, expected: str, found: object) -> Report:
    failure = Failure("directory", "files", expected, str(found))
    return Report([FileReport(str(shown(name)), failures=[failure])])


def _run_file(path: Path, formats: Mapping[str, Check], context: Context) -> FileReport:
    report = FileReport(str(shown(path.name)))
    try:
        check = _check_of(path, formats)
        cases = read_cases(path)
    except Mismatch as error:
        report.failures.append(_failure("file", error))
        return report
    for index, case in enumerate(cases):
        failure = _run_case(_title(index, case), case, check, context)
        if failure is None:
            report.passed += 1
        else:
            report.failures.append(failure)
    return report


def _check_of(path: Path, formats: Mapping[str, Check]) -> Check:
    if path.suffix != ".json" or path.stem not in formats:
        known = ", ".join(sorted(formats))
        raise Mismatch("name", f"one of {known}, .json", shown(path.name))
    return formats[path.stem]


def _run_case(
    title: str, case: object, check: Check, context: Context
) -> Failure | None:
    try:
        if not isinstance(case, dict):
            raise Mismatch("case", "an object", type(case).__name__)
        with np.errstate(all="ignore"):  # absurd numbers fail the case, quietly
            check(case, context)
    except Exception as error:  # noqa: BLE001  # a case may hold anything at all
        return _failure(title, error)
    return None


def _failure(title: str, error: Exception) -> Failure:
    if isinstance(error, Mismatch):
        place, expected, found = error.place, error.expected, error.found
    elif isinstance(error, ProfileError):
        place, expected, found = error.field, error.ours, error.theirs
    elif isinstance(error, KeyError):
        place, expected, found = "case", f"a value for {error}", "none"
    elif isinstance(error, Pp3Error):
        place, expected, found = "case", "an answer", shown(str(error))
    else:
        kind = type(error).__name__
        place, expected = "case", "content of its format"
        found = shown(f"{kind}: {error}")
    return Failure(title, place, *_difference(expected, found))


def _difference(expected: object, found: object) -> tuple[str, str]:
    """Both sides as short text; long ones around the first character that differs."""
    ours, theirs = (
        ascii(side) if not isinstance(side, str) else side for side in (expected, found)
    )
    if max(len(ours), len(theirs)) <= 4 * _CONTEXT_CHARACTERS:
        return str(shown(ours)), str(shown(theirs))
    at = 0
    while at < min(len(ours), len(theirs)) and ours[at] == theirs[at]:
        at += 1
    return _around(ours, at), _around(theirs, at)


def _around(text: str, at: int) -> str:
    cut = text[max(at - _CONTEXT_CHARACTERS, 0) : at + _CONTEXT_CHARACTERS]
    return f"...{shown(cut)}... (character {at} of {len(text)})"


def _title(index: int, case: object) -> str:
    title = f"case {index}"
    names = (
        [str(case[key]) for key in ("name", "kind", "base", "why") if key in case]
        if isinstance(case, dict)
        else []
    )
    return f"{title} ({shown(', '.join(names))})" if names else title


def read_cases(path: Path) -> list[Any]:
    """The cases of a file.

    Raises:
        Mismatch: unreadable, too long, no JSON, or without a case.
    """
    try:
        if not path.is_file():
            raise Mismatch(path.name, "a file", "none")
        with path.open("rb") as file:
            data = file.read(MOST_FILE_BYTES + 1)
        if len(data) > MOST_FILE_BYTES:
            raise Mismatch(path.name, f"at most {MOST_FILE_BYTES} bytes", "more")
        content = json.loads(data)
    except (OSError, ValueError, RecursionError) as error:
        raise Mismatch(path.name, "a readable JSON file", shown(str(error))) from None
    cases = content.get("cases") if isinstance(content, dict) else None
    if not isinstance(cases, list) or not cases:
        raise Mismatch(path.name, '{"cases": [...]} with at least one case', "none")
    return cases
