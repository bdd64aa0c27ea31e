"""Several requests: each by its own keys, from its own rows, or an error of it."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pp3shm.errors import ConfigError, VerifyError
from pp3shm.proposal.proposal import propose_chain
from pp3shm.rng import Purpose, request_key
from pp3shm.verify.batch import Request
from pp3shm.verify.keys import VerifyKeys
from pp3shm.verify.reference import softmax_row
from pp3shm.verify.verify import verify as verify_by

M = 2**24
ROUND, DEPTH, VOCAB, SLOTS = 77, 5, 100, 4
EPOCH, SESSION = b"e" * 16, b"s" * 16
ENGINE = []


@pytest.fixture(autouse=True, params=["numpy", "c"])
def engine(request):
    """Every test is of both; the C engine gets its rows as float32."""
    ENGINE.append(request.param)
    yield request.param
    ENGINE.clear()


def verify(page, target, requests, **options):
    if ENGINE[-1] == "c" and np.asarray(target[0]).dtype == np.float64:
        target = [np.asarray(rows, np.float32) for rows in target]
    return verify_by(page, target, requests, engine=ENGINE[-1], **options)


def page_of(statuses=(0, 0, 0, 0), sampled=(1, 1, 1, 1), seed=1):
    """A page whose rows were drafted for real, and the target's rows by slot."""
    g = np.random.default_rng(seed)
    logits = g.normal(0, 2, (SLOTS, DEPTH, VOCAB)).astype(np.float32)
    out = propose_chain(
        logits,
        keys=[request_key(Purpose.PROPOSAL, SESSION, s, 1, 0) for s in range(SLOTS)],
        round=ROUND,
        positions=[10 * s for s in range(SLOTS)],
    )
    page = SimpleNamespace(
        round=np.uint64(ROUND),
        status=np.array(statuses, np.int32),
        tokens=out.tokens,
        mask=np.array(sampled, np.int32),
        ids=out.ids,
        q=out.q,
    )
    page.mask[page.status != 0] = 0
    page.tokens[page.status != 0] = -1
    near = np.concatenate([logits, g.normal(0, 2, (SLOTS, 1, VOCAB))], axis=1)
    near = near + g.normal(0, 1, near.shape)
    weight = np.exp(near)
    return page, weight / weight.sum(axis=-1, keepdims=True)


def request(slot, temperature=1.0):
    return Request(slot, 10 * slot, VerifyKeys.derive(EPOCH, slot, 1, 0), temperature)


def same(one, row, other, row_other):
    """Equal to the bit, request by request."""
    assert one.tokens[row].tolist() == other.tokens[row_other].tolist()
    assert one.count[row] == other.count[row_other]
    assert one.last[row] == other.last[row_other]
    assert str(one.errors[row]) == str(other.errors[row_other])


def alone(page, target, slot, temperature=1.0, **options):
    given = {"round": ROUND, "vocab": VOCAB} | options
    return verify(page, target[slot : slot + 1], [request(slot, temperature)], **given)


def all_slots(page, target, temperatures=(1.0,) * SLOTS, **options):
    given = {"round": ROUND, "vocab": VOCAB} | options
    requests = [request(slot, temperatures[slot]) for slot in range(SLOTS)]
    return verify(page, target, requests, **given)


@pytest.mark.parametrize("temperatures", [(1, 1, 1, 1), (0, 0.7, 0, 1), (0, 0, 0, 0)])
def test_requests_are_verified_as_if_alone(temperatures):
    page, target = page_of(sampled=[int(t > 0) for t in temperatures])
    together = all_slots(page, target, temperatures)
    for slot in range(SLOTS):
        same(together, slot, alone(page, target, slot, temperatures[slot]), 0)
    assert together.errors == (None,) * SLOTS
    subset = verify(page, target[[2, 0]], [request(2, temperatures[2]),
                    request(0, temperatures[0])], round=ROUND, vocab=VOCAB)  # fmt: skip
    same(together, 2, subset, 0)
    same(together, 0, subset, 1)


def test_greedy_requests_follow_the_argmax_with_ties_to_the_lower_id():
    page, target = page_of(sampled=(0,) * SLOTS)
    best = target.argmax(axis=-1)
    page.tokens[0] = best[0, :DEPTH]
    page.tokens[1, :2] = best[1, :2]
    page.tokens[1, 2] = (best[1, 2] + 1) % VOCAB
    target[2, 0] = 1 / VOCAB  # all tied
    page.tokens[2, 0] = 1
    result = all_slots(page, target, (0,) * SLOTS)
    assert result.tokens[0].tolist() == best[0].tolist()
    assert result.tokens[1].tolist() == [*best[1, :3].tolist(), -1, -1, -1]
    assert result.tokens[2].tolist() == [0] + [-1] * DEPTH
    assert result.last[:3] == ("bonus", "correction", "correction")
    assert result.accepted[:3].tolist() == [DEPTH, 2, 0]


