"""What a region is, in numbers: its shape, and the record that a peer attaches by."""

import time
from dataclasses import dataclass
from typing import Any

from pp3shm._core import ffi, lib
from pp3shm.errors import RegionError

SEGMENTS = ("control", "slots", "pages", "failed", "acks")
"""The segments, in the order of ``pp3_shape.bytes``."""

PROXY, RANK = 1, 2
"""Roles of an attach record."""

WRITABLE: dict[int, dict[str, bool]] = {
    PROXY: {"control": True, "slots": False, "pages": True},
    RANK: {"control": True, "pages": False, "failed": False, "acks": True},
}
"""Which segments a role maps, and whether it may write them."""

RECORD_BYTES: int = ffi.sizeof("struct pp3_record")
HEADER_BYTES: int = lib.PP3_ENTRIES_AT
_BYTE_ORDER = 0x01020304
_CLOCK_TOLERANCE_NS = 60_000_000_000  # a record is used at once, or its peer stalled
_SIZES = (
    "rounds",
    "pages",
    "ranks",
    "page_bytes",
    "request_bytes",
    "failed_bytes",
    "head_bytes",
    "slots",
    "max_positions",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How many of what, and how large; all sizes in bytes unless named otherwise.

    Attributes:
        rounds: entries of the ring, the rounds that can be in flight.
        page_bytes: room of a reply.
        request_bytes: room of a request.
        failed_bytes: size of a failed buffer; at most a page.
        head_bytes: its part that changes with the round: round and statuses.
        slots: request slots.
        max_positions: tokens in a slot.
        ranks: readers of each reply; rank 0 is the engine's own process.
        spares: pages beyond one for each entry; as many as entries if None.
    """

    rounds: int
    page_bytes: int
    request_bytes: int
    failed_bytes: int
    head_bytes: int
    slots: int
    max_positions: int
    ranks: int = 1
    spares: int | None = None


def c_shape(shape: Shape, layout_id: bytes, epoch: bytes) -> Any:
    """``struct pp3_shape *`` of a new region.

    Raises:
        RegionError: a size out of bounds, an id of another length.
    """
    if len(layout_id) != 32:
        raise RegionError("layout_id", "32 bytes", f"{len(layout_id)} bytes")
    if len(epoch) != 16:
        raise RegionError("epoch", "16 bytes", f"{len(epoch)} bytes")
    made = ffi.new("struct pp3_shape *")
    for name in _SIZES:
        value = (
            shape.rounds + (shape.rounds if shape.spares is None else shape.spares)
            if name == "pages"
            else getattr(shape, name)
        )
        try:
            setattr(made, name, value)
        except (OverflowError, TypeError) as error:
            raise RegionError(name, "an integer of 32 bits", value) from error
    made.layout_id, made.epoch = layout_id, epoch
    fault = lib.pp3_shape_fill(made)
    if fault != ffi.NULL:
        name = ffi.string(fault).decode()
        raise RegionError(name, "a size within the ring's limits", getattr(made, name))
    return made


def new_record(shape: Any) -> Any:
    """``struct pp3_record *`` of a shape and this moment, role 0."""
    record = ffi.new("struct pp3_record *")
    lib.pp3_record_fill(record, shape)
    return record


def read_record(data: bytes) -> Any:
    """Checks what stands in a record by itself.

    Args:
        data: as sent.

    Returns:
        ``struct pp3_record *``, a private copy.

    Raises:
        RegionError: another length, magic, ABI, byte order, role, or clock.
    """
    if len(data) != RECORD_BYTES:
        raise RegionError("record", f"{RECORD_BYTES} bytes", f"{len(data)} bytes")
    record = ffi.new("struct pp3_record *")
    ffi.memmove(record, data, RECORD_BYTES)
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    _expect("record.magic", lib.pp3_record_magic(), record.magic, hexadecimal=True)
    check_shape(record.shape, "record")
    if record.role not in WRITABLE:
        raise RegionError("record.role", sorted(WRITABLE), record.role)
    if not 0 <= now - record.clock_ns < _CLOCK_TOLERANCE_NS:
        raise RegionError(
            "record.clock_ns",
            f"this machine's CLOCK_MONOTONIC, {now}, or a little less",
            record.clock_ns,
        )
    return record


def check_shape(shape: Any, place: str) -> None:
    """Whether a shape that somebody else wrote is one of this version's.

    Args:
        shape: ``struct pp3_shape``, a private copy.
        place: where it stood, for the error.

    Raises:
        RegionError: another ABI or byte order, or sizes that no region has.
    """
    _expect(f"{place}.abi", lib.PP3_ABI, shape.abi)
    # the numbers were read in this machine's order already
    _expect(f"{place}.byte_order", _BYTE_ORDER, shape.byte_order, hexadecimal=True)
    checked = ffi.new("struct pp3_shape *", shape)
    fault = lib.pp3_shape_fill(checked)
    if fault != ffi.NULL:
        name = ffi.string(fault).decode()
        raise RegionError(
            f"{place}.{name}", "a size within limits", getattr(shape, name)
        )
    for index, name in enumerate(SEGMENTS):
        _expect(f"{place}.bytes[{name}]", checked.bytes[index], shape.bytes[index])


def read_header(head: bytes) -> Any:
    """The shape that stands in a copy of a region's header, which may hold anything.

    Args:
        head: the first ``HEADER_BYTES`` of a control segment.

    Returns:
        ``struct pp3_shape *``, a private copy.

    Raises:
        RegionError: too short, another magic, or no shape of this version.
    """
    if len(head) < HEADER_BYTES:
        raise RegionError("header", f"{HEADER_BYTES} bytes", f"{len(head)} bytes")
    copy = ffi.new("uint8_t[]", HEADER_BYTES + 8)  # malloc's alignment
    ffi.memmove(copy, head, HEADER_BYTES)
    found = lib.pp3_region_magic(copy)
    _expect("region.magic", lib.pp3_magic(), found, hexadecimal=True)
    shape = ffi.new("struct pp3_shape *")
    lib.pp3_region_shape(copy, shape)
    check_shape(shape[0], "region")
    return shape


def _expect(
    place: str, expected: int, found: int, *, hexadecimal: bool = False
) -> None:
    if expected != found:
        raise RegionError(
            place,
            hex(expected) if hexadecimal else expected,
            hex(found) if hexadecimal else found,
        )


def compare(control: Any, ours: Any) -> None:
    """The header against the record; the magic first, for it was stored last.

    Args:
        control: address of the control segment.
        ours: ``struct pp3_shape`` of the record.

    Raises:
        RegionError: naming the first field that differs.
    """
    found = lib.pp3_region_magic(control)
    _expect("region.magic", lib.pp3_magic(), found, hexadecimal=True)
    theirs = ffi.new("struct pp3_shape *")  # one look at each word
    lib.pp3_region_shape(control, theirs)
    for name in ("abi", "byte_order", *_SIZES, "zero"):
        _expect(f"region.{name}", getattr(ours, name), getattr(theirs, name))
    for index, name in enumerate(SEGMENTS):
        _expect(f"region.bytes[{name}]", ours.bytes[index], theirs.bytes[index])
    for name in ("layout_id", "epoch"):
        mine = bytes(ffi.buffer(getattr(ours, name))).hex()
        header = bytes(ffi.buffer(getattr(theirs, name))).hex()
        if mine != header:
            raise RegionError(f"region.{name}", mine, header)
