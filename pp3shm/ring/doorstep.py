"""The directory of a door that is a path: mode 0700, gone with its doorman.

A doorman that is killed cannot take it away. It is locked as long as he lives, as a
region's names are, and the next door that is made takes those of the dead away.
"""

import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from pp3shm.errors import RegionError

_PREFIX = "pp3shm-door-"
_SOCKET = "ranks"
_CREATIONS = 16  # a sweeper in the way each time: somebody removes on purpose


class Doorstep:
    """A new directory for a socket.

    Attributes:
        socket: the path to bind.

    Raises:
        RegionError: others took it away each time.
        OSError: no directory or no descriptor is to be had.
    """

    def __init__(self) -> None:
        sweep_doorsteps()
        for _ in range(_CREATIONS):
            self._path = Path(tempfile.mkdtemp(prefix=_PREFIX))  # 0700 by itself
            try:
                self._lock = _opened(self._path)
            except FileNotFoundError:
                continue  # swept before it was locked
            except OSError:
                self._path.rmdir()
                raise
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if _still_named(self._path, self._lock):
                self.socket = self._path / _SOCKET
                return
            os.close(self._lock)
        raise RegionError(str(self._path), "the directory just made", "swept by others")

    def leave(self) -> None:
        """Lets go of the lock; a forked child leaves the directory to its parent."""
        os.close(self._lock)

    def close(self) -> None:
        """Takes the directory away."""
        _remove(self._path)
        os.close(self._lock)


def _opened(path: Path) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags)


def _still_named(path: Path, fd: int) -> bool:
    try:
        named = path.lstat()
    except FileNotFoundError:
        return False
    mine = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (mine.st_dev, mine.st_ino)


def _remove(path: Path) -> None:
    with suppress(OSError):
        (path / _SOCKET).unlink()
    with suppress(OSError):
        path.rmdir()  # not where it holds anything else


def sweep_doorsteps() -> None:
    """Removes the directories of dead doormen: those whose lock can be had."""
    with suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            with suppress(OSError):  # another user's, or gone, or locked: alive
                _sweep(path)


def _sweep(path: Path) -> None:
    fd = _opened(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _still_named(path, fd):
            _remove(path)
    finally:
        os.close(fd)
