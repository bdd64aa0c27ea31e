"""Faults that users reported of other transports: each has a test of its whole kind.

``ROWS`` says which test is whose; what no other file tests is tested here.
"""

import ast
import contextlib
import os
import re
import resource
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from scripted_worker import ScriptedWorker

import pp3shm
from pp3shm import Engine, Profile, Row, Status
from pp3shm._core import ffi, lib
from pp3shm.errors import Pp3Error, RingError
from pp3shm.ring.handover import Doorman
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd, ProxyEnd
from pp3shm.ring.watchdog import Watchdog

HERE = Path(__file__).parent
PACKAGE = Path(pp3shm.__file__).parent
FAR = 10**18
WORDS = 512

ROWS = {
    # flag seen before the data: vllm-project/vllm #27858, #29389; xLLM-AI/xllm #813
    1: (
        (
            "test_ring_weak_memory.py::"
            "test_every_weakened_order_and_every_planted_fault_is_refuted"
        ),
        "test_reports.py::test_every_word_of_a_page_is_its_own_rounds",
    ),
    # both sides wait after hours: vllm-project/vllm #29819
    2: (
        "test_ring_weak_memory.py::test_no_scene_has_a_forbidden_outcome",
        "test_promises.py::test_2_rounds_are_resolved_whatever_is_killed_under_load",
    ),
    # asleep though its slot is full: vllm-project/vllm #45224; vllm-ascend #14181
    3: ("test_reports.py::test_a_reader_that_parks_for_every_round_is_woken_for_each",),
    # a skipped wake-up loses a signal: LMAX-Exchange/disruptor #119, #246
    4: (
        (
            "test_ring_weak_memory.py::"
            "test_every_weakened_order_and_every_planted_fault_is_refuted"
        ),
        "test_ring.py::test_the_lost_wake_counter_counts_a_word_that_nobody_woke_for",
    ),
    # idle ranks burn cores: vllm-project/vllm #19036, #52916, #52814
    7: (
        "test_reports.py::test_a_waiting_rank_leaves_its_core_to_others",
        "test_reports.py::test_an_engine_without_work_leaves_its_cores_to_others",
    ),
    # a spinner starves its own process: python/cpython #96078; vllm-project/vllm #30228
    8: ("test_reports.py::test_other_threads_run_while_one_waits",),
    # a fence made of Python breaks: vllm-project/vllm #35104, #40303
    9: ("test_reports.py::test_no_python_stores_into_words_that_others_look_at",),
    # SIGBUS on a small /dev/shm: vllm-project/vllm #48879; eclipse-iceoryx #2287;
    # llnl/UnifyFS #72
    10: (
        "test_region.py::test_a_full_tmpfs_is_an_error_that_names_the_segment",
        "test_region.py::test_memory_that_is_not_to_be_had_is_an_error_at_creation",
    ),
    # the OOM killer comes: vllm-project/vllm #54014; lablup/backend.ai #7222
    11: (
        (
            "test_region_limits.py::"
            "test_a_region_beyond_the_control_groups_memory_is_refused"
        ),
    ),
    # leftovers block the name: eclipse-iceoryx/iceoryx2 #601, #1584, #1967, #1695
    13: (
        "test_reports.py::test_creators_killed_again_and_again_leave_no_growing_heap",
        "test_link_socket.py::test_socket_file_of_a_killed_listener_is_replaced",
    ),
    # live peers judged dead across PID namespaces: garrytan/gbrain #2840;
    # rticommunity/kubernetes-examples #16; openucx/ucx #11546
    15: (
        (
            "test_region_strangers.py::"
            "test_a_rank_of_another_pid_namespace_lives_until_it_dies"
        ),
        (
            "test_region_strangers.py::"
            "test_names_of_a_creator_in_another_pid_namespace_are_not_swept"
        ),
    ),
    # a PID used again keeps the dead alive: openclaw/openclaw #26443, #88342;
    # stellar/stellar-core #883
    16: (
        (
            "test_region_strangers.py::"
            "test_a_number_used_by_a_stranger_keeps_no_dead_one_alive"
        ),
        "test_ls.py::test_no_process_id_is_a_proof",
    ),
    # stopped beyond the timeout, then back: aeron-io/aeron #268, #256;
    # akka/akka-core #20561
    17: (
        "test_watchdog.py::test_a_stopped_proxys_page_is_not_reused_until_it_lets_go",
        "test_promises.py::test_3_pages_of_a_stopped_proxy_wait_until_it_lets_go",
    ),
    # the release side on ARM: openucx/ucx #9420
    19: (
        (
            "test_ring_weak_memory.py::"
            "test_every_weakened_order_and_every_planted_fault_is_refuted"
        ),
    ),
    # a difference past 2**31: openucx/ucx #10477
    20: ("test_reports.py::test_rounds_go_on_over_every_power_of_two",),
    # killed with the queue's lock: python/cpython #85880, #88304;
    # boostorg/interprocess #163, #65
    21: (
        "test_reports.py::test_no_lock_is_shared_between_processes",
        "test_watchdog.py::test_kills_at_random_leave_every_round_with_one_outcome",
    ),
    # a forked child unlinks live segments: LMCache/LMCache #4917;
    # elast0ny/shared_memory #35
    22: (
        "test_reports.py::test_a_forked_child_that_ends_takes_nothing_with_it",
        "test_ring.py::test_every_call_of_a_forked_child_is_an_error_that_says_so",
    ),
    # names wiped at a log-out: systemd/systemd #2039, #4532
    23: (
        (
            "test_region_strangers.py::"
            "test_names_unlinked_under_a_running_engine_stop_nothing"
        ),
    ),
    # Host registration that fails (vllm-project/vllm #51081; NVIDIA/cudf #7964;
    # FlashML-org/FreeToken #56) is row 24: nothing is registered with a device yet.
    # A reference to a bool dropped once too often: vLLM's spinloop extension
    "own": ("test_reports.py::test_calls_of_the_core_keep_every_reference_count",),
}


