"""Handing the region over a Unix socket: to ranks, by a doorman; to a proxy, by fd 3.

A peer gets descriptors and an attach record, never a pointer and never a pid: the
doorman takes a pidfd of it first, so that its death will be known whatever it does.
"""

import array
import contextlib
import errno
import os
import select
import socket
import struct
import threading
import time
import weakref
from typing import Self

from pp3shm.errors import Pp3Error, RegionError
from pp3shm.ring.doorstep import Doorstep
from pp3shm.ring.record import PROXY, RANK, RECORD_BYTES, WRITABLE
from pp3shm.ring.region import Region
from pp3shm.ring.ring import EngineEnd, ProxyEnd, RankEnd

PROXY_FD = 3
"""Where a proxy process finds its socket."""

_SO_PEERPIDFD = 77  # Linux 6.5; socket has no name for it yet
_ASK = struct.Struct("<4si32s")  # magic, rank wanted or -1, layout id or zeros
_MAGIC = b"PP3R"
_READY = b"mapped"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_MOST_GUESTS = 64  # peers of the same user that may be at the door at once
_MOST = 65536  # a record and a proxy's configuration


def _receive(link: socket.socket, descriptors: int) -> tuple[bytes, list[int]]:
    """One message with its descriptors, CLOEXEC.

    Raises:
        OSError: nothing came, or there was no room for the descriptors.
    """
    size = array.array("i").itemsize
    data, control, flags, _ = link.recvmsg(
        _MOST, socket.CMSG_SPACE(descriptors * size), socket.MSG_CMSG_CLOEXEC
    )
    fds = array.array("i")
    for level, kind, payload in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(payload[: len(payload) - len(payload) % size])
    if flags & socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return data, list(fds)


def _named(role: int, fds: list[int]) -> dict[str, int]:
    if len(fds) != len(WRITABLE[role]):
        for fd in fds:
            os.close(fd)
        wanted = f"{len(WRITABLE[role])} descriptors"
        raise RegionError("handover", wanted, f"{len(fds)}")
    return dict(zip(WRITABLE[role], fds, strict=True))


def attach_proxy(link: socket.socket, timeout: float = 10.0) -> tuple[ProxyEnd, bytes]:
    """A proxy process attaches to the region it was started for.

    Args:
        link: ``socket.socket(fileno=PROXY_FD)``; keep it: it closes when the engine's
            process is gone.
        timeout: seconds.

    Returns:
        The proxy's end, which owns its region, and the configuration sent along.

    Raises:
        RegionError: nothing came, or something that is not this version's.
    """
    link.settimeout(timeout)
    count = len(WRITABLE[PROXY]) + 1
    try:
        data, fds = _receive(link, count)
    except OSError as error:
        raise RegionError("handover", "a record and descriptors", error) from error
    bell = fds.pop() if len(fds) == count else -1
    try:
        region = Region.attach(data[:RECORD_BYTES], _named(PROXY, fds))
        try:
            return ProxyEnd(region, bell), data[RECORD_BYTES:]
        except BaseException:
            region.close()
            raise
    finally:
        if bell >= 0:
            os.close(bell)


def attach_rank(
    address: str,
    rank: int | None = None,
    timeout: float = 10.0,
    *,
    layout_id: bytes | None = None,
) -> RankEnd:
    """A rank's process attaches to the region behind a doorman.

    Args:
        address: ``Doorman.address``.
        rank: the number wanted; any free one if None.
        timeout: seconds for the whole of it.
        layout_id: 32 bytes; a doorman of another one gives nothing away. None: any.

    Returns:
        The rank's end, which owns its region.

    Raises:
        RegionError: refused by the doorman, whose reason is in it, or by a check here.
    """
    try:
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise RegionError(f"doorman {address}", "a socket", error) from error
    with link:
        link.settimeout(timeout)
        try:
            link.connect(_bytes_of(address))
            if (uid := _uid_of(link)) != os.geteuid():  # of whoever listens there
                user = f"user {os.geteuid()}"
                raise RegionError(f"doorman {address}", user, f"user {uid}")
            wanted = -1 if rank is None else rank
            link.send(_ASK.pack(_MAGIC, wanted, layout_id or bytes(32)))
            data, fds = _receive(link, len(WRITABLE[RANK]))
        except OSError as error:
            raise RegionError(f"doorman {address}", "an answer", error) from error
        if not fds:
            reason = data.decode("utf-8", "replace") or "a closed door"
            raise RegionError(f"doorman {address}", "to be let in", reason)
        end = RankEnd(Region.attach(data, _named(RANK, fds)))
        try:
            link.send(_READY)
        except OSError as error:
            end.close()
            raise RegionError(f"doorman {address}", "open", error) from error
        return end


