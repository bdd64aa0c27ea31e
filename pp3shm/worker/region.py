"""A worker at the region: on the engine's host, its own proxy, no socket in between."""

import contextlib
import logging
import os
import select
import socket
import threading
import time
from types import TracebackType
from typing import Self

from pp3shm.errors import ConfigError, LinkError, Pp3Error
from pp3shm.layout.keyproof import check_key
from pp3shm.layout.profile import Profile
from pp3shm.link import SocketLink
from pp3shm.link.address import REGION, parse_door
from pp3shm.link.socket import connect
from pp3shm.proxy.admission import LEFT, READY, ask
from pp3shm.proxy.loop import ProxyLoop
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.ring.handover import attach_proxy, pidfd_of
from pp3shm.ring.waiting import SPIN_NS, Wait, Waiting
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import Drafter, DrafterSource, Factory
from pp3shm.worker.near import NearDrafter
from pp3shm.worker.near_session import NearSession
from pp3shm.worker.stop import Stop

logger = logging.getLogger("pp3shm.worker")

_HANDOVER_S = 10.0
_PAUSE_S = 0.02
_SIGNAL_MS = 200
"""As in ``worker.server``: how often the main thread looks up for signals."""


class RegionWorker:
    """Serves the STEPs of one engine of this host from its region.

    It ends with the engine, or when it is asked to; an engine whose worker ended takes
    another one.

    Args:
        drafter: as for ``Worker``.
        profile: the worker's own; an engine of another one refuses it, by field.
        door: ``Engine.door``, ``region://@name`` or ``region:///path``.
        psk: the engine's pre-shared key, if it has one.
        wait: how it waits for rounds; see ``Engine.create``.
        spin_ns: the longest spin of a hybrid.
        attach_timeout_s: how long to wait for an engine to open its door, seconds.
        session: what answers its STEPs; another one is for benchmarks.

    Raises:
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        drafter: Drafter | Factory,
        profile: Profile,
        door: str,
        psk: bytes | None = None,
        *,
        wait: Wait = "hybrid",
        spin_ns: int = SPIN_NS,
        attach_timeout_s: float = 10.0,
        session: type[NearSession] = NearSession,
    ) -> None:
        where = parse_door(door, "door")
        if where is None or door == REGION:
            raise ConfigError("door", f"{REGION}@name or {REGION}/path", repr(door))
        if psk is not None:
            check_key(psk)
        if not 0 <= attach_timeout_s < float("inf"):  # a NaN is neither
            found = attach_timeout_s
            raise ConfigError("attach_timeout_s", "seconds, 0 or more", found)
        self._where = where
        self._attach_s = attach_timeout_s
        waiting = Waiting(wait, spin_ns)
        self._plan = ProxyPlan(profile, door, psk, waiting)
        self._counts = Counts()
        source = DrafterSource(drafter, profile, self._counts)
        self._far = NearDrafter(source, profile, self._counts, waiting, session)
        self._thread: threading.Thread | None = None
        self._loop: ProxyLoop | None = None
        self._failure: BaseException | None = None
        self._done = threading.Event()
        self._stop = Stop()

    @property
    def addresses(self) -> tuple[str, ...]:
        """The door, alone; named as that of ``Worker``."""
        return (self._plan.worker,)

    def start(self) -> Self:
        """Take the region, and draft from now on in a thread of its own.

        Raises:
            LinkError: no engine there in time, or it refuses us.
            ProfileError: its profile differs, by field.
            RegionError: a region that is not as it must be.
        """
        if self._stop.fd >= 0 or self._thread is not None:
            raise ConfigError("worker", "one that was not started yet", "started")
        self._stop.open()
        link = self._connect()
        if link is None:
            self._done.set()
            return self
        self._loop, attached = self._attach(link)
        self._thread = threading.Thread(
            target=self._serve,
            args=(self._loop, attached),
            name="pp3shm-region",
            daemon=True,
        )
        try:
            self._thread.start()
        except Exception:  # no thread to be had
            self._loop = self._thread = None
            attached.close()
            raise
        return self

    def _attach(self, link: SocketLink) -> tuple[ProxyLoop, contextlib.ExitStack]:
        """A loop at the region, and what lets go of it and says so, in this order.

        Said also where the way ends early: of a living process the engine can know
        nothing else, and lets nobody in after it.
        """
        with contextlib.ExitStack() as undo:
            undo.callback(link.close)
            undo.callback(_say_left, link)
            ask(link, self._plan, time.monotonic() + _HANDOVER_S)
            plain = socket.socket(fileno=os.dup(link.fileno()))
            undo.callback(plain.close)
            engine = pidfd_of(plain)
            undo.callback(os.close, engine)
            end, _ = attach_proxy(plain, _HANDOVER_S)
            undo.callback(end.close)
            link.send(READY)
            control = select.epoll()
            undo.callback(control.close)
            # Its end of the link may live on in a forked child, the pidfd does not.
            for fd in (link, engine, self._stop.fd):
                control.register(fd, select.EPOLLIN)
            loop = ProxyLoop(end, self._plan, control.fileno(), far=self._far)
            return loop, undo.pop_all()

    def _connect(self) -> SocketLink | None:
        """A link to the engine's door; None where the end was asked for first."""
        deadline = time.monotonic() + self._attach_s
        while True:
            try:
                return connect(self._where, _HANDOVER_S)
            except LinkError:
                if self._stop.asked:
                    return None
                if time.monotonic() >= deadline:
                    raise LinkError(
                        f"{self._plan.worker}: expected an engine's door within "
                        f"{self._attach_s:g} s, found none"
                    ) from None
            time.sleep(_PAUSE_S)

    def _serve(self, loop: ProxyLoop, attached: contextlib.ExitStack) -> None:
        try:
            with attached:  # also a fault of ours leaves nothing in hand
                loop.run()
        except BaseException as error:
            self._failure = error
            logger.exception("the worker's loop failed")
        finally:
            self._done.set()

    def request_stop(self) -> None:
        """Ask for the end, from anywhere, a signal handler included: takes no lock."""
        self._stop.ask()

    def serve_forever(self) -> None:
        """Wait until the engine ends, or the end is asked for; then close.

        Raises:
            LinkError: it had to end by a fault, which was logged.
        """
        if self._thread is None and not self._done.is_set():
            self.start()
        while not self._done.wait(_SIGNAL_MS / 1000) and not self._stop.asked:
            pass
        self.close()
        if self._failure is not None:
            raise LinkError(f"worker: expected to serve, found: {self._failure}")

    def close(self, timeout_s: float = 5.0) -> None:
        """Let go of the region.

        Args:
            timeout_s: how long a drafter in the middle of a call is waited for. Its
                thread is a daemon: it does not hold the process up, whose end is then
                what the engine sees.
        """
        if not self._stop.is_mine:
            return
        self.request_stop()
        if self._loop is not None:
            self._loop.stop()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                return
        self._stop.close()

    def stats(self) -> dict[str, int]:
        """Counters since the start, by name, and ``attached``."""
        attached = self._thread is not None and not self._done.is_set()
        return {**self._counts.snapshot(), "attached": int(attached)}

    def __enter__(self) -> Self:
        """Start, unless it is started."""
        started = self._thread is not None or self._done.is_set()
        return self if started else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()


def _say_left(link: SocketLink) -> None:
    """Nothing of the region is touched any more."""
    with contextlib.suppress(Pp3Error):  # nobody there: it is gone
        link.send(LEFT)
