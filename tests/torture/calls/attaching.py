"""Scenes in which one process attaches to the region of another."""

import contextlib
import os
import socket
import threading

from torture.calls.scene import Scene
from torture.calls.trace import mark
from torture.calls.world import (
    WrongError,
    attached_or_refused,
    expect,
    make_engine,
    next_create_sweeps,
    rounds,
    until,
)

from pp3shm._core import lib
from pp3shm.errors import RingError
from pp3shm.ring.handover import Doorman, attach_proxy, attach_rank
from pp3shm.ring.record import PROXY, RANK
from pp3shm.ring.region import Region
from pp3shm.ring.ring import RankEnd


class AttachRank(Scene):
    """A rank attaches at the doorman of an engine that lives here."""

    def victim(self) -> None:
        address = str(self.told())
        mark()
        self.rank = attach_rank(address, 1, 30.0)

    def begin(self) -> None:
        self.engine = make_engine(self.kind)
        self.door = Doorman(self.engine)
        self.tell(self.door.address)

    def settle(self) -> str:
        """The number is the dead rank's for good, or free again."""
        second: list[RankEnd] = []

        def decided() -> bool:
            if self.engine.rank_dead(1):
                return True
            end = attached_or_refused(lambda: attach_rank(self.door.address, 1, 30.0))
            if isinstance(end, RankEnd):
                second.append(end)
            return bool(second)

        until("rank 1 is attached or free again", decided)
        if not second:
            rounds(self.engine, 6)
            return "attached, then dead"
        with second[0] as rank:
            self.door.wait(30.0)
            rounds(self.engine, 6, rank.release)
        return "another one attached"

    def end(self) -> None:
        self.door.close()
        until("the door is left", lambda: threading.active_count() == 1)
        self.engine.close()
        super().end()


class AttachNamed(AttachRank):
    """A rank attaches to names, and closes again."""

    def victim(self) -> None:
        record, prefix = self.told()
        mark()
        RankEnd(Region.attach_named(record, prefix)).close()

    def begin(self) -> None:
        self.engine = make_engine("posix")
        self.door = Doorman(self.engine)
        self.tell(
            (self.engine.region.record_for(RANK, rank=1), self.engine.region.prefix)
        )

    def settle(self) -> str:
        self.engine.attach_rank(1, self.child.pidfd)
        rounds(self.engine, 6)
        return "attached, then dead"


def _is_closed(link: socket.socket) -> bool:
    try:
        return link.recv(1) == b""
    except ConnectionResetError:
        return True  # with the record still unread


class AttachProxy(Scene):
    """A proxy process attaches by the socket it was started with, and takes."""

    def victim(self) -> None:
        self.told()
        self.near.close()
        mark()
        end, _ = attach_proxy(self.far, 30.0)
        end.take()

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def begin(self) -> None:
        """As watchdog.c hands the region over."""
        self.far.close()
        self.engine = engine = make_engine(self.kind)
        engine.attach_rank(1, self.child.pidfd)
        self.owner = engine.add_thread_owner()
        self.ticket = engine.step(bytes(8), 2**62)
        shared = engine.region.share(PROXY)
        record = engine.region.record_for(PROXY, owner=self.owner)
        fds = [*shared.values(), lib.pp3_bell_fd(engine.handle)]
        socket.send_fds(self.near, [record], fds)
        for fd in shared.values():
            os.close(fd)
        self.tell(None)

    def settle(self) -> str:
        expect("the socket tells of the death", holds=_is_closed(self.near))
        orphaned = self.engine.owner_dead(self.owner)
        if orphaned:
            expect("status 7", holds=self.engine.wait(self.ticket).status == 7)
        else:
            self.engine.cancel(self.ticket)
        self.engine.release(self.ticket)
        rounds(self.engine, 6)
        return "orphaned" if orphaned else "not taken"

    def end(self) -> None:
        self.near.close()
        self.engine.close()
        super().end()


class EngineAtTheDoor(Scene):
    """The engine lets a rank in, which lives here."""

    def victim(self) -> None:
        engine = make_engine(self.kind)
        door = Doorman(engine)
        os.write(self.back[1], door.address.encode())
        mark()
        door.wait(30.0)

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.back = os.pipe()
        self.rank: list[object | None] = []
        self.wrong: list[WrongError] = []

    def _attach(self, address: str) -> None:
        try:
            self.rank.append(attached_or_refused(lambda: attach_rank(address, 1, 30.0)))
        except WrongError as error:
            self.wrong.append(error)

    def meanwhile(self) -> None:
        address = os.read(self.back[0], 200).decode()
        self.thread = threading.Thread(target=self._attach, args=(address,))
        self.thread.start()

    def settle(self) -> str:
        self.thread.join(60.0)
        expect("stuck: the rank at the door", holds=not self.thread.is_alive())
        if self.wrong:
            raise self.wrong[0]
        end = self.rank[0]
        if isinstance(end, RankEnd):
            with end, contextlib.suppress(RingError):
                end.wait(1, limit_ns=0)  # no such round: an error, and no wait
        next_create_sweeps(self.child.pid)
        return "attached" if end else "refused"

    def end(self) -> None:
        for fd in self.back:
            os.close(fd)
        super().end()
