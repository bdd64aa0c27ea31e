"""Figure 13: aarch64, cross built: the test program, two emulators, the instructions.

qemu runs ARM's instructions on this machine, whose memory is totally ordered: what runs
there shows that the build is right and the logic holds, and never anything of memory
order. For that there is the gate of orders.py, which reads the instructions, and the
weak-memory search, which reads the text.
"""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from torture.compiler import missing
from torture.core import orders, program
from torture.figure import Batch, Figure, Form

ARM = program.Toolchain(("-O2",), program.AARCH64, ("-static",))
NATIVE = program.Toolchain(("-O0",))
CRC_ARM = 2  # enum pp3_crc_path
EFFORT = {"short": 1, "medium": 2, "long": 10}
ROUNDS = {"short": 200, "medium": 1000, "long": 20_000}
# Who makes the region, who takes its rounds. A region is the same on both machines.
PAIRS = (("aarch64", "aarch64"), ("x86-64", "aarch64"), ("aarch64", "x86-64"))
BUILDS = {
    "short": ("outline atomics", "armv8.1-a"),
    "medium": tuple(orders.BUILDS),
    "long": tuple(orders.BUILDS),
}


def arm(where: Path) -> Path:
    """The program for aarch64."""
    return program.build(where / "aarch64", ARM)


def native(where: Path) -> Path:
    """The program for this machine."""
    return program.build(where / "native", NATIVE)


def emulator() -> str:
    """The whole path of qemu, which a child of the program needs too."""
    for folder in os.environ["PATH"].split(os.pathsep):
        if (Path(folder) / program.QEMU).exists():
            return str(Path(folder) / program.QEMU)
    return program.QEMU


def both(here: program.Run, there: program.Run) -> str:
    """What differs between the runs of the two machines, or nothing."""
    if here.first or there.first:
        return f"x86-64: {here.first}; aarch64: {there.first}"
    if here.names != there.names or here.tests != there.tests:
        odd = sorted(set(here.names) ^ set(there.names))
        return f"{here.tests} tests here and {there.tests} there: {odd[:3]}"
    if there.crc_path != CRC_ARM:
        return f"CRC path {there.crc_path} on aarch64"
    return ""


def _program(where: Path, seed: int, form: Form, *skip: str) -> Batch:
    options = ("--seed", str(seed), "--effort", str(EFFORT[form]))
    here = program.run(native(where), *options)
    qemu = (emulator(),)
    under = (*options, "--emulator", *qemu, *skip)
    there = program.run(arm(where), *under, before=qemu)
    wrong = both(here, there)
    facts = {"max tests on x86-64": here.tests, "max tests on aarch64": there.tests}
    return Batch(there.tests, int(bool(wrong)), facts, wrong)


def _gate(where: Path, form: Form) -> Batch:
    held, wrong = 0, []
    for build in BUILDS[form]:
        if not shutil.which(orders.BUILDS[build][0]):
            continue
        number, faults = orders.gate(where, build)
        held += number
        wrong += [f"{build}: {fault}" for fault in faults]
    facts = {"instructions held against their order": held}
    return Batch(held, len(wrong), facts, wrong[0] if wrong else "")


def _ends(where: Path, machine: str) -> list[str]:
    return (
        [emulator(), str(arm(where))] if machine == "aarch64" else [str(native(where))]
    )


def pair(
    where: Path, machines: tuple[str, str], rounds: int, seeds: tuple[int, int]
) -> Batch:
    """Two processes over one memfd, futexes and a bell between them.

    Args:
        where: The figure's directory.
        machines: Of the engine and the proxy.
        rounds: How many go round.
        seeds: Of their patterns; two that differ must be noticed.

    Returns:
        Rounds, those whose bytes were wrong, sleeps.
    """
    commands = [_ends(where, machine) for machine in machines]
    shared, bell = os.memfd_create("pair"), os.eventfd(0, os.EFD_NONBLOCK)
    os.ftruncate(shared, 1 << 20)
    names = ("engine", "proxy")
    started = [
        subprocess.Popen(
            [*command, "--pair", name, str(shared), str(bell), str(rounds), str(seed)],
            pass_fds=(shared, bell), stdout=subprocess.PIPE, text=True,
        )
        for command, name, seed in zip(commands, names, seeds, strict=True)
    ]  # fmt: skip
    try:
        said = [end.communicate(timeout=program.PATIENCE)[0].split() for end in started]
    except subprocess.TimeoutExpired:
        return Batch(rounds, 1, {}, f"{machines}: hangs")
    finally:
        for end in started:
            end.kill()
            end.wait()
        os.close(shared)
        os.close(bell)
    if any(end.returncode for end in started) or [len(words) for words in said] != [
        4,
        2,
    ]:
        return Batch(
            rounds, 1, {}, f"{machines}: {[end.returncode for end in started]}"
        )
    done, bad, sleeps, lost = map(int, said[0])
    bad += int(said[1][1]) + (done != rounds)
    first = f"{machines}, seeds {seeds}: {said}" if bad else ""
    facts = {
        "rounds between two processes": done,
        "futex sleeps": sleeps,
        "lost wakes": lost,
    }
    return Batch(done, bad, facts, first)


def _step(where: Path, index: int, form: Form) -> Batch:
    if index == 0:
        return _gate(where, form)
    if index % 2:
        return _program(where, index // 2, form)
    machines = PAIRS[(index // 2 - 1) % len(PAIRS)]
    return pair(where, machines, ROUNDS[form], (index, index))


def _missed_order(plant: orders.Plant) -> Callable[[Path], Batch]:
    def run_it(where: Path) -> Batch:
        wrong = orders.planted(where, plant)
        return Batch(1, len(wrong), {}, wrong[0] if wrong else "")

    return run_it


def _missing_test(where: Path) -> Batch:
    """A test that is left out on one of the two."""
    return _program(where, 0, "short", "--skip", "the clock goes on")


def _wrong_bytes(where: Path) -> Batch:
    """Two ends that disagree about every byte but the ticket's."""
    return pair(where, PAIRS[0], 3, (1, 2))


FIGURE = Figure(
    number=13,
    name="aarch64",
    unit="tests, instructions and rounds",
    claim="another number of tests than on x86-64, a torn round between two emulators, "
    "or an instruction that orders less than the text says",
    steps={"short": 3, "medium": 7, "long": 43},
    step=_step,
    planted={
        **{plant.name: _missed_order(plant) for plant in orders.PLANTS},
        "a test missing on one machine": _missing_test,
        "two ends that disagree about bytes": _wrong_bytes,
    },
    missing=lambda: missing("gcc", program.AARCH64, program.QEMU),
    random=False,
)
