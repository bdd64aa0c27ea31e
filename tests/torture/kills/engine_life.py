"""One engine's process under load.

Rounds in flight, every reply checked, kills of its own proxy, and an account of
everything at the end.
"""

import contextlib
import os
import random
import select
import signal
import threading
import time
from dataclasses import dataclass, field

from torture.kills.plan import (
    CALM,
    COUNTS,
    FAR_S,
    RUNNING,
    STAGE,
    STOP,
    Plan,
    Wrong,
    shown,
)
from torture.kills.processes import Board, eventually, holdings
from torture.kills.proxy_kills import kill_proxies
from torture.kills.truth import PROFILE, SLOTS, VOCAB, Asked, fault_of

from pp3shm import Engine, Row, Status
from pp3shm.errors import Busy, Exhausted, WaitTimeout


@dataclass
class Round:
    """What the engine knows of a round.

    Attributes:
        asked: by slot.
        told: whether the ranks know it.
        seen: what rank 0 saw, once it did.
    """

    asked: dict[int, Asked]
    told: bool = False
    seen: str = ""
    by: set[int] = field(default_factory=set)


class Life:
    """See the module."""

    def __init__(self, plan: Plan, board: Board) -> None:
        self._plan = plan
        self._board = board
        self._rng = random.Random(plan.seed)
        self._numbers = self._rng.getrandbits(42) << 20
        self._rounds: dict[int, Round] = {}
        self._flight: list[int] = []
        self._tell = dict(enumerate(plan.tell, 1))
        self._hear = dict(enumerate(plan.hear, 1))
        self._heard = dict.fromkeys(self._hear, b"")
        self._last = dict.fromkeys(range(SLOTS), 1)
        self._since = time.monotonic()

    def run(self) -> None:
        """From nothing to nothing."""
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        before = holdings()
        self._live()
        del self._engine, self._ring  # their views keep memory mapped
        for fd in self._tell.values():
            os.close(fd)
        for fd in self._hear.values():
            os.close(fd)
        if self._plan.plant == "a leak":
            os.dup(0)
        pipes = len(self._plan.tell) + len(self._plan.hear)
        before["descriptors"] = int(str(before["descriptors"])) - pipes
        if not eventually(lambda: holdings() == before, self._plan.slack_s):
            raise Wrong(f"an engine that leaves {holdings()}, and began with {before}")

    def _live(self) -> None:
        plan = self._plan
        self._engine = Engine.create(
            PROFILE,
            worker=plan.address,
            proxy="process" if plan.proxy == "process" else "thread",
            rounds=plan.rounds,
            ranks=1 + len(self._tell),
            kind=plan.kind,
            wait="futex",
            connect_timeout_s=0,
        )
        self._ring = self._engine._ring
        with self._engine:
            self._board.name = self._ring.region.prefix or ""
            if self._tell:
                for fd in self._tell.values():
                    os.write(fd, f"{self._engine.invitation}\n".encode())
                self._engine.wait_ranks(FAR_S)
            for slot in range(SLOTS):
                self._engine.reset(slot, [1])
            if plan.plant == "nobody resolves":
                self._silence()
            self._board.flag(STAGE, RUNNING)
            killer = threading.Thread(
                target=kill_proxies, args=(self._engine, plan, self._board)
            )
            killer.start()
            try:
                self._storm()
            finally:
                self._board.flag(STOP, 1)
                killer.join()
            self._calm()
            self._account()

    def _silence(self) -> None:
        """Plants a fault: neither proxy nor watchdog."""
        self._engine._proxy.close()

    # -- load ----------------------------------------------------------------------

    def _storm(self) -> None:
        while not self._board.flag(STOP) or self._flight:
            stopping = self._board.flag(STOP)
            while not stopping and len(self._flight) < self._plan.rounds:
                timeout = self._rng.choice((0.004, 0.1, FAR_S))
                if not self._step(timeout, self._rng.random() < 0.8):
                    break
                if self._rng.random() < 0.2:
                    break
            if self._flight:
                self._finish()
            else:
                time.sleep(0.0002)
            self._listen(0)

    def _step(self, timeout_s: float, tell: bool) -> bool:
        """Asks; False where the ring has no room just now."""
        asked: dict[int, Asked] = {}
        rows = []
        for slot in range(self._rng.randint(1, SLOTS)):
            self._numbers += 1
            place = self._engine.position(slot)
            asked[slot] = Asked(self._numbers, place, self._last[slot])
            context = self._numbers.to_bytes(8, "little")
            rows.append(Row(slot, self._rng.getrandbits(40), context=context))
        try:
            ticket = self._engine.step(rows, timeout_s=timeout_s)
        except (Busy, Exhausted) as error:
            if time.monotonic() - self._since > self._plan.slack_s:
                raise Wrong(f"no round could be claimed: {error}") from error
            return False
        self._since = time.monotonic()
        self._rounds[ticket] = Round(asked)
        self._flight.append(ticket)
        if tell:
            self._tell_all(ticket)
        return True

    def _tell_all(self, ticket: int) -> None:
        self._rounds[ticket].told = True
        for fd in self._tell.values():
            with contextlib.suppress(BrokenPipeError):
                os.write(fd, f"{ticket}\n".encode())

    def _finish(self) -> list[int]:
        """The oldest round, to its release; its statuses."""
        ticket = self._flight.pop(0)
        round_ = self._rounds[ticket]
        if not round_.told and self._rng.random() < 0.1:
            self._engine.cancel(ticket)
            del self._rounds[ticket]
            self._count(int(Status.REFUSED))
            return []
        if self._rng.random() < 0.05:
            self._engine.cancel(ticket, told=True)
        if not round_.told and self._rng.random() < 0.5:
            self._watch(ticket)
        if not round_.told:
            self._tell_all(ticket)
        try:
            reply = self._engine.reply(ticket, timeout_s=self._plan.slack_s)
        except WaitTimeout as error:
            raise Wrong(f"round {ticket}: nobody resolves it") from error
        with reply:
            statuses = self._check(ticket, round_, reply)
        self._count(0 if reply.failed is None else int(reply.failed))
        self._commit(round_)
        if not self._tell:
            del self._rounds[ticket]
        return statuses

    def _watch(self, ticket: int) -> None:
        """Nobody waits, who could help: an owner, the watchdog or a death ends it."""
        if not eventually(lambda: not self._ring.is_open(ticket), self._plan.slack_s):
            raise Wrong(f"round {ticket}: nobody resolves it, and nobody waits")

    def _check(self, ticket: int, round_: Round, reply) -> list[int]:
        word = self._ring.word(ticket)
        if reply.round != ticket:
            raise Wrong(f"round {ticket}: a page of round {reply.round}")
        round_.seen = shown(reply)
        for slot in range(SLOTS):
            if fault := fault_of(reply, slot, round_.asked.get(slot)):
                raise Wrong(f"round {ticket}, slot {slot}: {fault}")
        if self._rng.random() < 0.3:
            time.sleep(0.0002)
        self._ring.resolve(ticket, int(Status.TIMEOUT))  # resolved once: no change
        if (word, round_.seen) != (self._ring.word(ticket), shown(reply)):
            raise Wrong(f"round {ticket}: it changed after it was resolved")
        return [int(reply.status[slot]) for slot in round_.asked]

    def _count(self, failed: int) -> None:
        self._board.add("rounds")
        self._board.add(COUNTS[failed])

    def _commit(self, round_: Round) -> None:
        slot = self._rng.choice(list(round_.asked))
        if self._rng.random() < 0.1 and self._engine.position(slot) < 400:
            token = self._rng.randrange(VOCAB)
            with contextlib.suppress(Busy):
                self._engine.commit(slot, [token])
                self._last[slot] = token

    # -- what the other ranks saw --------------------------------------------------

    def _listen(self, timeout_s: float) -> None:
        """Takes their reports and compares them."""
        ranks = {fd: rank for rank, fd in self._hear.items()}
        for fd in select.select(list(ranks), [], [], timeout_s)[0]:
            data = os.read(fd, 65536)
            rank = ranks[fd]
            if not data:  # killed
                os.close(self._hear.pop(rank))
                os.close(self._tell.pop(rank))
                continue
            *lines, self._heard[rank] = (self._heard[rank] + data).split(b"\n")
            for line in lines:
                ticket, seen = line.decode().split(" ")
                self._compare(rank, int(ticket), seen)
        for ticket in [t for t, r in self._rounds.items() if self._is_over(t, r)]:
            del self._rounds[ticket]

    def _compare(self, rank: int, ticket: int, seen: str) -> None:
        round_ = self._rounds[ticket]
        if not round_.seen:  # it was faster than we are: the round is resolved
            round_.seen = shown(self._engine.reply(ticket, timeout_s=0))
        if round_.seen != seen:
            text = f"rank 0 saw {round_.seen}, rank {rank} {seen}"
            raise Wrong(f"round {ticket}: {text}")
        round_.by.add(rank)

    def _is_over(self, ticket: int, round_: Round) -> bool:
        return ticket not in self._flight and round_.by >= set(self._hear)

    # -- the end -------------------------------------------------------------------

    def _calm(self) -> None:
        """The text goes on: a lap of rounds is answered as a whole.

        Not each that follows: the worker is other engines' too, and still killed.
        """
        if not eventually(self._lap, FAR_S):
            raise Wrong("no lap is answered after the storm")
        self._board.flag(STAGE, CALM)

    def _lap(self) -> bool:
        statuses: list[int] = []
        for _ in range(self._plan.rounds):
            if not eventually(lambda: self._step(FAR_S, True), self._plan.slack_s):
                raise Wrong("no round could be claimed after the storm")
            self._listen(0)
        while self._flight:
            statuses += self._finish_calmly()
        return not any(statuses)

    def _finish_calmly(self) -> list[int]:
        ticket = self._flight.pop(0)
        round_ = self._rounds[ticket]
        with self._engine.reply(ticket, timeout_s=self._plan.slack_s) as reply:
            return self._check(ticket, round_, reply)

    def _account(self) -> None:
        """Every rank that lives saw every round; every page is accounted for."""

        def all_seen() -> bool:
            self._listen(0.001)
            return not self._rounds

        if not eventually(all_seen, self._plan.slack_s):
            raise Wrong(f"rounds that a living rank did not see: {list(self._rounds)}")
        plan, stats = self._plan, self._engine.stats()
        if stats["free_pages"] + stats["quarantined"] != self._plan.rounds:
            raise Wrong(f"pages that are nowhere: {stats}")
        refused = {name: stats[name] for name in ("incident", "crc", "header", "mass")}
        if plan.proxy == "thread" and stats["proxy_deaths"]:
            raise Wrong("a proxy's thread that failed")
        if any(refused.values()):
            raise Wrong(f"replies that were refused: {refused}")
