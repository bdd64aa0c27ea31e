"""What a proxy makes of a worker that lies, dies, is late, or comes back."""

import itertools
import os
import signal
import zlib

import numpy as np
import pytest
from scripted_worker import ScriptedWorker, good_reply

from pp3shm import Engine, Profile, Row, Status
from pp3shm.errors import LinkError, ProfileError, RingError
from pp3shm.layout.frames import (
    HEADER_BYTES,
    ErrorBody,
    Kind,
    encode_error,
    encode_frame,
    encode_reply,
)
from pp3shm.layout.profile import Profile as WireProfile
from pp3shm.layout.tables import reply_packing
from pp3shm.layout.validate import INCIDENTS, REASON_STATUS, REASONS
from pp3shm.proxy.hands import Hands
from pp3shm.proxy.state import SessionState
from pp3shm.ring.ring import ProxyEnd

PROXIES = ("thread", "process")


def profile_of(**changes):
    parts = {"vocab": 64, "depth": 5, "max_slots": 2, "max_positions": 256}
    return Profile.sampled(**{**parts, **changes})


def connect(worker, proxy="thread", **changes):
    return Engine.create(
        worker.profile, worker=worker.address, proxy=proxy, wait="futex", **changes
    )


def one_round(engine, timeout_s=10.0):
    """The statuses of a round of slots 0 and 1, and whether it failed as a whole."""
    with engine.reply(engine.step([Row(0), Row(1)], timeout_s=timeout_s)) as reply:
        return reply.status.tolist(), reply.failed


def open_slots(engine):
    for slot in (0, 1):
        engine.reset(slot, [5, 6, 7])


def changed(**arrays):
    """A spoil that replaces arrays of the reply and makes the CRC again."""

    def spoil(frame, step, worker):
        del frame
        return worker.reply_frame(step, **arrays)

    return spoil


def patched(at, data):
    """A spoil that overwrites bytes and leaves the CRC as it was."""

    def spoil(frame, step, worker):
        del step, worker
        return frame[:at] + data + frame[at + len(data) :]

    return spoil


def remade(at, data):
    """A spoil that overwrites bytes and makes the CRC again."""

    def spoil(frame, step, worker):
        del step, worker
        frame = bytearray(frame)
        frame[at : at + len(data)] = data
        frame[-4:] = zlib.crc32(frame[HEADER_BYTES:-4]).to_bytes(4, "little")
        return bytes(frame)

    return spoil


TRAILER_AT = reply_packing(2, 5, True).offset["trailer"]


def ids_with(value):
    ids = np.tile(np.arange(32, dtype=np.int32), (2, 5, 1))
    ids[1, 4, 31] = value
    return ids


def q_with(value):
    q = np.full((2, 5, 32), 1 / 32, np.float32)
    q[0, 0, 3] = value
    return q


SPOILS = {
    "frame": patched(0, b"XXXX"),
    "crc": patched(60, b"\xff"),
    "header": lambda _f, step, worker: encode_frame(
        Kind.REPLY,
        worker.sessions[-1],
        worker.sent,
        encode_reply(
            worker.profile,
            good_reply(worker.profile, step, round=step.round + 1000),
        ),
        2,
    ),
    "echo": changed(generation=np.array([1, 99], np.uint32)),
    "trailer": remade(HEADER_BYTES + TRAILER_AT, b"PP4Q"),
    "mask": changed(mask=np.array([1, 0], np.int32)),
    "token": changed(tokens=np.full((2, 5), 64, np.int32)),
    "support": changed(ids=ids_with(64)),
    "probability": changed(q=q_with(np.nan)),
    "mass": changed(q=q_with(2 / 32)),
}


@pytest.mark.parametrize("reason", SPOILS)
@pytest.mark.parametrize("proxy", PROXIES)
def test_a_refused_reply_fails_its_round_and_is_counted_by_reason(
    reason, proxy, eventually
):
    spoils = itertools.chain([SPOILS[reason]], itertools.repeat(None))

    def once(frame, step, worker):
        spoil = next(spoils)
        return frame if spoil is None else spoil(frame, step, worker)

    with ScriptedWorker(profile_of(), once) as worker, connect(worker, proxy) as engine:
        open_slots(engine)
        status = int(REASON_STATUS[reason])
        if reason == "header":  # a round that nobody awaits takes ours with it
            status = int(Status.PEER_DIED)
        if reason == "frame":  # refused by its header: whose reply it was is unknown
            status = int(Status.PEER_DIED)
        assert ([status, status], None) == one_round(engine)
        eventually(lambda: engine.stats()[reason] == 1, "the count")
        assert 0 == sum(engine.stats()[r] for r in REASONS if r != reason)
        if reason in INCIDENTS:
            eventually(lambda: engine.session_state is SessionState.INCIDENT)
            assert ([Status.PEER_DIED] * 2, None) == one_round(engine)
            assert 1 == engine.stats()["sessions"]
            assert reason in str(engine.last_error())
            engine.reopen()
        eventually(lambda: engine.stats()["sessions"] == 2, "the second session")
        engine.wait_connected(10)
        assert ([Status.OK] * 2, None) == one_round(engine)
        assert [Kind.ERROR] == worker.heard[:1]
        assert 2 == len(set(worker.sessions))


