"""What an installed package is: its parts, what each needs, the README's program."""

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from commands import blocking

import pp3shm

SOURCE = Path(__file__).parents[1]
PACKAGE = Path(pp3shm.__file__).parent
HEAVY = ["torch", "triton", "pyverbs"]
PARTS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def python(code, env=None, cwd=None):
    """What a program says; it must end well."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, **(env or {})},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    assert "" == done.stderr
    return done.stdout


def modules_of(part):
    """Every module of a subpackage, but what runs when it is imported."""
    names = sorted(path.stem for path in (PACKAGE / part).glob("*.py"))
    runs = {"__init__", "__main__"}
    return [f"pp3shm.{part}", *(f"pp3shm.{part}.{n}" for n in names if n not in runs)]


def test_import_alone_loads_nothing_heavy():
    heavy = [*HEAVY, "numpy", "rich", "scipy", "pp3shm._core"]
    code = f"import sys, pp3shm; print([n for n in {heavy} if n in sys.modules])"
    assert "[]\n" == python(code)


@pytest.mark.parametrize("part", [part for part in PARTS if part != "gpu"])
def test_every_part_but_gpu_is_imported_without_torch(tmp_path, part):
    imports = "\n".join(f"import {name}" for name in modules_of(part))
    code = f"import sys\n{imports}\nprint([n for n in {HEAVY} if n in sys.modules])"
    assert "[]\n" == python(code, blocking(tmp_path, *HEAVY))


def test_an_engine_a_worker_and_a_drafter_need_neither_torch_nor_an_extra(tmp_path):
    blocked = [*HEAVY, "rich", "scipy", "tokenizers", "transformers"]
    names = "import pp3shm.cli, pp3shm.oracle, pp3shm.worker.drafters, pp3shm.verify"
    code = f"{names}\nfrom pp3shm import *\nprint(Engine.__name__, Worker.__name__)"
    assert "Engine Worker\n" == python(code, blocking(tmp_path, *blocked))


def test_gpu_without_torch_says_how_to_get_it(tmp_path):
    code = "try:\n import pp3shm.gpu\nexcept ImportError as error: print(error)"
    said = python(code, blocking(tmp_path, "torch"))
    assert "pp3shm.gpu: expected torch, found none: pip install 'pp3shm[gpu]'\n" == said


@pytest.mark.parametrize("name", pp3shm.__all__)
def test_every_public_name_is_there_and_in_dir(name):
    assert getattr(pp3shm, name).__name__ == name
    assert name in dir(pp3shm)


@pytest.mark.parametrize(
    "module", ["pp3shm.verify", "pp3shm.worker", "pp3shm.link", "pp3shm.gpu"]
)
def test_every_name_that_a_part_promises_is_there(module):
    if module == "pp3shm.gpu":
        pytest.importorskip("torch")
    found = importlib.import_module(module)
    assert [] == [name for name in found.__all__ if not hasattr(found, name)]


def test_a_name_that_is_nowhere_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'pp3shm' has no attribute 'Nothing'"):
        _ = pp3shm.Nothing


def readme_program():
    """The first program of the README that makes an engine, as it stands there."""
    text = (SOURCE / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return next(block for block in blocks if "Engine" in block)


def test_the_readmes_lines_run_as_written(tmp_path):
    said = python(readme_program(), cwd=tmp_path)
    text = [int(token) for token in said.strip().strip("[]").split(", ")]
    assert [1, 2, 3] == text[:3]
    assert 40 <= len(text) <= 45
    assert all(0 <= token < 64 for token in text)
    assert [] == list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("setuptools") is None
    or not Path(sysconfig.get_path("include"), "Python.h").exists()
    or not (SOURCE / "setup.py").exists(),
    reason="needs setuptools, Python.h and the source tree",
)
def test_a_wheel_holds_the_package_whole_and_nothing_else(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(SOURCE / name, tree)
    spare = shutil.ignore_patterns("*.so", "_core.c", "__pycache__", "*.o")
    for name in ("pp3shm", "tests"):
        shutil.copytree(SOURCE / name, tree / name, ignore=spare)
    subprocess.run(
        [
            *(sys.executable, "-P", "-m", "pip", "wheel", "--quiet", "--no-deps"),
            *("--no-build-isolation", "--wheel-dir", str(tmp_path), "."),
        ],
        cwd=tree,
        check=True,
        capture_output=True,
        timeout=280,
    )
    (wheel,) = tmp_path.glob("pp3shm-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (info,) = {name.split("/")[0] for name in names if ".dist-info/" in name}
        metadata = archive.read(f"{info}/METADATA").decode()
        points = archive.read(f"{info}/entry_points.txt").decode()
    sources = {str(p.relative_to(SOURCE)) for p in (SOURCE / "pp3shm").rglob("*.py")}
    needed = {"pp3shm/py.typed", "pp3shm/_core.pyi", f"{info}/licenses/LICENSE"}
    assert set() == (sources | needed) - names
    assert {"pp3shm", info} == {name.split("/")[0] for name in names}
    # The stable ABI where there is one: the core is then of that name, for any CPython.
    free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
    own = sysconfig.get_config_var("EXT_SUFFIX")
    ending = own if free_threaded else ".abi3.so"
    assert [f"pp3shm/_core{ending}"] == [n for n in names if n.endswith(".so")]
    version = "".join(map(str, sys.version_info[:2]))
    tags = f"cp{version}-cp{version}t" if free_threaded else "cp311-abi3"
    assert f"-{tags}-linux_" in wheel.name
    assert "pp3shm = pp3shm.cli:main" in points
    for extra in ("gpu", "rdma", "bench", "demo", "hf", "check", "dev"):
        assert f"Provides-Extra: {extra}\n" in metadata
    assert f"\nVersion: {pp3shm.__version__}\n" in metadata
