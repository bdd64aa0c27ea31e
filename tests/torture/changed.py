"""A copy of the core's text with one fault planted, to be built in place of it."""

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from torture.figure import CORE

FOLDERS = ("layout", "ring", "proxy")


@dataclass(frozen=True)
class Change:
    """One fault: what stands in a file of the core, and what is to stand there.

    Attributes:
        file: "layout/step.c".
        old: A text that stands there exactly once.
        new: What replaces it.
    """

    file: str
    old: str
    new: str


def plant(where: Path, *changes: Change) -> Path:
    """Copies the core's C text and changes it.

    Args:
        where: A directory for the copy; one that is there is replaced.
        changes: What to plant.

    Returns:
        The directory that stands for the package's.

    Raises:
        RuntimeError: The text to be changed is not there once: the fault would not
            be planted, and finding none would say nothing.
    """
    shutil.rmtree(where, ignore_errors=True)
    for folder in FOLDERS:
        (where / folder).mkdir(parents=True)
        for path in (CORE / folder).iterdir():
            if path.suffix in {".h", ".c", ".cdef"}:
                shutil.copyfile(path, where / folder / path.name)
    _apply(where, changes)
    return where


def plant_python(where: Path, *changes: Change) -> Path:
    """Copies the package's Python, its compiled core beside it, and changes it.

    Args:
        where: A directory for the copy; one that is there is replaced.
        changes: What to plant; files are named from the package's folder.

    Returns:
        The directory to put before all others on the path.

    Raises:
        RuntimeError: As ``plant``.
    """
    shutil.rmtree(where, ignore_errors=True)
    package = where / "pp3shm"
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.c", "*.o")
    shutil.copytree(CORE, package, ignore=ignored)
    compiled = importlib.util.find_spec("pp3shm._core")
    if compiled is None or compiled.origin is None:
        raise RuntimeError("pp3shm._core: expected it built, found none")
    (package / Path(compiled.origin).name).symlink_to(compiled.origin)
    _apply(package, changes)
    return where


def _apply(where: Path, changes: tuple[Change, ...]) -> None:
    for change in changes:
        path = where / change.file
        text = path.read_text(encoding="utf-8")
        if text.count(change.old) != 1:
            found = text.count(change.old)
            raise RuntimeError(
                f"{change.file}: expected once, found {found} times: {change.old!r}"
            )
        path.write_text(text.replace(change.old, change.new), encoding="utf-8")
