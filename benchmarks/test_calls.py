"""What the calls of a round cost from Python.

    python -m pytest benchmarks/test_calls.py [--benchmark-json=FILE]

Each call is timed as a user makes it, and beside it its C function by cffi, as any
other function of the core is called: arguments in a tuple, the interpreter's lock let
go and taken again. What Python adds to the C function is at most what the call takes as
a whole. Rounds are failed by a proxy process without a worker: nothing is waited for in
what is timed. Look at the least: on a busy machine that is what the code costs.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pp3shm import Engine, Profile, Row, Status
from pp3shm._core import ffi, lib

ROUNDS = 512
NEVER_NS = 2**64 - 1
ROWS = [Row(slot) for slot in range(4)]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """Its proxy has nobody to ask, so every row of a round fails."""
    profile = Profile.sampled(vocab=64, depth=5, max_slots=4, max_positions=1 << 22)
    with Engine.create(
        profile, worker="unix://@pp3shm-nobody", rounds=ROUNDS, connect_timeout_s=0
    ) as made:
        for row in ROWS:
            made.reset(row.slot, [1, 2, 3])
        yield made


@pytest.fixture
def ticket(engine: Engine) -> Iterator[int]:
    """A round that has failed and is not let go."""
    asked = engine.step(ROWS, timeout_s=600)
    assert set(engine.reply(asked).status) == {Status.PEER_DIED}
    yield asked
    engine.release(asked)


def cffi(engine: Engine) -> tuple[Any, Any, Any]:
    """What C functions are called with: the asking side, the reading one, the ring."""
    return engine._slots.c, engine._reader._c, engine._ring.handle  # noqa: SLF001


@pytest.mark.parametrize("way", ["ours", "cffi"])
@pytest.mark.benchmark(group=f"{ROUNDS} x engine.step(rows)")
def test_step(benchmark: Any, engine: Engine, way: str) -> None:
    """Each of them begins a round; between batches all are let go."""
    ask, _, ring = cffi(engine)
    held: list[int] = []

    def one() -> int:
        if way == "ours":
            return engine.step(ROWS, timeout_s=600)
        return int(lib.pp3_ask_step(ask, ring, 600.0))

    def batch() -> None:
        held.extend(one() for _ in range(ROUNDS))

    def let_go() -> None:
        while held:
            ticket = held.pop()
            assert set(engine.reply(ticket).status) == {Status.PEER_DIED}
            engine.release(ticket)

    benchmark.pedantic(batch, setup=let_go, rounds=100, warmup_rounds=2)
    assert len(held) == ROUNDS
    let_go()


@pytest.mark.parametrize("way", ["ours", "cffi"])
@pytest.mark.benchmark(group="engine.reply(ticket)")
def test_reply(benchmark: Any, engine: Engine, ticket: int, way: str) -> None:
    """The same round again and again, which is resolved."""
    _, hear, ring = cffi(engine)
    if way == "ours":
        assert benchmark(engine.reply, ticket).round == ticket
    else:
        heard = ffi.new("struct pp3_heard *")
        benchmark(lib.pp3_hear, hear, ring, ticket, NEVER_NS, 0, heard)
        assert heard.round == ticket


@pytest.mark.parametrize("way", ["release", "with reply", "cffi"])
@pytest.mark.benchmark(group="engine.release(ticket), leaving a reply")
def test_release(benchmark: Any, engine: Engine, ticket: int, way: str) -> None:
    """Again and again, which changes nothing."""
    _, hear, ring = cffi(engine)
    reply = engine.reply(ticket)

    def leave() -> None:
        with reply:
            pass

    calls: dict[str, tuple[Callable[..., object], tuple[Any, ...]]] = {
        "release": (engine.release, (ticket,)),
        "with reply": (leave, ()),
        "cffi": (lib.pp3_let_go, (hear, ring, ticket)),
    }
    call, arguments = calls[way]
    assert benchmark(call, *arguments) in (None, 0)


@pytest.mark.benchmark(group="engine.commit(slot, tokens)")
def test_commit(benchmark: Any, engine: Engine) -> None:
    """Three tokens."""
    engine.reset(0, [1])
    benchmark.pedantic(engine.commit, (0, (5, 6, 7)), rounds=100, iterations=1000)
    assert engine.position(0) % 3 == 1
