"""Regions: created whole or not at all, attached to by name of every difference."""

import contextlib
import fcntl
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pp3shm._core import ffi
from pp3shm.errors import RegionError
from pp3shm.ring import segments
from pp3shm.ring.record import PROXY, RANK, RECORD_BYTES, SEGMENTS, Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd, RankEnd

SHAPE = Shape(
    rounds=4,
    page_bytes=4096,
    request_bytes=256,
    failed_bytes=64,
    head_bytes=24,
    slots=2,
    max_positions=100,
    ranks=2,
)
LAYOUT = bytes(range(32))
EPOCH = bytes(range(16))


@pytest.fixture(params=["memfd", "posix"])
def engine(request):
    end = EngineEnd(
        Region.create(SHAPE, layout_id=LAYOUT, epoch=EPOCH, kind=request.param),
        bytes(3 * SHAPE.failed_bytes),
    )
    yield end
    end.close()


def _fds() -> set[str]:
    return {entry.name for entry in os.scandir("/proc/self/fd")}


def _mine() -> str:
    """How the names of this process begin here: other tests may run beside these."""
    return f"{os.getpid():08x}"


@pytest.fixture(autouse=True)
def _own_names(monkeypatch):
    def token(n: int) -> str:
        return _mine() + os.urandom(n - 4).hex()

    monkeypatch.setattr(segments.secrets, "token_hex", token)


def _named(*prefixes: str) -> list[str]:
    begin = tuple(p.lstrip("/") for p in prefixes) or (f"pp3shm-{_mine()}",)
    return [e.name for e in os.scandir("/dev/shm") if e.name.startswith(begin)]


def _record(engine: EngineEnd, role: int = RANK, **changes: int) -> bytes:
    record = ffi.new("struct pp3_record *")
    ffi.memmove(record, engine.region.record_for(role, owner=3, rank=1), RECORD_BYTES)
    for name, value in changes.items():
        target = record if hasattr(record, name) else record.shape
        setattr(target, name, value)
    return bytes(ffi.buffer(record))


def test_attached_region_is_the_engines(engine):
    """What the engine writes into a page is what a rank reads there."""
    with RankEnd(Region.attach(_record(engine), engine.region.share(RANK))) as rank:
        engine.region.view("pages")[:5] = b"reply"
        assert bytes(rank.region.view("pages")[:5]) == b"reply"
        assert rank.region.layout_id == LAYOUT
        assert rank.region.epoch == EPOCH
        assert rank.rank == 1


def test_a_rank_maps_pages_read_only_and_no_slots(engine):
    """The roles' table is what the kernel enforces."""
    region = Region.attach(_record(engine), engine.region.share(RANK))
    with region:
        assert set(region.addresses) == {"control", "pages", "failed", "acks"}
        assert region.view("pages").readonly
        assert region.view("failed").readonly
        assert not region.view("acks").readonly
        with pytest.raises(RegionError, match="segment slots"):
            region.view("slots")
    fds = engine.region.share(RANK)
    with pytest.raises(PermissionError):
        mmap.mmap(fds["pages"], 4096, mmap.MAP_SHARED)
    for fd in fds.values():
        os.close(fd)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"magic": 1}, "record.magic"),
        ({"abi": 3}, "record.abi"),
        ({"byte_order": 0x04030201}, "record.byte_order"),
        ({"role": 9}, "record.role"),
        ({"rounds": 0}, "record.rounds"),
        ({"rounds": 2}, "record.bytes\\[control\\]"),
        ({"pages": 5000}, "record.pages"),
        ({"ranks": 65}, "record.ranks"),
        ({"head_bytes": 65}, "record.failed_bytes"),
        ({"request_bytes": 255}, "region.request_bytes"),
        ({"slots": 1}, "record.bytes\\[slots\\]"),
        ({"clock_ns": 0}, "record.clock_ns"),
        ({"clock_ns": 2**63}, "record.clock_ns"),
    ],
)
def test_attach_names_the_field_that_differs(engine, change, place):
    """Every number of the record is compared before anything is used."""
    before = _fds()
    with pytest.raises(RegionError, match=place):
        Region.attach(_record(engine, **change), engine.region.share(RANK))
    assert _fds() == before


@pytest.mark.parametrize("field", ["layout_id", "epoch"])
def test_attach_refuses_another_layout_or_epoch(engine, field):
    """A region that was negotiated by others is not attached to."""
    record = ffi.new("struct pp3_record *")
    ffi.memmove(record, _record(engine), RECORD_BYTES)
    getattr(record.shape, field)[0] ^= 1
    with pytest.raises(RegionError, match=f"region.{field}") as error:
        Region.attach(bytes(ffi.buffer(record)), engine.region.share(RANK))
    assert error.value.found != error.value.expected


