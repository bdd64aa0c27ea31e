"""The watchdog: deadlines, deaths, and one living proxy; with real processes."""

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from pp3shm._core import ffi, lib
from pp3shm.errors import Busy, Exhausted, RingError
from pp3shm.ring.handover import Doorman
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd, ProxyEnd
from pp3shm.ring.watchdog import Watchdog, WatchState

FAR = 10**18
MS = 1_000_000
FAILED = 24
TEMPLATES = b"".join(bytes([cause]) * FAILED for cause in CAUSES)
STARTS, TAKEN, GO, DONE = range(4)  # counters that test and proxy talk by

# Takes one round and does as its configuration says; `hold` only in its first life.
PROXY = """
import ctypes, os, select, signal, socket, sys, time
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
from pp3shm.ring.handover import PROXY_FD, attach_proxy
link = socket.socket(fileno=PROXY_FD)
end, config = attach_proxy(link)
life = end.counter(0)
end.count(0)
what = config.decode() if life == 0 or config.endswith(b"!") else "echo"
if what.startswith("exit"):
    sys.exit(3)
if what.startswith("deaf"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
while not select.select([link], [], [], 0)[0]:
    word = end.take()
    if word is None:
        if not end.prepare():
            select.select([link, end.bell_fd], [], [], 0.01)
        end.done()
        continue
    end.page(word)[8:12] = b"half"
    end.count(1)
    if what.startswith("hold"):
        while not end.counter(2):
            pass
    end.page(word)[8:12] = b"full"
    end.publish(word)
    end.count(3)
"""


def _engine(rounds: int = 2, spares: int | None = None, ranks: int = 1) -> EngineEnd:
    shape = Shape(
        rounds=rounds,
        spares=spares,
        ranks=ranks,
        page_bytes=64,
        request_bytes=64,
        failed_bytes=FAILED,
        head_bytes=16,
        slots=1,
        max_positions=4,
    )
    return EngineEnd(Region.create(shape, layout_id=bytes(32)), TEMPLATES)


