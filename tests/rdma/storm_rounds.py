"""The engine's side of a storm: asks, checks every round, keeps an account."""

import collections
import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from pp3shm import Profile, Row, Status
from pp3shm.errors import Busy, Exhausted
from pp3shm.layout.validate import REASONS
from pp3shm.proposal.proposal import propose_row
from pp3shm.proxy.state import SessionState

VOCAB, SLOTS, DEPTH, ROUNDS = 256, 4, 5, 8
MOST_IN_FLIGHT, MOST_KEPT = 4, 3
PROFILE = Profile.sampled(
    vocab=VOCAB, depth=DEPTH, max_slots=SLOTS, max_positions=1 << 17
)
TABLE = np.random.default_rng(1).normal(size=(VOCAB, VOCAB)).astype(np.float32) * 3
TAU_MILLI = 700
ALLOWED = {Status.TIMEOUT, Status.PEER_DIED}
"""Reasons that a round can have where everybody is honest and somebody is killed."""
UNHEARD_OF = (*REASONS, "bad_request", "mismatches", "error_frames",
              *(f"row_status_{status}" for status in range(1, 9)))  # fmt: skip
"""Counters that stay 0 there: no reply may be refused."""
QUIET_EVERY = 25
"""Events from one quiet to the next."""
QUIET_S = 90.0
"""A watchdog: by then all is as it was before."""
ENDPOINTS = {"pd": 1, "cq": 1, "qp": 1, "mr": 3, "ctx": 1}
"""What one session has of each device, as the kernel counts."""


def draft_of(token):
    """Ids and q that a row after ``token`` must carry; the draw is the session's."""
    drawn = propose_row(
        TABLE[token],
        key=(0, 0),
        round=0,
        position=0,
        tau_milli=TAU_MILLI,
        rule=PROFILE.rule,
    )
    return drawn.ids.astype(np.int32), drawn.q.astype(np.float32)


def verbs():
    """By device, what the kernel has of each kind of object."""
    said = subprocess.run(
        ["rdma", "-j", "resource", "show"],
        check=True,
        timeout=60,
        stdout=subprocess.PIPE,
    )
    return {
        one["ifname"]: {kind: one[kind] for kind in ENDPOINTS}
        for one in json.loads(said.stdout)
    }


@dataclasses.dataclass(eq=False)
class Asked:
    """A round: by slot, the token before its drafts; events before it was asked."""

    ticket: int
    last: dict[int, int]
    events: int
    at: float
    struck: int = -1
    """The number of the event that came while it was open."""


@dataclasses.dataclass(eq=False)
class Kept:
    """A reply that is not released yet, with what it said when it was heard."""

    asked: Asked
    reply: Any
    page: bytes
    word: int


