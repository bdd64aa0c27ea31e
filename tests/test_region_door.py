"""Faults at an engine's door: whoever has the region has it until its end is known."""

import contextlib
import errno
import logging
import os
import select
import threading
import time

import pytest
from far_ends import RegionGuest, RegionProcess, pages_given, table

from pp3shm import Engine, Profile, Row, Status
from pp3shm.errors import Exhausted, LinkError, ProfileError, RingError
from pp3shm.link.address import parse_door
from pp3shm.link.socket import connect
from pp3shm.proxy import door, holder, vacant
from pp3shm.proxy.admission import LEFT, READY, ask
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.ring import handover
from pp3shm.ring.waiting import Waiting
from pp3shm.worker import RegionWorker
from pp3shm.worker import region as region_module

PROFILE = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=512)
WHOLE = ([Status.OK] * 2, None)
NO_SESSION = ([Status.PEER_DIED] * 2, None)
# Made anew each time: one that was raised keeps all that was in sight.
ERRORS = {
    "ValueError": lambda: ValueError("filedescriptor out of range"),
    "OSError": lambda: OSError(errno.EMFILE, os.strerror(errno.EMFILE)),
    "MemoryError": MemoryError,
    "RuntimeError": lambda: RuntimeError("can't start new thread"),
    "RingError": lambda: RingError("word", "one", "another"),
    "LinkError": lambda: LinkError("any"),
    "KeyboardInterrupt": KeyboardInterrupt,
}
THREADS = [name for name in ERRORS if name != "KeyboardInterrupt"]
"""Those that can come up in a thread other than the main one."""


@pytest.fixture
def engine():
    """An engine whose door is open, with both slots in use and one round at a time."""
    with Engine.create(
        PROFILE, worker="region://", connect_timeout_s=0, rounds=1
    ) as made:
        for slot in (0, 1):
            made.reset(slot, [5, 6, 7])
        yield made


def one_round(engine, timeout_s=10.0):
    with engine.reply(engine.step([Row(0), Row(1)], timeout_s=timeout_s)) as reply:
        return reply.status.tolist(), reply.failed


@pytest.fixture
def guest(engine):
    with contextlib.closing(RegionGuest(engine)) as made:
        yield made


def failing(monkeypatch, place, name, error, times):
    """The function there raises so often, and then works; how often it was called."""
    real = getattr(place, name)
    calls = []

    def call(*arguments, **named):
        calls.append(arguments)
        if len(calls) <= times:
            fault = ERRORS[error]()
            raise fault
        return real(*arguments, **named)

    monkeypatch.setattr(place, name, call)
    return calls


# -- it has the region until its end is known ------------------------------------------


def fenced(engine, guest, eventually):
    """A page that the guest took and whose round has failed since."""
    ticket = engine.step([Row(0)], timeout_s=0.2)
    page = guest.take(eventually)
    with engine.reply(ticket) as reply:
        assert Status.TIMEOUT == reply.failed
    return page


@pytest.mark.parametrize("error", sorted({*THREADS} - {"LinkError"}))
def test_whatever_fails_at_the_door_a_living_holders_page_is_given_to_nobody(
    engine, guest, error, monkeypatch, eventually
):
    calls = failing(monkeypatch, holder, "read_exactly", error, 3)
    page = fenced(engine, guest, eventually)
    guest.link.send(READY)
    eventually(lambda: len(calls) > 3, "the faults")
    assert os.getpid() == engine.stats()["proxy_pid"]
    seen = pages_given(engine)
    assert seen
    assert page not in seen
    assert 1 == engine.stats()["quarantined"]
    assert 0 == engine.stats()["proxy_deaths"]
    guest.leave()  # and then it is known
    eventually(lambda: engine.stats()["proxy_pid"] == 0, "its leave")
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


def test_a_living_holder_that_hangs_up_keeps_its_page(engine, guest, eventually):
    page = fenced(engine, guest, eventually)
    guest.link.send(READY)
    guest.link.close()
    eventually(lambda: len(pages_given(engine, 1)) == 1, "a round")
    assert page not in pages_given(engine)
    assert os.getpid() == engine.stats()["proxy_pid"]
    with pytest.raises(LinkError, match=f"that of process {os.getpid()}"):
        RegionWorker(table(), PROFILE, engine.door).start()


