"""Regions among strangers: users, modes, namespaces, numbers used again, lost names."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rank_process_client import RankProcess
from scripted_worker import ScriptedWorker

from pp3shm import Engine, Profile, Row, Status
from pp3shm.errors import Busy, RegionError
from pp3shm.ring.handover import Doorman
from pp3shm.ring.record import RANK, SEGMENTS, Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd, ProxyEnd

FAR = 10**18
NOBODY = 65534


def _engine(kind: str = "memfd", ranks: int = 2) -> EngineEnd:
    shape = Shape(
        rounds=1,
        ranks=ranks,
        page_bytes=4096,
        request_bytes=64,
        failed_bytes=16,
        head_bytes=16,
        slots=1,
        max_positions=4,
    )
    region = Region.create(shape, layout_id=bytes(32), kind=kind)
    return EngineEnd(region, bytes(16 * len(CAUSES)))


def _can(*command: str) -> bool:
    done = subprocess.run([*command, "true"], capture_output=True, check=False)
    return done.returncode == 0


def _open_fds() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def named():
    """A region of names, and the record of a rank for it."""
    with _engine("posix") as end:
        yield end.region.prefix, end.region.record_for(RANK, rank=1)


def _path(prefix: str, segment: str) -> Path:
    return Path(f"/dev/shm{prefix}-{segment}")


# -- whose it is -----------------------------------------------------------------------


@pytest.mark.parametrize("segment", ["control", "pages", "failed", "acks"])
def test_a_segment_of_another_user_is_refused(named, segment):
    """Who made it could spoil it, or take it away."""
    prefix, record = named
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(_path(prefix, segment), NOBODY, -1)
    with pytest.raises(RegionError, match=f"segment {segment}: .* found user {NOBODY}"):
        Region.attach_named(record, prefix)


def test_a_group_without_rights_says_nothing(named):
    """The mode gives it none, so whose it is does not matter."""
    prefix, record = named
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    for segment in SEGMENTS:
        os.chown(_path(prefix, segment), -1, NOBODY)
    Region.attach_named(record, prefix).close()


@pytest.mark.parametrize("mode", [0o660, 0o604, 0o610, 0o777, 0o666])
@pytest.mark.parametrize("segment", ["control", "acks"])
def test_a_segment_open_to_others_is_refused(named, segment, mode):
    """Whatever the others may do with it."""
    prefix, record = named
    _path(prefix, segment).chmod(mode)
    with pytest.raises(
        RegionError, match=f"segment {segment}: .* found mode {mode:04o}"
    ):
        Region.attach_named(record, prefix)


@pytest.mark.parametrize("kind", ["memfd", "posix"])
def test_every_segment_is_its_owners_alone(kind):
    """A memfd can be opened below /proc: its mode counts there."""
    with _engine(kind) as end:
        for fd in end.region._segments.fds.values():
            assert os.fstat(fd).st_mode & 0o7777 == 0o600
            assert os.fstat(fd).st_uid == os.geteuid()


def test_a_given_segment_of_another_user_is_refused_and_closed():
    """Handed over or found by name, it is the same question."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    with _engine() as end:
        os.fchown(end.region._segments.fds["pages"], NOBODY, -1)
        before = _open_fds()
        with pytest.raises(RegionError, match=r"segment pages: .* found user"):
            Region.attach(end.region.record_for(RANK, rank=1), end.region.share(RANK))
        assert _open_fds() == before


# -- shrunk behind our back ------------------------------------------------------------


@pytest.mark.parametrize("segment", ["control", "pages", "failed", "acks"])
@pytest.mark.parametrize("change", [-1, +1])
def test_a_name_that_was_cut_or_grown_is_refused_by_its_size(named, segment, change):
    """Names cannot be sealed: what can be seen is seen at the attach."""
    prefix, record = named
    path = _path(prefix, segment)
    size = path.stat().st_size + change
    os.truncate(path, size)
    with pytest.raises(RegionError, match=f"segment {segment}: .* found {size} bytes"):
        Region.attach_named(record, prefix)


