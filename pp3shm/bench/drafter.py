"""The far ends of our subjects: ``python -m pp3shm.bench.drafter ROLE``.

- ``ring``: a native drafter at the region itself, started by a watchdog like a proxy;
  its configuration comes over descriptor 3;
- ``link``: a native drafter behind a socket, in the place of a worker;
- ``silent``: the same, but it never answers;
- ``region``: a worker of Python at the region itself, its drafts the same each time;
- ``rank``: a further rank that is told its tickets.

The last four get one line of JSON on standard input and end when that is closed.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pp3shm._core import ffi, lib
from pp3shm.bench import exchange
from pp3shm.bench.exchange import SESSION, profile_of
from pp3shm.errors import LinkError
from pp3shm.layout.core import c_layout
from pp3shm.layout.frames import (
    HEADER_BYTES,
    Kind,
    Reply,
    decode_header,
    encode_frame,
    open_body,
)
from pp3shm.layout.profile import Profile
from pp3shm.link import SocketLink, listen
from pp3shm.link.reader import read_exactly
from pp3shm.rank import Rank
from pp3shm.ring.handover import PROXY_FD, attach_proxy
from pp3shm.ring.waiting import Waiting
from pp3shm.worker.draft import Task
from pp3shm.worker.drafters import UniformDrafter
from pp3shm.worker.near_session import NearSession
from pp3shm.worker.region import RegionWorker

SLEEP_NS = 10_000_000
HANDSHAKE_S = 10.0
TICKET_BYTES = 8

Config = dict[str, Any]


def config_of(positions: int, wait: str, frame: bytes, **more: object) -> bytes:
    """What every role is told, one line of JSON."""
    told = {"positions": positions, "wait": wait, "frame": frame.hex(), **more}
    return json.dumps(told).encode("ascii") + b"\n"


class _Fixed:
    """``struct pp3_fixed`` and what it points to."""

    def __init__(self, config: Config) -> None:
        self.profile: Profile = profile_of(config["positions"])
        self._layout = c_layout(self.profile)
        self._frame = bytearray.fromhex(config["frame"])
        self.handle = ffi.new("struct pp3_fixed *")
        self.handle.layout = self._layout
        # Kept by name: the struct holds bare pointers.
        self._pointer = ffi.from_buffer("uint8_t[]", self._frame, require_writable=True)
        self.handle.frame = self._pointer
        self.handle.frame_bytes = len(self._frame)

    def begin(self, session: bytes, sequence: int) -> None:
        """The session and sequence of the next frame."""
        ffi.memmove(self.handle.session, session, len(session))
        self.handle.sequence = sequence


def _ring() -> int:
    """Answer at the region until the engine is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lib.pp3_die_with_parent()
    control = socket.socket(fileno=PROXY_FD)
    end, data = attach_proxy(control)
    config = json.loads(data)
    _pin(config["core"])
    fixed = _Fixed(config)
    fixed.begin(SESSION, 0)
    room = int(end.region.shape.request_bytes)
    step = ffi.new("uint8_t[]", room)
    waiter = ffi.new("struct pp3_waiter *")
    Waiting(config["wait"]).tell(waiter)
    with end:
        code = lib.pp3_fixed_ring(
            fixed.handle, end.handle, step, room, PROXY_FD, waiter, SLEEP_NS
        )
    return int(code != 0)


def _link(config: Config, serve: Callable[[SocketLink, _Fixed], object]) -> None:
    """Listen, say where, and serve one connection after another."""
    fixed = _Fixed(config)
    with listen(config["address"]) as listener:
        _say(str(listener.address))
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while True:
            poll.poll()
            link = listener.accept()
            if link is None:
                continue
            try:
                _greet(link, fixed)
                serve(link, fixed)
            except LinkError:
                pass  # it went away in the middle; the next one is waited for
            finally:
                link.close()


def _greet(link: SocketLink, fixed: _Fixed) -> None:
    """HELLO and HELLO_ACK of the wire page, section 3."""
    limit = time.monotonic() + HANDSHAKE_S
    header = decode_header(read_exactly(link, HEADER_BYTES, limit))
    body = open_body(read_exactly(link, header.body_bytes, limit))
    fixed.profile.expect_same(Profile.from_json(body))
    profile = fixed.profile.canonical_json()
    link.send(encode_frame(Kind.HELLO_ACK, header.session, 0, profile))
    fixed.begin(header.session, 1)
    os.set_blocking(link.fileno(), True)


def _answer(link: SocketLink, fixed: _Fixed) -> None:
    room = HEADER_BYTES + 4 * fixed.profile.max_positions + 65536
    lib.pp3_fixed_link(fixed.handle, link.fileno(), ffi.new("uint8_t[]", room), room)


def _swallow(link: SocketLink, _fixed: _Fixed) -> None:
    connection = socket.socket(fileno=os.dup(link.fileno()))
    with connection:
        while connection.recv(65536):
            pass


class _Canned(NearSession):
    """All that a session does of a STEP, but for the drafter's own part."""

    def _draft(self, tasks: Sequence[Task], reply: Reply) -> None:
        if len(tasks) != len(reply.status):
            raise LinkError("bench: expected every row, found some refused")
        canned = exchange.reply()
        for name in ("tokens", "confidence", "mask", "ids", "q"):
            getattr(reply, name)[:] = getattr(canned, name)


def _region(config: Config) -> None:
    """Serve an engine's region until it ends."""
    exchange.reply()  # now, not in the first round
    profile = profile_of(config["positions"])
    worker = RegionWorker(
        UniformDrafter, profile, config["door"], wait=config["wait"], session=_Canned
    )
    with worker:
        _say("attached")
        worker.serve_forever()


def _rank(config: Config) -> None:
    """Read and release every round whose ticket comes."""
    profile = profile_of(config["positions"])
    with Rank.attach(config["invitation"], profile, wait=config["wait"]) as rank:
        _say("attached")
        while len(told := os.read(0, TICKET_BYTES)) == TICKET_BYTES:
            with rank.reply(int.from_bytes(told, "little")):
                pass


def _pin(core: int) -> None:
    if core >= 0:
        os.sched_setaffinity(0, {core})


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(0)


def _line() -> bytes:
    """The first line of standard input and not a byte more."""
    found = bytearray()
    while not found.endswith(b"\n"):
        got = os.read(0, 1)
        if not got:
            break
        found += got
    return bytes(found)


def main() -> int:
    """One role, to its end."""
    role = sys.argv[1]
    if role == "ring":
        return _ring()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = json.loads(_line())
    _pin(config["core"])
    if role == "rank":
        _rank(config)
        return 0
    if role == "region":
        _region(config)
        return 0
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _link(config, _answer if role == "link" else _swallow)
    return 0


if __name__ == "__main__":
    sys.exit(main())
