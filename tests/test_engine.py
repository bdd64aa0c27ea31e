"""The engine end to end: real regions, real proxies, real workers on sockets."""

import contextlib
import threading

import numpy as np
import pytest

from pp3shm import Engine, Profile, Row, Status, Worker
from pp3shm.errors import (
    Busy,
    ConfigError,
    FrameError,
    LinkError,
    ProfileError,
    RegionError,
    RingError,
    Stale,
)
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.proxy.state import SessionState
from pp3shm.verify import Request, VerifyKeys, verify
from pp3shm.worker.drafters import TableDrafter

VOCAB = 64
PROXIES = ("thread", "process")


def profile_of(max_slots=2, **changes):
    parts = {"vocab": VOCAB, "depth": 5, "max_slots": max_slots, "max_positions": 512}
    return Profile.sampled(**{**parts, **changes})


def table(seed=0):
    return np.random.default_rng(seed).normal(size=(VOCAB, VOCAB)).astype(np.float32)


@pytest.fixture
def worker():
    profile = profile_of()
    with Worker(TableDrafter(table()), profile, ["tcp://127.0.0.1:0"]) as serving:
        yield serving


@pytest.fixture(params=PROXIES)
def engine(request, worker):
    profile = profile_of()
    with Engine.create(
        profile, worker=worker.addresses[0], proxy=request.param
    ) as made:
        yield made


def step(engine, rows, timeout_s=5.0):
    return engine.step(rows, timeout_s=timeout_s)


def test_a_round_brings_drafts_of_every_row(engine):
    for slot in (0, 1):
        engine.reset(slot, [1 + slot])
    with engine.reply(step(engine, [Row(1), Row(0, sampled=False)])) as reply:
        assert [0, 0] == reply.status.tolist()
        assert [0, 1] == reply.mask.tolist()
        assert reply.failed is None
        assert np.argmax(table()[1]) == reply.tokens[0, 0]
        counts = (reply.q[1].astype(np.float64) * 2**24).sum(axis=1)
        assert [2**24] * 5 == counts.tolist()


def test_greedy_decoding_equals_the_targets_own(engine):
    """With T = 0 the text is the target's argmax, whatever the drafter says."""
    logits = table(1)
    text = [3]
    engine.reset(0, text)
    keys = VerifyKeys.derive(engine.epoch, 0, engine.generation(0), 0)
    while len(text) < 60:
        with engine.reply(step(engine, [Row(0, sampled=False)])) as reply:
            rows = logits[[text[-1], *reply.tokens[0]]]
            done = verify(
                reply,
                [rows],
                [Request(0, len(text), keys, temperature=0.0)],
                round=reply.round,
                vocab=VOCAB,
                logits=True,
            )
        emitted = done.tokens[0, : done.count[0]].tolist()
        engine.commit(0, emitted)
        text += emitted
    expected = [3]
    while len(expected) < len(text):
        expected.append(int(np.argmax(logits[expected[-1]])))
    assert expected == text


def test_several_rounds_are_in_flight_and_each_draws_anew(engine):
    engine.reset(0, [1])
    tickets = [step(engine, [Row(0)]) for _ in range(engine.rounds_in_flight)]
    drafts = []
    for ticket in tickets:
        with engine.reply(ticket) as reply:
            assert ticket == reply.round
            drafts.append(tuple(reply.tokens[0].tolist()))
    assert len(set(drafts)) > 1


def round_in(engine, page):
    """The word of a page that says which round it is of; whoever maps it may write."""
    size = engine._ring.region.shape.page_bytes
    return engine._ring.region.view("pages")[page * size : page * size + 8]


def test_a_reply_is_of_its_ticket_whatever_the_page_says_a_moment_later(engine):
    """The page's round is looked at once: what was compared is what is released."""
    engine.reset(0, [1])
    for _ in range(3 * engine.rounds_in_flight):
        ticket = step(engine, [Row(0)])
        with engine.reply(ticket) as reply:
            word = round_in(engine, reply.place)
            word[:] = (ticket + 5).to_bytes(8, "little")
            assert ticket == reply.round
            with pytest.raises(RegionError, match=f"found {ticket + 5}$"):
                engine.reply(ticket)
    engine.release(step(engine, [Row(0)]))


def test_a_page_that_is_written_all_the_while_is_of_its_round_or_refused(engine):
    engine.reset(0, [1])
    done = threading.Event()
    words = [round_in(engine, page) for page in range(engine._ring.region.shape.pages)]
    now = [0]

    def write():
        while not done.is_set():
            for word in words:
                word[:] = (now[0] + 5).to_bytes(8, "little")
                word[:] = now[0].to_bytes(8, "little")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(200):
            now[0] = ticket = step(engine, [Row(0)])
            with contextlib.suppress(RegionError), engine.reply(ticket) as reply:
                assert ticket == reply.round
            with pytest.raises(Stale):  # let go either way
                engine.reply(ticket)
    finally:
        done.set()
        writer.join()


