"""What ``Engine.stats`` gives: counters by name, and how long each stage took."""

import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import ConfigError
from pp3shm.ring.end import End
from pp3shm.ring.flights import read_flights
from pp3shm.stages import STAGES, STEPS, WHOLE, Rounds, rounds_of

DIGITS = 3
"""Significant digits of a histogram: a thousandth."""

LONGEST_NS = 3600 * 10**9
"""An hour; what took longer counts as that."""

QUANTILES = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99.9": 99.9}
_SUB_BITS = 11  # of 2048 sub-buckets, what three digits take


class StageTimes(Mapping[str, int]):
    """How long a stage took: ``p50``, ``p90``, ``p99``, ``p99.9``, ``max``, ``count``.

    All but the count in nanoseconds, to three digits.

    Args:
        histogram: ``hdrh.histogram.HdrHistogram``.
        lock: held by whoever adds to it.

    Attributes:
        histogram: the engine's own, for other quantiles, for merging or for its wire
            form; it goes on with each call of ``stats``, whichever thread's.
    """

    def __init__(self, histogram: Any, lock: threading.Lock) -> None:
        self.histogram = histogram
        self._lock = lock

    def __getitem__(self, name: str) -> int:
        """A quantile, the maximum or the count, by its name."""
        with self._lock:  # its counts and their total are of one moment
            if name == "count":
                return int(self.histogram.get_total_count())
            if name == "max":
                return int(self.histogram.get_max_value())
            return int(self.histogram.get_value_at_percentile(QUANTILES[name]))

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter((*QUANTILES, "max", "count"))

    def __len__(self) -> int:
        """How many names there are."""
        return len(QUANTILES) + 2

    def __repr__(self) -> str:
        """All of it."""
        return f"StageTimes({dict(self)})"


class Stats(dict[str, int]):
    """Counters by name, as a dict; and the stages' times.

    Args:
        counters: by name.
        histograms: the engine's, or in words what it would take to have them.
        lock: held by whoever adds to them.
    """

    def __init__(
        self,
        counters: Mapping[str, int],
        histograms: Mapping[str, Any] | str,
        lock: threading.Lock,
    ) -> None:
        super().__init__(counters)
        self._histograms = histograms
        self._lock = lock

    @property
    def stages(self) -> dict[str, StageTimes]:
        """By stage: ``submit->take`` and so on to ``seen->released``, and ``whole``.

        They cover the rounds whose reply was accepted, published and let go of by rank
        0 since the engine was made, but for those that ``records_missed`` counts:
        written over before a call of ``stats`` read them. Call it once in 1024 rounds.
        A stage covers those of them that have both of its stamps.

        Raises:
            ConfigError: the package ``hdrhistogram`` is not installed; or it was not
                imported, since that would switch the interpreter's lock on.
        """
        if isinstance(self._histograms, str):
            raise ConfigError("package hdrhistogram", self._histograms, "none")
        return {
            name: StageTimes(one, self._lock) for name, one in self._histograms.items()
        }


def _switches_the_gil_on() -> bool:
    """True where importing hdrhistogram would take free threads from its user.

    The releases there are say nothing of free-threaded CPython, and such a module
    switches the lock on for the whole process. Not where it was forced on or off
    (``PYTHON_GIL``, ``-X gil``), or where the user has imported it. Whether it is on at
    the moment does not tell: it is while any extension module is being imported.
    """
    if "t" not in sys.abiflags or "pyhdrh" in sys.modules:
        return False
    return getattr(sys.flags, "gil", None) is None


def _histogram_type() -> Any:
    """``HdrHistogram``, or in words what it would take to have it."""
    if _switches_the_gil_on():
        return "imported by you, or PYTHON_GIL=0 (importing it switches the GIL on)"
    try:
        from hdrh.histogram import HdrHistogram  # noqa: PLC0415 - an extra's
    except ImportError:
        return "installed (pip install 'pp3shm[stats]')"
    return HdrHistogram


class Histograms:
    """One histogram for each stage of an engine's rounds, kept up by looking.

    Args:
        end: the engine's end of the ring.
    """

    def __init__(self, end: End) -> None:
        self._end = end
        self._lock = threading.Lock()  # any thread may ask for statistics
        self._since = self._missed = self._unusable = 0
        made = _histogram_type()
        self._made: dict[str, Any] | str = made
        if not isinstance(made, str):
            names = (*STEPS, WHOLE)
            self._made = {name: made(1, LONGEST_NS, DIGITS) for name in names}

    def stats(self, counters: Mapping[str, int]) -> Stats:
        """The counters with those of the recorder, and the histograms up to now."""
        region = self._end.region
        with self._lock:
            with region.opened("acks") as fd:
                flights = read_flights(fd, region.shape, 0, self._since)
            self._since = flights.count
            rounds = rounds_of(flights)
            self._missed += rounds.lost
            self._unusable += rounds.unlikely
            if not isinstance(self._made, str):
                self._fold(rounds, self._made)
            own = {
                "rounds_recorded": self._since,
                "records_missed": self._missed,
                "records_unusable": self._unusable,
            }
        return Stats({**counters, **own}, self._made, self._lock)

    @staticmethod
    def _fold(rounds: Rounds, into: dict[str, Any]) -> None:
        times = rounds.times[rounds.accepted]
        pairs = [*zip(range(len(STEPS)), range(1, len(STAGES)), strict=True)]
        pairs.append((0, len(STAGES) - 1))
        for name, (a, b) in zip(into, pairs, strict=True):
            known = (times[:, a] >= 0) & (times[:, b] >= 0)
            for value, n in _grouped(times[known, b] - times[known, a]):
                into[name].record_value(value, n)


def _grouped(ns: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Values that a histogram cannot tell apart, together: a call of it is slow."""
    ns = np.clip(ns, 1, LONGEST_NS)
    bits = np.floor(np.log2(ns)).astype(np.int64) + 1
    shift = np.maximum(bits - _SUB_BITS, 0)
    values, counts = np.unique(ns >> shift << shift, return_counts=True)
    return zip(values.tolist(), counts.tolist(), strict=True)
