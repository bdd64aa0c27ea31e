"""The parts of ``rdma://`` that need neither a device nor pyverbs."""

import ctypes
import errno
import logging
import os
import random
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from fake_verbs import FakeNet

from pp3shm import Engine, Profile, Worker
from pp3shm.errors import ConfigError, FrameError, LinkError
from pp3shm.layout.endpoint import Endpoint
from pp3shm.link import gids, rdma
from pp3shm.link.address import RdmaAddress, TcpAddress, parse
from pp3shm.link.area import Area
from pp3shm.link.lane import Lane
from pp3shm.link.staging import MOST_BYTES, PAGE_BYTES, Slots, slot_bytes, slots_for
from pp3shm.link.verbs import Shape
from pp3shm.worker.drafters import TableDrafter

ROUNDS = 4


# -- slots -----------------------------------------------------------------------------


def test_slots_are_whole_pages_that_hold_the_frame():
    for frame in (1, 4095, 4096, 4097, 5412, 10_342_400):
        size = slot_bytes(frame)
        assert 0 == size % PAGE_BYTES
        assert frame <= size < frame + PAGE_BYTES


@pytest.mark.parametrize(
    ("rounds", "frame", "expected"),
    [
        (8, 5412, 8),
        (1024, 5412, 256),
        (8, 10_342_400, 8),
        (256, 10_342_400, 25),
        (8, MOST_BYTES, 2),
        (1, MOST_BYTES, 1),
    ],
)
def test_each_round_has_a_slot_as_far_as_memory_may_be_pinned(rounds, frame, expected):
    assert expected == slots_for(rounds, frame)


def test_a_slot_is_used_again_last():
    slots = Slots(3, {10})
    assert [0, 1] == [slots.post(7), slots.post(8)]
    slots.done(slots.arrived(0, 10).slot)
    assert [2, 0] == [slots.post(9), slots.post(10)]
    with pytest.raises(IndexError):
        slots.post(11)


@pytest.mark.parametrize(
    ("immediate", "size", "place"),
    [
        (2, 10, r"rdma\.immediate"),
        (2**32 - 1, 10, r"rdma\.immediate"),
        (-1, 10, r"rdma\.immediate"),
        (1, 10, r"rdma\.slot\[1\]"),
        (0, 11, r"rdma\.bytes of slot 0"),
        (0, 0, r"rdma\.bytes of slot 0"),
    ],
)
def test_an_arrival_that_nobody_waits_for_is_refused_by_name(immediate, size, place):
    slots = Slots(2, {10})
    slots.post(5)
    with pytest.raises(FrameError, match=place):
        slots.arrived(immediate, size)
    assert (0, 5, 10, False) == slots.arrived(0, 10)


def test_every_slot_is_free_posted_or_quarantined_and_no_round_gets_a_held_one():
    """Against a model, over random orders of everything that can happen."""
    seed = random.Random(11)
    for _ in range(50):
        slots, model = Slots(5, {1}), {}  # slot -> (round, late)
        next_round = 0
        for _ in range(200):
            what = seed.choice(("post", "fence", "arrive", "stray"))
            but = {slot for slot in range(5) if not seed.randrange(3)}
            may = set(range(5)) - model.keys() - but
            assert bool(may) == slots.ready(but)
            if what == "post" and may:
                slot = slots.post(next_round, but)
                assert slot in may
                model[slot] = (next_round, False)
                next_round += 1
            elif what == "fence" and model:
                gone = seed.choice([r for r, _ in model.values()])
                open_rounds = {r for r, _ in model.values()} - {gone}
                fresh = [s for s, entry in model.items() if entry == (gone, False)]
                assert len(fresh) == slots.fence(open_rounds)
                model |= dict.fromkeys(fresh, (gone, True))
            elif what == "arrive" and model:
                slot = seed.choice(list(model))
                round_, is_late = model[slot]
                assert (slot, round_, 1, is_late) == slots.arrived(slot, 1)
                slots.done(slot)
                del model[slot]
            elif what == "stray":
                slot = seed.randrange(-1, 7)
                if slot not in model:
                    with pytest.raises(FrameError):
                        slots.arrived(slot, 1)
            held = sum(is_late for _, is_late in model.values())
            assert (len(model) < 5, held) == (slots.ready(), slots.quarantined)


# -- a lane ----------------------------------------------------------------------------


def pair(slots=2, in_bytes=5000, out_bytes=5000):
    net = FakeNet()
    ends = [
        net.open_end("", None, Shape(slots, in_bytes, out_bytes)),
        net.open_end("", None, Shape(slots, out_bytes, in_bytes)),
    ]
    ours, theirs = (
        Lane(ends[0], ends[1].local, "worker"),
        Lane(ends[1], ends[0].local, "proxy"),
    )
    return net, ours, theirs