def test_a_full_ring_refuses_and_names_the_round(engine):
    engine.reset(0, [1])
    tickets = [step(engine, [Row(0)]) for _ in range(engine.rounds_in_flight)]
    with pytest.raises(Busy, match=r"round 1|rank 0"):
        step(engine, [Row(0)])
    for ticket in tickets:
        engine.reply(ticket)
        engine.release(ticket)
    engine.release(step(engine, [Row(0)]))


def test_commit_refuses_while_the_slot_is_in_an_open_round(worker):
    with Engine.create(profile_of(), worker=worker.addresses[0], proxy="thread") as one:
        one.reset(0, [1])
        # Without a proxy the round stays open.
        one._proxy.close()
        ticket = step(one, [Row(0)], timeout_s=60)
        with pytest.raises(Busy, match=f"round {ticket}"):
            one.commit(0, [2])
        one.cancel(ticket)
        one.commit(0, [2])
        assert 2 == one.position(0)


def test_a_cancelled_round_is_refused_and_its_entry_serves_again(engine):
    engine.reset(0, [1])
    for _ in range(3 * engine.rounds_in_flight):
        engine.cancel(step(engine, [Row(0)]))
    with engine.reply(step(engine, [Row(0)])) as reply:
        assert Status.OK == reply.status[0]


def test_a_told_round_that_is_cancelled_still_ends_for_its_rank(engine):
    engine.reset(0, [1])
    engine._proxy.close()
    ticket = step(engine, [Row(0)], timeout_s=60)
    engine.cancel(ticket, told=True)
    with engine.reply(ticket) as reply:
        assert Status.REFUSED == reply.failed
        assert [Status.REFUSED, Status.ABSENT] == reply.status.tolist()
    with pytest.raises(Stale, match="released"):
        engine.reply(ticket)


def test_a_reset_makes_the_rows_of_older_generations_stale(engine):
    engine.reset(0, [1])
    ticket = step(engine, [Row(0)])
    engine.reset(0, [2, 3])
    with engine.reply(ticket) as reply:
        assert Status.STALE == reply.status[0]
    with engine.reply(step(engine, [Row(0)])) as reply:
        assert Status.OK == reply.status[0]


def test_a_closed_slot_is_stale_in_what_was_in_flight(engine):
    engine.reset(0, [1])
    engine.reset(1, [1])
    ticket = step(engine, [Row(0), Row(1)])
    engine.close_slot(1)
    with engine.reply(ticket) as reply:
        assert [Status.OK, Status.STALE] == reply.status.tolist()
    with pytest.raises(ConfigError, match="closed"):
        step(engine, [Row(1)])


def test_more_tokens_than_a_step_holds_are_restated_by_a_reset(engine):
    engine.reset(0, [1])
    engine.release(step(engine, [Row(0)]))
    ticket = step(engine, [Row(0)])
    engine.reply(ticket)
    engine.release(ticket)
    engine.commit(0, list(range(20)))
    with engine.reply(step(engine, [Row(0)])) as reply:
        assert Status.OK == reply.status[0]
    assert engine.stats()["row_status_8"] == 0


def test_a_round_released_unread_is_stale_for_a_second_reader(engine):
    engine.reset(0, [1])
    first = step(engine, [Row(0)])
    engine.reply(first)
    engine.release(first)
    for _ in range(engine.rounds_in_flight):
        ticket = step(engine, [Row(0)])
        engine.reply(ticket)
        engine.release(ticket)
    with pytest.raises(Stale):
        engine.reply(first)


