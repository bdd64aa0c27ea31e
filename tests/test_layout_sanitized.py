"""The C core of the layout under the address and undefined-behaviour sanitizers."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SOURCES = HERE.parent / "pp3shm"
PARTS = ("crc", "step", "page", "accept")
FLAGS = [
    "-std=c11", "-O1", "-g", "-fno-strict-aliasing", "-ffp-contract=off",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-D_GNU_SOURCE",
]  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """accept_faults.c with the core's own text; skipped where that cannot be built."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or not (SOURCES / "layout" / "accept.c").exists():
        pytest.skip("needs a C compiler and the sources beside the tests")
    built = tmp_path_factory.mktemp("sanitized") / "accept_faults"
    hello = built.with_suffix(".c")
    hello.write_text("int main(void) { return 0; }")
    probe = [compiler, *FLAGS, str(hello), "-o", str(built)]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this compiler has no sanitizers")
    parts = [str(SOURCES / "layout" / f"{part}.c") for part in PARTS]
    command = [compiler, *FLAGS, f"-I{SOURCES}", str(HERE / "accept_faults.c")]
    subprocess.run([*command, *parts, "-o", str(built)], check=True)
    return built


@pytest.mark.parametrize("seed", [1, 2])
def test_no_faulty_step_or_reply_makes_c_leave_its_memory(program, seed, tmp_path):
    """40,000 faults, in blocks of exact size; every reason is among the answers."""
    vectors = json.loads((HERE / "vectors" / "frames.json").read_bytes())
    frame = next(c for c in vectors["cases"] if c["name"] == "B4 depth 5")
    for name in ("step", "reply"):
        (tmp_path / name).write_bytes(bytes.fromhex(frame[name]))
    files = [str(tmp_path / "step"), str(tmp_path / "reply")]
    done = subprocess.run(
        [str(program), *files, "40000", str(seed)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.returncode == 0
    given = [int(word) for word in done.stdout.split()]
    assert len(given) == 11
    assert all(given)
