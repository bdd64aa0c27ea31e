"""Prints the table of scenes and the table of mutants: `make weak-memory`."""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from relacy import mutate, search

MOST = 30_000_000  # executions of a complete search, then it is given up
RANDOM = 1_000_000


def _scene(program: Path, scene: str) -> list[search.Outcome]:
    found = [search.run(program, scene, "full", MOST)]
    if found[0].outcome != "complete":
        found.append(search.run(program, scene, "random", RANDOM))
    return found


def scenes(directory: Path) -> Iterator[bool]:
    """Searches every scene, completely where it ends.

    Args:
        directory: Where to compile.

    Yields:
        Whether a scene was clean.
    """
    program = search.build(directory, switched=False)
    names = search.scenes(program)
    complete = total = 0
    print("scene | search | executions | outcome | what happened")
    for outcomes in search.in_parallel(lambda scene: _scene(program, scene), names):
        for o in outcomes:
            print(o.scene, o.mode, o.executions, o.outcome, o.events, sep=" | ")
            total += o.executions
            complete += o.executions if o.outcome == "complete" else 0
            yield o.clean
    print(f"{complete} executions in complete searches, {total} in all; seeds from 1\n")


def mutants(directory: Path) -> Iterator[bool]:
    """Hunts every mutant.

    Args:
        directory: Where to compile.

    Yields:
        Whether a mutant was refuted or, being equivalent, was not.
    """
    program = search.build(directory, switched=True)
    plan = search.hunting_plan(search.scenes(program), *search.HUNT)
    print("mutant | outcome")
    every = mutate.mutants()
    hunted = search.in_parallel(lambda m: search.hunt(program, m, plan), every)
    for mutant, o in zip(every, hunted, strict=True):
        argument = mutate.EQUIVALENT.get(mutant.name)
        if o is not None:
            how = f"{o.outcome} in {o.scene}, {o.mode} execution {o.executions}"
        else:
            how = f"equivalent: {argument}" if argument else "ALIVE"
        print(mutant.name, how, sep=" | ")
        yield (o is None) == (argument is not None)
    refuted = sum(o is not None for o in hunted)
    print(f"{len(every)} mutants, {refuted} refuted")


def main() -> int:
    """Prints both tables; 1 where something was not as it has to be."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        right = [*scenes(Path(directory)), *mutants(Path(directory))]
    print(f"{time.monotonic() - begin:.0f} s, {right.count(False)} bad")
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
