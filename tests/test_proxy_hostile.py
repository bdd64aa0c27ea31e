"""A worker that is hostile in every way it can speak, at every moment of a session.

For each moment, kind of frame and fault: the event and the state after it are those of
the table, the round in flight is resolved by its deadline, and the next honest worker
is served.
"""

import contextlib
import functools
import itertools
import socket
import threading

import numpy as np
import pytest
from hostile_worker import (
    AWAITED,
    FAULTS,
    KINDS,
    MOMENTS,
    Moment,
    expected,
    frame_of,
    speak,
)
from scripted_worker import ScriptedWorker, honest

from pp3shm import Engine, Profile, Row, Status, Worker
from pp3shm.layout import keyproof
from pp3shm.layout.frames import Kind, Step, StepRow, encode_frame
from pp3shm.proxy import conversation, loop
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.proxy.state import TRANSITIONS, Event, SessionState, step
from pp3shm.worker.drafters import TableDrafter

TRICKLE_S = 0.1
DIAL_S = 0.2
DEADLINE_S = 5.0
FIRST = Step(1, (StepRow(0, 1, 3, 0, (), sampled=True),))
BEFORE = {
    "greeting": SessionState.DIALING,
    "idle": SessionState.READY,
    "in flight": SessionState.READY,
}


@pytest.fixture
def events(monkeypatch):
    """What every session of this test met, with the state it met it in."""
    seen = []

    def recorded(session, event, now_ns):
        after = step(session, event, now_ns)
        seen.append((session.state, event, after.state))
        return after

    monkeypatch.setattr(loop, "step", recorded)
    monkeypatch.setattr(conversation, "TRICKLE_S", TRICKLE_S)
    plan = functools.partial(ProxyPlan, dial_timeout_s=DIAL_S)
    monkeypatch.setattr("pp3shm.engine.ProxyPlan", plan)
    return seen


def _profile(**changes) -> Profile:
    parts = {"vocab": 64, "depth": 4, "max_slots": 1, "max_positions": 32}
    return Profile.sampled(**{**parts, **changes})


@pytest.fixture
def worker():
    with ScriptedWorker(_profile()) as one:
        yield one


def _engine(worker: ScriptedWorker, proxy: str = "thread") -> Engine:
    engine = Engine.create(
        worker.profile, worker=worker.address, proxy=proxy, wait="futex", rounds=2
    )
    engine.reset(0, [5, 6, 7])
    return engine


def _served(engine: Engine) -> bool:
    """One round of an honest worker, whole."""
    with engine.reply(engine.step([Row(0)], timeout_s=DEADLINE_S)) as reply:
        return bool(reply.status[0] == Status.OK)


def _in_flight(engine: Engine, worker: ScriptedWorker, kind: int, fault: str) -> int:
    """The status of a round that is answered so."""

    def spoil(_frame, asked, _worker):
        now = Moment(worker.sessions[-1], worker.sent, asked)
        with contextlib.suppress(OSError):
            speak(worker, kind, fault, now)
        worker.sent += 1

    worker.spoil = spoil
    with engine.reply(engine.step([Row(0)], timeout_s=DEADLINE_S)) as reply:
        return int(reply.status[0])


def _idle(worker: ScriptedWorker, kind: int, fault: str) -> None:
    with contextlib.suppress(OSError):
        speak(worker, kind, fault, Moment(worker.sessions[-1], worker.sent, FIRST))


def _greeting(worker: ScriptedWorker, kind: int, fault: str) -> None:
    """The next dial is answered so; the session before it ends."""

    def answer(session):
        worker.hello_answer = None
        # As if recorded in the session before, where there is no frame to say again.
        replayed = kind == Kind.HELLO_ACK and fault == "replayed"
        said = worker.sessions[0] if replayed else session
        with contextlib.suppress(OSError):
            speak(worker, kind, fault, Moment(said, 0, FIRST))
        return b""

    worker.hello_answer = answer
    worker.hang_up()


