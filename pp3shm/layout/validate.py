"""CHECKS: what makes a REPLY acceptable, readable, in the order of the wire page.

The ten checks of section 6. Over the whole reply the first that fails names the
error; nothing is repaired. accept.c does the same in one pass, and tests hold both
against each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import FrameError, ReplyError
from pp3shm.layout.frames import decode_header
from pp3shm.layout.profile import Profile
from pp3shm.layout.reply import ReplyLayout
from pp3shm.layout.step import Step, decode_step, profile_flags
from pp3shm.layout.tables import (
    CRC_BYTES,
    FRAME,
    HEADER_BYTES,
    MASS,
    REPLY_HEADER,
    SUPPORT,
    TRAILER,
    Kind,
    Status,
    frame_bytes,
    reply_packing,
)


class Fault(NamedTuple):
    """Why a check failed."""

    place: str
    expected: object
    found: object


@dataclass(frozen=True)
class _Judged:
    """A frame and what it is held against; parts are read when a check needs them."""

    profile: Profile
    step: Step | None
    frame: bytes
    session: bytes
    sequence: int

    @cached_property
    def head(self) -> dict[str, Any]:
        return REPLY_HEADER.read(self.frame, HEADER_BYTES)

    @cached_property
    def asked(self) -> Step:
        """The STEP; every check after ``header`` has one."""
        if self.step is None:
            raise FrameError("step", "a STEP to check against", "none")
        return self.step

    @cached_property
    def n(self) -> int:
        """Rows: the STEP's, or the frame's own where nobody awaits its round."""
        return self.head["n"] if self.step is None else len(self.step.rows)

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        packing = reply_packing(self.n, self.profile.depth, self.profile.is_sampled)
        return packing.views(self.frame[HEADER_BYTES:])

    @cached_property
    def ok(self) -> NDArray[np.bool_]:
        """(n,) rows that did not fail."""
        answered: NDArray[np.bool_] = self.arrays["status"] == Status.OK
        return answered

    @cached_property
    def carries_q(self) -> NDArray[np.bool_]:
        """(n,) rows of T > 0 that did not fail."""
        wanted = np.array([row.sampled for row in self.asked.rows], dtype=np.bool_)
        return wanted & self.ok

    def first(self, name: str, wrong: NDArray[np.bool_], expected: str) -> Fault | None:
        """The first place of an array where ``wrong`` holds."""
        places = np.argwhere(wrong)
        if not len(places):
            return None
        place = tuple(int(part) for part in places[0])
        found = self.arrays[name][place]
        return Fault(f"{name}[{', '.join(map(str, place))}]", expected, found)


def check_frame(reply: _Judged) -> Fault | None:
    """1: magic, version, kind, flags, exact length, session, sequence."""
    size = len(reply.frame)
    least = HEADER_BYTES + REPLY_HEADER.size
    if size < least:
        return Fault("frame.bytes", f"at least {least}", size)
    if not 1 <= reply.n <= reply.profile.max_slots:
        return Fault("reply.n", f"1..{reply.profile.max_slots}", reply.n)
    whole = frame_bytes(
        reply_packing(reply.n, reply.profile.depth, reply.profile.is_sampled)
    )
    try:
        found = decode_header(reply.frame)
    except FrameError as error:
        return Fault(error.place, error.expected, error.found)
    for place, expected, value in (
        ("frame.kind", Kind.REPLY, found.kind),
        ("frame.flags", profile_flags(reply.profile), found.flags),
        ("frame.bytes", whole, size),
        ("frame.body_bytes", whole - HEADER_BYTES, found.body_bytes),
        ("frame.session", reply.session.hex(), found.session.hex()),
        ("frame.sequence", reply.sequence, found.sequence),
    ):
        if value != expected:
            return Fault(place, expected, value)
    return None


def check_crc(reply: _Judged) -> Fault | None:
    """2: the CRC over the entire body before it."""
    expected = crc32(reply.frame[HEADER_BYTES:-CRC_BYTES])
    found = int.from_bytes(reply.frame[-CRC_BYTES:], "little")
    if found != expected:
        return Fault("crc", f"{expected:#010x}", f"{found:#010x}")
    return None


def check_header(reply: _Judged) -> Fault | None:
    """3: an awaited round; n, depth, flags as in its STEP; zero is zero."""
    if reply.step is None:
        return Fault("reply.round", "a round that is awaited", reply.head["round"])
    for name, expected in (
        ("round", reply.step.round),
        ("n", len(reply.step.rows)),
        ("depth", reply.profile.depth),
        ("flags", profile_flags(reply.profile)),
        ("zero", 0),
    ):
        if reply.head[name] != expected:
            return Fault(f"reply.{name}", expected, reply.head[name])
    return None


def check_echo(reply: _Judged) -> Fault | None:
    """4: generation equal per row, status in range."""
    for index, row in enumerate(reply.asked.rows):
        generation = reply.arrays["generation"][index]
        status = reply.arrays["status"][index]
        if generation != row.generation:
            return Fault(f"generation[{index}]", row.generation, generation)
        if not Status.OK <= status <= Status.REFUSED:
            return Fault(f"status[{index}]", "0..8", status)
    return None


def check_trailer(reply: _Judged) -> Fault | None:
    """5: magic, semantic version, n and depth again."""
    if not reply.profile.is_sampled:
        return None
    packing = reply_packing(reply.n, reply.profile.depth, sampled=True)
    at = HEADER_BYTES + packing.offset["trailer"]
    try:
        found = TRAILER.unpack(reply.frame, at)
    except FrameError as error:
        return Fault(error.place, error.expected, error.found)
    for name, expected in (("n", reply.n), ("depth", reply.profile.depth)):
        if found[name] != expected:
            return Fault(f"trailer.{name}", expected, found[name])
    return None


def check_mask(reply: _Judged) -> Fault | None:
    """6: 1 exactly where the STEP said T > 0 and status is OK."""
    if not reply.profile.is_sampled:
        return None
    wrong = reply.arrays["mask"] != reply.carries_q
    return reply.first("mask", wrong, "1 where T > 0 and status is OK, else 0")


def check_token(reply: _Judged) -> Fault | None:
    """7: tokens in [0, vocab), all -1 in a failed row; confidence in [0, 1]."""
    tokens = reply.arrays["tokens"]
    confidence = reply.arrays["confidence"]
    vocab = reply.profile.vocab
    drawn = (tokens >= 0) & (tokens < vocab)
    stray = np.where(reply.ok[:, None], ~drawn, tokens != -1)
    unsure = ~((confidence >= 0) & (confidence <= 1))  # a NaN is neither
    for row, depth in np.argwhere(stray | unsure)[:1].tolist():
        if not stray[row, depth]:
            return reply.first("confidence", unsure, "a number of 0..1")
        expected = f"0..{vocab - 1}" if reply.ok[row] else "-1 in a failed row"
        return Fault(f"tokens[{row}, {depth}]", expected, tokens[row, depth])
    return None


def check_support(reply: _Judged) -> Fault | None:
    """8: every id in [0, vocab), strictly ascending; 0..31 where mask is 0."""
    if not reply.profile.is_sampled:
        return None
    ids = reply.arrays["ids"]
    wrong = (ids < 0) | (ids >= reply.profile.vocab)
    wrong[..., 1:] |= ids[..., 1:] <= ids[..., :-1]
    wrong |= ~reply.carries_q[:, None, None] & (ids != np.arange(SUPPORT))
    vocab = reply.profile.vocab
    return reply.first(
        "ids", wrong, f"ascending ids of 0..{vocab - 1}, 0..31 in a row without q"
    )


def check_probability(reply: _Judged) -> Fault | None:
    """9: finite, not negative, never -0.0, q*M an integer; all zero where mask is 0."""
    if not reply.profile.is_sampled:
        return None
    q = reply.arrays["q"]
    scaled = q.astype(np.float64) * MASS
    wrong = ~np.isfinite(q) | np.signbit(q) | (np.floor(scaled) != scaled)
    wrong |= ~reply.carries_q[:, None, None] & (q != 0)
    return reply.first("q", wrong, f"a count / {MASS}, 0 in a row without q")


def check_mass(reply: _Judged) -> Fault | None:
    """10: no q above 1, counts add up to exactly M, the token's count is not 0."""
    if not reply.profile.is_sampled:
        return None
    q, ids, tokens = (reply.arrays[name] for name in ("q", "ids", "tokens"))
    for row, depth in np.argwhere(
        np.broadcast_to(reply.carries_q[:, None], tokens.shape)
    ):
        place = f"{row}, {depth}"
        # As floats, before any conversion: 2^40 has no place among the counts.
        above = np.flatnonzero(q[row, depth] > 1)
        if len(above):
            found = q[row, depth, above[0]]
            return Fault(f"q[{place}, {above[0]}]", "at most 1", found)
        counts = (q[row, depth].astype(np.float64) * MASS).astype(np.uint64)
        mass = int(counts.sum())
        if mass != MASS:
            return Fault(f"q[{place}]", f"counts adding up to {MASS}", mass)
        if not counts[ids[row, depth] == tokens[row, depth]].any():
            expected = f"q of token {tokens[row, depth]} above 0"
            return Fault(f"q[{place}]", expected, "0")
    return None


