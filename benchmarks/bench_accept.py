"""What does checking and scattering a REPLY cost?

    REPLY frame (5412 bytes for B4, depth 5) --- ten checks, CRC, slot order ---> page
    |<------------------------------- timed ------------------------------->|

- ``memcpy``: the frame's bytes copied to the page and nothing else, the floor;
- ``accept, PATH``: ``pp3_accept``, by each way to compute a CRC that this CPU has;
- ``numpy``: the same checks, vectorised over the whole frame, with ``zlib.crc32``;
- ``reference``: ``check_reply`` and ``scatter_reply``, written to be read.

Eight frames in turn, as after ``recv``: in the cache. Outside the timed part every way
must give the reference's page, and refuse one changed bit at each of many places.

    python benchmarks/bench_accept.py [--json FILE] [--seconds S]
"""

import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

import _harness
import numpy as np

from pp3shm._core import ffi, lib
from pp3shm.errors import ReplyError
from pp3shm.layout import tables
from pp3shm.layout.core import c_layout
from pp3shm.layout.frames import Kind, Step, StepRow, encode_frame, encode_step
from pp3shm.layout.profile import Profile
from pp3shm.layout.replies import Reply, encode_reply
from pp3shm.layout.reply import ReplyLayout
from pp3shm.layout.tables import FLAG_SAMPLED, HEADER_BYTES, MASS
from pp3shm.layout.validate import check_reply, scatter_reply
from pp3shm.proposal.proposal import propose_chain

VOCAB, DEPTH, FRAMES = 129280, 5, 8
SESSION = bytes(range(16))
PATHS = ("table", "pclmul", "arm", "wide")
CRC_AT = -tables.CRC_BYTES

Way = Callable[[int], bytearray | None]
"""Takes the number of a frame; its page, or None where it is refused."""


class Given:
    """Frames, the STEP they answer, and pages to put them in.

    Args:
        slots: requests, 1 to 4; the rows of the STEP stand in descending slots.
        frames: in place of valid ones.
    """

    def __init__(self, slots: int, frames: list[bytes] | None = None) -> None:
        self.profile = Profile.sampled(
            vocab=VOCAB, depth=DEPTH, max_slots=slots, max_positions=4096
        )
        self.rows = tuple(
            StepRow(slot, slot + 2, 100, 0, (1, 2, 3), sampled=True)
            for slot in reversed(range(slots))
        )
        self.step = encode_step(self.profile, Step(9, self.rows))
        rng = np.random.default_rng(slots)
        self.frames = frames or [self._frame(rng) for _ in range(FRAMES)]
        self.layout = ReplyLayout(slots, DEPTH, sampled=True)
        self.pages = [bytearray(self.layout.size) for _ in self.frames]

    def _frame(self, rng: np.random.Generator) -> bytes:
        n = len(self.rows)
        drawn = propose_chain(
            rng.normal(0, 3, (n, DEPTH, VOCAB)).astype(np.float32),
            keys=[(row.slot, 1) for row in self.rows],
            round=9,
            positions=[row.position for row in self.rows],
        )
        reply = Reply(
            9,
            np.array([row.generation for row in self.rows], np.uint32),
            np.zeros(n, np.int32),
            drawn.tokens,
            drawn.confidence,
            np.ones(n, np.int32),
            drawn.ids,
            drawn.q,
        )
        body = encode_reply(self.profile, reply)
        return encode_frame(Kind.REPLY, SESSION, 1, body, FLAG_SAMPLED)


# -- the ways ----------------------------------------------------------------------


def copy(given: Given) -> Way:
    """As many bytes as the page has, and no look at them."""
    size = given.layout.size

    def call(i: int) -> bytearray:
        page = given.pages[i]
        ffi.memmove(page, given.frames[i], size)
        return page

    return call


def accept(given: Given) -> Way:
    """The C core, by the path that was forced."""
    layout, fault = c_layout(given.profile), ffi.new("struct pp3_fault *")
    step = ffi.from_buffer(given.step)
    frames = [ffi.from_buffer(frame) for frame in given.frames]
    pages = [ffi.from_buffer("uint8_t[]", page) for page in given.pages]

    def call(i: int) -> bytearray | None:
        frame = frames[i]
        wrong = lib.pp3_accept(
            layout, step, frame, len(frame), SESSION, 1, pages[i], fault
        )
        return None if wrong else given.pages[i]

    return call


def reference(given: Given) -> Way:
    """The readable one."""

    def call(i: int) -> bytearray | None:
        try:
            check_reply(given.profile, given.step, given.frames[i], SESSION, 1)
        except ReplyError:
            return None
        given.pages[i][:] = scatter_reply(given.profile, given.step, given.frames[i])
        return given.pages[i]

    return call


