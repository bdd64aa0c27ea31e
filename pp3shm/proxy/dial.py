"""Dialling in a thread of its own, so that the loop goes on meanwhile."""

import os
import threading
from collections.abc import Callable

from pp3shm.proxy.greet import Greeting


class Dialler:
    """Greets the worker in the background; one dial at a time.

    Args:
        dial: gives the greeting, or raises why there is none.

    Attributes:
        fd: readable while an outcome waits to be taken.
    """

    def __init__(self, dial: Callable[[], Greeting]) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._greet = dial
        self._lock = threading.Lock()
        self._outcome: Greeting | Exception | None = None
        self._closed = False

    def start(self) -> None:
        """Dial; the outcome comes within the plan's time."""
        threading.Thread(target=self._dial, name="pp3shm-dial", daemon=True).start()

    def take(self) -> Greeting | Exception | None:
        """The outcome of the dial, once; None while it is under way."""
        with self._lock:
            outcome, self._outcome = self._outcome, None
            if outcome is not None:
                os.eventfd_read(self.fd)
        return outcome

    def close(self) -> None:
        """Take nothing more; a dial that is under way hangs up by itself."""
        with self._lock:
            self._closed = True
            os.close(self.fd)
            _hang_up(self._outcome)

    def _dial(self) -> None:
        try:
            outcome: Greeting | Exception = self._greet()
        except Exception as error:  # noqa: BLE001 - carried to the loop, judged there
            outcome = error
        with self._lock:  # the descriptor's number may be another's once it is closed
            if self._closed:
                _hang_up(outcome)
                return
            self._outcome = outcome
            os.eventfd_write(self.fd, 1)


def _hang_up(outcome: Greeting | Exception | None) -> None:
    if isinstance(outcome, Greeting):
        outcome.close()
