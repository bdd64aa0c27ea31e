"""A worker that is its own proxy: at the door, on the data path, in death."""

import contextlib
import dataclasses
import gc
import itertools
import os
import random
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from far_ends import RegionProcess, connected, expect_fenced_page_kept, table
from rank_process_client import RankProcess

from pp3shm import Engine, Profile, Row, Status
from pp3shm.errors import (
    Busy,
    ConfigError,
    LinkError,
    ProfileError,
)
from pp3shm.layout.frames import decode_reply, encode_reply
from pp3shm.layout.tables import reply_packing
from pp3shm.layout.validate import INCIDENTS, REASON_STATUS, REASONS
from pp3shm.proxy import door as door_module
from pp3shm.proxy.state import SessionState
from pp3shm.ring.end import RING_COUNTERS
from pp3shm.worker import RegionWorker
from pp3shm.worker.near_session import NearSession
from pp3shm.worker.session import Refusal

SEED = 20261130
KEY = b"0123456789abcdef"


def profile_of(**changes):
    parts = {"vocab": 64, "depth": 5, "max_slots": 2, "max_positions": 512}
    return Profile.sampled(**{**parts, **changes})


@contextlib.contextmanager
def waiting(profile=None, **changes):
    """An engine whose door is open, with both slots in use."""
    changes = {"worker": "region://", "connect_timeout_s": 0} | changes
    with Engine.create(profile or profile_of(), **changes) as engine:
        for slot in (0, 1):
            engine.reset(slot, [5, 6, 7])
        yield engine


def one_round(engine, timeout_s=10.0):
    """The statuses of a round of slots 0 and 1, and whether it failed as a whole."""
    with engine.reply(engine.step([Row(0), Row(1)], timeout_s=timeout_s)) as reply:
        return reply.status.tolist(), reply.failed


WHOLE = ([Status.OK] * 2, None)
NO_SESSION = ([Status.PEER_DIED] * 2, None)


# -- at the door -----------------------------------------------------------------------


def test_without_a_worker_rounds_fail_at_once_and_not_at_their_deadline():
    with waiting() as engine:
        assert NO_SESSION == one_round(engine, timeout_s=3600)
        assert 1 == engine.stats()["peer_died"]
        assert 0 == engine.stats()["proxy_pid"]
        assert SessionState.WAITING is engine.session_state


@pytest.mark.parametrize("kind", ["abstract", "path"])
def test_worker_and_engine_may_come_in_either_order(kind, tmp_path):
    name = f"@pp3shm-test-{secrets.token_hex(8)}"
    door = f"region://{name if kind == 'abstract' else tmp_path / 'door'}"
    worker = RegionWorker(table(), profile_of(), door, attach_timeout_s=30)
    early = threading.Thread(target=worker.start)
    early.start()
    with waiting(worker=door, connect_timeout_s=30) as engine, worker:
        early.join()
        assert door == engine.door
        assert WHOLE == one_round(engine)
        assert 1 == worker.stats()["attached"]
        assert 1 == worker.stats()["sessions"]
    assert kind == "abstract" or not (tmp_path / "door").exists()


def test_a_worker_that_nobody_awaits_gives_up_in_time():
    door = f"region://@pp3shm-test-{secrets.token_hex(8)}"
    worker = RegionWorker(table(), profile_of(), door, attach_timeout_s=0.05)
    with pytest.raises(LinkError, match=r"expected an engine's door within 0\.05 s"):
        worker.start()


def test_a_worker_that_is_asked_to_end_first_attaches_to_nothing():
    door = f"region://@pp3shm-test-{secrets.token_hex(8)}"
    worker = RegionWorker(table(), profile_of(), door, attach_timeout_s=3600)
    worker.request_stop()
    with worker:
        worker.serve_forever()
        assert 0 == worker.stats()["attached"]


def test_a_second_worker_is_refused_by_the_first_ones_process():
    with waiting() as engine, RegionWorker(table(), profile_of(), engine.door):
        engine.wait_connected(30)
        second = RegionWorker(table(), profile_of(), engine.door)
        with pytest.raises(LinkError, match=f"found that of process {os.getpid()}"):
            second.start()
        assert 0 == second.stats()["attached"]
        assert WHOLE == one_round(engine)
        assert 1 == engine.stats()["proxy_starts"]


