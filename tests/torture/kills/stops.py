"""Figure 7, the whole stack: an engine whose proxy's process is stopped, not dead.

`stops.py SEED SECONDS SLACK_S`: at random moments, with rounds in flight and past their
deadlines, for several laps; then it goes on, or is killed and replaced. Prints what was
counted, a name and a number a line; a last line `bad ...` where something was wrong.
"""

import contextlib
import logging
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torture.kills.plan import FAR_S, Wrong, shown
from torture.kills.processes import Board, eventually, fork, parent_of
from torture.kills.storm import worker_main
from torture.kills.truth import PROFILE, SLOTS, Asked, fault_of

from pp3shm import Engine, Reply, Row, Status
from pp3shm.errors import WaitTimeout

ROUNDS = 8
_WRITING = 2  # a state of a word: its page is being filled


class Stops:
    """See the module."""

    def __init__(self, engine: Engine, seed: int, slack_s: float, board: Board) -> None:
        self._engine = engine
        self._ring = engine._ring
        self._rng = random.Random(seed)
        self._slack_s = slack_s
        self._board = board
        self._asked: dict[int, dict[int, Asked]] = {}
        self._number = self._rng.getrandbits(40) << 20
        for slot in range(SLOTS):
            engine.reset(slot, [1])

    def run(self, seconds: float) -> None:
        """So many stops as fit."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._answered_again()
            if self._rng.random() < 0.5:
                self._pages_stand_still()
            else:
                self._laps_go_on()
        self._answered_again()
        if not eventually(self._pages_are_back, self._slack_s):
            raise Wrong(f"pages that did not come back: {self._engine.stats()}")

    # -- one stop ------------------------------------------------------------------

    def _laps_go_on(self) -> None:
        """Every round is resolved at its deadline, target only, lap after lap."""
        tickets = [self._step(0.01) for _ in range(self._rng.randint(1, ROUNDS))]
        with self._stopped(tickets):
            for ticket in tickets:
                self._finish(ticket)
            for _ in range(self._rng.randint(1, 3) * ROUNDS):
                self._finish(self._step(0.001), Status.TIMEOUT)

    def _pages_stand_still(self) -> None:
        """What was published is not touched by one that goes on too late."""
        held = [self._reply(self._step(FAR_S)) for _ in range(3)]
        before = [shown(reply) for reply in held]
        tickets = [self._step(0.01) for _ in range(self._rng.randint(1, ROUNDS - 4))]
        with self._stopped(tickets):
            for ticket in tickets:
                self._finish(ticket)
        self._reply(later := self._step(FAR_S))
        if before != [shown(reply) for reply in held]:
            raise Wrong("a published page that changed before it was released")
        for ticket in (*(reply.round for reply in held), later):
            self._engine.release(ticket)

    @contextlib.contextmanager
    def _stopped(self, tickets: list[int]) -> Iterator[None]:
        """Stops the proxy at some moment, and lets it go on or kills it."""
        time.sleep(self._rng.random() * 0.004)
        pid = self._engine.stats()["proxy_pid"]
        pidfd = os.pidfd_open(pid)
        try:
            if parent_of(pid) != os.getpid():
                raise Wrong("no proxy where none was killed")
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
            os.waitid(os.P_PIDFD, pidfd, os.WSTOPPED | os.WNOWAIT)
            states = [self._ring.word(ticket) >> 20 & 15 for ticket in tickets]
            before = self._board.numbers()["rounds"]
            yield
            self._board.add("proxies stopped")
            self._board.add("of them holding a round", int(_WRITING in states))
            resolved = self._board.numbers()["rounds"] - before
            self._board.add("rounds resolved while a proxy was stopped", resolved)
            if self._rng.random() < 0.1:
                self._engine._proxy.replace()
                self._board.add("proxy kills")
            else:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
        finally:
            os.close(pidfd)

    # -- rounds --------------------------------------------------------------------

    def _step(self, timeout_s: float) -> int:
        asked, rows = {}, []
        for slot in range(SLOTS):
            self._number += 1
            asked[slot] = Asked(self._number, self._engine.position(slot), 1)
            rows.append(Row(slot, context=self._number.to_bytes(8, "little")))
        ticket = self._engine.step(rows, timeout_s=timeout_s)
        self._asked[ticket] = asked
        return ticket

    def _reply(self, ticket: int) -> Reply:
        try:
            reply = self._engine.reply(ticket, timeout_s=self._slack_s)
        except WaitTimeout as error:
            raise Wrong(f"round {ticket}: nobody resolves it") from error
        asked = self._asked.pop(ticket)
        for slot in range(SLOTS):
            if fault := fault_of(reply, slot, asked[slot]):
                raise Wrong(f"round {ticket}, slot {slot}: {fault}")
        self._board.add("rounds")
        return reply

    def _finish(self, ticket: int, failed: Status | None = None) -> bool:
        with self._reply(ticket) as reply:
            if failed is not None and reply.failed != failed:
                raise Wrong(f"round {ticket}: {reply.failed!r} of a stopped proxy")
            return not reply.status.any()

    def _answered_again(self) -> None:
        if not eventually(lambda: self._finish(self._step(FAR_S)), self._slack_s):
            raise Wrong("no round is answered any more")

    def _pages_are_back(self) -> bool:
        for _ in range(ROUNDS):
            self._finish(self._step(FAR_S))
        stats = self._engine.stats()
        return stats["free_pages"] + stats["quarantined"] == ROUNDS


def _stops(seed: int, seconds: float, slack_s: float, board: Board) -> None:
    address = f"unix://@pp3shm-stops-{os.getpid()}"
    worker = fork(lambda: worker_main(address, seed, ""), board)
    try:
        with Engine.create(PROFILE, worker=address, rounds=ROUNDS, wait="futex",
                           connect_timeout_s=FAR_S) as engine:  # fmt: skip
            Stops(engine, seed, slack_s, board).run(seconds)
            board.add("replies too late", engine.stats()["late"])
    except Exception:  # noqa: BLE001  # of any kind: it is what is looked for
        board.bad(traceback.format_exc()[-900:])
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


def main() -> None:
    """Runs stops for a while."""
    logging.disable(logging.WARNING)
    board = Board()
    _stops(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), board)
    for name, number in board.numbers().items():
        if number or name == "rounds":
            print(name, number)
    if board.finding:
        print("bad", board.finding)


if __name__ == "__main__":
    main()
