"""Proposals: the C core and the readable reference are the same function."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pp3shm._core import lib
from pp3shm.conformance.numbers import FORMATS
from pp3shm.errors import ConfigError, ProposalError
from pp3shm.proposal import reference
from pp3shm.proposal.proposal import propose_draw24, propose_row
from pp3shm.rng import draw24

VECTORS = Path(__file__).parent / "vectors"
PATHS = {0: "portable", 1: "avx2", 2: "avx512"}
M = 2**24


@pytest.fixture(params=PATHS, ids=PATHS.get)
def path(request):
    """Each way to scan that this CPU has."""
    if lib.pp3_scan_force(request.param):
        pytest.skip("this build or CPU lacks it")
    yield request.param
    lib.pp3_scan_force(-1)


def test_the_best_path_is_chosen_and_unknown_ones_are_refused():
    usable = [path for path in PATHS if not lib.pp3_scan_force(path)]
    lib.pp3_scan_force(-1)
    assert lib.pp3_scan_path() == max(usable)
    assert lib.pp3_scan_force(len(PATHS)) < 0
    assert lib.pp3_scan_path() == max(usable)


@pytest.mark.parametrize("stem", ["proposals", "proposals_refused"])
@pytest.mark.usefixtures("path")
def test_every_known_answer_comes_out(stem):
    cases = json.loads((VECTORS / f"{stem}.json").read_text())["cases"]
    assert cases
    for case in cases:
        FORMATS[stem](case, None)


def bf16(row):
    return (row.view(np.uint32) & 0xFFFF0000).view(np.float32)


SHAPES = {
    "normal": lambda g, v: g.normal(0, 3, v),
    "bf16 ties": lambda g, v: bf16(g.normal(0, 3, v).astype(np.float32)),
    "constant": lambda g, v: np.full(v, g.normal()),
    "ascending": lambda g, v: np.sort(g.normal(0, 3, v)),
    "descending": lambda g, v: -np.sort(g.normal(0, 3, v)),
    "two values": lambda g, v: g.integers(0, 2, v),
    "zeros of both signs": lambda g, v: g.choice([0.0, -0.0], v),
    "signs of zero among few": lambda g, v: g.choice([0.0, -0.0, -1.0, 1e-45], v),
    "few finite": lambda g, v: np.where(
        g.random(v) < 8 / v, g.normal(0, 3, v), -np.inf
    ),
    "masked": lambda g, v: np.where(g.random(v) < 0.5, g.normal(0, 3, v), -np.inf),
    "huge": lambda g, v: np.clip(g.normal(0, 1, v) * 1e38, -3e38, 3e38),
    "subnormal": lambda g, v: g.normal(0, 1, v) * 1e-40,
    "one block": lambda _g, v: np.where(np.arange(v) // 512 == v // 1024, 9.0, -9.0),
    "top of each block": lambda g, v: np.where(
        np.arange(v) % 512 == 511, 5.0, g.random(v)
    ),
    "dominating": lambda g, v: np.where(
        np.arange(v) == v - 1, 400.0, g.normal(0, 3, v)
    ),
}
VOCABS = (32, 33, 63, 111, 511, 512, 513, 1025, 8191, 20001)


def agree(logits, draw, **options):
    """The reference's and the core's answer, found equal to the bit."""
    shown, at = reference.propose(logits, draw, **options)
    drawn = propose_draw24(logits, draw, **options)
    assert shown.ids.tolist() == drawn.ids.tolist()
    assert shown.q.view(np.uint32).tolist() == drawn.q.view(np.uint32).tolist()
    assert (shown.ids[at], shown.q[at]) == (drawn.token, drawn.confidence)
    return shown, drawn


@pytest.mark.parametrize("shape", SHAPES)
@settings(derandomize=True, deadline=None, max_examples=20)
@given(
    seed=st.integers(0, 2**32 - 1),
    vocab=st.sampled_from(VOCABS),
    k=st.sampled_from((1, 2, 16, 31, 32, 64, 256)),
    tau_milli=st.sampled_from((1, 300, 700, 1500, 100_000)),
    rule=st.sampled_from(("floor-first", "largest-remainder")),
    draw=st.sampled_from((0, 1, M // 2, M - 2, M - 1)),
)
def test_core_and_reference_agree_to_the_bit(
    *, shape, seed, vocab, k, tau_milli, rule, draw
):
    k = min(k, vocab)
    logits = SHAPES[shape](np.random.default_rng(seed), vocab).astype(np.float32)
    if not np.isfinite(logits).any():
        logits[seed % vocab] = 0
    options = {"k": k, "tau_milli": tau_milli, "rule": rule}
    try:
        for path in PATHS:
            if not lib.pp3_scan_force(path):
                shown, _ = agree(logits, draw, **options)
    finally:
        lib.pp3_scan_force(-1)
    assert shown.counts.sum() == M
    assert not shown.counts[np.isneginf(logits[shown.ids])].any()
    # The definition, said in another way: sort by (logit, id) as Python does.
    order = sorted(range(vocab), key=lambda i: (-logits[i], i))[:k]
    assert shown.ids.tolist() == sorted(order)


@pytest.mark.parametrize("shape", ["normal", "ascending", "constant", "masked"])
@pytest.mark.parametrize("vocab", [129280, 600_001])
@pytest.mark.usefixtures("path")
def test_long_rows_agree_too(shape, vocab):
    logits = SHAPES[shape](np.random.default_rng(vocab), vocab).astype(np.float32)
    shown = np.sort(np.lexsort((np.arange(vocab), -logits))[:32])
    assert shown.tolist() == propose_draw24(logits, 0).ids.tolist()


@pytest.mark.usefixtures("path")
def test_fewer_finite_than_the_support_are_completed_by_the_lowest_ids():
    logits = np.full(300, -np.inf, np.float32)
    logits[[2, 40, 299]] = 1.0
    _, drawn = agree(logits, M - 1)
    expected = sorted({2, 40, 299, *[i for i in range(300) if i != 2][:29]})
    assert drawn.ids.tolist() == expected
    assert np.flatnonzero(drawn.q).tolist() == [2, 30, 31]
    assert drawn.token == 299


BAD = {"NaN": np.nan, "negative NaN": -np.nan, "+inf": np.inf}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("vocab", [32, 47, 513, 5000])
@pytest.mark.usefixtures("path")
def test_a_bad_logit_is_refused_by_name_wherever_it_stands(name, vocab):
    for at in {0, 1, 31, vocab // 2, vocab - 2, vocab - 1}:
        logits = np.zeros(vocab, np.float32)
        logits[at:] = BAD[name]  # the first one is named
        for propose in (reference.propose, propose_draw24):
            with pytest.raises(ProposalError, match=rf"logits\[{at}\]") as caught:
                propose(logits, 0)
            assert str(caught.value.found) in {"nan", "inf"}


@pytest.mark.usefixtures("path")
def test_a_row_without_a_finite_logit_is_refused():
    logits = np.full(100, -np.inf, np.float32)
    for propose in (reference.propose, propose_draw24):
        with pytest.raises(ProposalError, match="finite"):
            propose(logits, 0)


@pytest.mark.usefixtures("path")
def test_a_bias_that_overflows_is_refused_at_its_id():
    logits = np.zeros(64, np.float32)
    bias = np.zeros(64, np.float32)
    logits[7] = bias[7] = np.finfo(np.float32).max
    with pytest.raises(ProposalError, match=r"logits\[7\].*inf"):
        propose_row(logits, key=(1, 2), round=1, position=0, bias=bias)
    logits[7], bias[7] = -np.inf, np.inf
    with pytest.raises(ProposalError, match=r"logits\[7\].*nan"):
        propose_row(logits, key=(1, 2), round=1, position=0, bias=bias)


def test_every_draw_falls_where_the_counts_say():
    logits = np.random.default_rng(3).normal(0, 2, 40).astype(np.float32)
    shown = reference.categorical(logits)
    ends = np.cumsum(shown.counts)
    for i, (end, count) in enumerate(zip(ends.tolist(), shown.counts, strict=True)):
        if count:
            assert propose_draw24(logits, end - 1).token == shown.ids[i]
            assert propose_draw24(logits, end - int(count)).token == shown.ids[i]


def test_a_row_is_drawn_by_its_key_round_and_position():
    logits = np.random.default_rng(4).normal(0, 2, 64).astype(np.float32)
    for position in range(50):
        drawn = propose_row(logits, key=(3, 4), round=2**40 + 1, position=position)
        given = propose_draw24(logits, draw24((3, 4), 2**40 + 1, position))
        assert drawn.token == given.token


def test_draws_follow_the_counts_that_are_shipped():
    """What is drawn has the very distribution that is sent beside it."""
    seed, rounds = 20261130, 20_000
    print("seed", seed)
    logits = np.random.default_rng(seed).normal(0, 2, 256).astype(np.float32)
    shown = reference.categorical(logits)
    tokens = [
        propose_row(logits, key=(seed, 1), round=r, position=9).token
        for r in range(rounds)
    ]
    assert set(tokens) <= set(shown.ids.tolist())
    seen = np.bincount(tokens, minlength=256)[shown.ids]
    expected = shown.counts / M * rounds
    assert expected.min() >= 5  # so that the statistic has its law
    assert stats.chisquare(seen, expected).pvalue > 1e-4
    assert stats.chisquare(seen, np.roll(expected, 1)).pvalue < 1e-9


def test_floor_first_gives_the_rest_to_the_largest_and_the_other_rule_spreads_it():
    logits = np.linspace(0, 1, 32, dtype=np.float32)
    first, spread = (
        reference.categorical(logits, rule=rule).counts
        for rule in ("floor-first", "largest-remainder")
    )
    rest = first[-1] - math.floor(
        math.exp(0) / sum(math.exp((float(z) - 1) / 0.7) for z in logits) * M
    )
    assert rest > 1
    assert set((spread - first)[:-1].tolist()) == {0, 1}
    assert (spread - first).sum() == 0


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"k": 0}, "k"),
        ({"k": 65}, "k"),
        ({"k": 257, "logits": np.zeros(300, np.float32)}, "k"),
        ({"tau_milli": 0}, "tau_milli"),
        ({"rule": "ceil"}, "rule"),
        ({"round": -1}, "round"),
        ({"round": 2**64}, "round"),
        ({"position": 2**64}, "position"),
        ({"logits": np.zeros(64)}, "logits"),
        ({"logits": np.zeros((2, 64), np.float32)}, "logits"),
        ({"logits": np.zeros(0, np.float32)}, "logits"),
        ({"logits": np.zeros(31, np.float32)}, "k"),
        ({"bias": np.zeros(63, np.float32)}, "bias"),
        ({"bias": np.zeros(64)}, "bias"),
    ],
)
def test_a_bad_argument_is_named(change, place):
    arguments = {
        "logits": np.zeros(64, np.float32), "key": (1, 2), "round": 1, "position": 0,
    } | change  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        propose_row(arguments.pop("logits"), **arguments)
    assert caught.value.place == place


def test_a_draw_beyond_24_bits_is_refused():
    with pytest.raises(ConfigError, match="draw24"):
        propose_draw24(np.zeros(64, np.float32), M)


def test_a_row_with_gaps_in_memory_is_read_as_it_is_indexed():
    wide = np.random.default_rng(5).normal(0, 2, (64, 3)).astype(np.float32)
    gaps = propose_draw24(wide[:, 1], 5)
    assert gaps.ids.tolist() == propose_draw24(wide[:, 1].copy(), 5).ids.tolist()
