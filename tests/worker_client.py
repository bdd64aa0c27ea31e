"""An engine's side by hand: plain sockets, and no rule that it must keep."""

import hashlib
import secrets
import socket
import struct
import time

import numpy as np

from pp3shm.layout.frames import (
    FrameHeader,
    Kind,
    Reply,
    Step,
    StepRow,
    decode_error,
    decode_header,
    decode_reply,
    encode_frame,
    encode_reset,
    encode_step,
    open_body,
)
from pp3shm.layout.frames import Reset as ResetBody
from pp3shm.layout.profile import Profile
from pp3shm.layout.validate import check_reply
from pp3shm.link import TcpAddress, parse
from pp3shm.worker import Patience

PATIENCE_S = 30.0
SOON = 30.0  # only a fault takes that long
SHAPE = {"vocab": 64, "depth": 4, "max_slots": 3, "max_positions": 40}
SAMPLED = Profile.sampled(**SHAPE)
GREEDY = Profile.greedy(**SHAPE)
JSON = SAMPLED.canonical_json()
KEY = b"0123456789abcdef"
LOCAL = "tcp://127.0.0.1:0"
QUICK = Patience(handshake_s=0.3, frame_s=0.3, send_s=0.3)


def digest_of(tokens):
    """The prefix digest, hashed at once and by nobody's incremental code."""
    data = struct.pack(f"<{len(tokens)}i", *tokens)
    raw = hashlib.blake2b(data, digest_size=8, person=b"pp3shm.prefix.v1").digest()
    return int.from_bytes(raw, "little")


def row(slot=0, generation=1, prefix=(), count=0, **more):
    """A row whose committed tokens are the last ``count`` of its prefix."""
    prefix = tuple(prefix)
    fields = {
        "slot": slot,
        "generation": generation,
        "position": len(prefix),
        "digest": digest_of(prefix),
        "committed": prefix[len(prefix) - count :],
        "sampled": True,
    }
    return StepRow(**(fields | more))


def reset_body(profile, slot=0, generation=1, prefix=()):
    """The body of a RESET."""
    tokens = np.array(prefix, np.int32)
    return encode_reset(profile, ResetBody(slot, generation, tokens))


def step_body(profile, round_, *rows):
    """The body of a STEP."""
    return encode_step(profile, Step(round_, rows))


class Client:
    """One connection; ``sequence`` counts by itself unless a test says otherwise."""

    def __init__(self, address: str, profile: Profile, session: bytes | None = None):
        where = parse(address)
        if isinstance(where, TcpAddress):
            self.sock = socket.create_connection((where.host, where.port), PATIENCE_S)
        else:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(PATIENCE_S)
            self.sock.connect(where.native)
        self.profile = profile
        self.session = session or secrets.token_bytes(16)
        self.sequence = 0
        self.asked = {}

    def __enter__(self):
        """A context manager closes."""
        return self

    def __exit__(self, *_):
        """Close."""
        self.sock.close()

    def send(self, kind, body, flags=0, **changed):
        """Send one frame; ``changed`` replaces its session or sequence."""
        self.sock.sendall(self.frame(kind, body, flags, **changed))

    def frame(self, kind, body, flags=0, session=None, sequence=None):
        """The bytes of the next frame."""
        number = self.sequence if sequence is None else sequence
        self.sequence += 1
        return encode_frame(kind, session or self.session, number, body, flags)

    def read(self, size: int) -> bytes:
        """Exactly ``size`` bytes, or fewer at the connection's end."""
        data = b""
        while len(data) < size:
            try:
                more = self.sock.recv(size - len(data))
            except ConnectionResetError:
                break
            if not more:
                break
            data += more
        return data

    def receive(self) -> tuple[FrameHeader, bytes]:
        """One frame: header, and body without its CRC. EOFError at the end."""
        head = self.read(40)
        if len(head) < 40:
            raise EOFError(head)
        header = decode_header(head)
        return header, open_body(self.read(header.body_bytes))

    def receive_error(self):
        """The ERROR that ends the session, after which nothing follows."""
        header, body = self.receive()
        assert header.kind == Kind.ERROR, header
        assert header.session == self.session
        assert self.read(1) == b""
        return decode_error(body)

    def hello(self, profile: Profile | None = None):
        """Open a session; gives the worker's profile."""
        self.send(Kind.HELLO, (profile or self.profile).canonical_json())
        header, body = self.receive()
        assert (header.kind, header.sequence, header.session) == (
            Kind.HELLO_ACK,
            0,
            self.session,
        )
        return Profile.from_json(body)

    def reset(self, slot=0, generation=1, prefix=()):
        """Open or restate a generation."""
        self.send(Kind.RESET, reset_body(self.profile, slot, generation, prefix))

    def send_step(self, round_, *rows):
        """Ask, without waiting."""
        flags = 2 if self.profile.is_sampled else 0
        self.asked[round_] = step_body(self.profile, round_, *rows)
        self.send(Kind.STEP, self.asked[round_], flags)

    def reply(self) -> Reply:
        """Wait for a REPLY, which all ten checks of section 6 must let through."""
        header, body = self.receive()
        assert header.kind == Kind.REPLY, decode_error(body)
        reply = decode_reply(self.profile, body)
        number = header.sequence
        frame = encode_frame(Kind.REPLY, self.session, number, body, header.flags)
        step = self.asked[reply.round]
        check_reply(self.profile, step, frame, self.session, number)
        return reply

    def step(self, round_, *rows) -> Reply:
        """Ask and wait."""
        self.send_step(round_, *rows)
        return self.reply()


def opened(address, profile, **more) -> Client:
    """A client whose session is open."""
    client = Client(address, profile, **more)
    client.hello()
    return client


def wait_until(condition):
    """Wait for what must come true."""
    deadline = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.002)


def serves(worker, profile=SAMPLED):
    """True where a new engine is served from HELLO to REPLY."""
    with opened(worker.addresses[0], profile) as engine:
        engine.reset()
        reply = engine.step(1, row(sampled=profile.is_sampled))
        return reply.status.tolist() == [0]
