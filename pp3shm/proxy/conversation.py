"""One session with a worker after HELLO: what is said beside STEPs and REPLYs."""

import os
from typing import Any

from pp3shm._core import ffi, lib
from pp3shm.errors import FrameError, LinkError, PeerDied
from pp3shm.layout.frames import (
    HEADER_BYTES,
    ErrorBody,
    FrameHeader,
    Kind,
    Reset,
    body_lengths_ok,
    decode_error,
    decode_header,
    encode_error,
    encode_frame,
    encode_reset,
    open_body,
)
from pp3shm.layout.profile import Profile
from pp3shm.proxy.greet import Greeting
from pp3shm.proxy.hands import Place
from pp3shm.proxy.pump import Pump

SEND_TIMEOUT_S = 0.5
"""How long a worker that reads nothing may hold a frame up."""

TRICKLE_S = 2.0
"""A frame that began this long ago and is not whole ends the session."""


class Conversation:
    """The frames of one session, from HELLO_ACK to its end.

    STEPs and REPLYs pass through the pump, which keeps the session's sequences; what
    else is said stands here.

    Args:
        greeting: the agreed session.
        profile: what was agreed.
        pump: carries it; one session at a time.
    """

    def __init__(self, greeting: Greeting, profile: Profile, pump: Pump) -> None:
        self.session = greeting.session
        self._link = greeting.link
        self._profile = profile
        self._pump = pump
        self._c: Any = pump.c
        self._c.send_ns = int(SEND_TIMEOUT_S * 1e9)
        self._c.trickle_ns = int(TRICKLE_S * 1e9)
        pump.open(greeting)

    @property
    def received(self) -> int:
        """Frames that came in, HELLO_ACK included: the sequence of the next one."""
        return int(self._c.received)

    @property
    def frame(self) -> bytes:
        """The frame that the pump came back with."""
        return bytes(ffi.buffer(self._c.frame, self._c.frame_bytes))

    # -- out -----------------------------------------------------------------------

    def needs_reset(self, place: Place) -> bool:
        """True where the worker could not append this row's tokens."""
        return self._pump.behind(place)

    def send_reset(self, reset: Reset) -> None:
        """Open or restate a generation.

        Raises:
            FrameError: the region's prefix is none.
            LinkError: the worker is gone or takes nothing.
        """
        self._send(Kind.RESET, encode_reset(self._profile, reset))
        told = self._c.told[reset.slot]
        told.generation, told.length, told.known = (
            reset.generation,
            len(reset.prefix),
            1,
        )

    def _send(self, kind: Kind, body: bytes) -> None:
        frame = encode_frame(kind, self.session, self._c.sent, body)
        self._c.sent += 1
        self._link.send(frame, SEND_TIMEOUT_S)

    # -- in ------------------------------------------------------------------------

    def refused_header(self) -> FrameError:
        """What is wrong with the header that the pump refused, in words."""
        try:
            self._admit(decode_header(self.frame))
        except FrameError as error:
            return error
        return FrameError("frame", "both readers to agree", "one refused its header")

    def _admit(self, header: FrameHeader) -> None:
        kind = Kind(header.kind)
        if kind not in (Kind.REPLY, Kind.ERROR, Kind.BYE):
            raise FrameError("frame.kind", "REPLY, ERROR or BYE", kind.name)
        if not body_lengths_ok(kind, header.body_bytes, self._profile):
            place = f"frame.body_bytes of {kind.name}"
            raise FrameError(place, "a length of the profile", header.body_bytes)

    def last_words(self) -> tuple[Kind, str]:
        """What an ERROR or BYE says.

        Raises:
            FrameError: it is not of this session, out of sequence, or corrupt.
        """
        frame = self.frame
        header = decode_header(frame)
        if (header.session, header.sequence) != (self.session, self.received):
            expected = f"sequence {self.received} of this session"
            raise FrameError("frame.sequence", expected, "another")
        body = open_body(frame[HEADER_BYTES:])
        if header.kind == Kind.BYE:
            return Kind.BYE, f"{self._link.peer}: the worker said BYE"
        text = decode_error(body).text
        return Kind.ERROR, f"{self._link.peer}: the worker said {text!r}"

    def lost(self, why: int) -> LinkError:
        """The link's end in words, by what the pump came back with."""
        if why == lib.PP3_PUMP_UNTAKEN:
            return LinkError(
                f"{self._link.peer}: expected to take a STEP within {SEND_TIMEOUT_S:g} "
                f"s, found {self._c.out_bytes} bytes of it left"
            )
        if why == lib.PP3_PUMP_TRICKLE:
            return LinkError(f"frame: expected whole within {TRICKLE_S} s, found part")
        error = self._c.error
        said = os.strerror(error) if error else "the peer closed the connection"
        return PeerDied(f"{self._link.peer}: {said}")

    # -- the end -------------------------------------------------------------------

    def bye(self) -> None:
        """An orderly end."""
        self._end(Kind.BYE, b"")

    def error(self, error: ErrorBody) -> None:
        """End the session and say why."""
        self._end(Kind.ERROR, encode_error(error))

    def _end(self, kind: Kind, body: bytes) -> None:
        """Close; whether the last frame still arrives changes nothing for us."""
        half_sent = self._c.out_bytes > 0  # a frame behind half a STEP says nothing
        if not half_sent:
            try:
                self._send(kind, body)
            except LinkError:
                half_sent = True
        self._pump.close()
        if half_sent:
            self._link.close()
        else:
            self._link.finish(timeout_s=0.05)

    def close(self) -> None:
        """Close without a word."""
        self._pump.close()
        self._link.close()
