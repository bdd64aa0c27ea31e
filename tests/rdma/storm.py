"""Kills, stops and cut links at random moments, over real queue pairs, in the lab.

    python tests/rdma/storm.py --count 1000 --minutes 8 --directory DIR [--seed N]

One engine with a proxy, one worker, rounds in flight all the while. Something happens
to one of them at a random moment; what every round then says is held against what was
asked: it is answered whole and right, or failed with a reason, once. Replies that a
rank has not released yet are compared with copies of theirs after whatever happened.

Each run adds a line to DIR/storm.jsonl; a run ends after its minutes or when all runs
together have the count. --summary prints what they add up to.
"""

import argparse
import collections
import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np

from pp3shm import Engine, Profile, Row, Status, Worker
from pp3shm.errors import Busy, Exhausted, LinkError, Pp3Error
from pp3shm.link import rdma
from pp3shm.proposal.proposal import propose_row
from pp3shm.worker.drafters import TableDrafter

VOCAB, SLOTS, DEPTH, ROUNDS = 256, 2, 5, 4
KEY = bytes(range(32))
DEADLINE_S = 1.5
PROFILE = Profile.sampled(
    vocab=VOCAB, depth=DEPTH, max_slots=SLOTS, max_positions=1 << 20
)
TABLE = np.random.default_rng(1).normal(size=(VOCAB, VOCAB)).astype(np.float32) * 3
WEIGHTS = {"kill worker": 8, "stop worker": 6, "cut link": 8, "stop proxy": 3,
           "kill proxy": 1}  # fmt: skip
REASONS = {Status.TIMEOUT, Status.PEER_DIED, Status.REFUSED, Status.STALE}
SETTLED_S = 90.0  # a watchdog: by then rounds must be answered again


def draft_of(token):
    """Ids and q that a row after ``token`` must carry; the draw is the session's."""
    drawn = propose_row(
        TABLE[token], key=(0, 0), round=0, position=0, tau_milli=700, rule=PROFILE.rule
    )
    return drawn.ids.astype(np.int32), drawn.q.astype(np.float32)


class Nursery:
    """Starts workers by forking a process that has imported everything.

    Emulated, an interpreter and its imports take ten seconds; a fork takes none.
    """

    def __init__(self, port):
        self._ours, theirs = socket.socketpair()
        self._pid = os.fork()
        if self._pid == 0:
            self._ours.close()
            self._serve(theirs, port)
        theirs.close()
        self.pid = None

    @staticmethod
    def _serve(orders, port):
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while orders.recv(1):
            child = os.fork()
            if child == 0:
                orders.close()
                try:
                    _work(f"rdma://10.98.0.2:{port}/rxe1")
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


def _work(address):
    """A worker until it is killed; the one before may not have let go of the port."""
    limit = time.monotonic() + 60
    while True:
        worker = Worker(TableDrafter(TABLE), PROFILE, [address], KEY)
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


class Events(threading.Thread):
    """What happens, when, to whom; one at a time, after rounds were answered again."""

    def __init__(self, rng, nursery, engine):
        super().__init__(daemon=True)
        self._rng, self._nursery, self._engine = rng, nursery, engine
        self.counts = collections.Counter()
        self.good = threading.Event()
        self.ending = threading.Event()
        self.fault = None

    def run(self):
        try:
            while not self.ending.is_set():
                self.good.clear()
                # Half of it happens to what has not yet recovered from the last.
                soon = self._rng.random() < 0.5
                if soon:
                    time.sleep(self._rng.random())
                elif not self.good.wait(SETTLED_S):
                    raise AssertionError(
                        f"no round answered for {SETTLED_S} s after "
                        f"{dict(self.counts)}: {self._engine.last_error()}"
                    )
                if self.ending.wait(self._rng.random() * 0.3):
                    return
                name = self._rng.choices(list(WEIGHTS), WEIGHTS.values())[0]
                getattr(self, name.replace(" ", "_"))()
                self.counts[name] += 1
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self.fault = error

    def kill_worker(self):
        self._nursery.kill()
        time.sleep(self._rng.random() * 0.2)
        self._nursery.start()

    def stop_worker(self):
        self._stopped(self._nursery.pid)

    def stop_proxy(self):
        self._stopped(self._engine.stats()["proxy_pid"])

    def kill_proxy(self):
        pid = self._engine.stats()["proxy_pid"]
        if pid > 0:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _stopped(self, pid):
        if not pid:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self._rng.random() * DEADLINE_S * 1.3)
            os.kill(pid, signal.SIGCONT)

    def cut_link(self):
        cable(up=False)
        time.sleep(self._rng.random() * 0.8)
        cable(up=True)


