"""What carries frames from A to B, and nothing else.

A link knows bytes, not sessions: sequences, profiles and meaning are its user's.
"""

from typing import Protocol

Buffer = bytes | bytearray | memoryview


class Link(Protocol):
    """One connection, used by one thread at a time.

    Never blocks except where a deadline says so, so that a poll loop and a thread
    can both drive it.
    """

    @property
    def peer(self) -> str:
        """The other side, for messages."""

    def fileno(self) -> int:
        """The descriptor to poll; readable means that ``recv_into`` may give bytes."""

    def send(self, frame: Buffer, timeout_s: float = 5.0) -> None:
        """Send one whole frame, in one system call where the kernel takes it.

        Args:
            frame: header and body.
            timeout_s: how long a peer that does not read may hold the sender up.

        Raises:
            PeerDied: the connection is gone.
            LinkError: the peer did not take the frame in time; the connection is of
                no further use, because part of the frame may have left.
        """

    def recv_into(self, view: memoryview) -> int:
        """Take what has arrived, at most ``len(view)`` bytes, without waiting.

        Returns:
            The number of bytes put at the start of ``view``; 0 if none are there now.

        Raises:
            PeerDied: the connection is gone.
        """

    def close(self) -> None:
        """Give the connection up. Closing twice is closing once."""