def test_two_processes_at_once_one_is_refused_by_name():
    with waiting() as engine, RegionProcess(engine.door, engine.profile) as first:
        engine.wait_connected(30)
        with RegionProcess.__new__(RegionProcess) as second:
            second._arguments = first._arguments
            second.start(wait=False)
            status, said = second.finish()
            assert 2 == status
            assert f"found that of process {first.pid}" in said
            assert 1 == len(said.splitlines())
        assert WHOLE == one_round(engine)


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab": 65},
        {"depth": 4},
        {"max_slots": 3},
        {"context_bytes": 8},
        {"target_sha256": "a" * 64},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_worker_of_another_profile_is_refused_by_the_fields_name(changes):
    field = next(iter(changes))
    names = (field, "step_bytes", "reply_bytes", "layout_bytes")
    with waiting() as engine:
        theirs = profile_of(**changes)
        worker = RegionWorker(table(theirs.vocab), theirs, engine.door)
        with pytest.raises(ProfileError) as caught:
            worker.start()
        assert caught.value.field in names
        with pytest.raises(ProfileError) as caught:
            engine.wait_connected(0.2)
        assert caught.value.field in names
        assert 1 == engine.stats()["mismatches"]
        with RegionWorker(table(), profile_of(), engine.door):
            engine.wait_connected(30)
            assert WHOLE == one_round(engine)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(KEY, None), (KEY, KEY[::-1]), (None, KEY)],
    ids=["none", "another", "not wanted"],
)
def test_without_the_engines_key_nobody_gets_the_region(ours, theirs):
    with waiting(psk=ours) as engine:
        worker = RegionWorker(table(), profile_of(), engine.door, theirs)
        with pytest.raises(LinkError):
            worker.start()
        assert NO_SESSION == one_round(engine)
        assert 0 == engine.stats()["proxy_starts"]
        with RegionWorker(table(), profile_of(), engine.door, ours):
            engine.wait_connected(30)
            assert WHOLE == one_round(engine)


def test_another_user_is_let_in_at_neither_end(monkeypatch):
    """Who connected, and who listens, is what the kernel says, and here a lie."""
    real = door_module.pidfd_of
    with waiting() as engine:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
        worker = RegionWorker(table(), profile_of(), engine.door)
        with pytest.raises(LinkError, match="of user 12345, found user"):
            worker.start()
        monkeypatch.setattr("pp3shm.proxy.admission.peer_of", lambda _: (1, 12345))
        worker = RegionWorker(table(), profile_of(), engine.door)
        with pytest.raises(LinkError):
            worker.start()
        assert 0 == engine.stats()["proxy_starts"]
        monkeypatch.undo()
        assert real is door_module.pidfd_of
        with RegionWorker(table(), profile_of(), engine.door):
            engine.wait_connected(30)


RUBBISH = {
    "nothing": b"",
    "HTTP": b"GET / HTTP/1.1\r\n\r\n" + b" " * 60,
    "no frame": b"PP3R" + bytes(60),
    "half a HELLO": b"PP3RPP3F",
    "a STEP": b"PP3R" + struct.pack("<4sHHIIQ16s", b"PP3F", 1, 3, 0, 100, 0, b"s" * 16),
    "4 GiB": b"PP3R"
    + struct.pack("<4sHHIIQ16s", b"PP3F", 1, 1, 0, 2**32 - 1, 0, b"s" * 16),
}


@pytest.mark.parametrize("said", RUBBISH)
@pytest.mark.parametrize("stays", [False, True], ids=["gone", "stays"])
def test_whoever_says_rubbish_at_the_door_gets_nothing_and_keeps_nobody_out(
    said, stays
):
    with waiting() as engine, contextlib.ExitStack() as guests:
        name = b"\0" + engine.door.removeprefix("region://@").encode()
        for _ in range(5):
            guest = guests.enter_context(socket.socket(socket.AF_UNIX))
            guest.connect(name)
            guest.sendall(RUBBISH[said])
            if not stays:
                guest.close()
        with RegionWorker(table(), profile_of(), engine.door):
            engine.wait_connected(30)
            assert WHOLE == one_round(engine)
            assert 1 == engine.stats()["proxy_starts"]


