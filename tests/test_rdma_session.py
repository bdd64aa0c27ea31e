"""Sessions whose STEPs and REPLYs go by RDMA, over a device of the test's own."""

import numpy as np
import pytest
from fake_verbs import FakeNet

from pp3shm import Engine, Profile, Row, Worker
from pp3shm.link import rdma
from pp3shm.worker.drafters import TableDrafter

VOCAB = 64


@pytest.fixture
def net(monkeypatch):
    """Every end that is opened meanwhile is one of this net."""
    made = FakeNet()
    monkeypatch.setattr(rdma, "open_end", made.open_end)
    monkeypatch.setattr(rdma, "require", lambda _place: None)
    return made


def profile(**more):
    fields = {"vocab": VOCAB, "depth": 5, "max_slots": 2, "max_positions": 512}
    return Profile.sampled(**{**fields, **more})


def table():
    return np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)


def test_rounds_are_answered_by_writes(net):
    ours = profile()
    with (
        Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker,
        Engine.create(ours, worker=worker.addresses[0], proxy="thread") as engine,
    ):
        engine.wait_connected(10)
        engine.reset(0, [1, 2, 3])
        for _ in range(20):
            with engine.reply(engine.step([Row(slot=0)])) as reply:
                assert 0 == reply.status[0]
                drafted = reply.tokens[0].tolist()
            engine.commit(0, drafted[:2])
        stats = engine.stats()
        assert (20, 20) == (stats["steps_sent"], stats["replies"])
        assert 2 == stats["memory_regions"]
    assert 0 == sum(end.regions for end in net.ends.values())
