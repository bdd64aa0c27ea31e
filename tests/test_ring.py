"""The ring in one process: every refusal by name, every outcome once."""

import array
import ctypes
import errno
import gc
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pp3shm._core import ffi, lib
from pp3shm.errors import Busy, Exhausted, RingError, Stale, WaitTimeout
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd, ProxyEnd, RankEnd, Reader

HEAD, FAILED = 16, 40
FAR = 10**18  # a deadline that no test reaches: 31 years of CLOCK_MONOTONIC
TEMPLATES = b"".join(bytes([cause]) * FAILED for cause in CAUSES)
REQUEST = b"ticket__the request"


def _engine(rounds: int = 2, spares: int | None = None, ranks: int = 1) -> EngineEnd:
    shape = Shape(
        rounds=rounds,
        spares=spares,
        ranks=ranks,
        page_bytes=128,
        request_bytes=64,
        failed_bytes=FAILED,
        head_bytes=HEAD,
        slots=3,
        max_positions=50,
    )
    return EngineEnd(Region.create(shape, layout_id=bytes(32)), TEMPLATES)


def _serve(proxy: ProxyEnd, text: bytes = b"reply") -> int:
    word = proxy.take()
    assert word is not None
    proxy.page(word)[: len(text)] = text
    assert proxy.publish(word)
    return word


@pytest.fixture
def engine():
    with _engine() as end:
        yield end


@pytest.fixture
def proxy(engine):
    with ProxyEnd.thread(engine) as end:
        yield end


def test_a_round_goes_from_step_to_release(engine, proxy):
    """Request with its ticket in, reply out, and the entry is free again."""
    for ticket in range(1, 8):
        assert engine.step(REQUEST, FAR) == ticket
        word = proxy.take()
        stamped = ticket.to_bytes(8, "little") + REQUEST[8:]
        assert bytes(proxy.request(word)[: len(REQUEST)]) == stamped
        proxy.page(word)[:6] = b"answer"
        assert proxy.publish(word)
        outcome = engine.wait(ticket)
        assert (outcome.ticket, outcome.status) == (ticket, 0)
        assert bytes(outcome.view[:6]) == b"answer"
        assert outcome.view.readonly
        engine.release(ticket)


def test_a_claimed_request_is_written_in_place(engine, proxy):
    """claim, request, submit are step in three calls."""
    ticket = engine.claim(FAR)
    engine.request(ticket)[8:12] = b"here"
    assert proxy.take() is None
    engine.submit(ticket)
    assert bytes(proxy.request(proxy.take())[8:12]) == b"here"


def test_reader_never_sees_a_page_before_publish(engine, proxy):
    """Taken and half written is still open."""
    ticket = engine.step(REQUEST, FAR)
    proxy.page(proxy.take())[:4] = b"half"
    assert engine.try_wait(ticket) is None


def test_rounds_are_taken_in_order_and_only_when_rung(engine, proxy):
    """A later round waits for the bell of an earlier one."""
    first, second = engine.claim(FAR), engine.claim(FAR)
    engine.submit(second)
    assert proxy.take() is None
    engine.submit(first)
    assert [proxy.take() >> 24, proxy.take() >> 24] == [first, second]


def test_a_round_is_taken_once(engine, proxy):
    """Whoever swaps first has it; the other passes on."""
    engine.step(REQUEST, FAR)
    with ProxyEnd.thread(engine) as other:
        assert proxy.take() is not None
        assert other.take() is None


@pytest.mark.parametrize("status", CAUSES)
def test_a_failed_round_shows_the_failed_buffer_of_its_cause(engine, status):
    """Head of this round, rest of the template, ticket in front."""
    heads = b"".join(bytes([100 + cause]) * HEAD for cause in CAUSES)
    ticket = engine.step(REQUEST, FAR, heads)
    engine.resolve(ticket, status)
    outcome = engine.wait(ticket)
    assert outcome.status == status
    assert bytes(outcome.view) == (
        ticket.to_bytes(8, "little")
        + bytes([100 + status]) * (HEAD - 8)
        + bytes([status]) * (FAILED - HEAD)
    )
    assert outcome.view.readonly