def test_a_proxy_that_dials_a_door_by_mistake_does_not_get_the_region():
    with waiting() as engine:
        unix = engine.door.replace("region://", "unix://")
        with pytest.raises(LinkError):
            Engine.create(
                profile_of(), worker=unix, proxy="thread", connect_timeout_s=0.5
            )
        assert 0 == engine.stats()["proxy_starts"]


def test_only_an_engine_with_a_door_has_one():
    with (
        connected("thread", profile_of()) as engine,
        pytest.raises(ConfigError, match="worker"),
    ):
        _ = engine.door


@pytest.mark.parametrize(
    "door", ["region://", "unix://@name", "region://name", "region://@", "region:/x"]
)
def test_a_door_that_is_none_is_refused_by_name(door):
    with pytest.raises(ConfigError, match="door"):
        RegionWorker(table(), profile_of(), door)


@pytest.mark.parametrize("door", ["region://name", "region://@", "region:/x"])
def test_an_engine_refuses_a_door_that_is_none(door):
    with pytest.raises(ConfigError, match="worker"):
        Engine.create(profile_of(), worker=door)


def test_a_door_that_another_engine_keeps_is_refused():
    with waiting() as engine, pytest.raises(LinkError, match="address to listen at"):
        Engine.create(profile_of(), worker=engine.door)


# -- the data path ---------------------------------------------------------------------


def test_requests_begin_grow_and_end_as_over_a_socket():
    """Resets, commits beyond a STEP, closed slots: a drafter sees the same."""

    class Watching:
        def __init__(self):
            self.seen = []

        def logits(self, rows, drafted):
            if not drafted.shape[1]:
                self.seen.append(
                    [(row.slot, row.generation, row.prefix.tolist()) for row in rows]
                )
            return np.zeros((len(rows), 64), np.float32)

    def life(way):
        watching = Watching()
        with connected(way, profile_of(), watching) as engine:
            engine.reset(0, [1, 2])
            engine.reset(1, [])
            for turn in range(6):
                one_round(engine)
                engine.commit(0, [turn, turn + 1])
                engine.commit(1, list(range(20)))  # more than a STEP carries
            engine.close_slot(1)
            engine.reset(1, [9])
            engine.reset(0, list(range(64)))
            one_round(engine)
        return watching.seen

    seen = life("region")
    assert 7 == len(seen)
    assert life("thread") == seen


def test_tokens_of_a_round_that_was_never_drafted_are_restated():
    with waiting() as engine:
        one_round(engine)  # nobody there: its tokens are lost
        engine.commit(0, [1, 2])
        one_round(engine)
        engine.commit(0, [3])
        with RegionWorker(table(), profile_of(), engine.door) as worker:
            engine.wait_connected(30)
            assert WHOLE == one_round(engine)
            engine.commit(0, [4])
            engine.cancel(engine.step([Row(0)]))
            engine.commit(0, [5])
            assert WHOLE == one_round(engine)
            assert worker.stats()["rows_ok"] >= 4


def changed(**arrays):
    def spoil(profile, body):
        whole = decode_reply(profile, body)
        return encode_reply(profile, dataclasses.replace(whole, **arrays))

    return spoil


def q_with(value):
    q = np.full((2, 5, 32), 1 / 32, np.float32)
    q[0, 0, 3] = value
    return q


def ids_with(value):
    ids = np.tile(np.arange(32, dtype=np.int32), (2, 5, 1))
    ids[1, 4, 31] = value
    return ids


TRAILER = reply_packing(2, 5, True).offset["trailer"]

SPOILS = {
    "frame": lambda _profile, body: body[:-4],
    "echo": changed(generation=np.array([1, 99], np.uint32)),
    "header": changed(round=12345),
    "trailer": lambda _profile, body: body[:TRAILER] + b"PP4Q" + body[TRAILER + 4 :],
    "mask": changed(mask=np.array([1, 0], np.int32)),
    "token": changed(tokens=np.full((2, 5), 64, np.int32)),
    "support": changed(ids=ids_with(64)),
    "probability": changed(q=q_with(np.nan)),
    "mass": changed(q=q_with(2 / 32)),
}


