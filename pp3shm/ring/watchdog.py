"""The watchdog: a C thread that keeps deadlines, sees deaths, and runs one proxy.

Python only starts and stops it: it holds no lock that the watchdog could wait for.
"""

import contextlib
import errno
import functools
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Self

from pp3shm._core import ffi, lib
from pp3shm.errors import RingError
from pp3shm.ring.record import PROXY
from pp3shm.ring.ring import EngineEnd

_UNKNOWN = -(2**31)


class WatchState(IntEnum):
    """What the watchdog does about its proxy."""

    IDLE = 0
    """It has none to start."""
    RUNS = 1
    WAITS = 2
    """None runs; one will be started, perhaps after a pause."""
    STOPPED = 3


class WatchStats(NamedTuple):
    """What a watchdog has seen.

    Attributes:
        state: about its proxy.
        pid: of the proxy that runs, or 0.
        owner: its owner id, or 0.
        starts: processes started.
        restarts: of these, those after the first.
        deaths: processes seen dead.
        last_status: exit code of the last one, or -signal; None: none died yet, or
            somebody else reaped it.
        last_error: why the last start failed, or None.
        ticks: turns of the thread.
    """

    state: WatchState
    pid: int
    owner: int
    starts: int
    restarts: int
    deaths: int
    last_status: int | None
    last_error: str | None
    ticks: int

    def counts(self) -> dict[str, int]:
        """Of the process that is watched, as ``Engine.stats`` names them."""
        return {
            "proxy_pid": self.pid,
            "proxy_starts": self.starts,
            "proxy_deaths": self.deaths,
        }


