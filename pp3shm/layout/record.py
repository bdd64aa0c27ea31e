"""Field, Record, Array, Packing: sizes, offsets, codecs and views from one table.

A table is written once, in the order of the wire page. Everything else (byte
counts, offsets, NumPy views, the assertions about the C structs) is derived from it.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import FrameError

# Longer findings are cut in messages: a peer chooses what stands in them.
SHOWN_CHARACTERS = 80


def shown(found: object) -> object:
    """What a message may say of a value that a peer chose.

    Integers below 2**64 stay what they are; all else becomes short printable ASCII.
    """
    if type(found) is int and -(2**63) <= found < 2**64:
        return found
    if type(found) is int:
        return f"an integer of {found.bit_length()} bits"
    text = ascii(found)
    if type(found) is str and text == f"'{found}'":
        text = found
    if len(text) > SHOWN_CHARACTERS:
        text = f"{text[:SHOWN_CHARACTERS]}... ({len(text)} characters)"
    return text


class Rule(NamedTuple):
    """What a value must be, in words and as a predicate."""

    wanted: str
    holds: Callable[[Any], bool]


def equals(value: object) -> Rule:
    """The one value, of the very same type: ``True`` is not 1."""
    return Rule(
        str(shown(value)), lambda found: type(found) is type(value) and found == value
    )


def among(*values: object) -> Rule:
    """One of a few values, of the very same type."""
    pairs = [(type(value), value) for value in values]
    return Rule(
        " or ".join(str(value) for value in values),
        lambda found: (type(found), found) in pairs,
    )


def between(low: int, high: int) -> Rule:
    """An integer (no bool) of ``low..high``, both included."""
    return Rule(
        f"an integer of {low}..{high}",
        lambda found: type(found) is int and low <= found <= high,
    )


class Field(NamedTuple):
    """One field of a record: its name, its ``struct`` code, and what it must be."""

    name: str
    code: str
    rule: Rule | None = None


_NUMPY_TYPES = {
    "H": "<u2",
    "I": "<u4",
    "i": "<i4",
    "Q": "<u8",
    "q": "<i8",
}


class Record:
    """Consecutive little-endian fields without padding.

    Attributes:
        name: what messages call it.
        size: bytes.
        offset: name -> bytes from the record's start.
        dtype: the same as a packed NumPy type.
    """

    def __init__(self, name: str, *fields: Field) -> None:
        self.name = name
        self.fields = fields
        self._struct = struct.Struct("<" + "".join(field.code for field in fields))
        self._names = tuple(field.name for field in fields)
        self._ruled = tuple(
            (index, field.name, field.rule)
            for index, field in enumerate(fields)
            if field.rule is not None
        )
        self.size = self._struct.size
        offsets: dict[str, int] = {}
        at = 0
        for field in fields:
            offsets[field.name] = at
            at += struct.calcsize("<" + field.code)
        self.offset: Mapping[str, int] = MappingProxyType(offsets)
        self.dtype = np.dtype(
            [
                (field.name, _NUMPY_TYPES.get(field.code, f"V{field.code[:-1]}"))
                for field in fields
            ]
        )

    def pack(self, **values: Any) -> bytes:
        """The record's bytes.

        Args:
            values: one per field; all of them.

        Raises:
            FrameError: a value breaks its field's rule or does not fit its type.
        """
        ordered = [values[name] for name in self._names]
        self.check(ordered)
        try:
            return self._struct.pack(*ordered)
        except struct.error:
            raise FrameError(
                self.name, f"values for {self.format}", shown(ordered)
            ) from None

    @property
    def format(self) -> str:
        """The notation of the wire page."""
        return self._struct.format

    def read(self, data: bytes | bytearray | memoryview, at: int = 0) -> dict[str, Any]:
        """The fields at ``at``, unchecked.

        Raises:
            FrameError: ``data`` is too short.
        """
        if len(data) - at < self.size:
            raise FrameError(
                f"{self.name}.bytes", f"at least {self.size}", max(len(data) - at, 0)
            )
        found = self._struct.unpack_from(data, at)
        return dict(zip(self._names, found, strict=True))

    def unpack(
        self, data: bytes | bytearray | memoryview, at: int = 0
    ) -> dict[str, Any]:
        """The fields at ``at``, each held against its rule, in the table's order.

        Raises:
            FrameError: ``data`` is too short, or a field is not what it must be.
        """
        values = self.read(data, at)
        self.check(tuple(values.values()))
        return values

    def rows(
        self, data: bytes | bytearray | memoryview, at: int, n: int
    ) -> Iterable[Any]:
        """``n`` records from ``at`` on, as tuples; the checks of ``unpack``.

        Raises:
            FrameError: as ``unpack``, at the first record that is not what it must be.
        """
        part = memoryview(data)[at : at + n * self.size]
        if len(part) < n * self.size:
            raise FrameError(f"{self.name}.bytes", n * self.size, len(part))
        return map(self.check, self._struct.iter_unpack(part))

    def pick(self, *names: str) -> Callable[[Sequence[Any]], Any]:
        """What takes these fields, in this order, out of one of ``rows``."""
        return itemgetter(*map(self._names.index, names))

    def check(self, ordered: Sequence[Any]) -> Sequence[Any]:
        """The same values, one per field in the table's order.

        Raises:
            FrameError: the first that breaks its field's rule, by name.
        """
        for index, name, rule in self._ruled:
            if not rule.holds(ordered[index]):
                raise FrameError(
                    f"{self.name}.{name}", rule.wanted, shown(ordered[index])
                )
        return ordered


class Array(NamedTuple):
    """One array of a body or page; ``shape`` names dimensions or gives numbers."""

    name: str
    type: str | Record
    shape: tuple[str | int, ...]
    meaning: str
    sampled_only: bool = False


class Packing:
    """A table of arrays, laid one after the other for given dimensions.

    Attributes:
        size: bytes.
        offset: name -> bytes from the start; ``"end"`` is the size.
        shape: name -> NumPy shape, in the table's order.
        dtype: name -> NumPy type.
    """

    def __init__(
        self, name: str, arrays: tuple[Array, ...], *, sampled: bool, **dims: int
    ) -> None:
        self.name = name
        offset: dict[str, int] = {}
        shape: dict[str, tuple[int, ...]] = {}
        dtypes: dict[str, np.dtype[Any]] = {}
        at = 0
        for array in arrays:
            if array.sampled_only and not sampled:
                continue
            kind = array.type
            dtype = kind.dtype if isinstance(kind, Record) else np.dtype("<" + kind)
            offset[array.name] = at
            shape[array.name] = tuple(
                dims[part] if isinstance(part, str) else part for part in array.shape
            )
            dtypes[array.name] = dtype
            at += dtype.itemsize * int(np.prod(shape[array.name], dtype=np.int64))
        offset["end"] = at
        self.size = at
        self.offset: Mapping[str, int] = MappingProxyType(offset)
        self.shape: Mapping[str, tuple[int, ...]] = MappingProxyType(shape)
        self.dtype: Mapping[str, np.dtype[Any]] = MappingProxyType(dtypes)

    def views(self, buffer: Any) -> dict[str, NDArray[Any]]:
        """NumPy views of every array, without a copy.

        Args:
            buffer: at least ``size`` bytes; the views are writable where it is.

        Raises:
            FrameError: the buffer is too short.
        """
        room = memoryview(buffer).nbytes
        if room < self.size:
            raise FrameError(f"{self.name}.bytes", f"at least {self.size}", room)
        return {
            name: np.ndarray(shape, self.dtype[name], buffer, self.offset[name])
            for name, shape in self.shape.items()
        }