def test_a_memfd_that_can_still_be_cut_is_refused():
    """Its giver could take pages from under the reader: SIGBUS."""
    with _engine() as end:
        fds = end.region.share(RANK)
        size = end.region.bytes_of("failed")
        os.close(fds["failed"])
        fds["failed"] = os.memfd_create("pp3shm-failed", os.MFD_ALLOW_SEALING)
        os.fchmod(fds["failed"], 0o600)
        os.truncate(fds["failed"], size)
        with pytest.raises(RegionError, match=r"segment failed: .* sealed"):
            Region.attach(end.region.record_for(RANK, rank=1), fds)


def test_no_peer_can_cut_a_memfd_that_is_in_use():
    """Whatever descriptor it was given."""
    with _engine() as end:
        for fd in end.region.share(RANK).values():
            with pytest.raises(OSError, match=r"not permitted|Invalid argument"):
                os.ftruncate(fd, 0)
            os.close(fd)
        end.region.view("pages")[:1] = b"x"


# -- namespaces ------------------------------------------------------------------------

RANK_CODE = """
import sys
from pp3shm.errors import RegionError
from pp3shm.ring.handover import attach_rank
try:
    end = attach_rank(sys.argv[1])
except RegionError as error:
    print(error)
    sys.exit()
print("in", flush=True)
for line in sys.stdin:
    outcome = end.wait(int(line))
    print(outcome.status, bytes(outcome.view[8:12]).decode(), flush=True)
    if sys.argv[2] == "release":
        end.release(int(line))
        print("released", flush=True)
"""


