"""Who is behind: the rank or the proxy that holds the oldest round, and since when."""

import time
from pathlib import Path
from typing import NamedTuple


class Behind(NamedTuple):
    """What keeps a round from being over.

    Attributes:
        ticket: the round.
        asked_ns: when it was claimed, CLOCK_MONOTONIC.
        rank: who has not released it; None: it is not that.
        owner: id of the proxy that holds it; None: no proxy has taken it.
        pid: process id of rank or proxy, for people to look at; None: not known here.
            It may be another process's by the time it is read.
    """

    ticket: int
    asked_ns: int
    rank: int | None
    owner: int | None
    pid: int | None

    @property
    def age_ns(self) -> int:
        """How long ago it was claimed."""
        return max(0, time.monotonic_ns() - self.asked_ns)

    @property
    def holder(self) -> str:
        """``rank 1 (pid 4711)``, ``proxy 2``, or ``no proxy``."""
        number = self.owner if self.rank is None else self.rank
        if number is None:
            return "no proxy"
        name = "proxy" if self.rank is None else "rank"
        known = "" if self.pid is None else f" (pid {self.pid})"
        return f"{name} {number}{known}"

    @property
    def age(self) -> str:
        """``0.250 s``."""
        return f"{self.age_ns / 1e9:.3f} s"


def pid_of(pidfd: int) -> int | None:
    """The process id behind a pidfd; None: it is gone, or is of another namespace."""
    if pidfd < 0:
        return None
    try:
        told = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii")
    except OSError:
        return None
    for line in told.splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value) if int(value) > 0 else None
    return None
