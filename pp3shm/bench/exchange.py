"""The exchange that every subject does: 356 bytes out, 5320 bytes back, or a frame.

Where the bytes are checked, the reply is a REPLY frame of 5412 bytes whose page has
5320: then the reader runs the product's ten checks on it (``pp3_accept``).
"""

from functools import cache

import numpy as np

from pp3shm._core import ffi, lib
from pp3shm.errors import ReplyError
from pp3shm.layout.core import c_layout
from pp3shm.layout.frames import (
    FLAG_SAMPLED,
    Kind,
    Reply,
    Step,
    StepRow,
    encode_frame,
    encode_reply,
    encode_step,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.validate import REASONS
from pp3shm.proposal.proposal import propose_chain

VOCAB, DEPTH, SLOTS = 129280, 5, 4
REQUEST_BYTES, REPLY_BYTES, FRAME_BYTES = 356, 5320, 5412
SESSION = bytes(range(16))
ROUND, SEQUENCE = 9, 1
COMMITTED = (3, 1, 4)

REQUEST = bytes(i * 7 % 256 for i in range(REQUEST_BYTES))
"""What a peer sends out."""
REPLY = bytes(i * 11 % 251 for i in range(REPLY_BYTES))
"""What comes back where nothing is checked."""


def profile_of(positions: int = 4096) -> Profile:
    """What our own subjects agree on: B4, depth 5, a vocabulary of a real model."""
    return Profile.sampled(
        vocab=VOCAB, depth=DEPTH, max_slots=SLOTS, max_positions=positions
    )


@cache
def step_body() -> bytes:
    """The STEP that ``frame`` answers."""
    rows = tuple(
        StepRow(slot, 1, 100, 0, COMMITTED, sampled=True) for slot in range(SLOTS)
    )
    return encode_step(profile_of(), Step(ROUND, rows))


@cache
def reply() -> Reply:
    """Valid drafts of all slots, drawn once from a fixed seed."""
    logits = np.random.default_rng(5).normal(0, 3, (SLOTS, DEPTH, VOCAB))
    drawn = propose_chain(
        logits.astype(np.float32),
        keys=[(slot, 1) for slot in range(SLOTS)],
        round=ROUND,
        positions=[100] * SLOTS,
    )
    return Reply(
        round=ROUND,
        generation=np.ones(SLOTS, np.uint32),
        status=np.zeros(SLOTS, np.int32),
        tokens=drawn.tokens,
        confidence=drawn.confidence,
        mask=np.ones(SLOTS, np.int32),
        ids=drawn.ids,
        q=drawn.q,
    )


@cache
def frame() -> bytes:
    """The REPLY frame of ``step_body``."""
    body = encode_reply(profile_of(), reply())
    return encode_frame(Kind.REPLY, SESSION, SEQUENCE, body, FLAG_SAMPLED)


class Acceptor:
    """The product's checks of a received frame, and the page they fill.

    Attributes:
        page: REPLY_BYTES bytes.
    """

    def __init__(self) -> None:
        self._layout = c_layout(profile_of())
        self._step = ffi.from_buffer(step_body())
        self._fault = ffi.new("struct pp3_fault *")
        self.page = bytearray(REPLY_BYTES)
        self._page = ffi.from_buffer("uint8_t[]", self.page, require_writable=True)

    def __call__(self, received: object) -> None:
        """Check one frame.

        Args:
            received: bytes, or a buffer of them.

        Raises:
            ReplyError: by its reason.
        """
        data = ffi.from_buffer(received)
        wrong = lib.pp3_accept(
            self._layout,
            self._step,
            data,
            len(data),
            SESSION,
            SEQUENCE,
            self._page,
            self._fault,
        )
        if wrong:
            raise ReplyError(REASONS[wrong - 1], "reply", "a valid frame", "another")