@contextlib.contextmanager
def _rank(address: str, how: str, *before: str):
    with subprocess.Popen(
        [*before, sys.executable, "-c", RANK_CODE, address, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _tell(rank, ticket: int) -> None:
    rank.stdin.write(f"{ticket}\n")
    rank.stdin.flush()


def _round(engine: EngineEnd, proxy: ProxyEnd) -> int:
    ticket = engine.step(bytes(8), FAR)
    word = proxy.take()
    proxy.page(word)[8:12] = b"full"
    assert proxy.publish(word)
    engine.release(ticket)
    return ticket


INSIDE = ("unshare", "--pid", "--fork", "--kill-child")


def test_a_rank_of_another_pid_namespace_lives_until_it_dies(eventually):
    """Silent is not dead, and its death is seen, whatever its number there."""
    if not _can(*INSIDE):
        pytest.skip("needs a PID namespace")
    with (
        _engine() as engine,
        ProxyEnd.thread(engine) as proxy,
        Doorman(engine) as door,
        _rank(door.address, "keep", *INSIDE) as rank,
    ):
        assert rank.stdout.readline() == "in\n"
        door.wait()
        ticket = _round(engine, proxy)
        _tell(rank, ticket)
        assert rank.stdout.readline() == "0 full\n"
        for _ in range(3):
            with pytest.raises(Busy, match="no release of it by rank 1") as error:
                engine.step(bytes(8), FAR)
            assert not engine.rank_dead(1)
        pid = error.value.behind.pid
        assert pid not in (None, rank.pid, 1)  # as it is called here
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: engine.rank_dead(1), "its death")
        assert engine.step(bytes(8), FAR) == ticket + 1
        engine.owner_dead(proxy.owner)


ENGINE_CODE = """
import sys, time
from pp3shm.errors import Busy
from pp3shm.ring.handover import Doorman
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd, ProxyEnd
shape = Shape(rounds=1, ranks=2, page_bytes=4096, request_bytes=64, failed_bytes=16,
              head_bytes=16, slots=1, max_positions=4)
engine = EngineEnd(Region.create(shape, layout_id=bytes(32), kind="posix"), bytes(48))
door, proxy = Doorman(engine), ProxyEnd.thread(engine)
print(door.address, engine.region.prefix, flush=True)
door.wait()
ticket = engine.step(bytes(8), 10**18)
word = proxy.take()
proxy.page(word)[8:12] = b"full"
proxy.publish(word)
engine.release(ticket)
print(ticket, flush=True)
sys.stdin.readline()
try:
    engine.step(bytes(8), 10**18)
except Busy as error:
    print(error.behind.rank, error.behind.pid, engine.rank_dead(1), flush=True)
sys.stdin.readline()
while not engine.rank_dead(1):
    time.sleep(0.01)
print("dead", engine.step(bytes(8), 10**18), flush=True)
engine.owner_dead(proxy.owner)
"""


def test_an_engine_of_another_pid_namespace_knows_a_rank_it_has_no_number_for():
    """A pidfd needs none; the error names the rank and no process."""
    inside = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if not _can(*inside):
        pytest.skip("needs a PID namespace")
    with subprocess.Popen(
        [*inside, sys.executable, "-c", ENGINE_CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as engine:
        address, prefix = engine.stdout.readline().split()
        with _rank(address, "keep") as rank:
            assert rank.stdout.readline() == "in\n"
            _tell(rank, int(engine.stdout.readline()))
            assert rank.stdout.readline() == "0 full\n"
            engine.stdin.write("\n")
            engine.stdin.flush()
            assert engine.stdout.readline() == "1 None False\n"
            # Neither is the engine dead for a creator of this namespace.
            Region.create(
                Shape(
                    rounds=1,
                    page_bytes=64,
                    request_bytes=64,
                    failed_bytes=16,
                    head_bytes=16,
                    slots=1,
                    max_positions=4,
                ),
                layout_id=bytes(32),
                kind="posix",
            ).close()
        engine.stdin.write("\n")
        engine.stdin.flush()
        assert engine.stdout.readline() == "dead 2\n"
        engine.communicate()
    assert not _path(prefix, "control").exists()


def test_names_of_a_creator_in_another_pid_namespace_are_not_swept():
    """Numbers of processes are not asked; its lock is held by the kernel."""
    inside = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if not _can(*inside):
        pytest.skip("needs a PID namespace")
    holder = "\n".join(ENGINE_CODE.splitlines()[:10]) + "\nprint(engine.region.prefix,"
    holder += " flush=True)\nsys.stdin.readline()\n"
    with subprocess.Popen(
        [*inside, sys.executable, "-c", holder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as creator:
        prefix = creator.stdout.readline().strip()
        with _engine("posix"):
            assert all(_path(prefix, segment).exists() for segment in SEGMENTS)
        creator.communicate("\n")
    assert not _path(prefix, "control").exists()


def test_another_time_namespace_is_refused_by_its_clock():
    """Deadlines are in CLOCK_MONOTONIC: another one would keep none of them."""
    inside = ("unshare", "-T", "--monotonic", "100000", "--fork")
    if not _can(*inside):
        pytest.skip("needs a time namespace")
    with (
        _engine() as engine,
        Doorman(engine) as door,
        _rank(door.address, "keep", *inside) as rank,
    ):
        said = rank.stdout.readline()
        assert said.startswith("record.clock_ns: expected this machine's CLOCK_MONOTON")


# -- a number that is used again -------------------------------------------------------

REUSE = """
import os, signal, subprocess, sys, time
from pathlib import Path
LAST = Path("/proc/sys/kernel/ns_last_pid")
def stranger(pid):
    # a process of another kind under the same number
    for _ in range(100):
        LAST.write_text(str(pid - 1))
        made = subprocess.Popen(["sleep", "60"])
        if made.pid == pid:
            return made
        made.kill()
        made.wait()
    sys.exit("skip: the number was not to be had again")
try:
    LAST.write_text(LAST.read_text())
except OSError as error:
    sys.exit(f"skip: {error}")
"""

REUSE_CREATOR = (
    REUSE
    + """
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
shape = Shape(rounds=1, page_bytes=64, request_bytes=64, failed_bytes=16,
              head_bytes=16, slots=1, max_positions=4)
code = '''
import sys
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
shape = Shape(rounds=1, page_bytes=64, request_bytes=64, failed_bytes=16,
              head_bytes=16, slots=1, max_positions=4)
region = Region.create(shape, layout_id=bytes(32), kind="posix")
print(region.prefix, flush=True)
sys.stdin.read()
'''
creator = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1)
prefix = creator.stdout.readline().decode().strip("/\\n")
creator.kill()
creator.wait()
other = stranger(creator.pid)
before = len([n for n in os.listdir("/dev/shm") if n.startswith(prefix)])
Region.create(shape, layout_id=bytes(32), kind="posix").close()
after = len([n for n in os.listdir("/dev/shm") if n.startswith(prefix)])
print(other.pid == creator.pid, other.poll(), before, after)
other.kill()
"""
)

REUSE_RANK = (
    REUSE
    + """
from pp3shm.ring.handover import Doorman
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd, ProxyEnd
shape = Shape(rounds=1, ranks=2, page_bytes=4096, request_bytes=64, failed_bytes=16,
              head_bytes=16, slots=1, max_positions=4)
engine = EngineEnd(Region.create(shape, layout_id=bytes(32)), bytes(48))
door = Doorman(engine)
code = '''
import sys
from pp3shm.ring.handover import attach_rank
end = attach_rank(sys.argv[1])
sys.stdin.read()
'''
rank = subprocess.Popen([sys.executable, "-c", code, door.address], stdin=-1)
door.wait()
ticket = engine.step(bytes(8), 10**18)
engine.resolve(ticket, 2)
engine.release(ticket)
rank.kill()
rank.wait()
other = stranger(rank.pid)
print(other.pid == rank.pid, other.poll(), engine.rank_dead(1),
      engine.step(bytes(8), 10**18))
other.kill()
door.close()
engine.close()
"""
)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (REUSE_CREATOR, ("True None 5 0\n", "True None 0 0\n")),
        (REUSE_RANK, ("True None True 2\n",)),
    ],
    ids=["creator", "rank"],
)
def test_a_number_used_by_a_stranger_keeps_no_dead_one_alive(code, said):
    """A process of another kind lives under the number of the dead."""
    inside = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    if not _can(*inside):
        pytest.skip("needs a PID namespace")
    done = subprocess.run(
        [*inside, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if done.stderr.startswith("skip: "):
        pytest.skip(done.stderr)
    assert done.stdout in said, done  # 0 before: others' creators sweep too


# -- names that go away ----------------------------------------------------------------


def test_names_unlinked_under_a_running_engine_stop_nothing():
    """As RemoveIPC does at a log-out: rounds go on, and a new attach says why not."""
    profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=64)
    with (
        ScriptedWorker(profile) as worker,
        Engine.create(
            profile, worker=worker.address, ranks=3, kind="posix", connect_timeout_s=30
        ) as engine,
        RankProcess(engine.invitation, profile) as first,
    ):
        region = engine._ring.region
        names = [_path(region.prefix, segment) for segment in SEGMENTS]
        for name in names:
            name.unlink()
        record = region.record_for(RANK, rank=2)
        with pytest.raises(RegionError, match=f"{region.prefix}-control.*No such file"):
            Region.attach_named(record, region.prefix)
        # Descriptors are handed over, so that names are not needed.
        with RankProcess(engine.invitation, profile) as second:
            engine.wait_ranks(30)
            engine.reset(0, [1])
            pid = engine.stats()["proxy_pid"]
            for turn in range(3 * engine.rounds_in_flight):
                if turn == 5:
                    os.kill(pid, signal.SIGKILL)  # the next one attaches, too
                    engine.wait_connected(0)
                ticket = engine.step([Row(0)], timeout_s=30)
                for rank in (first, second):
                    rank.tell(ticket)
                with engine.reply(ticket) as reply:
                    wanted = (Status.OK, Status.PEER_DIED)
                    assert reply.status[0] in (wanted if turn >= 5 else wanted[:1])
                for rank in (first, second):
                    assert rank.answer().ticket == ticket
            assert engine.stats()["proxy_pid"] != pid
        assert not any(name.exists() for name in names)
