"""The worker: listens, gives each connection a thread, and ends in order."""

import contextlib
import logging
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Self

from pp3shm.errors import ConfigError
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import Status
from pp3shm.link import Address, Listener, RdmaAddress, SocketLink, listen, rdma
from pp3shm.worker.connection import Connection, Host, Patience
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import Drafter, DrafterSource, Factory
from pp3shm.worker.session import Refusal
from pp3shm.worker.stop import Stop

logger = logging.getLogger("pp3shm.worker")

_PENDING_MOST = 64
# Out of descriptors or memory: others must end before accepting is worth a try.
_PAUSE_S = 0.05
# A signal that comes just before the main thread sleeps, or to another thread, does not
# wake it, and its Python handler runs only when the main thread looks up again.
_SIGNAL_MS = 200


class Worker:
    """Serves STEPs of any number of engines with a drafter.

    Args:
        drafter: an object with the methods of ``Drafter``, or a class or function that
            takes the profile and makes one for each session.
        profile: the worker's own. An engine whose profile differs in any field is
            refused by name; a greedy worker serves no sampled engine, and the reverse.
        listen: addresses; port 0 takes a free one.
        psk: the pre-shared key, 16 to 64 bytes; then every peer must prove that it has
            it, on every address.
        patience: how long peers may take.
        max_sessions: more engines than this are refused.

    Raises:
        ConfigError: an argument cannot be used.
    """

    def __init__(
        self,
        drafter: Drafter | Factory,
        profile: Profile,
        listen: Sequence[str | Address],
        psk: bytes | None = None,
        *,
        patience: Patience | None = None,
        max_sessions: int = 64,
    ) -> None:
        if not listen:
            raise ConfigError("listen", "at least one address", "none")
        if psk is not None and not 16 <= len(psk) <= 64:
            raise ConfigError("key", "16 to 64 bytes", f"{len(psk)} bytes")
        if max_sessions < 1:
            raise ConfigError("max_sessions", "at least 1", max_sessions)
        self._counts = Counts()
        self._source = DrafterSource(drafter, profile, self._counts)
        self._profile = profile
        self._wanted = tuple(listen)
        self._psk = psk
        self._patience = patience or Patience()
        self._max_sessions = max_sessions
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._threads: set[threading.Thread] = set()
        self._pending: dict[SocketLink, None] = {}  # in order of arrival
        self._sessions: set[bytes] = set()
        self._accepting: threading.Thread | None = None
        self._stop = Stop()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it really listens, one for each address asked for."""
        return tuple(str(listener.address) for listener in self._listeners)

    def start(self) -> Self:
        """Listen, and serve from now on in threads of its own.

        Raises:
            ConfigError, LinkError: an address cannot be used; none is then.
        """
        if self._accepting is not None:
            raise ConfigError("worker", "one that was not started yet", "started")
        try:
            for address in self._wanted:
                listener = listen(address, self._psk)
                self._listeners.append(listener)
                if isinstance(listener.address, RdmaAddress):
                    rdma.require("listen")
        except BaseException:
            self._close_listeners()
            raise
        # Readable from the start, if the end was asked for before.
        self._stop.open()
        self._accepting = threading.Thread(
            target=self._accept_all, name="pp3shm-accept", daemon=True
        )
        self._accepting.start()
        return self

    def request_stop(self) -> None:
        """Ask for the end, from anywhere, a signal handler included: takes no lock."""
        self._stop.ask()

    def serve_forever(self) -> None:
        """Wait until the end is asked for; then close."""
        if self._accepting is None:
            self.start()
        if self._stop.fd >= 0:
            poll = select.poll()
            poll.register(self._stop.fd, select.POLLIN)
            while not self._stop.asked:
                poll.poll(_SIGNAL_MS)
        self.close()

    def close(self, timeout_s: float = 5.0) -> None:
        """Say BYE to every engine, stop listening, end the threads.

        Args:
            timeout_s: how long a drafter in the middle of a call is waited for. Its
                thread is a daemon: it does not hold the process up.
        """
        if self._accepting is None:
            return
        if not self._stop.is_mine:
            self._close_listeners()  # our copies; the threads are in the parent
            return
        self.request_stop()
        deadline = time.monotonic() + timeout_s
        self._accepting.join()  # it never waits for a peer
        self._close_listeners()
        with self._lock:
            threads = tuple(self._threads)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        # A thread that is left looks at the descriptor again: then it stays open.
        if not any(thread.is_alive() for thread in threads):
            self._stop.close()

    def stats(self) -> dict[str, int]:
        """Counters since the start, by name, and ``sessions_open``."""
        with self._lock:
            open_now = len(self._sessions)
        return {**self._counts.snapshot(), "sessions_open": open_now}

    def __enter__(self) -> Self:
        """Start, unless it is started."""
        return self if self._accepting is not None else self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    # ---- the accepting thread ----

    def _accept_all(self) -> None:
        poll = select.poll()
        poll.register(self._stop.fd, select.POLLIN)
        by_fd = {listener.fileno(): listener for listener in self._listeners}
        for fd in by_fd:
            poll.register(fd, select.POLLIN)
        while not self._stop.asked:
            for fd, _ in poll.poll():
                if fd in by_fd:
                    self._accept(by_fd[fd])

    def _accept(self, listener: Listener) -> None:
        try:
            link = listener.accept()
        except OSError as error:
            self._counts.add("accepts_failed")
            logger.warning("%s: %s", listener.address, error)
            time.sleep(_PAUSE_S)
            return
        if link is None:
            return
        self._counts.add("connections")
        with self._lock:
            # Whoever does not finish a handshake makes room for those who may.
            if len(self._pending) >= _PENDING_MOST:
                next(iter(self._pending)).abort()
                self._pending.pop(next(iter(self._pending)))
            self._pending[link] = None
            thread = threading.Thread(
                target=self._serve, args=(link,), name="pp3shm-session", daemon=True
            )
            self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError as error:  # no thread to be had
            self._counts.add("accepts_failed")
            logger.warning("%s: %s", listener.address, error)
            link.close()
            self._forget(link, thread)

    # ---- the connections' threads ----

    def _serve(self, link: SocketLink) -> None:
        host = Host(
            profile=self._profile,
            psk=self._psk,
            source=self._source,
            counts=self._counts,
            patience=self._patience,
            stop=self._stop.fd,
            stopping=self._is_stopping,
            admit=self._admit,
        )
        try:
            Connection(link, host).serve(self._proved(link))
        finally:
            self._forget(link, threading.current_thread())

    def _proved(self, link: SocketLink) -> Callable[[], None]:
        def proved() -> None:
            with self._lock:
                self._pending.pop(link, None)

        return proved

    def _is_stopping(self) -> bool:
        return self._stop.asked

    def _forget(self, link: SocketLink, thread: threading.Thread) -> None:
        with self._lock:
            self._pending.pop(link, None)
            self._threads.discard(thread)

    @contextlib.contextmanager
    def _admit(self, session: bytes) -> Iterator[None]:
        """Keep a session's name for it while it lasts.

        The drafter knows requests by it, so nobody may take another's.
        """
        with self._lock:
            if session in self._sessions:
                raise Refusal(
                    Status.REFUSED,
                    "hello.session: expected a new one, found one in use",
                )
            if len(self._sessions) >= self._max_sessions:
                raise Refusal(
                    Status.REFUSED,
                    f"hello: expected at most {self._max_sessions} sessions, "
                    "found them open",
                )
            self._sessions.add(session)
        try:
            yield
        finally:
            with self._lock:
                self._sessions.discard(session)
