"""Threads that work against each other, and what became of them."""

import contextlib
import queue
import sys
import threading
import time

LIMIT_S = 120.0  # a watchdog, not a promise


class Crew:
    """Threads that begin at once; leaving the block joins them and raises their errors.

    Where there is a lock it is handed on as often as can be.

    Attributes:
        stopping: set once the block is left; who works for ever looks at it.
    """

    def __init__(self):
        self.stopping = threading.Event()
        self.errors = []
        self._threads = []
        self._begin = threading.Event()
        self._interval = sys.getswitchinterval()

    def add(self, work, *arguments):
        """A thread that begins once ``begin`` is called."""

        def run():
            try:
                assert self._begin.wait(LIMIT_S)
                work(*arguments)
            except BaseException as error:  # noqa: BLE001 - raised by join
                self.errors.append(error)
                self.stopping.set()

        self._threads.append(threading.Thread(target=run, daemon=True))

    def begin(self):
        """All of them, now."""
        sys.setswitchinterval(1e-6)
        for thread in self._threads:
            thread.start()
        self._begin.set()

    def take(self, line):
        """The next of a queue; None too once another thread has failed."""
        limit = time.monotonic() + LIMIT_S
        while not self.errors:
            with contextlib.suppress(queue.Empty):
                return line.get(timeout=0.05)
            assert time.monotonic() < limit
        return None

    def join(self):
        """Wait for all; the first error of any is raised."""
        for thread in self._threads:
            thread.join(LIMIT_S)
        sys.setswitchinterval(self._interval)
        left = [thread.name for thread in self._threads if thread.is_alive()]
        if self.errors:
            raise self.errors[0]
        assert [] == left

    @contextlib.contextmanager
    def working(self):
        """Begin; at the end of the block tell those that work for ever, and join."""
        self.begin()
        try:
            yield self
        finally:
            self.stopping.set()
            self.join()
