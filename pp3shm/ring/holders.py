"""Who holds segments of regions: every process that maps one or has one open.

Read from /proc, so of this PID namespace and of processes that this user may look
into. What is found here is for people: nothing is judged dead by it.
"""

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_PROC = Path("/proc")
_SEGMENT = re.compile(
    rb"(/memfd:|.*/)(pp3shm-[0-9a-f]{32})"
    rb"-(control|slots|pages|failed|acks)( \(deleted\))?"
)
_COMMAND_BYTES = 512

Inode = tuple[int, int]
"""Device and inode: which segment it is, whatever it is called."""


@dataclass(frozen=True, slots=True)
class Name:
    """What a mapping or a descriptor is called.

    Attributes:
        region: what all segments of its region are called, before the segment.
        kind: ``posix`` or ``memfd``.
        segment: ``control``, ``slots``, ...
        linked: False where the name is gone, or there never was one.
    """

    region: str
    kind: str
    segment: str
    linked: bool


@dataclass(slots=True)
class Process:
    """One process, and what it holds.

    Attributes:
        pid: in this namespace; another's by the time it is read, perhaps.
        command: its words, joined by blanks and cut.
        mapped: by inode, whether it may write it there.
        fds: a path in /proc to open each segment that it has open.
        names: what it calls each.
    """

    pid: int
    command: str = ""
    mapped: dict[Inode, bool] = field(default_factory=dict)
    fds: dict[Inode, Path] = field(default_factory=dict)
    names: dict[Inode, Name] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Holder:
    """A process as it holds one region; it may hold others, and otherwise.

    Attributes:
        process: it.
        region: as ``Name.region``.
    """

    process: Process
    region: str

    @property
    def pid(self) -> int:
        """The process's."""
        return self.process.pid

    @property
    def command(self) -> str:
        """The process's."""
        return self.process.command

    @property
    def role(self) -> str:
        """By what is mapped: only an engine may write slots, a rank has none."""
        mapped = {
            name.segment: self.process.mapped[inode]
            for inode, name in self._segments()
            if inode in self.process.mapped
        }
        if "slots" in mapped:
            return "engine" if mapped["slots"] else "proxy"
        return "rank" if mapped else "holder"

    def paths(self, segment: str) -> Iterator[Path]:
        """Where it has a segment open, as its descriptors below /proc."""
        for inode, name in self._segments():
            if name.segment == segment and inode in self.process.fds:
                yield self.process.fds[inode]

    def _segments(self) -> Iterator[tuple[Inode, Name]]:
        for inode, name in self.process.names.items():
            if name.region == self.region:
                yield inode, name


def _name(path: bytes) -> Name | None:
    found = _SEGMENT.fullmatch(path)
    if found is None:
        return None
    kind = "memfd" if found[1] == b"/memfd:" else "posix"
    linked = kind == "posix" and not found[4]
    return Name(found[2].decode(), kind, found[3].decode(), linked)


def _maps(process: Process, folder: Path) -> None:
    with (folder / "maps").open("rb") as lines:
        for line in lines:
            # address perms offset device inode path
            parts = line.rstrip(b"\n").split(None, 5)
            name = _name(parts[5]) if len(parts) == 6 else None
            if name is None:
                continue
            major, _, minor = parts[3].partition(b":")
            inode = os.makedev(int(major, 16), int(minor, 16)), int(parts[4])
            write = parts[1][1:2] == b"w" or process.mapped.get(inode, False)
            process.mapped[inode] = write
            process.names[inode] = name


def _descriptors(process: Process, folder: Path) -> None:
    for entry in os.scandir(folder / "fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            name = _name(os.fsencode(Path(entry.path).readlink()))
            if name is not None:
                found = entry.stat()
                inode = found.st_dev, found.st_ino
                process.fds[inode] = Path(entry.path)
                process.names[inode] = name


def _command(folder: Path) -> str:
    with contextlib.suppress(OSError), (folder / "cmdline").open("rb") as file:
        words = file.read(_COMMAND_BYTES).replace(b"\0", b" ")
        return words.decode("utf-8", "replace").strip()
    return ""


def processes() -> Iterator[Process | None]:
    """Every process that holds a segment; None for each that may not be looked into."""
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        process = Process(int(folder.name))
        try:
            _maps(process, folder)
            _descriptors(process, folder)
        except PermissionError:
            if _command(folder):  # a thread of the kernel has none, and holds nothing
                yield None
            continue
        except OSError:
            continue  # it is gone
        if process.names:
            process.command = _command(folder)
            yield process
