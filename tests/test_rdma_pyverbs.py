"""What a queue pair does with pyverbs' calls, errors and descriptors; no device."""

import os
import resource
import socket
import types

import pytest
from fake_pyverbs import FakePyverbs

from pp3shm.errors import LinkError
from pp3shm.link import rdma
from pp3shm.link.gids import Gid, Place
from pp3shm.link.verbs import Completion, Shape

PLACE = Place("fake0", 1, Gid(0, "0000:0000:0000:0000:0000:ffff:7f00:0001", "RoCE v2"))
SHAPE = Shape(4, 5000, 5000)
BEYOND_SELECT = 1024


@pytest.fixture
def fake(monkeypatch):
    made = FakePyverbs(monkeypatch)
    yield made
    for fd in made.channels:
        os.close(fd)


def arrived(slot=1, size=64):
    return types.SimpleNamespace(
        wr_id=rdma._RECEIVE,
        status=0,
        opcode=129,
        imm_data=socket.htonl(slot),
        byte_len=size,
    )


@pytest.mark.parametrize("lowest", [0, BEYOND_SELECT])
def test_a_queue_is_polled_whatever_number_its_descriptor_has(fake, lowest):
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= lowest + 8:
        pytest.skip(f"a process may have {soft} descriptors here")
    fake.lowest_fd = lowest
    end = rdma.RdmaEnd(PLACE, SHAPE)
    assert end.fileno() >= lowest
    assert [] == end.poll()
    fake.works = [arrived(slot) for slot in range(3)]
    fake.ring()
    posted = fake.receives
    assert [Completion(True, slot, 64) for slot in range(3)] == end.poll()
    assert posted + 3 == fake.receives
    with pytest.raises(BlockingIOError):  # its event was taken
        os.eventfd_read(end.fileno())
    end.close()
    assert ([], 0) == (fake.open, end.regions)


@pytest.mark.parametrize("busy", ["QP", "CQ", "CompChannel", "MR", "PD", "Context"])
def test_what_cannot_be_destroyed_is_said_and_counted_once(fake, busy):
    end = rdma.RdmaEnd(PLACE, SHAPE)
    fake.busy = {busy}
    with pytest.raises(LinkError, match=f"fake0: expected to destroy {busy}.*busy"):
        end.close()
    kept, regions = list(fake.open), end.regions
    assert busy == kept[-1]
    assert 1 == rdma.lost_areas()
    fake.busy = set()
    end.close()
    assert (1, kept, regions) == (rdma.lost_areas(), fake.open, end.regions)


@pytest.mark.parametrize("refused", ["PD", "MR", "CompChannel", "CQ", "QP"])
def test_the_first_error_of_a_set_up_is_the_one_that_is_told(fake, refused):
    fake.refused = {refused}
    with pytest.raises(LinkError, match=f"set-up: .*{refused} refused"):
        rdma.RdmaEnd(PLACE, SHAPE)
    assert ([], 0) == (fake.open, rdma.lost_areas())
    fake.busy = {"Context"}
    with pytest.raises(LinkError, match=f"set-up: .*{refused} refused"):
        rdma.RdmaEnd(PLACE, SHAPE)
    assert (["Context"], 1) == (fake.open, rdma.lost_areas())


@pytest.mark.parametrize("strangers", [1, 2])
def test_a_channel_that_cannot_be_told_from_anothers_is_refused(fake, strangers):
    fake.strangers = strangers
    with pytest.raises(LinkError, match=f"one new completion .*found {strangers + 1}"):
        rdma.RdmaEnd(PLACE, SHAPE)
    assert ([], 0) == (fake.open, rdma.lost_areas())
    fake.strangers = 0
    rdma.RdmaEnd(PLACE, SHAPE).close()
    assert [] == fake.open


def test_a_channel_that_cannot_be_found_is_refused(fake, monkeypatch):
    monkeypatch.setattr(rdma, "_channels", set)
    with pytest.raises(LinkError, match="found 0"):
        rdma.RdmaEnd(PLACE, SHAPE)
    assert [] == fake.open