def _until(condition: Callable[[], object]) -> None:
    """Waits for it; the test's own timeout is the watchdog of this wait."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "never came true"
        time.sleep(0.001)


def _argv(code: str = PROXY) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def engine():
    with _engine() as end:
        yield end


@contextlib.contextmanager
def _watched(engine: EngineEnd, config: str):
    with Watchdog(engine, _argv(), config=config.encode(), grace_ns=200 * MS) as dog:
        yield dog


def test_a_tick_fails_exactly_what_is_past_its_deadline():
    """The clock is an argument."""
    with _engine(rounds=4) as engine:
        tick = lib.pp3_watchdog_tick
        for deadline in (1000, 3000, 2000):
            engine.step(bytes(8), deadline)
        with ProxyEnd.thread(engine) as proxy:
            proxy.take()
            assert proxy.publish(proxy.take())
            assert tick(engine.handle, 999) == 1000
            assert [engine.word(t) >> 20 & 15 for t in (1, 2, 3)] == [2, 3, 1]
            assert tick(engine.handle, 1000) == 2000
            assert [engine.word(t) >> 20 & 15 for t in (1, 2, 3)] == [9, 3, 1]
            assert tick(engine.handle, 10**12) == 10**12 + 100 * MS
            assert [engine.word(t) >> 20 & 15 for t in (1, 2, 3)] == [9, 3, 9]


def test_a_tick_looks_again_within_a_slice_while_a_round_is_open(engine):
    """10 ms while one is, 100 ms while none is."""
    assert lib.pp3_watchdog_tick(engine.handle, 5) == 5 + 100 * MS
    engine.step(bytes(8), FAR)
    assert lib.pp3_watchdog_tick(engine.handle, 5) == 5 + 10 * MS


def test_a_deadline_is_kept_while_nobody_waits(engine):
    """A GPU stream cannot help; the claim nudges a watchdog that sleeps longer."""
    with Watchdog(engine) as dog:
        _until(lambda: dog.stats().ticks > 0)
        before = dog.stats().ticks
        for _ in range(20):
            ticket = engine.step(bytes(8), lib.pp3_now() + 2 * MS)
            _until(lambda t=ticket: engine.word(t) >> 20 & 15 == 9)
            engine.release(ticket)
        # two turns a round: one for the nudge, one for the deadline. Without a nudge
        # the idle tick alone would find it, in one
        assert dog.stats().ticks - before >= 30
        assert dog.stats().state is WatchState.IDLE
    assert engine.counter(lib.PP3_COUNT_EXPIRED) == 20


def test_a_claim_with_a_far_deadline_nudges_nobody(engine):
    """Else every claim would be a system call."""
    with Watchdog(engine) as dog:
        _until(lambda: dog.stats().ticks > 0)
        before = dog.stats().ticks
        claims = 20_000
        for _ in range(claims):
            engine.cancel(engine.step(bytes(8), FAR))
        assert dog.stats().ticks - before < claims // 10


def test_a_stopped_watchdog_is_nudged_no_more(engine):
    """And what it saw last stays readable."""
    dog = Watchdog(engine)
    _until(lambda: dog.stats().ticks > 0)
    dog.stop()
    before = dog.stats()
    assert before.state is WatchState.STOPPED
    engine.step(bytes(8), 1)
    assert dog.stats() == before


def test_a_killed_proxys_round_fails_with_status_7_and_the_next_one_serves(engine):
    """Long before its deadline, with the failed buffer of that cause."""
    with _watched(engine, "hold") as dog:
        ticket = engine.step(bytes(8), FAR)
        _until(lambda: engine.counter(TAKEN))
        first = dog.stats()
        os.kill(first.pid, signal.SIGKILL)
        outcome = engine.wait(ticket)
        assert outcome.status == 7
        assert bytes(outcome.view) == ticket.to_bytes(8, "little") + b"\7" * 16
        engine.release(ticket)
        second = engine.step(bytes(8), FAR)
        assert bytes(engine.wait(second).view[8:12]) == b"full"
        stats = dog.stats()
        assert stats.pid not in (0, first.pid)
        assert stats.owner != first.owner
        assert (stats.restarts, stats.deaths, stats.last_status) == (1, 1, -9)
    assert engine.counter(lib.PP3_COUNT_ORPHANED) == 1


def test_a_stopped_proxys_page_is_not_reused_until_it_lets_go():
    """Stopped in its copy, fenced, and refused when it wakes."""
    with _engine(rounds=1, spares=1) as engine, _watched(engine, "hold") as dog:
        ticket = engine.step(bytes(8), lib.pp3_now() + 20_000 * MS)
        _until(lambda: engine.counter(TAKEN))
        pid = dog.stats().pid
        os.kill(pid, signal.SIGSTOP)
        page = engine.word(ticket) >> 8 & 4095
        assert engine.resolve(ticket, 2) >> 20 & 15 == 9
        engine.release(ticket)
        for lap in range(ticket + 1, ticket + 6):
            assert engine.step(bytes(8), FAR) == lap
            assert engine.word(lap) >> 8 & 4095 != page
            assert engine.stats().quarantined == 1
            if lap < ticket + 5:
                engine.cancel(lap)
        engine.count(GO)
        os.kill(pid, signal.SIGCONT)
        # refused, it gives back, and serves what stands there now
        assert bytes(engine.wait(ticket + 5).view[8:12]) == b"full"
        assert engine.counter(lib.PP3_COUNT_FENCED) == 1
        assert dog.stats().pid == pid


@pytest.mark.parametrize("how", ["kill", "replace"])
def test_a_stopped_proxy_that_is_killed_gives_every_page_back(how):
    """Refused by name until it is known dead; SIGKILL reaches a stopped process."""
    with _engine(rounds=1, spares=0) as engine, _watched(engine, "hold") as dog:
        ticket = engine.step(bytes(8), FAR)
        _until(lambda: engine.counter(TAKEN))
        pid, owner = dog.stats().pid, dog.stats().owner
        os.kill(pid, signal.SIGSTOP)
        engine.resolve(ticket, 2)
        engine.release(ticket)
        for _ in range(3):
            with pytest.raises(Exhausted, match=f"by owner {{{owner}: 1}}"):
                engine.step(bytes(8), FAR)
        if how == "kill":
            os.kill(pid, signal.SIGKILL)
        else:
            dog.replace()
        _until(lambda: dog.stats().deaths == 1)
        second = engine.step(bytes(8), FAR)
        assert bytes(engine.wait(second).view[8:12]) == b"full"


def test_kills_at_random_leave_every_round_with_one_outcome():
    """Published and whole, or failed; and the ring goes on."""
    with _engine(rounds=2) as engine, _watched(engine, "echo!") as dog:
        over = threading.Event()
        rng = random.Random(7)

        def kill() -> None:
            seen = 0
            while not over.wait(rng.random() / 100):
                pid = dog.stats().pid
                if pid and engine.counter(DONE) > seen:  # it had served
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    seen = engine.counter(DONE) + 1

        killer = threading.Thread(target=kill)
        killer.start()
        statuses = set()
        while dog.stats().deaths < 5 or 0 not in statuses:
            ticket = engine.step(bytes(8), lib.pp3_now() + 50 * MS)
            outcome = engine.wait(ticket)
            statuses.add(outcome.status)
            if outcome.status == 0:
                assert bytes(outcome.view[8:12]) == b"full"
            else:
                assert bytes(outcome.view) == ticket.to_bytes(8, "little") + bytes(
                    [outcome.status] * 16
                )
            engine.release(ticket)
        over.set()
        killer.join()
    assert statuses <= {0, 2, 7}


def test_a_proxy_that_dies_at_once_is_started_again_ever_more_slowly(engine):
    """Its exit code is kept, restarts are counted."""
    with _watched(engine, "exit!") as dog:
        _until(lambda: dog.stats().deaths >= 4)
        assert dog.stats().last_status == 3
        assert dog.stats().restarts >= 3


def test_an_executable_that_is_not_there_is_an_error_in_the_stats(engine):
    """And is tried again; deadlines are kept meanwhile."""
    with Watchdog(engine, ["/nonexistent/proxy"]) as dog:
        _until(lambda: dog.stats().last_error is not None)
        assert dog.stats().last_error == os.strerror(errno.ENOENT)
        assert (dog.stats().pid, dog.stats().starts) == (0, 0)
        assert dog.stats().state is WatchState.WAITS
        assert engine.wait(engine.step(bytes(8), lib.pp3_now() + MS)).status == 2


def test_a_proxy_is_not_started_without_an_owner_id(engine):
    """255 living ones: refused by name, and started once one is free."""
    owners = [engine.add_thread_owner() for _ in range(255)]
    with _watched(engine, "echo") as dog:
        _until(lambda: dog.stats().last_error is not None)
        assert dog.stats().last_error == os.strerror(errno.EUSERS)
        engine.owner_dead(owners[9])
        _until(lambda: dog.stats().pid)
        assert dog.stats().owner == owners[9]


@pytest.mark.parametrize("config", ["echo", "deaf"])
def test_stop_ends_the_proxy_deaf_or_not(engine, config):
    """SIGTERM, a while, SIGKILL; reaped, and its rounds failed."""
    dog = Watchdog(engine, _argv(), config=config.encode(), grace_ns=100 * MS)
    _until(lambda: engine.counter(STARTS))
    if config == "deaf":
        engine.step(bytes(8), FAR)
        _until(lambda: engine.counter(DONE))
    pid = dog.stats().pid
    dog.stop()
    dog.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    stats = dog.stats()
    assert (stats.pid, stats.state) == (0, WatchState.STOPPED)
    assert stats.last_status == (-15 if config == "echo" else -9)
    with pytest.raises(RingError, match="a stopped one"):
        dog.kick()


def test_the_proxy_inherits_nothing_but_its_socket(engine):
    """Descriptors of other libraries, CLOEXEC or not, stay here."""
    code = (
        "import os\n"
        "n = sorted(int(f) for f in os.listdir('/proc/self/fd'))\n"
        "os._exit(100 + len([f for f in n if f > 3]))"
    )
    leak = os.memfd_create("not ours", 0)
    os.set_inheritable(leak, True)
    with Watchdog(engine, _argv(code)) as dog:
        _until(lambda: dog.stats().deaths)
        assert dog.stats().last_status == 101  # listdir's own
    os.close(leak)


def test_a_proxy_attaches_with_a_region_it_may_not_write_the_slots_of(engine):
    """The descriptor it got is read-only, whatever it does with it."""
    code = PROXY.replace(
        "life = end.counter(0)",
        "import mmap\n"
        "fd = end.region._segments.fds['slots']\n"
        "try:\n"
        "    mmap.mmap(fd, 0, mmap.MAP_SHARED)\n"
        "except PermissionError:\n"
        "    os._exit(42)\n"
        "life = 0",
    )
    with Watchdog(engine, _argv(code)) as dog:
        _until(lambda: dog.stats().deaths)
        assert dog.stats().last_status == 42


def test_a_proxy_goes_when_the_engine_is_killed(tmp_path):
    """Its socket closes and PR_SET_PDEATHSIG kills it: no orphan holds the region."""
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd
from pp3shm.ring.watchdog import Watchdog
shape = Shape(rounds=1, page_bytes=64, request_bytes=64, failed_bytes=24,
              head_bytes=16, slots=1, max_positions=4)
engine = EngineEnd(Region.create(shape, layout_id=bytes(32)), bytes(72))
dog = Watchdog(engine, [sys.executable, "-c", {PROXY!r}], config=b"echo")
while not engine.counter(0):
    pass
print(dog.stats().pid, flush=True)
sys.stdin.read()
"""
    script = tmp_path / "engine.py"
    script.write_text(code)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        pidfd = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        _until(lambda: lib.pp3_pidfd_gone(pidfd))
        os.close(pidfd)


