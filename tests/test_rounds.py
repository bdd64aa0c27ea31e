"""One call a step: what is asked is the slots as they stand, and nobody else's rows."""

import copy
import errno
import gc
import pickle
import sys
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scripted_worker import ScriptedWorker, honest

from pp3shm import Engine, Profile, Rank, Reply, Row, Status
from pp3shm.calls import Asker, Heard, Hearer, address
from pp3shm.errors import (
    Busy,
    ConfigError,
    FrameError,
    Pp3Error,
    RingError,
    Stale,
)
from pp3shm.layout.digest import PrefixDigest


def profile_of(**changes):
    parts = {"vocab": 64, "depth": 5, "max_slots": 2, "max_positions": 256}
    return Profile.sampled(**{**parts, **changes})


@pytest.fixture(params=[0, 3])
def worker(request):
    with ScriptedWorker(profile_of(context_bytes=request.param)) as serving:
        yield serving


@pytest.fixture
def engine(worker):
    with Engine.create(
        worker.profile, worker=worker.address, proxy="thread", wait="futex"
    ) as made:
        for slot in (0, 1):
            made.reset(slot, [5, 6, 7])
        yield made


def asked(engine, worker, rows):
    """The STEP that the worker saw of these rows."""
    with engine.reply(engine.step(rows, timeout_s=10)) as reply:
        assert {Status.OK, Status.ABSENT} >= set(reply.status.tolist())
        return next(step for step in worker.steps if step.round == reply.round)


def row(worker, slot, context=b"abc", **more):
    return Row(slot, context=context[: worker.profile.context_bytes], **more)


def test_each_step_says_where_its_slots_stand(engine, worker):
    text = {0: [5, 6, 7], 1: [5, 6, 7]}
    rows = [row(worker, 1, user_seed=-3), row(worker, 0, sampled=False)]
    for number in range(20):
        step = asked(engine, worker, rows)
        assert [1, 0] == [one.slot for one in step.rows]
        assert [-3, 0] == [one.user_seed for one in step.rows]
        assert [True, False] == [one.sampled for one in step.rows]
        for one in step.rows:
            assert len(text[one.slot]) == one.position
            assert PrefixDigest(text[one.slot]).value == one.digest
            start = one.position - len(one.committed)
            assert tuple(text[one.slot][start:]) == one.committed
        for slot in (0, 1):
            tokens = [number % 64] * ((number + slot) % 9)
            engine.commit(slot, tokens)
            text[slot] += tokens


def test_more_tokens_than_a_step_holds_leave_the_newest(engine, worker):
    rows = [row(worker, 0)]
    asked(engine, worker, rows)
    engine.commit(0, [1, 2, 3, 4])
    engine.commit(0, [5, 6, 7, 8, 9])
    (one,) = asked(engine, worker, rows).rows
    assert (4, 5, 6, 7, 8, 9) == one.committed
    assert () == asked(engine, worker, rows).rows[0].committed


def test_a_refused_step_keeps_its_tokens_for_the_next(engine, worker):
    rows = [row(worker, 0)]
    tickets = [engine.step(rows, timeout_s=10) for _ in range(engine.rounds_in_flight)]
    for ticket in tickets:
        engine.reply(ticket)
    engine.commit(0, [9])
    with pytest.raises(Busy):
        engine.step(rows)
    for ticket in tickets:
        engine.release(ticket)
    assert (9,) == asked(engine, worker, rows).rows[0].committed


def test_other_rows_are_other_rows(engine, worker):
    first = asked(engine, worker, [row(worker, 0, user_seed=1)])
    second = asked(engine, worker, [row(worker, 0, user_seed=2)])
    third = asked(engine, worker, (row(worker, 1, user_seed=2),))
    seen = [(s.rows[0].slot, s.rows[0].user_seed) for s in (first, second, third)]
    assert [(0, 1), (0, 2), (1, 2)] == seen


def test_a_context_that_changed_in_place_is_seen():
    profile = profile_of(context_bytes=3)
    with (
        ScriptedWorker(profile) as worker,
        Engine.create(profile, worker=worker.address, proxy="thread") as engine,
    ):
        engine.reset(0, [1])
        context = bytearray(b"abc")
        rows = [Row(0, context=context)]
        assert b"abc" == asked(engine, worker, rows).rows[0].context
        context[:] = b"xyz"
        assert b"xyz" == asked(engine, worker, rows).rows[0].context