BAD_ROWS = {
    "none": ([], FrameError),
    "a slot twice": ([Row(0), Row(0)], FrameError),
    "a slot never reset": ([Row(1)], ConfigError),
    "a slot beyond": ([Row(7)], ConfigError),
    "a slot below": ([Row(-1)], ConfigError),
    "context": ([Row(0, context=b"x")], FrameError),
    "a seed of 65 bits": ([Row(0, user_seed=2**63)], FrameError),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_an_error_and_takes_no_ticket(engine, case):
    rows, error = BAD_ROWS[case]
    engine.reset(0, [1])
    with pytest.raises(error):
        step(engine, rows)
    assert 1 == step(engine, [Row(0)])


BAD_ARGUMENTS = [
    {"rounds": 0},
    {"rounds": 1025},
    {"ranks": 0},
    {"ranks": 17},
    {"proxy": "fork"},
    {"kind": "sysv"},
    {"worker": "http://x"},
    {"worker": "nonsense"},
    {"worker": "tcp://127.0.0.1:0"},
    {"psk": b"short"},
    {"psk": b"x" * 65},
    {"spin_ns": -1},
    {"wait": "sleep"},
]


@pytest.mark.parametrize("bad", BAD_ARGUMENTS, ids=str)
def test_bad_arguments_are_named_at_once_and_leave_no_thread(bad):
    before = set(threading.enumerate())
    arguments = {"worker": "tcp://127.0.0.1:1", "connect_timeout_s": 0, **bad}
    if bad.get("worker") == "tcp://127.0.0.1:0":
        arguments["connect_timeout_s"] = 1  # only dialling finds it out
    with pytest.raises((ConfigError, LinkError), match="expected") as caught:
        Engine.create(profile_of(), **arguments)
    assert next(iter(bad)) in str(caught.value) or "port" in str(caught.value)
    assert before == set(threading.enumerate())


def test_the_key_is_in_no_text():
    plan = ProxyPlan(profile_of(), "tcp://127.0.0.1:1", b"secret secret secret")
    assert "secret" not in repr(plan)


OTHERS = {
    "depth": {"depth": 4},
    "vocab": {"vocab": 65},
    "draft": {"draft_sha256": "a" * 64},
}


@pytest.mark.parametrize("case", OTHERS)
@pytest.mark.parametrize("proxy", PROXIES)
def test_a_real_worker_of_another_profile_is_refused_from_our_side(case, proxy, worker):
    profile = profile_of(**OTHERS[case])
    field = next(iter(OTHERS[case]))
    with pytest.raises(ProfileError) as caught:
        Engine.create(profile, worker=worker.addresses[0], proxy=proxy)
    assert field == caught.value.field
    assert str(getattr(profile, field)) == caught.value.ours
    assert str(getattr(profile_of(), field)) == caught.value.theirs


def test_a_worker_that_is_full_is_tried_again_until_it_has_room(eventually):
    profile = profile_of()
    serving = Worker(
        TableDrafter(table()), profile, ["tcp://127.0.0.1:0"], max_sessions=1
    )
    with serving as worker:
        address = worker.addresses[0]
        first = Engine.create(profile, worker=address, proxy="thread")
        with Engine.create(
            profile, worker=address, proxy="thread", connect_timeout_s=0
        ) as second:
            eventually(lambda: "sessions" in str(second.last_error()), "a refusal")
            first.close()
            second.wait_connected(20)
            assert second.stats()["mismatches"] == 0


def test_tokens_that_are_no_integers_are_refused_and_change_nothing(engine):
    engine.reset(0, [1, 2])
    for tokens in ([1.5], ["a"], np.array([1.0]), [2**40], [None]):
        with pytest.raises(FrameError):
            engine.commit(0, tokens)
        with pytest.raises(FrameError):
            engine.reset(1, tokens)
    for tokens in ([VOCAB], [-1], np.array([VOCAB])):
        with pytest.raises(ConfigError):
            engine.commit(0, tokens)
    assert 2 == engine.position(0)


def test_a_request_that_is_full_says_so_and_still_decodes(engine):
    most = engine.profile.max_positions
    engine.reset(0, [1] * (most - 2))
    with pytest.raises(RingError, match="at most"):
        engine.commit(0, [2, 2, 2])
    engine.commit(0, [2, 2])
    with engine.reply(step(engine, [Row(0)])) as reply:
        assert Status.OK == reply.status[0]
    with pytest.raises(RingError, match="at most"):
        engine.commit(0, [2])


@pytest.mark.parametrize("proxy", PROXIES)
def test_nobody_listening_is_a_link_error(proxy):
    with pytest.raises(LinkError, match=r"127\.0\.0\.1:1"):
        Engine.create(
            profile_of(), worker="tcp://127.0.0.1:1", proxy=proxy, connect_timeout_s=3
        )


def test_without_waiting_rounds_fail_until_a_worker_is_there(eventually):
    with Engine.create(
        profile_of(),
        worker="tcp://127.0.0.1:1",
        proxy="thread",
        connect_timeout_s=0,
    ) as engine:
        engine.reset(0, [1])
        with engine.reply(step(engine, [Row(0)])) as reply:
            assert Status.PEER_DIED == reply.status[0]
            assert -1 == reply.tokens[0, 0]
        assert engine.session_state is not SessionState.READY
        eventually(lambda: "127.0.0.1:1" in str(engine.last_error()), "the reason")
