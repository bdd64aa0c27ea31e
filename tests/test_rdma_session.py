"""Sessions whose STEPs and REPLYs go by RDMA, over a device of the test's own."""

import gc
import time
import types
import weakref

import numpy as np
import pytest
from fake_verbs import FakeNet
from rdma_script import RdmaScript

from pp3shm import Engine, Profile, Row, Status, Worker
from pp3shm._core import ffi, lib
from pp3shm.errors import LinkError
from pp3shm.layout.frames import HEADER_BYTES, Kind, Step, encode_frame
from pp3shm.link import rdma
from pp3shm.link.lane import Lane
from pp3shm.proxy import staged
from pp3shm.proxy.greet import Greeting
from pp3shm.proxy.staged import SLEEP_NS, StagedPump
from pp3shm.proxy.state import SessionState
from pp3shm.ring.waiting import Waiting
from pp3shm.worker import Patience
from pp3shm.worker.drafters import TableDrafter

VOCAB = 64
ROUNDS = 4
LATE_S = 0.15  # a deadline that a test lets pass on purpose


@pytest.fixture(autouse=True)
def net(monkeypatch):
    """Every end that is opened meanwhile is one of this net; none may stay open."""
    made = FakeNet()
    monkeypatch.setattr(rdma, "open_end", made.open_end)
    monkeypatch.setattr(rdma, "require", lambda _place: None)
    yield made
    limit = time.monotonic() + 10
    while any(end.regions for end in made.ends.values()) and time.monotonic() < limit:
        time.sleep(0.01)
    assert [] == [end for end in made.ends.values() if end.regions]


def profile(**more):
    fields = {"vocab": VOCAB, "depth": 5, "max_slots": 2, "max_positions": 512}
    return Profile.sampled(**{**fields, **more})


def table():
    return np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)


def engine_of(worker, ours=None, **more):
    address = worker.address if isinstance(worker, RdmaScript) else worker.addresses[0]
    engine = Engine.create(
        ours or worker.profile,
        worker=address,
        proxy="thread",
        rounds=ROUNDS,
        **{"spin_ns": 0, **more},
    )
    engine.reset(0, [1, 2, 3])
    return engine


def served(engine, timeout_s=10.0, slot=0):
    """One round; its row's status."""
    ticket = engine.step([Row(slot=slot, sampled=True)], timeout_s=timeout_s)
    with engine.reply(ticket, timeout_s=timeout_s + 5) as reply:
        return Status(int(reply.status[slot]))


@pytest.fixture
def script(net):
    with RdmaScript(profile()) as one:
        one.net = net
        yield one


# -- what goes well --------------------------------------------------------------------


def test_rounds_are_answered_by_writes(net):
    ours = profile()
    with (
        Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker,
        engine_of(worker, ours) as engine,
    ):
        for _ in range(20):
            with engine.reply(engine.step([Row(slot=0)], timeout_s=10)) as reply:
                assert Status.OK == reply.status[0]
                drafted = reply.tokens[0].tolist()
            engine.commit(0, drafted[:2])
        stats = engine.stats()
        assert 20 == stats["steps_sent"]
        assert 2 == stats["memory_regions"]
        assert 0 == stats["slots_held"]
        assert 1 == worker.stats()["rdma_sessions"]
    assert 2 == len(net.ends)


def test_a_reply_by_rdma_is_the_very_one_that_a_socket_carries():
    ours = profile()
    replies = []
    for scheme in ("rdma", "tcp"):
        with (
            Worker(TableDrafter(table()), ours, [f"{scheme}://127.0.0.1:0"]) as worker,
            engine_of(worker, ours) as engine,
        ):
            ticket = engine.step([Row(slot=0)], timeout_s=10)
            with engine.reply(ticket) as reply:
                ids = reply.ids[0].copy()
            replies.append(ids)
    # The draws depend on the session; which tokens carry q does on the prefix alone,
    # at the first position.
    assert (replies[0][0] == replies[1][0]).all()


def test_greedy_rounds_go_by_rdma_too():
    ours = Profile.greedy(vocab=VOCAB, depth=4, max_slots=2, max_positions=512)
    with (
        Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker,
        engine_of(worker, ours) as engine,
    ):
        best = table().argmax(axis=1)
        ticket = engine.step([Row(slot=0)], timeout_s=10)
        with engine.reply(ticket) as reply:
            assert best[3] == reply.tokens[0][0]
            assert (best[reply.tokens[0][:-1]] == reply.tokens[0][1:]).all()


