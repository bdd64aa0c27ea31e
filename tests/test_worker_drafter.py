"""What drafters hear of, where they come from, and how they are called."""

import threading

import numpy as np
import pytest
from drafting import (
    BASE,
    DEPTH,
    LOCAL,
    SAMPLED,
    SHAPE,
    TABLE,
    Parallel,
    Scripted,
    ask,
    good,
    session_of,
)
from worker_client import Client, opened, reset_body, row

from pp3shm.errors import ConfigError
from pp3shm.layout.frames import (
    ErrorBody,
    Kind,
    Status,
    encode_error,
)
from pp3shm.layout.profile import Profile
from pp3shm.worker import Worker
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import DrafterFault, DrafterSource
from pp3shm.worker.drafters import (
    ChainDrafter,
    TableDrafter,
    seeded_table,
)


class Telling(TableDrafter):
    """Raises where it is told to."""

    def __init__(self, fails=()):
        super().__init__(TABLE)
        self.fails = set(fails)

    def reset(self, _session, _slot, generation, _prefix):
        """Raise for some generations."""
        if generation in self.fails:
            raise RuntimeError("no memory for another request")

    def end(self, _session):
        """Raise."""
        raise RuntimeError("already gone")


def test_request_that_the_drafter_could_not_take_fails_until_it_is_restated():
    drafter = Telling(fails=[2])
    session = session_of(drafter)
    session.reset(reset_body(SAMPLED, 0, 2))
    rows = row(generation=2), row(slot=1, prefix=(1, 5))
    assert ask(session, 1, *rows).status.tolist() == [6, 0]
    stale = row(generation=1), row(slot=1, prefix=(1, 5))
    assert ask(session, 2, *stale).status.tolist() == [4, 0]
    drafter.fails.clear()
    session.reset(reset_body(SAMPLED, 0, 2))
    assert ask(session, 3, *rows).status.tolist() == [0, 0]


@pytest.mark.parametrize("how", ["bye", "error", "fault", "vanishes", "worker closes"])
def test_drafter_hears_of_the_end_however_it_came(how):
    ended = []

    class Hearing(TableDrafter):
        def end(self, session):
            """Note."""
            ended.append(session)

    with (
        Worker(Hearing(TABLE), SAMPLED, [LOCAL]) as worker,
        opened(worker.addresses[0], SAMPLED) as engine,
    ):
        engine.reset()
        engine.step(1, row())
        if how == "bye":
            engine.send(Kind.BYE, b"")
        elif how == "error":
            engine.send(Kind.ERROR, encode_error(ErrorBody(5, "no")))
        elif how == "fault":
            engine.send(Kind.BYE, b"", sequence=0)
        elif how == "worker closes":
            worker.request_stop()
        if how != "vanishes":
            engine.read(10_000)
    assert ended == [engine.session]


def test_drafter_that_raises_at_the_end_ends_nothing_else():
    with Worker(Telling(), SAMPLED, [LOCAL]) as worker:
        for _ in range(3):
            with opened(worker.addresses[0], SAMPLED) as engine:
                engine.send(Kind.BYE, b"")
                assert engine.read(1) == b""
        with opened(worker.addresses[0], SAMPLED) as engine:
            engine.reset()
            assert engine.step(1, row()).status.tolist() == [0]


def test_each_session_gets_a_drafter_of_its_own_from_a_factory():
    made = []

    def factory(profile):
        made.append((profile, seeded_table(profile)))
        return made[-1][1]

    with Worker(factory, SAMPLED, [LOCAL]) as worker:
        engines = [opened(worker.addresses[0], SAMPLED) for _ in range(2)]
        for engine in engines:
            engine.reset()
            engine.step(1, row())
            engine.sock.close()
    assert [profile for profile, _ in made] == [SAMPLED, SAMPLED]
    assert made[0][1] is not made[1][1]


