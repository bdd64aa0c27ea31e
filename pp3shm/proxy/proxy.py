"""The two ways to run a proxy's loop, and the watchdog beside it."""

import logging
import sys
import threading
import time

from pp3shm.errors import LinkError
from pp3shm.proxy.loop import ProxyLoop
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.ring.ring import EngineEnd, ProxyEnd
from pp3shm.ring.watchdog import Watchdog

log = logging.getLogger("pp3shm.proxy")

COMMAND = (sys.executable, "-P", "-m", "pp3shm.proxy")
"""-P: the proxy's code must not come from whatever folder the engine runs in."""
JOIN_TIMEOUT_S = 10.0


class ProcessProxy:
    """The loop in a process of its own, started by the watchdog as often as it dies.

    Args:
        ring: the engine's end; closed after this.
        plan: what the loop is told.
    """

    def __init__(self, ring: EngineEnd, plan: ProxyPlan) -> None:
        self._watchdog = Watchdog(ring, COMMAND, config=plan.to_bytes())

    @property
    def owner(self) -> int:
        """Owner id of the process that runs; 0: none does."""
        return self._watchdog.stats().owner

    def stats(self) -> dict[str, int]:
        """Process id (0: none runs), starts and deaths."""
        return self._watchdog.stats().counts()

    def trouble(self) -> LinkError | None:
        """Why no process runs for long, if none does."""
        seen = self._watchdog.stats()
        if not seen.deaths and seen.last_error is None:
            return None
        return LinkError(
            f"proxy process: expected it to run, found {seen.deaths} deaths, the last "
            f"with status {seen.last_status}; last start: {seen.last_error or 'well'}"
        )

    def replace(self) -> bool:
        """Kill the process, a stopped one too; the watchdog starts the next."""
        self._watchdog.replace()
        return True

    def close(self) -> None:
        """End process and watchdog. Safe to call twice."""
        self._watchdog.stop()


class ThreadProxy:
    """The loop in a thread of the engine's process.

    Should the loop itself fail, by a fault of ours, its rounds are failed and another
    one starts, as another process would.

    Args:
        ring: the engine's end; closed after this.
        plan: what the loop is told.
    """

    def __init__(self, ring: EngineEnd, plan: ProxyPlan) -> None:
        self._ring = ring
        self._plan = plan
        self._starts = self._deaths = self._owner = 0
        self._closing = threading.Event()
        self._loop: ProxyLoop | None = None
        self._watchdog = Watchdog(ring)
        self._thread = threading.Thread(
            target=self._run, name="pp3shm-proxy", daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._serve()
            except Exception:
                self._deaths += 1
                log.exception("the proxy's loop failed; another one starts")
                self._closing.wait(0.1)

    def _serve(self) -> None:
        """One loop, from its owner id to its end."""
        with ProxyEnd.thread(self._ring) as end:
            self._starts += 1
            self._owner = end.owner
            try:
                loop = self._loop = ProxyLoop(end, self._plan)
                if self._closing.is_set():
                    loop.stop()
                loop.run()
            finally:
                # This thread is the owner, and from here on it touches nothing. What
                # is not kept gives its descriptor back now, and not with the engine.
                self._owner = 0
                self._loop = None
                self._ring.owner_dead(end.owner)

    @property
    def owner(self) -> int:
        """Owner id of the loop that runs; 0: none does."""
        return self._owner

    def stats(self) -> dict[str, int]:
        """As ``ProcessProxy.stats``; a thread has no process id of its own."""
        return {
            "proxy_pid": 0,
            "proxy_starts": self._starts,
            "proxy_deaths": self._deaths,
        }

    def trouble(self) -> LinkError | None:
        """As ``ProcessProxy.trouble``."""
        if not self._deaths:
            return None
        return LinkError(
            f"proxy thread: expected it to run, found it failed {self._deaths} times"
        )

    def replace(self) -> bool:
        """A thread cannot be killed: False."""
        return False

    def close(self) -> None:
        """End loop, thread and watchdog. Safe to call twice."""
        self._closing.set()
        limit = time.monotonic() + JOIN_TIMEOUT_S
        while True:
            # Again each time: a loop that is just being made, and has not seen that
            # it is to end, is not there for the first one.
            loop = self._loop
            if loop is not None:
                loop.stop()
            if self._thread is threading.current_thread():
                break
            self._thread.join(0.1)
            if not self._thread.is_alive() or time.monotonic() >= limit:
                break
        if self._thread.is_alive():
            log.error("the proxy's thread did not end within %s s", JOIN_TIMEOUT_S)
        self._watchdog.stop()