def test_rows_that_were_good_are_refused_once_their_slot_is_closed(engine, worker):
    rows = [row(worker, 0), row(worker, 1)]
    asked(engine, worker, rows)
    engine.close_slot(1)
    with pytest.raises(ConfigError, match=r"slots\[1\]"):
        engine.step(rows)
    engine.reset(1, [8])
    assert 2 == asked(engine, worker, rows).rows[1].generation


def test_bad_rows_leave_the_good_ones_usable(engine, worker):
    rows = [row(worker, 0)]
    asked(engine, worker, rows)
    with pytest.raises(FrameError):
        engine.step([row(worker, 0), row(worker, 0)])
    assert 0 == asked(engine, worker, rows).rows[0].slot


def test_the_first_open_round_is_named_and_an_older_generations_is_not(engine, worker):
    worker.spoil = lambda *_: None
    rows = [row(worker, 0)]
    first = engine.step(rows, timeout_s=60)
    engine.step([row(worker, 0), row(worker, 1)], timeout_s=60)
    with pytest.raises(Busy, match=f"round {first} "):
        engine.commit(0, [1])
    with pytest.raises(Busy, match=f"round {first + 1} "):
        engine.commit(1, [1])
    engine.release(first)  # a rank that will not read it
    with pytest.raises(Busy, match=f"round {first} "):
        engine.commit(0, [1])
    engine.reset(0, [2])
    engine.commit(0, [1])


def test_what_is_stale_is_told_until_the_round_is_released(engine, worker):
    ticket = engine.step([row(worker, 0), row(worker, 1)], timeout_s=10)
    assert [] == engine.stale(ticket)
    engine.reset(1, [4])
    assert [1] == engine.stale(ticket)
    engine.close_slot(0)
    with engine.reply(ticket) as reply:
        assert (0, 1) == reply.stale
        assert [Status.STALE] * 2 == reply.status.tolist()
    assert [] == engine.stale(ticket)
    assert [] == engine.stale(ticket + 1)


def test_a_status_outlives_its_round_and_its_reply(engine, worker):
    rows = [row(worker, 0)]
    reply = engine.reply(engine.step(rows, timeout_s=10))
    status, round_ = reply.status, reply.round
    engine.release(round_)
    worker.spoil = lambda *_: None
    for _ in range(engine.rounds_in_flight):
        engine.release(engine.reply(engine.step(rows, timeout_s=0.001)).round)
    assert round_ == reply.round
    del reply
    assert [Status.OK, Status.ABSENT] == status.tolist()
    status[0] = 3  # a copy: its reader's own
    assert np.int32(3) == status[0]


def test_replies_that_are_kept_stay_as_they_were_whatever_comes_after(engine, worker):
    """What a reply owns is in itself."""

    def own(reply):
        return reply.place, reply._failed, bytes(reply._statuses), reply._trace

    kept, statuses, numbers = [], [], []
    for number in range(40):
        if number % 3 == 2:
            engine.cancel(engine.step([row(worker, 0)]))
        ticket = engine.step([row(worker, number % 2)], timeout_s=10)
        numbers.append(ticket)
        reply = engine.reply(ticket)
        engine.release(ticket)
        if number % 4 < 2:
            kept.append((number, reply, own(reply)))
        else:
            statuses.append((number, reply.status))
    for number, reply, heard in kept:
        assert numbers[number] == reply.round
        assert heard == own(reply)
        assert Status.OK == reply.status[number % 2]
        assert Status.ABSENT == reply.status[1 - number % 2]
        assert reply.failed is None
        assert reply.trace is not None
    for number, status in statuses:
        assert [Status.OK, Status.ABSENT][:: 1 - 2 * (number % 2)] == status.tolist()


