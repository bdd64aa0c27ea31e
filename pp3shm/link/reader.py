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
        ahead: read what is there in one call, as far as there is room, instead of a
            frame's header and body by one each. What is behind a frame is then read
            before that frame is judged, into room that was there.
    """

    def __init__(self, link: Link, admit: Admit, capacity: int = 512) -> None:
        self._link = link
        self.admit = admit
        self.ahead = False
        self._view = memoryview(bytearray(max(capacity, HEADER_BYTES)))
        self._start = self._end = 0  # what has come, the frame now looked at first
        self._needed = HEADER_BYTES
        self._given = self._drained = False
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
        if self._given:
            self._next()
        while True:
            there = self._end - self._start
            if there >= HEADER_BYTES and self.header is None:
                self._open_header()
            elif there >= self._needed:
                self._given = True
                self.began = None
                return self._view[self._start : self._start + self._needed]
            elif not self._receive():
                return None

    def _next(self) -> None:
        """What comes next is another frame."""
        self._start += self._needed
        self._needed = HEADER_BYTES
        self._given = False
        self.header = None
        if self._start == self._end:
            self._start = self._end = 0
        else:  # part of it came with the one before
            self.began = time.monotonic()

    def _receive(self) -> bool:
        """One look at the link; False where nothing more is there."""
        if self._drained:
            return False
        if self.ahead and self._end == len(self._view):
            self._make_room(len(self._view))
        most = len(self._view) if self.ahead else self._start + self._needed
        got = self._link.recv_into(self._view[self._end : most])
        # A stream that gave less than it was asked for has no more at the moment.
        self._drained = self.ahead and got < most - self._end
        if got == 0:
            return False
        if self.began is None:
            self.began = time.monotonic()
        self._end += got
        return True

    @property
    def raw_header(self) -> bytes:
        """The 40 bytes last read as a header, also where they were refused."""
        return bytes(self._view[self._start : self._start + HEADER_BYTES])

    def _open_header(self) -> None:
        header = decode_header(self.raw_header)
        self.admit(header)
        self.header = header
        self._needed = HEADER_BYTES + header.body_bytes
        if self._start + self._needed > len(self._view):
            self._make_room(max(self._needed, len(self._view)))

    def _make_room(self, size: int) -> None:
        """Move what has come to the front of a buffer of this size."""
        come = bytes(self._view[self._start : self._end])
        if size > len(self._view):
            self._view = memoryview(bytearray(size))
        self._view[: len(come)] = come
        self._start, self._end = 0, len(come)

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
            self._drained = False
            deadline = idle_deadline
            if self.began is not None:
                deadline = min(deadline, self.began + frame_s)
            if wait_for(self._link, select.POLLIN, deadline, stop):
                continue
            if time.monotonic() < deadline:
                return None
            raise LinkError(
                f"{self._link.peer}: expected a frame in time, found "
                f"{self._end - self._start} of at least {self._needed} bytes"
            )
        return frame