@pytest.mark.parametrize("row", ROWS)
def test_every_report_has_its_tests(row):
    """By name, so that none is renamed away."""
    for place in ROWS[row]:
        file, _, name = place.partition("::")
        assert f"\ndef {name}(" in (HERE / file).read_text(), place


def _engine(rounds: int = 4, ranks: int = 1) -> EngineEnd:
    shape = Shape(
        rounds=rounds,
        ranks=ranks,
        page_bytes=8 * WORDS,
        request_bytes=64,
        failed_bytes=16,
        head_bytes=16,
        slots=1,
        max_positions=4,
    )
    region = Region.create(shape, layout_id=bytes(32))
    return EngineEnd(region, bytes(16 * len(CAUSES)))


# Fills every word of a page with its round, after a pause in which readers fall asleep.
FILLER = """
import select, socket, struct, time
from pp3shm.ring.handover import PROXY_FD, attach_proxy
link = socket.socket(fileno=PROXY_FD)
end, config = attach_proxy(link)
pause, words = float(config), end.region.shape.page_bytes // 8
while not select.select([link], [], [], 0)[0]:
    word = end.take()
    if word is None:
        if not end.prepare():
            select.select([link, end.bell_fd], [], [], 0.01)
        end.done()
        continue
    time.sleep(pause)
    end.page(word)[:] = struct.pack("<Q", word >> 24) * words
    end.publish(word)
"""


def _filled(engine: EngineEnd, pause: str) -> Watchdog:
    return Watchdog(engine, [sys.executable, "-c", FILLER], config=pause.encode())


def test_every_word_of_a_page_is_its_own_rounds():
    """Report 1: a page is whole before its state says so."""
    with _engine() as engine, _filled(engine, "0"):
        first = [engine.step(bytes(8), FAR) for _ in range(4)]
        for ticket in range(1, 4001):
            found = np.frombuffer(engine.wait(ticket).view, "<u8")
            assert (found == ticket).all()
            engine.release(ticket)
            engine.step(bytes(8), FAR)
        assert first == [1, 2, 3, 4]


def test_a_reader_that_parks_for_every_round_is_woken_for_each():
    """Report 3: no sleep ends by its time-out beside a full page."""
    rounds = 1500
    with _engine(rounds=1) as engine, _filled(engine, "0.0002"):
        for _ in range(rounds):
            ticket = engine.step(bytes(8), FAR)
            assert engine.wait(ticket, spin_ns=0).status == 0
            engine.release(ticket)
        counts = engine.counters()
    assert counts["lost_wakes"] == 0
    assert counts["sleeps"] > rounds // 2  # it did park


WAITER = """
import json, resource, sys, time
from pp3shm.ring.handover import attach_rank
end = attach_rank(sys.argv[1])
print("in", flush=True)
begin, used = time.monotonic(), None
for line in sys.stdin:
    if used is None:
        begin, used = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
    end.wait(int(line), spin_ns=50_000)
    end.release(int(line))
wall, now = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_SELF)
print((now.ru_utime - used.ru_utime + now.ru_stime - used.ru_stime) / wall)
"""


