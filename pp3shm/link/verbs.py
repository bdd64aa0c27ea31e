"""What a session needs of an RDMA device, whoever provides it.

``rdma.py`` does, by pyverbs; the tests have one of their own that needs no device.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from pp3shm.layout.endpoint import Endpoint


class Shape(NamedTuple):
    """Sizes of the two areas of an end.

    Attributes:
        slots: of each area.
        in_bytes: of a slot that the peer writes.
        out_bytes: of a slot that this side writes from.
    """

    slots: int
    in_bytes: int
    out_bytes: int


class Completion(NamedTuple):
    """What a completion queue gave.

    Attributes:
        came: a write of the peer's; else one of our own, which has arrived.
        slot: the peer's immediate, not yet bounded; or the slot we wrote from.
        size: bytes the peer wrote.
        fault: why it failed; empty where it did not.
    """

    came: bool
    slot: int
    size: int
    fault: str = ""


class VerbsEnd(Protocol):
    """One queue pair with its two registered areas.

    One thread uses it at a time. Nothing here waits but ``connect``.

    Attributes:
        local: what the peer has to know.
        regions: memory regions registered now; 0 after a ``close`` that went well.
    """

    local: Endpoint
    regions: int

    def connect(self, peer: Endpoint) -> None:
        """Ready to receive and to send.

        Raises:
            LinkError: the device refused it.
        """

    def fileno(self) -> int:
        """Readable when ``poll`` may give something."""

    def inbox(self, slot: int) -> int:
        """The address, in this process, of a slot that the peer writes."""

    def fill(self, slot: int, frame: bytes) -> None:
        """Put a frame into a slot of our own, which no write under way reads."""

    def post(self, slot: int, size: int) -> None:
        """Write the first bytes of our slot to the peer's slot of the same number.

        Raises:
            LinkError: the device takes no more.
        """

    def poll(self) -> list[Completion]:
        """What has completed, without waiting; receives are posted again.

        Raises:
            LinkError: the device failed.
        """

    def close(self) -> None:
        """Destroy the queue pair first, so that nothing writes any more; then the rest.

        Raises:
            LinkError: it could not be destroyed. Its areas stay as they are, for ever.
        """


OpenEnd = Callable[[Shape], VerbsEnd]
