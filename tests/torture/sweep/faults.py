"""The faults of faults.txt, and a copy of the text with all of them."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from torture.figure import CORE

FILE = Path(__file__).resolve().parent / "faults.txt"
SURROUNDINGS = ("watchdog", "helper", "successor", "stopped", "resumed")
SWITCH = "pp3_planted"


@dataclass(frozen=True)
class Run:
    """Which kills are tried.

    Attributes:
        scene: An operation in a state of the ring, by its name in the C text.
        surrounding: Index of SURROUNDINGS.
        sleeper: Whether a rank sleeps in the futex at the moment of the kill.
        first: The first point.
        stride: Every how many-th instruction; 0: at the operation's end alone.
    """

    scene: str
    surrounding: int
    sleeper: bool = False
    first: int = 0
    stride: int = 1

    def arguments(self) -> list[str]:
        """As the program takes them."""
        where = [self.scene, str(self.surrounding), str(int(self.sleeper))]
        return ["run", *where, str(self.first), str(self.stride)]


@dataclass
class Fault:
    """One fault.

    Attributes:
        name: What is wrong.
        number: Of its switch, from 1.
        run: The kills that have to find it.
        edits: File, its lines, what they become.
    """

    name: str
    number: int
    run: Run
    edits: list[tuple[str, list[str], list[str]]] = field(default_factory=list)

    @property
    def control(self) -> bool:
        """True where it is no fault, and the kills have to find nothing."""
        return self.name.startswith("control:")


def _head(line: str, number: int) -> Fault:
    name, scene, around, kills = (part.strip() for part in line.split("|"))
    surrounding, *sleeper = around.split()
    stride = 0 if kills == "end" else int(kills)
    number_of = SURROUNDINGS.index(surrounding)
    return Fault(name, number, Run(scene, number_of, bool(sleeper), stride=stride))


def read() -> list[Fault]:
    """All of faults.txt."""
    faults: list[Fault] = []
    for line in FILE.read_text(encoding="utf-8").splitlines():
        kind, rest = line[:1], line[2:]
        if kind == "=":
            faults.append(_head(rest, len(faults) + 1))
        elif kind == "@":
            faults[-1].edits.append((rest, [], []))
        elif kind and kind in "-+":
            faults[-1].edits[-1]["-+".index(kind) + 1].append(rest)
    return faults


def copy(where: Path) -> Path:
    """A copy of the ring's folder with every fault in it, all switched off.

    Args:
        where: A directory, which gets a folder `ring`.

    Returns:
        The directory.

    Raises:
        RuntimeError: The lines an edit looks for stand there not exactly once.
    """
    folder = where / "ring"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(CORE / "ring", folder, ignore=shutil.ignore_patterns("__pycache__"))
    faults = read()
    untimed = min(f.number for f in faults if "no timed wait" in f.name)
    for fault in faults:
        for name, old, new in fault.edits:
            path = folder / name
            text, lines = path.read_text(encoding="utf-8"), "\n".join(old)
            if text.count(lines) != 1:
                raise RuntimeError(f"{name} has {text.count(lines)} times {lines!r}")
            planted = "\n".join(new).replace("UNTIMED", f"({SWITCH} >= {untimed})")
            planted = planted.replace("PLANTED", f"({SWITCH} == {fault.number})")
            path.write_text(text.replace(lines, planted), encoding="utf-8")
    atomics = folder / "atomics.h"
    text = atomics.read_text(encoding="utf-8")
    first = "#include <errno.h>\n"
    atomics.write_text(text.replace(first, f"extern int {SWITCH};\n{first}"), "utf-8")
    return where
