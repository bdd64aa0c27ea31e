"""What docs/engine.md says of threads, tried by threads that are in each other's way.

On a free-threaded interpreter they run at the same time; on another one the lock
changes hands as often as it can. Counts are bounded, and no time is promised.
"""

import contextlib
import os
import queue
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from crew import LIMIT_S, Crew
from interpreter import FREE_THREADED, needs_stages
from scripted_worker import ScriptedWorker

from pp3shm import Engine, Profile, Row, Status, Worker
from pp3shm.errors import Busy, Pp3Error, Stale
from pp3shm.stages import WHOLE
from pp3shm.worker.drafters import TableDrafter

PROXIES = ("thread", "process")
PROFILE = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=256)
NOBODY = "unix://@pp3shm-test-nobody"
ROWS = ([Row(0)], [Row(1)], [Row(0), Row(1)])


def numbered(_frame, step, worker):
    """A reply that says of itself which round's it is."""
    n, depth = len(step.rows), worker.profile.depth
    tokens = np.full((n, depth), step.round % 32, np.int32)
    confidence = np.full((n, depth), step.round % 128 / 128, np.float32)
    return worker.reply_frame(step, tokens=tokens, confidence=confidence)


@pytest.fixture
def worker():
    with ScriptedWorker(PROFILE, numbered) as serving:
        yield serving


def engine_of(worker, proxy, **more):
    """An engine with two open slots."""
    engine = Engine.create(PROFILE, worker=worker.address, proxy=proxy, **more)
    for slot in (0, 1):
        engine.reset(slot, [1, 2, 3])
    return engine


