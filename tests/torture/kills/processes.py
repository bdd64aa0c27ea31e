"""Forking, seeing ends, and one page of words that outlasts whoever writes it."""

import contextlib
import ctypes
import gc
import mmap
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_libc = ctypes.CDLL(None, use_errno=True)
NAMES = (
    "engine kills, proxy a thread",
    "engine kills, proxy a process",
    "proxy kills",
    "worker kills",
    "engine kills, proxy a region",
    "kills of workers at a region",
    "rank kills",
    "rounds",
    "rounds published",
    "rounds expired",
    "rounds orphaned",
    "rounds cancelled",
    "rounds taken by a proxy as it was killed",
    "proxies stopped",
    "of them holding a round",
    "rounds resolved while a proxy was stopped",
    "replies too late",
)


class Board:
    """Numbers by name and one finding, shared with every process forked later."""

    _TEXT_AT, _BYTES = 1024, 4096

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, self._BYTES)
        self._words = memoryview(self._map)[: self._TEXT_AT].cast("Q")

    def add(self, name: str, n: int = 1) -> None:
        """Counts; each name of a board is one thread's."""
        self._words[NAMES.index(name)] += n

    def numbers(self) -> dict[str, int]:
        """What was counted."""
        return {name: self._words[place] for place, name in enumerate(NAMES)}

    def bad(self, text: str) -> None:
        """Keeps the first finding."""
        if not self.finding:
            said = text.encode("ascii", "replace").replace(b"\n", b" | ")
            room = self._BYTES - self._TEXT_AT
            said = said[: room - 1]
            self._map[self._TEXT_AT : self._TEXT_AT + len(said)] = said

    @property
    def finding(self) -> str:
        """The first one, or nothing."""
        return self._map[self._TEXT_AT :].rstrip(b"\0").decode("ascii")

    @property
    def name(self) -> str:
        """What the region's names begin with."""
        return self._map[900:960].rstrip(b"\0").decode("ascii")

    @name.setter
    def name(self, name: str) -> None:
        self._map[900 : 900 + len(name)] = name.encode("ascii")

    def flag(self, place: int, value: int | None = None) -> int:
        """One of a few words for orders and news, behind the numbers."""
        if value is not None:
            self._words[100 + place] = value
        return self._words[100 + place]


def adopt_orphans() -> None:
    """Whatever this process's children leave behind becomes its child."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def fork(main: Callable[[], None], board: Board, keep: Iterable[int] = ()) -> int:
    """A child that runs ``main``, holds no descriptor but 0 to 2 and ``keep``.

    What it raises goes on the board. It dies with its parent.
    """
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        kept = set(keep)
        for fd in open_fds() - kept - {0, 1, 2}:
            with contextlib.suppress(OSError):
                os.close(fd)
        main()
        status = 0
    except BaseException:  # noqa: BLE001  # of any kind: it is what is looked for
        board.bad("".join(traceback.format_exc()[-900:]))
    finally:
        sys.stderr.flush()
        os._exit(status)


def open_fds() -> set[int]:
    """This process's descriptors."""
    return {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208


def holdings() -> dict[str, object]:
    """What has to be the same before and after an engine's life."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    return {
        "descriptors": len(open_fds()),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "mapped segments": maps.count("pp3shm-"),
        "children": _children(),
    }


def _children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def ended(pid: int, limit_s: float) -> bool:
    """True once a child has ended; it is not reaped by this."""
    pidfd = os.pidfd_open(pid)
    try:
        return bool(select.select([pidfd], [], [], limit_s)[0])
    finally:
        os.close(pidfd)


def eventually(condition: Callable[[], bool], limit_s: float) -> bool:
    """Waits for a condition."""
    limit = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.001)
    return True


def parent_of(pid: int) -> int:
    """Of a process; 0 where it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[1])