def spoiling(spoils, real=NearSession.answer):
    """A session that spoils what it has written, or not, one after the other."""

    def answer(self, body, n):
        spoil, size = next(spoils), real(self, body, n)
        if spoil is None:
            return size
        room = self._forms[n]._room
        spoiled = spoil(self.profile, bytes(room[:size]))
        room[: len(spoiled)] = spoiled
        return len(spoiled)

    return answer


@pytest.mark.parametrize("reason", SPOILS)
def test_a_reply_that_fails_a_check_is_never_published(reason, monkeypatch, eventually):
    """The worker's own faults meet the same ten checks, counters and incidents."""
    spoils = itertools.chain([SPOILS[reason]], itertools.repeat(None))
    monkeypatch.setattr(NearSession, "answer", spoiling(spoils))
    with connected("region", profile_of()) as engine:
        for slot in (0, 1):
            engine.reset(slot, [5, 6, 7])
        status = int(REASON_STATUS[reason])
        if reason == "header":  # a round that nobody awaits takes ours with it
            status = int(Status.PEER_DIED)
        assert ([status] * 2, None) == one_round(engine)
        eventually(lambda: engine.stats()[reason] == 1, "the count")
        assert 0 == sum(engine.stats()[r] for r in REASONS if r != reason)
        if reason in INCIDENTS:
            eventually(lambda: engine.session_state is SessionState.INCIDENT)
            assert NO_SESSION == one_round(engine)
            assert 1 == engine.stats()["sessions"]
            assert reason in str(engine.last_error())
            engine.reopen()
        eventually(lambda: engine.stats()["sessions"] == 2, "the second session")
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)
        assert 1 == engine.stats()["proxy_starts"]


def test_an_incident_outlasts_the_worker_that_met_it(monkeypatch, eventually):
    spoils = itertools.repeat(SPOILS["mass"])
    with waiting() as engine:
        with monkeypatch.context() as patch:
            patch.setattr(NearSession, "answer", spoiling(spoils))
            with RegionWorker(table(), profile_of(), engine.door):
                engine.wait_connected(30)
                one_round(engine)
                eventually(lambda: engine.session_state is SessionState.INCIDENT)
        with RegionWorker(table(), profile_of(), engine.door):
            eventually(lambda: engine.session_state is SessionState.INCIDENT)
            assert NO_SESSION == one_round(engine)
            engine.reopen()
            engine.wait_connected(30)
            assert WHOLE == one_round(engine)


def test_what_a_session_refuses_ends_it_and_the_next_one_goes_on(
    monkeypatch, eventually
):
    real = NearSession.answer
    refusals = itertools.chain([True], itertools.repeat(False))

    def answer(self, body, n):
        if next(refusals):
            raise Refusal(Status.INVALID, "step.depth: expected 4")
        return real(self, body, n)

    monkeypatch.setattr(NearSession, "answer", answer)
    with connected("region", profile_of()) as engine:
        for slot in (0, 1):
            engine.reset(slot, [5])
        assert NO_SESSION == one_round(engine)
        assert 1 == engine.stats()["error_frames"]
        eventually(lambda: engine.stats()["sessions"] == 2, "the second session")
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


class Faulty:
    """A drafter that does what it is told: raise, be slow, give rubbish."""

    def __init__(self, profile):
        self._vocab = profile.vocab
        self.do = None
        self.ended = []
        Faulty.last = self

    def logits(self, rows, drafted):
        if self.do is not None and not drafted.shape[1]:
            given = self.do(rows)
            if given is not None:
                return given
        return np.zeros((len(rows), self._vocab), np.float32)

    def end(self, session):
        self.ended.append(session)


def raises(_rows):
    raise ValueError("on purpose")


