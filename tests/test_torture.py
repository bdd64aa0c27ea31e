"""The short form of every figure of docs/reliability.md, and its planted faults."""

import os
from itertools import starmap

import pytest
from torture.figure import FORMS, Figure, digest, figures, together

FIGURES = figures()
PLANTED = [(figure, fault) for figure in FIGURES for fault in figure.planted]


def _needed(figure: Figure) -> None:
    # Where every tool has to be there, as in CI, a missing one is no reason to skip.
    missing = figure.missing()
    if missing and not os.environ.get("PP3_ALL_TOOLS"):
        pytest.skip(missing)


@pytest.fixture(scope="module")
def where(tmp_path_factory):
    """A directory of its own for each figure, shared by its steps and faults."""
    made = {}

    def directory(figure):
        if figure.name not in made:
            made[figure.name] = tmp_path_factory.mktemp(figure.name.replace(" ", "-"))
        return made[figure.name]

    return directory


@pytest.mark.slow
@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_no_try_of_the_short_form_is_bad(figure, where):
    """What is claimed holds; see the figure's folder for how it is tried."""
    if not figure.steps["short"]:
        pytest.skip("has a test file of its own: test_ring_weak_memory.py")
    _needed(figure)
    runs = [(where(figure), index, "short") for index in range(figure.steps["short"])]
    total = together(list(starmap(figure.step, runs)))
    print(f"{figure.name}: {total.tried} {figure.unit}, {total.bad} bad, {total.facts}")
    assert total.bad == 0, total.first
    assert total.tried > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("figure", "fault"), PLANTED, ids=[f"{f.name}-{fault}" for f, fault in PLANTED]
)
def test_the_planted_fault_is_found(figure, fault, where):
    """A harness that was not shown to fail proves nothing."""
    _needed(figure)
    assert figure.planted[fault](where(figure)).bad > 0


def test_figures_have_names_of_their_own_and_grow_with_the_form():
    """The command names a figure; a longer form is no shorter."""
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
    for figure in FIGURES:
        counts = [figure.steps[form] for form in FORMS]
        assert counts == sorted(counts)
        assert figure.planted
        assert len(digest(figure)) == 16
