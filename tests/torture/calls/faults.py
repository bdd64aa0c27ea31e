"""Faults planted by replacing a part of the package, in the victim and beside it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pp3shm.ring import doorstep, handover, region, segments


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        plant: Puts it into this process, and so into those it forks.
        scene: Where it shows.
        kind: Of the region there.
        stride: Every how many-th point is enough.
    """

    plant: Callable[[], None]
    scene: str
    kind: str
    stride: int


def _nothing_is_swept() -> None:
    segments.sweep = list


def _no_lock() -> None:
    class Unlocked:
        """fcntl of a creator that forgets to lock."""

        def __getattr__(self, name: str) -> Any:
            return getattr(segments_fcntl, name)

        @staticmethod
        def flock(fd: int, operation: int) -> None:
            if operation != segments_fcntl.LOCK_EX:
                segments_fcntl.flock(fd, operation)

    segments_fcntl = segments.fcntl
    segments.fcntl = Unlocked()


def _a_number_is_lost() -> None:
    def free(self: handover.Doorman, rank: int) -> bool:
        return rank not in self._attached and rank not in self._pidfds

    handover.Doorman._free = free


def _counted_before_it_has_mapped() -> None:
    usual = handover.Doorman._choose

    def choose(self: handover.Doorman, ask: bytes) -> int:
        rank = usual(self, ask)
        self._attached.add(rank)
        return rank

    handover.Doorman._choose = choose


def _no_door_is_swept() -> None:
    doorstep.sweep_doorsteps = lambda: None


def _a_descriptor_is_kept() -> None:
    usual = region.reopened

    def kept(fd: int, *, writable: bool) -> int:
        os.dup(fd)
        return usual(fd, writable=writable)

    region.reopened = kept


FAULTS = {
    "names of the dead stay": Fault(_nothing_is_swept, "create", "posix", 10),
    "names are not locked": Fault(_no_lock, "create while swept", "posix", 3),
    "a dead guest keeps its number": Fault(
        _a_number_is_lost, "attach a rank", "memfd", 10
    ),
    "a guest counts before it has mapped": Fault(
        _counted_before_it_has_mapped, "attach a rank", "memfd", 10
    ),
    "doors of the dead stay": Fault(_no_door_is_swept, "open a door", "memfd", 5),
    "a descriptor is kept": Fault(_a_descriptor_is_kept, "attach a proxy", "memfd", 50),
}
