"""``pp3shm trace``: the rounds of a region of another process, read from outside."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from pp3shm.errors import ConfigError, RegionError
from pp3shm.ring import segments
from pp3shm.ring.flights import epoch_of
from pp3shm.ring.survey import Found, opened, survey
from pp3shm.tracing import read_rounds, write_trace


def write_last(path: str, name: str | None, pid: int | None, last: int) -> str:
    """Write the last rounds of one region.

    Args:
        path: the file.
        name: of the region, as ``pp3shm ls`` prints it; None: of ``pid``, or the only
            one there is.
        pid: a process that holds it.
        last: at most so many rounds.

    Returns:
        What was written, in a line.

    Raises:
        ConfigError: no such region, or which one is not said.
        RegionError: nothing can be read of it.
        OSError: the file cannot be written.
    """
    found = _chosen(name, pid)
    with _acks_of(found) as fd:
        rounds = read_rounds(fd, found.shape)
    number = write_trace(path, rounds, found.shape, found.name, last)
    return (
        f"{path}: {number} rounds of {found.name}, {len(rounds)} ranks; "
        "to be opened in ui.perfetto.dev or chrome://tracing"
    )


def _chosen(name: str | None, pid: int | None) -> Found:
    there = survey().regions
    what: object = "none"
    place = "region"
    if name is not None:
        wanted = name.removeprefix("/dev/shm/").lstrip("/")  # noqa: S108 - a prefix
        there = [one for one in there if one.name == wanted]
        what = repr(name)
    elif pid is not None:
        there = [one for one in there if pid in (held.pid for held in one.holders)]
        place, what = "pid", pid
    if len(there) == 1:
        return there[0]
    names = ", ".join(one.name for one in there)
    expected = "a region that `pp3shm ls` lists, and one alone"
    raise ConfigError(place, expected, names or what)


@contextlib.contextmanager
def _acks_of(found: Found) -> Iterator[int]:
    """A descriptor of the region's acks, for reading.

    Names are anybody's to give: what belongs to this region says so itself, by its
    epoch.

    Raises:
        RegionError: its header says nothing, or nobody has its acks open.
    """
    if found.shape is None:
        raise RegionError(found.name, "a header that can be read", found.fault)
    size, epoch = found.shape.bytes[4], bytes(found.shape.epoch)
    for path in _paths(found):
        with contextlib.ExitStack() as stack:
            try:
                fd = stack.enter_context(opened(path))
                if path.stat().st_size != size:
                    continue
                there = epoch_of(fd, found.shape)
            except (OSError, RegionError):
                continue  # closed meanwhile, or another region's
            if there == epoch:
                yield fd
                return
    raise RegionError(found.name, "a holder with its acks open", found.held_by)


def _paths(found: Found) -> Iterator[Path]:
    if found.kind == "posix":
        yield segments.SHM / f"{found.name}-acks"
    for holder in found.holders:
        yield from holder.paths("acks")