@pytest.mark.parametrize("status", range(1, 9))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_failed_request_emits_the_unchanged_target_and_touches_nobody(
    status, temperature
):
    sampled = [int(temperature > 0)] * SLOTS
    good, target = page_of(sampled=sampled)
    page, _ = page_of(statuses=(0, status, 0, 0), sampled=sampled)
    page.q[1], page.ids[1] = np.nan, -1  # no q of it is looked at
    whole = all_slots(good, target, (temperature,) * SLOTS)
    result = all_slots(page, target, (temperature,) * SLOTS)
    for slot in (0, 2, 3):
        same(whole, slot, result, slot)
    only = alone(None, target, 1, temperature)  # no reply at all
    same(only, 0, result, 1)
    assert result.last[1] == "target"
    assert result.count[1] == 1
    if temperature == 0:
        assert result.tokens[1, 0] == target[1, 0].argmax()


def test_target_only_draws_read_the_first_row_alone():
    _, target = page_of()
    target[:, 1:] = np.nan
    result = all_slots(None, target)
    assert result.errors == (None,) * SLOTS
    assert result.count.tolist() == [1] * SLOTS


POISON = {
    "NaN": (np.nan, r"target_probs\[0, 9\].*nan"),
    "+inf": (np.inf, r"target_probs\[0, 9\].*inf"),
    "-inf": (-np.inf, r"target_probs\[0, 9\].*-inf"),
    "negative": (-0.25, r"target_probs\[0, 9\].*-0.25"),
    "too much": (0.5, r"target_probs\[0\].*mass"),
}


@pytest.mark.parametrize("name", POISON)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("status", [0, 2])
def test_a_poisoned_target_row_is_an_error_of_its_request_alone(
    name, temperature, status
):
    value, message = POISON[name]
    temperatures = (1.0, temperature, 1.0, 1.0)
    page, target = page_of((0, status, 0, 0), [int(t > 0) for t in temperatures])
    whole = all_slots(page, target, temperatures)
    target[1, 0, 9:12] = value
    result = all_slots(page, target, temperatures)
    for slot in (0, 2, 3):
        same(whole, slot, result, slot)
    assert isinstance(result.errors[1], VerifyError)
    assert result.errors[1].place.startswith("slot 1: target_probs[0")
    with pytest.raises(VerifyError, match=message):
        raise result.errors[1]
    assert result.count[1] == 0
    assert result.tokens[1].tolist() == [-1] * (DEPTH + 1)


def test_a_target_row_without_mass_is_an_error():
    page, target = page_of()
    target[1, 0] = 0
    result = all_slots(page, target)
    assert "mass" in str(result.errors[1])
    assert [error is None for error in result.errors] == [True, False, True, True]


@pytest.mark.parametrize("per_slot", [False, True])
def test_a_row_of_another_round_is_never_used(per_slot):
    page, target = page_of()
    if per_slot:
        page.round = np.array([ROUND, ROUND - 1, ROUND, ROUND + 1], np.uint64)
        stale = [False, True, False, True]
    else:
        page.round = np.uint64(ROUND - 1)
        stale = [True] * SLOTS
    result = all_slots(page, target)
    for error, is_stale in zip(result.errors, stale, strict=True):
        assert (error is not None) == is_stale
        assert error is None or "round: expected 77" in str(error)


def test_a_mask_that_does_not_fit_the_request_is_refused():
    page, target = page_of(sampled=(1, 0, 1, 0))
    result = all_slots(page, target, (1.0, 1.0, 0.0, 0.0))
    assert [error is None for error in result.errors] == [True, False, False, True]
    assert "mask: expected 1, found 0" in str(result.errors[1])
    page.mask = page.ids = page.q = None  # a greedy profile's page
    result = all_slots(page, target, (1.0, 0.0, 0.0, 0.0))
    assert [error is None for error in result.errors] == [False, True, True, True]


