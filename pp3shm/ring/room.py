"""How much memory this process's control groups leave for a new region.

Shared memory is charged to the group of whoever allocates it, which a free /dev/shm
says nothing of: beyond the limit the kernel kills a process instead of refusing. So
the limits are read before anything is allocated.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pp3shm.errors import RegionError

log = logging.getLogger("pp3shm.ring")

_PROC = Path("/proc")
_NO_LIMIT = 1 << 62  # version 1 says it by a number near 2**63


class _Names(NamedTuple):
    """What the files of a version are called, and the page cache in its statistics."""

    limit: str
    usage: str
    cache: tuple[str, ...]


_V1 = _Names(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)
_V2 = _Names("memory.max", "memory.current", ("active_file", "inactive_file"))


class Room(NamedTuple):
    """What one control group leaves.

    Attributes:
        group: its folder.
        limit: bytes it may use.
        left: bytes of these that nothing holds but cache, which gives way.
    """

    group: Path
    limit: int
    left: int


def _mounts() -> Iterator[tuple[str, str, Path, _Names]]:
    """Of each hierarchy that may limit memory: its controller, root, mount, names."""
    for line in (_PROC / "self/mountinfo").read_text(encoding="utf-8").splitlines():
        parts, _, kind = line.partition(" - ")
        _, _, _, root, mount, *_ = parts.split(" ")
        name, _, options = kind.split(" ", 2)
        if name == "cgroup2":
            yield "", root, Path(mount), _V2
        elif name == "cgroup" and "memory" in options.rpartition(" ")[2].split(","):
            yield "memory", root, Path(mount), _V1


def _groups() -> Iterator[tuple[Path, _Names]]:
    """This process's groups, each with those above it."""
    mounts = list(_mounts())
    for line in (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller, root, mount, names in mounts:
            if controller not in controllers.split(","):
                continue
            inside = path.removeprefix(root.rstrip("/")).lstrip("/")
            folder = mount / inside
            while folder != mount.parent:
                yield folder, names
                folder = folder.parent


def _number(file: Path) -> int:
    text = file.read_text(encoding="ascii").strip()
    return _NO_LIMIT if text == "max" else int(text)


def _room(folder: Path, names: _Names) -> Room | None:
    limit = _number(folder / names.limit)
    if limit >= _NO_LIMIT:
        return None
    stat = (folder / "memory.stat").read_text(encoding="ascii")
    numbers = dict(line.split(" ", 1) for line in stat.splitlines())
    cache = sum(int(numbers.get(name, 0)) for name in names.cache)
    held = max(0, _number(folder / names.usage) - cache)
    return Room(folder, limit, max(0, limit - held))


def smallest() -> Room | None:
    """The group that leaves least; None: nothing limits, or it cannot be told."""
    found: list[Room] = []
    try:
        for folder, names in _groups():
            try:
                room = _room(folder, names)
            except OSError:
                continue  # the root has no limit, and some are not ours to read
            if room is not None:
                found.append(room)
    except (OSError, ValueError):
        return None
    return min(found, key=lambda room: room.left, default=None)


def _has_swap() -> bool:
    try:
        told = (_PROC / "meminfo").read_text(encoding="ascii")
    except OSError:
        return False
    swap = [line.split() for line in told.splitlines() if line.startswith("SwapTotal:")]
    return bool(swap) and int(swap[0][1]) > 0


def expect_room(size: int) -> None:
    """Refuse a region that the control group has no memory for.

    Where there is swap, what is short may still be had: then it is only logged.

    Args:
        size: bytes of all segments.

    Raises:
        RegionError: naming the group, its limit and what is left of it.
    """
    room = smallest()
    if room is None or size <= room.left:
        return
    found = f"{room.left} bytes left of {room.limit} in control group {room.group}"
    if size <= room.limit and _has_swap():
        log.warning("region of %s bytes: %s; others have to be swapped", size, found)
        return
    raise RegionError("shared memory", f"{size} bytes", found)