def test_a_holder_that_was_waited_for_again_is_seen_dead(
    engine, monkeypatch, eventually
):
    calls = failing(monkeypatch, holder, "read_exactly", "ValueError", 3)
    with RegionProcess(engine.door, PROFILE) as worker:
        eventually(lambda: len(calls) > 3, "the faults")
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)
        worker.kill()
        eventually(lambda: engine.stats()["proxy_pid"] == 0, "its death")
    assert 1 == engine.stats()["proxy_deaths"]
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


@pytest.mark.parametrize("name", ["give", "refuse"])
def test_who_was_given_nothing_holds_nothing(engine, name, monkeypatch, eventually):
    if name == "refuse":  # with one that has the region
        first = RegionWorker(table(), PROFILE, engine.door)
        first.start()
        engine.wait_connected(30)
    failing(monkeypatch, door, name, "RuntimeError", 1)
    with pytest.raises(LinkError):
        RegionWorker(table(), PROFILE, engine.door).start()
    eventually(lambda: not engine._proxy._guests or name == "refuse", "its end")
    if name == "refuse":
        assert WHOLE == one_round(engine)
        first.close()
        eventually(lambda: engine.stats()["proxy_pid"] == 0, "its leave")
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


# -- a worker that fails behind the handover -------------------------------------------

STEPS = {
    "pidfd": (region_module, "pidfd_of"),
    "handover": (region_module, "attach_proxy"),
    "mapping": (handover.Region, "attach"),
    "end": (handover, "ProxyEnd"),
    "epoll": (select, "epoll"),
    "loop": (region_module, "ProxyLoop"),
}


@pytest.mark.parametrize("error", ["OSError", "MemoryError", "KeyboardInterrupt"])
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_that_fails_behind_the_handover_lets_the_next_one_in(
    engine, step, error, monkeypatch, eventually
):
    """Its process lives on, so that no death would tell."""
    place, name = STEPS[step]
    failing(monkeypatch, place, name, error, 1)
    with pytest.raises(type(ERRORS[error]())):
        RegionWorker(table(), PROFILE, engine.door).start()
    eventually(lambda: engine._proxy._holder is None, "that it has left")
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)
    assert 0 == engine.stats()["proxy_deaths"]


def test_a_worker_without_a_thread_lets_go_too(engine, monkeypatch, eventually):
    real = threading.Thread.start

    def start(thread):
        if thread.name == "pp3shm-region":
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        worker = RegionWorker(table(), PROFILE, engine.door)
        with pytest.raises(RuntimeError, match="new thread"):
            worker.start()
    assert 0 == worker.stats()["attached"]
    worker.close()
    eventually(lambda: engine._proxy._holder is None, "that it has left")
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


# -- the door's own thread -------------------------------------------------------------