@pytest.mark.parametrize("size", [1, 5412, 10_342_400])
def test_a_frame_arrives_whole_in_the_slot_of_its_number(size):
    _, ours, theirs = pair(2, size, size)
    data = random.Random(size).randbytes(size)
    for slot in (1, 0, 1):
        ours.send(slot, data)
        (came,) = theirs.take()
        assert (True, slot, size, "") == came
        assert data == theirs.read(slot, size)
        assert [] == ours.take()


def test_a_slot_under_way_is_not_filled_again_before_its_time():
    net, ours, theirs = pair()
    net.holding = True
    ours.send(0, b"first")
    with pytest.raises(LinkError, match=r"worker: expected slot 0 .* under way"):
        ours.send(0, b"second", timeout_s=0.02)
    net.let_go()
    assert b"first" == theirs.read(0, 5)
    ours.send(0, b"second")
    assert b"second" == theirs.read(0, 6)


@pytest.mark.parametrize("fault", ["cut", "closed", "beyond"])
def test_a_write_that_fails_is_named_and_later_ones_fail_too(fault):
    net, ours, theirs = pair()
    if fault == "cut":
        net.cut = True
    elif fault == "closed":
        theirs.close()
    end, peer = ours._end, ours._end.peer
    if fault == "beyond":
        end.fill(0, b"x" * 100)
        end.write(0, 100, peer.address + 2 * peer.slot_bytes - 99, peer.rkey, 0)
        word = "REM_ACCESS_ERR"
    else:
        ours.send(0, b"x")
        word = "RETRY_EXC_ERR"
    with pytest.raises(LinkError, match=f"worker: expected a write to succeed.*{word}"):
        ours.take()
    net.cut = False
    ours.send(1, b"x")
    with pytest.raises(LinkError, match="WR_FLUSH_ERR"):
        ours.take()


# -- which device ----------------------------------------------------------------------


def sysfs(root, tables):
    """``tables``: device -> [(gid, kind)]."""
    for device, entries in tables.items():
        port = root / device / "ports" / "1"
        (port / "gids").mkdir(parents=True)
        (port / "gid_attrs" / "types").mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
        for number, (gid, kind) in enumerate(entries):
            (port / "gids" / str(number)).write_text(f"{gid}\n")
            if kind:
                (port / "gid_attrs" / "types" / str(number)).write_text(f"{kind}\n")


def gid_of(ip):
    a, b, c, d = map(int, ip.split("."))
    return f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


LOCAL = "fe80:0000:0000:0000:0c9e:c9ff:feaf:276b"
EMPTY = "0000:0000:0000:0000:0000:0000:0000:0000"


@pytest.fixture
def two_devices(monkeypatch, tmp_path):
    tables = {
        "mlx5_0": [
            (LOCAL, "RoCE v2"),
            (gid_of("10.0.0.1"), "IB/RoCE v1"),
            (gid_of("10.0.0.1"), "RoCE v2"),
            (EMPTY, ""),
        ],
        "mlx5_1": [(LOCAL, ""), (gid_of("10.0.0.2"), "RoCE v2")],
    }
    sysfs(tmp_path, tables)
    monkeypatch.setattr(gids, "INFINIBAND", tmp_path)


@pytest.mark.parametrize(
    ("ip", "device", "index", "found"),
    [
        ("10.0.0.1", "", None, ("mlx5_0", 2)),
        ("10.0.0.2", "", None, ("mlx5_1", 1)),
        ("::ffff:10.0.0.2", "", None, ("mlx5_1", 1)),
        ("fe80::c9e:c9ff:feaf:276b", "", None, ("mlx5_0", 0)),
        ("192.168.0.1", "mlx5_1", None, ("mlx5_1", 1)),
        ("", "mlx5_0", None, ("mlx5_0", 2)),
        ("10.0.0.1", "mlx5_0", 1, ("mlx5_0", 1)),
        ("10.0.0.1", "mlx5_1", 0, ("mlx5_1", 0)),
    ],
)
@pytest.mark.usefixtures("two_devices")
def test_the_device_is_that_of_the_connection_or_the_one_named(
    ip, device, index, found
):
    place = gids.choose(ip, device, index)
    assert found == (place.device, place.gid.number)
    assert 1 == place.port
    assert 16 == len(place.gid.raw)


@pytest.mark.parametrize(
    ("ip", "index", "most"), [("10.0.0.1", None, 2), ("", None, 2), ("10.0.0.1", 1, 2)]
)
def test_a_table_is_read_no_further_than_to_the_gid_that_is_taken(
    monkeypatch, tmp_path, ip, index, most
):
    """Every session begins there, and a table has a thousand files."""
    there = [(LOCAL, "RoCE v2"), (gid_of("10.0.0.1"), "RoCE v2")]
    sysfs(tmp_path, {"mlx5_0": there + [(EMPTY, "")] * 200})
    monkeypatch.setattr(gids, "INFINIBAND", tmp_path)
    read, seen = gids._read, []
    monkeypatch.setattr(gids, "_read", lambda path: seen.append(path) or read(path))
    assert 1 == gids.choose(ip, "mlx5_0", index).gid.number
    assert most == len({path for path in seen if "/gids/" in path})