def descriptors():
    """How many this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def ask(engine, rows, crew, timeout_s=30.0):
    """``step``, again while the entry is in use; None: the others have ended."""
    limit = time.monotonic() + LIMIT_S
    while not crew.stopping.is_set():
        try:
            return engine.step(rows, timeout_s=timeout_s)
        except Busy:
            assert time.monotonic() < limit
            time.sleep(0)  # until the reader has let go
    return None


def ended(reply):
    """All that a reply keeps of how its round ended, as it stands in the object.

    ``status`` is not asked for: it is made once and kept.
    """
    own = reply._failed, reply._stale, bytes(reply._statuses), reply._trace
    return reply.round, reply.place, *own


def statuses(reply):
    """As ``status``, but made anew."""
    return np.frombuffer(reply._statuses, np.int32)[: PROFILE.max_slots].tolist()


def expect_own(reply, asked, failures=()):
    """While its page is ours: it is of the round, of the rows, and of nothing else."""
    ticket, slots = asked
    assert ticket == reply.round
    for slot in range(PROFILE.max_slots):
        status, tokens = statuses(reply)[slot], reply.tokens[slot].tolist()
        if slot not in slots:
            assert Status.ABSENT == status
        elif reply.failed is None and status == Status.OK:
            assert [ticket % 32] * PROFILE.depth == tokens
            assert ticket % 128 / 128 == reply.confidence[slot][0]
        else:
            assert status in {Status.STALE, reply.failed, *failures}
            if reply.failed is not None or status in failures:
                assert [-1] * PROFILE.depth == tokens


class Parties:
    """Engine, reader, keeper and onlooker of one engine, a thread each.

    The engine's thread asks, cancels and resets. The reader reads and releases. The
    keeper holds on to replies, and to statuses of replies that are gone, and sees that
    each stays as it was when it was read. The onlooker asks for statistics.
    """

    def __init__(self, engine, rounds, seed, path, failures=()):
        self.engine, self.rounds, self.path = engine, rounds, path
        self.failures = failures
        self.luck = random.Random(seed)
        self.crew = Crew()
        self.asked = queue.Queue()
        self.read = queue.Queue()
        self.checked = 0
        for work in (self.step, self.reply, self.keep):
            self.crew.add(work)

    def step(self):
        engine, luck = self.engine, self.luck
        for number in range(self.rounds):
            rows = ROWS[luck.randrange(3)]
            ticket = ask(engine, rows, self.crew)
            if ticket is None:
                return
            self.asked.put((ticket, {row.slot for row in rows}))
            if luck.random() < 0.2:
                engine.cancel(ticket, told=True)
            if number % 16 == 15:
                engine.reset(luck.randrange(2), [number % 64])
        self.asked.put(None)

    def reply(self):
        while (asked := self.crew.take(self.asked)) is not None:
            reply = self.engine.reply(asked[0])
            expect_own(reply, asked, self.failures)
            found = ended(reply), statuses(reply)
            kept = reply.status if asked[0] % 3 == 0 else reply
            self.engine.release(asked[0])
            self.read.put((kept, found))
            del reply, kept  # only the keeper's from here on
            with pytest.raises(Stale):
                self.engine.reply(asked[0])
        self.read.put(None)

    def keep(self):
        held = []
        while (one := self.crew.take(self.read)) is not None:
            held.append(one)
            if len(held) > 20:
                self.check(held.pop(random.randrange(20)))
        while held:
            self.check(held.pop())

    def check(self, one):
        kept, (whole, found) = one
        if isinstance(kept, np.ndarray):
            assert found == kept.tolist()
        else:
            assert whole == ended(kept)
            assert found == kept.status.tolist()
        self.checked += 1

    def look_on(self):
        recorded = 0
        while not self.crew.stopping.is_set():
            stats = self.engine.stats()
            assert recorded <= stats["rounds_recorded"] <= self.rounds
            assert 0 <= stats["free_pages"] <= len(self.engine.buffers)
            recorded = stats["rounds_recorded"]
            assert self.engine.trace(self.path) <= self.rounds
            assert self.engine.session_state is not None
            self.engine.last_error()

    def run(self):
        onlooker = Crew()
        onlooker.stopping = self.crew.stopping
        onlooker.add(self.look_on)
        with onlooker.working():
            self.crew.begin()
            self.crew.join()
        assert self.rounds == self.checked


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("wait", ["hybrid", "futex"])
def test_rounds_stay_their_own_between_four_threads(worker, proxy, wait, tmp_path):
    with engine_of(worker, proxy, wait=wait) as engine:
        Parties(engine, 400, 5, tmp_path / "trace.json").run()
        assert 400 == engine.stats()["rounds_recorded"]
        assert 0 == engine.stats()["lost_wakes"]


def test_what_is_kept_of_a_reply_is_never_used_again(tmp_path):
    """Thousands of rounds, each failed at once, so that little but structs is used."""
    with Engine.create(
        PROFILE, worker=NOBODY, proxy="thread", connect_timeout_s=0
    ) as engine:
        for slot in (0, 1):
            engine.reset(slot, [1, 2, 3])
        path = tmp_path / "trace.json"
        Parties(engine, 3000, 6, path, {Status.PEER_DIED}).run()


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("seed", range(4))
def test_close_from_another_thread_ends_every_call_well(worker, proxy, seed, tmp_path):
    """Those under way come back; the next ones say that it is closed."""
    luck = random.Random(seed)
    engine = engine_of(worker, proxy)
    asked = queue.Queue()
    crew = Crew()
    begun = threading.Semaphore(0)

    def until_closed(work):
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit and not crew.errors:
            try:
                work()
                begun.release()
            except Pp3Error as error:
                if "closed" in str(error):
                    return
                if isinstance(error, Stale):
                    raise
        assert crew.errors, "it was never closed"

    def step():
        asked.put(ask(engine, ROWS[0], crew, timeout_s=0.2))

    def reply():
        try:
            ticket = asked.get(timeout=0.01)
        except queue.Empty:
            with contextlib.suppress(Stale):  # but says so where it is closed
                engine.release(1)
            return
        with engine.reply(ticket) as found:
            assert ticket == found.round

    crew.add(until_closed, step)
    crew.add(until_closed, reply)
    crew.add(until_closed, engine.stats)
    crew.add(until_closed, lambda: engine.trace(tmp_path / "trace.json"))
    crew.begin()
    for _ in range(luck.randrange(4, 60)):
        assert begun.acquire(timeout=LIMIT_S)
    engine.close()
    crew.join()


@pytest.mark.parametrize("proxy", PROXIES)
def test_threads_that_all_close_close_once(worker, proxy):
    before = descriptors()
    for _ in range(5):
        engine = engine_of(worker, proxy)
        crew = Crew()
        for _ in range(4):
            crew.add(engine.close)
        crew.begin()
        crew.join()
        engine.close()
        del engine, crew
    limit = time.monotonic() + LIMIT_S
    while descriptors() > before:  # the worker hangs up, too
        assert time.monotonic() < limit
        time.sleep(0.01)


def test_engines_made_and_closed_by_many_threads_share_nothing(worker):
    """Registries, caches and finalizers of the module are everybody's."""
    del worker
    table = np.zeros((64, 64), np.float32)
    crew = Crew()

    def live(number):
        with Worker(TableDrafter(table), PROFILE, ["tcp://127.0.0.1:0"]) as own:
            for kind in ("memfd", "posix") * 2:
                with Engine.create(
                    PROFILE, worker=own.addresses[0], proxy="thread", kind=kind
                ) as engine:
                    engine.reset(0, [number])
                    for _ in range(5):
                        with engine.reply(engine.step([Row(0)], timeout_s=60)) as reply:
                            assert Status.OK == reply.status[0]
                    counts = engine.stats()
                    assert (5, 5) == (counts["steps_sent"], counts["rounds_recorded"])

    for number in range(4):
        crew.add(live, number)
    crew.begin()
    crew.join()


