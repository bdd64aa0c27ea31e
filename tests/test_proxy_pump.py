"""The pump: frames however they come, rounds in any order, an end at any moment."""

import contextlib
import random
import socket
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pump_rig import SESSION, Rig
from scripted_worker import ScriptedWorker

from pp3shm import Engine, Profile, Row, Status
from pp3shm._core import ffi, lib
from pp3shm.layout.frames import (
    HEADER_BYTES,
    ErrorBody,
    Kind,
    encode_error,
    encode_frame,
)
from pp3shm.layout.validate import REASONS
from pp3shm.proxy.pump import Pump
from pp3shm.ring.waiting import Waiting

SEED = 20261130


@pytest.fixture
def rig():
    with Rig() as made:
        yield made


def test_a_round_goes_out_and_its_reply_is_published(rig):
    ticket = rig.ask()
    assert lib.PP3_PUMP_IDLE == rig.pump()
    (step,) = rig.heard()
    assert ticket == step.round
    rig.worker.sendall(rig.reply(step))
    assert lib.PP3_PUMP_IDLE == rig.pump()
    assert Status.OK == rig.status(ticket)
    assert (1, 1) == (rig.board.get("steps_sent"), rig.board.get("replies"))
    assert 2 == rig.board.get("pump_returns")
    assert 2 == rig.pump.c.received


def test_a_reply_may_be_cut_at_every_byte(rig):
    size = len(rig.reply(probe_step(rig)))
    rig.replied -= 1
    for cut in range(size + 1):
        ticket = rig.ask()
        rig.pump()
        (step,) = rig.heard()
        frame = rig.reply(step)
        rig.worker.sendall(frame[:cut])
        rig.pump()
        assert cut == size or rig.ring.is_open(ticket)
        rig.worker.sendall(frame[cut:])
        rig.pump()
        assert Status.OK == rig.status(ticket), cut


def probe_step(rig):
    ticket = rig.ask()
    rig.pump()
    (step,) = rig.heard()
    rig.ring.resolve(ticket, int(Status.TIMEOUT))
    rig.status(ticket)
    rig.pump()
    return step


def test_several_replies_come_in_one_read():
    with Rig(rounds=8) as rig:
        tickets = [rig.ask() for _ in range(8)]
        rig.pump()
        steps = rig.heard()
        assert tickets == [step.round for step in steps]
        rig.worker.sendall(b"".join(map(rig.reply, steps)))
        rig.pump()
        assert [Status.OK] * 8 == [rig.status(ticket) for ticket in tickets]


def test_more_replies_than_the_buffer_holds_all_arrive():
    with Rig(slots=4, rounds=32) as rig:
        rig.worker.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        for _ in range(3):
            tickets = [rig.ask(slots=4) for _ in range(32)]
            rig.pump()
            frames = b"".join(map(rig.reply, rig.heard()))
            while frames:
                with contextlib.suppress(BlockingIOError):
                    frames = frames[rig.worker.send(frames) :]
                assert lib.PP3_PUMP_IDLE == rig.pump()
            assert [Status.OK] * 32 == [rig.status(ticket) for ticket in tickets]


def test_replies_out_of_order_find_their_rounds():
    with Rig(rounds=8) as rig:
        tickets = [rig.ask() for _ in range(8)]
        rig.pump()
        steps = rig.heard()
        random.Random(SEED).shuffle(steps)
        for step in steps:
            rig.worker.sendall(rig.reply(step))
            rig.pump()
            assert Status.OK == rig.status(step.round)
        assert not any(map(rig.ring.is_open, tickets))


def test_a_reply_to_a_round_that_failed_meanwhile_is_late_and_no_fault(rig):
    tickets = [rig.ask() for _ in range(2)]
    rig.pump()
    steps = rig.heard()
    rig.ring.resolve(tickets[0], int(Status.TIMEOUT))
    rig.pump()
    assert {tickets[0]} == rig.hands._resolved
    rig.worker.sendall(b"".join(map(rig.reply, steps)))
    assert lib.PP3_PUMP_IDLE == rig.pump()
    assert [Status.TIMEOUT, Status.OK] == [rig.status(ticket) for ticket in tickets]
    assert (1, 1) == (rig.board.get("late"), rig.board.get("replies"))
    assert set() == rig.hands._resolved


