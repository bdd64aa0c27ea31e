"""Sessions and drafters, for the tests of drafting."""

import numpy as np
from worker_client import reset_body, row, step_body

from pp3shm.layout.frames import (
    Kind,
    decode_reply,
    encode_frame,
    profile_flags,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.validate import check_reply
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import DrafterSource
from pp3shm.worker.session import Session

ID = bytes(range(16))
V = 48
DEPTH = 4
SHAPE = {"vocab": V, "depth": DEPTH, "max_slots": 4, "max_positions": 40}
SAMPLED = Profile.sampled(**SHAPE)
GREEDY = Profile.greedy(**SHAPE)
STANDARD = Profile.sampled(**SHAPE, semantic="top32/tau.7/dyadic24-standard-v1")
LOCAL = "tcp://127.0.0.1:0"
RNG = np.random.default_rng(20261130)
BASE = RNG.normal(0, 2, V).astype(np.float32)
TABLE = RNG.normal(0, 2, (V, V)).astype(np.float32)
LEFT = RNG.normal(0, 1, (V, 3)).astype(np.float32)
RIGHT = RNG.normal(0, 1, (3, V)).astype(np.float32)


def session_of(drafter, profile=SAMPLED):
    """A session whose four slots hold a prefix."""
    counts = Counts()
    session = Session(profile, ID, DrafterSource(drafter, profile, counts), counts)
    session.counts = counts
    for slot in range(4):
        session.reset(reset_body(profile, slot, 1, (slot, 5)))
    return session


def rows_of(*modes):
    """Four rows with a prefix; True is sampled."""
    return [
        row(slot=slot, prefix=(slot, 5), sampled=mode, user_seed=slot - 2)
        for slot, mode in enumerate(modes)
    ]


def ask(session, round_, *rows):
    """A reply, which all ten checks of section 6 let through."""
    profile = session.profile
    step = step_body(profile, round_, *rows)
    body = session.step(step)
    frame = encode_frame(Kind.REPLY, ID, 0, body, profile_flags(profile))
    check_reply(profile, step, frame, ID, 0)
    return decode_reply(profile, body)


class Scripted:
    """Gives what a function of (rows, drafted) says."""

    def __init__(self, function):
        self._function = function
        self.seen = []

    def logits(self, rows, drafted):
        """What the function says."""
        self.seen.append([r.slot for r in rows])
        return self._function(rows, drafted)


def good(rows, _drafted=None):
    """The same logits for every row."""
    return np.tile(BASE, (len(rows), 1))


class Parallel:
    """Base logits, and whatever Markov head."""

    def __init__(self, markov=None):
        if markov is not None:
            self.markov = markov

    def parallel_logits(self, rows):
        """The same everywhere."""
        return np.broadcast_to(BASE, (len(rows), DEPTH, V))


def statuses_when_well(session):
    """What a row gets once the drafter is well again."""
    session._guard._drafter._function = good
    return ask(session, 99, row(prefix=(0, 5))).status.tolist()
