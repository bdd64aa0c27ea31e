"""The subjects by name: what each is, what it stands beside, whether it is there."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pp3shm.bench import floors, ours, peers, transports
from pp3shm.bench.measure import Found, Sizes
from pp3shm.errors import ConfigError
from pp3shm.ring.waiting import WAITS, Wait

HYBRID_NS = floors.HYBRID_NS
PAUSE_S = 0.01


class Measured(Protocol):
    """What can be measured again and again."""

    def measure(self, sizes: Sizes) -> Found:
        """One repetition."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One row of the table.

    Attributes:
        name: says what it is.
        what: in a sentence.
        make: its ``Measured``.
        missing: why it cannot be measured here; None: it can.
    """

    name: str
    what: str
    make: Callable[[], Measured]
    missing: str | None = None


def subjects() -> list[Subject]:
    """All of them, in the order of the table."""
    return [*_floors(), *_ours(), *_peers()]


def chosen(names: Sequence[str] | None) -> list[Subject]:
    """Those whose name is, or begins with, one of ``names``; None: all.

    Raises:
        ConfigError: a name that none has.
    """
    every = subjects()
    for name in names or ():
        if not any(one.name.startswith(name) for one in every):
            raise ConfigError("--only", "a name, or its beginning, of --list", name)
    if names is None:
        return every
    return [one for one in every if one.name.startswith(tuple(names))]


def _floors() -> list[Subject]:
    def floor(name: str, what: str, *how: object) -> Subject:
        return Subject(f"floor {name}", what, lambda: floors.Floor(*how))  # type: ignore[arg-type]

    far, near, none = floors.SPIN_NS, HYBRID_NS, 0
    pause_ns = int(PAUSE_S * 1e9)
    return [
        floor("spin", "C over shared memory, copied in and out, spinning", "shm", far),
        floor("hybrid", "the same, 50 us of spinning before it sleeps", "shm", near),
        floor("futex", "the same, sleeping at once", "shm", none),
        floor("futex 10 ms", "with 10 ms before each round", "shm", none, pause_ns),
        floor("unix", "C over a Unix socket", "unix"),
        floor("tcp", "C over TCP, loopback", "tcp"),
        floor(
            "relay unix", "C, three parties: hybrid memory, socket", "relay unix", near
        ),
        floor("relay tcp", "the same over TCP", "relay tcp", near),
        Subject(
            "floor pidfd", "SIGKILL of a fork to the wake-up in poll", floors.Death
        ),
    ]


def _ours() -> list[Subject]:
    def ring(name: str, what: str, wait: Wait, ranks: str = "") -> Subject:
        opened = ours.ring(wait, 4 if ranks else 1)
        return Subject(f"ring {name}", what, lambda: ours.Plain(opened, ranks=ranks))

    def link(family: str, proxy: str, ranks: str = "") -> Subject:
        opened = ours.link(family, proxy, 4 if ranks else 1)
        name = f"{family} {proxy}" + (", 4 ranks" if ranks else "")
        return Subject(
            name,
            f"pp3shm over {family} by a proxy {proxy}, hybrid",
            lambda: ours.Plain(opened, ranks=ranks),
        )

    return [
        ring("spin", "pp3shm, native drafter at the region, spinning", "spin"),
        ring("hybrid", "the same, hybrid", "hybrid"),
        ring("futex", "the same, sleeping at once", "futex"),
        ring("hybrid, 4 ranks here", "and three more ranks in this process",
             "hybrid", "here"),
        ring("hybrid, 4 ranks", "and three more ranks, a process each",
             "hybrid", "there"),
        Subject(
            "ring hybrid 10 ms",
            "with 10 ms before each round",
            lambda: ours.Plain(ours.ring("hybrid"), PAUSE_S),
        ),
        *(
            Subject(
                f"region {wait}",
                f"a worker of Python at the region, canned drafts, {wait}",
                lambda wait=wait: ours.Plain(ours.region(wait)),  # type: ignore[misc]
            )
            for wait in WAITS
        ),
        link("unix", "process"),
        link("unix", "thread"),
        link("tcp", "process"),
        link("tcp", "thread"),
        link("unix", "process", "there"),
        Subject(
            "unix process 10 ms",
            "with 10 ms before each round",
            lambda: ours.Plain(ours.link("unix", "process"), PAUSE_S),
        ),
        Subject(
            "unix thread, busy",
            "beside a thread of the engine that runs Python flat out",
            lambda: ours.Plain(ours.link("unix", "thread"), busy=True),
        ),
        Subject("kill", "SIGKILL of the proxy to the failed reply", ours.Kill),
    ]  # fmt: skip


def _peers() -> list[Subject]:
    def peer(name: str, *, checked: bool) -> Subject:
        more = ", checked" if checked else ""
        return Subject(
            name + more,
            f"{name}, {'a frame held to the ten checks' if checked else 'no checks'}",
            lambda: peers.Peer(name, checked=checked),
            transports.missing(name),
        )

    return [
        peer(name, checked=checked)
        for name in transports.TRANSPORTS
        for checked in (False, True)
    ]