def test_one_reply_after_another_leaves_nothing_behind(engine, worker):
    """Counted: references to all that a call takes one of."""
    reader, refused = engine._reader, []
    rows = [row(worker, 0)]

    def rounds():
        for number in range(50):
            ticket = engine.step(rows, timeout_s=10)
            for call in (
                lambda: engine.reply("one"),
                lambda: engine.reply(0),
                lambda: engine.reply(2**64),
                lambda: engine.reply(2**40 - 1),
                lambda: engine.release(2**40 - 1),
                lambda: engine.step(rows, timeout_s="long"),
                lambda: engine.step(rows, timeout_s=-1),
            ):
                with pytest.raises((Pp3Error, TypeError)) as found:
                    call()
                refused.append(str(found.value))
            with engine.reply(ticket) as reply:
                assert ticket == reply.round
                assert Status.OK == reply.status[0]
            if number % 5 == 0:
                with pytest.raises(Stale):
                    engine.reply(ticket)

    def counts():
        gc.collect()
        parts = reader._hearer, Reply, engine._slots.asker, reader._c, None
        return [sys.getrefcount(part) for part in parts[:-1]]

    rounds()
    before = counts()
    rounds()
    assert before == counts()
    assert 2 * 50 * 7 == len(refused)
    assert Reply not in {type(one) for one in gc.get_objects()}


def test_a_kept_reply_keeps_what_it_shows(worker):
    """Its engine may be closed and dropped: the views are of memory that is there."""
    engine = Engine.create(worker.profile, worker=worker.address, proxy="thread")
    engine.reset(0, [1])
    reply = engine.reply(engine.step([row(worker, 0)], timeout_s=10))
    tokens = reply.tokens.tolist()
    engine.close()
    del engine
    gc.collect()
    assert tokens == reply.tokens.tolist()
    assert [Status.OK, Status.ABSENT] == reply.status.tolist()
    with pytest.raises(RingError, match="closed"):
        reply.__exit__(None, None, None)


def test_a_wait_ends_when_its_rank_is_closed_by_another_thread(eventually):
    """Not at the round's deadline, which may be far: nobody may be left to end it."""
    profile, found = profile_of(), []

    def wait(rank, ticket):
        with pytest.raises(RingError, match="closed") as error:
            rank.reply(ticket)
        found.append(str(error.value))

    with (
        ScriptedWorker(profile, spoil=lambda *_: None) as worker,
        Engine.create(profile, worker=worker.address, ranks=2) as engine,
    ):
        rank = Rank.attach(engine.invitation, profile, wait="futex")
        engine.wait_ranks()
        engine.reset(0, [1])
        ticket = engine.step([Row(0)], timeout_s=3600)
        waiting = threading.Thread(target=wait, args=(rank, ticket), daemon=True)
        waiting.start()
        eventually(lambda: engine.stats()["sleeps"] > 0, "the wait")
        rank.close()
        waiting.join(60)
        assert 1 == len(found)


def test_an_engine_closed_while_a_step_is_tried_again_says_so(
    engine, worker, monkeypatch
):
    """By another thread, while a stopped proxy is replaced."""
    rows, ask = [row(worker, 0)], engine._ask
    codes = iter([-errno.ENOBUFS])
    monkeypatch.setattr(engine, "_ask", lambda s: next(codes, None) or ask(s))
    monkeypatch.setattr(engine._proxy, "replace", lambda: engine.close() or True)
    with pytest.raises(RingError, match="closed"):
        engine.step(rows)


@pytest.mark.parametrize(
    "way",
    [
        copy.copy,
        copy.deepcopy,
        *(
            partial(pickle.dumps, protocol=n)
            for n in range(pickle.HIGHEST_PROTOCOL + 1)
        ),
    ],
)
def test_no_reply_is_copied_as_a_whole(engine, worker, way):
    ticket = engine.step([row(worker, 0)], timeout_s=10)
    with (
        engine.reply(ticket) as reply,
        pytest.raises(TypeError, match="its arrays to be copied"),
    ):
        way(reply)