@pytest.mark.parametrize(("messages", "apart"), [(80, 0.01), (1, 1.0)])
def test_a_waiting_rank_leaves_its_core_to_others(messages, apart):
    """Report 7: a round every 10 ms, or none for a second, is nothing to burn for."""
    with _engine(ranks=2) as engine, ProxyEnd.thread(engine) as proxy:
        with Doorman(engine) as door:
            rank = subprocess.Popen(
                [sys.executable, "-c", WAITER, door.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert rank.stdout.readline() == "in\n"
            door.wait()
        for _ in range(messages):
            ticket = engine.step(bytes(8), FAR)
            rank.stdin.write(f"{ticket}\n")
            rank.stdin.flush()
            time.sleep(apart)
            assert proxy.publish(proxy.take())
            engine.release(ticket)
            while engine.behind() is not None:
                time.sleep(0.001)
        share = float(rank.communicate()[0])
        engine.owner_dead(proxy.owner)
    assert share < 0.3, f"{share:.0%} of a core"


def _cpu_s(pid: int) -> float:
    """Seconds of processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_engine_without_work_leaves_its_cores_to_others():
    """Report 7: neither proxy nor watchdog spins while nothing is asked."""
    profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=64)
    with (
        ScriptedWorker(profile) as worker,
        Engine.create(profile, worker=worker.address, connect_timeout_s=30) as engine,
    ):
        proxy = engine.stats()["proxy_pid"]
        own = resource.getrusage(resource.RUSAGE_SELF)
        begin, used = time.monotonic(), _cpu_s(proxy)
        time.sleep(1)
        wall = time.monotonic() - begin
        now = resource.getrusage(resource.RUSAGE_SELF)
        assert (_cpu_s(proxy) - used) / wall < 0.3
        assert (now.ru_utime - own.ru_utime + now.ru_stime - own.ru_stime) / wall < 0.3


@pytest.mark.parametrize("spin_ns", [0, 60_000_000_000], ids=["sleeping", "spinning"])
def test_other_threads_run_while_one_waits(spin_ns):
    """Report 8: one that does much and then ends the wait could not, if it starved."""
    with _engine() as engine:
        ticket = engine.step(bytes(8), lib.pp3_now() + 60_000_000_000)
        counted = [0]

        def count() -> None:
            for turn in range(300_000):
                counted[0] = turn
            engine.resolve(ticket, 8)

        other = threading.Thread(target=count)
        other.start()
        assert engine.wait(ticket, spin_ns=spin_ns).status == 8  # not 2: in time
        assert counted == [299_999]
        other.join()


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
    ]


def test_no_python_stores_into_words_that_others_look_at():
    """Report 9: flags and fences are the C core's alone.

    Python gets no view of the segments that hold them: views are cut of pages and
    failed buffers, and nothing else maps memory.
    """
    cuts = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        imported = {
            alias.name.partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for alias in node.names
        } | {
            (node.module or "").partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom)
        }
        # bench measures what others do with them; the others map no region
        foreign = path.parent.name == "bench" or path in {
            PACKAGE / "doctor.py",  # asks the kernel for a futex of its own
            PACKAGE / "gpu" / "pinned.py",  # calls CUDA, and wants the size of a page
            *(PACKAGE / "link" / name for name in ("area.py", "lane.py", "rdma.py")),
        }
        if not foreign:
            assert not imported & {"ctypes", "mmap", "multiprocessing"}, path
        if path.parent.name != "ring":
            continue
        for call in _calls(tree, "view"):
            assert path.name == "end.py", path
            assert ast.unparse(call) == "self.region.view(name)"
        for call in _calls(tree, "_cut"):
            cuts.add(ast.literal_eval(call.args[0]))
        for call in _calls(tree, "buffer"):  # of a record, a shape, a result
            assert "addresses" not in ast.unparse(call) or path.name == "region.py"
    assert cuts == {"pages", "failed"}


KILLED = """
import os, random, signal, sys, time
from pp3shm.ring import segments
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
mine = f"{os.getpid():08x}"
segments.secrets.token_hex = lambda n: mine + os.urandom(n - 4).hex()
def names():
    return len([n for n in os.listdir("/dev/shm") if n.startswith("pp3shm-" + mine)])
shape = Shape(rounds=2, page_bytes=4096, request_bytes=64, failed_bytes=16,
              head_bytes=16, slots=1, max_positions=4)
rng, most, left = random.Random(20261130), 0, 0
for _ in range(50):
    child = os.fork()
    if child == 0:
        region = Region.create(shape, layout_id=bytes(32), kind="posix")
        time.sleep(60)
    time.sleep(rng.random() * 0.004)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    most, left = max(most, names()), left + (names() > 0)
Region.create(shape, layout_id=bytes(32), kind="posix").close()
print(most, left, names())
"""


def test_creators_killed_again_and_again_leave_no_growing_heap():
    """Report 13: 50 are killed at any moment; the next one finds and sweeps."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    most, left, after = map(int, done.stdout.split())
    assert most <= 5
    assert left > 0  # some were killed with names
    assert after == 0


POWERS = [5, 8, 16, 20, 24, 31, 32, 33, 39]


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("rounds", [1, 3, 4])
def test_rounds_go_on_over_every_power_of_two(power, rounds):
    """Report 20: no difference of tickets is taken in fewer bits than they have."""
    with _engine(rounds=rounds) as engine:
        start = 2**power - 10
        assert lib.pp3_skip_tickets(engine.handle, start - rounds) == 0
        for _ in range(rounds):  # a lap without a proxy: it finds where the ring is
            engine.cancel(engine.step(bytes(8), FAR))
        with ProxyEnd.thread(engine) as proxy:
            for ticket in range(start, start + 24):
                assert ticket == engine.step(bytes(8), FAR)
                word = proxy.take()
                assert word >> 24 == ticket
                proxy.page(word)[8:16] = struct.pack("<Q", ticket)
                if ticket % 5 == 0:  # fenced: its page comes back over the edge, too
                    engine.resolve(ticket, 2)
                    assert not proxy.publish(word)
                    assert engine.wait(ticket).status == 2
                else:
                    assert proxy.publish(word)
                    page = engine.wait(ticket).view
                    assert struct.unpack("<Q", page[8:16]) == (ticket,)
                engine.release(ticket)
            assert engine.behind() is None
            engine.owner_dead(proxy.owner)


def test_no_lock_is_shared_between_processes():
    """Report 21: whoever dies holds nothing that another would wait for.

    The flock of a creator is asked for, never waited for, but by its own creator; the
    watchdog's mutex is in its process's own memory.
    """
    shared = re.compile(r"PROCESS_SHARED|setpshared|robust|sem_(open|init|wait)|lockf")
    for path in [*PACKAGE.rglob("*.c"), *PACKAGE.rglob("*.h")]:
        if path.name != "_core.c":
            assert not shared.search(path.read_text()), path
    for path in (PACKAGE / "ring").glob("*.py"):
        text = path.read_text()
        assert "Semaphore" not in text.replace("threading.BoundedSemaphore", "")
        for line in text.splitlines():
            if "fcntl.flock(" in line and "LOCK_UN" not in line:
                # One that waits: for a look or a sweep at what was made a moment ago.
                makes = path.name in ("segments.py", "doorstep.py")
                assert "LOCK_NB" in line or (makes and line.endswith("LOCK_EX)"))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("proxy", ["thread", "process"])
@pytest.mark.parametrize("kind", ["memfd", "posix"])
def test_a_forked_child_that_ends_takes_nothing_with_it(proxy, kind):
    """Report 22: its exit handlers are the parent's; its every call is refused."""
    profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=64)
    with (
        ScriptedWorker(profile) as worker,
        Engine.create(
            profile, worker=worker.address, proxy=proxy, kind=kind, ranks=2
        ) as engine,
    ):
        prefix = engine._ring.region.prefix
        child = os.fork()
        if child == 0:
            refused = 0
            with contextlib.suppress(BaseException):
                for call in (
                    lambda: engine.reset(0, [1]),
                    lambda: engine.reply(1),
                    lambda: engine._ring.step(bytes(8), FAR),
                    lambda: engine._ring.release(1),
                    engine._ring.behind,
                    engine._ring.counters,
                ):
                    try:
                        call()
                    except RingError as error:
                        refused += "forked child" in str(error)
                engine.close()
                engine._finalizer()
                # What is registered to run at an exit, as sys.exit would.
                import atexit  # noqa: PLC0415

                atexit._run_exitfuncs()
            os._exit(refused)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
        if kind == "posix":
            there = list(Path("/dev/shm").glob(f"{prefix.lstrip('/')}-*"))
            assert len(there) == 5
        with Doorman(engine._ring):  # rank 1: a thread of this process is enough
            pidfd = os.pidfd_open(os.getpid())
            engine._ring.attach_rank(1, pidfd)
            os.close(pidfd)
        engine.wait_connected(30)
        engine.reset(0, [1])
        with engine.reply(engine.step([Row(0)], timeout_s=30)) as reply:
            assert Status.OK == reply.status[0]


def test_calls_of_the_core_keep_every_reference_count():
    """Own find in another's extension: True was given back once too often."""
    with _engine(rounds=1) as engine, ProxyEnd.thread(engine) as proxy:
        request = bytearray(8)

        def calls(times: int) -> None:
            for _ in range(times):
                ticket = engine.step(request, FAR)
                word = proxy.take()
                engine.is_open(ticket)
                proxy.publish(word)
                engine.wait(ticket)
                engine.try_wait(ticket)
                engine.release(ticket)
                with contextlib.suppress(Pp3Error):
                    engine.wait(ticket)
                engine.behind()

        page = engine.pages[0]
        watched = (True, False, None, request, page, engine.region, ffi.NULL)
        calls(100)
        before = [sys.getrefcount(one) for one in watched]
        calls(20_000)
        after = [sys.getrefcount(one) for one in watched]
        assert max(abs(a - b) for a, b in zip(before, after, strict=True)) < 50
        engine.owner_dead(proxy.owner)