def test_attach_refuses_a_segment_of_another_size(engine):
    """The descriptor's size is looked at, not believed."""
    fds = engine.region.share(RANK)
    os.close(fds["acks"])
    fds["acks"] = os.memfd_create("small")
    os.ftruncate(fds["acks"], 64)
    with pytest.raises(RegionError, match="segment acks"):
        Region.attach(_record(engine), fds)


def test_attach_refuses_a_region_without_its_magic():
    """The magic is stored last: half a region is none."""
    with Region.create(SHAPE, layout_id=LAYOUT) as region:
        record = region.record_for(PROXY, owner=1)
        with pytest.raises(RegionError, match=r"region\.magic"):
            Region.attach(record, region.share(PROXY))


def test_attach_refuses_a_record_cut_short(engine):
    """Its length is checked before its first byte."""
    with pytest.raises(RegionError, match="record"):
        Region.attach(_record(engine)[:-1], engine.region.share(RANK))


def test_attach_refuses_missing_descriptors(engine):
    """Each segment of the role, and no other."""
    fds = engine.region.share(PROXY)
    with pytest.raises(RegionError, match="descriptors"):
        Region.attach(_record(engine), fds)


@pytest.mark.parametrize(
    "field",
    ["rounds", "page_bytes", "request_bytes", "failed_bytes", "head_bytes", "slots"],
)
@pytest.mark.parametrize("value", [0, -1, 2**32])
def test_create_refuses_an_impossible_size(field, value):
    """By its name, and nothing is left behind."""
    before = _fds()
    sizes = {name: getattr(SHAPE, name) for name in SHAPE.__slots__}
    with pytest.raises(RegionError, match=field):
        Region.create(Shape(**sizes | {field: value}), layout_id=LAYOUT, kind="posix")
    assert _fds() == before
    assert _named() == []


@pytest.mark.parametrize("kind", ["memfd", "posix"])
@pytest.mark.parametrize("nth", range(5))
def test_a_creation_that_fails_midway_leaves_nothing(kind, nth, monkeypatch):
    """Whichever segment fails, descriptors, mappings and names are gone."""
    before = _fds()
    calls = iter(range(5))
    whole = segments._allocate

    def allocate(name: str, fd: int, size: int) -> None:
        if next(calls) == nth:
            raise RegionError(f"segment {name}", size, "planted")
        whole(name, fd, size)

    monkeypatch.setattr(segments, "_allocate", allocate)
    with pytest.raises(RegionError, match="planted"):
        Region.create(SHAPE, layout_id=LAYOUT, kind=kind)
    assert _fds() == before
    assert _named() == []


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


LIMITED = """
import os, resource, secrets, sys
from pp3shm.errors import RegionError
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
shape = Shape(rounds=4, page_bytes=1 << 16, request_bytes=256, failed_bytes=64,
              head_bytes=24, slots=2, max_positions=100)
secrets.token_hex = lambda n: "f" * 24 + f"{os.getpid():08x}"
try:
    Region.create(shape, layout_id=bytes(32), kind=sys.argv[1])
except RegionError as error:
    mine = f"pp3shm-{secrets.token_hex(16)}"
    print(error.place, [n for n in os.listdir("/dev/shm") if n.startswith(mine)])
"""


@pytest.mark.parametrize("kind", ["memfd", "posix"])
def test_memory_that_is_not_to_be_had_is_an_error_at_creation(kind):
    """All of it is allocated at once, so that no access is a SIGBUS later."""
    done = _run(LIMITED, kind)
    assert (done.returncode, done.stdout) == (0, "segment pages []\n")


