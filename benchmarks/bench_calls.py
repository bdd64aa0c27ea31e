"""What do the calls of a round cost from Python?

    engine.step(rows) --> C: pp3_ask_step      engine.reply(ticket) --> C: pp3_hear
    leaving the reply --> C: pp3_let_go        engine.release(ticket) --> the same
    engine.commit(slot, three tokens) --> the digest of its prefix, C: pp3_ask_append

Each is timed as a user makes it, beside its C function called by cffi, as any other
function of the core is: arguments in a tuple, the interpreter's lock let go and taken
again. What Python adds to the C function is at most what the call takes as a whole.
Rounds are failed by a proxy process without a worker: nothing is waited for in what is
timed. Of many short batches the least counts: on a busy machine that is what the code
costs.

    python benchmarks/bench_calls.py [--batches N]
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import pp3shm
from pp3shm import Engine, Profile, Row
from pp3shm._core import ffi, lib

ROUNDS = 512
NEVER_NS = 2**64 - 1


def least(call: Callable[[int], object], numbers: list[int], batches: int) -> float:
    """Nanoseconds of one call, from the quickest batch."""
    found = float("inf")
    for _ in range(batches):
        begun = time.perf_counter_ns()
        for number in numbers:
            call(number)
        found = min(found, (time.perf_counter_ns() - begun) / len(numbers))
    return found


def asked(engine: Engine, call: Callable[[int], Any], batches: int) -> float:
    """The same for what begins rounds; between batches all of them are let go."""
    found = float("inf")
    for _ in range(batches):
        begun = time.perf_counter_ns()
        tickets = [call(number) for number in range(ROUNDS)]
        found = min(found, (time.perf_counter_ns() - begun) / ROUNDS)
        for ticket in tickets:
            engine.reply(ticket)
            engine.release(ticket)
    return found


def measure(engine: Engine, batches: int) -> dict[str, tuple[float, float | None]]:
    """Of each call: nanoseconds of it, and of its C function by cffi."""
    rows = [Row(slot) for slot in range(4)]
    for row in rows:
        engine.reset(row.slot, [1, 2, 3])
    with engine.reply(engine.step(rows, timeout_s=600)):
        pass
    ask, hear = engine._slots.c, engine._reader._c  # noqa: SLF001 - to go around it
    ring, heard = engine._ring.handle, ffi.new("struct pp3_heard *")  # noqa: SLF001
    found: dict[str, tuple[float, float | None]] = {
        "step": (
            asked(engine, lambda _: engine.step(rows, timeout_s=600), batches // 20),
            asked(engine, lambda _: lib.pp3_ask_step(ask, ring, 600.0), batches // 20),
        )
    }
    ticket = engine.step(rows, timeout_s=600)
    same = [ticket] * 1000
    reply = engine.reply(ticket)
    found["reply"] = (
        least(lambda t: engine.reply(t), same, batches),  # noqa: PLW0108 - as the C call
        least(lambda t: lib.pp3_hear(hear, ring, t, NEVER_NS, 0, heard), same, batches),
    )
    engine.release(ticket)  # again changes nothing

    def leave(_: int) -> None:
        with reply:
            pass

    let_go = least(lambda t: lib.pp3_let_go(hear, ring, t), same, batches)
    found["with reply: ..."] = (least(leave, same, batches), let_go)
    release = least(lambda t: engine.release(t), same, batches)  # noqa: PLW0108
    found["release"] = (release, let_go)
    commit = least(lambda _: engine.commit(0, (5, 6, 7)), same[:100], batches // 20)
    found["commit"] = (commit, None)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=400)
    batches = parser.parse_args().batches
    profile = Profile.sampled(vocab=64, depth=5, max_slots=4, max_positions=1 << 20)
    empty = least(lambda _: None, [0] * 1000, batches)
    with Engine.create(
        profile, worker="unix://@pp3shm-nobody", rounds=ROUNDS, connect_timeout_s=0
    ) as engine:
        found = measure(engine, batches)
    print(f"pp3shm {pp3shm.__version__}; nanoseconds, least of {batches} batches")
    print(f"{'call':16} {'ours':>6} {'cffi':>6}")
    for name, (whole, by_cffi) in found.items():
        beside = f"{by_cffi - empty:6.0f}" if by_cffi is not None else f"{'':6}"
        print(f"{name:16} {whole - empty:6.0f} {beside}")


if __name__ == "__main__":
    main()
