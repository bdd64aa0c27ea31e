"""The promises of the design, with real processes and real SIGKILLs."""

import contextlib
import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from far_ends import WAYS, connected, expect_fenced_page_kept
from rank_process_client import RankProcess

from pp3shm import Engine, Profile, Rank, Row, Status, Worker
from pp3shm._core import lib
from pp3shm.errors import (
    Busy,
    ConfigError,
    RegionError,
    RingError,
    WaitTimeout,
)
from pp3shm.worker.drafters import TableDrafter

SEED = 20261130
VOCAB = 64
HERE = Path(__file__).parent


def profile_of(max_slots=2):
    return Profile.sampled(vocab=VOCAB, depth=5, max_slots=max_slots, max_positions=512)


@contextlib.contextmanager
def serving(profile, address="tcp://127.0.0.1:0"):
    table = np.random.default_rng(1).normal(size=(VOCAB, VOCAB)).astype(np.float32)
    with Worker(TableDrafter(table), profile, [address]) as worker:
        yield worker


class WorkerProcess:
    """``pp3shm worker`` in a process of its own, to be killed."""

    def __init__(self, path: Path, profile: Profile) -> None:
        self.address = f"unix://{path}"
        self._arguments = [
            *(sys.executable, "-m", "pp3shm", "worker", "--listen", self.address),
            *("--sampled", "--drafter", "serve_table:DRAFTER"),
            *("--vocab", str(VOCAB), "--depth", "5"),
            *("--max-slots", str(profile.max_slots), "--max-positions", "512"),
        ]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            self._arguments, stdout=subprocess.PIPE, cwd=HERE
        )
        assert b"listening" in self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def stop_loop(engine):
    """End a thread proxy's loop and leave its watchdog alone."""
    engine._proxy._closing.set()
    if engine._proxy._loop is not None:
        engine._proxy._loop.stop()
    engine._proxy._thread.join()


def views_of(reply):
    return [v.copy() for v in (reply.tokens, reply.mask, reply.ids, reply.q)]


# -- 1: whole, of its own round, unchanged until released ------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_1_a_reply_stays_unchanged_while_other_rounds_come_and_go(way):
    with connected(way, profile_of()) as engine:
        engine.reset(0, [1])
        held = engine.reply(engine.step([Row(0)], timeout_s=10))
        before = views_of(held)
        for _ in range(engine.rounds_in_flight - 1):
            ticket = engine.step([Row(0)], timeout_s=10)
            with engine.reply(ticket) as reply:
                assert ticket == reply.round
        with pytest.raises(Busy, match="rank 0"):
            engine.step([Row(0)])
        for old, new in zip(before, views_of(held), strict=True):
            np.testing.assert_array_equal(old, new)
        engine.release(held.round)
        engine.release(engine.step([Row(0)], timeout_s=10))


