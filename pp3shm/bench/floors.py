"""Subjects in bare C: what the same bytes cost without anything around them."""

import os
from typing import Any

from pp3shm._core import ffi, lib
from pp3shm.bench.exchange import REPLY, REPLY_BYTES, REQUEST, REQUEST_BYTES
from pp3shm.bench.measure import Found, Sizes, cores
from pp3shm.errors import RegionError

SPIN_NS = 10**10
HYBRID_NS = 50_000

KINDS = {
    "shm": lib.PP3_FLOOR_SHM,
    "unix": lib.PP3_FLOOR_UNIX,
    "tcp": lib.PP3_FLOOR_TCP,
    "relay unix": lib.PP3_FLOOR_RELAY_UNIX,
    "relay tcp": lib.PP3_FLOOR_RELAY_TCP,
}


def run(
    kind: str,
    rounds: int,
    *,
    warm: int = 0,
    spin_ns: int = SPIN_NS,
    pause_ns: int = 0,
    in_flight: int = 1,
) -> tuple[list[int], Any]:
    """One C call: the nanoseconds of each round, and the ``pp3_floor_result``.

    Args:
        kind: of ``KINDS``.
        rounds: that count.
        warm: before them.
        spin_ns: before a wait for shared memory sleeps.
        pause_ns: slept before each round.
        in_flight: rounds under way at once; above 1 none is timed by itself.

    Raises:
        RegionError: it could not be run, or the bytes that came were others.
    """
    mine, its = cores()
    if mine == its:
        spin_ns = 0  # two that spin on one core wait for its time slices
    plan = ffi.new(
        "struct pp3_floor_plan *",
        {
            "kind": KINDS[kind],
            "warm": warm,
            "rounds": rounds,
            "in_flight": in_flight,
            "request_bytes": REQUEST_BYTES,
            "reply_bytes": REPLY_BYTES,
            "spin_ns": spin_ns,
            "pause_ns": pause_ns,
            "core": (mine, its),
        },
    )
    ns = ffi.new("uint64_t[]", rounds)
    result = ffi.new("struct pp3_floor_result *")
    there, here = bytearray(REQUEST_BYTES), bytearray(REPLY_BYTES)
    code = lib.pp3_floor(
        plan,
        REQUEST,
        REPLY,
        ns,
        result,
        ffi.from_buffer(there),
        ffi.from_buffer(here),
    )
    if code != 0:
        raise RegionError(f"floor {kind}", "to run", os.strerror(-code))
    if there != REQUEST or here != REPLY:
        raise RegionError(f"floor {kind}", "the bytes that were sent", "others")
    return (list(ns) if in_flight == 1 else []), result


class Floor:
    """A subject of ``run``.

    Args:
        kind: of ``KINDS``.
        spin_ns: as in ``run``.
        pause_ns: as in ``run``.
    """

    def __init__(self, kind: str, spin_ns: int = SPIN_NS, pause_ns: int = 0) -> None:
        self._kind = kind
        self._how = {"spin_ns": spin_ns, "pause_ns": pause_ns}

    def measure(self, sizes: Sizes) -> Found:
        """One repetition."""
        paused = self._how["pause_ns"] > 0
        rounds = sizes.pauses if paused else sizes.rounds
        warm = min(sizes.warm, rounds)
        ns, result = run(self._kind, rounds, warm=warm, **self._how)
        wall = max(1, result.wall_ns)
        found = Found(ns, {"asks": result.cpu_ns[0] / wall})
        # In the order in which they were forked.
        names = ("answers", "relay") if "relay" in self._kind else ("answers",)
        for name, spent in zip(names, result.cpu_ns[1:3], strict=False):
            found.cpu[name] = spent / max(1, result.life_ns)
        if self._kind == "shm" and not paused:
            flood, spin = sizes.flood, self._how["spin_ns"]
            _, result = run("shm", flood, spin_ns=spin, in_flight=8)
            found.per_second = flood * 1e9 / max(1, result.wall_ns)
        return found


class Death:
    """From SIGKILL to the wake-up of who waits on the pidfd."""

    def measure(self, sizes: Sizes) -> Found:
        """One repetition."""
        ns = ffi.new("uint64_t[]", sizes.deaths)
        code = lib.pp3_floor_pidfd(sizes.deaths, cores(), ns)
        if code != 0:
            raise RegionError("floor pidfd", "to run", os.strerror(-code))
        return Found(list(ns))
