"""Stamps of a round's stages, turned into nanoseconds of CLOCK_MONOTONIC.

Where the kernel itself keeps its time by the CPU's counter, stamps are that counter's
ticks, which cost a third of a clock (``pp3_tick``); else they are nanoseconds already.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp3shm._core import ffi, lib


def _pair() -> tuple[int, int]:
    tick, ns = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    lib.pp3_clock_pair(tick, ns)
    return int(tick[0]), int(ns[0])


_BEGUN = _pair()


class Clock:
    """One look at both clocks; it turns the stamps of before into nanoseconds.

    The rate is that since this module was imported, so that what lies long before is
    placed as exactly as the machine's clock is steady. Differences of stamps are exact
    to a millionth from some 50 ms after the import.

    Attributes:
        tick: the moment of the look, as a stamp.
        ns: the same, CLOCK_MONOTONIC.
    """

    def __init__(self) -> None:
        self.tick, self.ns = _pair()
        ticks, ns = self.tick - _BEGUN[0], self.ns - _BEGUN[1]
        counts = bool(lib.pp3_clock_counts()) and ticks > 0
        self._rate = ns / ticks if counts else 1.0

    def ns_of(self, stamp: int) -> int:
        """Nanoseconds of one stamp."""
        return self.ns - round((self.tick - stamp) * self._rate)

    def ns_of_all(self, stamps: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Nanoseconds of many; what no clock ever said comes out as any number."""
        behind: NDArray[Any] = (np.uint64(self.tick) - stamps).astype(np.int64)
        with np.errstate(invalid="ignore"):
            ns: NDArray[np.int64] = np.rint(behind * self._rate).astype(np.int64)
            return self.ns - ns
