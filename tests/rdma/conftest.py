"""Tests that need real verbs: skipped, with the reason, where the lab did not start."""

import os
import subprocess

import pytest

from pp3shm.link import gids, rdma
from pp3shm.link.lane import Lane
from pp3shm.link.verbs import Shape

IN_LAB = os.environ.get("PP3_LAB") == "1"
PAIR = os.environ.get("PP3_LAB_PAIR") == "1"
WHY = "needs soft-RoCE: make test-rdma starts the lab of tools/rdma-lab"


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/rdma/" not in str(item.path):
            continue
        of_pair = "pair" in item.path.name
        if not IN_LAB:
            item.add_marker(pytest.mark.skip(reason=WHY))
        elif of_pair != PAIR:
            reason = "for two guests" if of_pair else "for one guest with two devices"
            item.add_marker(pytest.mark.skip(reason=reason))


class Ends:
    """Two ends in this process, on the two devices of the guest."""

    def __init__(self, slots=2, in_bytes=8192, out_bytes=8192):
        here, there = gids.choose("10.98.0.1"), gids.choose("10.98.0.2")
        self.a = rdma.RdmaEnd(here, Shape(slots, in_bytes, out_bytes))
        self.b = rdma.RdmaEnd(there, Shape(slots, out_bytes, in_bytes))
        self.ours = Lane(self.a, self.b.local, "b")
        self.theirs = Lane(self.b, self.a.local, "a")

    def close(self):
        self.a.close()
        self.b.close()


@pytest.fixture
def make_ends():
    """Ends by their shape, closed at the end; nothing may be left registered."""
    made = []

    def make(*shape):
        made.append(Ends(*shape))
        return made[-1]

    yield make
    for one in made:
        one.close()
        assert (0, 0) == (one.a.regions, one.b.regions)
    assert 0 == rdma.lost_areas()


def link(state, device="lab0" if PAIR else "lab1"):
    """Take the link down or up, as a pulled cable would."""
    subprocess.run(["ip", "link", "set", device, state], check=True, timeout=30)


@pytest.fixture
def cable():
    """``cable("down")``; it is up again at the end."""
    yield link
    link("up")