def spoil_q(name, ids, q, drafts):
    """One fault in the first row of a reply."""
    if name == "NaN":
        q[0, 3] = np.nan
    elif name == "negative":
        q[0, 3] = -q[0, 3]
    elif name == "infinite":
        q[0, 3] = np.inf
    elif name == "above one":
        q[0, 3] = 2
    elif name == "off the grid":
        q[0, 3] = np.nextafter(np.float32(0.25), 1)
    elif name == "a count too many":
        q[0, 3] += np.float32(1 / M)
    elif name == "all zero":
        q[0] = 0
    elif name == "ids repeated":
        ids[0, 4] = ids[0, 3]
    elif name == "ids swapped":
        ids[0, [3, 4]] = ids[0, [4, 3]]
    elif name == "id below 0":
        ids[0, 0] = -1
    elif name == "id at vocab":
        ids[0, 31] = VOCAB
    elif name == "draft off the support":
        drafts[0] = next(t for t in range(VOCAB) if t not in ids[0])
    elif name == "draft without mass":
        at = ids[0].tolist().index(drafts[0])
        other = (at + 1) % 32
        q[0, other] += q[0, at]
        q[0, at] = 0
    elif name == "draft of -1":
        drafts[0] = -1
    elif name == "draft at vocab":
        drafts[0] = VOCAB


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("NaN", "q[0]"),
        ("negative", "q[0]"),
        ("infinite", "q[0]"),
        ("above one", "q[0]"),
        ("off the grid", "q[0]"),
        ("a count too many", "q[0]"),
        ("all zero", "q[0]"),
        ("ids repeated", "ids[0]"),
        ("ids swapped", "ids[0]"),
        ("id below 0", "ids[0]"),
        ("id at vocab", "ids[0]"),
        ("draft off the support", "drafts[0]"),
        ("draft without mass", "drafts[0]"),
        ("draft of -1", "drafts[0]"),
        ("draft at vocab", "drafts[0]"),
    ],
)
def test_a_reply_that_is_none_is_never_verified_with(name, place):
    page, target = page_of()
    whole = all_slots(page, target)
    spoil_q(name, page.ids[2], page.q[2], page.tokens[2])
    result = all_slots(page, target)
    assert result.errors[2].place == f"slot 2: {place}"
    for slot in (0, 1, 3):
        same(whole, slot, result, slot)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_logits_are_verified_as_their_softmax(temperature, dtype):
    page, target = page_of()
    with np.errstate(divide="ignore"):
        logits = np.log(target).astype(dtype)
    logits[:, :, 50] = -np.inf
    rows = np.array(
        [
            [softmax_row(row, VOCAB, temperature, 0) for row in request]
            for request in logits
        ]
    )
    assert np.allclose(rows.sum(axis=-1), 1, atol=1e-12)
    exact = np.exp(logits.astype(np.float64) / temperature)
    exact /= exact.sum(axis=-1, keepdims=True)
    assert np.allclose(rows, exact, rtol=1e-12, atol=0)
    temperatures = (temperature,) * SLOTS
    one = all_slots(page, rows, temperatures)
    other = all_slots(page, logits, temperatures, logits=True)
    for slot in range(SLOTS):
        same(one, slot, other, slot)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_poisoned_logits_are_an_error_of_their_request(bad, temperature):
    page, target = page_of(sampled=[int(temperature > 0)] * SLOTS)
    logits = np.log(target)
    whole = all_slots(page, logits, (temperature,) * SLOTS, logits=True)
    logits[3, 0, slice(None) if bad == -np.inf else slice(4, 6)] = bad
    result = all_slots(page, logits, (temperature,) * SLOTS, logits=True)
    assert result.errors[3].place.startswith("slot 3: target_logits[0")
    for slot in range(3):
        same(whole, slot, result, slot)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"requests": []}, "target"),
        ({"requests": [request(0)]}, "target"),
        ({"requests": [request(0), request(0)]}, "slots"),
        ({"requests": [request(0), request(SLOTS)]}, "slot"),
        ({"requests": [request(0), replace(request(1), slot=-1)]}, "slot"),
        ({"requests": [request(0), request(1, -1.0)]}, "temperature"),
        ({"requests": [request(0), request(1, np.nan)]}, "temperature"),
        ({"requests": [request(0), request(1, np.inf)]}, "temperature"),
        ({"vocab": VOCAB + 1}, "target"),
        ({"target": np.zeros((2, DEPTH, VOCAB))}, "target"),
    ],
)
def test_a_bad_argument_is_named(change, place):
    page, target = page_of()
    given = {"target": target[:2], "requests": [request(0), request(1)],
             "vocab": VOCAB} | change  # fmt: skip
    with pytest.raises(ConfigError) as caught:
        verify(page, given["target"], given["requests"], round=ROUND,
               vocab=given["vocab"])  # fmt: skip
    assert caught.value.place == place


def test_integer_rows_are_no_target(engine):
    page, target = page_of()
    rows = (target > 0.1).astype(np.int64)
    if engine == "c":  # it takes float32 alone, and says so
        with pytest.raises(ConfigError, match=r"target\[0\]: expected float32"):
            all_slots(page, rows)
        return
    result = all_slots(page, rows)
    assert all("floats" in str(error) for error in result.errors)


def test_a_residual_without_mass_is_counted():
    """Where p is below q everywhere by rounding, a rejection leaves nothing to draw."""
    page = SimpleNamespace(
        round=np.uint64(ROUND), status=np.zeros(1, np.int32),
        tokens=np.zeros((1, 1), np.int32), mask=np.ones(1, np.int32),
        ids=np.arange(3, dtype=np.int32).reshape(1, 1, 3),
        q=np.array([[[0.5, 0.25, 0.25]]], np.float32),
    )  # fmt: skip
    p = np.array([0.5, 0.25, 0.25]) * (1 - 9e-4)  # rejected about once in 1100
    counted = 0
    for round_ in range(1, 8000):
        page.round = np.uint64(round_)
        result = verify(page, [np.array([p, p])], [request(0)], round=round_, vocab=3)
        assert result.count[0] >= 1
        counted += int(result.no_mass[0])
    assert counted > 0