def test_a_round_has_one_outcome(engine, proxy):
    """The first swap decides; publish and fail afterwards change nothing."""
    published, failed = engine.step(REQUEST, FAR), engine.step(REQUEST, FAR)
    first, second = proxy.take(), proxy.take()
    assert proxy.publish(first)
    engine.resolve(published, 2)
    engine.resolve(failed, 7)
    assert not proxy.publish(second)
    engine.resolve(failed, 2)
    statuses = [engine.wait(t).status for t in (published, failed)]
    assert statuses == [0, 7]
    assert engine.counter(lib.PP3_COUNT_FENCED) == 1


def test_a_waiter_past_the_deadline_fails_the_round_itself(engine):
    """Nobody else is alive here."""
    ticket = engine.step(REQUEST, lib.pp3_now() + 1)
    assert engine.wait(ticket).status == 2
    assert engine.counter(lib.PP3_COUNT_EXPIRED) == 1


def test_own_patience_fails_no_round(engine, proxy):
    """The limit is the caller's, the deadline the round's."""
    ticket = engine.step(REQUEST, FAR)
    with pytest.raises(WaitTimeout, match=f"round {ticket}"):
        engine.wait(ticket, limit_ns=lib.pp3_now() + 1_000_000, spin_ns=10_000)
    _serve(proxy)
    assert engine.wait(ticket).status == 0


def test_claim_is_busy_while_the_entrys_round_is_open(engine):
    """And names the round."""
    first = engine.step(REQUEST, FAR)
    engine.step(REQUEST, FAR)
    with pytest.raises(Busy, match=f"round {first} is still open") as error:
        engine.step(REQUEST, FAR)
    assert error.value.place == f"round {first}"


def test_a_refused_claim_uses_no_ticket(engine, proxy):
    """Tickets are dense: the worker's rounds have no gaps."""
    for _ in range(2):
        engine.step(REQUEST, FAR)
    for _ in range(3):
        with pytest.raises(Busy):
            engine.step(REQUEST, FAR)
    _serve(proxy)
    engine.release(1)
    assert engine.step(REQUEST, FAR) == 3


@pytest.mark.parametrize("ranks", range(1, 17))
def test_claim_waits_for_every_rank_and_names_the_one_behind(ranks):
    """Each has its own acknowledgement; a silent rank is no dead one."""
    with _engine(rounds=1, ranks=ranks) as engine, ProxyEnd.thread(engine) as proxy:
        readers: list[Reader] = [engine]
        for rank in range(1, ranks):
            with pytest.raises(RingError, match=f"rank {rank} is not"):
                engine.step(REQUEST, FAR)
            pidfd = os.pidfd_open(os.getpid())
            engine.attach_rank(rank, pidfd)
            os.close(pidfd)
            readers.append(RankEnd(engine.region, rank))
        ticket = engine.step(REQUEST, FAR)
        _serve(proxy)
        for reader in readers:
            with pytest.raises(Busy) as error:
                engine.step(REQUEST, FAR)
            assert error.value.place == f"rank {reader.rank}"
            assert bytes(reader.wait(ticket).view[:5]) == b"reply"
            reader.release(ticket)
        assert engine.step(REQUEST, FAR) == ticket + 1


def test_a_rank_attaches_once():
    """Numbers of the living are never given again; 0 is the engine's."""
    pidfd = os.pidfd_open(os.getpid())
    with _engine(ranks=2) as two:
        two.attach_rank(1, pidfd)
        for rank in (0, 1, 2):
            with pytest.raises(RingError):
                two.attach_rank(rank, pidfd)
    os.close(pidfd)


def test_a_late_release_changes_nothing_of_the_next_round(engine, proxy):
    """It is a store of the rank's own ticket, never a bit of the entry's."""
    for _ in range(2):
        engine.step(REQUEST, FAR)
        _serve(proxy)
    engine.release(1)
    engine.release(2)
    third = engine.step(REQUEST, FAR)
    engine.release(1)
    _serve(proxy)
    engine.step(REQUEST, FAR)
    with pytest.raises(Busy, match=f"round {third} released"):
        engine.step(REQUEST, FAR)


def test_a_round_of_another_lap_is_stale(engine):
    """Waiting, releasing, submitting, cancelling: by name."""
    engine.step(REQUEST, FAR)
    for call in (engine.wait, engine.release, engine.submit, engine.cancel):
        for ticket in (3, 2**40 + 1):
            with pytest.raises(Stale, match=f"round {ticket}"):
                call(ticket)
    with pytest.raises(Stale):
        engine.request(3)


