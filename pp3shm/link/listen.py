"""Listening sockets; Unix ones clean up after themselves and their dead."""

import contextlib
import dataclasses
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from pp3shm.errors import ConfigError, LinkError
from pp3shm.link.address import Address, TcpAddress, UnixAddress, parse
from pp3shm.link.socket import SocketLink, require_key, resolve

_BACKLOG = 64
_LOCK_S = 2.0
_RESOLVE_S = 5.0


class Listener:
    """One listening socket.

    Attributes:
        address: where it really listens: port 0 has become a port.
    """

    def __init__(
        self, sock: socket.socket, address: Address, inode: tuple[int, int] | None
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self.address = address
        self._inode = inode
        self._process = os.getpid()

    def fileno(self) -> int:
        """The descriptor to poll; readable means that ``accept`` may give a link."""
        return self._sock.fileno()

    def accept(self) -> SocketLink | None:
        """Take one waiting connection, without waiting.

        Nothing has been proved about it yet.

        Raises:
            OSError: this process has no descriptor or memory left for it.
        """
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        try:
            return SocketLink(sock, f"peer of {self.address}", self.address)
        except OSError:  # it went away between the two calls
            sock.close()
            return None

    def close(self) -> None:
        """Stop listening and remove the socket file, if it is still this one's.

        A forked child gives up its own copy only: the parent goes on listening.
        """
        self._sock.close()
        if self._process != os.getpid():
            return
        if self._inode is not None and isinstance(self.address, UnixAddress):
            with contextlib.suppress(OSError, LinkError), _locked(self.address.name):
                if _inode(self.address.name) == self._inode:
                    Path(self.address.name).unlink()
            self._inode = None

    def __enter__(self) -> Self:
        """Use as a context manager closes the listener at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def listen(address: str | Address, psk: bytes | None = None) -> Listener:
    """Listen at an address.

    Args:
        address: port 0 asks for a free port. The file of a Unix socket gets mode
            0600; that of a listener that died is replaced.
        psk: the pre-shared key, if there is one. Here it only decides whether an
            address that is not loopback is allowed; the proof itself is
            ``proof.demand_proof``.

    Raises:
        ConfigError: a bad address; not loopback and no key; a file that is no socket.
        LinkError: the address is in use or cannot be had.
    """
    where = parse(address) if isinstance(address, str) else address
    if isinstance(where, TcpAddress):
        return _listen_tcp(where, psk)
    return _listen_unix(where)


def _listen_tcp(where: TcpAddress, psk: bytes | None) -> Listener:
    targets = resolve(where, time.monotonic() + _RESOLVE_S)
    require_key(where, targets, psk)
    failure = OSError("no address")
    for family, target in targets:  # a name may stand for a family this host lacks
        try:
            sock = _bound(family, target)
        except OSError as error:
            failure = error
        else:
            port = sock.getsockname()[1]
            return Listener(sock, dataclasses.replace(where, port=port), None)
    raise _unusable(where, failure) from failure


def _bound(family: socket.AddressFamily, target: object) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(target)  # type: ignore[arg-type] # as getaddrinfo gave it
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


def _listen_unix(where: UnixAddress) -> Listener:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if where.abstract:
            sock.bind(where.native)
            sock.listen(_BACKLOG)
            return Listener(sock, where, None)
        # On Linux bind gives the file the socket's own mode: at no moment is it wider.
        os.fchmod(sock.fileno(), 0o600)
        with _locked(where.name):
            _remove_dead(where)
            sock.bind(where.native)
            sock.listen(_BACKLOG)
            return Listener(sock, where, _inode(where.name))
    except OSError as error:
        sock.close()
        raise _unusable(where, error) from error
    except BaseException:
        sock.close()
        raise


def _unusable(where: Address, error: OSError) -> LinkError:
    return LinkError(
        f"{where}: expected an address to listen at, found: {error.strerror or error}"
    )


def _inode(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _remove_dead(where: UnixAddress) -> None:
    """Remove the socket file of a listener that is gone.

    Raises:
        ConfigError: something else than a socket stands there.
        LinkError: somebody listens there.
    """
    try:
        mode = os.lstat(where.name).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError("address", "no file or an unused socket", f"{where}: a file")
    with socket.socket(
        socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC
    ) as probe:
        probe.setblocking(False)
        found = probe.connect_ex(where.native)
    if found != errno.ECONNREFUSED:
        raise LinkError(f"{where}: expected an unused address, found a live listener")
    Path(where.name).unlink()


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Hold the lock of a socket file's folder.

    Between "nobody listens there" and "I do" a second starter must not come to the
    same conclusion and remove the first one's socket. The lock lies on the folder
    itself, so that it leaves no file behind.

    Raises:
        LinkError: somebody holds it for longer than two seconds.
    """
    folder = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LinkError(
                        f"unix://{path}: expected the folder's lock, found it held"
                    ) from None
                time.sleep(0.01)
        yield
    finally:
        os.close(folder)
