"""A short form of `make qualify`: what every engine emits has the target's law."""

import numpy as np
import pytest
from qualify import controls, engines, judge
from qualify.families import FAMILIES, M, pair
from qualify.run import ALPHA, NOTICED, Journal, qualify, unnoticed
from scipy import stats

from pp3shm.rng import words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "vocabs", "scale"),
    [
        ("c", (32, 33, 8193), 0.02),
        ("c", (151_936,), 0.001),
        ("torch", (33,), 0.005),
        ("triton", (64,), 0.005),
    ],
)
def test_every_family_is_emitted_with_the_targets_law(engine, vocabs, scale):
    """Chi-square and two-sided acceptance, corrected for their number."""
    every = qualify(scale, [engine], vocabs, threads=1)
    assert len(every) == 3 * len(FAMILIES) * len(vocabs)
    assert min(j.adjusted for j in every) > ALPHA


@pytest.mark.slow
def test_every_wrong_verifier_is_noticed():
    """One by one; what a test cannot fail at it does not show."""
    found = dict(unnoticed())
    assert len(found) == 9
    assert {name: p for name, p in found.items() if p >= NOTICED} == {}


def test_the_engine_passes_where_the_controls_fail():
    where = controls.pair_of("a stale row of q")
    out = controls.sound(where, 0, 100_000)
    seen = np.bincount(out.first, minlength=where.vocab)
    assert judge.chi_square(seen, where.p) > ALPHA


def test_a_run_that_ended_early_goes_on_with_what_it_found(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "journal.jsonl"
    whole = qualify(0.001, ["c"], (33,), 1, Journal(path, "a text"))
    *kept, last = path.read_text().splitlines(keepends=True)
    path.write_text("".join(kept))
    asked = []
    run = engines.run
    monkeypatch.setattr(engines, "run", lambda *a: asked.append(a[2]) or run(*a))
    assert qualify(0.001, ["c"], (33,), 1, Journal(path, "a text")) == whole
    assert asked == [len(FAMILIES) - 1]
    assert path.read_text() == "".join([*kept, last])


@pytest.mark.parametrize("changed", ["text", "scale", "seed"])
def test_what_was_found_otherwise_is_found_again(changed, tmp_path, monkeypatch):
    path = tmp_path / "journal.jsonl"
    qualify(0.001, ["c"], (33,), 1, Journal(path, "a text"))
    if changed == "seed":
        monkeypatch.setattr("qualify.run.SEED", 1)
    journal = Journal(path, "another" if changed == "text" else "a text")
    qualify(0.002 if changed == "scale" else 0.001, ["c"], (33,), 1, journal)
    assert len(path.read_text().splitlines()) == 2 * len(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("vocab", [32, 33, 513])
def test_families_are_what_they_say(name, vocab):
    one = pair(name, vocab, 3)
    assert one.counts.sum() == M
    assert abs(one.p.sum() - 1) < 1e-12
    assert (np.diff(one.ids) > 0).all()
    assert 0 <= one.ids[0]
    assert one.ids[-1] < vocab
    assert (one.accepted == 0) == (name == "disjoint")
    assert name != "near" or one.accepted > 0.999


def test_many_philox_words_are_the_single_ones():
    found = engines.philox((7, 2**32 - 1), 2**40 + 3, 2**32 - 2, 5)
    for i, row in enumerate(found):
        assert tuple(row) == words((7, 2**32 - 1), 2**40 + 3, 2**32 - 2 + i)[:2]


def test_holms_correction_is_that_of_its_definition():
    given = [0.01, 0.04, 0.03, 0.005]
    assert judge.holm(given) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_chi_square_pools_what_is_rare_and_refuses_the_impossible():
    p = np.array([0.5, 0.5 - 1e-6, 1e-6, 0.0])
    seen = np.array([5000, 5000, 1, 0])
    pooled = stats.chisquare([5000, 5001], [5000.5, 5000.5]).pvalue
    assert judge.chi_square(seen, p) == pytest.approx(pooled, rel=1e-3)
    assert judge.chi_square(np.array([5000, 5000, 0, 1]), p) == 0
