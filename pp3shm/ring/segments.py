"""The memory of a region: one descriptor for each segment, anonymous or named."""

import contextlib
import errno
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from pp3shm.errors import RegionError
from pp3shm.ring.room import expect_room

_MFD_NOEXEC_SEAL = 0x8  # Linux 6.3; os has no name for it yet
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_F_SEAL_SEAL, _F_SEAL_SHRINK, _F_SEAL_GROW = 1, 2, 4
_SEALS = _F_SEAL_SEAL | _F_SEAL_SHRINK | _F_SEAL_GROW
SHM = Path("/dev/shm")  # noqa: S108  # where Linux keeps POSIX names; no temp file
_CREATIONS = 16  # a sweeper in the way each time: somebody unlinks on purpose
_NAME = re.compile(r"pp3shm-[0-9a-f]{32}-(control|slots|pages|failed|acks)")


class Segments(Protocol):
    """Descriptors of a region's five segments, and what keeps them."""

    fds: dict[str, int]

    def unlink(self) -> None:
        """Takes away what a name would find; those attached keep it."""

    def close(self) -> None:
        """Closes every descriptor; again changes nothing."""


def reopened(fd: int, *, writable: bool) -> int:
    """A new open file description of a segment, e.g. for a peer.

    Args:
        fd: a descriptor of it.
        writable: read-only otherwise.

    Returns:
        A descriptor, CLOEXEC, that shares neither lock nor mode with ``fd``.

    Raises:
        OSError: /proc is not there, or the limit of descriptors is reached.
    """
    mode = os.O_RDWR if writable else os.O_RDONLY
    return os.open(f"/proc/self/fd/{fd}", mode | os.O_CLOEXEC)


