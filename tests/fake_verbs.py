"""An RDMA device that needs none: ends of one process that write into each other.

It does what the specification asks of a reliable connected queue pair: writes arrive
whole and in order, a wrong key or a write beyond the area breaks the pair, and what is
posted to a broken pair fails. A test can hold writes back, cut the link, and write what
no honest peer would.
"""

import contextlib
import ctypes
import itertools
import os
import secrets
import threading
from collections import deque

from pp3shm.errors import LinkError
from pp3shm.layout.endpoint import Endpoint
from pp3shm.link.staging import slot_bytes
from pp3shm.link.verbs import Completion

_numbers = itertools.count(17)


class FakeNet:
    """All ends, and what goes on between them.

    Attributes:
        holding: while true, writes are kept back; ``let_go`` delivers them.
        cut: while true, every write fails.
        silent: while true, writes arrive, but their sender is told only by ``tell``.
        refuse: what opening an end raises, or None.
    """

    def __init__(self):
        self.ends = {}
        self.lock = threading.RLock()
        self.holding = False
        self.cut = False
        self.silent = False
        self._untold = deque()
        self.refuse = None
        self._held = deque()

    def open_end(self, _ip, _address, shape):
        if self.refuse is not None:
            raise self.refuse
        return FakeEnd(self, shape)

    def let_go(self):
        with self.lock:
            self.holding = False
            while self._held:
                end, write = self._held.popleft()
                end.deliver(*write)

    def tell(self):
        with self.lock:
            self.silent = False
            while self._untold:
                end, completion = self._untold.popleft()
                end.complete(completion)

    def keep(self, end, completion):
        self._untold.append((end, completion))

    def hold(self, end, write):
        self._held.append((end, write))

    @property
    def held(self):
        return len(self._held)

    def newest(self, n=2):
        """The ends opened last, the newest first."""
        return [self.ends[number] for number in sorted(self.ends)[-n:]][::-1]


class FakeEnd:
    """See ``VerbsEnd``."""

    def __init__(self, net, shape):
        self._net, self._shape = net, shape
        self._in = ctypes.create_string_buffer(shape.slots * slot_bytes(shape.in_bytes))
        self._out = ctypes.create_string_buffer(
            shape.slots * slot_bytes(shape.out_bytes)
        )
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._queue = deque()
        self._peer = None
        self.broken = False
        self.closed = False
        self.sends_left = shape.slots + 1
        self.regions = 2
        self.local = Endpoint(
            queue_pair=next(_numbers),
            packet_sequence=secrets.randbits(24),
            mtu=1024,
            gid_index=1,
            gid=bytes(16),
            address=ctypes.addressof(self._in),
            rkey=secrets.randbits(32),
            slot_bytes=slot_bytes(shape.in_bytes),
            slots=shape.slots,
        )
        with net.lock:
            net.ends[self.local.queue_pair] = self

    def connect(self, peer):
        self._peer = peer

    @property
    def peer(self):
        return self._peer

    def fileno(self):
        return self._fd

    def inbox(self, slot):
        assert not self.closed
        return ctypes.addressof(self._in) + slot * slot_bytes(self._shape.in_bytes)

    def fill(self, slot, frame):
        assert len(frame) <= slot_bytes(self._shape.out_bytes)
        at = ctypes.addressof(self._out) + slot * slot_bytes(self._shape.out_bytes)
        ctypes.memmove(at, frame, len(frame))

    def post(self, slot, size):
        self.write(slot, size, self._peer.at(slot), self._peer.rkey, slot)

    def write(self, slot, size, address, rkey, immediate):
        """Write what our slot holds anywhere; immediate None: nobody is told."""
        at = ctypes.addressof(self._out) + slot * slot_bytes(self._shape.out_bytes)
        data = ctypes.string_at(at, size)
        with self._net.lock:
            if self.sends_left == 0:
                raise LinkError("fake: post: expected room, found the send queue full")
            self.sends_left -= 1
            write = (slot, data, address, rkey, immediate)
            if self._net.holding:
                self._net.hold(self, write)
            else:
                self.deliver(*write)

    def deliver(self, slot, data, address, rkey, immediate):
        peer = self._net.ends.get(self._peer.queue_pair)
        if self.closed:
            return
        if self.broken:
            self.complete(Completion(False, slot, 0, "WR_FLUSH_ERR"))
        elif self._net.cut or peer is None or peer.closed or peer.broken:
            self.broken = True
            self.complete(Completion(False, slot, 0, "RETRY_EXC_ERR"))
        elif not peer.covers(rkey, address, len(data)):
            self.broken = peer.broken = True
            self.complete(Completion(False, slot, 0, "REM_ACCESS_ERR"))
            peer.complete(Completion(True, 0, 0, "WR_FLUSH_ERR"))
        else:
            ctypes.memmove(address, data, len(data))
            if self._net.silent:
                self._net.keep(self, Completion(False, slot, 0))
            else:
                self.complete(Completion(False, slot, 0))
            if immediate is not None:
                peer.complete(Completion(True, immediate, len(data)))

    def covers(self, rkey, address, size):
        begin = self.local.address
        return (
            rkey == self.local.rkey
            and begin <= address
            and address + size <= begin + len(self._in)
        )

    def complete(self, completion):
        with self._net.lock:
            if not self.closed:
                self._queue.append(completion)
                os.eventfd_write(self._fd, 1)

    def poll(self):
        with self._net.lock:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._fd)
            found = list(self._queue)
            self._queue.clear()
            self.sends_left += sum(not completion.came for completion in found)
        return found

    def close(self):
        with self._net.lock:
            if not self.closed:
                self.closed = True
                self.regions = 0
                os.close(self._fd)