def test_an_incident_outlasts_the_proxy_that_met_it(eventually):
    with (
        ScriptedWorker(profile_of(), SPOILS["mass"]) as worker,
        connect(worker, "process") as engine,
    ):
        open_slots(engine)
        one_round(engine)
        eventually(lambda: engine.session_state is SessionState.INCIDENT)
        pid = engine.stats()["proxy_pid"]
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: engine.stats()["proxy_pid"] not in (0, pid), "a new proxy")
        assert ([Status.PEER_DIED] * 2, None) == one_round(engine)
        assert SessionState.INCIDENT is engine.session_state
        assert 1 == engine.stats()["sessions"]
        worker.spoil = lambda frame, *_: frame
        engine.reopen()
        engine.wait_connected(10)
        assert ([Status.OK] * 2, None) == one_round(engine)


@pytest.mark.parametrize("proxy", PROXIES)
def test_a_late_reply_is_dropped_and_counted_and_the_next_round_is_whole(
    proxy, eventually
):
    held = []

    def late(frame, step, worker):
        if not held:
            held.append(frame)
            return None
        if len(held) == 1:
            held.append(None)
            worker._connection.sendall(held[0])
            worker.sent += 1
            return worker.reply_frame(step)
        return frame

    with ScriptedWorker(profile_of(), late) as worker, connect(worker, proxy) as engine:
        open_slots(engine)
        assert Status.TIMEOUT == one_round(engine, timeout_s=0.05)[1]
        assert ([Status.OK] * 2, None) == one_round(engine)
        assert 1 == engine.stats()["late"]
        assert 1 == engine.stats()["sessions"]
        eventually(lambda: engine.stats()["publications_fenced"] == 0)


@pytest.mark.parametrize("proxy", PROXIES)
def test_a_lost_session_fails_what_is_in_flight_and_restates_every_slot(
    proxy, eventually
):
    def silent(*_):
        return None

    with (
        ScriptedWorker(profile_of(), silent) as worker,
        connect(worker, proxy) as engine,
    ):
        open_slots(engine)
        tickets = [engine.step([Row(0)], timeout_s=60) for _ in range(3)]
        eventually(lambda: len(worker.steps) == 3, "three STEPs")
        before = len(worker.resets)
        worker.spoil = lambda frame, *_: frame
        worker.hang_up()
        for ticket in tickets:
            with engine.reply(ticket) as reply:
                assert Status.PEER_DIED == reply.status[0]
        engine.commit(0, [8, 9])
        eventually(lambda: len(worker.sessions) == 2, "a second session")
        engine.wait_connected(10)
        assert ([Status.OK] * 2, None) == one_round(engine)
        restated = {r.slot: r.prefix.tolist() for r in worker.resets[before:]}
        assert [5, 6, 7] == restated[0][:3]
        assert [5, 6, 7] == restated[1]
        assert 3 == engine.stats()["peer_died"]


def test_a_row_the_worker_cannot_place_is_restated_before_its_next_step():
    refuse = itertools.chain([True], itertools.repeat(False))

    def spoil(frame, step, worker):
        if not next(refuse):
            return frame
        good = good_reply(worker.profile, step)
        good.status[1] = Status.REFUSED
        good.tokens[1] = -1
        good.mask[1] = 0
        good.q[1] = 0
        body = encode_reply(worker.profile, good)
        return encode_frame(Kind.REPLY, worker.sessions[-1], worker.sent, body, 2)

    with ScriptedWorker(profile_of(), spoil) as worker, connect(worker) as engine:
        open_slots(engine)
        assert ([Status.OK, Status.REFUSED], None) == one_round(engine)
        before = len(worker.resets)
        assert ([Status.OK] * 2, None) == one_round(engine)
        assert [1] == [reset.slot for reset in worker.resets[before:]]
        assert 1 == engine.stats()["row_status_8"]


