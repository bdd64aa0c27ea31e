"""A region with any words in it, seen through the package.

`python.py SEED CASES [FAULT]`: a case is a round with hostile words written between its
steps, and, in every second region, by another process all the while. Each call gives a
right answer or raises an error of pp3shm.errors that names a place. Prints the cases,
the calls that were answered and refused, and how many classes of errors were met.
"""

import contextlib
import logging
import random
import struct
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torture.hostile import planted_python
from torture.hostile.hands import EDGES, LAYOUT, PROFILE, ROUNDS, VOCAB, Hands

from pp3shm._core import ffi, lib
from pp3shm.errors import Mismatch, Pp3Error, ProfileError
from pp3shm.layout.tables import Status
from pp3shm.proxy.state import SessionState
from pp3shm.ring.end import CAUSES
from pp3shm.ring.record import PROXY, RANK, RECORD_BYTES
from pp3shm.ring.region import Region
from pp3shm.ring.ring import ProxyEnd, RankEnd
from pp3shm.slots import Row
from pp3shm.verify import Request, VerifyKeys, verify

CASES_OF_A_REGION = 8


class World(Hands):
    """What is asked of that region, and what of the answers has to hold."""

    def close(self):
        self.views.clear()
        self.rank.close()
        self.proxy.close()
        self.engine.close()

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