@needs_stages
def test_statistics_asked_for_by_many_threads_count_each_round_once(worker):
    rounds = 300
    with engine_of(worker, "thread") as engine:
        crew = Crew()

        def look_on():
            while not crew.stopping.is_set():
                stages = engine.stats().stages
                assert stages[WHOLE]["p50"] <= stages[WHOLE]["max"]
                assert 0 <= stages[WHOLE]["count"] <= rounds

        for _ in range(3):
            crew.add(look_on)
        with crew.working():
            for _ in range(rounds):
                with engine.reply(engine.step(ROWS[0], timeout_s=60)):
                    pass
        stats = engine.stats()
        assert 0 == stats["records_missed"]
        assert rounds == stats["rounds_recorded"] == stats.stages[WHOLE]["count"]


# -- the interpreter's lock ------------------------------------------------------------

LOCK = """
import importlib, pkgutil, sys, tempfile, warnings
warnings.simplefilter("error")
import numpy as np
assert not sys._is_gil_enabled(), "before anything of ours"
import pp3shm
names = [one.name for one in pkgutil.walk_packages(pp3shm.__path__, "pp3shm.")]
skip = ("pp3shm.gpu", "pp3shm.demo", "pp3shm.bench", "pp3shm.link.verbs")
for name in names:
    if not name.startswith(skip) and not name.endswith("__main__"):
        importlib.import_module(name)
        assert not sys._is_gil_enabled(), name
from pp3shm import *
from pp3shm.verify import Request, VerifyKeys, verify
from pp3shm.worker.drafters import TableDrafter
profile = Profile.sampled(vocab=64, depth=5, max_slots=1, max_positions=64)
table = np.zeros((64, 64), np.float32)
with Worker(TableDrafter(table), profile, ["tcp://127.0.0.1:0"]) as worker:
    for proxy in ("thread", "process"):
        for kind in ("memfd", "posix"):
            with Engine.create(
                profile, worker=worker.addresses[0], proxy=proxy, kind=kind, ranks=1
            ) as engine:
                keys = VerifyKeys.derive(engine.epoch, 0, engine.reset(0, [1]), 7)
                with engine.reply(engine.step([Row(0)], timeout_s=60)) as reply:
                    assert reply.status[0] == Status.OK
                    rows = np.full((6, 64), 1 / 64, np.float32)
                    request = Request(0, 1, keys)
                    verify(reply, [rows], [request], round=reply.round, vocab=64)
                assert engine.stats()["replies"] in (0, 1)
                with tempfile.NamedTemporaryFile() as file:
                    engine.trace(file.name)
with Engine.create(profile, worker="region://", connect_timeout_s=0) as engine:
    with RegionWorker(TableDrafter(table), profile, engine.door):
        engine.wait_connected(60)
        engine.reset(0, [1])
        with engine.reply(engine.step([Row(0)], timeout_s=60)) as reply:
            assert reply.status[0] == Status.OK
print(sys._is_gil_enabled())
"""


@pytest.mark.skipif(not FREE_THREADED, reason="this interpreter always has its lock")
def test_nothing_of_ours_switches_the_interpreters_lock_on():
    env = {k: v for k, v in os.environ.items() if k != "PYTHON_GIL"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", LOCK],
        env=env,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ("", 0, "False\n") == (done.stderr, done.returncode, done.stdout)