def test_as_many_rounds_as_slots_are_in_flight_each_with_its_own():
    def collect(worker, step, slot):
        held.append((step, slot))
        if len(held) == ROUNDS:
            for one in held:
                worker.reply(*one)

    held = []
    with RdmaScript(profile(), collect) as worker, engine_of(worker) as engine:
        tickets = [engine.step([Row(slot=0)], timeout_s=20) for _ in range(ROUNDS)]
        for ticket in tickets:
            with engine.reply(ticket, timeout_s=30) as reply:
                assert Status.OK == reply.status[0]
        assert set(range(ROUNDS)) == {slot for _, slot in held}


def test_resets_over_the_connection_keep_their_place_among_steps_by_rdma(script):
    with engine_of(script) as engine:
        for number in range(5):
            engine.reset(0, [1, 2, number])
            assert Status.OK is served(engine)
        kinds = [type(event).__name__ for event in script.events]
    assert kinds.index("Reset") < kinds.index("Step")
    for place, event in enumerate(script.events):
        if isinstance(event, Step):
            generation = event.rows[0].generation
            before = [e for e in script.events[:place] if not isinstance(e, Step)]
            assert generation == before[-1].generation


def test_a_large_profile_gets_large_slots(net):
    ours = profile(max_slots=4, context_bytes=100_000)
    with RdmaScript(ours) as worker, engine_of(worker) as engine:
        ticket = engine.step([Row(slot=0, context=bytes(100_000))], timeout_s=10)
        with engine.reply(ticket) as reply:
            assert Status.OK == reply.status[0]
        worker_end, proxy_end = net.newest()
        assert worker_end.local.slot_bytes >= ours.step_bytes > 100_000
        assert proxy_end.local.slot_bytes >= ours.reply_bytes


# -- late writes -----------------------------------------------------------------------


def test_a_late_write_changes_nothing_and_frees_its_slot(net, script, eventually):
    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        net.holding = True
        assert Status.TIMEOUT is served(engine, LATE_S)
        eventually(lambda: 1 == engine.stats()["slots_held"])
        before = [bytes(view) for view in engine.buffers]
        net.let_go()
        eventually(lambda: 1 == engine.stats()["late_writes"])
        eventually(lambda: 0 == engine.stats()["slots_held"])
        assert before == [bytes(view) for view in engine.buffers]
        assert Status.OK is served(engine)
        stats = engine.stats()
        assert (1, 1) == (stats["late"], stats["slots_quarantined"])
        assert 1 == stats["sessions"]


def test_a_quarantined_slot_is_given_to_no_other_round(script, eventually):
    def withhold(_worker, step, slot):
        withheld.append((step, slot))

    withheld = []
    with engine_of(script) as engine:
        script.act = withhold
        for number in range(ROUNDS):
            assert Status.TIMEOUT is served(engine, LATE_S)
            eventually(lambda n=number: n + 1 == engine.stats()["slots_held"])
        # All slots are in quarantine: nothing is sent any more, and rounds still end.
        assert Status.TIMEOUT is served(engine, LATE_S)
        assert ROUNDS == len(withheld)
        assert set(range(ROUNDS)) == {slot for _, slot in withheld}
        for one in withheld:
            script.reply(*one)
        eventually(lambda: 0 == engine.stats()["slots_held"])
        script.act = RdmaScript.reply
        assert Status.OK is served(engine)
        assert ROUNDS == engine.stats()["late_writes"]


def test_the_end_of_a_session_ends_its_quarantine(net, script, eventually):
    with engine_of(script) as engine:
        script.act = lambda *_: None
        assert Status.TIMEOUT is served(engine, LATE_S)
        eventually(lambda: 1 == engine.stats()["slots_held"])
        proxy_end = net.newest()[1]
        script.act = RdmaScript.reply
        script.error()
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert proxy_end.closed
        assert 0 == engine.stats()["slots_held"]
        assert Status.OK is served(engine)


