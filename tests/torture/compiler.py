"""Compiling C programs over the package's own sources."""

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from torture.figure import CORE

BASE = ("-std=c11", "-D_GNU_SOURCE", "-fno-strict-aliasing", "-ffp-contract=off", "-g")
SANITIZED = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREADS = ("-O1", "-fsanitize=thread", "-Wno-tsan")


def parts(*names: str) -> list[Path]:
    """The `.c` files of parts of the core: "ring/ring", "layout/accept", ..."""
    return [CORE / f"{name}.c" for name in names]


def build(
    target: Path,
    sources: Iterable[Path],
    *flags: str,
    compiler: str = "gcc",
    include: Path = CORE,
) -> Path:
    """Compiles and links a program.

    Args:
        target: Where it is to stand.
        sources: C files.
        flags: Added to BASE.
        compiler: Its name.
        include: Where the package's headers stand; a mutated copy may be one.

    Returns:
        The target.

    Raises:
        RuntimeError: The compiler refused; its words.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, *BASE, *flags, f"-I{include}", "-pthread"]
    command += [*map(str, sources), "-o", str(target), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    return target


def missing(*programs: str) -> str:
    """Which of the programs are not on the path, in words, or nothing."""
    absent = [program for program in programs if shutil.which(program) is None]
    return f"needs {', '.join(absent)}" if absent else ""
