"""Which regions there are on this machine, and the removal of those of the dead.

A region is found by its names in /dev/shm and by whoever holds its segments. Its bytes
may be anybody's, so they are copied, bounded, and checked before they say anything.
Whether the creator of POSIX names lives is told by its lock alone (see
``segments.PosixSegments``); a memfd needs no removal: it goes with its last process.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pp3shm._core import lib
from pp3shm.errors import ConfigError, RegionError
from pp3shm.ring import segments
from pp3shm.ring.holders import Holder, Inode, processes
from pp3shm.ring.record import HEADER_BYTES, SEGMENTS, read_header

ALIVE, DEAD, UNKNOWN = "alive", "dead", "unknown"
_OPEN_STATES = (1, 2)  # claimed, being written
_PREFIX = re.compile(r"(?:/dev/shm)?/?(pp3shm-[0-9a-f]{32})(?:-[a-z]+)?")
_MOST = HEADER_BYTES + lib.PP3_MAX_ROUNDS * lib.PP3_ENTRY_BYTES  # of a control segment
_TRIES = 5
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(slots=True)
class Found:
    """One region, as far as it can be seen.

    Attributes:
        name: ``pp3shm-...`` or ``memfd:INODE`` of its control segment.
        kind: ``posix`` or ``memfd``.
        linked: whether names of it stand in /dev/shm.
        life: ``alive``, ``dead`` or ``unknown``: its creator.
        bytes: of all its segments; 0: not known.
        rounds: rounds it can have in flight; 0: not known.
        open: of these, those not resolved.
        pages: all of its pages.
        quarantined: of these, those a fenced proxy has not let go of, as of the
            engine's last claim; None: not known.
        newest: the largest ticket.
        holders: processes that map it or have it open.
        fault: why its header says nothing, or its segments could not be looked at.
        shape: ``struct pp3_shape``, checked; None: its header says nothing.
    """

    name: str
    kind: str
    linked: bool = False
    life: str = UNKNOWN
    bytes: int = 0
    rounds: int = 0
    open: int = 0
    pages: int = 0
    quarantined: int | None = None
    newest: int = 0
    holders: list[Holder] = field(default_factory=list)
    fault: str | None = None
    shape: Any = None

    @property
    def held_by(self) -> str:
        """``engine 4711, rank 4712``, or why nobody is named."""
        seen = [f"{holder.role} {holder.pid}" for holder in self.holders]
        return ", ".join(seen) or "a process that cannot be seen from here"


@dataclass(slots=True)
class Survey:
    """All that was found.

    Attributes:
        regions: by name.
        unseen: processes that may not be looked into; they could hold more.
    """

    regions: list[Found]
    unseen: int


@contextlib.contextmanager
def opened(path: Path, extra: int = 0) -> Iterator[int]:
    """A descriptor of a regular file, whatever stands there.

    Raises:
        OSError: it cannot be opened, or is none.
    """
    flags = _FLAGS | extra
    if path.parent.name == "fd":  # /proc/PID/fd/N is a link by its nature
        flags &= ~os.O_NOFOLLOW
    fd = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no regular file")
        yield fd
    finally:
        os.close(fd)


def _is_locked(fd: int) -> bool:
    """Whether the creator's lock is held; ours is let go again at once."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(fd, fcntl.LOCK_UN)
    return False


def _read_control(found: Found, fd: int) -> None:
    """What a control segment says; a copy is read, so that it stands still."""
    size = os.fstat(fd).st_size
    control = os.pread(fd, min(size, _MOST), 0)
    try:
        shape = read_header(control)
        if size != shape.bytes[0]:
            raise RegionError("control", f"{shape.bytes[0]} bytes", f"{size} bytes")
    except RegionError as error:
        found.fault = str(error)
        return
    found.shape = shape
    found.bytes = sum(shape.bytes)
    found.rounds, found.pages = shape.rounds, shape.pages
    quarantined = _word(control, lib.PP3_COUNTERS_AT + 8 * lib.PP3_COUNT_QUARANTINED)
    if quarantined <= shape.pages:
        found.quarantined = quarantined
    _read_entries(found, control, shape)


def _read_entries(found: Found, control: bytes, shape: Any) -> None:
    for entry in range(shape.rounds):
        word = _word(control, lib.PP3_ENTRIES_AT + entry * lib.PP3_ENTRY_BYTES)
        ticket, state = word >> 24, word >> 20 & 15
        if ticket and ticket % shape.rounds == entry:
            found.open += state in _OPEN_STATES
            found.newest = max(found.newest, ticket)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


