"""Figure 5: SIGKILL at every instruction.

`sweep` is a C program over the package's own headers and sources. It single-steps a
victim through an operation and kills it at each point; see sweep.h. A scene is an
operation in a state of the ring; a surrounding says who is alive beside the victim.
"""

import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from torture import compiler
from torture.figure import CORE, Batch, Fact, Figure, Form, together
from torture.sweep.faults import Fault, Run, copy, read

HERE = Path(__file__).resolve().parent
COMBINATIONS = 259  # of scenes, surroundings, and a sleeper or none
PARTS = ("ring/ring", "ring/atomics", "ring/slots", "ring/note")
FLAGS = ("-O3", "-static", "-Wl,--wrap=pp3_now,--wrap=pp3_futex_wait", f"-I{HERE}")
STEPS: dict[Form, int] = {"short": 1, "medium": 20, "long": COMBINATIONS}
STRIDES: dict[Form, int] = {"short": 200, "medium": 12, "long": 1}
LIMIT_S = 1800
# The C library clears memory by one instruction that steps as thousands: not that one.
VECTORS = ":".join(
    f"glibc.cpu.x86_rep_{name}_threshold=100000000" for name in ("stosb", "movsb")
)
ENDS = ("published", "expired", "orphaned", "cancelled")
_building = threading.Lock()
_built: dict[Path, Path] = {}


def _program(where: Path, *, planted: bool) -> Path:
    target = where / ("planted" if planted else "sweep")
    with _building:
        if target not in _built:
            base = copy(where / "text") if planted else CORE
            sources = [*sorted(HERE.glob("*.c")), *(base / f"{p}.c" for p in PARTS)]
            flags = (*FLAGS, "-DPLANTED") if planted else FLAGS
            _built[target] = compiler.build(target, sources, *flags, include=base)
    return _built[target]


def _kill(program: Path, run: Run, *, planted: int = 0) -> Batch:
    command = [str(program), *run.arguments()]
    try:
        done = subprocess.run(
            command,
            env={"PLANTED": str(planted), "GLIBC_TUNABLES": VECTORS},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
        return Batch(1, 1, {}, f"{' '.join(command)}: {error}")
    found = json.loads(done.stdout)
    facts: dict[str, Fact] = {f"rounds {name}": found[name] for name in ENDS}
    facts["max instructions of an operation"] = found["instructions"]
    facts[f"killed as {found['role']}"] = found["tried"]
    return Batch(found["tried"], found["bad"], facts, found["first"])


def combinations(program: Path) -> list[Run]:
    """Every scene in each of its surroundings, with and without a sleeper."""
    done = subprocess.run(
        [str(program), "list"], capture_output=True, text=True, check=True
    )
    found = []
    for line in done.stdout.splitlines():
        name, _, sleeps, surroundings = line.split("\t")
        for number in map(int, surroundings.split()):
            found.append(Run(name, number))
            if sleeps == "1" and number < 3:  # not beside a stopped victim
                found.append(Run(name, number, sleeper=True))
    if len(found) != COMBINATIONS:
        raise RuntimeError(f"expected {COMBINATIONS} combinations, found {len(found)}")
    return found


def _sweep(where: Path, index: int, form: Form) -> Batch:
    program = _program(where, planted=False)
    stride = STRIDES[form]
    runs = combinations(program)[index :: STEPS[form]]
    batches = [
        # other points in each surrounding: together they cover more of an operation
        _kill(program, replace(run, first=number * 37 % stride, stride=stride))
        for number, run in enumerate(runs)
    ]
    total = together(batches)
    facts = {**total.facts, "operations in their surroundings": len(runs)}
    return Batch(total.tried, total.bad, facts, total.first)


def _planted(fault: Fault, where: Path) -> Batch:
    found = _kill(_program(where, planted=True), fault.run, planted=fault.number)
    if fault.control:  # what it takes away is repaired by what is still there
        return Batch(1, int(found.bad == 0), {}, found.first)
    return found


_PLANTED: dict[str, Callable[[Path], Batch]] = {
    fault.name: partial(_planted, fault) for fault in read()
}

FIGURES = (
    Figure(
        number=5,
        name="kill at every instruction",
        unit="kill points",
        claim="a torn, lost, doubled or stuck round, a page or a descriptor not back",
        steps=STEPS,
        step=_sweep,
        planted=_PLANTED,
        missing=partial(compiler.missing, "gcc"),
        random=False,
    ),
)