CHECKS: tuple[tuple[str, Callable[[_Judged], Fault | None]], ...] = (
    ("frame", check_frame),
    ("crc", check_crc),
    ("header", check_header),
    ("echo", check_echo),
    ("trailer", check_trailer),
    ("mask", check_mask),
    ("token", check_token),
    ("support", check_support),
    ("probability", check_probability),
    ("mass", check_mass),
)
REASONS = tuple(reason for reason, _ in CHECKS)

# The status of the rows of a reply that was discarded for a reason.
REASON_STATUS = {
    "frame": Status.CORRUPT,
    "crc": Status.CORRUPT,
    "header": Status.STALE,
    "echo": Status.STALE,
    "trailer": Status.CORRUPT,
    "mask": Status.INVALID,
    "token": Status.INVALID,
    "support": Status.INVALID,
    "probability": Status.INVALID,
    "mass": Status.INVALID,
}
# The worker itself computes wrongly; only a person opens its session again.
INCIDENTS = frozenset({"mask", "token", "support", "probability", "mass"})


def check_reply(
    profile: Profile,
    step_body: bytes | None,
    frame: bytes,
    session: bytes,
    sequence: int,
) -> None:
    """Holds a whole REPLY frame against its STEP.

    Args:
        profile: the negotiated one.
        step_body: the STEP's body without CRC. None: nobody awaits the round; then the
            frame's own n tells its length, and ``header`` says that it is well-formed
            (late, where the round was resolved meanwhile).
        frame: header, body and CRC.
        session: the connection's 16 bytes.
        sequence: the number this frame must have.

    Raises:
        ReplyError: the reason of the first check that fails over the whole reply.
        FrameError: the STEP is none.
    """
    step = None if step_body is None else decode_step(profile, step_body)
    reply = _Judged(profile, step, bytes(frame), session, sequence)
    with np.errstate(all="ignore"):  # NaN and infinities are looked at, not mistakes
        for reason, check in CHECKS:
            fault = check(reply)
            if fault is not None:
                round_ = None if step is None else step.round
                raise ReplyError(reason, *fault, round_)