class _Look:
    """One look at everything: regions by the inode of their control segment."""

    def __init__(self) -> None:
        self.regions: dict[Inode, Found] = {}
        self.half: dict[str, Found] = {}
        self.unseen = 0
        self._controls: dict[Inode, Path] = {}
        self._in_dev_shm()
        self._in_proc()
        for inode, found in self.regions.items():
            self._read(inode, found)

    def _in_dev_shm(self) -> None:
        for path in sorted(segments.leftovers()):
            prefix = path.name.rpartition("-")[0]
            if not path.name.endswith("-control"):
                self.half.setdefault(prefix, Found(prefix, "posix", linked=True))
                continue
            with contextlib.suppress(OSError):
                there = path.lstat()
                inode = there.st_dev, there.st_ino
                self._controls[inode] = path
                self.regions[inode] = Found(prefix, "posix", linked=True)
        whole = {found.name for found in self.regions.values()}
        for prefix in whole & self.half.keys():
            del self.half[prefix]
        for found in self.half.values():  # its creator died at the beginning or the end
            found.fault = "control: expected a name, found none"
            found.life = _life_of(found.name)

    def _in_proc(self) -> None:
        for process in processes():
            if process is None:
                self.unseen += 1
                continue
            for inode, name in process.names.items():
                if name.segment != "control":
                    continue
                if inode not in self.regions:
                    memfd = name.kind == "memfd"
                    called = f"memfd:{inode[1]}" if memfd else name.region
                    self.regions[inode] = Found(called, name.kind)
                self.regions[inode].holders.append(Holder(process, name.region))
                if inode in process.fds:
                    self._controls.setdefault(inode, process.fds[inode])

    def _read(self, inode: Inode, found: Found) -> None:
        path = self._controls.get(inode)
        if path is None:
            found.fault = "control: mapped, but nowhere open"
        else:
            try:
                with opened(path) as fd:
                    if found.kind == "posix":
                        found.life = ALIVE if _is_locked(fd) else DEAD
                    _read_control(found, fd)
            except OSError as error:
                found.fault = f"control: {error.strerror}"
        if found.kind == "memfd":
            engine = any(holder.role == "engine" for holder in found.holders)
            found.life = ALIVE if engine else UNKNOWN if self.unseen else DEAD


def survey() -> Survey:
    """Looks at every region of this machine; changes nothing."""
    look = _Look()
    found = [*look.regions.values(), *look.half.values()]
    return Survey(sorted(found, key=lambda one: one.name), look.unseen)


def dead() -> list[str]:
    """Names of regions whose creator is proved dead and that can be removed."""
    return [one.name for one in survey().regions if one.linked and one.life == DEAD]


def _paths(prefix: str) -> list[Path]:
    shm = segments.SHM
    paths = (shm / f"{prefix}-{segment}" for segment in SEGMENTS)
    return [path for path in paths if os.path.lexists(path)]


def _life_of(prefix: str) -> str:
    """By the locks of all the names that there are."""
    try:
        for path in _paths(prefix):
            with opened(path) as fd:
                if _is_locked(fd):
                    return ALIVE
    except OSError:
        return UNKNOWN
    return DEAD


def remove(name: str) -> bool:
    """Takes the names of a dead creator's region away.

    Proof of its death is every lock it held. Whoever still maps the region keeps the
    memory until it goes itself.

    Args:
        name: as ``survey`` says it; a path below /dev/shm will do.

    Returns:
        False: there was nothing of that name.

    Raises:
        ConfigError: no region is called so.
        RegionError: it lives, or may not be looked at, or has no names to remove.
    """
    match = _PREFIX.fullmatch(name)
    if match is None:
        return _remove_memfd(name)
    prefix = match[1]
    removed = _remove_names(prefix)
    if removed is None:  # asked for when nothing of it is open here any more
        seen = [one for one in survey().regions if one.name == prefix]
        who = seen[0].held_by if seen else Found(prefix, "posix").held_by
        raise RegionError(prefix, "a dead creator", f"one that lives: held by {who}")
    return removed


def _remove_names(prefix: str) -> bool | None:
    """Whether there were any; None: a lock of them is held."""
    with contextlib.ExitStack() as locks:
        held: list[tuple[Path, int]] = []
        for path in _paths(prefix):
            try:
                fd = locks.enter_context(opened(path))
                if not _lock(fd):
                    return None
            except FileNotFoundError:
                continue  # somebody else removes it
            except OSError as error:
                raise RegionError(path.name, "a segment", error.strerror) from error
            held.append((path, fd))
        removed = False
        for path, fd in held:
            if segments.still_named(path.name, fd):
                path.unlink()
                removed = True
    return removed


def _lock(fd: int) -> bool:
    """Takes the creator's lock, if it is free; a look at it holds it for a moment."""
    for _ in range(_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.005)
    return False


def _remove_memfd(name: str) -> bool:
    if not name.startswith("memfd:"):
        raise ConfigError("name", "one that `pp3shm ls` prints", repr(name))
    found = [one for one in survey().regions if one.name == name]
    if found:
        who = found[0].held_by
        expected = "a name to remove"
        raise RegionError(name, expected, f"memory that goes with its holders: {who}")
    return False