class Vectorised:
    """The ten checks as whole-array expressions; all is prepared that can be.

    Args:
        given: all rows are of T > 0. A frame with a failed row is refused like a bad
            one: none is timed.
    """

    def __init__(self, given: Given) -> None:
        n = len(given.rows)
        packing = tables.reply_packing(n, DEPTH, sampled=True)
        size = tables.frame_bytes(packing)
        self._given = given
        self._size = size
        self._head = struct.pack(
            "<4sHHIIQ16s", b"PP3F", 1, 4, FLAG_SAMPLED, size - HEADER_BYTES, 1, SESSION
        ) + struct.pack("<QIIII", 9, n, DEPTH, FLAG_SAMPLED, 0)
        at = HEADER_BYTES + packing.offset["trailer"]
        self._trailer = slice(at, at + tables.TRAILER.size)
        self._trailer_is = struct.pack("<4sIII", b"PP3Q", 1, n, DEPTH)
        self._views = [
            packing.views(memoryview(frame)[HEADER_BYTES:]) for frame in given.frames
        ]
        self._to = [given.layout.views(page) for page in given.pages]
        self._slots = np.array([row.slot for row in given.rows])
        self._generations = np.array([row.generation for row in given.rows], np.uint32)

    def __call__(self, i: int) -> bytearray | None:
        """Check and scatter."""
        frame, got = self._given.frames[i], self._views[i]
        if (
            len(frame) != self._size
            or frame[: len(self._head)] != self._head
            or zlib.crc32(memoryview(frame)[HEADER_BYTES:CRC_AT])
            != int.from_bytes(frame[CRC_AT:], "little")
            or frame[self._trailer] != self._trailer_is
            or not self._values_ok(got)
        ):
            return None
        to = self._to[i]._asdict()
        to["round"][...] = 9
        for name in ("status", "tokens", "confidence", "mask", "ids", "q"):
            to[name][self._slots] = got[name]
        return self._given.pages[i]

    def _values_ok(self, got: dict[str, Any]) -> bool:
        tokens, ids, q = got["tokens"], got["ids"], got["q"]
        confidence = got["confidence"]
        if (
            (got["generation"] != self._generations).any()
            or got["status"].any()
            or (got["mask"] != 1).any()
            or tokens.min() < 0
            or tokens.max() >= VOCAB
            or not ((confidence >= 0) & (confidence <= 1)).all()
            or ids[..., 0].min() < 0
            or ids[..., -1].max() >= VOCAB
            or (ids[..., 1:] <= ids[..., :-1]).any()
            or np.signbit(q).any()
            or not (q <= 1).all()
        ):
            return False
        scaled = q * np.float32(MASS)  # exact: a shift of the exponent
        counts = scaled.astype(np.int64)
        drawn = (ids == tokens[..., None]) & (counts > 0)
        whole = (counts == scaled).all() and (counts.sum(axis=-1) == MASS).all()
        return bool(whole and drawn.any(axis=-1).all())


# -- outside the timed part --------------------------------------------------------


def altered(given: Given) -> list[bytes]:
    """Frames with one bit changed: with the old CRC, and with one made to fit.

    Confidence is left out where the CRC fits: other bits of it are as good.
    """
    good, found = given.frames[0], []
    packing = tables.reply_packing(len(given.rows), DEPTH, sampled=True)
    free = range(packing.offset["confidence"], packing.offset["trailer"])
    for at in range(0, len(good) + CRC_AT, 7):
        data = bytearray(good)
        data[at] ^= 1 << at % 8
        found.append(bytes(data))
        if at >= HEADER_BYTES and at - HEADER_BYTES not in free:
            crc = zlib.crc32(data[HEADER_BYTES:CRC_AT])
            found.append(bytes(data[:CRC_AT]) + crc.to_bytes(4, "little"))
    return found


def check(slots: int, make: Callable[[Given], Way]) -> None:
    """A way gives the reference's pages, and judges altered frames like it."""
    given = Given(slots)
    way, shown = make(given), reference(Given(slots))
    for i in range(FRAMES):
        if way(i) != shown(i):
            sys.exit(f"{make.__name__}: another page than the reference's, frame {i}")
    bad = altered(given)
    way, shown = make(Given(slots, bad)), reference(Given(slots, bad))
    for i in range(len(bad)):
        if (way(i) is None) != (shown(i) is None):
            sys.exit(f"{make.__name__}: other judgement than the reference's, {i}")


# -- the table ---------------------------------------------------------------------


def ways() -> list[tuple[str, int, Callable[[Given], Way]]]:
    """Name, CRC path (-1: none of its own) and maker of each."""
    best = lib.pp3_crc_path()
    paths = [path for path in range(len(PATHS)) if lib.pp3_crc_force(path) == 0]
    lib.pp3_crc_force(best)
    return [
        *((f"accept, {PATHS[path]}", path, accept) for path in paths),
        ("numpy", -1, Vectorised),
        ("reference", -1, reference),
    ]


def in_turn(way: Way) -> Callable[[int], object]:
    """The way, over the frames one after the other."""
    return lambda i: way(i % FRAMES)


def measure(slots: int, seconds: float) -> list[dict[str, Any]]:
    """One group: all ways for a number of requests."""
    rows: list[dict[str, Any]] = []
    best, given = lib.pp3_crc_path(), Given(slots)
    size = len(given.frames[0])
    base = 0.0
    for name, path, make in [("memcpy", -1, copy), *ways()]:
        if path >= 0:
            lib.pp3_crc_force(path)
        if make is not copy:
            check(slots, make)
        way = make(given)
        spent = _harness.timed(in_turn(way), seconds)
        found = _harness.quantiles(spent)
        base = base or found["p50_us"]
        row = {"group": f"B{slots} depth {DEPTH}", "way": name, "bytes": size, **found}
        row["gb_per_s"] = size / found["p50_us"] * 1e-3
        row["times_memcpy"] = found["p50_us"] / base
        rows.append(row)
        print(f"{row['group']:14}{name:18}{_harness.shown(found)}"
              f"{row['gb_per_s']:9.2f}{row['times_memcpy']:11.1f}")  # fmt: skip
    lib.pp3_crc_force(best)
    return rows


def main() -> None:
    """Both groups."""
    parser = _harness.arguments(__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="per measurement")
    options = parser.parse_args()
    where = _harness.machine(
        pinned_core=_harness.pin(), crc_path=PATHS[lib.pp3_crc_path()], vocab=VOCAB
    )
    print(f"{'':32}{_harness.HEAD}{'GB/s':>9}{'x memcpy':>11}")
    results = [row for slots in (1, 4) for row in measure(slots, options.seconds)]
    _harness.write(options.json, where, results)


if __name__ == "__main__":
    main()
