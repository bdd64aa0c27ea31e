"""How an engine of a storm is made, and what it shares with its supervisor."""

from dataclasses import dataclass
from typing import Literal

from pp3shm import Status

STOP, STAGE = 0, 1  # flags of the board
RUNNING, CALM = 1, 2
FAR_S = 60.0
COUNTS = {
    0: "rounds published",
    Status.TIMEOUT: "rounds expired",
    Status.PEER_DIED: "rounds orphaned",
    Status.REFUSED: "rounds cancelled",
}


class Wrong(Exception):
    """What no kill may lead to."""


@dataclass(frozen=True)
class Plan:
    """How an engine is to be made and to be treated.

    Attributes:
        seed: of everything it draws.
        proxy: ``thread`` or ``process``; processes are killed from in here. Or
            ``region``: a worker of its own, which the supervisor kills.
        kind: of the region.
        rounds: entries of its ring.
        address: the worker's, or the engine's door.
        tell: a pipe to each further rank.
        hear: a pipe from each.
        slack_s: how long what must happen may take.
        plant: a fault to be caught.
    """

    seed: int
    proxy: Literal["thread", "process", "region"]
    kind: Literal["memfd", "posix"]
    rounds: int
    address: str
    tell: tuple[int, ...]
    hear: tuple[int, ...]
    slack_s: float
    plant: str = ""


def shown(reply) -> str:
    """A reply as one word, the same at every rank."""
    views = (reply.tokens, reply.confidence, reply.mask, reply.ids, reply.q)
    data = hash(b"".join(view.tobytes() for view in views))
    failed = 0 if reply.failed is None else int(reply.failed)
    statuses = ",".join(map(str, reply.status.tolist()))
    return f"{failed}/{statuses}/{data:x}"
