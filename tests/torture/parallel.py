"""Running steps and planted faults beside each other, no wider than the machine."""

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
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
    """Chains of jobs beside each other, while their results are asked for one by one.

    The jobs of a chain run one after the other: they may build in one directory.

    Args:
        cores: Of the machine, shared by all that runs.

    Attributes:
        closed: No job begins any more.
    """

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._pool = ThreadPoolExecutor(CORES)
        self._results: dict[Hashable, Future[Batch]] = {}
        self.closed = False

    def put(
        self, chain: Mapping[Hashable, Callable[[], Batch]], wanted: int = 1
    ) -> None:
        """Starts a chain as soon as there is room; each job waits for its cores."""
        futures = {key: Future[Batch]() for key in chain}
        self._results |= futures
        work = [(job, futures[key]) for key, job in chain.items()]
        self._pool.submit(self._run, work, wanted)

    def result(self, key: Hashable) -> Batch:
        """Waits for a job; what it raised is raised here."""
        return self._results[key].result()

    def close(self) -> None:
        """Starts no job any more and waits for those that run."""
        for future in self._results.values():
            future.cancel()
        self.closed = True
        self._pool.shutdown()

    def _run(
        self, work: list[tuple[Callable[[], Batch], Future[Batch]]], wanted: int
    ) -> None:
        for job, future in work:
            if not future.set_running_or_notify_cancel():
                continue
            try:
                with self._cores.taken(wanted):
                    found = job()
            except BaseException as error:  # noqa: BLE001  raised where it is asked for
                future.set_exception(error)
            else:
                future.set_result(found)
