"""Figure 6, the whole stack: engines, ranks and a worker, and SIGKILLs of all of them.

`storm.py SEED SECONDS SLACK_S [PLANT]` forks everything from one process that has all
code loaded; only the proxies are started by their engines. Prints what was counted, a
name and a number a line; a last line `bad ...` where something was wrong.
"""

import contextlib
import logging
import os
import random
import select
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from torture.kills.engine_life import Life
from torture.kills.plan import RUNNING, STAGE, STOP, Plan, shown
from torture.kills.processes import NAMES, Board, adopt_orphans, ended, fork, open_fds
from torture.kills.truth import PROFILE, TruthDrafter

from pp3shm import Rank, RegionWorker, Worker
from pp3shm.errors import LinkError, RegionError, WaitTimeout
from pp3shm.ring.segments import sweep

GROUPS, PROCESSES = 5, 2
MOST_RANKS = 6
LIVES_S = {"thread": (0.05, 0.6), "process": (0.5, 3.0), "region": (0.5, 3.0)}
Way = Literal["thread", "process", "region"]
SHM = Path("/dev/shm")


def worker_main(address: str, seed: int, plant: str) -> None:
    """A worker, until it is killed."""
    Worker(TruthDrafter(seed, plant), PROFILE, [address]).serve_forever()


def region_worker_main(door: str, seed: int, slack_s: float) -> None:
    """A worker at one engine's region, until it is killed or the engine ends."""
    worker = RegionWorker(
        TruthDrafter(seed, ""), PROFILE, door, wait="futex", attach_timeout_s=slack_s
    )
    with contextlib.suppress(LinkError):  # of an engine that ended, or was killed
        worker.serve_forever()