def _act(engine, worker, moment, kind, fault):
    """Speaks; the status of the round that it was about, if there was one."""
    if moment == "greeting":
        _greeting(worker, kind, fault)
    elif moment == "idle":
        _idle(worker, kind, fault)
    else:
        return _in_flight(engine, worker, kind, fault)
    return None


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"kind{int(kind)}")
@pytest.mark.parametrize("moment", MOMENTS)
def test_whatever_a_worker_says_leads_where_the_table_says(
    moment, kind, worker, events, eventually
):
    """Each fault in turn, in a session of its own; after each an honest one."""
    with _engine(worker) as engine:
        for fault in FAULTS:
            assert _served(engine)
            begin = len(events)
            status = _act(engine, worker, moment, kind, fault)
            wanted = expected(moment, kind, fault)
            if wanted is not None:
                met = (BEFORE[moment], wanted, TRANSITIONS[BEFORE[moment], wanted])
                what = f"{met} for {moment}, {kind!r}, {fault}"
                eventually(lambda b=begin, m=met: m in events[b:], what)
                first = [
                    event
                    for event in events[begin:]
                    if event[1] not in (Event.DIAL, Event.ANSWERED)
                ]
                if moment == "greeting":  # that the test hung up comes before
                    assert first.pop(0)[:2] == (SessionState.READY, Event.LOST), first
                assert first[0] == met, (moment, kind, fault, first)
            if status is not None:
                assert (status == Status.OK) == (wanted is None), (kind, fault, status)
                assert status in (Status.OK, Status.CORRUPT, Status.PEER_DIED)
            worker.spoil = honest
            eventually(lambda: _served(engine), "an honest worker's round")
        assert engine.stats()["proxy_deaths"] == 0
        assert engine.session_state is SessionState.READY
    for before, event, after in events:
        assert TRANSITIONS[before, event] is after


@pytest.mark.parametrize("moment", MOMENTS)
def test_silence_costs_a_round_its_time_and_no_more(moment, worker, events, eventually):
    """Nothing is said at all: the deadline is the round's, the session goes on."""
    with _engine(worker) as engine:
        assert _served(engine)
        begin = len(events)
        if moment == "greeting":
            worker.hello_answer = lambda _session: b""
            worker.hang_up()
            met = (SessionState.DIALING, Event.UNREACHABLE, SessionState.WAITING)
            eventually(lambda: met in events[begin:], "the time-out")
            worker.hello_answer = None
            eventually(lambda: _served(engine), "an honest worker's round")
            return
        worker.spoil = lambda *_: None
        for _ in range(3 if moment == "in flight" else 0):
            with engine.reply(engine.step([Row(0)], timeout_s=0.02)) as reply:
                assert reply.status[0] == Status.TIMEOUT
        worker.spoil = honest
        assert [] == events[begin:]
        if moment == "idle":
            assert _served(engine)


def test_the_table_names_every_event_that_a_worker_can_cause():
    """And no state that the machine does not know."""
    caused = {expected(m, k, f) for m in MOMENTS for k in KINDS for f in FAULTS}
    assert {None, Event.ACCEPTED, Event.UNREACHABLE, Event.LOST, Event.FAULT} == caused
    # MISMATCH and INCIDENT are said by bodies: the tests below and test_proxy_faults
    for moment in MOMENTS:
        for event in caused - {None, Event.ACCEPTED}:
            possible = (BEFORE[moment], event) in TRANSITIONS
            told = any(expected(moment, k, f) is event for k in KINDS for f in FAULTS)
            assert possible or not told
    assert set(AWAITED) == set(MOMENTS)