def test_a_session_that_is_over_keeps_neither_its_lane_nor_its_ring_alive(
    script, eventually
):
    """Without the collector, which comes when it likes: no cycle holds them."""

    def two_sessions():
        """What was there while they were."""
        with engine_of(script) as engine:
            assert Status.OK is served(engine)
            pump = engine._proxy._loop._pump
            found = [weakref.ref(pump._session.stage), weakref.ref(pump._hands)]
            script.error()
            eventually(lambda: 2 == engine.stats()["sessions"])
            assert Status.OK is served(engine)
            return [*found, weakref.ref(pump._session.stage)]

    collects = gc.isenabled()
    gc.disable()
    try:
        found = two_sessions()
        eventually(lambda: [None] * 3 == [one() for one in found])
    finally:
        if collects:
            gc.enable()


# -- writes under way ------------------------------------------------------------------


@pytest.fixture
def rests(monkeypatch):
    """Of each rest of a proxy: what its lane holds untaken, and what is waited with."""
    found = []

    class Core:
        """The core, but that its sleeps are seen."""

        def __getattr__(self, name):
            return getattr(lib, name)

        def pp3_proxy_sleep(self, ring, link_fd, control_fd, spin, sleep):
            found.append((spin, sleep, ring != ffi.NULL))
            return lib.pp3_proxy_sleep(ring, link_fd, control_fd, spin, sleep)

    monkeypatch.setattr(staged, "lib", Core())
    return found


def test_a_slot_whose_own_write_is_under_way_is_given_to_no_round(net, script):
    def send(slot, *told):
        waited.append(slot in lane.under_way)
        Lane.send(lane, slot, *told)

    waited = []

    def under_way(end):
        return {slot for one, (_, slot, *_) in net._untold if one is end}

    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        proxy_end = net.newest()[1]
        lane = engine._proxy._loop._pump._session.stage.lane
        lane.send = send
        net.silent = True
        for _ in range(ROUNDS):
            assert Status.OK is served(engine)
        assert set(range(ROUNDS)) == under_way(proxy_end)
        # None is left, and the loop turns all the same.
        seen = len(script.steps)
        assert Status.TIMEOUT is served(engine, LATE_S)
        ticket = engine.step([Row(slot=0, sampled=True)], timeout_s=20)
        assert (seen, 1) == (len(script.steps), engine.stats()["sessions"])
        net.tell()
        with engine.reply(ticket, timeout_s=30) as reply:
            assert Status.OK == reply.status[0]
        assert Status.OK is served(engine)
        assert 1 == engine.stats()["sessions"]
    assert waited
    assert not any(waited)


def test_nothing_that_has_come_is_slept_over(net, script, monkeypatch):
    """A reply and the end of our own write, which the next send needs, come at once."""
    untaken = []
    rest = StagedPump._rest

    def look(pump, session):
        untaken.append(list(session.stage.lane._came))
        return rest(pump, session)

    monkeypatch.setattr(StagedPump, "_rest", look)
    withheld = []
    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        net.silent = True
        for _ in range(ROUNDS - 1):
            assert Status.OK is served(engine)
        script.act = lambda _worker, *asked: withheld.append(asked)
        first = engine.step([Row(slot=0, sampled=True)], timeout_s=20)
        limit = time.monotonic() + 20
        while not withheld and time.monotonic() < limit:
            time.sleep(0.001)
        script.act = RdmaScript.reply
        second = engine.step([Row(slot=0, sampled=True)], timeout_s=20)
        with net.lock:
            script.reply(*withheld[0])
            net.tell()
        for ticket in (first, second):
            with engine.reply(ticket, timeout_s=30) as reply:
                assert Status.OK == reply.status[0]
    assert untaken
    assert not any(untaken)


# -- waiting ---------------------------------------------------------------------------


def rounds_and_pauses(engine, n=8):
    for _ in range(n):
        assert Status.OK is served(engine)
        time.sleep(0.03)  # what the proxy waits through is not asserted


def slowly(worker, step, slot):
    time.sleep(0.03)
    worker.reply(step, slot)


def test_a_spinning_proxy_never_sleeps(script, rests):
    with engine_of(script, wait="spin") as engine:
        script.act = slowly
        rounds_and_pauses(engine)
    assert {(SLEEP_NS, 0)} == {(spin, sleep) for spin, sleep, _ in rests}


def test_a_spinning_proxy_does_not_sleep_though_it_can_take_no_round(
    script, rests, eventually
):
    with engine_of(script, wait="spin") as engine:
        script.act = lambda *_: None
        for _ in range(ROUNDS):
            engine.step([Row(slot=0, sampled=True)], timeout_s=20)
        eventually(lambda: not all(with_ring for _, _, with_ring in rests))
    assert {0} == {sleep for _, sleep, _ in rests}


