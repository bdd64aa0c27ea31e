"""A shared region: made by the engine, attached to by proxies and ranks."""

import contextlib
import functools
import os
import secrets
import threading
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pp3shm._core import ffi, lib
from pp3shm.errors import RegionError
from pp3shm.ring.record import (
    SEGMENTS,
    WRITABLE,
    Shape,
    c_shape,
    compare,
    new_record,
    read_record,
)
from pp3shm.ring.segments import (
    GivenSegments,
    MemfdSegments,
    PosixSegments,
    Segments,
    expect_private,
    open_named,
    reopened,
)


def _unmap(size: int, forks: int, address: Any) -> None:
    lib.pp3_unmap(address, size, forks)


def _mapped(name: str, fd: int, size: int, *, writable: bool) -> Any:
    """The segment's address; it is unmapped when the last view of it is gone."""
    found = os.fstat(fd).st_size
    if found != size:
        raise RegionError(f"segment {name}", f"{size} bytes", f"{found} bytes")
    error = ffi.new("int *")
    address = lib.pp3_map(fd, size, writable, error)
    if address == ffi.NULL:
        raise RegionError(f"segment {name}", "a mapping", os.strerror(error[0]))
    return ffi.gc(address, functools.partial(_unmap, size, lib.pp3_fork_count()))


_KINDS: dict[str, type[MemfdSegments | PosixSegments]] = {
    "memfd": MemfdSegments,
    "posix": PosixSegments,
}
_OPEN: "weakref.WeakSet[Region]" = weakref.WeakSet()