def test_ticket_zero_is_no_round(engine):
    """Zero is what memory holds before the first claim."""
    for call in (engine.wait, engine.release, engine.submit, engine.cancel):
        with pytest.raises(RingError):
            call(0)


def test_a_cancelled_round_needs_no_release(engine, proxy):
    """No rank was told of it, so none acknowledges it."""
    for ticket in range(1, 10):
        assert engine.step(REQUEST, FAR) == ticket
        engine.cancel(ticket)
        assert engine.word(ticket) >> 20 & 15 == 15
    assert proxy.take() is None
    assert engine.counter(lib.PP3_COUNT_CANCELLED) == 9


def test_a_cancel_that_comes_too_late_needs_no_release_either(engine, proxy):
    """Whatever the outcome was, nobody was told."""
    for ticket in range(1, 10):
        assert engine.step(REQUEST, FAR) == ticket
        _serve(proxy)
        engine.cancel(ticket)
        assert engine.word(ticket) >> 20 & 15 == 3


def test_a_round_a_stream_has_to_submit_is_neither_cancelled_nor_reused():
    """The stream still writes its request and its bell."""
    with _engine(rounds=1) as engine:
        ticket = engine.claim(FAR)
        assert lib.pp3_stream_hold(engine.handle, ticket) == 0
        with pytest.raises(Busy):
            engine.cancel(ticket)
        engine.resolve(ticket, 2)
        engine.release(ticket)
        with pytest.raises(Busy, match="its stream is not done"):
            engine.claim(FAR)
        assert lib.pp3_stream_done(engine.handle, ticket) == 0
        assert engine.claim(FAR) == ticket + 1


def test_a_fenced_page_is_not_reused_until_its_proxy_lets_go(engine, proxy):
    """Fencing stops the publication, never the bytes."""
    ticket = engine.step(REQUEST, FAR)
    mine = proxy.take()
    page = mine >> 8 & 4095
    engine.resolve(ticket, 2)
    engine.release(ticket)
    with ProxyEnd.thread(engine) as other:
        for lap in range(2, 20):
            assert engine.step(REQUEST, FAR) == lap
            assert _serve(other) >> 8 & 4095 != page
            engine.release(lap)
        assert engine.stats().owners == {proxy.owner: 1}
        proxy.page(mine)[:] = bytes(128)  # what a stopped one does when it wakes
        assert not proxy.publish(mine)
    assert proxy.sweep([]) == []


@pytest.mark.parametrize("how", ["publish", "sweep", "give_back", "death"])
def test_exhausted_pages_come_back_by_every_way(how):
    """Refused by name until the holder has let go."""
    with _engine(rounds=1, spares=0) as engine, ProxyEnd.thread(engine) as proxy:
        ticket = engine.step(REQUEST, FAR)
        mine = proxy.take()
        engine.resolve(ticket, 2)
        engine.release(ticket)
        for _ in range(3):
            with pytest.raises(Exhausted, match=f"by owner {{{proxy.owner}: 1}}"):
                engine.step(REQUEST, FAR)
        if how == "publish":
            assert not proxy.publish(mine)
        elif how == "sweep":
            assert proxy.sweep([mine]) == []
        elif how == "give_back":
            proxy.give_back(mine)
        else:
            engine.owner_dead(proxy.owner)
        assert engine.step(REQUEST, FAR) == ticket + 1
        assert engine.stats().quarantined == 0


def test_a_round_failed_before_it_was_taken_quarantines_nothing():
    """Owner 0: nobody but the engine ever touched the page."""
    with _engine(rounds=1, spares=0) as engine:
        for ticket in range(1, 6):
            assert engine.step(REQUEST, FAR) == ticket
            engine.resolve(ticket, 2)
            engine.release(ticket)


def test_sweep_keeps_what_is_still_its_own_in_order(engine, proxy):
    """And gives back only what was failed."""
    for _ in range(2):
        engine.step(REQUEST, FAR)
    first, second = proxy.take(), proxy.take()
    assert proxy.sweep([first, second]) == [first, second]
    engine.resolve(1, 2)
    assert proxy.sweep([first, second]) == [second]


def test_a_dead_owners_rounds_fail_with_status_7_and_no_others(engine, proxy):
    """Only those it was writing; a second burial changes nothing."""
    with ProxyEnd.thread(engine) as other:
        for _ in range(2):
            engine.step(REQUEST, FAR)
        proxy.take()
        kept = other.take()
        assert engine.owner_dead(proxy.owner) == 1
        assert engine.owner_dead(proxy.owner) == 0
        assert engine.wait(1).status == 7
        assert other.publish(kept)
        assert engine.wait(2).status == 0