@pytest.mark.parametrize("spin_ns", [0, 50_000, SLEEP_NS, 25_000_000])
def test_a_hybrid_sleeps_only_when_its_spin_is_over(script, rests, spin_ns):
    with engine_of(script, wait="hybrid", spin_ns=spin_ns) as engine:
        script.act = slowly
        rounds_and_pauses(engine)
    assert {0, SLEEP_NS} >= {sleep for _, sleep, _ in rests}
    for spin, sleep, _ in rests:
        assert 0 <= spin <= min(spin_ns, SLEEP_NS)
        assert sleep or spin == SLEEP_NS
    assert any(sleep for _, sleep, _ in rests)
    assert (spin_ns > SLEEP_NS) == any(not sleep for _, sleep, _ in rests)


def test_waits_for_rounds_and_for_replies_are_learned_by_themselves(script):
    with engine_of(script, wait="hybrid", spin_ns=1000) as engine:
        script.act = slowly
        rounds_and_pauses(engine, 1)
        waiters = engine._proxy._loop._pump.c.waiter
        before = [waiter.waits for waiter in waiters]
        rounds_and_pauses(engine, 8)
        told = [waiter.waits - n for waiter, n in zip(waiters, before, strict=True)]
    # The last of them may have ended in a return, which teaches nothing.
    assert all(7 <= n <= 9 for n in told), told


def test_words_that_wait_keep_nobody_awake(script, rests, eventually):
    def leave(worker, _step, _slot):
        worker.sent += 1  # as if a REPLY had been written
        worker.error("so long")
        worker.link.abort()  # its end stays readable

    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        script.act = spoiled(leave)
        before = len(rests)
        assert Status.PEER_DIED is served(engine)
        # By sleeps of 10 ms, not by looks: some 50, and not tens of thousands.
        assert len(rests) - before < 1000
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert Status.OK is served(engine)


def test_a_session_without_a_lane_is_refused_before_it_opens(script):
    with engine_of(script) as engine:
        loop = engine._proxy._loop
        pump = StagedPump(loop._hands, -1, Waiting(), 0)
        with pytest.raises(LinkError, match="expected a lane and a reader of worker"):
            pump.open(Greeting(types.SimpleNamespace(peer="worker"), bytes(16)))
        assert lib.PP3_PUMP_LOST == pump()


# -- a hostile worker ------------------------------------------------------------------


def spoiled(act):
    """Act once; the next STEPs are answered."""

    def once(worker, step, slot):
        worker.act = RdmaScript.reply
        act(worker, step, slot)

    return once


def other(slot):
    return (slot + 1) % ROUNDS


def wild(worker, step, slot):
    """A reply without an immediate, then one that names no slot there is."""
    worker.write(worker.frame(step), worker.end.peer.slot_bytes * slot)
    worker.write(b"x" * 64, 0, immediate=ROUNDS)


