"""The protocol's own text under ThreadSanitizer, and under strict warnings."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("atomics", "ring", "slots", "watchdog")
SOURCES = [ROOT / "pp3shm" / "ring" / f"{name}.c" for name in PARTS]
PROGRAM = ROOT / "tests" / "test_ring_threads.c"
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"]

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or not SOURCES[0].exists(), reason="needs gcc"
)


def _gcc(*arguments: object) -> None:
    base = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-pthread", f"-I{ROOT / 'pp3shm'}"]
    subprocess.run([*base, *map(str, arguments)], check=True)


def _built(tmp_path: Path, plant: int) -> Path:
    program = tmp_path / "threads"
    flags = ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan", f"-DPLANT={plant}"]
    try:
        _gcc(*flags, PROGRAM, *SOURCES, "-o", program)
    except subprocess.CalledProcessError:
        pytest.skip("needs ThreadSanitizer's library")
    return program


def _run(program: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["setarch", "-R", program],  # its shadow memory wants a known layout
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
        env={"TSAN_OPTIONS": "halt_on_error=1"},
    )


def test_threads_over_one_mapping_have_no_data_race(tmp_path):
    """3,000 rounds, three readers each; some answered, some failed, none torn."""
    done = _run(_built(tmp_path, 0))
    assert done.returncode == 0, done.stderr
    answered, failed, wrong = map(int, done.stdout.split())
    assert (answered + failed, wrong) == (9000, 0)
    assert min(answered, failed) > 0


@pytest.mark.parametrize("plant", [1, 2, 3], ids=["swaps", "stores", "loads"])
def test_weakened_orders_are_found(tmp_path, plant):
    """A harness that was not shown to fail proves nothing."""
    done = _run(_built(tmp_path, plant))
    assert "data race" in done.stderr


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("compiler", ["gcc", "clang", "aarch64-linux-gnu-gcc"])
def test_the_core_compiles_without_a_warning(tmp_path, name, compiler):
    """Conversions and shadowed names included."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    source = ROOT / "pp3shm" / "ring" / f"{name}.c"
    subprocess.run(
        [
            *(compiler, "-std=c11", "-D_GNU_SOURCE", "-O2", *STRICT),
            *(f"-I{ROOT / 'pp3shm'}", "-c", source, "-o", tmp_path / "part.o"),
        ],
        check=True,
    )