def test_owner_ids_are_refused_by_name_when_all_live_and_reused_when_dead(engine):
    """255 of them; a dead one is given again once nothing names it."""
    owners = [engine.add_thread_owner() for _ in range(255)]
    assert sorted(owners) == list(range(1, 256))
    with pytest.raises(RingError, match="owner"):
        engine.add_thread_owner()
    engine.owner_dead(77)
    assert engine.add_thread_owner() == 77


def test_an_owner_id_is_not_reused_while_a_word_names_it(engine):
    """Else the new owner would inherit the old one's rounds or quarantine."""
    with ProxyEnd.thread(engine) as proxy:
        engine.step(REQUEST, FAR)
        proxy.take()
        for _ in range(254):
            engine.add_thread_owner()
        engine.owner_dead(proxy.owner)
        with pytest.raises(RingError, match="owner"):
            engine.add_thread_owner()
        engine.release(1)
        for ticket in (2, 3):
            engine.step(REQUEST, FAR)
            engine.resolve(ticket, 2)
            engine.release(ticket)
        assert engine.add_thread_owner() == proxy.owner


def test_tickets_end_by_refusal_never_by_wrapping(engine):
    """2**40 - 1 is never issued."""
    last = 2**40 - 2
    assert lib.pp3_skip_tickets(engine.handle, last - 2) == 0
    for ticket in range(last - 2, last + 1):
        assert engine.step(REQUEST, FAR) == ticket
        engine.resolve(ticket, 2)
        engine.release(ticket)
    for _ in range(2):
        with pytest.raises(RingError, match="ticket"):
            engine.step(REQUEST, FAR)


@pytest.mark.parametrize("size", [0, 7, 65])
def test_a_request_of_an_impossible_size_is_refused_before_a_claim(engine, size):
    """Nothing is claimed that could not be submitted."""
    with pytest.raises(RingError, match="request"):
        engine.step(bytes(size), FAR)
    assert engine.step(bytes(8), FAR) == 1


@pytest.mark.parametrize("size", [0, 3 * HEAD - 1, 3 * HEAD + 1])
def test_heads_of_another_size_are_refused(engine, size):
    """They are copied without another look."""
    with pytest.raises(RingError, match="heads"):
        engine.step(REQUEST, FAR, bytes(size))


def test_publish_refuses_a_word_that_was_not_taken_by_this_end(engine, proxy):
    """Another's word, or one that was never WRITING."""
    engine.step(REQUEST, FAR)
    mine = proxy.take()
    with ProxyEnd.thread(engine) as other:
        for word in (mine, mine ^ (1 << 20), 0):
            with pytest.raises(RingError):
                other.publish(word)
    assert proxy.publish(mine)


def test_a_new_proxy_goes_on_where_the_ring_is(engine, proxy):
    """Its cursor starts a lap before the newest round and finds what is rung."""
    for ticket in range(1, 12):
        engine.step(REQUEST, FAR)
        _serve(proxy)
        engine.release(ticket)
    ticket = engine.step(REQUEST, FAR)
    with ProxyEnd.thread(engine) as fresh:
        assert fresh.take() >> 24 == ticket


@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
@pytest.mark.parametrize("laps", [98, 99, 100, 101])
def test_a_proxy_that_slept_through_many_laps_finds_all_that_is_left(rounds, laps):
    """Its cursor jumps to a lap before what it sees, not beyond."""
    with _engine(rounds=rounds) as engine, ProxyEnd.thread(engine) as sleeper:
        with ProxyEnd.thread(engine) as other:
            for ticket in range(1, laps):
                engine.step(REQUEST, FAR)
                _serve(other)
                engine.release(ticket)
        left = [engine.step(REQUEST, FAR) for _ in range(rounds)]
        assert [sleeper.take() >> 24 for _ in range(rounds)] == left
        assert sleeper.take() is None


