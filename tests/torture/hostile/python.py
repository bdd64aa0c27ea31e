"""A region with any words in it, seen through the package.

`python.py SEED CASES [FAULT]`: a case is a round with hostile words written between its
steps, and, in every second region, by another process all the while. Each call gives a
right answer or raises an error of pp3shm.errors that names a place. Prints the cases,
the calls that were answered and refused, and how many classes of errors were met.
"""

import contextlib
import logging
import mmap
import os
import random
import signal
import struct
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torture.hostile import planted_python

from pp3shm._core import ffi, lib
from pp3shm.engine import Engine
from pp3shm.errors import Mismatch, Pp3Error, ProfileError
from pp3shm.layout.profile import Profile
from pp3shm.layout.reply import ReplyLayout
from pp3shm.layout.tables import Status
from pp3shm.parts import Choices, Parts, _make_ring
from pp3shm.proxy.board import Board
from pp3shm.proxy.counters import INDEX
from pp3shm.proxy.state import SessionState
from pp3shm.rank import Rank
from pp3shm.reply import ReplyReader
from pp3shm.ring.end import CAUSES
from pp3shm.ring.record import PROXY, RANK, RECORD_BYTES, SEGMENTS
from pp3shm.ring.region import Region
from pp3shm.ring.ring import ProxyEnd, RankEnd
from pp3shm.slots import Row
from pp3shm.verify import Request, VerifyKeys, verify

VOCAB, ROUNDS, CASES_OF_A_REGION = 64, 4, 8
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
    """A page's round that somebody writes right after each look at it."""

    def __init__(self, round_, luck):
        self.round, self.luck = round_, luck

    def __int__(self):
        shown = int(self.round)
        if self.luck.random() < 0.3:
            self.round[...] = self.luck.choice(EDGES)
        return shown


