"""Copies of the core's text with faults planted in it, each behind a switch.

One copy holds every fault of a figure, so that it is compiled once: what an edit puts
in asks `PP3_FAULT(number)`, and the program built over the copy chooses a number.
"""

import shutil
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torture import compiler
from torture.figure import CORE

FOLDERS = ("ring", "layout", "proxy")
_building = threading.Lock()
_built: set[Path] = set()
_SWITCH = "extern int pp3_fault;\n#define PP3_FAULT(n) (pp3_fault == (n))\n"


@dataclass(frozen=True)
class Edit:
    """One change of a file's text.

    Attributes:
        file: Below the package, "ring/ring.h".
        old: What stands there, exactly once.
        new: What stands there instead; it does what `old` did while no fault is on.
    """

    file: str
    old: str
    new: str


def copy(target: Path, edits: Iterable[Edit]) -> Path:
    """Copies the C sources and edits the copy.

    Args:
        target: Where the folders of the core are to stand; what is there is replaced.
        edits: In this order.

    Returns:
        The target, for `-I`.

    Raises:
        RuntimeError: The core's text has changed: an edit does not apply exactly once.
    """
    shutil.rmtree(target, ignore_errors=True)
    for folder in FOLDERS:
        (target / folder).mkdir(parents=True)
        for path in sorted((CORE / folder).glob("*.[ch]")):
            shutil.copy(path, target / folder)
    for edit in edits:
        path = target / edit.file
        text = path.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            count = text.count(edit.old)
            raise RuntimeError(f"{edit.file}: {count} times, not once: {edit.old!r}")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    first = target / "ring" / "atomics.h"
    text = first.read_text(encoding="utf-8")
    mark = "#define PP3_ATOMICS_H\n"
    first.write_text(text.replace(mark, mark + _SWITCH), encoding="utf-8")
    return target


def program(
    where: Path,
    driver: Path,
    parts: Sequence[str],
    edits: Sequence[Edit],
    *flags: str,
    switched: bool,
) -> Path:
    """A driver over the core's own text, or over a copy with the faults in it.

    Args:
        where: To build in.
        driver: Its C file.
        parts: Sources of the core, "ring/ring", that it is linked with.
        edits: The faults.
        flags: For the compiler.
        switched: Over the copy.

    Returns:
        The program; built once in a run, and never taken over from another one.
    """
    target = where / f"{driver.stem}{'-switched' * switched}"
    with _building:
        if target not in _built:
            root = copy(where / "text", edits) if switched else CORE
            sources = [driver, *(root / f"{part}.c" for part in parts)]
            compiler.build(target, sources, *flags, include=root)
            _built.add(target)
    return target