def test_a_quarantine_record_keeps_an_owner_id_from_being_reused():
    """Else its page would wait for an owner that lives again."""
    with _engine(rounds=1, spares=2) as engine, ProxyEnd.thread(engine) as proxy:
        for ticket in range(1, 4):
            engine.step(REQUEST, FAR)
            if ticket == 1:
                proxy.take()
            engine.resolve(ticket, 2)
            engine.release(ticket)
        assert engine.stats().owners == {proxy.owner: 1}
        for _ in range(254):
            engine.add_thread_owner()
        engine.owner_dead(proxy.owner)
        with pytest.raises(RingError, match="owner"):
            engine.add_thread_owner()


FUTEX_WAIT = 0
SYS_FUTEX = {"x86_64": 202, "aarch64": 98}


@pytest.mark.skipif(os.uname().machine not in SYS_FUTEX, reason="futex's number")
@pytest.mark.parametrize("cause", ["publish", "fail", "owner"])
def test_whoever_sleeps_on_the_entry_is_woken(engine, proxy, cause):
    """A bare futex wait of a minute, so that no slice can stand in for the wake."""
    ticket = engine.step(REQUEST, FAR)
    word = proxy.take()
    at = lib.pp3_state_offset(engine.handle, ticket)
    control = engine.region.view("control")
    control[at + 132] = 1  # a waiter is counted
    base = int(ffi.cast("uintptr_t", engine.region.addresses["control"]))
    minute = struct.pack("<qq", 60, 0)
    result: list[int] = []

    def sleep() -> None:
        call = ctypes.CDLL(None, use_errno=True).syscall
        address = ctypes.c_void_p(base + at + 128)
        number = SYS_FUTEX[os.uname().machine]
        rc = call(number, address, FUTEX_WAIT, 0, minute, None, 0)
        result.append(ctypes.get_errno() if rc else 0)

    sleeper = threading.Thread(target=sleep)
    sleeper.start()
    stat = Path(f"/proc/self/task/{sleeper.native_id}/syscall")
    while not stat.read_text().startswith(f"{SYS_FUTEX[os.uname().machine]} "):
        pass
    if cause == "publish":
        assert proxy.publish(word)
    elif cause == "fail":
        engine.resolve(ticket, 2)
    else:
        control[at + 132] = 0  # killed between its swap and its wake
        engine.owner_dead(engine.add_thread_owner())
    sleeper.join()
    assert result[0] in (0, errno.EAGAIN)  # EAGAIN: seq was raised before it slept


def test_the_bell_rings_only_for_a_sleeper(engine, proxy):
    """A running proxy costs the engine no system call."""

    def rung() -> bool:
        return bool(lib.pp3_pidfd_gone(proxy.bell_fd))

    engine.step(REQUEST, FAR)
    assert not rung()
    assert proxy.prepare()  # there is something: do not sleep
    proxy.done()
    proxy.take()
    assert not proxy.prepare()
    engine.step(REQUEST, FAR)
    assert rung()
    proxy.done()
    assert not rung()
    assert proxy.take() is not None


def test_a_sleeping_reader_is_woken_by_publish_and_by_failure(engine, proxy):
    """No wake is lost: no sleep runs out beside a resolved word."""
    seen = []

    def read() -> None:
        for ticket in range(1, 201):
            while engine.word(ticket) >> 24 != ticket:
                pass
            seen.append(engine.wait(ticket).status)
            engine.release(ticket)

    reader = threading.Thread(target=read)
    reader.start()
    for ticket in range(1, 201):
        while True:
            try:
                engine.step(REQUEST, FAR)
                break
            except Busy:
                continue
        if ticket % 3:
            _serve(proxy)
        else:
            engine.resolve(ticket, 2)
    reader.join()
    assert seen == [0 if t % 3 else 2 for t in range(1, 201)]
    assert engine.counter(lib.PP3_COUNT_LOST_WAKES) == 0


def test_the_lost_wake_counter_counts_a_word_that_nobody_woke_for(engine):
    """Planted: the word is swapped behind the protocol's back."""
    ticket = engine.step(REQUEST, FAR)
    at = lib.pp3_state_offset(engine.handle, ticket)
    control = engine.region.view("control")
    waiter = threading.Thread(target=engine.wait, args=(ticket,))
    waiter.start()
    while engine.counter(lib.PP3_COUNT_SLEPT) == 0:
        pass
    control[at + 2] |= 3 << 4  # PUBLISHED
    waiter.join()
    assert engine.counter(lib.PP3_COUNT_LOST_WAKES) == 1


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda w: w | 4095 << 8, "page 4095"),
        (lambda w: w & ~(15 << 20) | 10 << 20, "state 10"),
        (lambda w: w & ~(15 << 20) | 15 << 20 | 100 << 8, "page 100"),
    ],
)
def test_a_hostile_resolved_word_is_an_error_that_names_it(
    engine, proxy, change, found
):
    """Never a view outside the region."""
    ticket = engine.step(REQUEST, FAR)
    _serve(proxy)
    at = lib.pp3_state_offset(engine.handle, ticket)
    word = change(engine.word(ticket))
    engine.region.view("control")[at : at + 8] = word.to_bytes(8, "little")
    with pytest.raises(RingError, match=found):
        engine.wait(ticket)
    with pytest.raises(RingError, match=found):
        engine.outcome(word)


