"""How waits wait: what a hybrid learns, and that nobody burns a core for nothing."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from far_ends import RegionGuest, connected, table

from pp3shm import Engine, Profile, Row, Status
from pp3shm._core import ffi, lib
from pp3shm.errors import ConfigError, WaitTimeout
from pp3shm.rank import Rank
from pp3shm.ring.waiting import WAITS, Waiting
from pp3shm.worker import RegionWorker

MOST = 50_000
MS = 1_000_000
KEPT = 8


def profile_of():
    return Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=512)


class Waiter:
    """A waiter of the C core, and a world in which a sleep costs its wake-up."""

    def __init__(self, wait="hybrid", spin_ns=MOST, wake_ns=30_000):
        self.c = ffi.new("struct pp3_waiter *")
        Waiting(wait, spin_ns).tell(self.c)
        self.wake_ns = wake_ns
        self.spun_ns = 0

    def wait(self, real_ns):
        """One wait for what comes after so long; how long it was meant to spin."""
        spin = lib.pp3_waiter_begin(self.c)
        caught = real_ns <= spin
        self.spun_ns += min(real_ns, spin)
        lib.pp3_waiter_end(self.c, real_ns if caught else real_ns + self.wake_ns)
        return spin

    def waits(self, real_ns, times):
        """The spins of so many of them."""
        return [self.wait(real_ns) for _ in range(times)]


# -- what a hybrid learns --------------------------------------------------------------


@pytest.mark.parametrize("wake_ns", [0, 5_000, 30_000, 500_000])
@pytest.mark.parametrize("real_ns", [0, 100, 3_000, 20_000])
def test_a_short_wait_is_spun_as_long_as_it_needs_and_no_longer(real_ns, wake_ns):
    waiter = Waiter(wake_ns=wake_ns)
    spins = waiter.waits(real_ns, 40)
    assert all(spin >= real_ns for spin in spins)
    assert spins[-1] <= 2 * real_ns + 500


def test_long_waits_are_not_spun_but_for_a_try_now_and_then():
    waiter = Waiter()
    waiter.waits(10 * MS, KEPT)  # the beginning's trials
    waiter.spun_ns = 0
    spins = waiter.waits(10 * MS, 800)
    assert {0, MOST} == set(spins)
    assert 100 == spins.count(MOST)
    # 0.06 % of the waited time
    assert waiter.spun_ns <= 800 * 10 * MS // 1000


@pytest.mark.parametrize("wake_ns", [0, 30_000, 500_000])
def test_it_spins_again_once_waits_are_short_again(wake_ns):
    """However long a slept one takes: its wake-up must not hide that it pays."""
    waiter = Waiter(wake_ns=wake_ns)
    waiter.waits(10 * MS, 30)
    waiter.waits(3_000, 20)
    assert all(3_000 <= spin <= 10_000 for spin in waiter.waits(3_000, 50)[-10:])


def test_two_who_wake_each_other_spin_again():
    """Each wait has the other's wake-up in it until both spin: it is worth a try."""
    one, other = Waiter(), Waiter()
    for waiter in (one, other):
        waiter.waits(10 * MS, 30)
    wake_ns, work_ns = 25_000, 20_000
    slept = {one: True, other: True}
    for _ in range(200):
        for waiter, peer in ((one, other), (other, one)):
            real = work_ns + (wake_ns if slept[peer] else 0)
            slept[waiter] = waiter.wait(real) < real
    assert {one: False, other: False} == slept


def test_waits_about_as_long_as_the_longest_spin_are_spun():
    """Half of them are caught; a sleep would add a wake-up to each."""
    waiter = Waiter()
    for turn in range(200):
        spin = waiter.wait(MOST - 10_000 if turn % 2 else MOST + 10_000)
        assert MOST == spin or turn < KEPT


def test_it_stops_when_waits_become_long():
    waiter = Waiter()
    waiter.waits(3_000, 30)
    waiter.waits(10 * MS, KEPT)
    assert 0 == min(waiter.waits(10 * MS, 5))


def test_one_long_wait_among_short_ones_changes_nothing():
    waiter = Waiter()
    waiter.waits(3_000, 30)
    for _ in range(20):
        waiter.wait(10 * MS)
        assert all(3_000 <= spin <= MOST for spin in waiter.waits(3_000, 7))


def test_a_longest_spin_of_nothing_is_a_futex_and_a_short_one_is_kept():
    assert [0] * 20 == Waiter(spin_ns=0).waits(3_000, 20)
    assert max(Waiter(spin_ns=100).waits(50, 40)) <= 100
    assert max(Waiter(spin_ns=100).waits(MS, 40)) <= 100


@pytest.mark.parametrize("real_ns", [10, 3_000, 10 * MS])
def test_the_other_two_learn_nothing(real_ns):
    assert [0] * 20 == Waiter("futex").waits(real_ns, 20)
    assert [2**64 - 1] * 20 == Waiter("spin").waits(real_ns, 20)


