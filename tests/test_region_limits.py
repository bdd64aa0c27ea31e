"""Limits of the machine: each is an error by name before the first round."""

import os
import shutil
import subprocess
import sys

import pytest

from pp3shm.errors import RegionError
from pp3shm.ring import room
from pp3shm.ring.handover import Doorman
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd

SHAPE = Shape(
    rounds=4,
    page_bytes=4096,
    request_bytes=256,
    failed_bytes=64,
    head_bytes=24,
    slots=2,
    max_positions=100,
)
LIMIT = 160 << 20  # enough for an interpreter


def _python(code: str, *words: str, before: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*before, sys.executable, "-W", "error", "-c", code, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


# -- memory of a control group ---------------------------------------------------------

TOO_LARGE = """
import os, sys
from pp3shm.errors import RegionError
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
def create(pages):
    shape = Shape(rounds=pages, page_bytes=1 << 20, request_bytes=256, failed_bytes=64,
                  head_bytes=24, slots=2, max_positions=100, spares=0)
    return Region.create(shape, layout_id=bytes(32), kind=sys.argv[1])
try:
    create(1000).close()
except RegionError as error:
    print(error)
create(2).close()
print("small fits")
"""


@pytest.fixture
def small_group():
    """A control group of this process's own, below its own, with little memory."""
    for folder, names in room._groups():
        group = folder / f"pp3shm-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / names.limit).write_text(f"{LIMIT}\n")
        except OSError:
            if group.exists():
                group.rmdir()
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("needs a control group with a memory controller that can be divided")


@pytest.mark.parametrize("kind", ["memfd", "posix"])
def test_a_region_beyond_the_control_groups_memory_is_refused(small_group, kind):
    """/dev/shm has room; the kernel would kill the process instead of refusing."""
    shell = f'echo $$ > {small_group}/cgroup.procs && exec "$0" "$@"'
    said = _python(TOO_LARGE, kind, before=("sh", "-c", shell))
    assert said.startswith("shared memory: expected ")
    assert f"of {LIMIT} in control group {small_group}" in said
    assert said.endswith("\nsmall fits\n")


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """A /proc and a hierarchy of our own making: /outer/inner of version 2."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("0::/outer/inner\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1 kB\nSwapTotal: 0 kB\n")
    mount = tmp_path / "cgroup"
    (mount / "outer/inner").mkdir(parents=True)
    (tmp_path / "self/mountinfo").write_text(
        f"30 1 0:26 / {mount} rw - cgroup2 none rw\n"
        f"31 1 0:27 / /nowhere rw - cgroup none rw,cpu\n"
    )
    monkeypatch.setattr(room, "_PROC", tmp_path)

    def limit(group: str, limit: str, usage: int, cache: int = 0) -> None:
        folder = mount / group
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{usage}\n")
        (folder / "memory.stat").write_text(
            f"anon 5\nactive_file {cache}\ninactive_file 0\n"
        )

    limit.proc = tmp_path
    return limit


def test_the_group_that_leaves_least_decides(groups):
    """Each group up to the root limits those below; cache gives way."""
    assert room.smallest() is None
    groups("outer/inner", "max", 10)
    assert room.smallest() is None
    groups("outer", "1000", 900, 300)
    assert room.smallest()[1:] == (1000, 400)
    groups("outer/inner", "700", 600)
    assert room.smallest()[1:] == (700, 100)
    room.expect_room(100)
    with pytest.raises(RegionError, match="100 bytes left of 700 in control group"):
        room.expect_room(101)


def test_where_there_is_swap_a_short_group_is_only_warned_of(groups, caplog):
    """But more than its limit never fits."""
    groups("outer", "1000", 900)
    (groups.proc / "meminfo").write_text("SwapTotal: 9 kB\n")
    room.expect_room(1000)
    assert "100 bytes left of 1000" in caplog.text
    with pytest.raises(RegionError):
        room.expect_room(1001)


@pytest.mark.parametrize("file", ["self/cgroup", "self/mountinfo"])
@pytest.mark.parametrize("text", [None, "", "nonsense\n", "0:\n"])
def test_what_cannot_be_told_limits_nothing(groups, file, text):
    """A kernel without groups, or files of a form that is new."""
    groups("outer", "10", 9)
    path = groups.proc / file
    path.unlink() if text is None else path.write_text(text)
    room.expect_room(1 << 40)


def test_a_group_that_is_the_root_of_its_mount_is_found(groups):
    """As inside a container, whose mount shows no more than its own group."""
    mount = groups.proc / "cgroup"
    (groups.proc / "self/mountinfo").write_text(
        f"30 1 0:26 /outer/inner {mount} rw - cgroup2 none rw\n"
    )
    groups("", "50", 20)
    assert room.smallest()[1:] == (50, 30)


def test_version_1_says_no_limit_by_a_large_number(groups):
    """2**63 less a page; and it has names of its own."""
    mount = groups.proc / "cgroup"
    (groups.proc / "self/cgroup").write_text("4:memory:/outer\n2:cpu:/\n")
    (groups.proc / "self/mountinfo").write_text(
        f"30 1 0:26 / {mount} rw - cgroup none rw,memory\n"
    )
    for folder, limit in ((mount, 9223372036854771712), (mount / "outer", 100)):
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text("60\n")
        (folder / "memory.stat").write_text("total_active_file 20\n")
    assert room.smallest()[1:] == (100, 60)


# -- descriptors -----------------------------------------------------------------------

CREATE = """
import gc, logging, os, resource, sys, time
logging.disable()
from pp3shm import Engine, Profile
from pp3shm.errors import Pp3Error
from pp3shm.ring import segments
from pp3shm.ring.handover import attach_rank
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd
MINE = f"{os.getpid():08x}"
segments.secrets.token_hex = lambda n: MINE + os.urandom(n - 4).hex()
def fds():
    return len(os.listdir("/proc/self/fd"))
def region():
    shape = Shape(rounds=4, page_bytes=4096, request_bytes=256, failed_bytes=64,
                  head_bytes=24, slots=2, max_positions=100)
    made = Region.create(shape, layout_id=bytes(32), kind=sys.argv[2])
    return EngineEnd(made, bytes(64 * len(CAUSES)))
def engine():
    profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=64)
    return Engine.create(profile, worker="tcp://127.0.0.1:1", connect_timeout_s=0,
                         proxy="thread", ranks=2, kind=sys.argv[2])