@pytest.mark.parametrize("word", [0, 1 << 24 | 1 << 8, 2**64 - 1])
def test_the_place_of_a_request_is_never_taken_from_the_shared_word(engine, word):
    """A page of another round, or of none: the engine writes where it claimed."""
    for ticket in (1, 2):
        assert engine.claim(FAR) == ticket
        before = engine.request(ticket)
        at = lib.pp3_state_offset(engine.handle, ticket)
        engine.region.view("control")[at : at + 8] = word.to_bytes(8, "little")
        assert engine.request(ticket) is before
    assert engine.request(1) is not engine.request(2)


@pytest.mark.parametrize(
    "word", [1 << 24 | 1 << 20 | 4 << 8, 2 << 24 | 1 << 20, 2**64 - 1]
)
def test_take_refuses_a_hostile_word_by_name(engine, proxy, word):
    """A page out of bounds, or a ticket that cannot stand in its entry."""
    ticket = engine.step(REQUEST, FAR)
    at = lib.pp3_state_offset(engine.handle, ticket)
    engine.region.view("control")[at : at + 8] = word.to_bytes(8, "little")
    with pytest.raises(RingError, match=f"ticket {word >> 24}"):
        proxy.take()


def test_claim_refuses_a_word_that_is_not_its_rounds(engine, proxy):
    """The engine keeps its own record of page and ticket."""
    for _ in range(2):
        engine.step(REQUEST, FAR)
        _serve(proxy)
    at = lib.pp3_state_offset(engine.handle, 1)
    word = engine.word(1)
    engine.release(1)
    for hostile in (word ^ 1 << 8, word + (2 << 24), 0, word & ~(15 << 20) | 5 << 20):
        engine.region.view("control")[at : at + 8] = hostile.to_bytes(8, "little")
        with pytest.raises((RingError, Busy)):
            engine.step(REQUEST, FAR)
    engine.region.view("control")[at : at + 8] = word.to_bytes(8, "little")
    assert engine.step(REQUEST, FAR) == 3


