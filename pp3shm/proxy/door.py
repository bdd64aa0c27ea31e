"""Where a worker of this host comes for the region: it is then its own proxy.

No socket lies on the data path. The door's carries the proof of a key, HELLO and its
answer, the region, and afterwards nothing but its own end. The death of whoever got
the region is the watchdog's to see, by a pidfd that was taken before.
"""

import contextlib
import logging
import os
import select
import socket
import threading
import time
import weakref
from dataclasses import dataclass

from pp3shm._core import lib
from pp3shm.errors import LinkError, Pp3Error, ProfileError, RingError
from pp3shm.layout.tables import Status
from pp3shm.link import SocketLink, listen
from pp3shm.link.address import REGION, parse_door
from pp3shm.link.proof import demand_proof
from pp3shm.link.reader import read_exactly
from pp3shm.proxy.admission import LEFT, READY, give, hear, refuse
from pp3shm.proxy.board import Board
from pp3shm.proxy.hands import Hands
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.ring.handover import is_dead, peer_of, pidfd_of
from pp3shm.ring.ring import EngineEnd, ProxyEnd
from pp3shm.ring.watchdog import Watchdog

log = logging.getLogger("pp3shm.proxy")

PATIENCE_S = 5.0
"""How long a guest may take for the whole handover."""
MOST_GUESTS = 16
VACANT_SLEEP_NS = 500_000_000
PAUSE_S = 0.01


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the region.

    Attributes:
        pid: of its process, for people.
        pidfd: of the same; the door's own.
        owner: its owner id.
    """

    pid: int
    pidfd: int
    owner: int


class Door:
    """Lets one worker at a time have the region; in the place of a proxy.

    While none has it, rounds fail at once, as a proxy fails them without a session.

    Args:
        ring: the engine's end; closed after this.
        plan: the door's address, key and profile.

    Attributes:
        address: what ``pp3shm worker --region`` wants.

    Raises:
        ConfigError, LinkError: the address cannot be had.
    """

    def __init__(self, ring: EngineEnd, plan: ProxyPlan) -> None:
        self._ring = ring
        self._plan = plan
        self._board = Board(ring)
        self._holder: Holder | None = None
        self._lock = threading.Lock()
        self._closing = False
        self._last: Pp3Error | None = None
        self._guests: dict[threading.Thread, SocketLink] = {}
        where = parse_door(plan.worker, "worker")
        if where is None:
            raise LinkError(f"{plan.worker}: expected {REGION}..., found another")
        self._listener = listen(where)
        self.address = str(where).replace("unix://", REGION, 1)
        # Readable once the door closes; never drained. And once the holder changes.
        self._stop = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._change = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._process = os.getpid()
        self._watchdog = Watchdog(ring)
        self._thread = threading.Thread(
            target=self._keep, name="pp3shm-door", daemon=True
        )
        _DOORS.add(self)
        self._thread.start()

    # -- what an engine asks of its proxy ------------------------------------------

    @property
    def owner(self) -> int:
        """Owner id of the worker that has the region; 0: none has."""
        return self._watchdog.stats().owner

    def stats(self) -> dict[str, int]:
        """Process id of the worker (0: none), how many came and how many died."""
        seen = self._watchdog.stats()
        return {
            "proxy_pid": seen.pid,
            "proxy_starts": seen.starts,
            "proxy_deaths": seen.deaths,
        }

    def trouble(self) -> Pp3Error | None:
        """Why the last guest was refused; else that none has the region."""
        if self._last is not None or self.owner:
            return self._last
        return LinkError(f"{self.address}: expected a worker to come, found none")

    def replace(self) -> bool:
        """Kill the worker, a stopped one too; whoever started it may start another."""
        if not self.owner:
            return False
        self._watchdog.replace()
        return True

    def close(self) -> None:
        """Shut the door; the worker sees it and ends by itself. Safe to call twice."""
        if self._closing:
            return
        self._closing = True
        if self._process != os.getpid():
            return  # a forked child, which has left
        os.eventfd_write(self._stop, 1)
        os.eventfd_write(self._change, 1)
        self._thread.join()
        self._listener.close()
        with self._lock:
            guests = tuple(self._guests)
        for guest in guests:
            guest.join(PATIENCE_S)
        self._watchdog.stop()
        if not any(guest.is_alive() for guest in guests):
            os.close(self._stop)
            os.close(self._change)

    def _leave(self) -> None:
        """In a forked child: the door, and the link to the worker, are the parent's."""
        self._closing = True
        self._listener.close()
        for link in [*self._guests.values()]:
            link.close()
        if self._holder is not None:
            os.close(self._holder.pidfd)
        os.close(self._stop)
        os.close(self._change)

    # -- the door's thread ---------------------------------------------------------

    def _keep(self) -> None:
        while not self._closing:
            try:
                if self._holder is None:
                    self._vacant()
                else:
                    self._occupied()
            except (OSError, RingError) as error:
                log.warning("door: %s", error)  # the region's bytes, or descriptors
                time.sleep(PAUSE_S)

    def _occupied(self) -> None:
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(self._change, select.POLLIN)
        while not self._closing and self._holder is not None:
            ready = [fd for fd, _ in poll.poll()]
            self._heed(waiting=self._listener.fileno() in ready)

    def _vacant(self) -> None:
        """Fail every round, as long as there is nobody to draft."""
        with ProxyEnd.thread(self._ring) as end:
            try:
                hands = Hands(end, self._plan.profile)
                while not self._closing and self._holder is None:
                    if self._failed_one(hands):
                        continue
                    wake = lib.pp3_proxy_sleep(
                        end.handle,
                        self._listener.fileno(),
                        self._change,
                        0,
                        VACANT_SLEEP_NS,
                    )
                    waiting = wake > 0 and bool(wake & lib.PP3_WAKE_LINK)
                    self._heed(waiting=waiting)
            finally:
                # This thread is the owner, and from here on it touches nothing.
                self._ring.owner_dead(end.owner)

    def _failed_one(self, hands: Hands) -> bool:
        """Fail the next round, if there is one."""
        hands.sweep()
        try:
            if hands.take() is None:
                return False
        except RingError as error:
            self._board.count("bad_request")
            self._board.note(error)
            time.sleep(PAUSE_S)  # a word that steers nowhere stays as it is
            return True
        self._board.count("peer_died", hands.fail_all(Status.PEER_DIED))
        return True

    def _heed(self, *, waiting: bool) -> None:
        with contextlib.suppress(BlockingIOError):
            if not self._closing:
                os.eventfd_read(self._change)
        if not waiting or self._closing:
            return
        link = self._listener.accept()
        if link is None:
            return
        with self._lock:
            if len(self._guests) >= MOST_GUESTS:
                link.close()
                return
            guest = threading.Thread(
                target=self._receive, args=(link,), name="pp3shm-guest", daemon=True
            )
            self._guests[guest] = link
        guest.start()  # one that says nothing keeps nobody else waiting

    # -- a guest's thread ----------------------------------------------------------

    def _receive(self, link: SocketLink) -> None:
        try:
            with contextlib.closing(link):
                self._let_in(link)
        except (Pp3Error, OSError) as error:
            log.warning("door: %s", error)
            if isinstance(error, Pp3Error):
                self._last = error
        finally:
            with self._lock:
                self._guests.pop(threading.current_thread(), None)

    def _let_in(self, link: SocketLink) -> None:
        deadline = time.monotonic() + PATIENCE_S
        with socket.socket(fileno=os.dup(link.fileno())) as plain:
            pid, pidfd = peer_of(plain)[0], pidfd_of(plain)  # of this user, or raises
        try:
            if self._plan.psk is not None:
                demand_proof(link, self._plan.psk, deadline, self._stop)
            session = hear(link, self._plan.profile, deadline, self._stop)
            if session is None:
                return
            holder = self._take_place(link, session, pid, pidfd, deadline)
        except ProfileError:
            self._board.count("mismatches")
            raise
        finally:
            os.close(pidfd)
        if holder is None:
            return
        left = True  # until it has been given something to let go of
        try:
            give(link, session, self._plan.profile, self._ring, holder.owner)
            left = False
            left = self._until_left(link, holder, deadline)
        finally:
            self._free(holder, left=left)

    def _take_place(
        self, link: SocketLink, session: bytes, pid: int, pidfd: int, deadline: float
    ) -> Holder | None:
        """Who holds the region from now on; None: the door closes."""
        while not self._closing:
            with self._lock:  # nobody is freed meanwhile, whose descriptor is looked at
                before = self._holder
                if before is None:
                    holder = self._adopt(pid, pidfd)
                    if holder is not None:
                        return holder
                lives = before is not None and not is_dead(before.pidfd)
            if before is not None and lives:
                found = f"that of process {before.pid}"
                text = f"door: expected no worker at the region, found {found}"
                refuse(link, session, text)
                raise LinkError(text)
            if time.monotonic() >= deadline:
                raise LinkError("door: expected the last worker's end, found it unseen")
            time.sleep(0.001)  # its death is seen in a moment
        return None

    def _adopt(self, pid: int, pidfd: int) -> Holder | None:
        """Watched and an owner before it has a descriptor."""
        owner = self._ring.add_owner()
        kept = os.dup(pidfd)
        try:
            adopted = self._watchdog.adopt(pidfd, pid, owner)
        except BaseException:
            os.close(kept)
            self._ring.owner_dead(owner)
            raise
        if not adopted:
            os.close(kept)
            self._ring.owner_dead(owner)
            return None
        self._holder = Holder(pid, kept, owner)
        os.eventfd_write(self._change, 1)
        return self._holder

    def _until_left(self, link: SocketLink, holder: Holder, deadline: float) -> bool:
        """Wait until it has let go of the region: True; is dead, or the door closes.

        Whoever got the region and then says nothing, or something else, holds it until
        it is known to be dead.
        """
        with contextlib.suppress(LinkError):
            word = read_exactly(link, len(READY), deadline, self._stop)
            if word == READY:
                self._last = None
            while self._said_something(link, holder):
                limit = time.monotonic() + PATIENCE_S
                if read_exactly(link, len(LEFT), limit, self._stop) == LEFT:
                    return True
        while not self._closing and not is_dead(holder.pidfd):
            self._said_something(None, holder)
        return False

    def _said_something(self, link: SocketLink | None, holder: Holder) -> bool:
        """Wait for a word: True; False where the holder is dead or the door closes."""
        poll = select.poll()
        for fd in (holder.pidfd, self._stop):
            poll.register(fd, select.POLLIN)
        if link is not None:
            poll.register(link, select.POLLIN)
        ready = [fd for fd, _ in poll.poll()]
        return holder.pidfd not in ready and self._stop not in ready

    def _free(self, holder: Holder, *, left: bool) -> None:
        """It is known to touch nothing any more, or nobody uses the region."""
        if not self._closing:
            self._ring.owner_dead(holder.owner)  # before another gets the region
            if left:
                self._watchdog.forget(holder.owner)
        with self._lock:
            self._holder = None
            os.close(holder.pidfd)
        os.eventfd_write(self._change, 1)


_DOORS: "weakref.WeakSet[Door]" = weakref.WeakSet()


def _leave_forked_child() -> None:
    """A child must not keep a worker believing that its engine lives."""
    for door in list(_DOORS):
        door._leave()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_leave_forked_child)
