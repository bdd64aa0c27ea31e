"""Engines, proxies and workers over real queue pairs, in one guest."""

import numpy as np
import pytest
from rdma_script import KEY, RdmaScript

from pp3shm import Engine, Profile, Row, Status, Worker
from pp3shm.link import rdma
from pp3shm.worker.drafters import TableDrafter

VOCAB = 64
ROUNDS = 4
LISTEN = "rdma://10.98.0.2:0/rxe1"
DEADLINE_S = 30.0  # emulated, and others use the machine
LATE_S = 0.5


def profile(**more):
    fields = {"vocab": VOCAB, "depth": 5, "max_slots": 2, "max_positions": 512}
    return Profile.sampled(**{**fields, **more})


def engine_of(address, ours, proxy="thread"):
    engine = Engine.create(
        ours,
        worker=address.replace("/rxe1", "/rxe0"),
        proxy=proxy,
        rounds=ROUNDS,
        psk=KEY,
        connect_timeout_s=120,
    )
    engine.reset(0, [1, 2, 3])
    return engine


def served(engine, timeout_s=DEADLINE_S):
    ticket = engine.step([Row(slot=0, sampled=True)], timeout_s=timeout_s)
    with engine.reply(ticket, timeout_s=timeout_s + 60) as reply:
        return Status(int(reply.status[0]))


@pytest.fixture
def script():
    with RdmaScript(profile(), address=LISTEN, psk=KEY) as one:
        yield one
    assert 0 == rdma.lost_areas()


@pytest.mark.parametrize("proxy", ["thread", "process"])
def test_rounds_are_answered_by_writes(proxy):
    ours = profile()
    table = np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)
    with (
        Worker(TableDrafter(table), ours, [LISTEN], KEY) as worker,
        engine_of(worker.addresses[0], ours, proxy) as engine,
    ):
        for _ in range(20):
            ticket = engine.step([Row(slot=0, sampled=True)], timeout_s=DEADLINE_S)
            with engine.reply(ticket, timeout_s=90) as reply:
                assert Status.OK == reply.status[0], engine.last_error()
                drafted = reply.tokens[0].tolist()
            engine.commit(0, drafted[:2])
        stats = engine.stats()
        assert (20, 3, 1) == (
            stats["steps_sent"],
            stats["memory_regions"],
            stats["sessions"],
        )
        assert 1 == worker.stats()["rdma_sessions"]


def test_a_late_write_changes_nothing_and_frees_its_slot(script, eventually):
    withheld = []
    with engine_of(script.address, script.profile) as engine:
        assert Status.OK is served(engine)
        script.act = lambda _worker, *what: withheld.append(what)
        assert Status.TIMEOUT is served(engine, LATE_S)
        eventually(lambda: 1 == engine.stats()["slots_held"])
        eventually(lambda: withheld)
        before = [bytes(view) for view in engine.buffers]
        script.reply(*withheld[0])
        eventually(lambda: 1 == engine.stats()["late_writes"])
        assert before == [bytes(view) for view in engine.buffers]
        script.act = RdmaScript.reply
        assert Status.OK is served(engine)
        assert 0 == engine.stats()["slots_held"]


def spoiled(act):
    def once(worker, step, slot):
        worker.act = RdmaScript.reply
        act(worker, step, slot)

    return once


HOSTILE = {
    "beyond the area": lambda w, s, _: w.write(w.frame(s), w.end._peer.slot_bytes * 4),
    "before the area": lambda w, s, _: w.write(w.frame(s), -1),
    "another key": lambda w, s, _: w.write(w.frame(s), rkey=w.end._peer.rkey ^ 0xFF00),
    "an immediate beyond": lambda w, _s, _: w.write(b"x", immediate=ROUNDS),
    "a slot of no round": lambda w, s, slot: w.write(
        w.frame(s), immediate=(slot + 1) % ROUNDS
    ),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_write_ends_the_session_and_nothing_else(script, eventually, name):
    with engine_of(script.address, script.profile) as engine:
        assert Status.OK is served(engine)
        script.act = spoiled(HOSTILE[name])
        assert Status.PEER_DIED is served(engine)
        eventually(lambda: engine.stats()["sessions"] >= 2, limit_s=60)
        engine.wait_connected(60)
        assert Status.OK is served(engine)


def test_a_worker_that_writes_everywhere_at_any_time_spoils_only_its_own(script):
    seeds = np.random.default_rng(5)

    def scribble(worker, step, slot):
        size = worker.end._peer.slot_bytes
        for _ in range(3):
            data = seeds.bytes(int(seeds.integers(1, 3000)))
            worker.write(data, int(seeds.integers(0, size * ROUNDS - len(data))))
            worker.lane.take()
        worker.reply(step, slot)
        worker.write(
            seeds.bytes(64),
            size * slot + int(seeds.integers(0, 3000)),
            slot=(slot + 1) % ROUNDS,
        )

    good = bad = 0
    with engine_of(script.address, script.profile) as engine:
        script.act = scribble
        for _ in range(40):
            ticket = engine.step([Row(slot=0, sampled=True)], timeout_s=DEADLINE_S)
            with engine.reply(ticket, timeout_s=90) as reply:
                if reply.status[0] == Status.OK:
                    good += 1
                    assert (0 == reply.tokens[0]).all()
                    assert (reply.q[0] == 1 / 32).all()
                else:
                    bad += 1
                    assert (-1 == reply.tokens[0]).all()
            engine.wait_connected(60)
    print(f"{good} good, {bad} failed")
    assert good > 0


def test_a_cable_down_and_up_fails_rounds_and_brings_a_new_session(
    script, eventually, cable
):
    with engine_of(script.address, script.profile) as engine:
        assert Status.OK is served(engine)
        cable("down")
        assert Status.OK is not served(engine, 2.0)
        cable("up")
        eventually(lambda: served(engine, 5.0) is Status.OK, "a session", 120)
        assert engine.stats()["memory_regions"] == 3