HOSTILE = """
import random, struct, sys, threading
from pp3shm._core import ffi, lib
from pp3shm.errors import Pp3Error
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd, ProxyEnd
import array
seed = int(sys.argv[1])
rng = random.Random(seed)
shape = Shape(rounds=3, page_bytes=128, request_bytes=64, failed_bytes=40,
              head_bytes=16, slots=2, max_positions=50)
engine = EngineEnd(Region.create(shape, layout_id=bytes(32)), bytes(120))
proxy = ProxyEnd.thread(engine)
control, slots = engine.region.view("control"), engine.region.view("slots")
over, kinds = threading.Event(), set()

def hostile():
    while not over.is_set():
        at = rng.randrange(len(control) // 8) * 8
        word = rng.choice([rng.getrandbits(64), rng.getrandbits(30),
                           rng.randrange(40) << 24 | rng.getrandbits(24)])
        if at >= 8:
            struct.pack_into("<Q", control, at, word)
        struct.pack_into("<Q", slots, rng.randrange(8) * 8, rng.getrandbits(64))

def calls():
    out = array.array("i", bytes(200))
    soon = lambda: lib.pp3_now() + 200_000
    taken = proxy.take()
    if taken is not None:
        proxy.page(taken)[:4] = b"live"
        proxy.request(taken)[:4]
        proxy.publish(taken)
    proxy.prepare(); proxy.done(); proxy.sweep([rng.getrandbits(64)])
    proxy.give_back(rng.getrandbits(64))
    for ticket in (engine.step(bytes(20), soon()), rng.randrange(1, 60)):
        outcome = engine.wait(ticket, limit_ns=soon(), spin_ns=1000)
        bytes(outcome.view)
        engine.release(ticket)

thread = threading.Thread(target=hostile)
thread.start()
out = array.array("i", bytes(200))
for turn in range(4000):
    for call in (calls, lambda: proxy.slot_read(0, out),
                 lambda: lib.pp3_watchdog_tick(engine.handle, lib.pp3_now()),
                 lambda: engine.owner_dead(engine.add_thread_owner())):
        try:
            call()
        except Pp3Error as error:
            kinds.add(type(error).__name__)
    stats = engine.stats()
    assert stats.free_pages + stats.quarantined <= 6, stats
over.set()
thread.join()
print(*sorted(kinds))
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_hostile_words_while_readers_loop_never_crash(seed):
    """Whatever stands in control and slots: an outcome or an error, in bounds."""
    done = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(seed)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "RingError" in done.stdout


def test_every_call_of_a_forked_child_is_an_error_that_says_so(engine, proxy):
    """The region is not mapped there; a second owner would be worse."""
    ticket = engine.step(REQUEST, FAR)
    calls = [
        lambda: engine.step(REQUEST, FAR),
        lambda: engine.claim(FAR),
        lambda: engine.submit(ticket),
        lambda: engine.cancel(ticket),
        lambda: engine.wait(ticket),
        lambda: engine.release(ticket),
        lambda: engine.resolve(ticket, 2),
        lambda: engine.word(ticket),
        engine.add_thread_owner,
        lambda: engine.owner_dead(1),
        lambda: engine.slot_close(0),
        proxy.take,
        lambda: proxy.publish(ticket << 24 | 2 << 20 | proxy.owner),
        lambda: proxy.sweep([1]),
        lambda: proxy.slot_read(0, array.array("i", [0])),
    ]
    child = os.fork()
    if child == 0:
        wrong = 0
        for number, call in enumerate(calls, 1):
            try:
                call()
                wrong = number
            except RingError as error:
                wrong = wrong or (number if error.found != "a forked child" else 0)
        engine.close()
        proxy.close()
        os._exit(wrong)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    _serve(proxy)
    assert engine.wait(ticket).status == 0


def test_an_answer_of_a_forked_child_is_refused_before_its_page_is_touched(
    engine, proxy
):
    """Its page is not mapped there: a wild write otherwise."""
    engine.step(REQUEST, FAR)
    mine = proxy.take()
    layout = ffi.new("struct pp3_layout *", (111, 4, 1, 8, 0, 0))
    step, frame = bytes(4096), bytes(200)
    fault, trace = ffi.new("struct pp3_fault *"), ffi.new("struct pp3_trace *")
    child = os.fork()
    if child == 0:
        answer = lib.pp3_answer(
            proxy.handle,
            layout,
            mine,
            step,
            frame,
            len(frame),
            bytes(16),
            0,
            trace,
            fault,
        )
        failed = lib.pp3_answer_failed(proxy.handle, layout, mine, step, 2)
        os._exit(int((answer, failed) != (-errno.EOWNERDEAD,) * 2))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_has_no_mapping_of_the_region(engine):
    """MADV_DONTFORK: a child that outlives its parent cannot write a page either."""
    engine.step(REQUEST, FAR)

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("pp3shm-")

    gc.collect()  # views in tracebacks of earlier tests keep their regions mapped
    assert mapped() == 5
    child = os.fork()
    if child == 0:
        os._exit(mapped())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_older_release_once_more_takes_no_later_one_back(engine):
    """What a rank has released it cannot read again, whatever it releases then."""
    laps = 3
    size = engine.region.shape.rounds
    tickets = []
    for _ in range(laps * size):
        tickets.append(engine.step(REQUEST, FAR))
        engine.resolve(tickets[-1], 8)
        engine.release(tickets[-1])
    for ticket in reversed(tickets):
        engine.release(ticket)
    for ticket in tickets:
        with pytest.raises(Stale):
            engine.try_wait(ticket)


def test_a_closed_end_says_so(proxy):
    """Closing again changes nothing."""
    proxy.close()
    proxy.close()
    with pytest.raises(RingError, match="closed"):
        proxy.take()


def test_counters_are_the_regions(engine, proxy):
    """One end counts, another reads."""
    proxy.count(5, 3)
    proxy.count(5)
    assert engine.counter(5) == 4
    proxy.count(lib.PP3_COUNTERS, 9)
    assert engine.counter(lib.PP3_COUNTERS) == 0