FAULTS = {
    "raises": raises,
    "exits": lambda _rows: sys.exit(3),
    "NaN": lambda rows: np.full((len(rows), 64), np.nan, np.float32),
    "another shape": lambda rows: np.zeros((len(rows), 63), np.float32),
    "no array": lambda _rows: [1, 2],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("way", ["thread", "region"])
def test_a_drafter_that_fails_fails_its_rows_alone(fault, way, eventually):
    with connected(way, profile_of(), Faulty) as engine:
        for slot in (0, 1):
            engine.reset(slot, [5])
        assert WHOLE == one_round(engine)
        Faulty.last.do = FAULTS[fault]
        assert ([Status.WORKER_ERROR] * 2, None) == one_round(engine)
        eventually(lambda: engine.stats()["row_status_6"] == 2, "the count")
        Faulty.last.do = None
        assert WHOLE == one_round(engine)
        assert 1 == engine.stats()["sessions"]


@pytest.mark.parametrize("way", ["thread", "region"])
def test_a_late_reply_is_dropped_and_counted_and_the_next_round_is_whole(
    way, eventually
):
    going = threading.Event()
    with connected(way, profile_of(), Faulty) as engine:
        for slot in (0, 1):
            engine.reset(slot, [5])
        Faulty.last.do = lambda _rows: going.wait(60) and None
        assert Status.TIMEOUT == one_round(engine, timeout_s=0.05)[1]
        Faulty.last.do = None
        going.set()
        eventually(lambda: engine.stats()["late"] == 1, "the late reply")
        assert WHOLE == one_round(engine)
        assert 1 == engine.stats()["sessions"]


def test_a_drafter_that_cannot_be_made_is_no_session_until_it_can(eventually):
    working = threading.Event()

    def factory(profile):
        if not working.is_set():
            raise RuntimeError("no weights yet")
        return table(profile.vocab)

    with waiting() as engine, RegionWorker(factory, profile_of(), engine.door):
        eventually(lambda: engine.stats()["dials_failed"] > 0, "a failed start")
        assert NO_SESSION == one_round(engine)
        assert "drafter" in str(engine.last_error())
        working.set()
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


@pytest.mark.parametrize("worse", ["length", "version"])
def test_hostile_slots_are_an_error_and_never_a_crash(worse):
    with connected("region", profile_of()) as engine:
        for slot in (0, 1):
            engine.reset(slot, [5])
        assert WHOLE == one_round(engine)
        slots = engine._ring.region.view("slots")
        if worse == "length":
            slots[16:24] = (2**60).to_bytes(8, "little")
        else:
            slots[0:8] = (7).to_bytes(8, "little")  # being written, for ever
        engine.reset(1, [6])  # a round of both has one to restate
        engine._slots.opened(0, np.array([5], np.int32))
        statuses, _ = one_round(engine)
        assert Status.OK != statuses[0]
        assert 0 == engine.stats()["proxy_deaths"]


def test_hostile_state_words_end_no_worker_by_a_signal():
    rng = random.Random(SEED)
    print("seed", SEED)
    with (
        waiting(rounds=4) as engine,
        RegionProcess(engine.door, engine.profile) as worker,
    ):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)
        control = engine._ring.region.view("control")
        at = len(control) - 8 * 8 - 4 * 256  # the entries, before 8 give words
        held = bytes(control[at : at + 4 * 256])
        for _ in range(200):
            word = rng.choice((rng.getrandbits(64), (7 << 24) | 0xFFFFF))
            place = at + 256 * rng.randrange(4)
            control[place : place + 8] = word.to_bytes(8, "little")
            control[place + 8 : place + 16] = (word >> 24).to_bytes(8, "little")
            time.sleep(0.0005)
        control[at : at + 4 * 256] = held
        # It may have ended by an error of one line, but by no signal.
        if worker.process.poll() is None:
            worker.process.terminate()
        status, said = worker.finish()
        assert status >= 0, (status, said)


def test_all_ranks_see_the_same_reply():
    profile = profile_of()
    with (
        connected("region", profile, ranks=2) as engine,
        RankProcess(engine.invitation, profile) as other,
    ):
        engine.wait_ranks(30)
        engine.reset(0, [1])
        for _ in range(20):
            ticket = engine.step([Row(0)], timeout_s=10)
            other.tell(ticket)
            with engine.reply(ticket) as reply:
                found = other.answer()
                assert found.before == found.after
                assert reply.status.tolist() == found.statuses


# -- death -----------------------------------------------------------------------------