@pytest.mark.parametrize(
    "factory",
    [
        lambda _profile: None,
        lambda _profile: object(),
        lambda _profile: Parallel("head"),
        lambda _profile: 1 / 0,
    ],
)
def test_factory_that_fails_is_an_error_to_that_engine(factory):
    with Worker(factory, SAMPLED, [LOCAL]) as worker:
        for _ in range(2):
            with Client(worker.addresses[0], SAMPLED) as engine:
                engine.send(Kind.HELLO, SAMPLED.canonical_json())
                assert engine.receive_error().code == Status.WORKER_ERROR
        assert worker.stats()["drafter_faults"] == 2
        assert worker.stats()["sessions_open"] == 0


@pytest.mark.parametrize(
    "factory",
    [lambda: seeded_table(SAMPLED), lambda _a, _b: None, lambda *, profile: profile],
)
def test_a_factory_that_takes_no_profile_is_refused_at_once(factory):
    with pytest.raises(ConfigError, match="one argument, the profile"):
        Worker(factory, SAMPLED, [LOCAL])


def test_source_with_a_failing_factory_raises_its_own_error():
    source = DrafterSource(lambda _profile: 1 / 0, SAMPLED, Counts())
    with pytest.raises(DrafterFault):
        source.open()


def test_drafter_is_called_by_one_session_at_a_time():
    inside = []
    most = []

    def function(rows, _drafted):
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.001)
        inside.pop()
        return good(rows)

    def run(address):
        with opened(address, SAMPLED) as engine:
            engine.reset()
            for round_ in range(5):
                engine.step(round_, row())

    with Worker(Scripted(function), SAMPLED, [LOCAL]) as worker:
        threads = [
            threading.Thread(target=run, args=worker.addresses) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(most) == 4 * 5 * DEPTH
    assert set(most) == {1}


def test_worker_closes_although_its_drafter_does_not_come_back():
    release, entered = threading.Event(), threading.Event()

    def stuck(rows, _drafted):
        entered.set()
        release.wait(30)
        return good(rows)

    worker = Worker(Scripted(stuck), SAMPLED, [LOCAL]).start()
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        engine.send_step(1, row())
        assert entered.wait(30)
        worker.close(timeout_s=0.05)
        release.set()
        assert engine.reply().status.tolist() == [0]
        assert engine.receive()[0].kind == Kind.BYE
    worker.close()


def test_statistics_tell_what_became_of_rows():
    with (
        Worker(Scripted(good), SAMPLED, [LOCAL]) as worker,
        opened(worker.addresses[0], SAMPLED) as engine,
    ):
        engine.reset()
        engine.step(1, row(), row(slot=1))
        engine.step(2, row(generation=0), row(slot=2))
        engine.step(2, row(generation=0), row(slot=2))
        counted = worker.stats()
    assert counted == {
        "connections": 1,
        "repeats": 1,
        "resets": 1,
        "rows_absent": 2,
        "rows_ok": 1,
        "rows_stale": 1,
        "sessions": 1,
        "sessions_open": 1,
        "steps": 2,
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: TableDrafter(TABLE[1:]),
        lambda: TableDrafter(BASE),
        lambda: TableDrafter(TABLE.astype(np.float64)),
        lambda: ChainDrafter(BASE[1:], TABLE, 4),
        lambda: ChainDrafter(BASE, TABLE[1:], 4),
        lambda: seeded_table(Profile.greedy(**(SHAPE | {"vocab": 5000}))),
    ],
)
def test_built_in_drafters_refuse_what_they_cannot_use(make):
    with pytest.raises(ConfigError):
        make()


def test_seeded_table_is_the_same_everywhere():
    table = seeded_table(SAMPLED)._table
    # By hand: (7919 * row + 104729 * column + 12345) % 65521 % 512 / 64.
    found = [table[0, 0], table[0, 1], table[1, 0]]
    assert found == [57 / 64, 353 / 64, 296 / 64]
