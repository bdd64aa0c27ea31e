"""Ends of links, for the tests of links."""

import select
import time

from pp3shm.layout.frames import Kind, encode_frame

SESSION = bytes(range(16))
KEY = b"k" * 16
SOON = 30.0  # only a fault takes that long


def soon():
    """A deadline for what must happen."""
    return time.monotonic() + SOON


def accepted(listener):
    """The next connection."""
    link = None
    while link is None:
        assert select.select([listener], [], [], SOON)[0]
        link = listener.accept()
    return link


def admit_all(_header):
    """Refuse nothing."""


def frame(body=b"x" * 100, sequence=0):
    """A STEP's frame with any body."""
    return encode_frame(Kind.STEP, SESSION, sequence, body, 2)