def scatter_reply(profile: Profile, step_body: bytes, frame: bytes) -> bytes:
    """The page that an acceptable REPLY becomes: rows in slot order.

    Args:
        profile: the negotiated one.
        step_body: the STEP's body without CRC.
        frame: a whole frame that ``check_reply`` let pass.

    Returns:
        ReplyLayout, ``profile.layout_bytes`` long.
    """
    step = decode_step(profile, step_body)
    reply = _Judged(profile, step, bytes(frame), b"", 0)
    layout = ReplyLayout(profile.max_slots, profile.depth, profile.is_sampled)
    page = bytearray(layout.failed(Status.ABSENT, ()))
    views = layout.views(page)
    views.round[...] = step.round
    for index, row in enumerate(step.rows):
        views.status[row.slot] = reply.arrays["status"][index]
        if not reply.ok[index]:
            continue  # filled like an absent slot, but for its status
        for name in ("tokens", "confidence", "mask", "ids", "q"):
            view = getattr(views, name)
            if view is not None:
                view[row.slot] = reply.arrays[name][index]
    return bytes(page)


def frame_sequence(frame: bytes) -> int:
    """The sequence number a frame says it has, unchecked.

    Raises:
        FrameError: shorter than a header.
    """
    sequence: int = FRAME.read(frame)["sequence"]
    return sequence