def test_a_killed_worker_fails_its_round_at_once_and_the_next_one_may_come(
    tmp_path, eventually
):
    slow = tmp_path / "slow_drafter.py"
    slow.write_text(
        "import time\n"
        "import numpy as np\n"
        "class Slow:\n"
        "    def __init__(self, profile):\n"
        "        self.vocab = profile.vocab\n"
        "    def logits(self, rows, drafted):\n"
        "        time.sleep(3600)\n"
    )
    profile = profile_of()
    with waiting(profile) as engine:
        words = [
            *(sys.executable, "-m", "pp3shm", "worker", "--region", engine.door),
            *("--sampled", "--drafter", "slow_drafter:Slow", "--vocab", "64"),
            *("--depth", "5", "--max-slots", "2", "--max-positions", "512"),
        ]
        with subprocess.Popen(words, cwd=tmp_path) as process:
            engine.wait_connected(30)
            ticket = engine.step([Row(0)], timeout_s=3600)
            while not engine._ring.word(ticket) & 255:
                time.sleep(0.001)
            owner = engine._ring.word(ticket) & 255
            process.kill()
            with engine.reply(ticket) as reply:
                assert Status.PEER_DIED == reply.failed
        orphaned = RING_COUNTERS["rounds_orphaned"]
        # Counted after the swap that ends the round.
        eventually(lambda: 1 == engine._ring.counter(orphaned), "the count")
        with RegionWorker(table(), profile, engine.door):
            engine.wait_connected(30)
            ticket = engine.step([Row(0)], timeout_s=10)
            with engine.reply(ticket) as reply:
                assert Status.OK == reply.status[0]
            assert owner != engine._ring.word(ticket) & 255
        assert 1 == engine.stats()["proxy_deaths"]
        assert 2 == engine.stats()["proxy_starts"]


def test_rounds_are_resolved_whatever_is_killed_or_stopped_under_load(eventually):
    rng = random.Random(SEED)
    print("seed", SEED)
    outcomes: dict[str, int] = {}
    with waiting() as engine, RegionProcess(engine.door, engine.profile) as worker:
        engine.wait_connected(30)
        for _ in range(10):
            tickets = [
                engine.step([Row(0), Row(1)], timeout_s=0.2)
                for _ in range(rng.randint(1, engine.rounds_in_flight))
            ]
            time.sleep(rng.random() * 0.003)
            if rng.random() < 0.5:
                os.kill(worker.pid, signal.SIGSTOP)
                time.sleep(rng.random() * 0.3)
                os.kill(worker.pid, signal.SIGCONT)
            else:
                worker.kill()
                worker.start(wait=False)
            for ticket in tickets:
                with engine.reply(ticket) as reply:
                    first = reply.status.tolist()
                    word = engine._ring.word(ticket)
                    assert first[0] == first[1]
                    assert first[0] in (0, 2, 7, 8)
                    engine._ring.resolve(ticket, int(Status.TIMEOUT))
                    assert word == engine._ring.word(ticket)
                name = Status(first[0]).name
                outcomes[name] = outcomes.get(name, 0) + 1
            with contextlib.suppress(Busy):
                engine.commit(0, [rng.randrange(64)])
        print("outcomes", outcomes)
        eventually(lambda: WHOLE == one_round(engine), "a whole round", 60)


def test_pages_of_a_stopped_worker_wait_until_it_lets_go(eventually):
    with (
        waiting(rounds=2) as engine,
        RegionProcess(engine.door, engine.profile) as worker,
    ):
        engine.wait_connected(30)
        expect_fenced_page_kept(engine, worker.pid, eventually)
        os.kill(worker.pid, signal.SIGCONT)
        eventually(lambda: WHOLE == one_round(engine), "a whole round")
        assert 0 == engine.stats()["proxy_deaths"]


