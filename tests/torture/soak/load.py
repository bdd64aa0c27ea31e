"""Ten minutes of real load, or less: the whole stack, and whether anything grows.

`load.py SECONDS SEED [leak]`: an engine with a process proxy and two ranks; a worker
and the second rank in processes of their own. Rounds as fast as they go, some
cancelled, some with a deadline that nobody keeps; every second or so the proxy is
killed. At rest, that is, with a session and no round open, each sample counts
descriptors, anonymous memory, threads and children of every process, pages and names in
/dev/shm. The samples of the first third are the warm-up. Prints counts, or `wrong:` and
what grew.
"""

import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from rank_process_client import RankProcess

from pp3shm import Engine, Profile, Row
from pp3shm.errors import Busy, Exhausted, WaitTimeout
from pp3shm.proxy.state import SessionState

TESTS = Path(__file__).resolve().parents[2]
VOCAB = 64
PROFILE = Profile.sampled(vocab=VOCAB, depth=5, max_slots=2, max_positions=512)
MOST_BYTES = 4 << 20
"""Python takes memory in arenas of 1 MiB and libc in one for each of several threads: a
late one of each is no leak. A page of 64 KiB a kill, or 100 bytes a round, is far more
in ten minutes; what the shorter forms can see is less fine."""
LEAST_SAMPLES = 5
LIMIT_S = 120.0  # a watchdog for a session or a rest, not a promise


def worker_process():
    """`pp3shm worker` with the tests' table, and where it listens."""
    command = [sys.executable, "-P", "-m", "pp3shm", "worker"]
    command += ["--listen", "tcp://127.0.0.1:0", "--sampled"]
    command += ["--drafter", "serve_table:DRAFTER", "--vocab", str(VOCAB)]
    command += ["--depth", "5", "--max-slots", "2", "--max-positions", "512"]
    # An empty part of it would be the working directory.
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().split()[-1]