def peer_of(link: socket.socket) -> tuple[int, int]:
    """Process id and user of the peer, as they were when it connected."""
    peer = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(peer)
    return pid, uid


def _uid_of(link: socket.socket) -> int:
    return peer_of(link)[1]


def _bytes_of(address: str) -> str | bytes:
    """``@name`` is an abstract address, anything else a path."""
    return b"\0" + os.fsencode(address[1:]) if address.startswith("@") else address


def pidfd_of(link: socket.socket) -> int:
    """A pidfd of the peer, which then has the same user as this process.

    Raises:
        RegionError: another user, or a process that cannot be watched.
    """
    pid, uid = peer_of(link)
    if uid != os.geteuid():
        raise RegionError("peer", f"user {os.geteuid()}", f"user {uid}")
    try:
        return link.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        pass  # a kernel before 6.5: the pid is the peer's as long as it is connected
    try:
        pidfd = os.pidfd_open(pid)
    except OSError as error:
        raise RegionError("peer", "a process to watch", error) from error
    if is_readable(link.fileno()) and not link.recv(1, socket.MSG_PEEK):
        os.close(pidfd)
        raise RegionError("peer", "a connected process", "one that has gone")
    return pidfd


def is_readable(fd: int) -> bool:
    """True where there is something to read, or an end, without waiting.

    Raises:
        OSError: no open descriptor.
    """
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    for _, event in poll.poll(0):
        if event & select.POLLNVAL:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return True
    return False


def is_dead(pidfd: int) -> bool:
    """True where the process is known to be gone."""
    return is_readable(pidfd)


_DOORS: "weakref.WeakSet[Doorman]" = weakref.WeakSet()