class Region:
    """Five segments, mapped here as far as this process may use them.

    A region lives and dies with its engine's process. It is not mapped in a forked
    child: there every call raises, descriptors are closed, and views must not be used.

    Attributes:
        record: ``struct pp3_record`` this process was given; the engine's has role 0.
        addresses: by segment, for the C core; each keeps its mapping.
    """

    def __init__(self, segments: Segments, record: Any, writable: dict[str, bool]):
        """Maps segments; use ``create``, ``attach`` or ``attach_named``."""
        self._segments = segments
        # No descriptor is copied while another thread closes it: its number may be
        # another file's the moment after.
        self._lock = threading.Lock()
        self._writable = writable
        self.record = record
        self.addresses: dict[str, Any] = {}
        _OPEN.add(self)
        self._finalizer = weakref.finalize(self, _finish, segments)
        try:
            for name, write in writable.items():
                self.addresses[name] = _mapped(
                    name, segments.fds[name], self.bytes_of(name), writable=write
                )
        except BaseException:
            self.close()
            raise

    @classmethod
    def create(
        cls,
        shape: Shape,
        *,
        layout_id: bytes,
        epoch: bytes | None = None,
        kind: str = "memfd",
    ) -> Self:
        """Makes a new region, all zero, without a magic: an engine's end gives it one.

        Args:
            shape: its sizes.
            layout_id: 32 bytes; nobody attaches who negotiated another.
            epoch: 16 bytes, random ones if None.
            kind: ``memfd``, or ``posix`` for names in /dev/shm.

        Raises:
            RegionError: a size out of bounds, or memory that is not to be had. Nothing
                is left behind.
        """
        made = c_shape(shape, layout_id, epoch or secrets.token_bytes(16))
        if kind not in _KINDS:
            raise RegionError("kind", sorted(_KINDS), kind)
        segments = _KINDS[kind](dict(zip(SEGMENTS, made.bytes, strict=True)))
        return cls(segments, new_record(made), dict.fromkeys(SEGMENTS, True))

    @classmethod
    def attach(cls, record: bytes, fds: Mapping[str, int]) -> Self:
        """Attaches with a record and descriptors that the engine's process sent.

        Args:
            record: what ``record_for`` made, as sent.
            fds: a descriptor for each segment of the role; the region's from now on,
                also when it is refused.

        Raises:
            RegionError: a size, version, layout id, epoch or clock that is not the
                record's, by name; a segment that is not this user's alone, or that can
                be shrunk.
        """
        segments = GivenSegments(dict(fds))
        try:
            given = read_record(record)
        except BaseException:
            segments.close()
            raise
        return cls._checked(segments, given)

    @classmethod
    def attach_named(cls, record: bytes, prefix: str) -> Self:
        """As ``attach``, to a region of POSIX names that are not unlinked yet.

        Args:
            record: what ``record_for`` made, as sent.
            prefix: ``Region.prefix`` of the engine's.

        Raises:
            RegionError: as ``attach``, or a name that is not there.
        """
        given = read_record(record)
        return cls._checked(open_named(prefix, WRITABLE[given.role]), given)

    @classmethod
    def _checked(cls, segments: Segments, given: Any) -> Self:
        writable = WRITABLE[given.role]
        if set(segments.fds) != set(writable):
            found = sorted(segments.fds)
            segments.close()
            raise RegionError("descriptors", sorted(writable), found)
        try:
            for name, fd in segments.fds.items():
                expect_private(name, fd)
        except BaseException:
            segments.close()
            raise
        region = cls(segments, given, writable)
        try:
            compare(region.addresses["control"], given.shape)
        except BaseException:
            region.close()
            raise
        return region

    @property
    def shape(self) -> Any:
        """``struct pp3_shape``: the local one, never the shared header's."""
        return self.record.shape

    @property
    def layout_id(self) -> bytes:
        """32 bytes."""
        return bytes(ffi.buffer(self.shape.layout_id))

    @property
    def epoch(self) -> bytes:
        """16 bytes."""
        return bytes(ffi.buffer(self.shape.epoch))

    @property
    def prefix(self) -> str | None:
        """What the POSIX names begin with; None if there are none."""
        return getattr(self._segments, "prefix", None)

    def bytes_of(self, name: str) -> int:
        """The size of a segment."""
        return int(self.shape.bytes[SEGMENTS.index(name)])

    def fd_of(self, name: str) -> int:
        """The region's own descriptor of a segment, for reading it as a file.

        Raises:
            RegionError: the segment is not open here, or the region is closed.
        """
        fd = self._segments.fds.get(name)
        if fd is None:
            there = sorted(self.addresses) if self._finalizer.alive else "it closed"
            raise RegionError(f"segment {name}", "open here", there)
        return fd

    @contextlib.contextmanager
    def opened(self, name: str) -> Iterator[int]:
        """A descriptor of a segment that stays open though the region is closed.

        For any thread.

        Raises:
            RegionError: as ``fd_of``.
        """
        with self._lock:
            fd = os.dup(self.fd_of(name))
        try:
            yield fd
        finally:
            os.close(fd)

    def view(self, name: str) -> memoryview:
        """A whole segment; read-only where this process may not write it.

        Raises:
            RegionError: the segment is not mapped here, or the region is closed.
        """
        if name not in self.addresses:
            raise RegionError(f"segment {name}", "mapped here", sorted(self.addresses))
        view = memoryview(ffi.buffer(self.addresses[name], self.bytes_of(name)))
        return view if self._writable[name] else view.toreadonly()

    def parts(self) -> Any:
        """``struct pp3_parts *`` of what is mapped."""
        parts = ffi.new("struct pp3_parts *")
        for name, address in self.addresses.items():
            setattr(parts, name, address)
        return parts

    def record_for(self, role: int, *, owner: int = 0, rank: int = 0) -> bytes:
        """The attach record of a peer, to be sent with ``share(role)``."""
        record = new_record(ffi.addressof(self.shape))
        record.role, record.owner, record.rank = role, owner, rank
        return bytes(ffi.buffer(record))

    def share(self, role: int) -> dict[str, int]:
        """Descriptors for a peer, each of its own open file description.

        Args:
            role: ``PROXY`` or ``RANK``; what it may not write is opened read-only.

        Returns:
            By segment, in the order to be sent; the caller closes them.

        Raises:
            RegionError: one cannot be opened.
        """
        shared: dict[str, int] = {}
        try:
            with self._lock:
                for name, write in WRITABLE[role].items():
                    shared[name] = reopened(self._segments.fds[name], writable=write)
        except (OSError, KeyError) as error:
            for fd in shared.values():
                os.close(fd)
            raise RegionError("share", "descriptors to give", error) from error
        return shared

    def unlink(self) -> None:
        """Takes POSIX names away; those attached keep the memory."""
        self._segments.unlink()

    def close(self) -> None:
        """Unlinks, closes the descriptors and lets go of the mappings; idempotent.

        Memory stays mapped as long as a view or a ring's end refers to it.
        """
        _OPEN.discard(self)
        with self._lock:
            self._finalizer()
        self.addresses = {}

    def _leave(self) -> None:
        """``close`` in a forked child, where the lock may be held for ever."""
        self._lock = threading.Lock()
        self.close()

    def __enter__(self) -> Self:
        """The region itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it."""
        self.close()


def _finish(segments: Segments) -> None:
    segments.unlink()
    segments.close()


def _leave_forked_child() -> None:
    """A child must hold neither locks nor descriptors of its parent's regions."""
    for region in list(_OPEN):
        region._leave()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_leave_forked_child)