def test_a_proxy_process_meets_the_same(worker, eventually):
    """Its death would be seen; what it cannot be seen to meet, its rounds show."""
    with _engine(worker, "process") as engine:
        for kind, fault in itertools.product(KINDS, ("valid", "oversize", "wrong crc")):
            eventually(lambda: _served(engine), "an honest worker's round")
            status = _in_flight(engine, worker, kind, fault)
            wanted = expected("in flight", kind, fault)
            assert (status == Status.OK) == (wanted is None), (kind, fault, status)
            worker.spoil = honest
        eventually(lambda: _served(engine), "an honest worker's round")
        assert engine.stats()["proxy_deaths"] == 0


def _say_everything(connection, worker) -> None:
    """Every frame with every fault, over a connection that is no session any more."""
    for kind in KINDS:
        for fault in FAULTS:
            frame = frame_of(worker, kind, fault, Moment(worker.sessions[-1], 1, FIRST))
            with contextlib.suppress(OSError):
                connection.sendall(frame)


def _lose_by_incident(engine, worker):
    """A reply that adds up to more than 1."""
    q = np.full((1, 4, 32), 2 / 32, np.float32)

    def spoil(_frame, asked, _worker):
        return worker.reply_frame(asked, q=q)

    worker.spoil = spoil
    with engine.reply(engine.step([Row(0)], timeout_s=DEADLINE_S)) as reply:
        assert reply.status[0] == Status.INVALID


def _lose_by_mismatch(_engine, worker):
    """A profile that differs at the next greeting."""
    other = _profile(vocab=65).canonical_json()
    worker.hello_answer = lambda s: encode_frame(Kind.HELLO_ACK, s, 0, other)
    worker.hang_up()


@pytest.mark.parametrize(
    ("lose", "held"),
    [
        (_lose_by_incident, SessionState.INCIDENT),
        (_lose_by_mismatch, SessionState.REFUSED),
    ],
    ids=["INCIDENT", "REFUSED"],
)
def test_a_session_that_only_the_user_opens_is_opened_by_no_word(
    lose, held, worker, events, eventually
):
    """Whatever the worker says on; rounds fail at once meanwhile."""
    with _engine(worker) as engine:
        assert _served(engine)
        old = worker._connection.dup()
        lose(engine, worker)
        end = (SessionState.READY, Event.INCIDENT, SessionState.INCIDENT)
        if held is SessionState.REFUSED:
            end = (SessionState.DIALING, Event.MISMATCH, SessionState.REFUSED)
        eventually(lambda: end in events, "the state")
        begin = len(events)
        _say_everything(old, worker)
        with engine.reply(engine.step([Row(0)], timeout_s=DEADLINE_S)) as reply:
            assert reply.status[0] == Status.PEER_DIED
        assert (held, []) == (engine.session_state, events[begin:])
        worker.spoil, worker.hello_answer = honest, None
        engine.reopen()
        engine.wait_connected(30)
        eventually(lambda: _served(engine), "an honest worker's round")
        old.close()


def test_words_of_a_dead_session_reach_no_later_one(worker, events, eventually):
    """WAITING and DIALING: what comes over the old connection is heard by nobody."""
    with _engine(worker) as engine:
        assert _served(engine)
        old = worker._connection.dup()
        worker.hello_answer = lambda _session: b"HTTP/1.1 400 no\r\n" * 4
        _idle(worker, Kind.BYE, "valid")
        lost = (SessionState.READY, Event.LOST, SessionState.WAITING)
        eventually(lambda: lost in events, "the end of the session")
        for _ in range(3):
            _say_everything(old, worker)
            with engine.reply(engine.step([Row(0)], timeout_s=DEADLINE_S)) as reply:
                assert reply.status[0] == Status.PEER_DIED
        told = {event for _, event, _ in events[events.index(lost) + 1 :]}
        assert told <= {Event.DIAL, Event.UNREACHABLE}
        worker.hello_answer = None
        eventually(lambda: _served(engine), "an honest worker's round")
        old.close()