class Storm:
    """Asks and hears in one thread.

    Args:
        engine: with a proxy process.
        rng: decides.
        before: ``verbs()`` when there was no session.
    """

    def __init__(self, engine, rng, before):
        self.engine, self.rng, self.before = engine, rng, before
        self.expected = [draft_of(token) for token in range(VOCAB)]
        self.events = None
        self.last = {}
        self.flight = collections.deque()
        self.kept = collections.deque()
        self.asked = self.ok = self.answered = self.compared = 0
        self.failed = collections.Counter()
        self.refused = collections.Counter()
        self.struck = collections.Counter()  # rounds by how they ended
        self.struck_by = set()  # events that made a round fail
        self.most = 2
        self.newest = 0
        self.fds = {}
        self.pages = 0
        for slot in range(SLOTS):
            self._reset(slot)

    # -- asking --------------------------------------------------------------------

    def _reset(self, slot):
        prefix = [self.rng.randrange(VOCAB) for _ in range(3)]
        self.engine.reset(slot, prefix)
        self.last[slot] = prefix[-1]

    def ask(self, slots, timeout_s):
        rows = [Row(slot=slot, user_seed=self.asked, sampled=True) for slot in slots]
        try:
            ticket = self.engine.step(rows, timeout_s=timeout_s)
        except (Busy, Exhausted) as error:
            self.refused[type(error).__name__] += 1
            time.sleep(0.01)
            return False
        assert ticket > self.newest, f"round {ticket} after round {self.newest}"
        self.newest = ticket
        self.asked += 1
        last = {slot: self.last[slot] for slot in slots}
        events = self.events.total if self.events else 0
        self.flight.append(Asked(ticket, last, events, time.monotonic()))
        return True

    def _ask_for_some(self):
        """One or two slots of no round in flight, each after a token of its own.

        So a reply that is taken for another round's says something else.
        """
        busy = {slot for asked in self.flight for slot in asked.last}
        idle = [slot for slot in range(SLOTS) if slot not in busy]
        if not idle:
            return False
        slots = self.rng.sample(idle, min(len(idle), self.rng.choice((1, 2))))
        for slot in slots:
            if self.engine.position(slot) > 100_000 or self.rng.random() < 0.01:
                self._reset(slot)
                continue
            tokens = [self.rng.randrange(VOCAB) for _ in range(1 + slot % 2)]
            self.engine.commit(slot, tokens)
            self.last[slot] = tokens[-1]
        return self.ask(slots, self.rng.choice((0.4, 0.8, 1.2)))

    def mark(self, event):
        """For the thread of events: an event comes; how many rounds are open.

        Those in a session: what was asked while there was none is not in flight.
        """
        if self.engine.session_state is not SessionState.READY:
            return 0
        ring, count = self.engine._ring, 0
        for asked in list(self.flight):
            if ring.is_open(asked.ticket):
                asked.struck = event
                count += 1
        return count

    # -- hearing -------------------------------------------------------------------

    def hear(self):
        asked = self.flight.popleft()
        reply = self.engine.reply(asked.ticket, timeout_s=60).__enter__()
        word = self.engine._ring.word(asked.ticket)
        place = f"round {asked.ticket}"
        assert reply.round == asked.ticket, (reply.round, place)
        whole = True
        for slot, token in asked.last.items():
            status = Status(int(reply.status[slot]))
            if status is Status.OK:
                self._check(reply, slot, token)
                self.ok += 1
            else:
                assert status in ALLOWED, f"{place} slot {slot}: {status.name}"
                assert reply.failed in (None, status), (place, reply.failed, status)
                self.failed[status.name] += 1
                self._check_nothing(reply, slot)
                whole = False
        for slot in set(range(SLOTS)) - set(asked.last):
            assert Status.OK != reply.status[slot], f"{place} slot {slot}: not asked"
            self._check_nothing(reply, slot)
        self._tell(asked, whole)
        page = self.engine.buffers[reply.place].tobytes()
        self.kept.append(Kept(asked, reply, page, word))
        while len(self.kept) > MOST_KEPT:
            self.release()
        return asked, whole

    def _tell(self, asked, whole):
        self.answered += whole
        if whole and self.events and asked.events == self.events.total:
            self.events.good.set()
        if asked.struck >= 0:
            self.struck["answered" if whole else "failed"] += 1
            if not whole:
                self.struck_by.add(asked.struck)

    def release(self):
        kept = self.kept.popleft()
        place = f"round {kept.asked.ticket}"
        now = self.engine.buffers[kept.reply.place].tobytes()
        assert kept.page == now, f"{place}: its page changed before its release"
        word = self.engine._ring.word(kept.asked.ticket)
        assert kept.word >> 20 == word >> 20, (
            f"{place}: resolved twice, {kept.word:#x} and then {word:#x}"
        )
        self.compared += 1
        kept.reply.__exit__(None, None, None)

    def _check(self, reply, slot, before):
        for depth in range(DEPTH):
            ids, q = self.expected[before]
            place = f"round {reply.round} slot {slot} depth {depth}"
            assert (ids == reply.ids[slot, depth]).all(), f"{place}: ids"
            assert (q == reply.q[slot, depth]).all(), f"{place}: q"
            before = int(reply.tokens[slot, depth])
            assert before in ids, f"{place}: token"

    def _check_nothing(self, reply, slot):
        place = f"round {reply.round} slot {slot}: failed"
        assert (reply.tokens[slot] == -1).all(), f"{place}, with tokens"
        assert (reply.q[slot] == 0).all(), f"{place}, with q"

    # -- the run -------------------------------------------------------------------

    def run(self, until, enough, tell):
        """Storm until then; now and then quiet, to see that nothing is left.

        Args:
            until: on the clock of ``time.monotonic``.
            enough: ends it sooner.
            tell: called after each quiet in which all was well.
        """
        quiet_at = QUIET_EVERY
        while time.monotonic() < until and not enough():
            if self.events.fault:
                raise self.events.fault
            self._turn()
            if self.events.total >= quiet_at:
                quiet_at += QUIET_EVERY
                self.quiet()
                tell()

    def _turn(self):
        if len(self.flight) < self.most and self._ask_for_some():
            return
        if not self.flight:
            return
        asked, whole = self.hear()
        self.most = self.rng.randint(2, MOST_IN_FLIGHT)
        if not whole:
            self.honest()
            if time.monotonic() - asked.at < 0.2:
                # It failed at once: there is no session. Asking on and on would only
                # take the emulated CPU from whoever makes the next one.
                time.sleep(self.rng.uniform(0.02, 0.08))

    def honest(self):
        """Everybody is; so no reply may have been refused.

        Raises:
            AssertionError: one was: it was held against another round, or spoiled.
        """
        stats = self.engine.stats()
        found = {name: stats[name] for name in UNHEARD_OF if stats.get(name)}
        assert not found, f"refused: {found}, {self.engine.last_error()}"
        assert stats["late_writes"] <= stats["slots_quarantined"], stats

    # -- quiet ---------------------------------------------------------------------

    def quiet(self):
        """Nothing happens for a while: all is as it was before.

        Raises:
            AssertionError: something is left over, or missing.
        """
        self.events.quiet.set()
        while not self.events.still.wait(0.0) and not self.events.fault:
            self._turn()
        self.finish()
        self.events.still.clear()
        self.events.quiet.clear()

    def finish(self):
        """The part of ``quiet`` that waits and looks; no event comes meanwhile."""
        if self.events.fault:
            raise self.events.fault
        self._drain()
        self._until("a round answered, no slot in quarantine", self._is_settled)
        self._drain()
        self.honest()
        self._all_slots()
        self._until("the objects of one session on each device", self._counted)
        self._until("as many descriptors of the proxy as before", self._few_fds)
        stats = self.engine.stats()
        assert 3 == stats["memory_regions"], stats
        # Pages that were given back stay in quarantine until they are needed.
        pages = stats["free_pages"] + stats["quarantined"]
        self.pages = self.pages or pages
        assert self.pages == pages, f"expected {self.pages} pages, found {pages}"
        # A proxy that is killed may have published one that it has not counted.
        extra = self.answered - stats["replies"]
        assert 0 <= extra <= stats["proxy_deaths"], (self.answered, stats)

    def _drain(self):
        while self.flight:
            self.hear()
        while self.kept:
            self.release()

    def _until(self, what, done):
        limit = time.monotonic() + QUIET_S
        while not done():
            if time.monotonic() >= limit:
                seen = {k: n for k, n in self.engine.stats().items() if n}
                raise AssertionError(
                    f"expected {what}, found {verbs()}, descriptors {self.fds}, {seen}"
                )
            time.sleep(0.1)

    def _is_settled(self):
        before = self.ok
        if self.ask(range(SLOTS), 2.0):
            self.hear()
        stats = self.engine.stats()
        return self.ok == before + SLOTS and stats["slots_held"] == 0

    def _all_slots(self):
        """Every staging slot can be had at once: none is lost without being counted."""
        self._until("a session", self._is_settled)
        self._drain()
        before = self.engine.stats()["steps_sent"]
        pid = self.events.worker_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            for number in range(ROUNDS):
                assert self.ask([number % SLOTS], QUIET_S), "expected room for a round"

            def sent():
                return self.engine.stats()["steps_sent"] == before + ROUNDS

            self._until(f"{ROUNDS} rounds in {ROUNDS} staging slots", sent)
        finally:
            os.kill(pid, signal.SIGCONT)
        for _ in range(ROUNDS):
            _, whole = self.hear()
            assert whole, f"expected all to be answered, found {self.failed}"
        self._drain()

    def _counted(self):
        after = {
            device: {kind: n + ENDPOINTS[kind] for kind, n in kinds.items()}
            for device, kinds in self.before.items()
        }
        return after == verbs()

    def _few_fds(self):
        """As many as when this proxy was first looked at."""
        pid = self.engine.stats()["proxy_pid"]
        with contextlib.suppress(OSError):
            found = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            return found == self.fds.setdefault(pid, found)
        return False

    def account(self):
        """What has been seen so far: numbers, and numbers by name."""
        stats, events = self.engine.stats(), self.events
        names = ("late", "late_writes", "slots_quarantined", "sessions",
                 "dials_failed", "proxy_deaths", "peer_died")  # fmt: skip
        return {
            "events": dict(events.counts),
            "events_in_flight": dict(events.in_flight),
            "events_that_failed_rounds": len(self.struck_by),
            "struck_rounds": dict(self.struck),
            "seconds_of": dict(events.took_s),
            "rounds": self.asked,
            "rounds_answered": self.answered,
            "replies_compared": self.compared,
            "steps_refused": dict(self.refused),
            "rows_ok": self.ok,
            "rows_failed": dict(self.failed),
            **{name: stats[name] for name in names},
        }
