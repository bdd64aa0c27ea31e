"""The benchmarks run: what they measure is told by `make bench`, not here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent.parent / "benchmarks"
NEEDS = {"bench_scatter": "torch", "bench_verify": "torch", "bench_native": "torch"}


def run(*words):
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        cwd=FOLDER.parent,
        env={**os.environ, "PYTHONSAFEPATH": ""},  # a script sees its neighbours
    )


@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("bench_*.py")), ids=lambda p: p.stem
)
def test_each_says_what_it_measures(path):
    if package := NEEDS.get(path.stem):
        pytest.importorskip(package)
    done = run(path, "--help")
    assert 0 == done.returncode, done.stderr
    assert "usage" in done.stdout


def test_the_calls_are_called_and_give_what_they_must():
    """Once each, untimed."""
    pytest.importorskip("pytest_benchmark")
    calls = FOLDER / "test_calls.py"
    done = run("-P", "-m", "pytest", "-q", calls, "--benchmark-disable")
    assert 0 == done.returncode, done.stdout + done.stderr
    assert "8 passed" in done.stdout
