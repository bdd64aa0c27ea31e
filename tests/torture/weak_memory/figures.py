"""Figures 1 and 2: the ring's text under Relacy, and every mutant of it.

The searches are those of tests/relacy; see docs/proof.md. `tests/test_ring_weak_memory`
is their short form and stands alone, so the short form here has no step.
"""

import hashlib
import threading
from pathlib import Path

from relacy import mutate, search
from torture.figure import Batch, Figure, Form

MOST = {"medium": 300_000, "long": 30_000_000}  # of a complete search, then given up
RANDOM = {"medium": 50_000, "long": 1_000_000}
SCENES = 33
MUTANTS = mutate.mutants()
HUNTS = {"medium": search.HUNT[:2], "long": search.HUNT}
_building = threading.Lock()


def _program(where: Path, *, switched: bool) -> Path:
    """Built once for each text: the directory outlives a change of it."""
    texts = [*mutate.RING.glob("*.[ch]"), *search.HERE.iterdir()]
    total = hashlib.sha256()
    for path in sorted(path for path in texts if path.is_file()):
        total.update(path.read_bytes())
    place = where / total.hexdigest()[:16]
    with _building:
        place.mkdir(parents=True, exist_ok=True)
        program = place / ("mutants" if switched else "scenes")
        return program if program.exists() else search.build(place, switched=switched)


def _scene(where: Path, index: int, form: Form) -> Batch:
    program = _program(where, switched=False)
    names = search.scenes(program)
    if len(names) != SCENES:
        raise RuntimeError(f"scenes: expected {SCENES}, found {len(names)}")
    found = [search.run(program, names[index], "full", MOST[form])]
    complete = found[0].outcome == "complete"
    if not complete:
        found.append(search.run(program, names[index], "random", RANDOM[form]))
    facts = {
        "in complete searches": found[0].executions if complete else 0,
        "complete scenes": int(complete),
    }
    wrong = [outcome for outcome in found if not outcome.clean]
    tried = sum(outcome.executions for outcome in found)
    return Batch(tried, len(wrong), facts, str(wrong[0]) if wrong else "")


def _mutant(where: Path, index: int, form: Form) -> Batch:
    mutant = MUTANTS[index]
    program = _program(where, switched=True)
    plan = search.hunting_plan(search.scenes(program), *HUNTS[form])
    outcome = search.hunt(program, mutant, plan)
    equivalent = mutant.name in mutate.EQUIVALENT
    facts = {"refuted": int(outcome is not None), "argued equivalent": int(equivalent)}
    wrong = (outcome is None) != equivalent
    return Batch(1, int(wrong), facts, mutant.name if wrong else "")


def _planted_order(where: Path) -> Batch:
    """A scene with a release store that does not release."""
    program = _program(where, switched=True)
    mutant = next(m for m in MUTANTS if m.name.startswith("pp3_release: STORE"))
    outcome = search.run(program, "next", "random", 30_000, *mutant.switch)
    return Batch(outcome.executions, int(outcome.refutes), {}, str(outcome))


def _planted_equivalent(where: Path) -> Batch:
    """The text itself, hunted as if it were a mutant: nothing may refute it."""
    program = _program(where, switched=True)
    outcome = search.run(program, "next", "random", 3_000)
    return Batch(1, int(not outcome.refutes), {}, str(outcome))


FIGURES = (
    Figure(
        number=1,
        name="weak memory",
        unit="executions",
        claim="a race, a second outcome, a torn byte, a lost page or a lost wake",
        steps={"short": 0, "medium": SCENES, "long": SCENES},
        step=_scene,
        planted={"a release that does not": _planted_order},
        missing=search.missing,
        random=False,
    ),
    Figure(
        number=2,
        name="planted faults",
        unit="mutants",
        claim="a mutant that lives and has no argument why it may",
        steps={"short": 0, "medium": len(MUTANTS), "long": len(MUTANTS)},
        step=_mutant,
        planted={"a text without a fault": _planted_equivalent},
        missing=search.missing,
        random=False,
    ),
)
