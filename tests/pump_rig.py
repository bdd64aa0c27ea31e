"""A pump by hand: a real region, one end of a socket pair, and no thread."""

import socket
import time

from scripted_worker import good_reply

from pp3shm import Profile
from pp3shm._core import lib
from pp3shm.layout.frames import (
    HEADER_BYTES,
    Kind,
    Status,
    Step,
    StepRow,
    decode_step,
    encode_frame,
    encode_reply,
    encode_step,
    open_body,
    profile_flags,
)
from pp3shm.layout.reply import ReplyLayout
from pp3shm.proxy.board import Board
from pp3shm.proxy.hands import Hands
from pp3shm.proxy.pump import Pump
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd, ProxyEnd
from pp3shm.ring.waiting import Waiting

SESSION = bytes(range(16))
FOR_EVER_NS = 2**62


class Rig:
    """An engine's end, a pump whose turns a test makes, and the worker's socket.

    Attributes:
        profile: of both.
        ring: the engine's end.
        hands: of the proxy.
        pump: on them.
        worker: the other end of its link.
    """

    def __init__(self, *, slots=1, rounds=4, context_bytes=0):
        self.profile = Profile.sampled(
            vocab=64,
            depth=5,
            max_slots=slots,
            max_positions=256,
            context_bytes=context_bytes,
        )
        layout = ReplyLayout(slots, 5, sampled=True)
        shape = Shape(
            rounds=rounds,
            ranks=1,
            page_bytes=self.profile.page_bytes,
            request_bytes=self.profile.step_bytes,
            failed_bytes=layout.size,
            head_bytes=layout.head_bytes,
            slots=slots,
            max_positions=256,
        )
        region = Region.create(shape, layout_id=self.profile.layout_id)
        failed = b"".join(layout.failed(cause, ()) for cause in CAUSES)
        self.ring = EngineEnd(region, failed)
        self.end = ProxyEnd.thread(self.ring)
        self.layout = layout
        self.hands = Hands(self.end, self.profile)
        self.pump = Pump(self.hands, -1, Waiting("futex"), slice_ns=1)
        self.board = Board(self.end)
        self.open()

    def open(self):
        """A session begins; the worker holds every slot."""
        self.read, self.replied = b"", 1
        self.link, self.worker = socket.socketpair()
        self.link.setblocking(False)
        self.worker.setblocking(False)
        self.pump.c.send_ns = self.pump.c.trickle_ns = FOR_EVER_NS
        lib.pp3_pump_open(self.pump.c, self.link.fileno(), SESSION)
        for slot in range(self.profile.max_slots):
            self.tell(slot)

    def tell(self, slot, generation=1, length=3):
        """As if a RESET had been sent."""
        told = self.pump.c.told[slot]
        told.generation, told.length, told.known = generation, length, 1

    def ask(self, slots=1, generation=1, position=3, committed=()):
        """A round of so many slots; its ticket."""
        context = bytes(self.profile.context_bytes)
        rows = tuple(
            StepRow(
                slot,
                generation,
                position,
                0,
                tuple(committed),
                sampled=True,
                context=context,
            )
            for slot in range(slots)
        )
        body = encode_step(self.profile, Step(0, rows))
        return self.ring.step(body, time.monotonic_ns() + 60_000_000_000)

    def heard(self):
        """The STEPs that have reached the worker since the last call."""
        while True:
            try:
                self.read += self.worker.recv(1 << 20)
            except BlockingIOError:
                break
        steps = []
        while len(self.read) >= HEADER_BYTES:
            size = HEADER_BYTES + int.from_bytes(self.read[12:16], "little")
            if len(self.read) < size:
                break
            body = open_body(self.read[HEADER_BYTES:size])
            steps.append(decode_step(self.profile, body))
            self.read = self.read[size:]
        return steps

    def reply(self, step, **changes):
        """The frame of the next REPLY."""
        body = encode_reply(self.profile, good_reply(self.profile, step, **changes))
        self.replied += 1
        return encode_frame(
            Kind.REPLY, SESSION, self.replied - 1, body, profile_flags(self.profile)
        )

    def status(self, ticket):
        """How a round ended, or else its first slot; None while it is open."""
        found = self.ring.try_wait(ticket)
        if found is None:
            return None
        self.ring.release(ticket)
        return found.status or int(self.layout.views(found.view).status[0])

    def hang_up(self):
        """The session is over."""
        lib.pp3_pump_close(self.pump.c)
        self.link.close()
        self.worker.close()

    def close(self):
        """Nothing stays in hand."""
        self.hands.fail_all(Status.PEER_DIED)
        self.hang_up()
        self.end.close()
        self.ring.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
