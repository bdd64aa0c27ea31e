"""Two hosts: host 0 runs these tests, host 1 the worker of ``host1.py``."""

import os
import time

import numpy as np
import pytest
from rdma_script import KEY

from pp3shm import Engine, Profile, Row, Status

PEER = os.environ.get("PP3_LAB_PEER", "")
DEADLINE_S = 30.0


def profile():
    return Profile.sampled(vocab=64, depth=5, max_slots=4, max_positions=512)


@pytest.mark.parametrize("proxy", ["thread", "process"])
def test_rounds_are_answered_from_another_host(proxy):
    ours = profile()
    with Engine.create(
        ours,
        worker=f"rdma://{PEER}:7333",
        proxy=proxy,
        psk=KEY,
        connect_timeout_s=180,
    ) as engine:
        prefix = [1, 2, 3]
        for slot in range(4):
            engine.reset(slot, prefix)
        for _ in range(25):
            rows = [Row(slot=slot, sampled=True) for slot in range(4)]
            ticket = engine.step(rows, timeout_s=DEADLINE_S)
            with engine.reply(ticket, timeout_s=90) as reply:
                assert (Status.OK == reply.status).all(), engine.last_error()
                assert np.allclose(reply.q.sum(axis=2), 1)
                drafted = reply.tokens.copy()
            for slot in range(4):
                engine.commit(slot, drafted[slot, :2].tolist())
        assert engine.stats()["steps_sent"] == 25


def test_a_cable_pulled_between_two_hosts_is_a_new_session_when_it_is_back(cable):
    ours = profile()
    with Engine.create(
        ours,
        worker=f"rdma://{PEER}:7333",
        proxy="thread",
        psk=KEY,
        connect_timeout_s=180,
    ) as engine:
        engine.reset(0, [1, 2, 3])

        def served(timeout_s):
            ticket = engine.step([Row(slot=0, sampled=True)], timeout_s=timeout_s)
            with engine.reply(ticket, timeout_s=timeout_s + 60) as reply:
                return Status(int(reply.status[0]))

        assert Status.OK is served(DEADLINE_S)
        cable("down")
        assert Status.OK is not served(2.0)
        cable("up")
        limit = time.monotonic() + 120
        while served(5.0) is not Status.OK:
            assert time.monotonic() < limit
        assert engine.stats()["sessions"] >= 2