class Storm:
    """The engine's side: asks, checks, keeps an account."""

    def __init__(self, engine, rng, events):
        self.engine, self.rng, self.events = engine, rng, events
        self.expected = [draft_of(token) for token in range(VOCAB)]
        self.last = {}
        self.flight = collections.deque()
        self.kept = collections.deque()  # replies not released, with copies
        self.asked = self.ok = 0
        self.failed = collections.Counter()
        for slot in range(SLOTS):
            self._reset(slot)

    def _reset(self, slot):
        prefix = [self.rng.randrange(VOCAB) for _ in range(3)]
        self.engine.reset(slot, prefix)
        self.last[slot] = prefix[-1]

    def ask(self):
        for slot in range(SLOTS):
            if not self.flight:
                tokens = [self.rng.randrange(VOCAB) for _ in range(1 + slot)]
                if self.engine.position(slot) < 100_000:
                    self.engine.commit(slot, tokens)
                    self.last[slot] = tokens[-1]
                else:
                    self._reset(slot)
        rows = [Row(slot=slot, user_seed=self.asked, sampled=True)
                for slot in range(SLOTS)]  # fmt: skip
        try:
            ticket = self.engine.step(rows, timeout_s=DEADLINE_S)
        except (Busy, Exhausted):
            time.sleep(0.01)
            return
        self.asked += 1
        self.flight.append((ticket, dict(self.last)))

    def hear(self):
        ticket, last = self.flight.popleft()
        reply = self.engine.reply(ticket, timeout_s=60).__enter__()
        assert reply.round == ticket, (reply.round, ticket)
        for slot in range(SLOTS):
            status = Status(int(reply.status[slot]))
            if status is Status.OK:
                self._check(reply, slot, last[slot])
                self.ok += 1
                self.events.good.set()
            else:
                assert status in REASONS, status
                assert (reply.tokens[slot] == -1).all()
                self.failed[status.name] += 1
        self.kept.append((reply, reply.q.tobytes(), reply.tokens.tobytes()))
        while len(self.kept) > 2:
            self.release()

    def release(self):
        reply, q, tokens = self.kept.popleft()
        assert q == reply.q.tobytes(), f"q of round {reply.round} changed"
        assert tokens == reply.tokens.tobytes(), f"round {reply.round} changed"
        reply.__exit__(None, None, None)

    def _check(self, reply, slot, before):
        for depth in range(DEPTH):
            ids, q = self.expected[before]
            place = f"round {reply.round} slot {slot} depth {depth}"
            assert (ids == reply.ids[slot, depth]).all(), place
            assert (q == reply.q[slot, depth]).all(), place
            before = int(reply.tokens[slot, depth])
            assert before in ids, place

    def run(self, until, enough):
        while time.monotonic() < until and not enough():
            if self.events.fault:
                raise self.events.fault
            if len(self.flight) < 2:
                self.ask()
            else:
                self.hear()
        while self.flight:
            self.hear()
        while self.kept:
            self.release()


def run(args):
    log = args.directory / "storm.jsonl"
    already = sum(sum(line["events"].values()) for line in lines(log))
    seed = args.seed if args.seed is not None else 1000 + already
    rng = random.Random(seed)
    with socket.create_server(("10.98.0.2", 0)) as free:
        port = free.getsockname()[1]
    rdma.require("storm")
    nursery = Nursery(port)
    nursery.start()
    began = time.monotonic()
    try:
        with Engine.create(
            PROFILE,
            worker=f"rdma://10.98.0.2:{port}/rxe0",
            proxy="process",
            rounds=ROUNDS,
            psk=KEY,
            connect_timeout_s=120,
        ) as engine:
            events = Events(rng, nursery, engine)
            storm = Storm(engine, rng, events)
            events.start()

            def enough():
                return already + sum(events.counts.values()) >= args.count

            try:
                storm.run(began + args.minutes * 60, enough)
            finally:
                events.ending.set()
                events.join(30)
            cable(up=True)
            settle(storm)
            said = account(storm, events, engine, seed, time.monotonic() - began)
    finally:
        nursery.close()
    with log.open("a") as out:
        out.write(json.dumps(said) + "\n")
    print(json.dumps(said))


def settle(storm):
    """Quiet again: rounds are answered, and no slot is in quarantine."""
    limit = time.monotonic() + SETTLED_S
    while time.monotonic() < limit:
        before = storm.ok
        storm.ask()
        while storm.flight:
            storm.hear()
        stats = storm.engine.stats()
        if storm.ok > before and stats["slots_held"] == 0:
            break
    else:
        raise AssertionError(f"not quiet after {SETTLED_S} s: {stats}")
    while storm.kept:
        storm.release()


def account(storm, events, engine, seed, seconds):
    stats = engine.stats()
    assert 3 == stats["memory_regions"], stats
    assert 0 == stats["quarantined"], stats
    assert SLOTS * storm.asked == storm.ok + sum(storm.failed.values())
    names = ("late", "late_writes", "slots_quarantined", "sessions", "proxy_deaths")
    return {
        "seed": seed,
        "seconds": round(seconds),
        "events": dict(events.counts),
        "rounds": storm.asked,
        "rows_ok": storm.ok,
        "rows_failed": dict(storm.failed),
        **{name: stats[name] for name in names},
    }


def lines(log):
    return (
        [json.loads(line) for line in log.read_text().splitlines()]
        if (log.exists())
        else []
    )


def summary(args):
    total = collections.Counter()
    for line in lines(args.directory / "storm.jsonl"):
        for name, value in line.items():
            if isinstance(value, dict):
                total.update({f"{name}: {key}": n for key, n in value.items()})
            elif name != "seed":
                total[name] += value
        total["runs"] += 1
    total["events"] = sum(n for key, n in total.items() if key.startswith("events: "))
    for name, value in sorted(total.items()):
        print(f"{name:<28}{value}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--directory", type=Path, default=Path())
    parser.add_argument("--summary", action="store_true")
    args = parser.parse_args()
    try:
        summary(args) if args.summary else run(args)
    except Pp3Error as error:
        print(f"storm: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
