"""Killing the worker or the proxy mid-way, and having them back."""

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from pp3shm.demo.decode import Tally
from pp3shm.demo.link import DemoWorker
from pp3shm.engine import Engine
from pp3shm.errors import ConfigError

ROUNDS_WITHOUT = 20
"""After a kill: rounds that go on without drafts before the demo waits for them."""
CONNECT_S = 60.0


@dataclass(slots=True)
class Kill:
    """One thing to be killed mid-way.

    Attributes:
        name: what: ``worker`` or ``proxy``.
        due: killed as soon as so many tokens are emitted.
        round: the round it was killed after, or None.
        mended: whether it is back.
    """

    name: str
    due: int
    round: int | None = None
    mended: bool = False


class Kills:
    """Kills once; lets the text go on without drafts; then waits until they are back.

    Args:
        names: what to kill, one half-way, two at one and two thirds.
        tokens: how many a request emits at least.
        requests: how many there are.
        depth: of the drafts.

    Raises:
        ConfigError: the text may end before anything is seen of a kill.
    """

    def __init__(
        self, names: Sequence[str], tokens: int, requests: int, depth: int
    ) -> None:
        parts = len(names) + 1
        # A round emits depth + 1 tokens a request at most: none may jump from before
        # the last kill to the end.
        if names and tokens < (least := parts * (depth + 1)):
            raise ConfigError("--tokens", f"{least} or more to kill mid-way", tokens)
        whole = tokens * requests
        self._kills = [
            Kill(name, whole * (place + 1) // parts) for place, name in enumerate(names)
        ]

    @property
    def done(self) -> list[str]:
        """What was killed."""
        return [kill.name for kill in self._kills if kill.round is not None]

    def look(self, tally: Tally, engine: Engine, worker: DemoWorker) -> None:
        """After each round: kill what is due, mend what was dead for long enough."""
        for kill in self._kills:
            if kill.round is None:
                if tally.tokens >= kill.due and _killed(kill.name, engine, worker):
                    kill.round = tally.rounds
            elif tally.rounds - kill.round >= ROUNDS_WITHOUT:
                _mend(kill, engine, worker)

    def mend(self, engine: Engine, worker: DemoWorker) -> None:
        """The text may have ended before all were back."""
        for kill in self._kills:
            if kill.round is not None:
                _mend(kill, engine, worker)


def _killed(name: str, engine: Engine, worker: DemoWorker) -> bool:
    """SIGKILL; False where nobody is there to be killed just now."""
    if name == "worker":
        worker.kill()
        return True
    pid = engine.stats()["proxy_pid"]
    if pid <= 0:  # 0 would be all of our own process group
        return False
    os.kill(pid, signal.SIGKILL)
    return True


def _mend(kill: Kill, engine: Engine, worker: DemoWorker) -> None:
    """Wait, once, until rounds have drafts again."""
    if kill.mended:
        return
    kill.mended = True
    if kill.name == "worker":
        worker.start()
    engine.wait_connected(CONNECT_S)
