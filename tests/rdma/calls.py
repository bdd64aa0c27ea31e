"""What pyverbs' calls cost beside a C caller's, in the lab.

    python tests/rdma/calls.py [ROUNDS]

One write of 5412 bytes a round between the two devices of the guest, once by the link's
own end (pyverbs) and once by calls.c: microseconds a round inside the device's calls.
The guest is emulated, so only their ratio means anything. Needs a C compiler and
libibverbs-dev.
"""

import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pp3shm.link import gids, rdma
from pp3shm.link.verbs import Shape

BYTES = 5412


def by_pyverbs(rounds):
    """Microseconds a round."""
    a = rdma.RdmaEnd(gids.choose("10.98.0.1"), Shape(4, BYTES, BYTES))
    b = rdma.RdmaEnd(gids.choose("10.98.0.2"), Shape(4, BYTES, BYTES))
    b.connect(a.local)
    a.connect(b.local)
    a.fill(0, b"x" * BYTES)
    inside = 0.0

    def take(end):
        nonlocal inside
        found = []
        while not found:
            select.select([end.fileno()], [], [])
            begun = time.perf_counter()
            found = end.poll()
            inside += time.perf_counter() - begun
        assert not any(one.fault for one in found)

    for _ in range(rounds):
        begun = time.perf_counter()
        a.post(0, BYTES)
        inside += time.perf_counter() - begun
        take(b)
        take(a)
    a.close()
    b.close()
    return 1e6 * inside / rounds


def by_c(rounds):
    """Microseconds a round."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "calls"
        source = Path(__file__).with_name("calls.c")
        subprocess.run(
            ["cc", "-O2", "-D_GNU_SOURCE", source, "-o", program, "-libverbs"],
            check=True,
        )
        said = subprocess.run(
            [program, str(rounds), str(BYTES)], check=True, capture_output=True
        ).stdout
    return float(said)


def main():
    """Print both, twice each, in turn."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for _ in range(2):
        ours, theirs = by_pyverbs(rounds), by_c(rounds)
        print(
            f"pyverbs {ours:.0f} us a round, C {theirs:.0f}: {ours / theirs:.1f} times",
            flush=True,
        )


if __name__ == "__main__":
    main()