def test_words_after_the_end_are_heard_by_nobody(worker, events):
    """CLOSED: the last state, whatever is said."""
    with _engine(worker) as engine:
        assert _served(engine)
        old = worker._connection.dup()
    end = events[-1]
    assert end[1:] == (Event.STOP, SessionState.CLOSED)
    _say_everything(old, worker)
    assert events[-1] == end
    old.close()


KEY = b"a key of twenty-four by."
PROOFS = {
    "silence": lambda _first: b"",
    "a HELLO_ACK at once": lambda _first: b"PP3F" + bytes(300),
    "another magic": lambda _first: b"PP3X" + bytes(64),
    "no tag of the key": lambda _first: b"PP3K" + bytes(64),
    "half of it": lambda _first: b"PP3K" + bytes(20),
    "our own challenge": lambda first: first + bytes(32),
    "another's answer": lambda first: keyproof.answer(b"k" * 16, first[4:], bytes(32)),
    "the answer to another": lambda _f: keyproof.answer(KEY, bytes(32), bytes(32)),
    "a tag of the other role": lambda first: (
        b"PP3K" + bytes(32) + keyproof.second(KEY, first[4:], bytes(32))[4:]
    ),
}


@pytest.mark.parametrize("proof", PROOFS)
def test_a_worker_that_cannot_prove_the_key_hears_nothing_more(
    proof, tmp_path, events, eventually
):
    """Not even HELLO; and one that can is served at the same address."""
    path, profile, heard = tmp_path / "worker", _profile(), []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def lie() -> None:
        with listener, listener.accept()[0] as link:
            path.unlink()
            first = link.recv(1000)
            link.sendall(PROOFS[proof](first))
            with contextlib.suppress(ConnectionError):
                while said := link.recv(1000):
                    heard.append(said)

    liar = threading.Thread(target=lie)
    liar.start()
    with Engine.create(
        profile,
        worker=f"unix://{path}",
        proxy="thread",
        psk=KEY,
        rounds=2,
        connect_timeout_s=0,
    ) as engine:
        engine.reset(0, [5, 6, 7])
        liar.join(30)
        lost = (SessionState.DIALING, Event.UNREACHABLE, SessionState.WAITING)
        eventually(lambda: lost in events, "the end of the dial")
        assert [] == heard
        assert not _served(engine)
        table = np.zeros((64, 64), np.float32)
        with Worker(TableDrafter(table), profile, [f"unix://{path}"], psk=KEY):
            eventually(lambda: _served(engine), "an honest worker's round")
        assert {event for _, event, _ in events} <= {
            Event.DIAL,
            Event.UNREACHABLE,
            Event.ACCEPTED,
            Event.ANSWERED,
            Event.LOST,
        }


def test_a_worker_that_reads_nothing_holds_no_round_beyond_its_deadline(
    worker, events, eventually
):
    """A prefix larger than any buffer between: the send waits, the rounds do not."""
    worker.profile = _profile(max_positions=4_000_000)
    deaf = threading.Event()

    def greet(session):
        worker.hello_answer = None
        worker._connection.sendall(
            encode_frame(Kind.HELLO_ACK, session, 0, worker.profile.canonical_json())
        )
        deaf.wait(30)
        return b""

    with Engine.create(
        worker.profile, worker=worker.address, proxy="thread", rounds=2, wait="futex"
    ) as engine:
        engine.reset(0, [5] * 3_000_000)
        assert _served(engine)
        worker.hello_answer = greet
        worker.hang_up()
        for _ in range(4):
            with engine.reply(engine.step([Row(0)], timeout_s=0.1)) as reply:
                assert reply.status[0] in (Status.TIMEOUT, Status.PEER_DIED)
        lost = (SessionState.READY, Event.LOST, SessionState.WAITING)
        eventually(lambda: events.count(lost) == 2, "the end of the deaf session")
        deaf.set()
        eventually(lambda: _served(engine), "an honest worker's round")
        assert engine.stats()["proxy_deaths"] == 0
