"""One operation of a victim, and what its survivors do before and after."""

import os
import pickle

from torture.calls.trace import Victim


class Scene:
    """A victim's operation, and what its survivors do before and after.

    Args:
        kind: Of the region: memfd or posix.

    Attributes:
        child: The victim, once it is there.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.child: Victim
        self.reads, self.writes = os.pipe()

    def victim(self) -> None:
        """In the child: to the first mark and on to the end."""
        raise NotImplementedError

    def begin(self) -> None:
        """Survivors, before the victim is let go; it waits for ``tell``."""

    def meanwhile(self) -> None:
        """Survivors, once the victim stands at its first mark."""

    def stopped(self) -> bool:
        """Survivors beside a victim that stands at a point; True: it shall go on."""
        return False

    def resumed(self) -> None:
        """What has to hold when it then came to its end."""

    def settle(self) -> str:
        """Survivors after the death; what the try came to, in a word."""
        raise NotImplementedError

    def end(self) -> None:
        """Whatever happened: nothing is left open."""
        os.close(self.reads)
        os.close(self.writes)

    def tell(self, what: object) -> None:
        """To the victim."""
        os.write(self.writes, pickle.dumps(what))

    def told(self) -> object:
        """In the child: what ``tell`` said."""
        return pickle.loads(os.read(self.reads, 65536))  # from our parent