def rank():
    return attach_rank(sys.argv[2])
make = globals()[sys.argv[1]]
if sys.argv[1] != "rank":
    make().close()  # whatever is loaded or opened once
before, most = fds(), resource.getrlimit(resource.RLIMIT_NOFILE)
said = set()
for spare in range(100):
    resource.setrlimit(resource.RLIMIT_NOFILE, (before - 1 + spare, most[1]))
    made = None
    try:
        made = make()
    except Pp3Error as error:
        said.add(str(error).rpartition(":")[2][-60:])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
    if made is not None:
        made.close()
        break
    gc.collect()
    assert fds() == before, (spare, before, os.listdir("/proc/self/fd"))
limit = time.monotonic() + 20
while fds() != before and time.monotonic() < limit:
    time.sleep(0.01)  # a dial that was under way closes its own socket
print(spare, fds() - before,
      len([n for n in os.listdir("/dev/shm") if n.startswith("pp3shm-" + MINE)]))
for one in sorted(said):
    print(one)
"""


@pytest.mark.parametrize("kind", ["memfd", "posix"])
@pytest.mark.parametrize("what", ["region", "engine"])
def test_too_few_descriptors_are_an_error_of_creation_that_leaves_nothing(what, kind):
    """However many there are, one less than it takes, or none."""
    first, *said = _python(CREATE, what, kind).splitlines()
    spare, left, names = map(int, first.split())
    assert 5 < spare < 99
    assert (left, names) == (0, 0)
    assert all("files open" in one or "open files" in one for one in said), said


def test_too_few_descriptors_are_an_error_of_attaching_that_leaves_nothing():
    """The kernel cuts off descriptors that do not fit; that is seen and said."""
    shape = Shape(
        rounds=1,
        ranks=40,
        page_bytes=64,
        request_bytes=64,
        failed_bytes=16,
        head_bytes=16,
        slots=1,
        max_positions=4,
    )
    region = Region.create(shape, layout_id=bytes(32))
    with EngineEnd(region, bytes(16 * len(CAUSES))) as end, Doorman(end) as door:
        first, *said = _python(CREATE, "rank", door.address).splitlines()
    spare, left, _ = map(int, first.split())
    assert 4 < spare < 30
    assert left == 0
    assert said
    assert all("Too many open files" in one for one in said), said


# -- locked memory ---------------------------------------------------------------------

UNLOCKED = """
import resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
import numpy as np
from pathlib import Path
from pp3shm import Engine, Profile, Row, Worker
from pp3shm.worker.drafters import TableDrafter
profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=64)
table = np.zeros((64, 64), np.float32)
with Worker(TableDrafter(table), profile, ["tcp://127.0.0.1:0"]) as worker:
    with Engine.create(profile, worker=worker.addresses[0]) as engine:
        engine.reset(0, [1])
        with engine.reply(engine.step([Row(0)], timeout_s=30)) as reply:
            print(reply.status[0])
        told = Path("/proc/self/status").read_text()
        print([line.split()[1] for line in told.splitlines() if "VmLck" in line])
"""


def test_no_locked_memory_is_needed():
    """RLIMIT_MEMLOCK of 0 limits nothing: no page is locked."""
    without = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
    root = os.geteuid() == 0 and shutil.which("setpriv")
    assert _python(UNLOCKED, before=without if root else ()) == "0\n['0']\n"