@pytest.mark.parametrize(
    ("ip", "device", "index", "says"),
    [
        ("192.168.0.1", "", None, "a GID of 192.168.0.1"),
        ("", "", None, "mlx5_0 GID 2 10.0.0.1"),
        ("10.0.0.1", "mlx5_9", None, "no device"),
        ("10.0.0.1", "mlx5_0", 3, "that GID"),
    ],
)
@pytest.mark.usefixtures("two_devices")
def test_a_device_that_is_not_there_is_refused_with_what_there_is(
    ip, device, index, says
):
    with pytest.raises(LinkError, match=says):
        gids.choose(ip, device, index)


# -- addresses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rdma://10.0.0.1:7333", RdmaAddress("10.0.0.1", 7333)),
        ("rdma://h:1/mlx5_0", RdmaAddress("h", 1, "mlx5_0")),
        ("rdma://h:1/mlx5_0/3", RdmaAddress("h", 1, "mlx5_0", 3)),
        ("rdma://[::1]:1/rxe0/0", RdmaAddress("::1", 1, "rxe0", 0)),
    ],
)
def test_an_rdma_address_is_read_and_written_alike(text, expected):
    assert expected == parse(text)
    assert text == str(expected)
    assert parse(text) != TcpAddress(expected.host, expected.port)


@pytest.mark.parametrize(
    "text",
    [
        "rdma://",
        "rdma://10.0.0.1",
        "rdma://h:70000",
        "rdma://h:1/",
        "rdma://h:1/a b",
        "rdma://h:1/mlx5_0/",
        "rdma://h:1/mlx5_0/x",
        "rdma://h:1/mlx5_0/1/2",
        "rdma://h:1/../../etc",
        "rdma://h:1/*",
    ],
)
def test_a_bad_rdma_address_is_refused(text):
    with pytest.raises(ConfigError, match="--listen: expected"):
        parse(text, "--listen")


def test_beyond_loopback_rdma_needs_a_key_as_tcp_does():
    ours = Profile.greedy(vocab=64, depth=4, max_slots=1, max_positions=64)
    worker = Worker(TableDrafter(np.zeros((64, 64), "f4")), ours, ["rdma://0.0.0.0:0"])
    with pytest.raises(ConfigError, match="pre-shared key"):
        worker.start()


# -- pyverbs ---------------------------------------------------------------------------


def test_rdma_without_pyverbs_says_how_to_get_it(monkeypatch):
    def absent():
        raise ModuleNotFoundError("No module named 'pyverbs'")

    monkeypatch.setattr(rdma, "load", absent)
    ours = Profile.greedy(vocab=64, depth=4, max_slots=1, max_positions=64)
    says = r"python3-pyverbs.*docs/rdma\.md.*No module named 'pyverbs'"
    with pytest.raises(ConfigError, match=f"worker: .*{says}"):
        Engine.create(ours, worker="rdma://127.0.0.1:7333")
    drafter = TableDrafter(np.zeros((64, 64), "f4"))
    worker = Worker(drafter, ours, ["rdma://127.0.0.1:0"])
    with pytest.raises(ConfigError, match=f"listen: .*{says}"):
        worker.start()
    assert () == worker.addresses or worker._listeners[0].fileno() == -1


def test_loading_pyverbs_leaves_the_programs_logging_alone(monkeypatch):
    root = logging.getLogger()
    before = root.handlers[:], root.level

    def load(name):
        root.addHandler(logging.StreamHandler(sys.stderr))
        root.setLevel(logging.DEBUG)
        return types.ModuleType(name)

    monkeypatch.setattr(rdma.importlib, "import_module", load)
    assert set(rdma._MODULES) == set(rdma.load())
    assert before == (root.handlers, root.level)


# -- memory ----------------------------------------------------------------------------


def test_an_area_is_page_aligned_shared_and_gone_when_closed():
    area = Area(3 * PAGE_BYTES)
    assert 0 == area.address % PAGE_BYTES
    area.fill(PAGE_BYTES, b"pp3")
    assert b"pp3" == ctypes.string_at(area.address + PAGE_BYTES, 3)
    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123
        (line,) = [m for m in maps if m.startswith(f"{area.address:x}-")]
    assert "rw-s" in line
    assert "pp3shm-staging" in line
    area.close()
    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123
        assert not [m for m in maps if m.startswith(f"{area.address:x}-")]


def test_memory_that_is_not_to_be_had_is_an_error_with_its_size(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(LinkError, match="expected 4096 bytes, found: No space left"):
        Area(4096)
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_an_endpoint_tells_the_address_of_each_slot():
    endpoint = Endpoint(1, 2, 1024, 0, bytes(16), 1000, 7, 4096, 3)
    assert [1000, 5096, 9192] == [endpoint.at(slot) for slot in range(3)]
