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

from pp3shm.errors import LinkError, Pp3Error, ProfileError, RingError
from pp3shm.link import SocketLink, listen
from pp3shm.link.address import REGION, parse_door
from pp3shm.link.proof import demand_proof
from pp3shm.proxy.admission import give, hear, refuse
from pp3shm.proxy.board import Board
from pp3shm.proxy.holder import Holder
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.proxy.vacant import fail_rounds
from pp3shm.ring.handover import is_dead, peer_of, pidfd_of
from pp3shm.ring.ring import EngineEnd
from pp3shm.ring.watchdog import Watchdog

log = logging.getLogger("pp3shm.proxy")

PATIENCE_S = 5.0
"""How long a guest may take for the whole handover."""
MOST_GUESTS = 16
PAUSE_S = 0.01


class _Occupied(LinkError):
    """A worker came while another had the region: nothing that an engine lacks."""


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
        return self._watchdog.stats().counts()

    def trouble(self) -> Pp3Error | None:
        """Why the last guest was refused; else that none has the region."""
        if self._last is not None or self.owner:
            return self._last
        return LinkError(f"{self.address}: expected a worker to come, found none")

    def replace(self) -> bool:
        """Kill the worker, a stopped one too; whoever started it may start another.

        One in the engine's own process cannot be killed: False, as where none is.
        """
        with self._lock:  # nobody is adopted in between
            seen = self._watchdog.stats()
            if not seen.owner or seen.pid == os.getpid():
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
            except Exception:
                log.exception("the door's thread failed; it goes on")
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

        def goes_on(waiting: bool) -> bool:
            self._heed(waiting=waiting)
            return not self._closing and self._holder is None

        fds = self._listener.fileno(), self._change
        fail_rounds(self._ring, self._plan.profile, self._board, fds, goes_on)

    def _heed(self, *, waiting: bool) -> None:
        with contextlib.suppress(BlockingIOError):
            if not self._closing:
                os.eventfd_read(self._change)
        if not waiting or self._closing:
            return
        link = self._listener.accept()
        if link is None:
            return
        try:
            self._receive(link)
        except BaseException:
            link.close()
            raise

    def _receive(self, link: SocketLink) -> None:
        """A thread for each: one that says nothing keeps nobody else waiting."""
        guest = threading.Thread(
            target=self._hear_out, args=(link,), name="pp3shm-guest", daemon=True
        )
        with self._lock:
            if len(self._guests) >= MOST_GUESTS:
                link.close()
                return
            self._guests[guest] = link
        try:
            guest.start()
        except Exception:
            log.exception("door: a guest is turned away: no thread to be had")
            with self._lock:
                del self._guests[guest]
            link.close()

    # -- a guest's thread ----------------------------------------------------------

    def _hear_out(self, link: SocketLink) -> None:
        try:
            with contextlib.closing(link):
                self._let_in(link)
        except _Occupied as error:
            log.warning("door: %s", error)
        except (Pp3Error, OSError) as error:
            log.warning("door: %s", error)
            with self._lock:
                if isinstance(error, Pp3Error) and self._holder is None:
                    self._last = error  # else it is no reason why none drafts
        except Exception:
            log.exception("door: a guest's thread failed")
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
        try:
            give(link, session, self._plan.profile, self._ring, holder.owner)
        except BaseException:  # it has been given nothing to let go of
            self._free(holder, left=True)
            raise
        # What else may fail from here on, it has the region until its end is known.
        self._free(holder, left=self._see_off(link, holder))

    def _see_off(self, link: SocketLink, holder: Holder) -> bool:
        """As ``Holder.until_left``, whatever goes wrong meanwhile."""
        while not self._closing:
            try:
                return holder.until_left(link, self._stop, self._mapped)
            except Exception:
                log.exception("door: process %s is waited for again", holder.pid)
                time.sleep(PAUSE_S)
        return False

    def _mapped(self) -> None:
        """A worker has the region: no refusal before it is of interest."""
        with self._lock:
            self._last = None

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
                with contextlib.suppress(LinkError):  # it does not listen
                    refuse(link, session, text)
                raise _Occupied(text)
            if time.monotonic() >= deadline:
                raise LinkError("door: expected the last worker's end, found it unseen")
            time.sleep(0.001)  # its death is seen in a moment
        return None

    def _adopt(self, pid: int, pidfd: int) -> Holder | None:
        """Watched and an owner before it has a descriptor."""
        kept = os.dup(pidfd)
        try:
            holder = Holder(pid, kept, self._ring.add_owner())
        except BaseException:
            os.close(kept)
            raise
        adopted = False
        try:
            adopted = self._watchdog.adopt(pidfd, pid, holder.owner)
        finally:
            if not adopted:
                os.close(kept)
                self._ring.owner_dead(holder.owner)
        if not adopted:
            return None
        self._holder = holder
        os.eventfd_write(self._change, 1)
        return holder

    def _free(self, holder: Holder, *, left: bool) -> None:
        """It is known to touch nothing any more, or nobody uses the region."""
        try:
            if not self._closing:
                self._ring.owner_dead(holder.owner)  # before another gets the region
                if left:
                    self._watchdog.forget(holder.owner)
        finally:
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