@pytest.fixture
def small_shm():
    """A /dev/shm of 64 KiB, in a mount namespace of a child's own."""
    probe = subprocess.run(
        ["unshare", "-m", "mount", "-t", "tmpfs", "-o", "size=64k", "x", "/dev/shm"],
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip("needs a mount namespace")
    return 'mount -t tmpfs -o size=64k x /dev/shm && exec "$0" -c "$1"'


FULL = """
import os
from pp3shm.errors import RegionError
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
shape = Shape(rounds=4, page_bytes=1 << 16, request_bytes=256, failed_bytes=64,
              head_bytes=24, slots=2, max_positions=100)
try:
    Region.create(shape, layout_id=bytes(32), kind="posix")
except RegionError as error:
    print(error.place, error.found, os.listdir("/dev/shm"))
"""


def test_a_full_tmpfs_is_an_error_that_names_the_segment(small_shm):
    """ENOSPC at creation; what was made before it is gone again."""
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", small_shm, sys.executable, FULL],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "segment pages No space left on device []\n"


HOLDER = """
import sys, time
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
shape = Shape(rounds=4, page_bytes=4096, request_bytes=256, failed_bytes=64,
              head_bytes=24, slots=2, max_positions=100)
region = Region.create(shape, layout_id=bytes(32), kind="posix")
print(region.prefix, flush=True)
sys.stdin.read()
"""


def _holder() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_names_of_a_killed_creator_are_swept_by_the_next():
    """By lock, not by pid; the living one's names stay."""
    with _holder() as dead, _holder() as alive:
        gone, stays = (h.stdout.readline().strip() for h in (dead, alive))
        dead.kill()
        dead.wait()
        assert len(_named(gone)) == 5
        with Region.create(SHAPE, layout_id=LAYOUT, kind="posix") as region:
            left = _named(gone, stays, region.prefix)
            assert {f"/{name.rpartition('-')[0]}" for name in left} == {
                region.prefix,
                stays,
            }
        alive.stdin.close()
        alive.wait()
    assert _named(stays) == []


def test_names_are_private_and_go_with_a_normal_exit():
    """Mode 0600; unlinked at exit without anybody's help."""
    with _holder() as holder:
        prefix = holder.stdout.readline().strip()
        mode = Path(f"/dev/shm{prefix}-control").stat().st_mode & 0o777
        assert mode == 0o600
        holder.stdin.close()
        assert holder.wait() == 0
    assert _named(prefix) == []


def test_a_sweep_leaves_a_name_that_is_another_inode_by_now(tmp_path, monkeypatch):
    """The lock is on an inode; the name may have been taken by the next creator."""
    monkeypatch.setattr(segments, "SHM", tmp_path)
    name = f"pp3shm-{'0' * 32}-control"
    (tmp_path / name).touch()
    lock = fcntl.flock

    def swap(fd: int, how: int) -> None:
        lock(fd, how)
        (tmp_path / name).unlink()
        (tmp_path / name).write_text("the next one's")

    monkeypatch.setattr(fcntl, "flock", swap)
    assert segments.sweep() == []
    assert (tmp_path / name).read_text() == "the next one's"


def test_a_creator_whose_name_was_swept_at_once_makes_another(monkeypatch):
    """Between creation and lock it looks like a dead one's."""
    lock, swept = fcntl.flock, []

    def sweep_first(fd: int, how: int) -> None:
        if not swept and _named():
            swept.extend(_named())
            (Path("/dev/shm") / swept[0]).unlink()
        lock(fd, how)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    with Region.create(SHAPE, layout_id=LAYOUT, kind="posix") as region:
        assert len(swept) == 1
        names = {f"{region.prefix.lstrip('/')}-{s}" for s in SEGMENTS}
        assert set(_named()) == names
    assert _named() == []


def test_a_region_with_names_is_attached_by_name_until_they_are_unlinked():
    """Then a name finds nothing, and those attached keep the memory."""
    end = EngineEnd(
        Region.create(SHAPE, layout_id=LAYOUT, kind="posix"),
        bytes(3 * SHAPE.failed_bytes),
    )
    with end:
        prefix, record = end.region.prefix, _record(end)
        region = Region.attach_named(record, prefix)
        end.region.unlink()
        end.region.view("pages")[:4] = b"both"
        assert bytes(region.view("pages")[:4]) == b"both"
        with pytest.raises(RegionError, match=prefix):
            Region.attach_named(record, prefix)
        region.close()


def test_a_forked_child_holds_neither_lock_nor_descriptor():
    """Else the names of a dead parent would stay locked by its children."""
    region = Region.create(SHAPE, layout_id=LAYOUT, kind="posix")
    with region:
        before = dict(region._segments.fds)
        child = os.fork()
        if child == 0:
            open_ = 0
            for fd in before.values():
                with contextlib.suppress(OSError):
                    os.fstat(fd)
                    open_ += 1
            os._exit(open_ * 10 + len(_named(region.prefix)))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    assert _named() == []


def test_memory_stays_mapped_while_a_view_is_used():
    """Closing pulls nothing from under a reader."""
    end = EngineEnd(
        Region.create(SHAPE, layout_id=LAYOUT), bytes(3 * SHAPE.failed_bytes)
    )
    view = end.region.view("pages")[:4]
    view[:] = b"kept"
    end.close()
    end.close()
    del end
    assert bytes(view) == b"kept"


def test_a_memfd_region_can_neither_shrink_nor_grow():
    """A peer's ftruncate would be a SIGBUS in every reader."""
    with Region.create(SHAPE, layout_id=LAYOUT) as region:
        fds = region.share(PROXY)
        for size in (0, 1 << 30):
            with pytest.raises(PermissionError):
                os.ftruncate(fds["control"], size)
        for fd in fds.values():
            os.close(fd)