class Watchdog:
    """Fails rounds at their deadline, and the rounds of dead owners; keeps a proxy.

    The proxy is a process whose descriptor 3 is a socket: it sends the attach record
    and descriptors (see ``handover.attach_proxy``), and closes with the engine. Before
    another is started the one before it is dead, if need be by SIGKILL.

    Args:
        engine: the engine's end; it may not be closed before the watchdog is stopped.
        argv: what to start, the executable with its path first; None starts nothing.
        env: its environment; this process's if None.
        config: bytes sent along with the record, for the proxy itself.
        grace_ns: from SIGTERM to SIGKILL when it is stopped.

    Raises:
        RingError: the thread cannot be had.
    """

    def __init__(
        self,
        engine: EngineEnd,
        argv: Sequence[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        config: bytes = b"",
        grace_ns: int = 2_000_000_000,
    ) -> None:
        """Starts the thread, and with it the proxy."""
        self._lock = threading.Lock()
        handle = engine.handle
        plan = ffi.new("struct pp3_plan *")
        plan.grace_ns = grace_ns
        keep: list[Any] = []
        fds: list[int] = []
        if argv is not None:
            environment = os.environ if env is None else env
            plan.argv = _strings(argv, keep)
            plan.envp = _strings([f"{k}={v}" for k, v in environment.items()], keep)
            record = engine.region.record_for(PROXY) + config
            plan.record = keep_alive = ffi.from_buffer(record)
            keep.append(keep_alive)
            plan.record_bytes = len(record)
            fds = list(engine.region.share(PROXY).values())
            try:
                fds.append(os.dup(lib.pp3_bell_fd(handle)))
            except OSError:
                _close(fds)
                raise
            plan.n_fds = len(fds)
            plan.fds[0 : len(fds)] = fds
        error = ffi.new("int *")
        watchdog = lib.pp3_watchdog_start(handle, plan, error)
        if watchdog == ffi.NULL:
            _close(fds)
            raise RingError("watchdog", "a thread", os.strerror(error[0]))
        self._watchdog = watchdog
        # holds the ring: its end may be closed while the thread still runs
        self._finalizer = weakref.finalize(self, _stop, watchdog, handle, fds)
        self._fds = fds
        engine.pid_of_owner = functools.partial(_pid_of, weakref.ref(self))
        _RUNNING.add(self)

    def stats(self) -> WatchStats:
        """What it has seen so far; after ``stop``: what it had seen."""
        with self._lock:
            if self._finalizer.alive:
                self._last = self._read()
            return self._last

    def _read(self) -> WatchStats:
        seen = ffi.new("struct pp3_watch *")
        lib.pp3_watchdog_stats(self._watchdog, seen)
        return WatchStats(
            state=WatchState(seen.state),
            pid=seen.pid,
            owner=seen.owner,
            starts=seen.starts,
            restarts=max(0, seen.starts - 1),
            deaths=seen.deaths,
            last_status=None if seen.last_status == _UNKNOWN else seen.last_status,
            last_error=os.strerror(seen.last_error) if seen.last_error else None,
            ticks=seen.ticks,
        )

    def adopt(self, pidfd: int, pid: int, owner: int) -> bool:
        """Watches a proxy that somebody else started, before it gets the region.

        Args:
            pidfd: of its process; copied.
            pid: for people.
            owner: its owner id, whose rounds fail when it dies.

        Returns:
            False: one is watched, whose death has perhaps not been seen yet.

        Raises:
            RingError: it cannot be watched, or this is a forked child.
        """
        with self._lock:
            if not self._finalizer.alive:
                raise RingError("watchdog", "a running one", "a stopped one")
            code = lib.pp3_watchdog_adopt(self._watchdog, pidfd, pid, owner)
        if code == -errno.EBUSY:
            return False
        if code < 0:
            raise RingError("proxy", "a process to watch", os.strerror(-code))
        return True

    def forget(self, owner: int) -> None:
        """Watches an adopted one no more: it has let go of the region in order.

        Args:
            owner: its owner id.

        Raises:
            RingError: it is stopped, or this is a forked child.
        """
        self._command(lib.pp3_watchdog_forget, owner)

    def kick(self) -> None:
        """Makes it look at everything now.

        Raises:
            RingError: it is stopped, or this is a forked child.
        """
        self._command(lib.pp3_watchdog_kick)

    def replace(self) -> None:
        """Kills the proxy, a stopped one too, and starts the next at once.

        Raises:
            RingError: it is stopped, or this is a forked child.
        """
        self._command(lib.pp3_watchdog_replace)

    def _leave(self) -> None:
        """In a forked child, where neither thread nor lock can be counted on."""
        if self._finalizer.alive:
            lib.pp3_watchdog_leave(self._watchdog)
            _close(self._fds)
            self._fds.clear()

    def _command(self, call: Any, *arguments: int) -> None:
        with self._lock:
            if not self._finalizer.alive:
                raise RingError("watchdog", "a running one", "a stopped one")
            if call(self._watchdog, *arguments) < 0:
                raise RingError("process", "the one that started it", "a forked child")

    def stop(self) -> None:
        """Ends the proxy (SIGTERM, a while, SIGKILL) and the thread; idempotent."""
        with self._lock:
            if self._finalizer.alive:
                lib.pp3_watchdog_stop(self._watchdog)
                self._last = self._read()
                self._finalizer()

    def __enter__(self) -> Self:
        """The watchdog itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stops it."""
        self.stop()


_RUNNING: "weakref.WeakSet[Watchdog]" = weakref.WeakSet()


def _leave_forked_child() -> None:
    """A child must not keep a proxy's socket open, nor descriptors of the region."""
    for watchdog in list(_RUNNING):
        watchdog._leave()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_leave_forked_child)


def _pid_of(watchdog: "weakref.ref[Watchdog]", owner: int) -> int | None:
    """The process of an owner id, if it is the one that runs."""
    alive = watchdog()
    if alive is None:
        return None
    seen = alive.stats()
    return seen.pid if seen.owner == owner and seen.pid else None


def _strings(values: Sequence[str], keep: list[Any]) -> Any:
    made = [ffi.new("char[]", os.fsencode(value)) for value in values]
    array = ffi.new("char *[]", [*made, ffi.NULL])
    keep.extend([*made, array])
    return array


def _close(fds: list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def _stop(watchdog: Any, _ring: Any, fds: list[int]) -> None:
    lib.pp3_watchdog_stop(watchdog)  # nothing in a forked child: no thread is there
    lib.pp3_watchdog_free(watchdog)
    _close(fds)
