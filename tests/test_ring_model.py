"""The ring against a model of a page: every call, every order, every refusal."""

import dataclasses
import os

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from pp3shm._core import lib
from pp3shm.errors import Busy, Exhausted, RingError, Stale
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd, ProxyEnd, RankEnd, Reader

FAR = 10**18


@dataclasses.dataclass
class Round:
    """What the model knows of one round."""

    ticket: int
    rung: bool = False
    owner: int = 0
    status: int | None = None
    untold: bool = False
    released: set[int] = dataclasses.field(default_factory=set)


class Ring(RuleBasedStateMachine):
    """Rounds, pages as a count, and which of them a fenced proxy still holds."""

    @initialize(
        rounds=st.integers(1, 3), spares=st.integers(0, 2), ranks=st.integers(1, 2)
    )
    def create(self, rounds: int, spares: int, ranks: int) -> None:
        """A region of any small shape, all ranks attached, two proxies."""
        shape = Shape(
            rounds=rounds,
            spares=spares,
            ranks=ranks,
            page_bytes=32,
            request_bytes=32,
            failed_bytes=16,
            head_bytes=16,
            slots=1,
            max_positions=1,
        )
        templates = b"".join(bytes(8) + bytes([c]) * 8 for c in CAUSES)
        self.engine = EngineEnd(Region.create(shape, layout_id=bytes(32)), templates)
        self.readers: list[Reader] = [self.engine]
        pidfd = os.pidfd_open(os.getpid())
        for rank in range(1, ranks):
            self.engine.attach_rank(rank, pidfd)
            self.readers.append(RankEnd(self.engine.region, rank))
        os.close(pidfd)
        self.proxies = [ProxyEnd.thread(self.engine) for _ in range(2)]
        self.cursor = [0, 0]
        self.taken: list[dict[int, int]] = [{}, {}]
        self.size, self.free = rounds, rounds + spares
        self.pages = rounds + spares
        self.past: list[Round] = []
        self.disposed: set[int] = set()
        self.held: set[tuple[int, int]] = set()  # ticket, owner
        self.back: set[int] = set()  # tickets given back
        self.dead: set[int] = set()

    def teardown(self) -> None:
        """Everything is closed, whatever was open."""
        for end in (*getattr(self, "proxies", []), *getattr(self, "readers", [])):
            end.close()

    def _round(self, ticket: int) -> Round | None:
        """The round, if it is still in its entry."""
        if 1 <= ticket <= len(self.past) < ticket + self.size:
            return self.past[ticket - 1]
        return None

    def _let_go(self, ticket: int, owner: int) -> bool:
        return ticket in self.back or owner in self.dead

    def _expected(self) -> type[Exception] | None:
        """What the next claim has to say; disposes as it does."""
        before = self._oldest()
        if before is not None:
            if before.status is None:
                return Busy
            everyone = {reader.rank for reader in self.readers}
            if not before.untold and everyone - before.released:
                return Busy
            if before.ticket not in self.disposed:
                self.disposed.add(before.ticket)
                fenced = before.status != 0 and before.owner
                if fenced and not self._let_go(before.ticket, before.owner):
                    self.held.add((before.ticket, before.owner))
                else:
                    self.free += 1
        if self.free == 0:
            back = {h for h in self.held if self._let_go(*h)}
            self.held -= back
            self.free += len(back)
        return None if self.free else Exhausted

    @rule(ring=st.booleans())
    def claim(self, ring: bool) -> None:
        """Step, or the first half of it."""
        expected = self._expected()
        try:
            call = self.engine.step if ring else None
            ticket = call(bytes(20), FAR) if call else self.engine.claim(FAR)
        except RingError as error:
            assert type(error) is expected  # noqa: PT017  # either may be expected
            return
        assert expected is None
        assert ticket == len(self.past) + 1
        self.free -= 1
        self.past.append(Round(ticket, rung=ring))

    @rule(back=st.integers(0, 4))
    def submit(self, back: int) -> None:
        """Of any recent ticket; ringing again changes nothing."""
        ticket = len(self.past) - back
        live = self._round(ticket)
        if live is None:
            self._refused(lambda: self.engine.submit(ticket), ticket)
        else:
            self.engine.submit(ticket)
            live.rung = True

    def _refused(self, call, ticket: int) -> None:
        try:
            call()
        except Stale:
            assert ticket > 0
        except RingError:
            assert ticket <= 0
        except OverflowError:
            assert ticket < 0
        else:
            raise AssertionError(ticket)

    @rule(who=st.integers(0, 1))
    def take(self, who: int) -> None:
        """The first rung one behind the cursor, never past one that is not rung."""
        expected = None
        for ticket in range(self.cursor[who] + 1, len(self.past) + 1):
            live = self._round(ticket)
            if live is None or live.status is not None or live.owner:
                self.cursor[who] = ticket
                continue
            if live.rung:
                expected = live
            break
        proxy = self.proxies[who]
        assert proxy.prepare() == (expected is not None)
        proxy.done()
        word = proxy.take()
        if expected is None:
            assert word is None
            return
        assert word is not None
        assert (word >> 24, word & 255) == (expected.ticket, proxy.owner)
        expected.owner = proxy.owner
        self.cursor[who] = expected.ticket
        self.taken[who][expected.ticket] = word
        proxy.page(word)[8:16] = expected.ticket.to_bytes(8, "little")

    @precondition(lambda self: any(self.taken))
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """True once, unless the round was failed meanwhile."""
        who = data.draw(st.sampled_from([i for i in (0, 1) if self.taken[i]]))
        ticket = data.draw(st.sampled_from(sorted(self.taken[who])))
        word = self.taken[who].pop(ticket)
        live = self.past[ticket - 1]
        published = self.proxies[who].publish(word)
        assert published == (live.status is None)
        if published:
            live.status = 0
        else:
            self.back.add(ticket)

    @rule(who=st.integers(0, 1))
    def sweep(self, who: int) -> None:
        """Gives back what was failed, keeps the rest."""
        words = list(self.taken[who].values())
        kept = self.proxies[who].sweep(words)
        open_ = {
            t: w for t, w in self.taken[who].items() if self.past[t - 1].status is None
        }
        assert kept == list(open_.values())
        self.back |= set(self.taken[who]) - set(open_)
        self.taken[who] = open_

    @rule(back=st.integers(0, 4), status=st.sampled_from(CAUSES))
    def resolve(self, back: int, status: int) -> None:
        """Fails what is open; what is resolved keeps its outcome."""
        ticket = len(self.past) - back
        live = self._round(ticket)
        if live is None:
            self._refused(lambda: self.engine.resolve(ticket, status), ticket)
            return
        word = self.engine.resolve(ticket, status)
        if live.status is None:
            live.status = status
        assert (word >> 20 & 15) == (7 + live.status if live.status else 3)

    @rule(back=st.integers(0, 4))
    def cancel(self, back: int) -> None:
        """Ends it, and no release is asked for any more."""
        ticket = len(self.past) - back
        live = self._round(ticket)
        if live is None:
            self._refused(lambda: self.engine.cancel(ticket), ticket)
            return
        self.engine.cancel(ticket)
        live.untold = True
        if live.status is None:
            live.status = 8

    @precondition(lambda self: self._oldest() is not None)
    @rule(fail=st.booleans())
    def finish(self, fail: bool) -> None:
        """The oldest round that stands in the next one's way, by all ranks."""
        live = self._oldest()
        assert live is not None
        if live.status is None and fail:
            self.engine.resolve(live.ticket, 2)
            live.status = 2
        for reader in self.readers:
            reader.release(live.ticket)
            live.released.add(reader.rank)

    def _oldest(self) -> Round | None:
        return self._round(len(self.past) + 1 - self.size)

    @rule(data=st.data(), back=st.integers(0, 4))
    def release(self, data: st.DataObject, back: int) -> None:
        """Each rank its own; again, and before the end, too."""
        reader = data.draw(st.sampled_from(self.readers))
        ticket = len(self.past) - back
        live = self._round(ticket)
        if live is not None:
            reader.release(ticket)
            live.released.add(reader.rank)
        elif ticket < 1 or reader.rank not in self._acks(ticket):
            self._refused(lambda: reader.release(ticket), ticket)
        else:
            reader.release(ticket)

    def _acks(self, ticket: int) -> set[int]:
        """The ranks that released this ticket, or a later one of its entry."""
        same = self.past[ticket - 1 :: self.size]
        return set().union(*(round_.released for round_ in same))

    @rule(who=st.integers(0, 1))
    def bury(self, who: int) -> None:
        """A proxy's thread is joined; another one starts."""
        owner = self.proxies[who].owner
        failing = [r for r in self.past if r.owner == owner and r.status is None]
        assert self.engine.owner_dead(owner) == len(failing)
        for live in failing:
            live.status = 7
        self.dead.add(owner)
        self.proxies[who].close()
        self.proxies[who] = ProxyEnd.thread(self.engine)
        assert self.proxies[who].owner not in self.dead  # 255 of them: none reused yet
        self.taken[who] = {}
        self.cursor[who] = max(0, len(self.past) - self.size)

    @rule(back=st.integers(0, 4), data=st.data())
    def read(self, back: int, data: st.DataObject) -> None:
        """Whole, of its own round, and what the outcome says."""
        ticket = len(self.past) - back
        live = self._round(ticket)
        if live is None:
            return
        reader = data.draw(st.sampled_from(self.readers))
        if reader.rank in live.released:
            self._refused(lambda: reader.try_wait(ticket), ticket)
            return
        outcome = reader.try_wait(ticket)
        if live.status is None:
            assert outcome is None
            return
        assert outcome is not None
        assert outcome.status == live.status
        body = bytes(outcome.view[8:16])
        if live.status == 0:
            assert body == ticket.to_bytes(8, "little")
        else:
            assert bytes(outcome.view[:8]) == ticket.to_bytes(8, "little")
            assert body == bytes([live.status]) * 8

    @invariant()
    def pages_are_where_the_model_says(self) -> None:
        """Free, in quarantine, or with a round that is not disposed of."""
        if not hasattr(self, "engine"):
            return
        stats = self.engine.stats()
        assert stats.free_pages == self.free
        assert stats.quarantined == len(self.held)
        in_flight = len(self.past) - len(self.disposed)
        assert self.free + len(self.held) + in_flight == self.pages
        assert self.engine.counter(lib.PP3_COUNT_LOST_WAKES) == 0


Ring.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
test_the_ring_does_what_its_model_says = Ring.TestCase
