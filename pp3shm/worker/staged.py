"""The worker's end of a lane: STEPs out of its staging area, REPLYs into the proxy's.

What else is said comes over the connection. Each way keeps its own order; which frame
is next of the two is told by the sequences, which both share.
"""

import contextlib
import logging
import select
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pp3shm.errors import FrameError, LinkError
from pp3shm.layout.frames import (
    HEADER_BYTES,
    FrameHeader,
    Kind,
    decode_endpoint,
    decode_header,
    encode_endpoint,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import frame_bytes, step_packing
from pp3shm.link import FrameReader, RdmaAddress, SocketLink, rdma
from pp3shm.link.lane import Lane
from pp3shm.link.staging import slots_for
from pp3shm.link.verbs import Shape

logger = logging.getLogger("pp3shm.worker")


class Opened(NamedTuple):
    """A lane that is ready.

    Attributes:
        link: the connection it was agreed over.
        lane: to the proxy.
        slots: how many each area has.
        lengths: bytes that a STEP's frame may have.
        body: of our ENDPOINT.
    """

    link: SocketLink
    lane: Lane
    slots: int
    lengths: frozenset[int]
    body: bytes


def open_lane(
    link: SocketLink, address: RdmaAddress, profile: Profile, body: bytes
) -> Opened:
    """Connect to what the proxy's ENDPOINT says.

    Args:
        link: the connection it came over.
        address: listened at.
        profile: the agreed one.
        body: of the ENDPOINT, without its CRC.

    Raises:
        FrameError: it is none, its slots hold no REPLY of the profile, or they are so
            many that more would be pinned than may be.
        LinkError: no device, or it refused something.
    """
    peer = decode_endpoint(body, profile.reply_bytes)
    largest = max(profile.reply_bytes, profile.step_bytes)
    most = slots_for(peer.slots, largest)
    if peer.slots > most:
        raise FrameError("endpoint.slots", f"at most {most}", peer.slots)
    shape = Shape(peer.slots, profile.step_bytes, profile.reply_bytes)
    end = rdma.open_end(link.local_ip, address, shape)
    try:
        lane = Lane(end, peer, link.peer)
    except BaseException:
        with contextlib.suppress(LinkError):  # counted: rdma.lost_areas()
            end.close()
        raise
    lengths = frozenset(
        frame_bytes(
            step_packing(n, profile.depth, profile.is_sampled, profile.context_bytes)
        )
        for n in range(1, profile.max_slots + 1)
    )
    return Opened(link, lane, peer.slots, lengths, encode_endpoint(end.local))


class _Held(NamedTuple):
    """A frame that has come and may not be next yet; slot -1: over the connection."""

    header: FrameHeader
    frame: memoryview
    slot: int
    came: float


class StagedFrames:
    """Reads whole frames as ``FrameReader`` does, from both ways in their order.

    Args:
        reader: of the connection.
        opened: the lane.
        following: tells the sequence of the next frame.

    Attributes:
        header: of the frame last returned.
        admit: judges a header.
    """

    def __init__(
        self, reader: FrameReader, opened: Opened, following: Callable[[], int]
    ) -> None:
        self._reader = reader
        self._opened = opened
        self._lane = opened.lane
        self._next = following
        self.admit = reader.admit
        reader.admit = self._admit_connection
        self.header: FrameHeader | None = None
        self._steps: deque[_Held] = deque()
        self._said: _Held | None = None
        self._unanswered: int | None = None  # the slot of the STEP last returned

    @property
    def raw_header(self) -> bytes:
        """The 40 bytes last read as a header from the connection."""
        return self._reader.raw_header

    def read(
        self, idle_deadline: float, frame_s: float, stop: int | None = None
    ) -> memoryview | None:
        """See ``FrameReader.read``.

        Raises:
            FrameError: a write that no STEP is, or frames out of sequence.
            LinkError: not in time, or the lane failed.
            PeerDied: the connection ended.
        """
        while True:
            self._collect()
            frame = self._in_order()
            if frame is not None:
                return frame
            deadline = self._deadline(idle_deadline, frame_s)
            if self._wait(min(deadline, self._lane.due), stop):
                return None
            if time.monotonic() >= deadline:
                raise LinkError(
                    f"{self._opened.link.peer}: expected frame {self._next()} in time, "
                    "found others or part of one"
                )

    def _collect(self) -> None:
        """What has come by either way: copies, for the proxy can write meanwhile."""
        for completion in self._lane.take():
            slot, size = completion.slot, completion.size
            if not 0 <= slot < self._opened.slots:
                expected = f"0..{self._opened.slots - 1}"
                raise FrameError("rdma.immediate", expected, slot)
            if any(held.slot == slot for held in self._steps):
                raise FrameError(f"rdma.slot[{slot}]", "one STEP", "another one")
            if size not in self._opened.lengths:
                place = f"rdma.bytes of slot {slot}"
                raise FrameError(place, "a length of STEP", size)
            frame = memoryview(self._lane.read(slot, size))
            header = decode_header(bytes(frame[:HEADER_BYTES]))
            if header.kind != Kind.STEP:
                raise FrameError("frame.kind", "STEP by RDMA", Kind(header.kind).name)
            self.admit(header)
            if size != HEADER_BYTES + header.body_bytes:
                raise FrameError("frame.body_bytes", size - HEADER_BYTES, "another")
            self._steps.append(_Held(header, frame, slot, time.monotonic()))
        if self._said is None:
            said = self._reader.feed()
            if said is not None and self._reader.header is not None:
                self._said = _Held(self._reader.header, said, -1, time.monotonic())

    def _admit_connection(self, header: FrameHeader) -> None:
        if header.kind == Kind.STEP:
            raise FrameError("frame.kind", "STEP by RDMA only", Kind(header.kind).name)
        self.admit(header)

    def _in_order(self) -> memoryview | None:
        heads = [*list(self._steps)[:1], *([self._said] if self._said else [])]
        wanted = self._next()
        for held in heads:
            if held.header.sequence < wanted:
                raise FrameError("frame.sequence", wanted, held.header.sequence)
        for held in heads:
            if held.header.sequence == wanted:
                break
        else:
            if len(heads) == 2:  # each way is in order: the one between never comes
                raise FrameError("frame.sequence", wanted, heads[0].header.sequence)
            return None
        if held.slot < 0:
            self._said = None
        else:
            self._steps.popleft()
            self._unanswered = held.slot
        self.header = held.header
        return held.frame

    def _deadline(self, idle_deadline: float, frame_s: float) -> float:
        """What was begun, or waits for what is missing before it, has its time."""
        begun = [held.came for held in list(self._steps)[:1]]
        begun += [self._said.came] if self._said else []
        begun += [self._reader.began] if self._reader.began is not None else []
        return min([idle_deadline, *(moment + frame_s for moment in begun)])

    def _wait(self, deadline: float, stop: int | None) -> bool:
        """Until something may have come; True where stopped."""
        poll = select.poll()
        poll.register(self._lane.fileno(), select.POLLIN)
        if self._said is None:
            poll.register(self._opened.link.fileno(), select.POLLIN)
        if stop is not None:
            poll.register(stop, select.POLLIN)
        left = deadline - time.monotonic()
        limit = None if left == float("inf") else max(0.0, left) * 1000
        return stop in [fd for fd, _ in poll.poll(limit)]

    def reply(self, frame: bytes, timeout_s: float) -> None:
        """Write the answer to the STEP last returned into its slot.

        Raises:
            LinkError: it cannot be sent.
        """
        if self._unanswered is None:
            raise LinkError(
                f"{self._opened.link.peer}: expected a STEP to answer, none"
            )
        slot, self._unanswered = self._unanswered, None
        self._lane.send(slot, frame, timeout_s)

    def close(self) -> None:
        """Nothing writes any more."""
        try:
            self._lane.close()
        except LinkError as error:  # its memory stays where it is, for ever
            logger.error("%s", error)  # noqa: TRY400 - the trace says nothing more
