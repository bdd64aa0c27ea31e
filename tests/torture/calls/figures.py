"""Figure 5, at the Python level: SIGKILL at every system call of making and attaching.

Where a region is made, handed over, attached to and closed, the steps are calls of the
kernel: between two of them nothing changes that anybody else can see. A child under
ptrace is killed at the entry and at the exit of each of them.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torture.calls.faults import FAULTS
from torture.calls.scenes import SCENES
from torture.figure import Batch, Fact, Figure, Form, together

HERE = Path(__file__).resolve().parent
KINDS = ("memfd", "posix")
RUNS = [
    (scene, kind)
    for scene in SCENES
    for kind in KINDS
    if (scene, kind) != ("attach by name", "memfd")  # which has no name
]
STEPS: dict[Form, int] = {"short": 1, "medium": 4, "long": len(RUNS)}
STRIDES: dict[Form, int] = {"short": 40, "medium": 4, "long": 1}
SLOW = 10  # times: a whole engine starts a process, which takes long
LIMIT_S = 3600


def _kill(scene: str, kind: str, first: int, stride: int, plant: str = "") -> Batch:
    command = [sys.executable, str(HERE / "kills.py"), scene, kind, str(first)]
    command += [str(stride), *([plant] if plant else [])]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return Batch(1, 1, {}, f"{scene}, {kind}: {error}")
    if done.returncode:
        raise RuntimeError(f"{scene}, {kind}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    facts: dict[str, Fact] = dict(found["outcomes"])
    facts["max system calls of an operation"] = found["stops"] // 2
    first_bad = f"{scene}, {kind}: {found['first']}" if found["first"] else ""
    return Batch(found["tried"], found["bad"], facts, first_bad)


def _runs(index: int, form: Form) -> list[tuple[str, str]]:
    if form == "short":  # of each scene one kind of region
        return [(scene, kind) for scene, kind in RUNS if kind == "posix"]
    return RUNS[index :: STEPS[form]]


def _step(where: Path, index: int, form: Form) -> Batch:
    del where
    stride = STRIDES[form]
    batches = []
    for number, (scene, kind) in enumerate(_runs(index, form)):
        every = stride * SLOW if scene == "a whole engine" and stride > 1 else stride
        batches.append(_kill(scene, kind, (number + index) * 7 % stride, every))
    return together(batches)


def _planted(name: str, where: Path) -> Batch:
    del where
    fault = FAULTS[name]
    return _kill(fault.scene, fault.kind, 0, fault.stride, name)


_PLANTED: dict[str, Callable[[Path], Batch]] = {
    name: partial(_planted, name) for name in FAULTS
}

FIGURES = (
    Figure(
        number=5,
        name="kill at every system call",
        unit="kill points",
        claim="a name, descriptor, process or mapping left, a survivor stuck or misled",
        steps=STEPS,
        step=_step,
        planted=_PLANTED,
        random=False,
    ),
)
