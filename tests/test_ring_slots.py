"""Slots: one consistent state or an error, whatever is written meanwhile."""

import array
import contextlib
import dataclasses
import subprocess
import sys
import threading

import pytest

from pp3shm.errors import RingError
from pp3shm.ring.record import PROXY, Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd, ProxyEnd

MOST = 40
SHAPE = Shape(
    rounds=1,
    page_bytes=64,
    request_bytes=64,
    failed_bytes=16,
    head_bytes=16,
    slots=3,
    max_positions=MOST,
)


@pytest.fixture
def engine():
    with EngineEnd(Region.create(SHAPE, layout_id=bytes(32)), bytes(48)) as end:
        yield end


@pytest.fixture
def proxy(engine):
    """As a process has it: slots mapped read-only."""
    record = engine.region.record_for(PROXY, owner=engine.add_thread_owner())
    with ProxyEnd(Region.attach(record, engine.region.share(PROXY)), -1) as end:
        yield end


def _tokens(*values: int) -> "array.array[int]":
    return array.array("i", values)


def _read(end: ProxyEnd, slot: int) -> tuple[int, bool, list[int]]:
    out = array.array("i", [-9] * MOST)
    generation, live, length = end.slot_read(slot, out)
    assert out[length:] == array.array("i", [-9] * (MOST - length))
    return generation, live, list(out[:length])


def test_a_slot_never_reset_is_not_live(proxy):
    """All zero is the valid initial state."""
    assert _read(proxy, 2) == (0, False, [])


def test_reset_append_and_close_are_what_a_proxy_reads(engine, proxy):
    """Generation, liveness and the whole committed prefix."""
    engine.slot_reset(1, 0, _tokens(5, -6))
    assert _read(proxy, 1) == (0, True, [5, -6])
    engine.slot_append(1, _tokens(7))
    engine.slot_append(1, _tokens())
    assert _read(proxy, 1) == (0, True, [5, -6, 7])
    engine.slot_close(1)
    assert _read(proxy, 1) == (0, False, [5, -6, 7])
    engine.slot_reset(1, 9, _tokens())
    assert _read(proxy, 1) == (9, True, [])
    assert _read(proxy, 0) == (0, False, [])


@pytest.mark.parametrize("generation", [0, 6, 7])
def test_generations_only_grow(engine, proxy, generation):
    """Also over a close; a refusal changes nothing."""
    engine.slot_reset(0, 7, _tokens(1))
    for _ in range(2):
        with pytest.raises(RingError, match="a larger generation"):
            engine.slot_reset(0, generation, _tokens(2))
        engine.slot_close(0)
    assert _read(proxy, 0) == (7, False, [1])
    engine.slot_reset(0, 2**32 - 1, _tokens(3))
    assert _read(proxy, 0) == (2**32 - 1, True, [3])


def test_a_slot_is_never_longer_than_max_positions(engine, proxy):
    """Refused whole: not one token of it is written."""
    full = _tokens(*range(MOST))
    with pytest.raises(RingError, match=f"at most {MOST}"):
        engine.slot_reset(0, 1, _tokens(*range(MOST + 1)))
    engine.slot_reset(0, 1, full)
    with pytest.raises(RingError, match=f"at most {MOST}"):
        engine.slot_append(0, _tokens(1))
    assert _read(proxy, 0) == (1, True, list(full))


def test_a_closed_slot_takes_no_tokens(engine):
    """Nor one that was never opened."""
    with pytest.raises(RingError, match="a live one"):
        engine.slot_append(0, _tokens(1))
    engine.slot_reset(0, 1, _tokens(1))
    engine.slot_close(0)
    with pytest.raises(RingError, match="a live one"):
        engine.slot_append(0, _tokens(1))


@pytest.mark.parametrize("tokens", [b"abcd", array.array("q", [1]), array.array("f")])
def test_tokens_are_int32(engine, tokens):
    """Anything else would be read as other numbers."""
    with pytest.raises(RingError, match="int32"):
        engine.slot_reset(0, 1, tokens)


def test_a_slot_out_of_range_is_refused(engine, proxy):
    """By both ends."""
    calls = [
        lambda: engine.slot_reset(3, 1, _tokens()),
        lambda: engine.slot_append(3, _tokens()),
        lambda: engine.slot_close(3),
        lambda: _read(proxy, 3),
    ]
    for call in calls:
        with pytest.raises(RingError):
            call()


def test_a_buffer_too_short_is_told_the_length(engine, proxy):
    """Nothing is written behind its end."""
    engine.slot_reset(0, 1, _tokens(1, 2, 3))
    out = array.array("i", [-1, -1, -1])
    with pytest.raises(RingError, match="found 3"):
        proxy.slot_read(0, memoryview(out)[:2])
    assert out == array.array("i", [-1, -1, -1])


def test_a_proxy_cannot_write_a_slot(proxy):
    """Its mapping is read-only, and it is no engine."""
    assert proxy.region.view("slots").readonly


def test_a_length_out_of_bounds_is_an_error(engine, proxy):
    """The length steers: it is bounded by the local record."""
    engine.region.view("slots")[16:24] = (MOST + 1).to_bytes(8, "little")
    with pytest.raises(RingError, match=f"found {MOST + 1}"):
        proxy.slot_read(0, array.array("i", [0] * 100))


def test_a_slot_written_all_the_while_is_an_error_not_a_wait(engine, proxy):
    """An odd version that stays: its writer was stopped."""
    engine.slot_reset(0, 1, _tokens(1))
    engine.region.view("slots")[0] |= 1
    with pytest.raises(RingError, match="being written"):
        _read(proxy, 0)


def test_a_reader_sees_one_generation_whole_while_slots_are_reset():
    """Generation g holds nothing but g; long ones, so that reads and resets meet."""
    most = 20_000
    shape = dataclasses.replace(SHAPE, max_positions=most)
    over = threading.Event()
    torn: list[object] = []
    seen: set[int] = set()
    with EngineEnd(Region.create(shape, layout_id=bytes(32)), bytes(48)) as engine:

        def read() -> None:
            out = array.array("i", [0] * most)
            with ProxyEnd.thread(engine) as proxy:
                while not over.is_set():
                    with contextlib.suppress(RingError):  # reset at each of many looks
                        generation, _, n = proxy.slot_read(0, out)
                        seen.add(generation)
                        if n < most - 3 or out[:n] != _tokens(generation) * n:
                            torn.append((generation, n, out[0], out[n - 1]))

        readers = [threading.Thread(target=read) for _ in range(2)]
        engine.slot_reset(0, 1, _tokens(1) * (most - 3))
        for reader in readers:
            reader.start()
        for generation in range(2, 2000):
            engine.slot_reset(0, generation, _tokens(generation) * (most - 3))
            engine.slot_append(0, _tokens(generation) * 3)
            if generation % 7 == 0:
                engine.slot_close(0)
        over.set()
        for reader in readers:
            reader.join()
    assert torn == []
    assert len(seen) > 1


def test_numpy_is_not_needed_for_any_of_it():
    """The ring knows bytes; arrays are the layout's."""
    code = "import sys, pp3shm.ring.ring, pp3shm.ring.handover, pp3shm.ring.watchdog\n"
    code += "print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
