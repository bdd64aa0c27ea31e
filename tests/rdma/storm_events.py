"""What happens in a storm: to whom, when, and what was in flight just then."""

import collections
import contextlib
import fcntl
import os
import signal
import socket
import struct
import threading
import time
import traceback
from pathlib import Path

from pp3shm import Worker
from pp3shm.errors import LinkError
from pp3shm.worker.drafters import TableDrafter

WEIGHTS = {
    "kill worker": 8,
    "stop worker": 6,
    "cut link": 7,
    "cut link, addresses forgotten": 1,
    "stop proxy": 3,
    "kill proxy": 1,
}
"""Kinds of events and how often each comes."""
LONGEST_STOP_S = 2.0
LONGEST_CUT_S = 0.8
SETTLED_S = 90.0
"""A watchdog: by then rounds must be answered again."""

_IPS = {"lab0": "10.98.0.1", "lab1": "10.98.0.2"}


class Nursery:
    """Starts workers by forking a process that has imported everything.

    Emulated, an interpreter and its imports take ten seconds; a fork takes none.

    Args:
        port: every worker listens there.
        what: (table, profile, key) of the workers.
    """

    def __init__(self, port, what):
        self._ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._ours.close()
            self._serve(theirs, port, what)
        theirs.close()
        self.pid = None

    @staticmethod
    def _serve(orders, port, what):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while orders.recv(1):
            child = os.fork()
            if child == 0:
                orders.close()
                try:
                    _work(f"rdma://10.98.0.2:{port}/rxe1", *what)
                except BaseException:  # noqa: BLE001 - shown, and then it is dead
                    traceback.print_exc()
                finally:
                    os._exit(1)
            orders.send(struct.pack("i", child))
        os._exit(0)

    def start(self):
        self._ours.send(b"s")
        (self.pid,) = struct.unpack("i", self._ours.recv(4))

    def kill(self):
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        self.pid = None

    def close(self):
        self.kill()
        self._ours.close()
        os.waitpid(self._pid, 0)


def _work(address, table, profile, key):
    """A worker until it is killed; the one before may not have let go of the port."""
    limit = time.monotonic() + 60
    while True:
        worker = Worker(TableDrafter(table), profile, [address], key)
        try:
            worker.start()
        except LinkError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.02)
        else:
            worker.serve_forever()


def cable(up):
    """As ``ip link set lab1 up`` or ``down``, without a program to start."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        name = b"lab1".ljust(16, b"\0")
        flags = fcntl.ioctl(s, 0x8913, name + bytes(24))  # SIOCGIFFLAGS
        (word,) = struct.unpack_from("H", flags, 16)
        word = word | 1 if up else word & ~1
        fcntl.ioctl(s, 0x8914, name + struct.pack("H", word) + bytes(22))


def know_addresses():
    """Each end's neighbour is told to the kernel, as ``ip neigh replace`` would.

    Else a packet that waits for an address keeps soft-RoCE's queue pair from being
    destroyed until the kernel has given up asking for it, three seconds later: in
    emulation most of a cut's time, and no part of what is tested.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        for here, there in (("lab0", "lab1"), ("lab1", "lab0")):
            mac = Path(f"/sys/class/net/{there}/address").read_text(encoding="ascii")
            ip = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(_IPS[there]))
            ether = struct.pack("H6s8x", 1, bytes.fromhex(mac.strip().replace(":", "")))
            flags = struct.pack("i", 0x02 | 0x04)  # ATF_COM, ATF_PERM
            request = ip + ether + flags + bytes(16) + here.encode().ljust(16, b"\0")
            fcntl.ioctl(s, 0x8955, request)  # SIOCSARP


class Events(threading.Thread):
    """One event at a time, at random moments.

    Args:
        rng: decides.
        nursery: of the workers.
        engine: whose proxy is struck.
        marks: called with an event's number just before it; how many rounds were open
            in a session then.

    Attributes:
        counts: events by kind.
        in_flight: of these, those that came while a round was open in a session.
        took_s: by kind, from one event to the next.
        good: set when a round has been answered.
        quiet: while set, nothing happens; ``still`` says that nothing does.
        ending: ends it.
        fault: what went wrong.
    """

    def __init__(self, rng, nursery, engine, marks):
        super().__init__(daemon=True)
        self._rng, self._nursery, self._engine = rng, nursery, engine
        self._marks = marks
        self.counts = collections.Counter()
        self.in_flight = collections.Counter()
        self.took_s = collections.Counter()
        self.good, self.ending = threading.Event(), threading.Event()
        self.quiet, self.still = threading.Event(), threading.Event()
        self.fault = None

    @property
    def total(self):
        return sum(self.counts.values())

    @property
    def worker_pid(self):
        return self._nursery.pid

    def run(self):
        try:
            while not self.ending.is_set():
                if self.quiet.is_set():
                    self.still.set()
                    time.sleep(0.02)
                    continue
                self.still.clear()
                self._one()
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.fault = error

    def _one(self):
        began = time.monotonic()
        name = self._rng.choices(list(WEIGHTS), WEIGHTS.values())[0]
        self.good.clear()
        self.in_flight[name] += self._marks(self.total) > 0
        self.counts[name] += 1
        getattr(self, "_" + name.replace(",", "").replace(" ", "_"))()
        # Some happen to what has not yet recovered from the last.
        if self._rng.random() < 0.25:
            self.ending.wait(self._rng.random())
        elif not self._answered():
            raise AssertionError(
                f"no round answered for {SETTLED_S} s after {name}: "
                f"{self._engine.last_error()}"
            )
        self.ending.wait(self._rng.random() * 0.3)
        self.took_s[name] += time.monotonic() - began

    def _answered(self):
        """Rounds are answered again, by a session from after the event."""
        limit = time.monotonic() + SETTLED_S
        self.good.clear()
        while time.monotonic() < limit and not self.ending.is_set():
            if self.good.wait(0.1):
                return True
        return self.ending.is_set()

    def _kill_worker(self):
        self._nursery.kill()
        time.sleep(self._rng.random() * 0.2)
        self._nursery.start()

    def _stop_worker(self):
        self._stopped(self._nursery.pid)

    def _stop_proxy(self):
        self._stopped(self._engine.stats()["proxy_pid"])

    def _kill_proxy(self):
        pid = self._engine.stats()["proxy_pid"]
        if pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _stopped(self, pid):
        if not pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            try:
                time.sleep(self._rng.random() * LONGEST_STOP_S)
            finally:
                os.kill(pid, signal.SIGCONT)

    def _cut_link(self):
        self._cut()
        know_addresses()

    def _cut_link_addresses_forgotten(self):
        self._cut()
        time.sleep(1.5)  # the kernel asks for them, and is answered
        know_addresses()

    def _cut(self):
        cable(up=False)
        time.sleep(self._rng.random() * LONGEST_CUT_S)
        cable(up=True)