# -- one name everywhere ---------------------------------------------------------------


@pytest.mark.parametrize("wait", ["", "sleep", "Spin", None, 1])
def test_another_word_is_refused_wherever_one_may_choose(wait):
    profile = profile_of()
    for choose in (
        lambda: Waiting(wait),
        lambda: Engine.create(profile, worker="unix://@x", wait=wait),
        lambda: Rank.attach("@nobody", profile, wait=wait),
        lambda: RegionWorker(table(), profile, "region://@x", wait=wait),
    ):
        with pytest.raises(ConfigError, match="wait"):
            choose()


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("way", ["thread", "process", "region"])
def test_rounds_are_whole_however_it_waits(wait, way):
    with connected(way, profile_of(), wait=wait) as engine:
        for slot in (0, 1):
            engine.reset(slot, [1])
        for _ in range(30):
            with engine.reply(engine.step([Row(0), Row(1)], timeout_s=10)) as reply:
                assert [Status.OK] * 2 == reply.status.tolist()
        assert 0 == engine.stats()["lost_wakes"]


@pytest.mark.parametrize("wait", WAITS)
def test_a_wait_ends_at_the_deadline_however_it_waits(wait):
    """Longer than a wait stays in C: it is begun again, and ends all the same."""
    with Engine.create(
        profile_of(), worker="region://", wait=wait, connect_timeout_s=0
    ) as engine:
        engine.reset(0, [1])
        ring = engine._ring
        ticket = ring.claim(time.monotonic_ns() + 200 * MS)  # never submitted
        with engine.reply(ticket) as reply:
            assert Status.TIMEOUT == reply.failed


# -- idle ------------------------------------------------------------------------------

IDLE = """
import sys, time
sys.path.insert(0, sys.argv[3])
from far_ends import connected
from pp3shm import Profile, Row
profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=512)
with connected(sys.argv[1], profile, wait=sys.argv[2]) as engine:
    engine.reset(0, [1])
    for _ in range(300):
        engine.release(engine.step([Row(0)], timeout_s=10))
        with engine.reply(engine.step([Row(0)], timeout_s=10)):
            pass
    print(engine.stats()["proxy_pid"], flush=True)
    sys.stdin.readline()
"""


def cpu_s(pid):
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("wait", ["hybrid", "futex"])
@pytest.mark.parametrize("way", ["thread", "process", "region"])
def test_idle_for_a_second_nobody_burns_a_core(way, wait):
    """Right after busy rounds; a share of the time, which load only lowers."""
    words = [sys.executable, "-c", IDLE, way, wait, str(Path(__file__).parent)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        proxy = int(process.stdout.readline())
        pids = {process.pid, proxy or process.pid}
        before, begun = sum(map(cpu_s, pids)), time.monotonic()
        time.sleep(1)
        burnt, passed = sum(map(cpu_s, pids)) - before, time.monotonic() - begun
        process.stdin.close()
        assert 0 == process.wait(60)
    print(f"{way} {wait}: {burnt:.3f} s CPU in {passed:.3f} s")
    assert burnt < 0.2 * passed  # of three threads and more that wait


def test_a_reader_that_waits_for_long_burns_no_core():
    with Engine.create(profile_of(), worker="region://", connect_timeout_s=0) as engine:
        engine.reset(0, [1])
        ticket = engine._ring.claim(time.monotonic_ns() + 1000 * MS)
        before = resource.getrusage(resource.RUSAGE_THREAD)
        begun = time.monotonic()
        engine.reply(ticket)
        passed = time.monotonic() - begun
        after = resource.getrusage(resource.RUSAGE_THREAD)
        burnt = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        assert burnt < 0.1 * passed


class Heard(Exception):
    """Raised by the handler of a signal."""


@pytest.fixture
def alarm():
    """A signal in a moment, whose handler raises."""

    def handler(_number, _frame):
        raise Heard

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.2)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("wait", WAITS)
def test_a_signal_is_heard_while_a_round_is_waited_for(wait, alarm):
    """However long the longest spin may be."""
    how = {"wait": wait, "spin_ns": 10**18, "connect_timeout_s": 0}
    with (
        Engine.create(profile_of(), worker="region://", **how) as engine,
        contextlib.closing(RegionGuest(engine)),  # it answers nothing
    ):
        engine.reset(0, [5])
        ticket = engine.step([Row(0)], timeout_s=20)
        for waits in (
            lambda: engine.reply(ticket),
            lambda: engine._ring.wait(ticket, spin_ns=10**18 if wait != "futex" else 0),
        ):
            alarm()
            with pytest.raises(Heard):
                waits()
            with pytest.raises(WaitTimeout):  # and not only at the round's end
                engine.reply(ticket, timeout_s=0)