@pytest.mark.parametrize("way", ["process", "region"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_1_every_rank_sees_the_same_reply_and_it_stands_still(ranks, way):
    profile = profile_of()
    with (
        connected(way, profile, ranks=ranks) as engine,
        contextlib.ExitStack() as stack,
    ):
        others = [
            stack.enter_context(RankProcess(engine.invitation, profile))
            for _ in range(ranks - 1)
        ]
        engine.wait_ranks(30)
        assert {engine.epoch.hex()} == {other.epoch for other in others}
        engine.reset(0, [1])
        for _ in range(40):
            ticket = engine.step([Row(0)], timeout_s=10)
            for other in others:
                other.tell(ticket)
            with engine.reply(ticket) as reply:
                seen = [other.answer() for other in others]
            for found in seen:
                assert ticket == found.ticket
                assert found.before == found.after
                assert reply.status.tolist() == found.statuses
            assert 1 == len({found.before for found in seen})


# -- 2: resolved exactly once, by the deadline, whatever dies --------------------------


def test_2_rounds_are_resolved_whatever_is_killed_under_load(tmp_path, eventually):
    rng = random.Random(SEED)
    print("seed", SEED)
    profile = profile_of()
    worker = WorkerProcess(tmp_path / "worker", profile)
    outcomes: dict[str, int] = {}
    try:
        with Engine.create(profile, worker=worker.address) as engine:
            for slot in (0, 1):
                engine.reset(slot, [1, 2, 3])
            kills = 0
            while kills < 12:
                tickets = [
                    engine.step([Row(0), Row(1)], timeout_s=0.2)
                    for _ in range(rng.randint(1, engine.rounds_in_flight))
                ]
                if rng.random() < 0.3:
                    kills += 1
                    time.sleep(rng.random() * 0.003)
                    if rng.random() < 0.5:
                        worker.kill()
                        worker.start()
                    elif pid := engine.stats()["proxy_pid"]:
                        # the last kill's may be reaped before the stats say so
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
                for ticket in tickets:
                    with engine.reply(ticket) as reply:
                        assert ticket == reply.round
                        first = reply.status.tolist()
                        word = engine._ring.word(ticket)
                        assert first[0] == first[1]
                        assert first[0] in (0, 2, 7, 8)
                        # Resolved exactly once: nothing changes it afterwards.
                        engine._ring.resolve(ticket, int(Status.TIMEOUT))
                        assert word == engine._ring.word(ticket)
                        assert first == reply.status.tolist()
                    name = Status(first[0]).name
                    outcomes[name] = outcomes.get(name, 0) + 1
                if rng.random() < 0.3:
                    with contextlib.suppress(Busy):
                        engine.commit(0, [rng.randrange(VOCAB)])
            print("outcomes", outcomes)

            def whole():
                ticket = engine.step([Row(0), Row(1)], timeout_s=10)
                with engine.reply(ticket) as reply:
                    return reply.status.tolist() == [0, 0]

            # The last kill may not have been noticed yet: one more round may fail.
            eventually(whole, "a whole round")
            assert outcomes.get("OK", 0) > 0
            print("lost wakes", engine.stats()["lost_wakes"])
    finally:
        worker.kill()


def test_2_a_stopped_proxy_does_not_hold_a_round_beyond_its_deadline():
    profile = profile_of()
    with (
        serving(profile) as worker,
        Engine.create(profile, worker=worker.addresses[0]) as engine,
    ):
        engine.reset(0, [1])
        pid = engine.stats()["proxy_pid"]
        os.kill(pid, signal.SIGSTOP)
        try:
            with engine.reply(engine.step([Row(0)], timeout_s=0.05)) as reply:
                assert Status.TIMEOUT == reply.failed
                assert Status.TIMEOUT == reply.status[0]
        finally:
            os.kill(pid, signal.SIGCONT)
        with engine.reply(engine.step([Row(0)], timeout_s=10)) as reply:
            assert Status.OK == reply.status[0]


def test_2_a_dead_proxys_last_word_is_not_taken_for_a_session(eventually):
    profile = profile_of()
    with (
        serving(profile) as worker,
        Engine.create(profile, worker=worker.addresses[0]) as engine,
    ):
        engine.reset(0, [1])
        for _ in range(3):
            pid = engine.stats()["proxy_pid"]
            os.kill(pid, signal.SIGKILL)
            eventually(lambda pid=pid: engine.stats()["proxy_pid"] != pid, "its death")
            engine.wait_connected(30)
            with engine.reply(engine.step([Row(0)], timeout_s=10)) as reply:
                assert Status.OK == reply.status[0]


def test_2_the_deadline_is_kept_for_a_round_nobody_waits_for(eventually):
    """A GPU stream cannot fail a round: the watchdog does."""
    profile = profile_of()
    with Engine.create(
        profile, worker="tcp://127.0.0.1:1", proxy="thread", connect_timeout_s=0
    ) as engine:
        stop_loop(engine)
        engine.reset(0, [1])
        ticket = engine.step([Row(0)], timeout_s=0.02)
        eventually(lambda: not engine._ring.is_open(ticket), "the deadline")
        with engine.reply(ticket) as reply:
            assert Status.TIMEOUT == reply.failed


def test_2_a_killed_rank_holds_nothing_back(eventually):
    profile = profile_of()
    with (
        serving(profile) as worker,
        Engine.create(profile, worker=worker.addresses[0], ranks=2) as engine,
        RankProcess(engine.invitation, profile) as other,
    ):
        engine.wait_ranks(30)
        engine.reset(0, [1])
        for _ in range(engine.rounds_in_flight):
            engine.release(engine.step([Row(0)], timeout_s=10))

        def refused():
            try:
                engine.release(engine.step([Row(0)], timeout_s=10))
            except Busy as error:
                return "rank 1" in str(error)
            return False

        eventually(refused, "a refusal that names the silent rank")
        other.kill()
        for _ in range(3 * engine.rounds_in_flight):
            ticket = engine.step([Row(0)], timeout_s=10)
            engine.reply(ticket)
            engine.release(ticket)


# -- 3: no page is reused while anyone might touch it ----------------------------------


def test_3_pages_of_a_stopped_proxy_wait_until_it_lets_go(eventually):
    profile = profile_of()
    with (
        serving(profile) as worker,
        Engine.create(profile, worker=worker.addresses[0], rounds=2) as engine,
    ):
        engine.reset(0, [1])
        pid = engine.stats()["proxy_pid"]
        expect_fenced_page_kept(engine, pid, eventually)
        os.kill(pid, signal.SIGCONT)
        engine.wait_connected(10)
        with engine.reply(engine.step([Row(0)], timeout_s=10)) as reply:
            assert Status.OK == reply.status[0]


# -- 5: bytes in the region are hostile ------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_5_a_request_that_is_no_step_fails_its_round_alone(way):
    rng = random.Random(SEED)
    with connected(way, profile_of()) as engine:
        engine.reset(0, [1])
        for _ in range(20):
            ring = engine._ring
            ticket = ring.claim(time.monotonic_ns() + 10_000_000_000)
            request = ring.request(ticket)
            request[:] = rng.randbytes(len(request))
            request[:8] = ticket.to_bytes(8, "little")
            ring.submit(ticket)
            with engine.reply(ticket) as reply:
                assert Status.REFUSED == reply.failed
        with engine.reply(engine.step([Row(0)], timeout_s=10)) as reply:
            assert Status.OK == reply.status[0]
        assert 20 == engine.stats()["bad_request"]
        assert 1 == engine.stats()["sessions"]


@pytest.mark.parametrize("way", ["thread", "region"])
def test_5_a_request_of_another_round_is_refused(way):
    with connected(way, profile_of()) as engine:
        engine.reset(0, [1])
        engine.release(engine.step([Row(0)], timeout_s=10))
        ring = engine._ring
        ticket = ring.claim(time.monotonic_ns() + 10_000_000_000)
        request = ring.request(ticket)
        request[:8] = (ticket + 1).to_bytes(8, "little")
        ring.submit(ticket)
        with engine.reply(ticket) as reply:
            assert Status.REFUSED == reply.failed


@pytest.mark.parametrize("way", ["thread", "region"])
def test_5_a_page_of_another_round_is_an_error_that_names_it(way):
    with connected(way, profile_of()) as engine:
        engine.reset(0, [1])
        ticket = engine.step([Row(0)], timeout_s=10)
        engine.reply(ticket)
        page = engine._ring.word(ticket) >> 8 & 4095
        whole = engine._ring.region.view("pages")
        size = engine._ring.region.shape.page_bytes
        whole[page * size : page * size + 8] = (99).to_bytes(8, "little")
        with pytest.raises(RegionError, match="page round: expected 1, found 99"):
            engine.reply(ticket)


def test_5_random_state_words_are_errors_and_never_signals():
    rng = random.Random(SEED)
    profile = profile_of()
    with Engine.create(
        profile, worker="tcp://127.0.0.1:1", proxy="thread", connect_timeout_s=0
    ) as engine:
        engine._proxy.close()
        engine.reset(0, [1])
        ticket = engine.step([Row(0)], timeout_s=0.01)
        control = engine._ring.region.view("control")
        at = lib.pp3_state_offset(engine._ring.handle, ticket)
        outcomes = set()
        for _ in range(300):
            word = ticket << 24 | rng.getrandbits(24)
            control[at : at + 8] = word.to_bytes(8, "little")
            try:
                engine.reply(ticket, timeout_s=0.001)
                outcomes.add("read")
            except (RingError, RegionError, WaitTimeout) as error:
                outcomes.add(type(error).__name__)
        assert "RingError" in outcomes


# -- a dead engine leaves nothing ------------------------------------------------------

DYING = """
import os, sys, signal, time
import numpy as np
from pp3shm import Engine, Profile, Row, Worker
from pp3shm.worker.drafters import TableDrafter
profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=512)
worker = Worker(TableDrafter(np.zeros((64, 64), np.float32)), profile,
                ["tcp://127.0.0.1:0"])
worker.start()
engine = Engine.create(profile, worker=worker.addresses[0], kind=sys.argv[1],
                       ranks=int(sys.argv[2]), connect_timeout_s=30)
print(engine.stats()["proxy_pid"], engine._ring.region.prefix, flush=True)
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[3] == "exit":
    os._exit(3)
elif sys.argv[3] == "raise":
    raise SystemExit(5)
"""


def gone(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in "ZX"


@pytest.mark.parametrize("death", ["kill", "exit", "raise"])
@pytest.mark.parametrize(("kind", "ranks"), [("memfd", 1), ("posix", 1), ("posix", 2)])
def test_a_dead_engine_leaves_no_process_and_no_name_that_is_not_swept(
    kind, ranks, death, eventually
):
    done = subprocess.run(
        [sys.executable, "-c", DYING, kind, str(ranks), death],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.returncode in (-9, 3, 5)
    pid, prefix = done.stdout.decode().split()
    eventually(lambda: gone(int(pid)), "the proxy's end")
    assert (prefix == "None") == (kind == "memfd")
    profile = profile_of()
    with (
        serving(profile) as worker,
        Engine.create(profile, worker=worker.addresses[0], kind="posix") as engine,
    ):
        engine.reset(0, [1])
        engine.release(engine.step([Row(0)], timeout_s=10))
        own = engine._ring.region.prefix
    for name in (prefix, own):
        assert [] == list(Path("/dev/shm").glob(f"{name.lstrip('/')}*"))


ORPHAN = """
import os, sys, time
import numpy as np
from pp3shm import Engine, Profile
profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=512)
engine = Engine.create(profile, worker="tcp://127.0.0.1:1", connect_timeout_s=0)
while not engine.stats()["proxy_pid"]:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(engine.stats()["proxy_pid"], child, flush=True)
time.sleep(float(sys.argv[1]))
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("delay", ["0", "0.05", "0.3"])
def test_a_forked_child_of_a_killed_engine_keeps_no_proxy_alive(delay, eventually):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ORPHAN, delay],
        stdout=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    pid, child = map(int, done.stdout.split())
    try:
        eventually(lambda: gone(pid), "the proxy's end")
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_that_leaves_a_workers_block_leaves_the_worker_alone(tmp_path):
    profile = profile_of()
    for address in ("tcp://127.0.0.1:0", f"unix://{tmp_path / 'socket'}"):
        with serving(profile, address) as worker:
            child = os.fork()
            if child == 0:
                worker.close()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            with Engine.create(
                profile, worker=worker.addresses[0], proxy="thread"
            ) as engine:
                engine.reset(0, [1])
                with engine.reply(engine.step([Row(0)], timeout_s=10)) as reply:
                    assert Status.OK == reply.status[0]


@pytest.mark.parametrize("proxy", ["thread", "process"])
def test_an_engine_that_is_dropped_gives_everything_back(proxy, eventually):
    profile = profile_of()

    def held():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    with serving(profile) as worker:
        before = held()
        for _ in range(3):
            engine = Engine.create(
                profile, worker=worker.addresses[0], proxy=proxy, ranks=2
            )
            engine.reset(0, [1])
            del engine
        # The worker's side of each session ends a moment later.
        eventually(lambda: held() <= before, "what was held")


def test_a_rank_of_another_profile_takes_no_number():
    profile = profile_of()
    other = Profile.sampled(vocab=65, depth=5, max_slots=2, max_positions=512)
    with (
        serving(profile) as worker,
        Engine.create(
            profile, worker=worker.addresses[0], proxy="thread", ranks=2
        ) as engine,
    ):
        with pytest.raises(RegionError, match="layout_id"):
            Rank.attach(engine.invitation, other)
        with RankProcess(engine.invitation, profile) as second:
            engine.wait_ranks(30)
            assert 1 == second.rank


def test_silent_guests_keep_no_rank_out():
    profile = profile_of()
    with (
        serving(profile) as worker,
        Engine.create(
            profile, worker=worker.addresses[0], proxy="thread", ranks=2
        ) as engine,
        contextlib.ExitStack() as guests,
    ):
        for _ in range(10):
            guest = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            guests.enter_context(guest).connect(b"\0" + engine.invitation[1:].encode())
        with RankProcess(engine.invitation, profile):
            engine.wait_ranks(30)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_a_time_that_is_none_is_refused_by_name(seconds):
    profile = profile_of()
    with Engine.create(
        profile, worker="tcp://127.0.0.1:1", proxy="thread", connect_timeout_s=0
    ) as engine:
        engine.reset(0, [1])
        with pytest.raises(ConfigError, match="timeout_s"):
            engine.step([Row(0)], timeout_s=seconds)
        ticket = engine.step([Row(0)], timeout_s=float("inf"))
        with engine.reply(ticket, timeout_s=float("inf")) as reply:
            assert Status.PEER_DIED == reply.status[0]
        for bad in (-1, 0, 2**40, 2**70, ticket + 1):
            with pytest.raises(RingError):
                engine.reply(bad)
