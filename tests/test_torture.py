"""The short form of every figure of docs/reliability.md, and its planted faults."""

import os
from functools import cache, partial
from itertools import starmap

import pytest
from torture.figure import FORMS, Figure, digest, figures, together
from torture.parallel import Ahead, Cores

# They run beside each other: on a busy machine one waits long for what comes before it.
pytestmark = pytest.mark.timeout(900)
FIGURES = figures()
PLANTED = [(figure, fault) for figure in FIGURES for fault in figure.planted]


@cache
def _reason_to_skip(name: str) -> str:
    # Where every tool has to be there, as in CI, a missing one is no reason to skip.
    if os.environ.get("PP3_ALL_TOOLS"):
        return ""
    return next(figure for figure in FIGURES if figure.name == name).missing()


def _short(figure: Figure, where):
    runs = [(where, index, "short") for index in range(figure.steps["short"])]
    return together(list(starmap(figure.step, runs)))


def _chosen(session):
    """Figure and fault, or no fault, of each test here that was selected."""
    for item in session.items:
        if item.path.samefile(__file__) and hasattr(item, "callspec"):
            figure = item.callspec.params["figure"]
            fault = item.callspec.params.get("fault", "")
            if (fault or figure.steps["short"]) and not _reason_to_skip(figure.name):
                yield figure, fault


@pytest.fixture(scope="module")
def ahead(request, tmp_path_factory):
    """All of it, the figures beside each other; a directory of its own for each."""
    chains = {figure.name: {} for figure in FIGURES}
    for figure, fault in _chosen(request.session):
        job = figure.planted[fault] if fault else partial(_short, figure)
        chains[figure.name][figure.name, fault] = job
    running = Ahead(Cores())
    for figure in FIGURES:
        place = tmp_path_factory.mktemp(figure.name.replace(" ", "-"))
        chain = {key: partial(job, place) for key, job in chains[figure.name].items()}
        running.put(chain, figure.cores)
    yield running
    running.close()


@pytest.mark.slow
@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_no_try_of_the_short_form_is_bad(figure, ahead):
    """What is claimed holds; see the figure's folder for how it is tried."""
    if not figure.steps["short"]:
        pytest.skip("has a test file of its own: test_ring_weak_memory.py")
    if missing := _reason_to_skip(figure.name):
        pytest.skip(missing)
    total = ahead.result((figure.name, ""))
    print(f"{figure.name}: {total.tried} {figure.unit}, {total.bad} bad, {total.facts}")
    assert total.bad == 0, total.first
    assert total.tried > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("figure", "fault"), PLANTED, ids=[f"{f.name}-{fault}" for f, fault in PLANTED]
)
def test_the_planted_fault_is_found(figure, fault, ahead):
    """A harness that was not shown to fail proves nothing."""
    if missing := _reason_to_skip(figure.name):
        pytest.skip(missing)
    assert ahead.result((figure.name, fault)).bad > 0


def test_figures_have_names_of_their_own_and_grow_with_the_form():
    """The command names a figure; a longer form is no shorter."""
    assert len({figure.name for figure in FIGURES}) == len(FIGURES)
    for figure in FIGURES:
        counts = [figure.steps[form] for form in FORMS]
        assert counts == sorted(counts)
        assert figure.planted
        assert len(digest(figure)) == 16
