"""Figure 12: the test program under ThreadSanitizer, ASan with UBSan, and MSan.

All threads use one mapping of a region. ThreadSanitizer knows memory by its address, so
a race between two views of one memory is none to it; `--views 2` gives every end a view
of its own, and the planted race is then silent.
"""

import dataclasses
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from torture.compiler import THREADS, missing
from torture.core import program
from torture.figure import Batch, Figure, Form

# -O0 compiles three times as fast, and hides no access from the sanitizer.
ADDRESS = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BUILDS = {
    "gcc thread": program.Toolchain(THREADS),
    "gcc address": program.Toolchain(ADDRESS),
    "clang address": program.Toolchain(ADDRESS, "clang"),
    "clang thread": program.Toolchain(("-O1", "-fsanitize=thread"), "clang"),
    "clang memory": program.Toolchain(("-O0", "-fsanitize=memory"), "clang"),
}
# A step is one build with one seed: the first two in the short form, all that there is
# a compiler for in the others.
SHORT = 2
EFFORT = {"short": 1, "medium": 2, "long": 20}
# A fixed layout, which ThreadSanitizer's shadow memory wants.
FIXED = ("setarch", "-R")
THREAD_TESTS = "rounds go round between threads"
SEGV = "AddressSanitizer: SEGV"  # where a row ends, so does memory: rows.h
OPTIONS = {"TSAN_OPTIONS": "halt_on_error=1"}

# Places of the text that are switched: file, what stands there, what is planted.
FAULTS = (
    (
        "layout/accept.c",
        "frame_bytes < FRAME_HEAD + BODY_HEAD",
        "(!planted && frame_bytes < FRAME_HEAD + BODY_HEAD)",
    ),
    (
        "proposal/draft.c",
        "best = i;\n        count[best]++;",
        "best = i;\n        count[planted ? PP3_SUPPORT_MAX : best]++;",
    ),
    (
        "layout/step.c",
        "row.slot >= l->max_slots || (seen",
        "(!planted && row.slot >= l->max_slots) || (seen",
    ),
    (
        "verify/weights.c",
        "for (size_t i = 0; i < n; i++)\n        x[i] = bias",
        "for (size_t i = 0; i < (planted ? 4 : n); i++)\n        x[i] = bias",
    ),
    (
        "verify/sparse.c",
        "(uint32_t)s->ids[n] >= b->vocab)",
        "(!planted && (uint32_t)s->ids[n] >= b->vocab))",
    ),
)
SHARED = (
    "verify/sparse.c",
    "(char *)scratch + i * pp3_verify_scratch",
    "(char *)scratch + (planted ? 0 : i) * pp3_verify_scratch",
)


def _missing() -> str:
    if absent := missing("gcc", "setarch"):
        return absent
    for flag in ("thread", "address,undefined"):
        probe = ["gcc", f"-fsanitize={flag}", "-xc", "-", "-o", os.devnull]
        if subprocess.run(probe, input=b"int main(void){}", check=False).returncode:
            return f"needs gcc's library for -fsanitize={flag}"
    return ""


def built(where: Path, name: str) -> Path:
    """The program under one sanitizer.

    Args:
        where: The figure's directory.
        name: Of BUILDS.

    Returns:
        The program.
    """
    return program.build(where / name.replace(" ", "-"), BUILDS[name])


def switched(where: Path) -> Path:
    """The same for threads, with a switch at every order of the threads' own text."""
    built(where, "gcc thread")
    tools = BUILDS["gcc thread"]
    tools = dataclasses.replace(tools, flags=(*tools.flags, "-DSWITCHED"))
    changed = [program.HERE / "thread_tests.c"]
    return program.variant(where / "gcc-thread", where / "switched", changed, tools)


def run(core: Path, name: str, *arguments: str) -> program.Run:
    """One run under the sanitizer of its build."""
    before = FIXED if "thread" in name else ()
    return program.run(core, *arguments, before=before, environment=OPTIONS)


