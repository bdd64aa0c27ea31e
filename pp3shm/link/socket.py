"""Frames over TCP and Unix sockets: the connection and how to make one."""

import contextlib
import select
import socket
import threading
import time
from types import TracebackType
from typing import Any, Self

from pp3shm.errors import ConfigError, LinkError, PeerDied
from pp3shm.link.address import Address, TcpAddress, is_loopback, parse
from pp3shm.link.base import Buffer
from pp3shm.link.proof import prove_to_worker
from pp3shm.link.reader import wait_for

# A peer whose machine vanished is noticed after 10 + 3 x 5 seconds of silence.
_KEEPALIVE = (
    (socket.TCP_KEEPIDLE, 10),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
)
# Not in Python's socket module; the number of all Linux machines but two old ones.
_SO_BUSY_POLL = 46
_BUSY_POLL_US = 50
_GONE = "the peer closed the connection"


class SocketLink:
    """One connected stream socket, TCP or Unix. Implements ``Link``.

    Attributes:
        address: as our own side said it: dialled, or listened at; None: neither.
    """

    def __init__(
        self, sock: socket.socket, peer: str, address: Address | None = None
    ) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            # A STEP is one small write that must leave at once.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, seconds in _KEEPALIVE:
                sock.setsockopt(socket.IPPROTO_TCP, option, seconds)
            # Look at the network card instead of waiting for its interrupt, where it
            # can be looked at and we may ask for it.
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, _SO_BUSY_POLL, _BUSY_POLL_US)
        self._sock = sock
        self._peer = peer
        self.address = address

    @property
    def peer(self) -> str:
        """The other side, for messages."""
        return self._peer

    def fileno(self) -> int:
        """The descriptor to poll; -1 once closed."""
        return self._sock.fileno()

    @property
    def local_ip(self) -> str:
        """The IP address of our side; empty for a Unix socket.

        Raises:
            PeerDied: the connection is gone.
        """
        if self._sock.family == socket.AF_UNIX:
            return ""
        try:
            return str(self._sock.getsockname()[0]).partition("%")[0]
        except OSError as error:
            raise self._died(error) from error

    def send(self, frame: Buffer, timeout_s: float = 5.0) -> None:
        """Send one whole frame; see ``Link.send``."""
        sent = self._send_some(frame)
        if sent == len(frame):
            return
        deadline = time.monotonic() + timeout_s
        with memoryview(frame) as view:
            while sent < len(view):
                if not wait_for(self, select.POLLOUT, deadline):
                    raise LinkError(
                        f"{self.peer}: expected to take a frame of {len(view)} bytes "
                        f"within {timeout_s:g} s, found {sent} taken"
                    )
                sent += self._send_some(view[sent:])

    def _send_some(self, data: Buffer) -> int:
        try:
            return self._sock.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._died(error) from error

    def recv_into(self, view: memoryview) -> int:
        """Take what is there; see ``Link.recv_into``."""
        try:
            got = self._sock.recv_into(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._died(error) from error
        if got == 0:
            raise PeerDied(f"{self.peer}: {_GONE}")
        return got

    def _died(self, error: OSError) -> PeerDied:
        return PeerDied(f"{self.peer}: {error.strerror or error}")

    def finish(self, timeout_s: float = 0.5) -> None:
        """Close so that what was sent last still arrives.

        Closing with unread bytes makes TCP throw away what the peer has not read
        yet. So the sending half ends first, and what comes in is thrown away until
        the peer ends too, for at most ``timeout_s``.
        """
        deadline = time.monotonic() + timeout_s
        try:
            self._sock.shutdown(socket.SHUT_WR)
            with memoryview(bytearray(4096)) as waste:
                while time.monotonic() < deadline:
                    if not self.recv_into(waste):
                        wait_for(self, select.POLLIN, deadline)
        except (OSError, PeerDied):
            pass  # it is gone: nothing is left to be polite about
        self.close()

    def abort(self) -> None:
        """End the connection from another thread: its user gets PeerDied."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Give the connection up. Closing twice is closing once."""
        self._sock.close()

    def __enter__(self) -> Self:
        """Use as a context manager closes the connection at the end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def connect(
    address: str | Address, timeout_s: float = 5.0, psk: bytes | None = None
) -> SocketLink:
    """Connect to a worker, and where a key is set give the proof of section 9.

    Args:
        address: where the worker listens.
        timeout_s: for everything: name resolution, connection and proof.
        psk: the pre-shared key, 16 to 64 bytes; needed for an address that is not
            loopback.

    Returns:
        A connection on which HELLO may be sent.

    Raises:
        ConfigError: a bad address, or not loopback and no key.
        LinkError: nobody there, or no proof from the worker in time.
    """
    where = parse(address) if isinstance(address, str) else address
    deadline = time.monotonic() + timeout_s
    link = SocketLink(_open(where, deadline, psk), str(where), where)
    try:
        if psk is not None:
            prove_to_worker(link, psk, deadline)
    except BaseException:
        link.close()
        raise
    return link


def _open(where: Address, deadline: float, psk: bytes | None) -> socket.socket:
    if isinstance(where, TcpAddress):
        if where.port == 0:
            raise ConfigError("address", "a port to connect to", repr(str(where)))
        targets = resolve(where, deadline)
        require_key(where, targets, psk)
    else:
        targets = [(socket.AF_UNIX, where.native)]
    failure: OSError | None = None
    for family, target in targets:
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            # A timeout of 0 would mean non-blocking, so a late start waits 1 ms.
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.connect(target)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    reason = getattr(failure, "strerror", None) or failure
    raise LinkError(f"{where}: expected a listening worker, found: {reason}")


Target = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int] | str]


def require_key(where: TcpAddress, targets: list[Target], psk: bytes | None) -> None:
    """Refuse what leaves this machine without a key (section 9).

    Every address that the name stands for is looked at, and those very addresses
    are used afterwards: the name is not resolved again.

    Raises:
        ConfigError: one of them is not loopback and there is no key.
    """
    if psk is not None:
        return
    for _, target in targets:
        if not is_loopback(str(target[0])):
            raise ConfigError(
                "address",
                "a loopback address, or a pre-shared key on both sides",
                f"{where} ({target[0]}) and no key",
            )


def resolve(where: TcpAddress, deadline: float) -> list[Target]:
    """Look the host up, for a bounded time.

    Raises:
        LinkError: no such host, or no answer in time.
    """
    answers: list[list[Target] | str] = []

    def look_up() -> None:
        try:
            infos = socket.getaddrinfo(
                where.host,
                where.port,
                type=socket.SOCK_STREAM,
                proto=socket.IPPROTO_TCP,
            )
        except OSError as error:
            answers.append(error.strerror or str(error))
        except UnicodeError as error:  # a label that IDNA cannot encode
            answers.append(str(error))
        else:
            answers.append(_targets(infos))

    if ":" in where.host or where.host.replace(".", "").isdigit():
        look_up()  # an IP address: nobody is asked
    else:
        # getaddrinfo knows no deadline: a thread may be left behind, but no caller.
        thread = threading.Thread(target=look_up, daemon=True, name="pp3shm-resolve")
        thread.start()
        thread.join(max(0.0, deadline - time.monotonic()))
    answer = answers[0] if answers else "no answer in time"
    if isinstance(answer, str):
        raise LinkError(f"{where}: expected a host that resolves, found: {answer}")
    return answer


def _targets(infos: list[tuple[Any, ...]]) -> list[Target]:
    return [(family, target) for family, _, _, _, target in infos]
