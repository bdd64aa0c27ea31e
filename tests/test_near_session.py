"""A session at the region says what one behind a socket says, byte for byte."""

import random

import numpy as np
import pytest

from pp3shm import Profile, Status
from pp3shm.errors import FrameError
from pp3shm.layout.digest import PrefixDigest
from pp3shm.layout.frames import Reset, Step, StepRow, encode_reset, encode_step
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import DrafterSource
from pp3shm.worker.near_session import NearSession
from pp3shm.worker.session import Session

SEED = 20261130
SHAPE = {"vocab": 64, "max_slots": 4, "max_positions": 60}
PROFILES = {
    "sampled": Profile.sampled(depth=5, **SHAPE),
    "greedy": Profile.greedy(depth=4, **SHAPE),
    "context": Profile.sampled(depth=4, context_bytes=7, **SHAPE),
}


class Table:
    """Logits by the last token and the context; now and then none at all."""

    def __init__(self, profile):
        del profile
        rng = np.random.default_rng(1)
        self.table = rng.normal(size=(64, 64)).astype(np.float32)
        self.seen = []

    def logits(self, rows, drafted):
        self.seen.append(
            [(r.slot, r.generation, r.position, r.prefix.tolist()) for r in rows]
        )
        before = [
            int(drafted[i, -1])
            if drafted.shape[1]
            else int(row.prefix[-1] if row.position else 0)
            for i, row in enumerate(rows)
        ]
        logits = self.table[before].copy()
        for i, row in enumerate(rows):
            logits[i] += sum(row.context)
            if row.position % 11 == 10:
                logits[i, 3] = np.nan
        return logits


class Both:
    """The same RESETs and STEPs to a session of each kind.

    Args:
        profile: of both.
    """

    def __init__(self, profile):
        self.profile = profile
        self.counts = [Counts(), Counts()]
        self.tables = [Table(profile), Table(profile)]
        sources = [
            DrafterSource(table, profile, counts)
            for table, counts in zip(self.tables, self.counts, strict=True)
        ]
        self.far = Session(profile, b"s" * 16, sources[0], self.counts[0])
        self.near = NearSession(profile, b"s" * 16, sources[1], self.counts[1])
        self.room = bytearray(profile.reply_bytes)
        self.near.write_into(memoryview(self.room))
        self.round = 0

    def reset(self, slot, generation, prefix):
        body = encode_reset(
            self.profile, Reset(slot, generation, np.array(prefix, np.int32))
        )
        self.far.reset(body)
        self.near.reset(body)

    def step(self, rows):
        self.round += 1
        body = encode_step(self.profile, Step(self.round, tuple(rows)))
        said = self.far.step(body)
        size = self.near.answer(body, len(rows))
        assert said == bytes(self.room[:size])
        return np.frombuffer(said, "<i4", len(rows), 24).tolist()


def drawn_row(rng, profile, slot, generation, text, digest):
    """A row that mostly fits what is held of a slot."""
    count = rng.randint(0, min(profile.depth + 1, len(text)))
    position = len(text) + rng.choice((0, 0, 0, 0, 0, 1))
    return StepRow(
        slot=slot,
        generation=generation + rng.choice((0, 0, 0, 0, 0, 1, -1)),
        position=position,
        digest=digest ^ rng.choice((0, 0, 0, 0, 0, 1)),
        committed=tuple(text[len(text) - count :]),
        user_seed=rng.randint(-3, 3) if profile.is_sampled else 0,
        sampled=profile.is_sampled and rng.random() < 0.7,
        context=rng.randbytes(profile.context_bytes),
    )


@pytest.mark.parametrize("name", PROFILES)
def test_every_step_is_answered_alike(name):
    rng = random.Random(SEED)
    print("seed", SEED)
    profile = PROFILES[name]
    both = Both(profile)
    text = [[] for _ in range(4)]
    generation = [5] * 4
    seen = set()
    for _ in range(400):
        for slot in range(4):
            if rng.random() < 0.15 or len(text[slot]) > 50:
                generation[slot] += 1
                text[slot] = [rng.randrange(64) for _ in range(rng.randint(0, 9))]
                if rng.random() < 0.9:
                    both.reset(slot, generation[slot], text[slot])
            text[slot] += [rng.randrange(64) for _ in range(rng.randint(0, 3))]
        slots = rng.sample(range(4), rng.randint(1, 4))
        rows = [
            drawn_row(
                rng,
                profile,
                slot,
                generation[slot],
                text[slot],
                PrefixDigest(text[slot]).value,
            )
            for slot in slots
        ]
        seen |= set(both.step(rows))
    assert both.tables[0].seen == both.tables[1].seen
    assert both.counts[0].snapshot() == both.counts[1].snapshot()
    wanted = {Status.OK, Status.ABSENT, Status.STALE, Status.REFUSED}
    assert wanted | {Status.WORKER_ERROR} == seen


@pytest.mark.parametrize("n", [0, 5, 255])
def test_another_number_of_rows_is_refused_by_name(n):
    both = Both(PROFILES["sampled"])
    with pytest.raises(FrameError, match=r"step\.n"):
        both.near.answer(bytes(400), n)
