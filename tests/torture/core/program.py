"""Builds and runs the C core's test program: `c/*.c` and every C part of the package.

The product's files are compiled as they are, beside the tests, with two aids from the
compiler's command line: `c/step.h` names its crash points, and the linker leads the
calls of `c/faults.c` through a wrapper that can make them fail.
"""

import ast
import hashlib
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from torture.compiler import BASE
from torture.core import known
from torture.figure import CORE, CORES

HERE = Path(__file__).resolve().parent / "c"


def parts() -> tuple[str, ...]:
    """PARTS of the checkout's builder; the installed package has no sources."""
    tree = ast.parse((CORE / "_core_build.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "PARTS":
            return tuple(ast.literal_eval(node.value))
    raise ValueError("_core_build.py: PARTS is not assigned")


# What a benchmark measures with is no part of the core: nothing in use calls it.
TESTED = tuple(part for part in parts() if not part.startswith("bench/"))
WARNINGS = (
    "-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow",
    "-Wno-overlength-strings",
)  # fmt: skip
AARCH64 = "aarch64-linux-gnu-gcc"
QEMU = "qemu-aarch64-static"
PATIENCE = 300  # seconds of one run, then it hangs
_building = threading.RLock()
LAST = re.compile(
    r"^(\d+) tests, (\d+) bad, (\d+) tries, crc path (-?\d+), scan path (-?\d+)$"
)


@dataclass(frozen=True)
class Run:
    """What one run of the program printed.

    Attributes:
        code: Its exit status; None: it did not end in time.
        names: The sentences of its tests, in order.
        bad: The lines of those that failed.
        tests: How many it says it ran.
        tries: How many tries its tests made, one or more each.
        crc_path: Of `enum pp3_crc_path`.
        output: All of it, standard error behind.
    """

    code: int | None
    names: tuple[str, ...]
    bad: tuple[str, ...]
    tests: int
    tries: int
    crc_path: int
    output: str

    @property
    def first(self) -> str:
        """What is wrong, in a line, or nothing."""
        if self.code == 0 and not self.bad and self.tests == len(self.names) > 0:
            return ""
        if self.bad:
            return self.bad[0]
        ended = "hung" if self.code is None else f"status {self.code}"
        last = self.names[-1] if self.names else "the start"
        return f"{ended} after '{last}': {report(self.output)}"


def report(output: str) -> str:
    """The line in which a sanitizer says what it saw, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    said = [line for line in lines if "Sanitizer" in line or "runtime error" in line]
    return (said or lines or [""])[0 if said else -1][:200]


def wrapped() -> list[str]:
    """The calls that faults.c stands before."""
    text = (HERE / "faults.c").read_text(encoding="utf-8")
    return re.findall(r"^PROTOTYPE\([^,]*,\s*(\w+)", text, re.MULTILINE)


def sources(core: Path) -> list[Path]:
    """The C files of the package, in a tree that may be a copy."""
    return [core / f"{part}.c" for part in TESTED]


def _compile(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr[:4000]}")


@dataclass(frozen=True)
class Toolchain:
    """How C becomes a program.

    Attributes:
        flags: Added to BASE.
        compiler: Its name.
        link: Added where it is linked.
        core: The package, or a copy of its C files.
    """

    flags: tuple[str, ...] = ("-O1",)
    compiler: str = "gcc"
    link: tuple[str, ...] = ()
    core: Path = CORE


def _object(path: Path) -> str:
    part = "" if path.name == "known.c" else f"{path.parent.name}-"
    return f"{part}{path.stem}.o"


def _objects(where: Path, files: Iterable[Path], tools: Toolchain) -> None:
    common = [tools.compiler, *BASE, *tools.flags, *WARNINGS, "-pthread"]
    common += [f"-I{tools.core}", f"-I{HERE}", "-include", str(HERE / "step.h")]
    commands = [
        [*common, "-c", str(path), "-o", str(where / _object(path))] for path in files
    ]
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(_compile, commands))


def _link(where: Path, objects: Iterable[Path], tools: Toolchain) -> Path:
    program = where / "core"
    wraps = [f"-Wl,--wrap={name}" for name in wrapped()]
    command = [tools.compiler, *tools.flags, *map(str, objects), "-o", str(program)]
    _compile([*command, "-pthread", *wraps, *tools.link, "-lm"])
    return program


def _stamp(files: Iterable[Path], tools: Toolchain, base: str = "") -> str:
    """Of all that a build depends on."""
    headers = [*HERE.glob("*.h"), *tools.core.rglob("*.h"), *known.VECTORS.glob("*")]
    total = hashlib.sha256(repr((tools, base)).encode())
    for path in sorted({*files, *headers, Path(known.__file__), Path(__file__)}):
        if path.exists():
            total.update(path.name.encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def _fresh(where: Path, stamp: str) -> bool:
    """Whether the directory holds this very build; if not, it is emptied."""
    note = where / "stamp"
    if (where / "core").exists() and note.exists() and note.read_text() == stamp:
        return True
    shutil.rmtree(where, ignore_errors=True)
    where.mkdir(parents=True)
    return False


def build(where: Path, tools: Toolchain) -> Path:
    """Compiles the program, each file by itself, and links it.

    Args:
        where: A directory of this build's own. What stands there is taken where it
            was built from the same text.
        tools: How.

    Returns:
        The program.

    Raises:
        RuntimeError: The compiler refused; its words.
    """
    with _building:
        files = [*sorted(HERE.glob("*.c")), *sources(tools.core)]
        stamp = _stamp(files, tools)
        if _fresh(where, stamp):
            return where / "core"
        files.append(known.write(where / "known.c"))
        _objects(where, files, tools)
        program = _link(where, sorted(where.glob("*.o")), tools)
        (where / "stamp").write_text(stamp)
        return program


def variant(base: Path, where: Path, changed: Iterable[Path], tools: Toolchain) -> Path:
    """The program with some files compiled anew, and the rest as they are.

    Args:
        base: The directory of a finished build.
        where: A directory of the variant's own.
        changed: C files; each replaces the object of its name.
        tools: As the base's, with other flags or another core for these files.

    Returns:
        The program.
    """
    with _building:
        files = list(changed)
        stamp = _stamp(files, tools, (base / "stamp").read_text())
        if _fresh(where, stamp):
            return where / "core"
        _objects(where, files, tools)
        chosen = {path.name: path for path in base.glob("*.o")}
        chosen.update({path.name: path for path in where.glob("*.o")})
        program = _link(where, sorted(chosen.values()), tools)
        (where / "stamp").write_text(stamp)
        return program


def run(
    program: Path,
    *arguments: str,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    patience: float = PATIENCE,
) -> Run:
    """Runs it; a run that hangs is ended, and its code is None.

    Args:
        program: From `build`.
        arguments: Its options.
        before: Words that stand before it, as an emulator.
        environment: Added to this process's.
        patience: Seconds.

    Returns:
        What it printed.
    """
    command = [*before, str(program), *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, **(environment or {})},
        start_new_session=True,
    ) as process:
        try:
            output, errors = process.communicate(timeout=patience)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            # With its children: they hold the pipes, and would outlive it.
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            code = None
    return parsed(output, errors, code)


def parsed(output: str, errors: str, code: int | None) -> Run:
    """The program's lines, read."""
    lines = output.splitlines()
    ran = [line for line in lines if line.startswith(("ok  ", "BAD "))]
    names = tuple(re.sub(r" \(\d+\)$|: [^:]*:\d+: .*$", "", line[4:]) for line in ran)
    bad = tuple(line for line in ran if line.startswith("BAD "))
    last = LAST.match(lines[-1]) if lines else None
    tests, _, tries, crc_path, _ = map(int, last.groups()) if last else (0, 0, 0, -1, 0)
    return Run(code, names, bad, tests, tests + tries, crc_path, output + errors)


def copy(target: Path) -> Path:
    """The package's C files, to be changed.

    Args:
        target: A directory; what stands there is replaced.

    Returns:
        It.
    """
    shutil.rmtree(target, ignore_errors=True)
    for path in CORE.rglob("*.[ch]"):
        to = target / path.relative_to(CORE)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    return target


def replace(core: Path, file: str, old: str, new: str) -> None:
    """Changes one place of a copy.

    Args:
        core: From `copy`.
        file: As "ring/words.h".
        old: Text that is there exactly once.
        new: What it becomes.

    Raises:
        ValueError: It is not there exactly once.
    """
    path = core / file
    text = path.read_text(encoding="utf-8")
    if text.count(old) != 1:
        message = f"{text.count(old)} places in {file} for: {old}"
        raise ValueError(message)
    path.write_text(text.replace(old, new), encoding="utf-8")