def test_a_worker_that_owes_two_replies_an_entry_is_asked_no_more(rig):
    for _ in range(8):
        ticket = rig.ask()
        rig.pump()
        rig.ring.resolve(ticket, int(Status.TIMEOUT))
        rig.status(ticket)
        rig.pump()
    ticket = rig.ask()
    rig.pump()
    steps = rig.heard()
    assert 8 == len(steps)
    rig.worker.sendall(rig.reply(steps[0]))
    rig.pump()
    rig.pump()
    assert [ticket] == [step.round for step in rig.heard()]


BAD_HEADERS = {
    "magic": (0, b"XP3F"),
    "version": (4, b"\x02\x00"),
    "kind of a STEP": (6, b"\x03\x00"),
    "kind of nothing": (6, b"\x63\x00"),
    "unknown flag": (8, b"\x01\x00\x00\x00"),
    "a byte more": (12, (1381).to_bytes(4, "little")),
    "a byte less": (12, (1375).to_bytes(4, "little")),
    "4 GiB": (12, b"\xff" * 4),
    "nothing": (12, b"\x00" * 4),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_header_that_must_not_come_is_refused_before_its_body(rig, name):
    rig.ask()
    rig.pump()
    frame = bytearray(rig.reply(*rig.heard()))
    at, data = BAD_HEADERS[name]
    assert data != frame[at : at + len(data)]
    frame[at : at + len(data)] = data
    rig.worker.sendall(frame[: HEADER_BYTES - 1])
    assert lib.PP3_PUMP_IDLE == rig.pump()
    rig.worker.sendall(frame[HEADER_BYTES - 1 : HEADER_BYTES])
    assert lib.PP3_PUMP_HEADER == rig.pump()
    assert bytes(frame[:HEADER_BYTES]) == bytes(
        ffi.buffer(rig.pump.c.frame, rig.pump.c.frame_bytes)
    )


@pytest.mark.parametrize("length", [0, 20, 21, 1044, 1045, 2**31])
def test_an_error_is_taken_up_to_its_longest_text(rig, length):
    body = encode_error(ErrorBody(5, "x" * min(1024, max(0, length - 20))))
    frame = bytearray(encode_frame(Kind.ERROR, SESSION, 1, body))
    frame[12:16] = length.to_bytes(4, "little")
    rig.worker.sendall(frame)
    allowed = 20 <= length <= 1044
    assert rig.pump() == (lib.PP3_PUMP_FRAME if allowed else lib.PP3_PUMP_HEADER)


@pytest.mark.parametrize("sent", [0, 1, HEADER_BYTES, HEADER_BYTES + 1, -1])
def test_a_peer_that_closes_anywhere_in_a_frame_is_lost(rig, sent):
    ticket = rig.ask()
    rig.pump()
    rig.worker.sendall(rig.reply(*rig.heard())[:sent])
    rig.worker.close()
    why = rig.pump()
    while why == lib.PP3_PUMP_IDLE:
        why = rig.pump()
    assert lib.PP3_PUMP_LOST == why
    assert rig.ring.is_open(ticket)


def test_a_whole_reply_before_the_close_counts(rig):
    ticket = rig.ask()
    rig.pump()
    rig.worker.sendall(rig.reply(*rig.heard()))
    rig.worker.close()
    while rig.pump() != lib.PP3_PUMP_LOST:
        pass
    assert Status.OK == rig.status(ticket)


def test_a_frame_that_trickles_ends_the_session(rig):
    rig.worker.sendall(b"PP3F")
    rig.pump()
    rig.pump.c.trickle_ns = 1
    while (why := rig.pump()) == lib.PP3_PUMP_IDLE:
        pass
    assert lib.PP3_PUMP_TRICKLE == why


def fill(rig):
    """Rounds of long STEPs until half of one has left."""
    while rig.pump.c.out_bytes == 0:
        rig.ask()
        assert lib.PP3_PUMP_IDLE == rig.pump()


def test_a_worker_that_reads_slowly_gets_every_step_whole():
    with Rig(rounds=64, context_bytes=60_000) as rig:
        fill(rig)
        in_hand = rig.hands.c.in_hand
        rig.ask()  # waits: its copy would stand where half a STEP still goes out
        rig.pump()
        assert in_hand == rig.hands.c.in_hand
        got = []
        while len(got) <= in_hand:
            got += rig.heard()
            assert lib.PP3_PUMP_IDLE == rig.pump()
        assert list(range(1, in_hand + 2)) == [step.round for step in got]


def test_a_worker_that_reads_nothing_is_given_up():
    with Rig(rounds=64, context_bytes=60_000) as rig:
        fill(rig)
        rig.pump.c.send_ns = 1
        assert lib.PP3_PUMP_UNTAKEN == rig.pump()


SPOILED = {
    "frame": {},
    "echo": {"generation": np.array([9], np.uint32)},
    "mask": {"mask": np.zeros(1, np.int32)},
    "token": {"tokens": np.full((1, 5), 64, np.int32)},
    "mass": {"q": np.full((1, 5, 32), 1 / 64, np.float32)},
}


@pytest.mark.parametrize("reason", SPOILED)
def test_a_refused_reply_leaves_its_round_in_hand(rig, reason):
    ticket = rig.ask()
    rig.pump()
    rig.replied += reason == "frame"  # out of sequence
    rig.worker.sendall(rig.reply(*rig.heard(), **SPOILED[reason]))
    assert lib.PP3_PUMP_REFUSED == rig.pump()
    assert reason == REASONS[rig.pump.error - 1]
    assert ticket == rig.pump.subject.round
    assert rig.ring.is_open(ticket)
    assert rig.hands.fail(rig.pump.subject, Status.INVALID)
    assert Status.INVALID == rig.status(ticket)


def test_after_a_refusal_that_was_late_the_session_goes_on(rig):
    first, second = rig.ask(), rig.ask()
    rig.pump()
    steps = rig.heard()
    rig.worker.sendall(rig.reply(steps[0], **SPOILED["token"]) + rig.reply(steps[1]))
    assert lib.PP3_PUMP_REFUSED == rig.pump()
    rig.ring.resolve(first, int(Status.TIMEOUT))
    assert not rig.hands.fail(rig.pump.subject, Status.INVALID)
    assert lib.PP3_PUMP_IDLE == rig.pump()
    assert [Status.TIMEOUT, Status.OK] == [rig.status(t) for t in (first, second)]


def test_a_round_that_nobody_asked_for_is_refused_by_its_header(rig):
    rig.ask()
    rig.pump()
    (step,) = rig.heard()
    rig.worker.sendall(rig.reply(step, round=step.round + 1))
    assert lib.PP3_PUMP_REFUSED == rig.pump()
    assert "header" == REASONS[rig.pump.error - 1]
    assert rig.pump.subject is None


def test_a_slot_the_worker_does_not_hold_is_restated_before_its_step(rig):
    ticket = rig.ask(generation=2)
    assert lib.PP3_PUMP_RESET == rig.pump()
    assert ticket == rig.pump.subject.round
    (place,) = rig.pump.subject.places(rig.profile)
    assert (0, 2, 3, 0) == place
    assert [] == rig.heard()
    assert lib.PP3_PUMP_IDLE == rig.pump()
    assert [ticket] == [step.round for step in rig.heard()]


def test_a_round_that_failed_while_its_slot_was_restated_is_not_sent(rig):
    ticket = rig.ask(generation=2)
    assert lib.PP3_PUMP_RESET == rig.pump()
    rig.ring.resolve(ticket, int(Status.TIMEOUT))
    assert lib.PP3_PUMP_IDLE == rig.pump()
    assert [] == rig.heard()
    assert 0 == rig.hands.c.in_hand


_few = st.integers(0, 6)


@given(_few, _few, _few, _few, _few, st.booleans())
def test_a_worker_is_behind_where_it_could_not_append(
    told_generation, told_length, generation, position, count, known
):
    with Rig() as rig:
        rig.tell(0, told_generation, told_length)
        rig.pump.c.told[0].known = known
        row = ffi.new("struct pp3_step_row *")
        row.generation, row.position, row.count = generation, position, count
        missing = position - count > told_length
        expected = (
            not known
            or generation != told_generation
            or missing
            or position < told_length
        )
        assert expected == bool(lib.pp3_pump_behind(rig.pump.c, row))


@pytest.mark.parametrize("status", range(1, 9))
def test_refused_rows_are_counted_and_their_slots_forgotten(rig, status):
    rig.ask()
    rig.pump()
    failed = {
        "status": np.array([status], np.int32),
        "tokens": np.full((1, 5), -1, np.int32),
        "mask": np.zeros(1, np.int32),
        "q": np.zeros((1, 5, 32), np.float32),
    }
    rig.worker.sendall(rig.reply(*rig.heard(), **failed))
    assert lib.PP3_PUMP_IDLE == rig.pump()
    assert 1 == rig.board.get(f"row_status_{status}")
    assert (status == Status.WORKER_ERROR) == bool(rig.pump.c.told[0].known)


def test_it_comes_back_after_the_first_good_reply_where_that_was_asked(rig):
    rig.pump.c.tell_answer = 1
    tickets = [rig.ask() for _ in range(3)]
    rig.pump()
    rig.worker.sendall(b"".join(map(rig.reply, rig.heard())))
    assert lib.PP3_PUMP_ANSWERED == rig.pump()
    assert lib.PP3_PUMP_IDLE == rig.pump()
    assert [Status.OK] * 3 == [rig.status(ticket) for ticket in tickets]


def test_a_request_that_is_no_step_fails_alone(rig):
    ticket = rig.ring.claim(time.monotonic_ns() + 60_000_000_000)
    request = rig.ring.request(ticket)
    request[:] = b"\xff" * len(request)
    rig.ring.submit(ticket)
    assert lib.PP3_PUMP_REQUEST == rig.pump()
    assert ticket == rig.pump.subject.round
    assert not rig.ring.is_open(ticket)
    assert 0 == rig.hands.c.in_hand


def test_whatever_a_worker_says_it_is_an_answer_or_a_reason():
    rng = random.Random(SEED)
    print("seed", SEED)
    seen = set()
    with Rig(slots=2, rounds=8) as rig:
        for _ in range(400):
            tickets = [rig.ask(slots=2) for _ in range(4)]
            rig.pump()
            frame = bytearray(rig.reply(rng.choice(rig.heard())))
            for _ in range(rng.choice((0, 1, 1, 3))):
                frame[rng.randrange(len(frame))] ^= 1 << rng.randrange(8)
            frame += rng.randbytes(rng.choice((0, 0, 30, 200)))
            at = 0
            why = lib.PP3_PUMP_IDLE
            while at < len(frame) and why == lib.PP3_PUMP_IDLE:
                size = rng.randint(1, len(frame))
                rig.worker.sendall(frame[at : at + size])
                at += size
                why = rig.pump()
            seen.add(why)
            rig.hands.fail_all(Status.PEER_DIED)
            statuses = {rig.status(ticket) for ticket in tickets}
            assert statuses <= {Status.OK, Status.PEER_DIED}
            rig.hang_up()
            rig.open()
    assert {lib.PP3_PUMP_IDLE, lib.PP3_PUMP_HEADER, lib.PP3_PUMP_REFUSED} <= seen


def test_it_ends_where_it_is_stopped_while_asleep(rig):
    pump = Pump(rig.hands, -1, Waiting("futex"), slice_ns=0)
    lib.pp3_pump_open(pump.c, rig.link.fileno(), SESSION)
    found = []
    thread = threading.Thread(target=lambda: found.append(pump()))
    thread.start()
    time.sleep(0.05)
    pump.stop()
    thread.join(30)
    assert [lib.PP3_PUMP_STOPPED] == found
    assert pump.stopped


def test_it_comes_back_for_its_control_descriptor(rig):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pump = Pump(rig.hands, ours.fileno(), Waiting("futex"), slice_ns=0)
        lib.pp3_pump_open(pump.c, rig.link.fileno(), SESSION)
        theirs.close()
        assert lib.PP3_PUMP_CONTROL == pump()


def test_a_busy_engine_thread_and_its_proxy_share_no_lock():
    """Rounds pass while Python runs flat out, and the pump does not come back for them.

    Each return would wait for the interpreter, which the busy thread gives up last.
    """
    profile = Profile.sampled(vocab=64, depth=5, max_slots=1, max_positions=256)
    done = threading.Event()

    def flat_out():
        while not done.is_set():
            pass

    busy = threading.Thread(target=flat_out)
    with (
        ScriptedWorker(profile) as worker,
        Engine.create(
            profile, worker=worker.address, proxy="thread", wait="futex"
        ) as engine,
    ):
        engine.reset(0, [1, 2, 3])
        engine.release(engine.step([Row(0)], timeout_s=30))
        busy.start()
        try:
            before = engine.stats()["pump_returns"]
            for _ in range(100):
                with engine.reply(engine.step([Row(0)], timeout_s=30)) as reply:
                    assert Status.OK == reply.status[0]
        finally:
            done.set()
            busy.join()
        assert engine.stats()["pump_returns"] - before <= 10
