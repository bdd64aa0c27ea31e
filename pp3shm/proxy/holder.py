"""Who has an engine's region: what it says at the door, and how its end is seen."""

import contextlib
import errno
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass

from pp3shm.errors import LinkError
from pp3shm.link import SocketLink
from pp3shm.link.reader import read_exactly
from pp3shm.proxy.admission import LEFT, READY

WORD_S = 5.0
"""How long a word that has begun may take."""


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

    def until_left(
        self, link: SocketLink, stop: int, mapped: Callable[[], None]
    ) -> bool:
        """Wait for its end.

        Whoever says nothing, or something else, or hangs up, holds the region until it
        is known to be dead.

        Args:
            link: on which it was given the region.
            stop: a descriptor that ends the wait by becoming readable.
            mapped: called once it says that it has the region.

        Returns:
            True: it has let go of the region, and lives; False: dead, or stopped.

        Raises:
            OSError, MemoryError: by which nothing is known of it.
        """
        with contextlib.suppress(LinkError):
            while self._speaks(stop, link):
                limit = time.monotonic() + WORD_S
                word = read_exactly(link, len(LEFT), limit, stop)
                if word == LEFT:  # also of one that could not map it
                    return True
                if word == READY:
                    mapped()
        self._speaks(stop)
        return False

    def _speaks(self, stop: int, link: SocketLink | None = None) -> bool:
        """Wait for a word: True; False where it is dead or the wait was stopped."""
        poll = select.poll()
        for fd in (self.pidfd, stop):
            poll.register(fd, select.POLLIN)
        if link is not None:
            poll.register(link, select.POLLIN)
        ready = dict(poll.poll())
        if any(event & select.POLLNVAL for event in ready.values()):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # says nothing of it
        return self.pidfd not in ready and stop not in ready