def test_no_reply_is_made_by_hand():
    for kind in (Reply, Heard):
        with pytest.raises(TypeError):
            kind()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda of: Asker(0, of.ring, None),
        lambda of: Asker(of.ask, 0, None),
        lambda of: Asker("x", of.ring, None),
        Asker,
        lambda of: Asker(of.ask, of.ring, None).append(0, b""),
        lambda of: Asker(of.ask, of.ring, None).append(0, [1], 0),
        lambda of: Asker(of.ask, of.ring, None).append(-1, b"", 0),
        lambda of: Asker(of.ask, of.ring, None).append(0, b"", 2**64),
        lambda of: Hearer(of.hear, of.ring, None, [], print, Reply),
        lambda of: Hearer(of.hear, of.ring, None, (), print, int),
        lambda of: Hearer(of.hear, of.ring, None, (), print, 5),
        lambda of: Hearer(of.hear, 0, None, (), print, Reply),
        lambda of: Hearer(of.hear, of.ring, None, (), print, Reply).read(),
        lambda of: Hearer(of.hear, of.ring, None, (), print, Reply).read(1, 2, 3, 4),
        lambda of: Hearer(of.hear, of.ring, None, (), print, Reply).read(1, -1),
        lambda of: Hearer(of.hear, of.ring, None, (), print, Reply).read(1, 0, "x"),
        # whoever is to raise and does not
        lambda of: Hearer(of.hear, of.ring, None, (), int, Reply).read(99, 0),
        lambda of: Hearer(of.hear, of.ring, None, (), str, Reply).read(99, 0),
    ],
)
def test_the_calls_refuse_what_they_are_not_made_for(engine, wrong):
    of = SimpleNamespace(
        ask=address(engine._slots.c),
        hear=address(engine._reader._c),
        ring=address(engine._ring.handle),
    )
    with pytest.raises((TypeError, ValueError, OverflowError, SystemError)):
        wrong(of)


@pytest.mark.parametrize(
    ("slot", "tokens", "error"),
    [
        (-1, [2], ConfigError),
        (2, [2], ConfigError),
        (2**40, [2], ConfigError),
        (2**70, [2], ConfigError),
        ("0", [2], TypeError),
        (0.0, [2], TypeError),
        (0, [64], ConfigError),
        (0, [5, -1], ConfigError),
        (0, [2**31], FrameError),
        (0, ["x"], FrameError),
        (0, np.array([1.5]), FrameError),
        (0, [1] * 254, RingError),
        (1, [2], Busy),
    ],
)
def test_a_commit_that_is_refused_changes_nothing(engine, worker, slot, tokens, error):
    """The worker holds what comes after against the digest of the prefix."""
    worker.spoil = lambda *_: None
    held = engine.step([row(worker, 1)], timeout_s=10)
    with pytest.raises(error):
        engine.commit(slot, tokens)
    engine.cancel(held, told=True)
    engine.release(held)
    worker.spoil = honest
    assert 3 == engine.position(0)
    engine.commit(np.int64(0), np.array([9], np.int64))
    assert 4 == engine.position(0)
    assert (9,) == asked(engine, worker, [row(worker, 0)]).rows[0].committed


def test_what_lives_on_the_buffers_is_closed_when_nobody_reads_them(engine, worker):
    """A page that CUDA knows no more is not handed out."""
    ticket, seen = engine.step([row(worker, 0)], timeout_s=10), []

    def close():
        seen.append(len(engine.buffers[0]))
        with pytest.raises(RingError, match="closed"):
            engine.reply(ticket)

    engine.adopt(SimpleNamespace(stats=dict, close=close))
    engine.close()
    assert 1 == len(seen)
    assert seen[0] > 0


def test_numbers_of_other_types_are_tickets_too(engine, worker):
    ticket = engine.step([row(worker, 0)], timeout_s=np.float32(10))
    with engine.reply(np.int64(ticket)) as reply:
        assert ticket == reply.round


def test_what_a_ticket_of_another_type_raises_is_raised(engine):
    """Such as what a signal's handler does meanwhile."""

    class Ticket:
        def __index__(self):
            raise KeyboardInterrupt

    for call in (engine.reply, engine.release):
        with pytest.raises(KeyboardInterrupt):
            call(Ticket())


def test_a_closed_engine_says_so(worker):
    engine = Engine.create(worker.profile, worker=worker.address, proxy="thread")
    engine.reset(0, [1])
    rows = [row(worker, 0)]
    ticket = engine.step(rows, timeout_s=10)
    engine.close()
    for call in (
        lambda: engine.step(rows),
        lambda: engine.reply(ticket),
        lambda: engine.release(ticket),
        lambda: engine.reply(-1),
        lambda: engine.commit(0, [1]),
    ):
        with pytest.raises(RingError, match="closed"):
            call()
