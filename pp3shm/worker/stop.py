"""The end of a worker, which anybody may ask for at any time."""

import os


class Stop:
    """A word, and a descriptor that is readable once it is said.

    Belongs to the process that made it: a forked child's copy of the descriptor is the
    parent's too, so there nothing is asked for.

    Attributes:
        asked: the end was asked for.
        fd: readable from then on; -1: not opened, or closed.
    """

    def __init__(self) -> None:
        self.asked = False
        self.fd = -1
        self._process = os.getpid()

    @property
    def is_mine(self) -> bool:
        """False in a forked child."""
        return self._process == os.getpid()

    def open(self) -> None:
        """Make the descriptor; readable at once, if the end was asked for before."""
        self.fd = os.eventfd(int(self.asked), os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def ask(self) -> None:
        """From anywhere, a signal handler included: takes no lock."""
        if not self.is_mine:
            return
        self.asked = True
        if self.fd >= 0:
            os.eventfd_write(self.fd, 1)

    def close(self) -> None:
        """Nobody looks at the descriptor any more. Safe to call twice."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1  # first: a signal may come in between
            os.close(fd)
