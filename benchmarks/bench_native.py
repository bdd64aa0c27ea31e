"""What would a build for this very CPU gain over the wheel, which is built for any?

    python benchmarks/bench_native.py [--json FILE] [--pairs N] [--seconds S]

The core is compiled twice from this checkout, as it stands and with ``-march=native``,
and each build verifies, proposes and accepts in a process of its own, in turns, so that
a machine that changes its pace changes it for both. The ratio is that of the medians,
plain over native: 1 says that choosing code paths at run time loses nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import _harness
import bench_accept
import bench_propose
import bench_verify
import numpy as np

from pp3shm import _core

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
NATIVE = "-march=native"


def build(where: Path, *flags: str) -> Path:
    """The package with its own core; the directory to put on the path.

    Args:
        where: to build in.
        flags: for the compiler, after those of the package.

    Raises:
        RuntimeError: the build failed; its words.
    """
    made = subprocess.run(
        [sys.executable, "setup.py", "-q", "build", "--build-base", where / "tmp",
         "--build-lib", where / "lib"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env=os.environ | {"CFLAGS": " ".join(flags)},
    )  # fmt: skip
    if made.returncode:
        raise RuntimeError(f"setup.py build {' '.join(flags)}:\n{made.stderr}")
    return where / "lib"


def once(lib: Path, seconds: float) -> dict[str, float]:
    """The three medians of one build, microseconds, from a process of its own."""
    words = [sys.executable, "-P", __file__, "--child", "--seconds", str(seconds)]
    path = os.pathsep.join([str(lib), str(HERE)])
    made = subprocess.run(
        words, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": path},
    )  # fmt: skip
    if made.returncode:
        raise RuntimeError(f"{lib}: measuring failed:\n{made.stderr}")
    found = json.loads(made.stdout.splitlines()[-1])
    if not Path(found.pop("core")).is_relative_to(lib):
        raise RuntimeError(f"expected the core of {lib}, found another")
    return {name: float(us) for name, us in found.items()}


def child(seconds: float) -> None:
    """Measures the core that this process imports; prints JSON."""
    _harness.pin()
    g, vocab = np.random.default_rng(1), 129280
    given = bench_verify.batch(g, vocab, bench_verify.STOPS["mixed"])
    verify = bench_verify.core(vocab)
    logits = g.normal(0, 3, (4, 5, vocab)).astype(np.float32)
    accept = bench_accept.accept(bench_accept.Given(4))
    runs = {
        "verify": lambda _i: verify(given),
        "propose": lambda _i: bench_propose.core(logits, None),
        "accept": lambda i: accept(i % bench_accept.FRAMES),
    }
    found: dict[str, float | str] = {"core": str(_core.__file__)}
    for name, run in runs.items():
        spent = _harness.timed(run, seconds)
        found[name] = statistics.median(spent) * 1e-3
    print(json.dumps(found))


def main() -> None:
    """Builds, measures in turns, prints."""
    parser = _harness.arguments(__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.3, help="per measurement")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.seconds)
        return
    with tempfile.TemporaryDirectory() as where:
        place = Path(where)
        plain, native = build(place / "plain"), build(place / "native", NATIVE)
        pairs = [
            (once(plain, options.seconds), once(native, options.seconds))
            for _ in range(options.pairs)
        ]
    about = _harness.machine(native=NATIVE)
    print(f"{'':12}{'plain us':>11}{'native us':>11}{'ratio':>9}")
    kept = []
    for name in pairs[0][0]:
        one, other = (
            statistics.median(pair[side][name] for pair in pairs) for side in (0, 1)
        )
        kept.append({"run": name, "plain_us": one, "native_us": other,
                     "times_native": one / other})  # fmt: skip
        print(f"{name:12}{one:11.2f}{other:11.2f}{one / other:9.3f}")
    _harness.write(options.json, about, kept)


if __name__ == "__main__":
    main()
