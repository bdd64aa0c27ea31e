"""Steps that are processes of their own: a crash or a hang ends only the step."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from torture.figure import Batch

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
SURFACE_LIMIT_S = 600


def _environment(before: Path | None = None) -> dict[str, str]:
    """Where the children find the tests' modules, and a changed package before ours."""
    paths = [str(before)] if before else []
    paths += [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def judged(
    script: str, *arguments: str, limit_s: float = 900
) -> dict[str, Any] | Batch:
    """Runs a program of this folder that prints JSON.

    Args:
        script: Its file's name.
        arguments: Its arguments.
        limit_s: A process that runs for longer is a hang.

    Returns:
        What it printed; or a bad Batch where it crashed, hung or printed none.
    """
    command = [sys.executable, str(HERE / script), *arguments]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace",
            check=False, timeout=limit_s, env=_environment(),
        )  # fmt: skip
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
            return found
        why = f"ended with {done.returncode}: {done.stderr[-1000:]}"
    except subprocess.TimeoutExpired:
        why = f"still running after {limit_s} s"
    except (ValueError, IndexError):
        why = f"printed no JSON: {done.stdout[-300:]}"
    return Batch(1, 1, {}, f"{script} {' '.join(arguments)}: {why}")


def surface(where: Path, seed: int, runs: int, before: Path | None = None) -> Batch:
    """Runs surface.py from its seeds alone.

    Args:
        where: A directory to work in.
        seed: libFuzzer's.
        runs: How many inputs.
        before: A directory to be first on the path: a changed copy of the package.

    Returns:
        Inputs, exceptions that are no parser's own, how often each passed or refused.
    """
    where.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=where))
    command = [sys.executable, str(HERE / "surface.py"), str(seed), str(runs)]
    try:
        done = subprocess.run(
            [*command, str(folder)], capture_output=True, text=True, errors="replace",
            check=False, timeout=SURFACE_LIMIT_S, env=_environment(before),
        )  # fmt: skip
        seen = folder / "seen.json"
        facts = json.loads(seen.read_text()) if seen.exists() else {}
        units = re.search(r"stat::number_of_executed_units: (\d+)", done.stderr)
        edges = re.findall(r"cov: (\d+)", done.stderr)
        tried = int(units[1]) if units else 0
        facts.pop("inputs", None)
        facts["max edges python"] = int(edges[-1]) if edges else 0
        if done.returncode == 0 and tried >= runs:
            return Batch(tried, 0, facts)
        crash = next(folder.glob("crash-*"), None)
        data = crash.read_bytes()[:600].hex() if crash else "no input kept"
        why = _uncaught(done.stdout + done.stderr)
        return Batch(max(tried, 1), 1, facts, f"seed {seed}: {why}; input {data}")
    except subprocess.TimeoutExpired:
        return Batch(1, 1, {}, f"seed {seed}: running after {SURFACE_LIMIT_S} s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _uncaught(said: str) -> str:
    """The last line of a traceback, and where it was raised."""
    lines = said.splitlines()
    where = [line.strip() for line in lines if line.startswith("  File ")]
    raised = re.findall(
        r"^\w[\w.]*(?:Error|Exception|Refusal|Died)\b.*$", said, re.MULTILINE
    )
    return f"{raised[-1][:300] if raised else said[-300:]} ({where[-1:]})"