def test_tokens_of_a_round_that_was_never_sent_are_restated():
    """A round that fails before it is taken takes its committed tokens with it."""
    with ScriptedWorker(profile_of()) as worker, connect(worker) as engine:
        open_slots(engine)
        one_round(engine)
        engine.commit(0, [1, 2])
        engine.cancel(engine.step([Row(0)]))  # taken or not, both must end well
        engine.commit(0, [3])
        with engine.reply(engine.step([Row(0)], timeout_s=10)) as reply:
            assert Status.OK == reply.status[0]
        told = None
        for event in worker.events:
            if not hasattr(event, "rows"):
                told = event.prefix.tolist() if event.slot == 0 else told
                continue
            row = event.rows[0]
            start = row.position - len(row.committed)
            assert told is not None
            assert start <= len(told)
            told = told[:start] + list(row.committed)
        assert [5, 6, 7, 1, 2, 3] == told


def other_profiles():
    ours = profile_of().values()
    return {
        "vocab": {"vocab": 65},
        "depth": {"depth": 4},
        "max_slots": {"max_slots": 3},
        "max_positions": {"max_positions": 257},
        "context_bytes": {"context_bytes": 8},
        "semantic": {"semantic": "top32/tau.7/dyadic24-standard-v1"},
        **{name: {name: "a" * 64} for name in ours if name.endswith("_sha256")},
    }


@pytest.mark.parametrize("field", other_profiles())
def test_a_worker_of_another_profile_is_refused_by_the_fields_name(field):
    theirs = profile_of(**other_profiles()[field])
    with ScriptedWorker(profile_of()) as worker:
        worker.hello_answer = lambda session: encode_frame(
            Kind.HELLO_ACK, session, 0, theirs.canonical_json()
        )
        with pytest.raises(ProfileError) as caught:
            connect(worker)
    assert caught.value.field in (field, "step_bytes", "reply_bytes", "layout_bytes")
    assert getattr(profile_of(), field, None) is not None
    assert WireProfile.from_json(theirs.canonical_json()) == theirs


