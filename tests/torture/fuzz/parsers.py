"""Everything in Python that takes bytes from a peer or a file, one function each.

A function gives nothing back: it may raise the errors named beside it in PARSERS, and
whatever else comes out of it is a fault. What was let pass is held against what the
parser promises, mostly that it would be written the same way again.
"""

import contextlib
import io
import os
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from torture.fuzz import inputs
from torture.fuzz.wire import SESSION, SILENT, Script, Tape, frames_of, hold, text_of

from pp3shm._core import ffi, lib
from pp3shm.demo.drafter import load_drafter
from pp3shm.errors import (
    ConfigError,
    FrameError,
    LinkError,
    Pp3Error,
    ProfileError,
    RegionError,
    ReplyError,
)
from pp3shm.layout import keyproof
from pp3shm.layout.frames import (
    HEADER_BYTES,
    Endpoint,
    Kind,
    decode_endpoint,
    decode_error,
    decode_header,
    decode_reply,
    decode_reset,
    decode_step,
    encode_endpoint,
    encode_error,
    encode_reply,
    encode_reset,
    encode_step,
    open_body,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.validate import check_reply, scatter_reply
from pp3shm.link.address import parse
from pp3shm.link.proof import demand_proof, prove_to_worker
from pp3shm.link.reader import FrameReader
from pp3shm.proxy import greet
from pp3shm.proxy.board import Board
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.ring.end import NOTE_BYTES
from pp3shm.ring.handover import Doorman
from pp3shm.ring.record import RECORD_BYTES, compare, new_record, read_record
from pp3shm.worker.connection import Connection, Host, Patience
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import DrafterSource
from pp3shm.worker.drafters import UniformDrafter
from pp3shm.worker.session import Refusal, Session

PROFILES = [inputs.profile_of(shape) for shape in inputs.SHAPES if shape[2] < 200]
EXCHANGES = [
    inputs.exchange_of(index, 0)
    for index, shape in enumerate(inputs.SHAPES)
    if shape[2] < 200
]
PSK, NONCE = bytes(32), bytes(range(32))
ROOM = 1 << 17  # no buffer of these profiles' peers is larger


def _profile(data: bytes) -> tuple[Profile, bytes]:
    return PROFILES[data[0] % len(PROFILES)] if data else PROFILES[0], data[1:]


def header(data: bytes) -> None:
    """The 40 bytes of every frame."""
    found = decode_header(data)
    hold(found.kind in tuple(Kind) and len(found.session) == 16, "a header")


def body(data: bytes) -> None:
    """A body's CRC."""
    hold(open_body(data) == data[:-4], "a body")


def error(data: bytes) -> None:
    """ERROR, and the profile error that its text may tell of."""
    found = decode_error(data)
    hold(encode_error(found) == data, "an ERROR that is written the same again")
    told = ProfileError.told(found.text)
    hold(told is None or len(told.field) <= 40, "a field's name")


ENDPOINT = Endpoint(17, 2**24 - 1, 4096, 1, bytes(16), 1 << 40, 2**32 - 1, 1 << 20, 8)


def endpoint(data: bytes) -> None:
    """ENDPOINT: an area within 64 bits, whose slots hold a frame of the profile."""
    frame = PROFILES[0].reply_bytes
    found = decode_endpoint(data, frame)
    hold(encode_endpoint(found) == data, "an ENDPOINT that is written the same again")
    hold(frame <= found.slot_bytes < 2**32, "slots that hold a frame")
    hold(1 <= found.slots <= 256, "a bounded number of slots")
    hold(found.at(found.slots) <= 2**64, "an area within 64 bits")


def profile(data: bytes) -> None:
    """HELLO: canonical, or refused by name."""
    found = Profile.from_json(data)
    hold(found.canonical_json() == data, "a profile in its one spelling")
    PROFILES[0].expect_same(found)


def step(data: bytes) -> None:
    """STEP."""
    ours, rest = _profile(data)
    found = decode_step(ours, rest)
    hold(encode_step(ours, found) == rest, "a STEP that is written the same again")


def reset(data: bytes) -> None:
    """RESET."""
    ours, rest = _profile(data)
    found = decode_reset(ours, rest)
    hold(encode_reset(ours, found) == rest, "a RESET that is written the same again")


def reply(data: bytes) -> None:
    """REPLY's arrays, unjudged; then the ten checks, its CRC made right."""
    ours, asked, good = EXCHANGES[data[0] % len(EXCHANGES) if data else 0]
    frame = bytearray(data[2:])
    if len(data) > 1 and data[1] & 1 and len(frame) > HEADER_BYTES + 4:
        frame[:HEADER_BYTES] = good[:HEADER_BYTES]
        frame = inputs.given_.remake_crc(frame)
    judged = bytes(frame)
    check_reply(ours, asked, judged, inputs.given_.SESSION, inputs.SEQUENCE)
    hold(len(scatter_reply(ours, asked, judged)) == ours.layout_bytes, "a page")
    inner = open_body(judged[HEADER_BYTES:])
    found = decode_reply(ours, inner)
    hold(encode_reply(ours, found) == inner, "a REPLY that is written the same again")


def proof(data: bytes) -> None:
    """The key proof, on both sides, message by message and from a link."""
    way, rest = (data[0] % 5 if data else 0), data[1:]
    if way == 0:
        hold(keyproof.read_first(rest) == rest[4:], "a nonce")
    elif way == 1:
        keyproof.check_answer(PSK, NONCE, rest)
    elif way == 2:
        keyproof.check_second(PSK, NONCE, NONCE, rest)
    else:
        prove = demand_proof if way == 3 else prove_to_worker
        prove(Tape(rest), PSK, time.monotonic() + 5)  # type: ignore[arg-type]


def key_file(data: bytes) -> None:
    """A pre-shared key's file."""
    fd = os.memfd_create("key")
    try:
        os.write(fd, data)
        hold(keyproof.load_key(f"/proc/self/fd/{fd}") == data, "the whole file")
    finally:
        os.close(fd)


def address(data: bytes) -> None:
    """An address, as a user or a file gives it."""
    found = parse(text_of(data))
    hold(parse(str(found)) == found, "an address that is written the same again")


def record(data: bytes) -> None:
    """The record of an attach, then the header of the region it is about."""
    part = bytearray(data[:RECORD_BYTES].ljust(RECORD_BYTES, b"\0"))
    if data and data[-1] & 1:  # of now, or nothing but the clock is looked at
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        part[-8:] = now.to_bytes(8, "little")
    found = read_record(bytes(part))
    control = ffi.from_buffer(data[RECORD_BYTES:].ljust(RECORD_BYTES, b"\0"))
    compare(control, ffi.addressof(found, "shape"))


def plan(data: bytes) -> None:
    """What a proxy's process is told when it starts."""
    found = ProxyPlan.from_bytes(data)
    hold(ProxyPlan.from_bytes(found.to_bytes()) == found, "the same plan again")


def note(data: bytes) -> None:
    """A proxy's last words, which stand in the region: never an error of the reader."""
    end: Any = types.SimpleNamespace(note_read=lambda: data[:NOTE_BYTES])
    found = Board(end).noted()
    hold(found is None or isinstance(found, Pp3Error), "an error or none")


def drafter_file(data: bytes) -> None:
    """A drafter's file: whole, or with another description in a good one."""
    fd = os.memfd_create("drafter")
    try:
        os.write(fd, data[1:] if data[:1] == b"\0" else described(data[1:]))
        load_drafter(Path(f"/proc/self/fd/{fd}"))
    finally:
        os.close(fd)


def described(meta: bytes) -> bytes:
    """A drafter's file of a few counts with this description."""
    made = io.BytesIO()
    keys = np.array([0, 1, 2, 0, 5, 7], np.int64)
    numbers = np.ones(6, np.int64)
    np.savez(made, meta=np.frombuffer(meta, np.uint8), keys=keys, counts=numbers)
    return made.getvalue()


def doorman(data: bytes) -> None:
    """What a rank asks at the door."""
    region = types.SimpleNamespace(
        layout_id=bytes(31) + b"x", shape=types.SimpleNamespace(ranks=4)
    )
    door: Any = types.SimpleNamespace(
        _engine=types.SimpleNamespace(region=region), _free=lambda rank: rank != 2
    )
    hold(Doorman._choose(door, data) in {1, 3}, "a free rank")


def _session(ours: Profile) -> Session:
    counts = Counts()
    source = DrafterSource(UniformDrafter(ours), ours, counts)
    return Session(ours, SESSION, source, counts)


def session(data: bytes) -> None:
    """The worker's session: RESETs and STEPs, one after the other."""
    ours, rest = _profile(data)
    served = _session(ours)
    for kind, part, _ in frames_of(rest):
        if kind & 1:
            served.reset(part)
        else:
            decode_reply(ours, served.step(part))


def serve(data: bytes) -> None:
    """The worker's connection from HELLO to its end; lets nothing of a peer's out."""
    ours, rest = _profile(data)
    script = Script(rest)
    script.frame(Kind.HELLO, ours.canonical_json(), 0)
    tape = Tape(script.frames(ours, 1), largest=ROOM)
    counts = Counts()
    host = Host(
        ours, None, DrafterSource(UniformDrafter(ours), ours, counts), counts,
        Patience(), SILENT, lambda: False, lambda _: contextlib.nullcontext(),
    )  # fmt: skip
    Connection(tape, host).serve(lambda: None)  # type: ignore[arg-type]
    hold(tape.closed, "a closed connection")


def talk(data: bytes) -> None:
    """The proxy's greeting: HELLO_ACK or ERROR. What follows is the C core's."""
    ours, rest = _profile(data)
    script = Script(rest)
    if rest[:1] != b"\xff":
        script.frame(Kind.HELLO_ACK, ours.canonical_json(), 0)
    tape = Tape(script.frames(ours, 1), largest=ROOM)
    greet.secrets.token_bytes = lambda _: SESSION  # type: ignore[assignment]
    greet.agree(tape, ours, time.monotonic() + 5)  # type: ignore[arg-type]


def reader(data: bytes) -> None:
    """Frames cut out of a stream, whatever pieces it comes in."""
    ours, rest = _profile(data)
    tape = Tape(rest, largest=ROOM)

    def admit(found: Any) -> None:
        if found.body_bytes > 4096:
            raise FrameError("frame.body_bytes", "at most 4096", found.body_bytes)

    cut = FrameReader(tape, admit, ours.reply_bytes)
    while (frame := cut.feed()) is not None:
        whole = HEADER_BYTES + (cut.header.body_bytes if cut.header else 0)
        hold(len(frame) == whole, "a whole frame")


PARSERS: tuple[tuple[Callable[[bytes], None], tuple[type[Exception], ...]], ...] = (
    (header, (FrameError,)),
    (body, (FrameError,)),
    (error, (FrameError,)),
    (profile, (ProfileError,)),
    (step, (FrameError,)),
    (reset, (FrameError,)),
    (reply, (ReplyError,)),
    (proof, (FrameError, LinkError)),
    (key_file, (ConfigError,)),
    (address, (ConfigError,)),
    (record, (RegionError,)),
    (plan, (ConfigError, ProfileError)),
    (note, ()),
    (drafter_file, (ConfigError,)),
    (doorman, (RegionError,)),
    (session, (Refusal,)),
    (serve, ()),
    (talk, (FrameError, LinkError, ProfileError)),
    (reader, (FrameError, LinkError)),
    (endpoint, (FrameError,)),
)


def record_seed() -> bytes:
    """A record and a header that fit together."""
    shape = ffi.new("struct pp3_shape *")
    for name in ("rounds", "pages", "ranks", "slots", "max_positions"):
        setattr(shape, name, 4)
    for name in ("page_bytes", "request_bytes", "failed_bytes", "head_bytes"):
        setattr(shape, name, 64)
    lib.pp3_shape_fill(shape)
    made = new_record(shape)
    made.role = 1
    region = lib.pp3_magic().to_bytes(8, "little") + bytes(ffi.buffer(shape))
    return bytes(ffi.buffer(made)) + region + b"\1"
