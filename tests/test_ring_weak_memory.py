"""The protocol's own text under Relacy, which tries what C11's memory model allows.

A quick form: `make weak-memory` searches further. See docs/proof.md.
"""

import os
from pathlib import Path

import pytest
from relacy import mutate, search

# Where every tool has to be there, as in CI, a missing one is no reason to skip.
MISSING = "" if os.environ.get("PP3_ALL_TOOLS") else search.missing()
pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

MUTANTS = {mutant.name: mutant for mutant in mutate.mutants()}
# In a row they are tried; whoever lives through all of them is not refuted here.
QUICK_HUNT = (("random", 3_000), ("random", 30_000))
MOST = 200_000  # executions of a complete search, then it is given up
RANDOM = 50_000
COMPLETE = {"round", "next", "laps", "nobody", "stale", "cancel", "wake", "bell"}
COMPLETE |= {"nudge", "orphan", "owner", "owner thread", "early"}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return search.build(tmp_path_factory.mktemp("scenes"), switched=False)


@pytest.fixture(scope="module")
def switched(tmp_path_factory):
    return search.build(tmp_path_factory.mktemp("mutants"), switched=True)


def _search(program: Path, scene: str) -> list[search.Outcome]:
    full = search.run(program, scene, "full", MOST)
    if full.outcome == "complete":
        return [full]
    return [full, search.run(program, scene, "random", RANDOM)]


@pytest.mark.slow
def test_no_scene_has_a_forbidden_outcome(program):
    """No race, second outcome, torn byte, lost wake or lost page; and none is idle."""
    found = search.in_parallel(
        lambda scene: _search(program, scene), search.scenes(program)
    )
    every = [outcome for outcomes in found for outcome in outcomes]
    for outcome in every:
        print(outcome)
    assert [outcome for outcome in every if not outcome.clean] == []
    assert {o.scene for o in every if o.outcome == "complete"} >= COMPLETE


@pytest.mark.slow
def test_every_weakened_order_and_every_planted_fault_is_refuted(switched):
    """One at a time; those that are equivalent are named with their argument."""
    plan = search.hunting_plan(search.scenes(switched), *QUICK_HUNT)
    names = [name for name in MUTANTS if name not in mutate.EQUIVALENT]
    hunted = search.in_parallel(
        lambda name: search.hunt(switched, MUTANTS[name], plan), names
    )
    for name, outcome in zip(names, hunted, strict=True):
        print(name, outcome, sep=": ")
    alive = [name for name, outcome in zip(names, hunted, strict=True) if not outcome]
    assert alive == []


def test_every_equivalent_order_is_one_of_the_text():
    """Who names a mutant that is no more has to look at its argument again."""
    assert set(mutate.EQUIVALENT) <= set(MUTANTS)


def test_the_switched_copy_is_the_text_while_nothing_is_switched(switched, program):
    """The same executions, hence the same choices at every step."""
    for scene in ("laps", "wake", "orphan", "owner"):
        assert search.run(switched, scene, "full") == search.run(program, scene, "full")
