"""One session with a worker after HELLO: frames out in order, frames in judged."""

import time

from pp3shm.errors import FrameError, LinkError
from pp3shm.layout.frames import (
    HEADER_BYTES,
    ErrorBody,
    FrameHeader,
    Kind,
    Reset,
    body_lengths_ok,
    decode_error,
    encode_error,
    encode_frame,
    encode_reset,
    open_body,
    profile_flags,
)
from pp3shm.layout.profile import Profile
from pp3shm.proxy.greet import Greeting
from pp3shm.proxy.hands import Place, Taken

SEND_TIMEOUT_S = 0.5
"""How long a worker that reads nothing may hold the loop up."""

TRICKLE_S = 2.0
"""A frame that began this long ago and is not whole ends the session."""


class Conversation:
    """The frames of one session, from HELLO_ACK to its end.

    What was sent in a session arrives in it, or the session dies. So the prefixes
    that went out are what the worker holds, until a row's status says otherwise.

    Attributes:
        session: 16 bytes.
        received: frames that came in, HELLO_ACK included: the next one's sequence.
    """

    def __init__(self, greeting: Greeting, profile: Profile) -> None:
        self.session = greeting.session
        self.received = 1
        self._sent = 1
        self._link = greeting.link
        self._reader = greeting.reader
        self._reader.admit = self._admit
        self._profile = profile
        self._flags = profile_flags(profile)
        self._held: dict[int, tuple[int, int]] = {}

    def fileno(self) -> int:
        """The link's descriptor."""
        return self._link.fileno()

    # -- out -----------------------------------------------------------------------

    def needs_reset(self, place: Place) -> bool:
        """True where the worker could not append this row's tokens.

        That is a generation it was not told of, or tokens missing before the row's
        own: a round that failed before it was sent took its tokens with it.
        """
        generation, length = self._held.get(place.slot, (-1, 0))
        return (
            generation != place.generation
            or place.position - place.committed > length
            or place.position < length
        )

    def forget(self, slot: int) -> None:
        """The worker refused a row of the slot: what it holds is not known."""
        self._held.pop(slot, None)

    def send_reset(self, reset: Reset) -> None:
        """Open or restate a generation.

        Raises:
            FrameError: the region's prefix is none.
            LinkError: the worker is gone or takes nothing.
        """
        self._send(Kind.RESET, encode_reset(self._profile, reset))
        self._held[reset.slot] = (reset.generation, len(reset.prefix))

    def send_step(self, taken: Taken) -> None:
        """Ask for one round.

        Raises:
            LinkError: the worker is gone or takes nothing.
        """
        self._send(Kind.STEP, taken.body, self._flags)
        taken.sent_ns = time.monotonic_ns()
        for place in taken.places:
            self._held[place.slot] = (place.generation, place.position)

    def _send(self, kind: Kind, body: bytes | memoryview, flags: int = 0) -> None:
        frame = encode_frame(kind, self.session, self._sent, body, flags)
        self._sent += 1
        self._link.send(frame, SEND_TIMEOUT_S)

    # -- in ------------------------------------------------------------------------

    def _admit(self, header: FrameHeader) -> None:
        """Refuse a kind or a length before a byte of the body is read."""
        kind = Kind(header.kind)
        if kind not in (Kind.REPLY, Kind.ERROR, Kind.BYE):
            raise FrameError("frame.kind", "REPLY, ERROR or BYE", kind.name)
        if not body_lengths_ok(kind, header.body_bytes, self._profile):
            place = f"frame.body_bytes of {kind.name}"
            raise FrameError(place, "a length of the profile", header.body_bytes)

    def read(self) -> tuple[Kind, memoryview] | None:
        """The next whole frame, valid until the next call; None if there is none yet.

        Raises:
            FrameError: it announces a kind or length that must not come.
            LinkError: the connection is gone, or the frame trickles.
        """
        frame = self._reader.feed()
        header = self._reader.header
        if frame is not None and header is not None:
            return Kind(header.kind), frame
        began = self._reader.began
        if began is not None and time.monotonic() - began > TRICKLE_S:
            raise LinkError(f"frame: expected whole within {TRICKLE_S} s, found part")
        return None

    def last_words(self, kind: Kind, frame: memoryview) -> str:
        """What an ERROR or BYE says.

        Raises:
            FrameError: it is not of this session, out of sequence, or corrupt.
        """
        header = self._reader.header
        found = None if header is None else (header.session, header.sequence)
        if found != (self.session, self.received):
            expected = f"sequence {self.received} of this session"
            raise FrameError("frame.sequence", expected, "another")
        body = open_body(bytes(frame[HEADER_BYTES:]))
        if kind is Kind.BYE:
            return f"{self._link.peer}: the worker said BYE"
        return f"{self._link.peer}: the worker said {decode_error(body).text!r}"

    # -- the end -------------------------------------------------------------------

    def bye(self) -> None:
        """An orderly end."""
        self._end(Kind.BYE, b"")

    def error(self, error: ErrorBody) -> None:
        """End the session and say why."""
        self._end(Kind.ERROR, encode_error(error))

    def _end(self, kind: Kind, body: bytes) -> None:
        """Close; whether the last frame still arrives changes nothing for us."""
        try:
            self._send(kind, body)
        except LinkError:
            self._link.close()
        else:
            self._link.finish(timeout_s=0.05)

    def close(self) -> None:
        """Close without a word."""
        self._link.close()