def rank_main(told: int, hear: int, slack_s: float) -> None:
    """A further rank: reads every round it is told of, twice, and says what it saw."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    hangup = select.poll()
    hangup.register(told, 0)
    with os.fdopen(told) as orders, contextlib.suppress(BrokenPipeError):
        invitation = orders.readline().strip()
        try:
            rank = Rank.attach(invitation, PROFILE, wait="futex", timeout_s=slack_s)
        except RegionError:
            if invitation and not hangup.poll(1000):
                raise
            return  # its engine was killed
        with rank:
            for line in orders:
                if not _read(rank, int(line), hear, hangup, slack_s):
                    return


def _read(rank: Rank, ticket: int, hear: int, hangup, slack_s: float) -> bool:
    limit = time.monotonic() + slack_s
    while True:
        try:
            reply = rank.reply(ticket, timeout_s=0.05)
            break
        except WaitTimeout:
            if hangup.poll(0):
                return False  # a dead engine resolves nothing before its deadline
            if time.monotonic() > limit:
                raise
    with reply:
        seen = shown(reply)
        time.sleep(0.0002)
        if seen != shown(reply):
            raise AssertionError(f"round {ticket}: it changed before it was released")
    os.write(hear, f"{ticket} {seen}\n".encode())
    return True


@dataclass
class Group:
    """An engine's process and its ranks'.

    Attributes:
        ends_at: when the engine is told to end, or killed.
        killed: whether it was.
        door: of its region, if its worker comes there.
        worker: that worker's process; 0: none.
    """

    engine: int
    ranks: list[int]
    board: Board
    ends_at: float
    proxy: str
    killed: bool = False
    door: str = ""
    worker: int = 0


class Storm:
    """See the module."""

    def __init__(self, seed: int, slack_s: float, plant: str, where: str) -> None:
        self._rng = random.Random(seed)
        self._slack_s = slack_s
        self._plant = plant
        # A port below those that the kernel gives to clients.
        host = f"127.{os.getpid() % 200 + 1}.{self._rng.randrange(1, 200)}.1"
        port = self._rng.randrange(12000, 30000)
        self._address = self._rng.choice(
            (
                f"unix://{where}/worker",
                f"unix://@pp3shm-storm-{os.getpid()}",
                f"tcp://{host}:{port}",
            )
        )
        self.board = Board()
        self.finding = ""
        self._totals = dict.fromkeys(NAMES, 0)
        self._worker = self._start_worker()
        self._groups: list[Group] = []

    def numbers(self) -> dict[str, int]:
        """What was counted by all groups that ended."""
        own = self.board.numbers()
        return {name: self._totals[name] + own[name] for name in NAMES}

    def run(self, seconds: float) -> None:
        """Kills for so long, then lets everything end."""
        end = time.monotonic() + seconds
        next_worker = time.monotonic()
        groups = 1 if self._plant else GROUPS
        while time.monotonic() < end and not self.finding:
            while len(self._groups) < groups:
                self._groups.append(self._start_group())
            time.sleep(self._rng.random() * 0.02)
            if time.monotonic() > next_worker:
                self._kill_worker()
                next_worker = time.monotonic() + self._rng.expovariate(6)
            self._kill_some_rank()
            self._tend_some_region()
            for group in list(self._groups):
                self._tend(group)
        for group in list(self._groups):
            self._tell_to_end(group)
        for group in list(self._groups):
            self._bury(group)
        os.kill(self._worker, signal.SIGKILL)
        os.waitpid(self._worker, 0)

    # -- who lives -----------------------------------------------------------------

    def _start_worker(self) -> int:
        seed = self._rng.getrandbits(30)
        plant = self._plant
        return fork(lambda: worker_main(self._address, seed, plant), self.board)

    def _start_group(self) -> Group:
        rng = self._rng
        board = Board()
        tells, hears = [], []
        for _ in range(rng.randrange(MOST_RANKS)):
            tells.append(os.pipe())
            hears.append(os.pipe())
        way, door = self._next_proxy(), ""
        if way == "region":
            door = f"region://@pp3shm-storm-{os.getpid()}-{rng.getrandbits(60)}"
        plan = Plan(
            seed=rng.getrandbits(40),
            proxy=way,
            kind=rng.choice(("memfd", "posix")),
            rounds=rng.randint(2, 8),
            address=door or self._address,
            tell=tuple(w for _, w in tells),
            hear=tuple(r for r, _ in hears),
            slack_s=self._slack_s,
            plant=self._plant,
        )
        engine = fork(partial(self._engine_main, plan, board), board,
                      plan.tell + plan.hear)  # fmt: skip
        ranks = []
        for (told, _), (_, hear) in zip(tells, hears, strict=True):
            main = partial(rank_main, told, hear, self._slack_s)
            ranks.append(fork(main, board, (told, hear)))
        for fd in (fd for pair in tells + hears for fd in pair):
            os.close(fd)
        life_s = 0.3 if self._plant else rng.uniform(*LIVES_S[plan.proxy])
        ends_at = time.monotonic() + life_s
        group = Group(engine, ranks, board, ends_at, plan.proxy, door=door)
        if door:
            self._start_at_region(group)
        return group

    def _start_at_region(self, group: Group) -> None:
        seed = self._rng.getrandbits(30)
        main = partial(region_worker_main, group.door, seed, self._slack_s)
        group.worker = fork(main, group.board)

    def _next_proxy(self) -> Way:
        """Starting a proxy's process takes longer than all else here."""
        if not self._plant and not any(group.door for group in self._groups):
            return "region"
        processes = sum(group.proxy == "process" for group in self._groups)
        return "process" if processes < PROCESSES and not self._plant else "thread"

    def _engine_main(self, plan: Plan, board: Board) -> None:
        if self._plant == "an outliving process" and os.fork() == 0:
            time.sleep(self._slack_s * 3)
            os._exit(0)
        Life(plan, board).run()

    # -- who dies ------------------------------------------------------------------

    def _kill_worker(self) -> None:
        if self._plant:
            return
        os.kill(self._worker, signal.SIGKILL)
        _, status = os.waitpid(self._worker, 0)
        if not os.WIFSIGNALED(status):
            self.finding = self.finding or f"a worker that ended by itself: {status}"
        self.board.add("worker kills")
        time.sleep(self._rng.random() * 0.01)
        self._worker = self._start_worker()

    def _kill_some_rank(self) -> None:
        group = self._rng.choice(self._groups)
        running = group.board.flag(STAGE) == RUNNING
        if running and group.ranks and self._rng.random() < 0.25:
            pid = group.ranks.pop()
            os.kill(pid, signal.SIGKILL)
            self._reap_rank(group, pid, killed=True)
            group.board.add("rank kills")

    def _tend_some_region(self) -> None:
        """Kill its worker, or stop it for a while, or start the one after a death."""
        regions = [g for g in self._groups if g.door and g.board.flag(STAGE) == RUNNING]
        if not regions or self._rng.random() < 0.7:
            return
        group = self._rng.choice(regions)
        if group.worker == 0:
            self._start_at_region(group)
        elif self._rng.random() < 0.3:
            os.kill(group.worker, signal.SIGSTOP)
            time.sleep(self._rng.random() * 0.05)
            os.kill(group.worker, signal.SIGCONT)
        else:
            os.kill(group.worker, signal.SIGKILL)
            self._reap_at_region(group, killed=True)
            group.board.add("kills of workers at a region")

    def _reap_at_region(self, group: Group, *, killed: bool) -> None:
        """Whoever is not killed ends with its engine, by itself."""
        pid, group.worker = group.worker, 0
        if not ended(pid, self._slack_s):
            self.finding = self.finding or "a worker that outlives its engine"
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        by_kill = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not (status == 0 or (killed and by_kill)):
            said = group.board.finding or f"a worker at a region: {status}"
            self.finding = self.finding or said

    def _reap_rank(self, group: Group, pid: int, *, killed: bool) -> None:
        if not ended(pid, self._slack_s):
            self.finding = self.finding or "a rank that outlives its engine"
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        by_kill = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if by_kill != killed or not (by_kill or status == 0):
            said = group.board.finding or f"a rank that ended with {status}"
            self.finding = self.finding or said

    def _tell_to_end(self, group: Group) -> None:
        group.ends_at = 0
        if group.door and group.worker == 0:  # its last rounds are to be answered
            self._start_at_region(group)
        group.board.flag(STOP, 1)

    def _tend(self, group: Group) -> None:
        """Ends what is due: half of the engines in order, half by SIGKILL."""
        if ended(group.engine, 0):
            self._bury(group)
        elif 0 < group.ends_at < time.monotonic():
            if not self._plant and self._rng.random() < 0.5:
                os.kill(group.engine, signal.SIGKILL)
                group.killed = True
                group.board.add(f"engine kills, proxy a {group.proxy}")
                self._bury(group)
            else:
                self._tell_to_end(group)

    def _bury(self, group: Group) -> None:
        """It has to end by itself, and leave nothing."""
        self._groups.remove(group)
        if not ended(group.engine, 4 * self._slack_s):
            self.finding = self.finding or "an engine that does not end"
            os.kill(group.engine, signal.SIGKILL)
        _, status = os.waitpid(group.engine, 0)
        if status and not group.killed:
            said = group.board.finding or f"an engine that ended with {status}"
            self.finding = self.finding or said
        for pid in group.ranks:
            self._reap_rank(group, pid, killed=False)
        if group.worker:
            self._reap_at_region(group, killed=False)
        self._nothing_is_left(group)
        self.finding = self.finding or group.board.finding
        for name, number in group.board.numbers().items():
            self._totals[name] += number

    def _nothing_is_left(self, group: Group) -> None:
        """Orphans are ours: all but the worker and other groups' have to end."""
        mine = {self._worker}
        for other in self._groups:
            mine |= {other.engine, *other.ranks, other.worker}
        limit = time.monotonic() + self._slack_s
        while left := _children() - mine:
            for pid in left:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    continue
                if time.monotonic() > limit:
                    self.finding = self.finding or "a process that outlives its engine"
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.001)
        if name := group.board.name:
            if group.killed:
                sweep()  # as the next engine does that makes a region of names
            if names := [p.name for p in SHM.glob(f"{name.lstrip('/')}*")]:
                self.finding = self.finding or f"names that are left: {names}"


def _children() -> set[int]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(map(int, path.read_text(encoding="ascii").split()))


def main() -> None:
    """Runs one storm."""
    seed, seconds, slack_s = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])
    plant = sys.argv[4] if len(sys.argv) > 4 else ""
    logging.disable(logging.WARNING)  # that a worker is gone is no news here
    adopt_orphans()
    with tempfile.TemporaryDirectory() as where:
        before = open_fds()
        storm = Storm(seed, slack_s, plant, where)
        storm.run(seconds)
        sweep()  # of an engine that was killed before it could say its region's name
        if open_fds() != before and not storm.finding:
            storm.finding = f"descriptors {open_fds()}, and before {before}"
    for name, number in storm.numbers().items():
        if number or name == "rounds":
            print(name, number)
    finding = storm.finding or storm.board.finding
    if finding:
        print("bad", finding.replace("\n", " | "))


if __name__ == "__main__":
    main()
