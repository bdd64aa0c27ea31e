"""A peer made of bytes: a link that plays them, and scripts that become frames."""

import os
import struct
import zlib
from collections.abc import Iterator

from pp3shm.errors import PeerDied
from pp3shm.layout.frames import Kind, profile_flags
from pp3shm.layout.profile import Profile

SESSION = bytes(range(16))


def hold(true: bool, what: str) -> None:
    """Raises where something promised is not so; no parser may raise this."""
    if not true:
        raise RuntimeError(f"does not hold: {what}")


def text_of(data: bytes) -> str:
    """Text a user could give, stray surrogates included."""
    if data[:1] == b"\xff":
        return data[1:].decode(
            "utf-16-le", "surrogatepass" if len(data) % 2 else "replace"
        )
    return os.fsdecode(data)


READABLE = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
SILENT = os.eventfd(0, os.EFD_CLOEXEC)  # nobody ever writes to it


class Tape:
    """A link whose peer says these bytes and is gone.

    Args:
        data: what it says; how much of it comes at a time is taken from it too.
        largest: a buffer longer than this is a fault of who reads.
    """

    peer = "a tape"
    address = None  # neither dialled nor listened at

    def __init__(self, data: bytes, largest: int = 1 << 16) -> None:
        self._data = data
        self._at = 0
        self._largest = largest
        self.closed = False
        self.sent = 0

    def fileno(self) -> int:
        """Readable at any time: a tape always has something to say, or its end."""
        return READABLE

    def recv_into(self, view: memoryview) -> int:
        """The next piece; the end is a peer that is gone."""
        hold(not self.closed, "a link is not read after its close")
        hold(0 < len(view) <= self._largest, "a buffer within the profile's bounds")
        if self._at == len(self._data):
            raise PeerDied("a tape: its end")
        piece = 1 + self._data[self._at] % 97 * (1 + self._data[self._at] % 3)
        part = self._data[self._at : self._at + min(piece, len(view))]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def send(self, frame: bytes | memoryview, timeout_s: float = 5.0) -> None:
        """Heard and forgotten."""
        del timeout_s
        hold(not self.closed, "a link is not used after its close")
        self.sent += len(frame)

    def finish(self, timeout_s: float = 0.5) -> None:
        """As of a socket."""
        del timeout_s
        self.closed = True

    def close(self) -> None:
        """As of a socket."""
        self.closed = True


def frames_of(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """A script: (kind, body, what to spoil), each part with its length before it."""
    at = 0
    for _ in range(8):
        if len(data) - at < 4:
            return
        kind, spoil, size = struct.unpack_from("<BBH", data, at)
        at += 4
        yield kind, data[at : at + size], spoil
        at += size


class Script:
    """Frames of one direction, right in all that the script does not spoil.

    Args:
        data: see ``frames_of``.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._made: list[bytes] = []

    def frame(
        self, kind: int, body: bytes, sequence: int, flags: int = 0, spoil: int = 0
    ) -> None:
        """Adds one; each bit of ``spoil`` breaks another field."""
        crc = zlib.crc32(body) ^ (spoil & 1)
        size = len(body) + 4 + ((spoil & 2) << 29)
        head = struct.pack(
            "<4sHHIIQ16s", b"PP3F", 1 + (spoil >> 2 & 1), kind,
            flags ^ (spoil >> 3 & 1), size, sequence + (spoil >> 4 & 1),
            SESSION[: 16 - (spoil >> 5 & 1)],
        )  # fmt: skip
        self._made.append(head + body + crc.to_bytes(4, "little"))

    def frames(self, profile: Profile, sequence: int) -> bytes:
        """All of them, and those of the data behind."""
        for kind, body, spoil in frames_of(self._data):
            flagged = kind in {Kind.STEP, Kind.REPLY}
            flags = profile_flags(profile) if flagged else 0
            self.frame(kind % 10, body, sequence, flags, spoil)
            sequence += 1
        return b"".join(self._made)
