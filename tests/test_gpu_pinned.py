"""Registration with CUDA: what fails leaves everything else as it was."""

import itertools
import mmap
import subprocess

import numpy as np
import pytest

from pp3shm import Engine, Profile, Row, Worker
from pp3shm.worker.drafters import TableDrafter

torch = pytest.importorskip("torch", reason="needs the extra gpu")
gpu = pytest.importorskip("pp3shm.gpu")
from pp3shm.gpu.pinned import PORTABLE, READ_ONLY, LoadedRuntime, spans  # noqa: E402

UNIT = mmap.PAGESIZE
# invalid value (nothing or a bad range), out of memory (too much, or a limit on locked
# memory), already registered, not permitted, not supported, unknown
REFUSALS = (1, 2, 712, 800, 801, 999)
STICKY = 700  # an illegal address: the context is gone, nothing takes it back


class FakeRuntime:
    """CUDA as far as registration goes: a failed call stays behind as last error."""

    def __init__(self, refusal=0, after=0):
        self.refusal, self.after = refusal, after
        self.held, self.flags, self.last = {}, set(), 0

    def register(self, address, size, flags):
        self.flags.add(flags)
        if self.refusal and len(self.held) >= self.after:
            self.last = self.refusal
            return self.refusal
        assert address % UNIT == 0
        assert size % UNIT == 0
        assert size > 0
        self.held[address] = size
        return 0

    def unregister(self, address):
        if self.held.pop(address, None) is None:
            self.last = 713
            return 713
        return 0

    def last_error(self):
        found = self.last
        if found != STICKY:
            self.last = 0
        return found

    def words(self, code):
        return f"words of {code}"


@pytest.fixture
def engine():
    profile = Profile.sampled(vocab=48, depth=5, max_slots=2, max_positions=512)
    table = np.random.default_rng(3).normal(size=(48, 48)).astype(np.float32)
    with (
        Worker(TableDrafter(table), profile, ["tcp://127.0.0.1:0"]) as worker,
        Engine.create(profile, worker=worker.addresses[0], proxy="thread") as made,
    ):
        yield made


def _round(engine):
    engine.reset(0, [1])
    with engine.reply(engine.step([Row(0, 9)], timeout_s=10)) as reply:
        page = gpu.Page(engine.layout, engine.buffers[reply.place])
        return page.load().status.tolist(), reply.status.tolist()


def test_every_page_is_registered_once_and_let_go_before_the_mapping(engine):
    runtime = FakeRuntime()
    pinned = gpu.pin(engine, runtime=runtime)
    assert pinned.reason == ""
    assert runtime.flags == {PORTABLE}
    starts = np.frombuffer(engine.buffers[0], np.uint8).ctypes.data
    assert any(at <= starts < at + size for at, size in runtime.held.items())
    stats = engine.stats()
    assert stats["pinned_bytes"] == sum(runtime.held.values()) > 0
    assert stats["pin_error"] == 0
    found, expected = _round(engine)
    assert expected == found
    engine.close()
    assert runtime.held == {}


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refused_registration_leaves_rounds_and_the_runtime_as_they_were(
    engine, refusal, after
):
    runtime = FakeRuntime(refusal, after)
    pinned = gpu.pin(engine, runtime=runtime)
    assert runtime.held == {}
    assert runtime.last == 0, "the next call of somebody else would report it"
    assert f"error {refusal} (words of {refusal})" in pinned.reason
    stats = engine.stats()
    assert (stats["pinned_bytes"], stats["pin_error"]) == (0, refusal)
    found, expected = _round(engine)
    assert expected == found


def test_an_error_that_stays_is_told_as_one(engine):
    pinned = gpu.pin(engine, runtime=FakeRuntime(STICKY))
    assert "error 700 stays" in pinned.reason
    assert _round(engine)


def test_where_no_runtime_is_loaded_pages_are_read_unpinned(engine):
    if LoadedRuntime.find() is not None:
        pytest.skip("a CUDA runtime is loaded here")
    pinned = gpu.pin(engine)
    assert pinned.reason == "CUDA runtime: expected libcudart loaded, found none"
    assert engine.stats()["pinned_bytes"] == 0
    assert _round(engine)


def test_memory_mapped_read_only_is_registered_as_such():
    runtime = FakeRuntime()
    with mmap.mmap(-1, 4 * UNIT) as area:
        pinned = gpu.Pinned([area], runtime=runtime, read_only=True)
        assert runtime.flags == {PORTABLE | READ_ONLY}
        pinned.close()
        pinned.close()
    assert runtime.held == {}


def test_nothing_to_register_is_said():
    for buffers in ([], [b""]):
        pinned = gpu.Pinned(buffers, runtime=FakeRuntime())
        assert pinned.reason == "buffers: expected some bytes, found none"


def test_spans_cover_every_buffer_and_never_overlap():
    rng = np.random.default_rng(7)
    with mmap.mmap(-1, 64 * UNIT) as area:
        view = memoryview(area)
        base = np.frombuffer(area, np.uint8).ctypes.data
        for _ in range(200):
            starts = rng.integers(0, 63 * UNIT, 5)
            sizes = rng.integers(0, UNIT, 5)
            parts = [view[s : s + n] for s, n in zip(starts, sizes, strict=True)]
            found = list(spans(parts))
            for start, size in zip(starts, sizes, strict=True):
                place = range(base + start, base + start + size)
                assert not size or any(
                    span.start <= place.start and place.stop <= span.stop
                    for span in found
                )
            for one, other in itertools.pairwise(found):
                assert one.stop <= other.start
            assert sum(map(len, found)) <= 10 * UNIT
            parts.clear()
        view.release()


LIBCUDART = """
static int last, held;
int cudaHostRegister(void *at, unsigned long n, unsigned flags)
{ return flags != 1 || n == 0 || (unsigned long)at % 4096 ? (last = 1) : (held++, 0); }
int cudaHostUnregister(void *at)
{ (void)at; return held == 0 ? (last = 713) : (held--, 0); }
int cudaGetLastError(void) { int found = last; last = 0; return found; }
const char *cudaGetErrorString(int code)
{ return code == 1 ? "invalid argument" : "?"; }
"""


def test_the_loaded_library_is_found_and_called(tmp_path):
    source, library = tmp_path / "cudart.c", tmp_path / "libcudart.so.12"
    source.write_text(LIBCUDART)
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True
    )
    runtime = LoadedRuntime(str(library))
    if (found := LoadedRuntime.find()) is not None:
        assert found.words(1)
    with mmap.mmap(-1, UNIT) as area:
        pinned = gpu.Pinned([area], runtime=runtime)
        assert pinned.registered_bytes == UNIT
        pinned.close()
        refused = gpu.Pinned([area], runtime=runtime, read_only=True)
        assert "error 1 (invalid argument)" in refused.reason
    assert runtime.last_error() == 0
