"""Reading whole frames from a link, by a poll loop or by a thread."""

import select
import time
from collections.abc import Callable

from pp3shm.errors import LinkError
from pp3shm.layout.frames import HEADER_BYTES, FrameHeader, decode_header
from pp3shm.link.base import Link

# Judges a header before a byte of its body is read; raises to refuse it.
Admit = Callable[[FrameHeader], None]


def wait_for(link: Link, event: int, deadline: float, stop: int | None = None) -> bool:
    """Wait until ``link`` has the poll event, or an error to report.

    Args:
        link: the connection.
        event: ``select.POLLIN`` or ``select.POLLOUT``.
        deadline: on the clock of ``time.monotonic``; infinity waits for ever.
        stop: a descriptor that ends the wait by becoming readable.

    Returns:
        True where the link is ready; False at the deadline or when stopped.
    """
    poll = select.poll()
    poll.register(link.fileno(), event)
    if stop is not None:
        poll.register(stop, select.POLLIN)
    left = deadline - time.monotonic()
    limit = None if left == float("inf") else max(0.0, left) * 1000
    ready = [fd for fd, _ in poll.poll(limit)]
    return link.fileno() in ready and stop not in ready


def read_exactly(
    link: Link, size: int, deadline: float, stop: int | None = None
) -> bytes:
    """Read ``size`` bytes and not one more.

    Args:
        link: the connection.
        size: bytes; the caller has bounded it.
        deadline: on the clock of ``time.monotonic``.
        stop: as in :func:`wait_for`.

    Raises:
        LinkError: they did not come in time, or stopped.
        PeerDied: the connection ended.
    """
    data = bytearray(size)
    filled = 0
    with memoryview(data) as view:
        while filled < size:
            got = link.recv_into(view[filled:])
            if got == 0 and not wait_for(link, select.POLLIN, deadline, stop):
                raise LinkError(
                    f"{link.peer}: expected {size} bytes in time, found {filled}"
                )
            filled += got
    return bytes(data)


class FrameReader:
    """Cuts what arrives on a link into frames.

    The header is read first and judged by ``admit``; only then is the body read, and
    only then is the buffer enlarged if a longer frame than ever before was admitted.
    With ``capacity`` the largest frame, reading allocates nothing.

    Attributes:
        header: the header of the frame last returned or now coming in, else None.
        began: when its first byte was seen (``time.monotonic``), None between frames;
            a poll loop closes the connection of a peer that trickles by it.
    """

    def __init__(self, link: Link, admit: Admit, capacity: int = 512) -> None:
        self._link = link
        self.admit = admit
        self._view = memoryview(bytearray(max(capacity, HEADER_BYTES)))
        self._filled = 0
        self._needed = HEADER_BYTES
        self.header: FrameHeader | None = None
        self.began: float | None = None

    def feed(self) -> memoryview | None:
        """Take what has arrived, without waiting.

        Returns:
            One whole frame, header included, which stays valid until the next call;
            None if it is not complete yet.

        Raises:
            FrameError: the header is not one, or ``admit`` refused it. Nothing can be
                read from this link any more.
            PeerDied: the connection ended.
        """
        if self._filled == self._needed:
            self._filled, self._needed = 0, HEADER_BYTES
            self.header = None
        while self._filled < self._needed:
            got = self._link.recv_into(self._view[self._filled : self._needed])
            if got == 0:
                return None
            if self.began is None:
                self.began = time.monotonic()
            self._filled += got
            if self._filled == HEADER_BYTES and self.header is None:
                self._open_header()
        self.began = None
        return self._view[: self._needed]

    @property
    def raw_header(self) -> bytes:
        """The 40 bytes last read as a header, also where they were refused."""
        return bytes(self._view[:HEADER_BYTES])

    def _open_header(self) -> None:
        header = decode_header(self.raw_header)
        self.admit(header)
        self.header = header
        self._needed = HEADER_BYTES + header.body_bytes
        if self._needed > len(self._view):
            larger = memoryview(bytearray(self._needed))
            larger[:HEADER_BYTES] = self._view[:HEADER_BYTES]
            self._view = larger

    def read(
        self, idle_deadline: float, frame_s: float, stop: int | None = None
    ) -> memoryview | None:
        """Wait for one whole frame.

        Args:
            idle_deadline: until when its first byte may take (``time.monotonic``).
            frame_s: seconds that its remaining bytes may take. A peer that trickles
                does not hold a thread for longer.
            stop: a descriptor that ends the wait by becoming readable.

        Returns:
            The frame, valid until the next call; None if stopped.

        Raises:
            FrameError: as :meth:`feed`.
            LinkError: not in time.
            PeerDied: the connection ended.
        """
        while (frame := self.feed()) is None:
            deadline = idle_deadline
            if self.began is not None:
                deadline = min(deadline, self.began + frame_s)
            if wait_for(self._link, select.POLLIN, deadline, stop):
                continue
            if time.monotonic() < deadline:
                return None
            raise LinkError(
                f"{self._link.peer}: expected a frame in time, found "
                f"{self._filled} of at least {self._needed} bytes"
            )
        return frame
