"""Running steps and planted faults beside each other, no wider than the machine."""

import threading
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from torture.figure import CORES, Batch


class Cores:
    """Permits for the machine's cores, taken several at once.

    Args:
        count: How many there are.
    """

    def __init__(self, count: int = CORES) -> None:
        self._count = self._free = count
        self._changed = threading.Condition()
        # Held while one waits for its permits: who wants all of them is not overtaken
        # for ever by those who want one.
        self._turn = threading.Lock()

    @contextmanager
    def taken(self, wanted: int) -> Iterator[None]:
        """Holds so many, or all there are where more are wanted."""
        wanted = min(wanted, self._count)
        with self._turn, self._changed:
            self._changed.wait_for(lambda: self._free >= wanted)
            self._free -= wanted
        try:
            yield
        finally:
            with self._changed:
                self._free += wanted
                self._changed.notify_all()


class Ahead:
    """Jobs that run beside each other while their results are asked for one by one.

    Args:
        cores: Of the machine, shared by all that runs.
    """

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._pool = ThreadPoolExecutor(CORES)
        self._jobs: dict[Hashable, Future[Batch]] = {}

    def put(self, key: Hashable, job: Callable[[], Batch], wanted: int = 1) -> None:
        """Starts a job as soon as it may have the cores it wants."""
        self._jobs[key] = self._pool.submit(self._run, job, wanted)

    def result(self, key: Hashable) -> Batch:
        """Waits for a job; what it raised is raised here."""
        return self._jobs.pop(key).result()

    def close(self) -> None:
        """Starts no job any more and waits for those that run."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, job: Callable[[], Batch], wanted: int) -> Batch:
        with self._cores.taken(wanted):
            return job()
