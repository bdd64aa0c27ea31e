"""Building and running the C targets under libFuzzer, AddressSanitizer and UBSan."""

import os
import re
import shutil
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from torture import compiler
from torture.changed import Change, plant
from torture.figure import CORE, Batch
from torture.fuzz import inputs

HERE = Path(__file__).resolve().parent
_LAYOUT = ("layout/step", "layout/page", "layout/accept", "layout/crc")
_RING = ("ring/atomics", "ring/ring", "ring/slots", "ring/note", "proxy/exchange")
# Traced comparisons find magic numbers, which accept.c has from its seeds and its
# mutator; without them it is three times as fast.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "step": (_LAYOUT, ()),
    "accept": (_LAYOUT, ("-fno-sanitize-coverage=trace-cmp",)),
    "region": (_LAYOUT + _RING, ()),
    # what the kernel would do for it is the target's
    "pump": (
        (*_LAYOUT, *_RING, "ring/waiter", "proxy/hand", "proxy/pump", "proxy/near"),
        ("-Drecv=fuzz_recv", "-Dsend=fuzz_send"),
    ),
}
FLAGS = (
    "-O1", "-gline-tables-only", "-fsanitize=fuzzer,address,undefined",
    "-fno-sanitize-recover=all", "-Wall", "-Wextra", "-Wpedantic", "-Wconversion",
    "-Wshadow", "-Werror",
)  # fmt: skip
MOST_BYTES = 6000
LIMIT_S = 900  # a run is stopped then and counts as a hang
_building = threading.Lock()
REASONS = ("accepted", "frame", "crc", "header", "echo", "trailer", "mask", "token",
           "support", "probability", "mass")  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run of a target.

    Attributes:
        target: A name of PARTS.
        seed: libFuzzer's.
        runs: How many inputs.
        plain: Mutated by libFuzzer alone, nothing repaired.
        table: CRCs by the table and not by the CPU's instructions.
    """

    target: str
    seed: int
    runs: int
    plain: bool = False
    table: bool = False

    def __str__(self) -> str:
        """What is needed to run it again."""
        ways = "".join(f" {way}" for way in ("plain", "table") if getattr(self, way))
        return f"{self.target}{ways} -seed={self.seed} -runs={self.runs}"


def missing() -> str:
    """What is needed and is not here, or nothing."""
    if absent := compiler.missing("clang"):
        return absent
    with tempfile.TemporaryDirectory() as where:
        probe = Path(where) / "probe.c"
        probe.write_text(
            "#include <stddef.h>\n#include <stdint.h>\n"
            "int LLVMFuzzerTestOneInput(const uint8_t *d, size_t n)"
            "{ return d == NULL && n != 0; }\n"
        )
        flags = ("-fsanitize=fuzzer,address,undefined",)
        try:
            compiler.build(Path(where) / "probe", [probe], *flags, compiler="clang")
        except RuntimeError:
            return "needs libFuzzer (libclang-rt-14-dev)"
    return ""


def build(where: Path, target: str, core: Path = CORE) -> Path:
    """A target's program, its dictionary beside it.

    Args:
        where: A directory for it; one that holds it already is used as it stands.
        target: A name of PARTS.
        core: The package's text, or a changed copy of it.

    Returns:
        The program.
    """
    with _building:
        where.mkdir(parents=True, exist_ok=True)
        program = where / target
        text = "".join(path.read_text() for path in sorted(HERE.glob("*.[ch]")))
        made, stamp = where / "inputs.h", where / f"{target}.made"
        text += inputs.header()
        if program.exists() and stamp.exists() and stamp.read_text() == text:
            return program
        made.write_text(inputs.header())
        (where / "dictionary").write_text(inputs.dictionary())
        names, flags = PARTS[target]
        sources = [HERE / f"{target}.c", *(core / f"{name}.c" for name in names)]
        extra = (f"-I{where}", f"-I{HERE}", *flags)
        compiler.build(program, sources, *FLAGS, *extra, compiler="clang", include=core)
        stamp.write_text(text)
        return program


def fuzz(program: Path, run: Run) -> Batch:
    """One run from the seeds alone, so that it can be repeated.

    Args:
        program: As ``build`` gave it.
        run: What.

    Returns:
        Executions, crashes, and how far it came.
    """
    corpus = Path(tempfile.mkdtemp(dir=program.parent, prefix="corpus-"))
    try:
        inputs.write_seeds(run.target, corpus)
        artifacts = f"{program.parent}/"
        command = [
            str(program), str(corpus), f"-dict={program.parent / 'dictionary'}",
            f"-seed={run.seed}", f"-runs={run.runs}", f"-max_len={MOST_BYTES}",
            f"-artifact_prefix={artifacts}", "-print_final_stats=1", "-timeout=20",
            "-rss_limit_mb=2048", "-verbosity=1",
        ]  # fmt: skip
        environment = os.environ | {
            # no leak check at each exit: the blocks are few and live as long as it
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        environment |= {"PP3_FUZZ_PLAIN": "1"} if run.plain else {}
        environment |= {"PP3_CRC_BY_TABLE": "1"} if run.table else {}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, errors="replace",
                check=False, env=environment, timeout=LIMIT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Batch(0, 1, {}, f"{run}: still running after {LIMIT_S} s")
        return _read(run, done.returncode, done.stderr)
    finally:
        shutil.rmtree(corpus, ignore_errors=True)


def _read(run: Run, code: int, said: str) -> Batch:
    """What libFuzzer printed, as numbers."""
    units = re.search(r"stat::number_of_executed_units: (\d+)", said)
    reached = re.findall(r"cov: (\d+) ft: (\d+)", said)
    tried = int(units[1]) if units else 0
    edges, features = map(int, reached[-1]) if reached else (0, 0)
    facts: dict[str, int | str] = {
        f"max edges {run.target}": edges,
        f"max features {run.target}": features,
        f"{run.target} runs": tried,
    }
    if given := re.search(r"REASONS ([\d ]+)", said):
        counts = map(int, given[1].split())
        facts |= dict(zip(REASONS, counts, strict=True))
    if code == 0 and tried >= run.runs:
        return Batch(tried, 0, facts)
    signs = ("DOES NOT HOLD", "ERROR:", "runtime error:", "Test unit written")
    why = [line for line in said.splitlines() if any(s in line for s in signs)]
    return Batch(max(tried, 1), 1, facts, f"{run}: {'; '.join(why[:4]) or said[-300:]}")


def fuzz_changed(where: Path, run: Run, *changes: Change) -> Batch:
    """The same over a copy of the core with a fault in it."""
    core = plant(where / "core", *changes)
    (where / f"{run.target}.made").unlink(missing_ok=True)
    return fuzz(build(where, run.target, core), run)


def shared(where: Path, *changes: Change) -> Path:
    """The layout's C text, changed, as a library."""
    core = plant(where / "core", *changes)
    names = ("crc", "step", "page", "accept")
    sources = [core / "layout" / f"{name}.c" for name in names]
    return compiler.build(
        where / "layout.so", sources, "-O2", "-shared", "-fPIC", include=core
    )