def test_a_forked_child_neither_stops_nor_waits_for_the_watchdog(engine):
    """The thread is not there; the parent's goes on."""
    with _watched(engine, "echo") as dog:
        _until(lambda: engine.counter(STARTS))
        child = os.fork()
        if child == 0:
            code = 0
            try:
                dog.kick()
                code = 1
            except RingError:
                dog.stop()
            os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        ticket = engine.step(bytes(8), FAR)
        assert engine.wait(ticket).status == 0


def test_a_watchdog_forgotten_is_stopped_with_its_last_reference():
    """And its proxy with it."""
    engine = _engine()
    dog = Watchdog(engine, _argv(), config=b"echo")
    while not dog.stats().pid:
        pass
    pidfd = os.pidfd_open(dog.stats().pid)
    del dog, engine
    _until(lambda: lib.pp3_pidfd_gone(pidfd))
    os.close(pidfd)


def test_the_watchdog_is_refused_a_plan_it_cannot_keep(engine):
    """Nothing to send, or more than fits."""
    plan = ffi.new("struct pp3_plan *")
    error = ffi.new("int *")
    name = ffi.new("char[]", b"x")
    argv = ffi.new("char *[]", [name, ffi.NULL])
    plan.argv = argv
    assert lib.pp3_watchdog_start(engine.handle, plan, error) == ffi.NULL
    assert error[0] == errno.EINVAL