class Doorman:
    """A thread that lets ranks 1, 2, ... of a region in.

    A number is given away once: a rank that was let in may only die. One that never
    said it had mapped the region was told of no round; its number is free again when
    its process is known to be gone.

    Args:
        engine: the engine's end.
        kind: ``abstract`` socket, or ``path`` for one in a directory of mode 0700.
        patience: seconds a peer may take to map the region.

    Attributes:
        address: what ``attach_rank`` wants.
    """

    def __init__(
        self, engine: EngineEnd, kind: str = "abstract", patience: float = 10.0
    ) -> None:
        """Opens the door."""
        self._engine = engine
        self._patience = patience
        self._pidfds: dict[int, int] = {}
        self._attached: set[int] = set()
        self._changed = threading.Condition()
        self._guests = threading.BoundedSemaphore(_MOST_GUESTS)
        self._doorstep: Doorstep | None = None
        self._process = os.getpid()
        with contextlib.ExitStack() as undo:
            self._open(kind, undo)
            if engine.region.shape.ranks == 1:
                engine.region.unlink()  # nobody else is to attach
            self._thread = threading.Thread(
                target=self._serve, name="pp3shm-doorman", daemon=True
            )
            undo.callback(_DOORS.discard, self)
            _DOORS.add(self)
            self._thread.start()
            undo.pop_all()

    def _open(self, kind: str, undo: contextlib.ExitStack) -> None:
        """The door and what ends its thread; ``undo`` gives back what there is."""
        if kind == "path":
            self._doorstep = Doorstep()
            undo.callback(self._doorstep.close)
            self.address = str(self._doorstep.socket)
        elif kind == "abstract":
            self.address = f"@pp3shm-{os.urandom(16).hex()}"
        else:
            raise RegionError("doorman", "abstract or path", kind)
        door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door = undo.enter_context(door)
        self._door.bind(_bytes_of(self.address))
        self._door.listen()
        self._closer, self._closed = socket.socketpair()
        undo.callback(self._closer.close)
        undo.callback(self._closed.close)

    def _serve(self) -> None:
        poll = select.poll()
        for end in (self._door, self._closed):
            poll.register(end, select.POLLIN)
        closed = self._closed.fileno()
        while closed not in [fd for fd, _ in poll.poll()]:
            try:
                link, _ = self._door.accept()
            except OSError:
                time.sleep(0.01)  # out of descriptors: the peer waits, no core burns
                continue
            if _uid_of(link) != os.geteuid() or not self._guests.acquire(
                blocking=False
            ):
                link.close()
                continue
            # A thread for each: one that says nothing keeps nobody else waiting.
            threading.Thread(
                target=self._receive_guest, args=(link,), daemon=True
            ).start()

    def _receive_guest(self, link: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError), link:  # its end is the peer's affair
                link.settimeout(self._patience)
                self._let_in(link)
        finally:
            self._guests.release()

    def _let_in(self, link: socket.socket) -> None:
        pidfd = -1
        ask = link.recv(_ASK.size + 1)  # first: unread, it would undo a refusal
        try:
            pidfd = pidfd_of(link)
            self._hand(link, ask, pidfd)
        except Pp3Error as error:
            link.send(str(error).encode()[:1024])
        finally:
            if pidfd >= 0:
                os.close(pidfd)

    def _choose(self, ask: bytes) -> int:
        if len(ask) != _ASK.size or ask[:4] != _MAGIC:
            raise RegionError("ask", f"{_MAGIC!r} and a rank", ask[:8])
        _, wanted, layout_id = _ASK.unpack(ask)
        ours = self._engine.region.layout_id
        if layout_id not in (ours, bytes(32)):
            raise RegionError("layout_id", ours.hex(), layout_id.hex())
        ranks = range(1, self._engine.region.shape.ranks)
        free = [k for k in ranks if self._free(k)]
        if wanted == -1 and free:
            return free[0]
        if wanted not in free:
            raise RegionError("rank", f"a free one of {free}", wanted)
        return int(wanted)

    def _free(self, rank: int) -> bool:
        held = self._pidfds.get(rank)
        return rank not in self._attached and (held is None or is_dead(held))

    def _hand(self, link: socket.socket, ask: bytes, pidfd: int) -> None:
        """The pidfd is kept before anything is given; attached once it is mapped."""
        with self._changed:  # two that ask at once get two numbers
            rank = self._choose(ask)
            if rank in self._pidfds:
                os.close(self._pidfds.pop(rank))
            self._pidfds[rank] = os.dup(pidfd)
        region = self._engine.region
        shared = region.share(RANK)
        try:
            socket.send_fds(
                link, [region.record_for(RANK, rank=rank)], [*shared.values()]
            )
        finally:
            for fd in shared.values():
                os.close(fd)
        if link.recv(len(_READY)) != _READY:
            return
        self._engine.attach_rank(rank, pidfd)
        with self._changed:
            self._attached.add(rank)
            if len(self._attached) == region.shape.ranks - 1:
                region.unlink()
            self._changed.notify_all()

    def wait(self, timeout: float = 30.0) -> None:
        """Waits until every rank is attached.

        Raises:
            RegionError: naming the ranks that are not.
        """
        ranks = set(range(1, self._engine.region.shape.ranks))
        deadline = time.monotonic() + timeout
        with self._changed:
            while missing := ranks - self._attached:
                if not self._changed.wait(deadline - time.monotonic()):
                    expected = f"attached within {timeout} s"
                    raise RegionError(f"ranks {sorted(missing)}", expected, "not")

    def close(self) -> None:
        """Shuts the door; those attached stay. Idempotent."""
        if self._thread.is_alive():
            self._closer.send(b"x")
            self._thread.join()
        for end in (self._door, self._closer, self._closed):
            end.close()
        while self._pidfds:
            os.close(self._pidfds.popitem()[1])
        step, self._doorstep = self._doorstep, None
        if step is not None and self._process == os.getpid():
            step.close()
        elif step is not None:
            step.leave()

    def __enter__(self) -> Self:
        """The doorman itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Shuts the door."""
        self.close()


def _leave_forked_child() -> None:
    """The door is the parent's: a child must not keep it open."""
    for doorman in list(_DOORS):
        doorman.close()


os.register_at_fork(after_in_child=_leave_forked_child)