ANSWERS = {
    "an ERROR": lambda s: encode_frame(
        Kind.ERROR, s, 0, encode_error(ErrorBody(8, "profile.vocab: no"))
    ),
    "a REPLY": lambda s: encode_frame(Kind.REPLY, s, 0, b"x" * 100, 2),
    "another session": lambda _s: encode_frame(
        Kind.HELLO_ACK, b"z" * 16, 0, profile_of().canonical_json()
    ),
    "another sequence": lambda s: encode_frame(
        Kind.HELLO_ACK, s, 1, profile_of().canonical_json()
    ),
    "no JSON": lambda s: encode_frame(Kind.HELLO_ACK, s, 0, b"{"),
    "a length of 4 GiB": lambda s: (
        encode_frame(Kind.HELLO_ACK, s, 0, b"")[:12]
        + b"\xff" * 4
        + encode_frame(Kind.HELLO_ACK, s, 0, b"")[16:]
    ),
    "HTTP": lambda _s: b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 60,
    "nothing but bytes": lambda _s: bytes(range(256)),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_peer_that_greets_wrongly_is_an_error_of_one_line(answer):
    with ScriptedWorker(profile_of()) as worker:
        worker.hello_answer = ANSWERS[answer]
        with pytest.raises((LinkError, ProfileError)) as caught:
            connect(worker, connect_timeout_s=1)
    assert "\n" not in str(caught.value)
    assert str(caught.value)


def test_an_error_of_the_worker_ends_the_session_and_the_next_one_is_tried(eventually):
    def error(_frame, step, worker):
        return encode_frame(
            Kind.ERROR,
            worker.sessions[-1],
            worker.sent,
            encode_error(ErrorBody(5, "step.depth: expected 4", step.round)),
        )

    with ScriptedWorker(profile_of(), error) as worker, connect(worker) as engine:
        open_slots(engine)
        assert ([Status.PEER_DIED] * 2, None) == one_round(engine)
        assert 1 == engine.stats()["error_frames"]
        worker.hang_up()
        worker.spoil = lambda frame, *_: frame
        eventually(lambda: engine.stats()["sessions"] == 2, "the second session")
        engine.wait_connected(10)
        assert ([Status.OK] * 2, None) == one_round(engine)


def test_a_duplicated_reply_is_a_fault_and_changes_nothing(eventually):
    def twice(frame, step, worker):
        worker.sent += 1
        return frame + worker.reply_frame(step)

    with ScriptedWorker(profile_of(), twice) as worker, connect(worker) as engine:
        open_slots(engine)
        with engine.reply(engine.step([Row(0), Row(1)], timeout_s=10)) as reply:
            before = reply.tokens.copy()
            eventually(lambda: engine.stats()["header"] == 1, "the fault")
            assert before.tolist() == reply.tokens.tolist()
            assert [Status.OK] * 2 == reply.status.tolist()


def test_rounds_cancelled_as_fast_as_they_are_taken_never_exhaust_the_proxy():
    """More rounds than entries can be taken before they are seen to have failed."""
    with ScriptedWorker(profile_of(), lambda *_: None) as worker:
        end = FakeRing(connect(worker, connect_timeout_s=10))
        try:
            for _ in range(40):
                end.step_and_cancel()
        finally:
            end.engine.close()
        assert end.engine_stats["proxy_deaths"] == 0


class FakeRing:
    """An engine whose proxy's turns the test makes itself."""

    def __init__(self, engine):
        self.engine = engine
        open_slots(engine)
        engine._proxy._closing.set()
        engine._proxy._loop.stop()
        engine._proxy._thread.join()
        self.end = ProxyEnd.thread(engine._ring)
        self.hands = Hands(self.end, engine.profile)
        self.engine_stats = {}

    def step_and_cancel(self):
        ticket = self.engine.step([Row(0)], timeout_s=60)
        taken = self.hands.take()
        assert ticket == taken.round
        self.engine.cancel(ticket)
        self.engine_stats = self.engine.stats()


@pytest.mark.parametrize("proxy", PROXIES)
def test_short_deadlines_under_load_kill_no_proxy_and_end_no_session(proxy):
    with ScriptedWorker(profile_of()) as worker, connect(worker, proxy) as engine:
        open_slots(engine)
        for _ in range(150):
            tickets = [
                engine.step([Row(0)], timeout_s=0.001)
                for _ in range(engine.rounds_in_flight)
            ]
            for ticket in tickets:
                with engine.reply(ticket) as reply:
                    assert reply.status[0] in (Status.OK, Status.TIMEOUT)
        assert 0 == engine.stats()["proxy_deaths"]
        assert 1 == engine.stats()["sessions"]


def test_a_worker_that_falls_silent_is_owed_a_bounded_number_of_rounds():
    """What is sent to it would wait behind rounds that have failed long since."""
    with (
        ScriptedWorker(profile_of(), lambda *_: None) as worker,
        connect(worker) as engine,
    ):
        open_slots(engine)
        for _ in range(60):
            with engine.reply(engine.step([Row(0)], timeout_s=0.003)) as reply:
                assert Status.TIMEOUT == reply.status[0]
        assert len(worker.steps) <= 2 * engine.rounds_in_flight
        assert 1 == engine.stats()["sessions"]


def test_without_a_session_failed_rounds_are_not_remembered():
    with Engine.create(
        profile_of(), worker="tcp://127.0.0.1:1", proxy="thread", connect_timeout_s=0
    ) as engine:
        open_slots(engine)
        for _ in range(300):
            assert [Status.PEER_DIED] * 2 == one_round(engine)[0]
        assert set() == engine._proxy._loop._hands._resolved


@pytest.mark.parametrize("proxy", PROXIES)
def test_reopen_right_after_an_incident_is_seen_is_not_lost(proxy, eventually):
    with ScriptedWorker(profile_of()) as worker, connect(worker, proxy) as engine:
        open_slots(engine)
        for _ in range(8):
            worker.spoil = SPOILS["mass"]
            assert [Status.INVALID] * 2 == one_round(engine)[0]
            worker.spoil = lambda frame, *_: frame
            engine.reopen()
            eventually(lambda: engine.session_state is SessionState.READY, "reopening")
            assert [Status.OK] * 2 == one_round(engine)[0]


def test_an_incident_is_noted_before_its_failed_round_can_be_seen():
    """Then a proxy that is killed in between leaves no session to be opened."""
    for _ in range(5):
        with (
            ScriptedWorker(profile_of(), SPOILS["mass"]) as worker,
            connect(worker, "process") as engine,
        ):
            open_slots(engine)
            assert [Status.INVALID] * 2 == one_round(engine)[0]
            assert 1 == engine.stats()["incident"]


def test_a_thread_proxy_that_cannot_be_made_at_first_is_made_later(
    eventually, monkeypatch
):
    """As without a descriptor left: no thread of it dies for good."""
    made, fails = ProxyEnd.__init__, itertools.count()

    def init(self, *arguments):
        if next(fails) < 2:
            raise RingError("ring", "an end of it", "Too many open files")
        made(self, *arguments)

    monkeypatch.setattr(ProxyEnd, "__init__", init)
    with (
        ScriptedWorker(profile_of()) as worker,
        connect(worker, connect_timeout_s=0) as engine,
    ):
        eventually(lambda: engine.session_state is SessionState.READY, "a session")
        open_slots(engine)
        assert ([Status.OK] * 2, None) == one_round(engine)
        assert 2 == engine.stats()["proxy_deaths"]
        lives = [engine._ring.owner_dead(owner) for owner in (1, 2)]
        assert [0, 0] == lives  # were dead before