RANK = """
import sys, time
from pp3shm.ring.handover import attach_rank
end = attach_rank(sys.argv[1], int(sys.argv[2]))
print("in", flush=True)
for line in sys.stdin:
    ticket = int(line)
    outcome = end.wait(ticket)
    print(outcome.status, bytes(outcome.view[8:12]).decode(), flush=True)
    if sys.argv[3] == "release":
        end.release(ticket)
        print("released", flush=True)
"""


def test_a_killed_rank_is_not_waited_for_and_a_silent_one_is_named():
    """Known dead only: the claim looks at the pidfd, with and without a watchdog."""
    with _engine(rounds=1, ranks=3) as engine, ProxyEnd.thread(engine) as proxy:
        with Doorman(engine) as door:
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-c", RANK, door.address, str(k), how],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for k, how in ((1, "release"), (2, "keep"))
            ]
            door.wait()
        for rank in ranks:
            assert rank.stdout.readline() == "in\n"
        ticket = engine.step(bytes(8), FAR)
        word = proxy.take()
        proxy.page(word)[8:12] = b"full"
        assert proxy.publish(word)
        for rank in ranks:
            rank.stdin.write(f"{ticket}\n")
            rank.stdin.flush()
            assert rank.stdout.readline() == "0 full\n"
        assert ranks[0].stdout.readline() == "released\n"
        engine.release(ticket)
        os.kill(ranks[1].pid, signal.SIGSTOP)
        for _ in range(3):
            with pytest.raises(Busy) as error:
                engine.step(bytes(8), FAR)
            assert error.value.place == "rank 2"
        assert not engine.rank_dead(2)
        ranks[1].kill()
        ranks[1].wait()
        assert engine.step(bytes(8), FAR) == ticket + 1
        assert engine.rank_dead(2)
        assert not engine.rank_dead(1)
        for rank in ranks:
            rank.kill()
            rank.wait()
            rank.stdin.close()
            rank.stdout.close()