def _allocate(name: str, fd: int, size: int) -> None:
    """Takes all memory now: a full /dev/shm is an error here, never SIGBUS later."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        raise RegionError(
            f"segment {name}", f"{size} bytes of shared memory", error.strerror
        ) from error


def expect_private(name: str, fd: int) -> None:
    """Refuse a segment that somebody else could open, write or take away.

    Args:
        name: of the segment.
        fd: a descriptor that another process gave, or that a name led to.

    Raises:
        RegionError: another user's, open to others by its mode, or a memfd that can
            still be shrunk under its readers.
    """
    found = os.fstat(fd)
    if found.st_uid != os.geteuid():
        raise RegionError(
            f"segment {name}", f"user {os.geteuid()}", f"user {found.st_uid}"
        )
    if found.st_mode & 0o077:
        mode = f"mode {found.st_mode & 0o7777:04o}"
        raise RegionError(f"segment {name}", "mode 0600", mode)
    if os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:"):  # noqa: PTH115
        seals = fcntl.fcntl(fd, _F_GET_SEALS)
        if seals & _SEALS != _SEALS:
            raise RegionError(
                f"segment {name}", "a memfd sealed against shrinking", f"seals {seals}"
            )


def _open_name(path: str, flags: int) -> int:
    """Opens a POSIX name, as ``shm_open`` does on Linux: the same file and flags.

    Not by a package for it: one that knows nothing of free-threaded CPython switches
    the interpreter's lock on when it is imported.

    Args:
        path: a slash and a name.
        flags: as for ``os.open``.

    Returns:
        A descriptor, CLOEXEC.

    Raises:
        OSError: the name is taken, or not there, or none that a segment can have.
    """
    name = path.removeprefix("/")
    if not name or name in (".", "..") or "/" in name or "\0" in name:
        raise OSError(errno.EINVAL, "not a POSIX name", path)
    return os.open(SHM / name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


class MemfdSegments:
    """Anonymous memory, sealed against shrinking and growing; goes with its last user.

    Args:
        sizes: bytes of each segment.

    Raises:
        RegionError: the memory is not to be had; nothing is left behind.
    """

    def __init__(self, sizes: dict[str, int]) -> None:
        expect_room(sum(sizes.values()))
        self.fds: dict[str, int] = {}
        # A label that whoever looks at processes tells regions apart by.
        region = f"pp3shm-{secrets.token_hex(16)}"
        try:
            for name, size in sizes.items():
                self.fds[name] = fd = self._create(region, name)
                os.fchmod(fd, 0o600)  # for whoever opens it below /proc
                _allocate(name, fd, size)
                fcntl.fcntl(fd, _F_ADD_SEALS, _SEALS)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _create(region: str, name: str) -> int:
        label = f"{region}-{name}"
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        try:
            try:
                return os.memfd_create(label, flags | _MFD_NOEXEC_SEAL)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            return os.memfd_create(label, flags)  # a kernel before 6.3
        except OSError as error:
            raise RegionError(f"segment {name}", "a memfd", error.strerror) from error

    def unlink(self) -> None:
        """Nothing: there never was a name."""

    def close(self) -> None:
        """Closes every descriptor; again changes nothing."""
        while self.fds:
            os.close(self.fds.popitem()[1])


class PosixSegments:
    """Named memory: 0600, 128 random bits, locked as long as its creator lives.

    The lock belongs to the open file description made here, which is never given to
    anybody (peers get one of their own, see ``reopened``): once it can be had, the
    creator is dead, and the next creator of any region takes the names away.

    Args:
        sizes: bytes of each segment.

    Raises:
        RegionError: the memory or a name is not to be had; nothing is left behind.
    """

    def __init__(self, sizes: dict[str, int]) -> None:
        sweep()
        expect_room(sum(sizes.values()))
        self.fds: dict[str, int] = {}
        self.prefix = f"/pp3shm-{secrets.token_hex(16)}"
        self._named: list[str] = []
        self._owner = os.getpid()
        try:
            for name, size in sizes.items():
                self._create(name)
                _allocate(name, self.fds[name], size)
        except BaseException:
            self.unlink()
            self.close()
            raise

    def _create(self, name: str) -> None:
        path = f"{self.prefix}-{name}"
        for _ in range(_CREATIONS):
            try:
                fd = _open_name(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            except OSError as error:
                raise RegionError(path, "a new POSIX name", error.strerror) from error
            self.fds[name] = fd
            self._named.append(path)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if still_named(path, fd):
                return
            # between creation and lock a sweeper took it for a dead one's
            self._named.pop()
            os.close(self.fds.pop(name))
        raise RegionError(path, "the name just made", "swept by others again and again")

    def unlink(self) -> None:
        """Takes the names away; a forked child leaves those of its parent."""
        while self._named and self._owner == os.getpid():
            with contextlib.suppress(FileNotFoundError):
                (SHM / self._named.pop().lstrip("/")).unlink()

    def close(self) -> None:
        """Closes every descriptor, and with it the locks."""
        while self.fds:
            os.close(self.fds.popitem()[1])


class GivenSegments:
    """Descriptors handed over by another process.

    Args:
        fds: by segment; they are this object's from now on.
    """

    def __init__(self, fds: dict[str, int]) -> None:
        self.fds = dict(fds)

    def unlink(self) -> None:
        """Nothing: names are their creator's."""

    def close(self) -> None:
        """Closes every descriptor; again changes nothing."""
        while self.fds:
            os.close(self.fds.popitem()[1])


def open_named(prefix: str, writable: dict[str, bool]) -> GivenSegments:
    """Opens the segments of a region that has POSIX names.

    Args:
        prefix: ``PosixSegments.prefix``.
        writable: the segments to open, and how.

    Returns:
        Their descriptors.

    Raises:
        RegionError: a name is not there (any more), or may not be opened.
    """
    segments = GivenSegments({})
    try:
        for name, write in writable.items():
            path = f"{prefix}-{name}"
            mode = os.O_RDWR if write else os.O_RDONLY
            segments.fds[name] = _open_name(path, mode)
    except OSError as error:
        segments.close()
        raise RegionError(path, "a POSIX name to open", error.strerror) from error
    return segments


def still_named(path: str, fd: int) -> bool:
    """Whether a name in /dev/shm is still that of this descriptor's inode."""
    try:
        named = (SHM / path.lstrip("/")).lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)


def leftovers() -> Iterator[Path]:
    """What is named as a segment in /dev/shm, of the living and of the dead."""
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(SHM):
            if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def sweep() -> list[str]:
    """Unlinks the names of dead creators: those whose lock can be had.

    Returns:
        The names taken away.
    """
    swept: list[str] = []
    try:
        found = list(leftovers())
    except OSError:
        return swept  # no descriptor to look with: whoever creates next does it
    for path in found:
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, or gone already
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # the lock is on an inode: unlink the name only while it still is this one
            if still_named(path.name, fd):
                path.unlink()
                swept.append(path.name)
        except OSError:
            pass  # locked: its creator lives
        finally:
            os.close(fd)
    return swept