class World:
    """An engine, a rank and a proxy over one region, and hostile hands."""

    def __init__(self, luck):
        self.luck = luck
        ring = _make_ring(PROFILE, Choices(ROUNDS, 2, "memfd", "thread"))
        reader = ReplyReader(PROFILE, ring, 0)
        pidfd = os.pidfd_open(os.getpid())
        ring.attach_rank(1, pidfd)
        os.close(pidfd)
        self.ring, self.region = ring, ring.region
        self.engine = Engine(PROFILE, Parts(ring, None, NoProxy(), reader))
        self.rank = Rank(PROFILE, RankEnd(self.region, rank=1), 0)
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
        for reader in (self.engine._reader, self.rank._reader):
            for place, page in enumerate(pages):
                timed = Timed(page.round, self.luck)
                reader._views[place] = reader._views[place]._replace(round=timed)

    def close(self):
        self.views.clear()
        self.rank.close()
        self.proxy.close()
        self.engine.close()

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

    # -- asking --------------------------------------------------------------------

    def ask(self, call):
        """The answer, or None where it was refused by name."""
        try:
            answer = call()
        except Pp3Error as error:
            self.refused(error)
            return None
        self.calls["answered"] += 1
        return answer

    def refused(self, error):
        """By a name: its class, its text, its place."""
        assert str(error), "an error without a text"
        assert not isinstance(error, Mismatch) or error.place, "no place"
        self.calls["refused"] += 1
        self.classes.add(type(error).__name__)

    def serve(self):
        """What a proxy does: takes, fills a page, publishes."""
        word = self.ask(self.proxy.take)
        if word is None:
            return
        assert word >> 20 & 15 == 2
        assert word & 255 == self.proxy.owner
        assert word >> 8 & 4095 < 2 * ROUNDS
        assert len(self.proxy.request(word)) == PROFILE.step_bytes
        self.proxy.page(word)[: LAYOUT.size] = good_page(word >> 24, self.luck)
        if self.luck.random() < 0.9:
            self.ask(lambda: self.proxy.publish(word))
        self.ask(lambda: self.proxy.sweep([word, self.luck.getrandbits(64)]))

    def read(self, reader, ticket, still):
        """A reply of this very round, and what verification makes of it."""
        reply = self.ask(lambda: reader.reply(ticket, timeout_s=0))
        if reply is None:
            return
        assert reply.round == ticket, f"round {reply.round}, not {ticket}"
        assert reply.failed is None or reply.failed in map(Status, CAUSES)
        assert 0 <= reply.place < len(reader.buffers)
        assert (reply.failed is None) == (reply.place < 2 * ROUNDS)
        for view, shape in ((reply.tokens, (2, 4)), (reply.ids, (2, 4, 32))):
            assert view.shape == shape
        judge(reply, ticket, still)
        self.ask(lambda: reader.release(ticket))

    def request_in_place(self, still):
        """Claimed, and its request written where it stands: its own page only."""
        deadline = time.monotonic_ns() + 10**9
        ticket = self.ask(lambda: self.ring.claim(deadline))
        if ticket is None:
            return
        if self.luck.random() < 0.5:
            at, control = self.entries + 256 * (ticket % ROUNDS), self.views["control"]
            (present,) = struct.unpack_from("<Q", control, at)
            struct.pack_into("<Q", control, at, self.value(present, is_state=True))
        view = self.ask(lambda: self.ring.request(ticket))
        assert view is None or address(view) == lib.pp3_request_of(
            self.ring.handle, ticket
        ), "another round's request"
        self.ask(lambda: self.ring.submit(ticket))
        if still:
            self.ask(lambda: self.ring.cancel(ticket))

    def attach(self):
        """Any bytes in record and header: the region of our own shape, or none."""
        luck, control = self.luck, self.views["control"]
        role = luck.choice([PROXY, RANK])
        record = bytearray(self.region.record_for(role, owner=3, rank=1))
        saved = bytes(control[:256])
        for data, times in ((record, luck.randrange(3)), (control, luck.randrange(2))):
            for _ in range(times):
                at = 4 * luck.randrange(RECORD_BYTES // 4)
                struct.pack_into("<I", data, at, luck.choice(EDGES) & 0xFFFFFFFF)
        fds = self.region.share(role)
        region = self.ask(lambda: Region.attach(bytes(record), fds))
        control[:256] = saved
        if region is None:
            return
        ours, theirs = (_shape_of(r) for r in (self.region, region))
        assert ours == theirs, "another shape that was let in"
        if region.record.role == RANK:
            end = self.ask(lambda: RankEnd(region))
            if end is not None:
                self.ask(lambda: end.release(max(1, self.ticket)))
        else:
            end = self.ask(lambda: ProxyEnd(region, -1))
            assert end is None or end.owner <= 255, "an owner out of bounds"
        region.close()

    def look(self):
        """What only looks."""
        for call in (self.engine.stats, self.ring.counters, self.ring.stats):
            self.ask(call)
        state = self.ask(lambda: self.engine.session_state)
        assert state is None or state in SessionState
        why = self.ask(self.engine.last_error)
        assert why is None or isinstance(why, (Pp3Error, ProfileError))
        self.ask(lambda: self.ring.is_open(self.luck.choice(EDGES[:12])))
        self.ask(lambda: self.board.note(Pp3Error("x" * self.luck.randrange(600))))
        self.ask(lambda: self.ask(self.proxy.prepare) is None or self.proxy.done())
        out = np.zeros(PROFILE.max_positions, np.int32)
        found = self.ask(lambda: self.proxy.slot_read(self.luck.randrange(3), out))
        assert found is None or 0 <= found[2] <= PROFILE.max_positions

    def one_case(self, *, still):
        spoil = (
            (lambda n: self.spoil(self.views, self.luck.randrange(n))) if still else id
        )
        for slot in range(2):
            self.ask(lambda slot=slot: self.engine.reset(slot, [1, 2]))
        timeout = self.luck.choice([5.0, 5.0, 0.0001])
        asked = self.ask(lambda: self.engine.step([Row(0), Row(1)], timeout_s=timeout))
        self.ticket = asked or self.ticket
        spoil(3)
        self.serve()
        spoil(3)
        ticket = self.luck.choice([self.ticket, self.ticket, self.luck.choice(EDGES)])
        self.read(self.rank, ticket, still)
        spoil(2)
        self.read(self.engine, ticket, still)
        if self.luck.random() < 0.3:
            self.request_in_place(still)
        if self.luck.random() < 0.3:
            cause = self.luck.choice([2, 7, 8, 9])
            self.ask(lambda: self.ring.resolve(max(1, self.ticket), cause))
            self.ask(lambda: self.engine.cancel(self.ticket))
        self.ask(lambda: self.engine.commit(0, [self.luck.randrange(VOCAB)]))
        if self.luck.random() < 0.3:
            self.attach()
        self.look()


def address(view):
    """Where a view begins."""
    return ffi.cast("uint8_t *", ffi.from_buffer(view))


def _shape_of(region):
    return bytes(ffi.buffer(ffi.addressof(region.shape)))


def good_page(ticket, luck):
    """A whole page that verification takes."""
    page = bytearray(LAYOUT.size)
    views = LAYOUT.views(page)
    views.round[...] = ticket
    views.mask[:] = 1
    views.ids[:] = np.arange(32)
    views.q[:] = 1 / 32
    views.tokens[:] = luck.randrange(32)
    return bytes(page)


def judge(reply, ticket, still):
    """Verification of any page: tokens of the vocabulary, or an error for each row."""
    target = np.full((2, PROFILE.depth + 1, VOCAB), 1 / VOCAB)
    keys = VerifyKeys.derive(bytes(16), 0, 1, 0)
    requests = [Request(slot, 2, keys) for slot in range(2)]
    done = verify(reply, target, requests, round=ticket, vocab=VOCAB)
    for row in range(2):
        n = int(done.count[row])
        if done.errors[row] is not None:
            assert n == 0
            continue
        assert 1 <= n <= PROFILE.depth + 1
        assert ((done.tokens[row, :n] >= 0) & (done.tokens[row, :n] < VOCAB)).all()
        if still and n > 1:
            assert (done.tokens[row, : n - 1] == reply.tokens[row, : n - 1]).all()


def main():
    seed, cases = int(sys.argv[1]), int(sys.argv[2])
    planted_python.plant(sys.argv[3] if len(sys.argv) > 3 else "")
    logging.disable()  # the notes left on the board
    answered = refused = 0
    classes = set()
    with np.errstate(all="ignore"):  # what an answer is, is judged by its value
        for case in range(0, cases, CASES_OF_A_REGION):
            still = case // CASES_OF_A_REGION % 2 == 0
            luck = random.Random(seed * 1_000_003 + case)
            world = World(luck)
            writer = contextlib.nullcontext() if still else world.flipping()
            if still and luck.random() < 0.5:
                world.time_the_writer()
            with writer:
                for k in range(CASES_OF_A_REGION):
                    try:
                        world.one_case(still=still)
                    except BaseException:
                        print(f"wrong: seed {seed} case {case + k}", file=sys.stderr)
                        raise
            world.close()
            answered += world.calls["answered"]
            refused += world.calls["refused"]
            classes |= world.classes
    done = -(-cases // CASES_OF_A_REGION) * CASES_OF_A_REGION
    print(done, answered, refused, len(classes))


if __name__ == "__main__":
    main()
