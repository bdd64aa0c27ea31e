"""A worker whose every answer follows from its round, so that anyone can check it.

A row's context is a number that no other row of any engine has; support and q follow
from it, the position and the last token.
"""

import random
import time
from typing import NamedTuple

import numpy as np

from pp3shm import Profile
from pp3shm.layout.tables import Status
from pp3shm.proposal.proposal import propose_row

VOCAB, DEPTH, SLOTS, SUPPORT = 64, 5, 2, 32
PROFILE = Profile.sampled(
    vocab=VOCAB, depth=DEPTH, max_slots=SLOTS, max_positions=512, context_bytes=8
)
DEAD_STATUSES = (Status.TIMEOUT, Status.PEER_DIED, Status.REFUSED)
"""What a kill may make of a row; everything else says that bytes were wrong."""
_IDS = np.arange(VOCAB, dtype=np.uint64)


class Asked(NamedTuple):
    """What a row's answer follows from."""

    number: int
    position: int
    last: int


def _logits(asked: Asked, depth: int) -> np.ndarray:
    mixed = (asked.number << 20) ^ (asked.position << 10) ^ (asked.last << 3) ^ depth
    z = (_IDS + np.uint64(mixed % 2**64)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z >> np.uint64(55)).astype(np.float32)) / np.float32(64)


class TruthDrafter:
    """See the module.

    Args:
        seed: of how long it takes: mostly nothing, sometimes too long.
        plant: ``another round`` answers with the number before.
    """

    def __init__(self, seed: int, plant: str) -> None:
        self._rng = random.Random(seed)
        self._off = int(plant == "another round")

    def logits(self, rows, drafted):
        """See ``pp3shm.Drafter``."""
        depth = drafted.shape[1]
        if depth == 0 and self._rng.random() < 0.2:
            time.sleep(self._rng.choice((0.001, 0.004, 0.03)))
        asked = [
            Asked(
                int.from_bytes(row.context, "little") - self._off,
                row.position,
                int(row.prefix[-1]),
            )
            for row in rows
        ]
        return np.stack([_logits(one, depth) for one in asked])


def fault_of(reply, slot: int, asked: Asked | None) -> str:
    """What of a slot is not as it has to be; nothing where all is well."""
    status = Status(int(reply.status[slot]))
    if asked is None:
        return "" if status is Status.ABSENT else f"a row nobody asked for: {status!r}"
    if status in DEAD_STATUSES:
        blank = (reply.tokens[slot] == -1).all() and not reply.q[slot].any()
        return "" if blank and not reply.mask[slot] else "a failed row with drafts"
    if status is not Status.OK:
        return f"a status that no kill explains: {status!r}"
    for depth in range(DEPTH):
        z = _logits(asked, depth)
        right = propose_row(z, key=(0, 0), round=0, position=0)
        q = dict(zip(right.ids.tolist(), right.q.tolist(), strict=True))
        ids = reply.ids[slot, depth].tolist()
        if ids != list(q) or reply.q[slot, depth].tolist() != list(q.values()):
            return f"ids and q of another round at depth {depth}"
        token = int(reply.tokens[slot, depth])
        if not q.get(token) or reply.confidence[slot, depth] != np.float32(q[token]):
            return f"a token that was not drawn from its q at depth {depth}"
    return "" if reply.mask[slot] == 1 else "a sampled row without its mask"
