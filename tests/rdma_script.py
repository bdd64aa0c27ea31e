"""A worker over RDMA whose every write a test decides on; its lane is the product's."""

import contextlib
import os
import threading
import time

from fake_verbs import FakeEnd
from scripted_worker import good_reply

from pp3shm.errors import Pp3Error
from pp3shm.layout.frames import (
    HEADER_BYTES,
    ErrorBody,
    Kind,
    decode_header,
    decode_reset,
    decode_step,
    encode_error,
    encode_frame,
    encode_reply,
    open_body,
    profile_flags,
)
from pp3shm.link import FrameReader, listen
from pp3shm.link.proof import demand_proof
from pp3shm.worker.staged import StagedFrames, open_lane

KEY = bytes(range(32))
"""Of every test that leaves loopback."""


def honest(worker, step, slot):
    """Answer at once, where it is asked for."""
    worker.reply(step, slot)


class RdmaScript:
    """Serves one connection after another.

    Attributes:
        address: where it listens.
        act: called with (worker, step, slot) for each STEP.
        steps: every STEP, in order, each with its slot.
        events: every STEP and RESET, in order.
        heard: kinds of last frames.
        end: of the session's lane; the lane's own.
        sent: frames to the proxy: the sequence of the next.
    """

    def __init__(self, profile, act=honest, address="rdma://127.0.0.1:0", psk=None):
        self.profile, self.act, self._psk = profile, act, psk
        self.steps, self.events, self.heard, self.faults = [], [], [], []
        self.sessions = 0
        self.end = self.link = self.lane = None
        self._stop = os.eventfd(0)
        self._listener = listen(address, psk)
        self.address = str(self._listener.address)
        self._closing = False
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while not self._closing:
            link = self._listener.accept()
            if link is None:
                time.sleep(0.005)
                continue
            with link:
                try:
                    self._session(link)
                except Pp3Error as error:
                    self.faults.append(error)

    def _session(self, link):
        forever = float("inf")
        if self._psk is not None:
            demand_proof(link, self._psk, time.monotonic() + 30)
        reader = FrameReader(link, lambda _header: None, 1 << 16)
        frame = reader.read(forever, forever, self._stop)
        if frame is None:
            return
        self.session = decode_header(bytes(frame[:HEADER_BYTES])).session
        self.link, self.sent, self.received = link, 0, 1
        self.say(Kind.HELLO_ACK, self.profile.canonical_json())
        frame = reader.read(forever, forever, self._stop)
        if frame is None:
            return
        opened = open_lane(
            link, link.address, self.profile, open_body(bytes(frame[HEADER_BYTES:]))
        )
        self.lane, self.end = opened.lane, opened.lane._end
        self.received = 2
        with contextlib.closing(opened.lane):
            self.say(Kind.ENDPOINT, opened.body)
            self.sessions += 1
            self._frames(StagedFrames(reader, opened, lambda: self.received))

    def _frames(self, frames):
        while True:
            frame = frames.read(float("inf"), 30.0, self._stop)
            if frame is None:
                return
            self.received += 1
            body = open_body(bytes(frame[HEADER_BYTES:]))
            kind = frames.header.kind
            if kind == Kind.RESET:
                self.events.append(decode_reset(self.profile, body))
            elif kind == Kind.STEP:
                step = decode_step(self.profile, body)
                self.events.append(step)
                self.steps.append((step, frames._unanswered))
                self.act(self, step, frames._unanswered)
            else:
                self.heard.append(kind)
                return

    def say(self, kind, body=b""):
        """A frame over the connection."""
        self.link.send(encode_frame(kind, self.session, self.sent, body))
        self.sent += 1

    def error(self, text="enough"):
        """An ERROR over the connection."""
        self.say(Kind.ERROR, encode_error(ErrorBody(6, text)))

    def frame(self, step, **changes):
        """A good REPLY's bytes; ``changes`` replace arrays of it."""
        body = encode_reply(self.profile, good_reply(self.profile, step, **changes))
        return encode_frame(
            Kind.REPLY, self.session, self.sent, body, profile_flags(self.profile)
        )

    def reply(self, step, slot, **changes):
        """Write a good REPLY where it is asked for."""
        frame = self.frame(step, **changes)
        self.sent += 1
        self.lane.send(slot, frame)

    def write(self, data, at=0, rkey=None, immediate=None, slot=0):
        """Write bytes to an offset of the proxy's area, or with another key.

        Args:
            data: the bytes.
            at: offset from the beginning of the proxy's staging area.
            rkey: another key than the proxy's.
            immediate: what to say with it; None: nobody is told.
            slot: of ours, to write from.
        """
        end = self.end
        end.fill(slot, data)
        peer = end.peer if isinstance(end, FakeEnd) else end._peer
        key = peer.rkey if rkey is None else rkey
        if isinstance(end, FakeEnd):
            end.write(slot, len(data), peer.address + at, key, immediate)
        else:
            self._write_by_verbs(slot, len(data), peer.address + at, key, immediate)

    def _write_by_verbs(self, slot, size, address, rkey, immediate):
        import socket  # noqa: PLC0415 - with a device only

        from pp3shm.link.staging import slot_bytes  # noqa: PLC0415

        end = self.end
        enums, wr = end._v["enums"], end._v["wr"]
        at = end._out.address + slot * slot_bytes(end._shape.out_bytes)
        told = {} if immediate is None else {"imm_data": socket.htonl(immediate)}
        request = wr.SendWR(
            wr_id=slot,
            opcode=enums.IBV_WR_RDMA_WRITE
            if immediate is None
            else enums.IBV_WR_RDMA_WRITE_WITH_IMM,
            num_sge=1,
            sg=[wr.SGE(at, size, end._lkey)],
            send_flags=enums.IBV_SEND_SIGNALED,
            **told,
        )
        request.set_wr_rdma(rkey, address)
        with end._verbs("wild write"):
            end._qp.post_send(request)

    def close(self):
        """End it."""
        self._closing = True
        os.eventfd_write(self._stop, 1)
        self._thread.join(10)
        self._listener.close()
        os.close(self._stop)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
