"""Figure 10: hostile frames. C under libFuzzer; Python; and both against each other."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from torture import compiler
from torture.changed import plant_python
from torture.figure import Batch, Figure, Form
from torture.fuzz import ctargets
from torture.fuzz.ctargets import Run
from torture.fuzz.faults import FAULTS, PYTHON, UNEQUAL, WIDE
from torture.fuzz.subprocesses import judged, surface

from pp3shm._core import lib

C_RUNS = {"short": 50_000, "medium": 500_000, "long": 2_000_000}
C_STEPS = {"short": 6, "medium": 12, "long": 60}
PUMP_SHARE = 8  # an input of the pump is two sessions
PLANTED_RUNS = 400_000


def _c_run(index: int, form: Form) -> Run:
    """Each step is of one target; every sixth one has no help of ours."""
    runs, seed = C_RUNS[form], index + 1
    return (
        Run("step", seed, runs),
        Run("accept", seed, runs),
        Run("region", seed, runs),
        Run("accept", seed, runs, table=True),
        Run("pump", seed, runs // PUMP_SHARE),
        Run(("step", "accept")[index // 6 % 2], seed, runs, plain=True),
    )[index % 6]


def _c_step(where: Path, index: int, form: Form) -> Batch:
    run = _c_run(index, form)
    return ctargets.fuzz(ctargets.build(where, run.target), run)


def _planted(name: str) -> Callable[[Path], Batch]:
    def run(where: Path) -> Batch:
        target, changes = FAULTS[name]
        started = Run(target, 1, PLANTED_RUNS)
        folder = where / name.replace(" ", "-")
        return ctargets.fuzz_changed(folder, started, *changes)

    return run


REPLIES = {"short": 4_000, "medium": 10_000, "long": 20_000}


def _agree(seed: int, count: int, library: str = "") -> Batch:
    found = judged("agreement.py", str(seed), str(count), library)
    if isinstance(found, Batch):
        return found
    return Batch(found["tried"], found["bad"], found["reasons"], found["first"])


def _agree_step(_: Path, index: int, form: Form) -> Batch:
    return _agree(index, REPLIES[form])


def _by_avx512() -> bool:
    """Whether this CPU takes that path of the checks."""
    best = lib.pp3_crc_path()
    found: bool = lib.pp3_crc_force(lib.PP3_CRC_WIDE) == 0
    lib.pp3_crc_force(best)
    return found


ALL_UNEQUAL = UNEQUAL | (WIDE if _by_avx512() else {})


def _unequal(name: str) -> Callable[[Path], Batch]:
    def run(where: Path) -> Batch:
        folder = where / name.replace(" ", "-")
        library = ctargets.shared(folder, *ALL_UNEQUAL[name])
        return _agree(0, REPLIES["short"], str(library))

    return run


PYTHON_RUNS = {"short": 3_000, "medium": 40_000, "long": 100_000}
PLANTED_PYTHON_RUNS = 40_000


def _python_step(where: Path, index: int, form: Form) -> Batch:
    return surface(where, index + 1, PYTHON_RUNS[form])


def _let_out(name: str) -> Callable[[Path], Batch]:
    def run(where: Path) -> Batch:
        folder = where / name.replace(" ", "-")
        changed = plant_python(folder / "text", *PYTHON[name])
        return surface(folder, 1, PLANTED_PYTHON_RUNS, changed)

    return run


def _no_atheris() -> str:
    found = importlib.util.find_spec("atheris")
    return "" if found else "needs atheris (pip install atheris==3.0.0)"


FIGURES = (
    Figure(
        number=10,
        name="fuzz c",
        unit="executions",
        claim="an access outside, undefined behaviour, or a wrong page accepted",
        steps=C_STEPS,
        step=_c_step,
        planted={name: _planted(name) for name in FAULTS},
        missing=ctargets.missing,
    ),
    Figure(
        number=10,
        name="fuzz python",
        unit="inputs",
        claim="an exception that is not its parser's own, a hang, an unbounded buffer",
        steps={"short": 1, "medium": 3, "long": 20},
        step=_python_step,
        planted={name: _let_out(name) for name in PYTHON},
        missing=_no_atheris,
    ),
    Figure(
        number=10,
        name="agreement",
        unit="replies",
        claim="another reason, place or page from C than from the Python reference",
        steps={"short": 1, "medium": 5, "long": 50},
        step=_agree_step,
        planted={name: _unequal(name) for name in ALL_UNEQUAL},
        missing=lambda: compiler.missing("gcc"),
    ),
)