def _step(where: Path, index: int, form: Form) -> Batch:
    names = [name for name, tools in BUILDS.items() if shutil.which(tools.compiler)]
    names = names[: SHORT if form == "short" else None]
    name = names[index % len(names)]
    seed = index // len(names)
    options = ("--seed", str(seed), "--effort", str(EFFORT[form]))
    done = run(built(where, name), name, *options)
    first = f"{name}, seed {seed}: {done.first}" if done.first else ""
    facts = {f"{name} runs": 1, "tests": done.tests}
    return Batch(done.tries, int(bool(first)), facts, first)


def _race(plant: int) -> Callable[[Path], Batch]:
    def run_it(where: Path) -> Batch:
        options = ("--only", THREAD_TESTS, "--plant", str(plant))
        done = run(switched(where), "gcc thread", *options)
        seen = "data race" in done.output
        return Batch(1, int(seen), {}, program.report(done.output))

    return run_it


def _hidden(where: Path) -> Batch:
    """The race that one view shows is hidden by two: hence one, everywhere else."""
    options = ("--only", THREAD_TESTS, "--plant", "2", "--views")
    one = run(switched(where), "gcc thread", *options, "1")
    two = run(switched(where), "gcc thread", *options, "2")
    seen = "data race" in one.output and "data race" not in two.output
    return Batch(1, int(seen), {}, program.report(two.output))


def _shared(where: Path) -> Batch:
    """Threads of a verification that share their scratch."""
    built(where, "gcc thread")
    text = program.copy(where / "thread-text")
    program.replace(text, *SHARED)
    tools = dataclasses.replace(BUILDS["gcc thread"], core=text)
    changed = [text / SHARED[0]]
    core = program.variant(where / "gcc-thread", where / "shared", changed, tools)
    # Two threads have to take a request each, sooner or later.
    options = ("--only", "any number of threads", "--effort", "20", "--plant", "1")
    done = run(core, "gcc thread", *options)
    return Batch(1, int("data race" in done.output), {}, program.report(done.output))


def _planted_copy(where: Path) -> Path:
    built(where, "gcc address")
    target = where / "planted"
    text = where / "text"
    program.copy(text)
    for file, old, new in FAULTS:
        program.replace(text, file, old, new)
    tools = dataclasses.replace(BUILDS["gcc address"], core=text)
    changed = [text / file for file, _, _ in FAULTS]
    return program.variant(where / "gcc-address", target, changed, tools)


def _fault(tests: str, word: str) -> Callable[[Path], Batch]:
    def run_it(where: Path) -> Batch:
        core = _planted_copy(where)
        done = run(core, "gcc address", "--only", tests, "--plant", "1")
        return Batch(1, int(word in done.output), {}, program.report(done.output))

    return run_it


PLANTED: dict[str, Callable[[Path], Batch]] = {
    "swaps that order nothing": _race(1),
    "stores that order nothing": _race(2),
    "loads that order nothing": _race(3),
    "a race seen through one view and hidden by two": _hidden,
    "a reply read beyond its end": _fault(
        "a late reply is told", "heap-buffer-overflow"
    ),
    "a count written beyond its array": _fault(
        "known proposals are made", "stack-buffer-overflow"
    ),
    "a shift by a peer's number": _fault("every bad field of a step", "shift exponent"),
    "a row read beyond its tail": _fault(
        "weights are powers", "AddressSanitizer: SEGV"
    ),
    "a support id that is not checked": _fault("a support is checked", SEGV),
    "threads that share their scratch": _shared,
}

FIGURE = Figure(
    number=12,
    name="sanitizers",
    unit="tests and drawn tries",
    claim="a report of a sanitizer, or a test that fails",
    steps={"short": SHORT, "medium": 10, "long": 60},
    step=_step,
    planted=PLANTED,
    missing=_missing,
)
