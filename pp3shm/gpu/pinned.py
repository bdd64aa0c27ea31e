"""A region's pages registered with CUDA: copies from them are asynchronous.

Registration may fail (a limit on locked memory, a kernel or driver that does not permit
it, a range somebody else registered) and must not spoil anything then: pages are read
unpinned as before, the error is taken from the CUDA runtime so that no later call of
somebody else's reports it, and the reason is kept where it can be read.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pp3shm._core import ffi

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Self

    from typing_extensions import Buffer

PORTABLE, READ_ONLY = 1, 8  # cudaHostRegister*; a rank's pages are mapped read-only
_LIBRARY = re.compile(r"\s(/\S*/libcudart[-.\w]*\.so[.\w]*)$", re.MULTILINE)
_CLEARINGS = 4  # of the last error; one that stays then is the context's own end


class Adopter(Protocol):
    """What ``pin`` wants of an engine or a rank."""

    @property
    def buffers(self) -> list[memoryview]:
        """Every page, then every failed buffer."""

    def adopt(self, part: Pinned) -> None:
        """Closes it before the mapping goes, and counts it in ``stats``."""


class Runtime(Protocol):
    """The four calls of the CUDA runtime that are needed."""

    def register(self, address: int, size: int, flags: int) -> int:
        """``cudaHostRegister``: a ``cudaError_t``."""

    def unregister(self, address: int) -> int:
        """``cudaHostUnregister``: a ``cudaError_t``."""

    def last_error(self) -> int:
        """``cudaGetLastError``: of this thread; it is forgotten, but where it stays."""

    def words(self, code: int) -> str:
        """``cudaGetErrorString``."""


class LoadedRuntime:
    """The libcudart that this process has loaded already: torch's.

    torch's own binding lacks ``cudaGetLastError``, without which a failed call stays
    behind for whoever asks next.

    Args:
        path: of the library.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it lacks one of the calls.
    """

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        self._register = library.cudaHostRegister
        self._register.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._unregister = library.cudaHostUnregister
        self._unregister.argtypes = (ctypes.c_void_p,)
        self._last_error = library.cudaGetLastError
        self._last_error.argtypes = ()
        self._words = library.cudaGetErrorString
        self._words.argtypes, self._words.restype = (ctypes.c_int,), ctypes.c_char_p

    @classmethod
    def find(cls) -> Self | None:
        """The one in this process's mappings; None where there is none."""
        found = _LIBRARY.search(Path("/proc/self/maps").read_text(encoding="utf-8"))
        return cls(found[1]) if found else None

    def register(self, address: int, size: int, flags: int) -> int:
        """``cudaHostRegister``: a ``cudaError_t``."""
        return int(self._register(address, size, flags))

    def unregister(self, address: int) -> int:
        """``cudaHostUnregister``: a ``cudaError_t``."""
        return int(self._unregister(address))

    def last_error(self) -> int:
        """``cudaGetLastError``: of this thread; it is forgotten, but where it stays."""
        return int(self._last_error())

    def words(self, code: int) -> str:
        """``cudaGetErrorString``."""
        said: bytes | None = self._words(code)
        return (said or b"").decode("utf-8", "replace")


def spans(buffers: Iterable[Buffer], unit: int = mmap.PAGESIZE) -> Iterator[range]:
    """The addresses of whole system pages that hold the buffers, each of them once.

    A mapping consists of whole pages, so nothing beyond it is named; and what only
    touches may be another mapping, so it is named by itself.
    """
    open_: range | None = None
    for start, stop in sorted(map(_place, buffers)):
        if start == stop:
            continue
        span = range(start - start % unit, stop + -stop % unit)
        if open_ is not None and span.start < open_.stop:
            open_ = range(open_.start, max(open_.stop, span.stop))
            continue
        if open_ is not None:
            yield open_
        open_ = span
    if open_ is not None:
        yield open_


def _place(buffer: Buffer) -> tuple[int, int]:
    view = memoryview(buffer).cast("B")
    start = int(ffi.cast("uintptr_t", ffi.from_buffer(view)))
    return start, start + view.nbytes


class Pinned:
    """Registered memory, or why it is not.

    All of the buffers are registered, or none.

    Args:
        buffers: they stay mapped until ``close``.
        runtime: CUDA's; None: the one this process has loaded.
        read_only: the mapping cannot be written, as in a rank's process.

    Attributes:
        registered_bytes: 0 where nothing is registered.
        error: the ``cudaError_t`` of the call that failed, else 0.
        reason: why nothing is registered, in words, else "".
    """

    def __init__(
        self,
        buffers: Iterable[Buffer],
        *,
        runtime: Runtime | None = None,
        read_only: bool = False,
    ) -> None:
        self._runtime = runtime or LoadedRuntime.find()
        self._done: list[range] = []
        self.registered_bytes = self.error = 0
        self.reason = ""
        if self._runtime is None:
            self.reason = "CUDA runtime: expected libcudart loaded, found none"
            return
        flags = PORTABLE | (READ_ONLY if read_only else 0)
        for span in spans(buffers):
            code = self._runtime.register(span.start, len(span), flags)
            if code:
                self._refused(self._runtime, span, code)
                return
            self._done.append(span)
            self.registered_bytes += len(span)
        if not self._done:
            self.reason = "buffers: expected some bytes, found none"

    def _refused(self, runtime: Runtime, span: range, code: int) -> None:
        said = runtime.words(code)
        left = self._clear(runtime)
        self.close()
        self.error = code
        self.reason = (
            f"cudaHostRegister: expected {len(span)} bytes at {span.start:#x} "
            f"registered, found error {code} ({said})"
        )
        if left:
            self.reason += f"; error {left} stays: {runtime.words(left)}"

    @staticmethod
    def _clear(runtime: Runtime) -> int:
        """Takes the error from the runtime; one that stays is told."""
        left = 0
        for _ in range(_CLEARINGS):
            left = runtime.last_error()
            if left == 0:
                break
        return left

    def stats(self) -> dict[str, int]:
        """For ``Engine.stats``: bytes registered, and the error if there was one."""
        return {"pinned_bytes": self.registered_bytes, "pin_error": self.error}

    def close(self) -> None:
        """Let go of the registration. Safe to call twice."""
        while self._done:
            span = self._done.pop()
            # A runtime that is shut down refuses; the driver has let go by itself.
            if self._runtime is not None and self._runtime.unregister(span.start):
                self._clear(self._runtime)
        self.registered_bytes = 0


def pin(
    engine: Adopter, *, runtime: Runtime | None = None, read_only: bool = False
) -> Pinned:
    """Register the pages of an engine or a rank, for as long as it is open.

    Call it once torch's CUDA context is there (``torch.cuda.init()``), before pages are
    copied. A refusal is no error: pages stay readable, unpinned.

    Args:
        engine: an ``Engine``; or a ``Rank``, with ``read_only``.
        runtime: as of ``Pinned``.
        read_only: as of ``Pinned``.

    Returns:
        What was registered; ``reason`` says why nothing was.
    """
    pinned = Pinned(engine.buffers, runtime=runtime, read_only=read_only)
    engine.adopt(pinned)
    return pinned
