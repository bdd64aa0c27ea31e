"""An engine, a rank and a proxy over one region, and the hands that spoil it."""

import contextlib
import mmap
import os
import signal
import struct

from pp3shm._core import lib
from pp3shm.calls import Hearer, address
from pp3shm.engine import Engine
from pp3shm.layout.profile import Profile
from pp3shm.layout.reply import ReplyLayout
from pp3shm.parts import Choices, Parts, _make_ring
from pp3shm.proxy.board import Board
from pp3shm.proxy.counters import INDEX
from pp3shm.rank import Rank
from pp3shm.reply import Reply, ReplyReader
from pp3shm.ring.record import SEGMENTS
from pp3shm.ring.ring import ProxyEnd, RankEnd
from pp3shm.ring.waiting import Waiting

VOCAB, ROUNDS = 64, 4
PROFILE = Profile.sampled(vocab=VOCAB, depth=4, max_slots=2, max_positions=64)
LAYOUT = ReplyLayout(PROFILE.max_slots, PROFILE.depth, sampled=True)
COUNTERS = 384  # where the header's counters stand: words.h
EDGES = [0, 1, 2, 3, 7, 8, 31, 32, 63, 64, 2**31 - 1, 2**31, 2**32 - 1, 2**40 - 1]
EDGES += [2**40, 2**63 - 1, 2**63, 2**64 - 1, 0x7FC00000, 0x7F800000, 0xBF800000]


class NoProxy:
    """Stands where the engine has its proxy; the driver plays the proxy itself."""

    owner = 1

    def stats(self):
        return {}

    def replace(self):
        return False

    def trouble(self):
        return None

    def close(self):
        pass


class Timed:
    """A page's round that somebody writes after the core has looked at it.

    So it shows another one to whoever looks again, which nobody must.
    """

    def __init__(self, round_, luck):
        self.round, self.luck = round_, luck

    def __int__(self):
        if self.luck.random() < 0.3:
            self.round[...] = self.luck.choice(EDGES)
        return int(self.round)


class Hands:
    """A region in use, and whatever somebody else may write into it.

    Args:
        luck: a random.Random, of which everything follows.
    """

    def __init__(self, luck):
        self.luck = luck
        ring = _make_ring(PROFILE, Choices(ROUNDS, 2, "memfd", "thread"))
        reader = ReplyReader(PROFILE, ring, Waiting("futex"))
        pidfd = os.pidfd_open(os.getpid())
        ring.attach_rank(1, pidfd)
        os.close(pidfd)
        self.ring, self.region = ring, ring.region
        self.engine = Engine(PROFILE, Parts(ring, None, NoProxy(), reader))
        self.rank = Rank(PROFILE, RankEnd(self.region, rank=1), Waiting("futex"))
        self.proxy = ProxyEnd.thread(ring)
        self.board = Board(self.proxy)
        self.views = {name: self.region.view(name) for name in SEGMENTS}
        self.entries = int(lib.pp3_state_offset(ring.handle, ROUNDS))  # of entry 0
        self.session_state = COUNTERS + 8 * INDEX["session_state"]
        self.ticket = 0
        self.calls = {"answered": 0, "refused": 0}
        self.classes = set()

    def time_the_writer(self):
        """What the readers load twice will differ."""
        pages = [LAYOUT.views(view) for view in self.proxy._page]
        for user in (self.engine, self.rank):
            reader = user._reader
            views = [LAYOUT.views(buffer) for buffer in reader.buffers]
            for place, page in enumerate(pages):
                timed = Timed(page.round, self.luck)
                views[place] = views[place]._replace(round=timed)
            ring = address(reader._end.handle)
            before = reader._hearer  # keeps what the new one needs
            hearer = Hearer(
                address(reader._c), ring, before, tuple(views), reader._refuse, Reply
            )
            reader._hearer, reader.read, reader.release = (
                hearer, hearer.read, hearer.release,
            )  # fmt: skip
        self.engine._read = self.engine._reader.read

    # -- hostile hands -------------------------------------------------------------

    def places(self):
        """(segment, offset, whether it is a state word); any word that steers."""
        luck = self.luck
        entry = self.entries + 256 * luck.randrange(ROUNDS)
        kind = luck.randrange(10)
        if kind >= 8:
            name = ("slots", "failed")[kind - 8]
            return name, 8 * luck.randrange(len(self.views[name]) // 8), False
        if kind < 3:
            return "control", entry, True
        if kind == 3:
            return "control", entry + luck.choice([8, 16, 128]), False
        if kind == 4:
            places = [self.session_state, 8 * luck.randrange(self.entries // 8)]
            return "control", luck.choice(places), False
        if kind == 5:
            return "acks", 8 * luck.randrange(len(self.views["acks"]) // 8), False
        inside = 0 if kind == 6 else 8 * luck.randrange(LAYOUT.size // 8)
        return "pages", self.page_at() + inside, False

    def page_at(self):
        """Where a page stands: at its start is its round."""
        stride = len(self.views["pages"]) // (2 * ROUNDS) // 4096 * 4096
        return stride * self.luck.randrange(2 * ROUNDS)

    def value(self, present, *, is_state):
        """Something else than what stands there."""
        luck = self.luck
        if luck.random() < 0.25:
            return present ^ 1 << luck.randrange(64)
        if is_state:
            ticket = (present >> 24) + luck.choice([0, 0, 0, 1, -1, ROUNDS])
            page = luck.choice([present >> 8 & 4095, luck.randrange(4096), 2 * ROUNDS])
            word = ticket << 24 | luck.randrange(16) << 20 | page << 8
            return (word | luck.choice([0, 1, 2, 255])) % 2**64
        if luck.random() < 0.3:
            return present & ~0xFFFFFFFF | luck.choice(EDGES) & 0xFFFFFFFF
        return luck.choice([luck.choice(EDGES), luck.getrandbits(64)])

    def spoil(self, views, times):
        for _ in range(times):
            name, at, is_state = self.places()
            (present,) = struct.unpack_from("<Q", views[name], at)
            struct.pack_into(
                "<Q", views[name], at, self.value(present, is_state=is_state)
            )

    def flip(self, views):
        """Between what stood there and something hostile, fast, for ever."""
        while True:
            name, at, is_state = self.places()
            if self.luck.random() < 0.5:
                name, at, is_state = "pages", self.page_at(), False
            (present,) = struct.unpack_from("<Q", views[name], at)
            other = self.value(present, is_state=is_state)
            for _ in range(40):
                struct.pack_into("<Q", views[name], at, other)
                struct.pack_into("<Q", views[name], at, present)

    @contextlib.contextmanager
    def flipping(self):
        """Another process that writes meanwhile."""
        fds = {n: os.dup(self.region._segments.fds[n]) for n in self.views}
        sizes = {name: len(view) for name, view in self.views.items()}
        ready, told = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(told, b".")
                self.views = {n: mmap.mmap(fds[n], sizes[n]) for n in fds}
                self.flip(self.views)
            finally:
                os._exit(1)
        os.read(ready, 1)
        try:
            yield
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for fd in (*fds.values(), ready, told):
                os.close(fd)