def test_a_guest_for_whom_there_is_no_thread_is_turned_away(
    engine, monkeypatch, caplog
):
    """More of them than may be at the door at once: none is left there."""
    real = threading.Thread.start

    def start(thread):
        if thread.name == "pp3shm-guest":
            raise RuntimeError("can't start new thread")
        real(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        for _ in range(door.MOST_GUESTS + 2):
            with pytest.raises(LinkError):
                RegionWorker(table(), PROFILE, engine.door).start()
    assert {} == engine._proxy._guests
    assert "no thread to be had" in caplog.text
    assert NO_SESSION == one_round(engine)
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


@pytest.mark.parametrize(
    ("place", "name"),
    [(vacant, "_failed_one"), (door.Door, "_heed"), (door.Door, "_receive")],
    ids=["rounds", "heed", "receive"],
)
@pytest.mark.parametrize("error", THREADS)
def test_whatever_fails_in_the_doors_thread_it_goes_on(
    engine, place, name, error, monkeypatch, caplog, eventually
):
    calls = failing(monkeypatch, place, name, error, 2)
    for _ in range(2 if name == "_receive" else 0):
        with contextlib.closing(connect(parse_door(engine.door, "door"), 5)):
            pass
    if name != "_receive":
        assert NO_SESSION == one_round(engine)
    eventually(lambda: len(calls) >= 2, "the faults")
    eventually(lambda: "door" in caplog.text, "the message")
    assert NO_SESSION == one_round(engine)
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


def test_a_sleep_that_fails_is_said_and_does_not_burn_a_core(
    engine, monkeypatch, caplog, eventually
):
    real, pauses = vacant.lib, []

    class Core:
        """The C core, but for one call."""

        def __getattr__(self, name):
            return getattr(real, name)

        def pp3_proxy_sleep(self, *_):
            return -errno.EMFILE

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(vacant, "lib", Core())
        patch.setattr(door, "time", Pausing(pauses))
        assert NO_SESSION == one_round(engine)  # and goes to sleep
        eventually(lambda: len(pauses) > 1, "a pause")
        eventually(lambda: "Too many open files" in caplog.text, "the message")
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


class Pausing:
    """The module ``time``, and who slept how long."""

    def __init__(self, pauses):
        self._pauses = pauses

    def __getattr__(self, name):
        return getattr(time, name)

    def sleep(self, seconds):
        self._pauses.append(seconds)
        time.sleep(seconds)


def test_descriptors_and_owners_last_whatever_many_guests_do(engine, eventually):
    """An owner id is given back by each: there are 255."""
    for _ in range(300):
        link = connect(parse_door(engine.door, "door"), 5)
        plan = ProxyPlan(PROFILE, engine.door, None, Waiting())
        ask(link, plan, time.monotonic() + 5)
        link.send(LEFT)  # it could not map it
        link.close()
        eventually(lambda: engine._proxy._holder is None, "its leave")
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


# -- what the engine does about it -----------------------------------------------------


def test_an_engine_does_not_kill_its_own_process(engine, guest, eventually):
    """What a claim does that finds every page in quarantine."""
    eventually(lambda: engine.stats()["proxy_pid"] == os.getpid(), "the guest")
    guest.link.send(READY)
    assert not engine._proxy.replace()
    held = set()
    for _ in range(2):
        held.add(fenced(engine, guest, eventually))
    with pytest.raises(Exhausted):
        engine.step([Row(0)], timeout_s=0.2)
    assert 2 == len(held)
    guest.leave()
    eventually(lambda: engine._proxy._holder is None, "its leave")
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        assert WHOLE == one_round(engine)


NOBODY = "expected a worker to come, found none"


@pytest.mark.parametrize("refused", ["second", "profile", "rubbish"])
def test_who_was_refused_beside_a_worker_is_no_reason_once_it_left(
    engine, refused, caplog, eventually
):
    other = Profile.sampled(vocab=65, depth=5, max_slots=2, max_positions=512)
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
        if refused == "rubbish":
            with contextlib.closing(
                connect(parse_door(engine.door, "door"), 5)
            ) as link:
                link.send(b"GET / HTTP/1.1\r\n\r\n")
                eventually(lambda: len(engine._proxy._guests) == 1, "the refusal")
        else:
            theirs = PROFILE if refused == "second" else other
            with pytest.raises((LinkError, ProfileError)):
                RegionWorker(table(theirs.vocab), theirs, engine.door).start()
        eventually(lambda: "door: " in caplog.text, "the refusal")
        eventually(lambda: len(engine._proxy._guests) == 1, "its end")
        assert engine._proxy.trouble() is None
    eventually(lambda: engine._proxy._holder is None, "its leave")
    with pytest.raises(LinkError, match=NOBODY):
        engine.wait_connected(0.01)


def test_who_was_refused_beside_a_worker_that_leaves_meanwhile_is_no_reason(
    engine, monkeypatch, eventually
):
    first = RegionWorker(table(), PROFILE, engine.door).start()
    engine.wait_connected(30)
    real = door.refuse

    def refuse(*arguments):
        real(*arguments)
        first.close()
        eventually(lambda: engine._proxy._holder is None, "its leave")

    monkeypatch.setattr(door, "refuse", refuse)
    with pytest.raises(LinkError, match="expected no worker at the region"):
        RegionWorker(table(), PROFILE, engine.door).start()
    eventually(lambda: not engine._proxy._guests, "the refusal")
    with pytest.raises(LinkError, match=NOBODY):
        engine.wait_connected(0.01)


def test_who_was_refused_while_none_had_the_region_is_the_reason_until_one_has(
    engine, eventually
):
    theirs = Profile.sampled(vocab=65, depth=5, max_slots=2, max_positions=512)
    with pytest.raises(ProfileError):
        RegionWorker(table(65), theirs, engine.door).start()
    with pytest.raises(ProfileError):
        engine.wait_connected(0.2)
    with RegionWorker(table(), PROFILE, engine.door):
        engine.wait_connected(30)
    eventually(lambda: engine._proxy._holder is None, "its leave")
    with pytest.raises(LinkError, match=NOBODY):
        engine.wait_connected(0.01)