HOSTILE = {
    "immediate beyond the slots": (wild, "rdma.immediate", "frame"),
    "immediate of the largest": (
        lambda w, _step, _slot: w.write(b"x", immediate=2**32 - 1),
        "rdma.immediate",
        "frame",
    ),
    "a slot of no round": (
        lambda w, step, slot: w.write(
            w.frame(step), w.end.peer.slot_bytes * other(slot), immediate=other(slot)
        ),
        "rdma.slot",
        "frame",
    ),
    "no frame's length": (
        lambda w, step, slot: w.write(
            w.frame(step)[:-1], w.end.peer.slot_bytes * slot, immediate=slot
        ),
        "rdma.bytes",
        "frame",
    ),
    "a frame beside its slot": (
        lambda w, step, slot: w.write(
            w.frame(step), w.end.peer.slot_bytes * slot + 8, immediate=slot
        ),
        "frame",
        "frame",
    ),
    "an immediate without a frame": (
        lambda w, step, slot: w.write(
            w.frame(step), w.end.peer.slot_bytes * other(slot), immediate=slot
        ),
        "frame",
        "frame",
    ),
    "a frame that fails its CRC": (
        lambda w, step, slot: w.write(
            w.frame(step)[:-1] + bytes([w.frame(step)[-1] ^ 1]),
            w.end.peer.slot_bytes * slot,
            immediate=slot,
        ),
        "crc",
        "crc",
    ),
    "a REPLY over the connection": (
        lambda w, step, _slot: w.link.send(w.frame(step)),
        "frame.kind",
        "frame",
    ),
    "the round of another": (
        lambda w, step, slot: w.write(
            w.frame(Step(step.round + 1, step.rows)),
            w.end.peer.slot_bytes * slot,
            immediate=slot,
        ),
        "header",
        "header",
    ),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_write_that_is_not_what_was_asked_for_ends_the_session(
    script, eventually, name
):
    act, says, counter = HOSTILE[name]
    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        before = engine.stats()[counter]
        script.act = spoiled(act)
        assert served(engine) in (Status.PEER_DIED, Status.CORRUPT, Status.STALE)
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert before + 1 == engine.stats()[counter]
        assert Status.OK is served(engine)
        assert SessionState.READY is engine.session_state
    eventually(lambda: Kind.ERROR in script.heard, says)


@pytest.mark.parametrize("where", ["after", "before", "other key"])
def test_a_write_beyond_the_area_reaches_nothing_and_ends_the_session(
    script, eventually, where
):
    def beyond(worker, step, _slot):
        frame, size = worker.frame(step), worker.end.peer.slot_bytes * ROUNDS
        if where == "after":
            worker.write(frame, size - len(frame) + 1)
        elif where == "before":
            worker.write(frame, -1)
        else:
            worker.write(frame, 0, rkey=worker.end.peer.rkey ^ 1)

    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        script.act = spoiled(beyond)
        assert Status.PEER_DIED is served(engine)
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert Status.OK is served(engine)


def test_a_worker_that_writes_all_the_time_everywhere_spoils_only_its_own(script):
    """A rank sees the honest reply or a failed one, whatever stood there between."""
    seeds = np.random.default_rng(3)

    def scribble(worker, step, slot):
        size = worker.end.peer.slot_bytes
        for _ in range(3):
            data = seeds.bytes(int(seeds.integers(1, 3000)))
            worker.end.sends_left = ROUNDS + 1
            worker.write(data, int(seeds.integers(0, size * ROUNDS - len(data))))
        worker.reply(step, slot)
        worker.end.sends_left = ROUNDS + 1
        worker.write(seeds.bytes(64), size * slot + int(seeds.integers(0, 3000)))

    good = 0
    with engine_of(script) as engine:
        script.act = scribble
        for number in range(60):
            ticket = engine.step([Row(slot=0)], timeout_s=10)
            with engine.reply(ticket) as reply:
                status = Status(int(reply.status[0]))
                assert status in (Status.OK, Status.CORRUPT, Status.PEER_DIED), number
                if status is Status.OK:
                    good += 1
                    assert (0 == reply.tokens[0]).all()
                    assert (reply.q[0] == 1 / 32).all()
                else:
                    assert (-1 == reply.tokens[0]).all()
            if status is not Status.OK:
                engine.wait_connected(10)
        assert good > 0


# -- links that fail -------------------------------------------------------------------


def test_a_link_that_is_cut_fails_rounds_and_comes_back(net, script, eventually):
    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        net.cut = True
        assert Status.PEER_DIED is served(engine)
        assert served(engine) in (Status.PEER_DIED, Status.TIMEOUT)
        net.cut = False
        eventually(lambda: served(engine) is Status.OK, "a session", 30)
        assert engine.stats()["sessions"] >= 2


def test_a_full_send_queue_ends_the_session_and_leaks_nothing(net, script, eventually):
    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        net.newest()[1].sends_left = 0  # the proxy's
        assert Status.PEER_DIED is served(engine)
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert Status.OK is served(engine)


def test_a_write_that_never_completes_ends_the_session(
    net, script, eventually, monkeypatch
):
    monkeypatch.setattr("pp3shm.link.lane.OVERDUE_S", 0.1)
    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        net.holding = True
        served(engine, LATE_S)
        eventually(lambda: engine.stats()["sessions"] >= 2 or engine.last_error())
        net.let_go()
        eventually(lambda: served(engine) is Status.OK)


def test_a_worker_whose_device_reports_nothing_ends_its_session_though_nothing_comes(
    net, eventually, monkeypatch
):
    """Its replies do not leave, every slot is in quarantine, so no STEP wakes it."""
    monkeypatch.setattr("pp3shm.link.lane.OVERDUE_S", 0.7)
    ours = profile()
    with (
        Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker,
        engine_of(worker, ours) as engine,
    ):
        assert Status.OK is served(engine)
        worker_end, _ = net.newest()
        worker_end.write = lambda *_: None
        rows = [Row(slot=0, sampled=True)]
        for ticket in [engine.step(rows, timeout_s=LATE_S) for _ in range(ROUNDS)]:
            engine.reply(ticket, timeout_s=5)
            engine.release(ticket)
        eventually(lambda: worker.stats().get("connections_lost"))
        eventually(lambda: served(engine) is Status.OK)
        assert 0 == engine.stats()["slots_held"]


def test_memory_of_a_pair_that_cannot_be_destroyed_is_kept_and_counted(
    net, script, eventually
):
    def refuse():
        raise LinkError("fake: expected to destroy QP, found: busy")

    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        kept = net.newest()[1]  # the proxy's
        kept.close = refuse
        script.error()
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert Status.OK is served(engine)
        assert 4 == engine.stats()["memory_regions"]
        assert 2 == kept.regions
        del kept.close
        kept.close()


def test_the_death_of_the_connection_is_the_death_of_the_session(script, eventually):
    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        script.act = lambda worker, *_: worker.link.abort()
        assert Status.PEER_DIED is served(engine)
        script.act = RdmaScript.reply
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert Status.OK is served(engine)


def test_the_workers_last_words_come_after_the_replies_before_them(
    net, script, eventually
):
    def answer_and_leave(worker, step, slot):
        net.holding = True
        worker.reply(step, slot)
        worker.error("that was all")
        time.sleep(0.05)
        net.let_go()

    with engine_of(script) as engine:
        script.act = spoiled(answer_and_leave)
        assert Status.OK is served(engine)
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert 1 == engine.stats()["error_frames"]


def test_last_words_end_the_session_though_a_reply_before_them_is_lost(
    script, eventually
):
    def leave(worker, _step, _slot):
        worker.sent += 1  # as if the REPLY had been written
        worker.error("so long")

    with engine_of(script) as engine:
        script.act = spoiled(leave)
        assert Status.PEER_DIED is served(engine)
        eventually(lambda: 2 == engine.stats()["sessions"])


# -- opening ---------------------------------------------------------------------------


def test_tcp_to_an_rdma_worker_is_refused_by_name(eventually):
    ours = profile()
    with Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker:
        address = worker.addresses[0].replace("rdma", "tcp")
        with Engine.create(ours, worker=address, proxy="thread") as engine:
            engine.reset(0, [1, 2, 3])

            def refused():
                assert Status.OK is not served(engine)
                return "expected ENDPOINT, ERROR or BYE" in str(engine.last_error())

            eventually(refused)


def refused_to(address, ours, says):
    with pytest.raises(LinkError, match=says):
        Engine.create(ours, worker=address, proxy="thread", connect_timeout_s=2)


def test_rdma_to_a_tcp_worker_is_refused_by_name():
    ours = profile()
    with Worker(TableDrafter(table()), ours, ["tcp://127.0.0.1:0"]) as worker:
        address = worker.addresses[0].replace("tcp", "rdma")
        refused_to(address, ours, r"expected STEP, RESET, ERROR or BYE, .*ENDPOINT")


def test_a_device_that_refuses_says_so_to_both_sides(net):
    ours = profile()
    net.refuse = LinkError("rdma device: expected a GID of 127.0.0.1, found no device")
    with Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker:
        refused_to(worker.addresses[0], ours, r"expected a GID of 127\.0\.0\.1")


@pytest.mark.parametrize("side", ["worker", "proxy"])
def test_an_end_that_can_neither_connect_nor_close_says_why_it_could_not_connect(
    net, monkeypatch, side
):
    def refuse(what):
        raise LinkError(f"fake: {what} refused")

    def opened(*told):
        end = net.__class__.open_end(net, *told)
        if (side == "proxy") == (len(net.ends) % 2 == 1):  # the proxy's is made first
            end.connect = lambda _peer: refuse("connect")
            end.close = lambda: refuse("destroy")
        return end

    monkeypatch.setattr(rdma, "open_end", opened)
    ours = profile()
    with Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker:
        refused_to(worker.addresses[0], ours, "fake: connect refused")
    for end in net.ends.values():
        vars(end).pop("close", None)
        end.close()


def test_a_proxy_gone_before_it_says_its_endpoint_leaves_nothing(net, eventually):
    ours = profile()
    with Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker:
        net.refuse = LinkError("rdma: none")
        with pytest.raises(LinkError):
            Engine.create(
                ours, worker=worker.addresses[0], proxy="thread", connect_timeout_s=1
            )
        eventually(lambda: 0 == worker.stats()["sessions_open"])
    assert {} == net.ends


# -- what a worker refuses -------------------------------------------------------------


def test_a_step_over_the_connection_of_an_rdma_session_is_refused(eventually):
    ours = profile()
    with (
        Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker,
        engine_of(worker, ours) as engine,
    ):
        assert Status.OK is served(engine)
        loop = engine._proxy._loop
        talk, pump = loop._talk, loop._pump
        body = b"\0" * (ours.step_bytes - HEADER_BYTES - 4)
        frame = encode_frame(Kind.STEP, talk.session, pump.c.sent, body, 2)
        talk._link.send(frame)
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert 1 == worker.stats()["errors_corrupt"]
        assert Status.OK is served(engine)


@pytest.mark.parametrize(
    ("immediate", "cut"),
    [(ROUNDS, 0), (2**32 - 1, 0), (0, 1)],
    ids=["beyond", "largest", "no length"],
)
def test_a_worker_refuses_writes_that_no_step_is(net, eventually, immediate, cut):
    ours = profile()
    with (
        Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker,
        engine_of(worker, ours) as engine,
    ):
        assert Status.OK is served(engine)
        proxy_end = net.newest()[1]
        size = ours.step_bytes - cut
        proxy_end.fill(0, bytes(size))
        proxy_end.write(0, size, proxy_end.peer.at(0), proxy_end.peer.rkey, immediate)
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert 1 == worker.stats()["connections_refused"]
        assert Status.OK is served(engine)


def test_a_step_that_is_out_of_sequence_is_refused(eventually):
    ours = profile()
    with (
        Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker,
        engine_of(worker, ours) as engine,
    ):
        assert Status.OK is served(engine)
        engine._proxy._loop._pump.c.sent -= 1
        assert Status.PEER_DIED is served(engine)
        eventually(lambda: 2 == engine.stats()["sessions"])
        assert Status.OK is served(engine)


# -- two ways, one order ---------------------------------------------------------------


def test_a_reset_that_overtakes_a_step_waits_for_it(net, script, eventually):
    with engine_of(script) as engine:
        assert Status.OK is served(engine)
        seen = len(script.events)
        net.holding = True
        first = engine.step([Row(slot=0, sampled=True)], timeout_s=20)
        eventually(lambda: 1 == net.held)
        engine.reset(0, [4, 5, 6])
        second = engine.step([Row(slot=0, sampled=True)], timeout_s=20)
        eventually(lambda: 2 == net.held)
        assert seen == len(script.events)
        net.let_go()
        for ticket in (first, second):
            with engine.reply(ticket, timeout_s=30) as reply:
                assert ticket == reply.round
        eventually(lambda: seen + 3 == len(script.events))
        kinds = [type(event).__name__ for event in script.events[seen:]]
        assert ["Step", "Reset", "Step"] == kinds


def test_a_frame_whose_forerunner_never_comes_ends_the_session(net, eventually):
    ours = profile()
    patience = Patience(frame_s=0.2)
    with (
        Worker(
            TableDrafter(table()), ours, ["rdma://127.0.0.1:0"], patience=patience
        ) as worker,
        engine_of(worker, ours) as engine,
    ):
        assert Status.OK is served(engine)
        net.holding = True
        engine.step([Row(slot=0, sampled=True)], timeout_s=5)
        eventually(lambda: 1 == net.held)
        engine.reset(0, [4, 5, 6])
        engine.step([Row(slot=0, sampled=True)], timeout_s=5)
        eventually(lambda: worker.stats().get("connections_lost"))
        net.let_go()
        eventually(lambda: 2 == engine.stats()["sessions"])


def test_more_slots_than_may_be_pinned_are_refused_by_the_worker(monkeypatch):
    monkeypatch.setattr("pp3shm.proxy.greet.slots_for", lambda *_: 3)
    monkeypatch.setattr("pp3shm.worker.staged.slots_for", lambda *_: 2)
    ours = profile()
    with Worker(TableDrafter(table()), ours, ["rdma://127.0.0.1:0"]) as worker:
        refused_to(worker.addresses[0], ours, r"endpoint\.slots: expected at most 2")
