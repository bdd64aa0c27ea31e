"""Who is behind: the rank or the proxy that holds the oldest round, and since when."""

import errno
import time
from pathlib import Path
from typing import Any, NamedTuple

from pp3shm._core import ffi
from pp3shm.errors import Busy, Exhausted, Held


class Behind(NamedTuple):
    """What keeps a round from being over.

    Attributes:
        ticket: the round.
        asked_ns: when it was claimed, CLOCK_MONOTONIC.
        rank: who has not released it; None: it is not that.
        owner: id of the proxy that holds it; None: no proxy has taken it, perhaps
            because a stream has not submitted it.
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


def owners_of(why: Any) -> dict[int, int]:
    """Pages in quarantine by owner id, of a ``struct pp3_why``."""
    return {i: n for i, n in enumerate(bytes(ffi.buffer(why.owner))) if n}


def refusal(code: int, why: Any, behind: Behind | None) -> Held:
    """The error of a claim that was refused because somebody holds a round.

    Args:
        code: -EAGAIN the round is open, -EBUSY not released, -ENOBUFS no page.
        why: ``struct pp3_why``.
        behind: who holds it.
    """
    holder = "" if behind is None else behind.holder
    age = "" if behind is None else f", asked {behind.age} ago"
    if code == -errno.ENOBUFS:
        found = f"{why.quarantined} in quarantine, by owner {owners_of(why)}"
        if behind is not None:
            found += f"; {holder} still has round {behind.ticket}{age}"
        return Exhausted("pages", "a free one", found, behind)
    if code == -errno.EAGAIN:
        found = f"round {why.ticket} is still open: {holder} has it{age}"
        return Busy(f"round {why.ticket}", "resolved", found, behind)
    if why.rank < 0:
        found = f"its stream is not done{age}"
        return Busy(f"round {why.ticket}", "submitted", found, behind)
    found = f"no release of it by {holder}{age}"
    return Busy(f"rank {why.rank}", f"round {why.ticket} released", found, behind)