def measured(pid):
    """Descriptors, anonymous bytes and threads of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return {
        "descriptors": len([*Path(f"/proc/{pid}/fd").iterdir()]),
        "anonymous bytes": int(fields["RssAnon"].split()[0]) * 1024,
        "threads": int(fields["Threads"]),
    }


def children(pid):
    """How many living or unreaped children a process has."""
    path = Path(f"/proc/{pid}/task")
    lists = [task / "children" for task in path.iterdir()]
    return sum(len(each.read_text(encoding="ascii").split()) for each in lists)


class Load:
    """The stack under load.

    Args:
        seed: of what is done when.
        leak: of a descriptor a kill and some memory a round, planted here.
    """

    def __init__(self, seed, leak):
        self.luck, self.leak = random.Random(seed), bool(leak)
        self.leaked = []
        self.counts = {"rounds": 0, "failed": 0, "cancelled": 0, "kills": 0}
        self.worker, address = worker_process()
        self.engine = Engine.create(PROFILE, worker=address, ranks=2, kind="posix")
        self.rank = RankProcess(self.engine.invitation, PROFILE)
        self.engine.wait_ranks()
        for slot in range(2):
            self.engine.reset(slot, [1])
        self.names = self._names()

    def close(self):
        self.rank.__exit__()
        self.engine.close()
        self.worker.send_signal(signal.SIGTERM)
        self.worker.wait(LIMIT_S)
        self.worker.stdin.close()
        self.worker.stdout.close()

    def _names(self):
        prefix = self.engine._ring.region.prefix.lstrip("/")
        return len([*Path("/dev/shm").glob(f"{prefix}*")])

    # -- rounds --------------------------------------------------------------------

    def rounds(self, n):
        """Up to four in flight, each read by both ranks."""
        flight = []
        for _ in range(n):
            with contextlib.suppress(Busy, Exhausted):
                rows = [Row(slot) for slot in range(2)]
                patience = self.luck.choice([5.0, 5.0, 5.0, 5.0, 5.0, 0.0002])
                flight.append(self.engine.step(rows, timeout_s=patience))
                self.rank.tell(flight[-1])
            if len(flight) >= 4:
                self.finish(flight.pop(0))
        while flight:
            self.finish(flight.pop(0))

    def finish(self, ticket):
        if self.luck.random() < 0.02:
            self.engine.cancel(ticket, told=True)
            self.counts["cancelled"] += 1
        with self.engine.reply(ticket) as reply:
            self.counts["failed"] += reply.failed is not None
        seen = self.rank.answer()
        if seen.ticket != ticket or seen.before != seen.after:
            raise RuntimeError(f"round {ticket}: rank 1 saw {seen}")
        self.counts["rounds"] += 1
        if self.leak:
            self.leaked.append(bytearray(b"x" * 65536))
        if ticket % 100 == 0:  # prefixes grow, end, and begin anew
            for slot in range(2):
                self.engine.reset(slot, [1] * self.luck.randrange(1, 400))

    def kill(self):
        pid = self.engine.stats()["proxy_pid"]
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.counts["kills"] += 1
            if self.leak:
                self.leaked.append(os.dup(0))

    # -- looking -------------------------------------------------------------------

    def rest(self):
        """Until the killed are buried and there is a session again, and no other."""
        limit = time.monotonic() + LIMIT_S
        fds = None
        while time.monotonic() < limit:
            buried = self.engine.stats()["proxy_deaths"] == self.counts["kills"]
            if buried and self.engine.session_state is SessionState.READY:
                now = [measured(p)["descriptors"] for p in self.pids().values()]
                if now == fds:
                    return
                fds = now
            time.sleep(0.03)
        raise TimeoutError("no rest found")

    def pids(self):
        return {
            "engine": os.getpid(),
            "worker": self.worker.pid,
            "rank": self.rank.process.pid,
            "proxy": self.engine.stats()["proxy_pid"],
        }

    def sample(self):
        """Everything that could grow, by name."""
        self.rest()
        stats = self.engine.stats()
        found = {
            f"{who} {what}": n
            for who, pid in self.pids().items()
            for what, n in measured(pid).items()
        }
        found["engine children"] = children(os.getpid())
        found["names in /dev/shm"] = self._names()
        found["pages missing"] = 16 - stats["free_pages"] - stats["quarantined"] - 8
        found["quarantined"] = stats["quarantined"]
        return found


def grown(samples):
    """What stands higher at the end than after the warm-up."""
    warm, late = samples[len(samples) // 3], samples[-1]
    third = len(samples) // 3
    for name in warm:
        if name.endswith("bytes"):
            before = statistics.median(s[name] for s in samples[third : 2 * third])
            after = statistics.median(s[name] for s in samples[-third:])
            if after > before + MOST_BYTES:
                yield f"{name}: {before} to {after}"
        elif name == "quarantined":
            if late[name] > 8:  # the spares: what a stopped proxy could hold
                yield f"{name}: {late[name]}"
        elif late[name] > warm[name]:
            yield f"{name}: {warm[name]} to {late[name]}"


def main():
    seconds, seed = float(sys.argv[1]), int(sys.argv[2])
    load = Load(seed, sys.argv[3] if len(sys.argv) > 3 else "")
    begin = last_kill = time.monotonic()
    between = max(0.2, seconds / 60)  # a minute of samples, or ten seconds each
    samples = []
    try:
        while time.monotonic() < begin + seconds or len(samples) < LEAST_SAMPLES:
            until = time.monotonic() + between
            while time.monotonic() < until:
                load.rounds(40)
                if time.monotonic() > last_kill + min(1.0, between):
                    load.kill()
                    last_kill = time.monotonic()
            samples.append(load.sample())
    except WaitTimeout as error:
        print(f"wrong: {error}", file=sys.stderr)
        return 1
    finally:
        load.close()
    worse = list(grown(samples))
    if worse:
        print("wrong:", "; ".join(worse), file=sys.stderr)
        return 1
    bytes_ = {
        who: samples[-1][f"{who} anonymous bytes"]
        - samples[len(samples) // 3][f"{who} anonymous bytes"]
        for who in ("engine", "worker", "rank")
    }
    lasted = int(time.monotonic() - begin)
    print(json.dumps({"seconds": lasted, **load.counts, "grown": bytes_}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
