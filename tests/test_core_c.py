"""The C core by its own test program, without Python, and under strict warnings."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from torture.core import program
from torture.figure import CORE

COMPILERS = ("gcc", "clang", "aarch64-linux-gnu-gcc")

pytestmark = pytest.mark.skipif(
    not (CORE / "ring" / "ring.c").exists(), reason="needs the sources beside the tests"
)


def _needed(compiler):
    if shutil.which(compiler) is None and not os.environ.get("PP3_ALL_TOOLS"):
        pytest.skip(f"needs {compiler}")


def test_every_test_of_the_c_program_holds(tmp_path):
    """As the package is compiled, with another seed than the figures have."""
    _needed("gcc")
    core = program.build(tmp_path, program.Toolchain(("-O3",)))
    done = program.run(core, "--seed", "1000")
    assert not done.first
    assert done.tests > 100


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_core_compiles_without_a_warning(tmp_path, compiler):
    """Conversions and shadowed names included, in every part."""
    _needed(compiler)
    strict = ["-std=c11", "-D_GNU_SOURCE", "-O2", *program.WARNINGS, "-Werror"]
    strict.append(f"-I{CORE}")
    for source in program.sources(CORE):
        command = [compiler, *strict, "-c", str(source), "-o", str(tmp_path / "part.o")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{Path(source).name}: {done.stderr}"


def test_the_program_names_every_test_once():
    """A run on another machine is compared by the sentences."""
    found = [
        line.split('"')[1]
        for path in program.HERE.glob("*_tests.c")
        for line in path.read_text().splitlines()
        if line.startswith('    {"') and path.name != "known.c"
    ]
    assert len(found) == len(set(found)) > 100