def test_a_stopped_worker_is_replaced_by_killing_it_first(eventually):
    """What a claim does that finds every page in quarantine."""
    with waiting() as engine, RegionProcess(engine.door, engine.profile) as worker:
        engine.wait_connected(30)
        os.kill(worker.pid, signal.SIGSTOP)
        assert engine._proxy.replace()
        eventually(lambda: worker.process.poll() == -signal.SIGKILL, "its death")
        eventually(lambda: engine.stats()["proxy_pid"] == 0, "that it is seen")
        assert not engine._proxy.replace()
        worker.close()
        worker.start()
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_is_asked_to_end_lets_go_and_leaves_the_engine_whole(
    number, eventually
):
    with waiting() as engine, RegionProcess(engine.door, engine.profile) as worker:
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)
        worker.process.send_signal(number)
        assert (0, "") == worker.finish()
        eventually(lambda: engine.stats()["proxy_pid"] == 0, "its leave")
        assert NO_SESSION == one_round(engine)


def test_an_engine_that_closes_ends_its_worker_in_order():
    with waiting() as engine, RegionProcess(engine.door, engine.profile) as worker:
        engine.wait_connected(30)
        engine.close()
        assert (0, "") == worker.finish()


DYING = """
import os, signal, sys, time
from pp3shm import Engine, Profile
profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=512)
engine = Engine.create(profile, worker="region://", kind=sys.argv[1],
                       connect_timeout_s=0)
print(engine.door, flush=True)
engine.wait_connected(60)
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(120)
    os._exit(0)
print(child, engine._ring.region.prefix, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("kind", ["memfd", "posix"])
def test_a_killed_engine_ends_its_worker_whatever_child_it_forked(kind):
    words = [sys.executable, "-W", "ignore", "-c", DYING, kind]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as engine:
        door = engine.stdout.readline().decode().strip()
        with RegionProcess(door, profile_of()) as worker:
            child, prefix = engine.stdout.readline().decode().split()
            try:
                assert -signal.SIGKILL == engine.wait(60)
                assert (0, "") == worker.finish()
            finally:
                os.kill(int(child), signal.SIGKILL)
    if kind == "posix":
        assert [] == list(Path("/dev/shm").glob(f"{prefix.lstrip('/')}*"))


def test_a_loop_that_fails_lets_go_and_another_worker_may_come(monkeypatch, eventually):
    """In the engine's own process nobody's death would tell."""
    working = NearSession.answer
    with waiting() as engine:
        monkeypatch.setattr(NearSession, "answer", lambda *_: 1 // 0)
        with RegionWorker(table(), profile_of(), engine.door) as worker:
            engine.wait_connected(30)
            assert NO_SESSION == one_round(engine)
            with pytest.raises(LinkError, match="expected to serve"):
                worker.serve_forever()
        monkeypatch.setattr(NearSession, "answer", working)
        eventually(lambda: engine.stats()["proxy_pid"] == 0, "its leave")
        with RegionWorker(table(), profile_of(), engine.door):
            engine.wait_connected(30)
            assert WHOLE == one_round(engine)


def test_an_engine_that_is_dropped_shuts_its_door(eventually):
    def held():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = held()
    for attached in (False, True, True):
        engine = Engine.create(
            profile_of(), worker="region://", connect_timeout_s=0, ranks=2
        )
        worker = RegionWorker(table(), profile_of(), engine.door)
        if attached:
            worker.start()
            engine.wait_connected(30)
        del engine
        worker.close()
        del worker
    eventually(lambda: held() <= before, "what was held")


def test_many_workers_one_after_the_other_leave_nothing_behind(eventually):
    def held():
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    def settled():
        """Once nothing comes or goes: a door that is left opens what it then needs."""
        seen = [held()]

        def still():
            seen.append(held())
            return len(seen) > 50 and len(set(seen[-50:])) == 1

        eventually(still, "a time without changes")
        return seen[-1]

    with waiting() as engine:
        with RegionWorker(table(), profile_of(), engine.door):
            engine.wait_connected(30)
        eventually(lambda: engine.stats()["proxy_pid"] == 0, "its leave")
        before = settled()
        for _ in range(10):
            with RegionWorker(table(), profile_of(), engine.door):
                engine.wait_connected(30)
                assert WHOLE == one_round(engine)
            eventually(lambda: engine.stats()["proxy_pid"] == 0, "its leave")
        for now, then in zip(settled(), before, strict=True):
            assert now <= then
        assert 11 == engine.stats()["proxy_starts"]
        assert 0 == engine.stats()["proxy_deaths"]
