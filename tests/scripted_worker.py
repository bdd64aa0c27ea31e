"""A worker whose replies a test may spoil: real greeting, real drafts, one fault."""

import contextlib
import socket
import threading
from collections.abc import Callable

import numpy as np

from pp3shm.layout.frames import (
    MASS,
    SUPPORT,
    Kind,
    Reply,
    Step,
    body_lengths_ok,
    decode_header,
    decode_reset,
    decode_step,
    encode_frame,
    encode_reply,
    open_body,
    profile_flags,
)
from pp3shm.layout.profile import Profile

Spoil = Callable[[bytes, Step, "ScriptedWorker"], bytes | None]


def honest(frame: bytes, step: Step, worker: "ScriptedWorker") -> bytes:
    """The frame as it is."""
    del step, worker
    return frame


class ScriptedWorker:
    """Serves one connection after another; ``spoil`` may change or withhold a reply.

    Attributes:
        address: where it listens.
        steps: every STEP that came, in order.
        resets: every RESET that came, in order.
        events: both of them, in order.
        sessions: the 16 bytes of each session.
        heard: last frames of kind ERROR or BYE.
    """

    def __init__(self, profile: Profile, spoil: Spoil = honest) -> None:
        self.profile = profile
        self.spoil = spoil
        self.hello_answer: Callable[[bytes], bytes] | None = None
        self.steps: list[Step] = []
        self.resets: list = []
        self.events: list = []
        self.sessions: list[bytes] = []
        self.heard: list[Kind] = []
        self.received = self.sent = 0
        self._closing = threading.Event()
        self._connection: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.address = f"tcp://127.0.0.1:{port}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._connection, _ = self._listener.accept()
            except OSError:
                return
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(OSError, EOFError), self._connection:
                self._session(self._connection)

    def _exactly(self, connection: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            got = connection.recv(size - len(data))
            if not got:
                raise EOFError
            data += got
        return data

    def _frame(self, connection):
        header = decode_header(self._exactly(connection, 40))
        assert body_lengths_ok(header.kind, header.body_bytes, self.profile)
        return header, open_body(self._exactly(connection, header.body_bytes))

    def _session(self, connection: socket.socket) -> None:
        header, _ = self._frame(connection)
        self.sessions.append(header.session)
        answer = encode_frame(
            Kind.HELLO_ACK, header.session, 0, self.profile.canonical_json()
        )
        if self.hello_answer is not None:
            answer = self.hello_answer(header.session)
        connection.sendall(answer)
        self.sent = self.received = 1
        while True:
            header, body = self._frame(connection)
            assert header.sequence == self.received
            self.received += 1
            if header.kind == Kind.RESET:
                self.resets.append(decode_reset(self.profile, body))
                self.events.append(self.resets[-1])
            elif header.kind == Kind.STEP:
                self._answer(connection, decode_step(self.profile, body))
            else:
                self.heard.append(header.kind)
                return

    def _answer(self, connection: socket.socket, step: Step) -> None:
        self.steps.append(step)
        self.events.append(step)
        frame = self.reply_frame(step)
        spoiled = self.spoil(frame, step, self)
        if spoiled is not None:
            self.sent += 1  # before it can be seen to have arrived
            connection.sendall(spoiled)

    def reply_frame(self, step: Step, **changes) -> bytes:
        """A good REPLY to ``step``; ``changes`` replace arrays of it."""
        body = encode_reply(self.profile, good_reply(self.profile, step, **changes))
        return encode_frame(
            Kind.REPLY, self.sessions[-1], self.sent, body, profile_flags(self.profile)
        )

    def hang_up(self) -> None:
        """Close the connection without a word."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop listening and close."""
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()
        self._thread.join(5)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def good_reply(profile: Profile, step: Step, **changes) -> Reply:
    """Row r drafts token r at every depth, with q spread over ids 0 to 31."""
    n, depth = len(step.rows), profile.depth
    sampled = np.array([row.sampled for row in step.rows])
    q = np.zeros((n, depth, SUPPORT), np.float32)
    q[sampled] = 1 / SUPPORT
    assert (q * MASS == np.floor(q * MASS)).all()
    parts = {
        "round": step.round,
        "generation": np.array([row.generation for row in step.rows], np.uint32),
        "status": np.zeros(n, np.int32),
        "tokens": np.repeat(np.arange(n, dtype=np.int32)[:, None], depth, axis=1),
        "confidence": np.full((n, depth), 0.5, np.float32),
        "mask": sampled.astype(np.int32),
        "ids": np.tile(np.arange(SUPPORT, dtype=np.int32), (n, depth, 1)),
        "q": q,
    }
    return Reply(**{**parts, **changes})
