"""What do the stamps and the flight recorder cost that every round carries?

    engine (Python) --- STEP, 356 bytes ---> native drafter at the region
                    <-- page, 5320 bytes ---
    |<---------------------- timed ----------------------->|

The package is built twice from these sources, once with ``PP3_NO_TRACE``: then no
stage is stamped and nothing is recorded. Each build runs in a process of its own, with
its own region and drafter. The two take turns, block by block, and the one whose turn
it is not sleeps. The figure is the median over the blocks of p50 with the map by p50
without, of blocks that stand beside each other. Between rounds, untimed, three tokens
are committed in each slot. That pages are the drafter's is looked at before and after
each block, untimed, and that the one build has stamps and the other none.

The asking thread is pinned to the first core, the drafter to the last.

    python benchmarks/bench_trace.py [--json FILE] [--blocks N] [--rounds N]
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import _harness
import numpy as np

from pp3shm import Engine, Row
from pp3shm.bench import exchange
from pp3shm.bench.ends import at_the_ring, pinned
from pp3shm.bench.ours import Rounds

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("pp3shm", "setup.py", "pyproject.toml", "README.md", "LICENSE")
BUILDS = {"with": "", "without": "PP3_NO_TRACE"}
TIMEOUT_S = 5.0


def build(where: Path, define: str) -> Path:
    """The package in a folder of its own, its core compiled with a macro."""
    where.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            skip = shutil.ignore_patterns("*.so", "__pycache__", "_core.c")
            shutil.copytree(source, where / name, ignore=skip)
        else:
            shutil.copyfile(source, where / name)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    env = {**os.environ, "PP3SHM_DEFINE": define}
    done = subprocess.run(
        command, cwd=where, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"build {define or 'as it is'}: {done.stderr}")
    return where


def child() -> None:
    """Rounds of one build: a line with their number comes, one of their times goes."""
    with at_the_ring("hybrid") as running:
        rounds = Rounds(running.engine)
        slots = range(running.engine.profile.max_slots)
        rows = [Row(slot, user_seed=7) for slot in slots]
        with pinned():
            for line in sys.stdin:
                rounds.look()
                found = block(running.engine, rows, int(line))
                rounds.look()
                print(json.dumps(found), flush=True)


def block(engine: Engine, rows: list[Row], number: int) -> dict[str, object]:
    """Rounds one after the other: their nanoseconds, whether the last had stamps."""
    spent, failed = [], 0
    for row in rows:
        engine.reset(row.slot, exchange.COMMITTED)  # else the slots are full some day
    for _ in range(number):
        start = time.monotonic_ns()
        with engine.reply(engine.step(rows, timeout_s=TIMEOUT_S)) as reply:
            pass
        spent.append(time.monotonic_ns() - start)
        failed += reply.failed is not None or bool(reply.status.any())
        for row in rows:
            engine.commit(row.slot, exchange.COMMITTED)
    return {"ns": spent, "failed": failed, "stamped": reply.trace is not None}


class Build:
    """One build's process."""

    def __init__(self, where: Path) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (where, ROOT)))}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            cwd=where,
        )

    def block(self, rounds: int, *, traced: bool) -> list[int]:
        """Nanoseconds of so many rounds."""
        if self.process.stdin is None or self.process.stdout is None:
            sys.exit("bench: expected pipes, found none")
        self.process.stdin.write(f"{rounds}\n")
        self.process.stdin.flush()
        said = json.loads(self.process.stdout.readline() or "null")
        if said is None or said["failed"] or said["stamped"] is not traced:
            sys.exit(f"bench: {'with' if traced else 'without'} the map: {said}")
        return list(said["ns"])


@contextlib.contextmanager
def builds() -> Iterator[dict[str, Build]]:
    """Both, running."""
    with tempfile.TemporaryDirectory(prefix="pp3shm-bench-") as folder:
        made = {name: build(Path(folder) / name, d) for name, d in BUILDS.items()}
        running = {name: Build(where) for name, where in made.items()}
        try:
            yield running
        finally:
            for one in running.values():
                if one.process.stdin is not None:
                    one.process.stdin.close()
                one.process.wait(30)


def measure(running: dict[str, Build], blocks: int, rounds: int) -> list[list[float]]:
    """p50 of each block, with and without, in nanoseconds; a first one is dropped."""
    found: list[list[float]] = []
    for number in range(blocks + 1):
        order = list(BUILDS) if number % 2 else list(BUILDS)[::-1]
        p50 = {
            name: float(np.median(running[name].block(rounds, traced=name == "with")))
            for name in order
        }
        found.append([p50[name] for name in BUILDS])
    return found[1:]


def main() -> None:
    """Build, measure, tell."""
    parser = _harness.arguments(__doc__)
    parser.add_argument("--blocks", type=int, default=40, help="of each build")
    parser.add_argument("--rounds", type=int, default=2000, help="in each block")
    options = parser.parse_args()
    where = _harness.machine(wait="hybrid")
    with builds() as running:
        blocks = np.array(measure(running, options.blocks, options.rounds))
    ratios = blocks[:, 0] / blocks[:, 1]
    low, ratio, high = np.quantile(ratios, [0.25, 0.5, 0.75])
    both = np.median(blocks, axis=0) * 1e-3
    result = {
        "with_us": float(both[0]),
        "without_us": float(both[1]),
        "ratio": float(ratio),
        "quartiles": [float(low), float(high)],
        "blocks": options.blocks,
        "rounds": options.rounds,
    }
    print(f"{'with the map':16}{both[0]:9.3f} us, median of the blocks' p50")
    print(f"{'without':16}{both[1]:9.3f} us")
    print(f"{'ratio':16}{ratio:9.4f}   quartiles {low:.4f} to {high:.4f}")
    _harness.write(options.json, where, result)


if __name__ == "__main__":
    if sys.argv[1:] == ["--child"]:
        child()
    else:
        main()
