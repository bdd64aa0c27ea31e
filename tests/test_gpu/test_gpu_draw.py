"""One draw per row, and the target's probabilities it is made from."""

import importlib
import math

import numpy as np
import pytest
import torch

from pp3shm.errors import ConfigError
from pp3shm.gpu import target_probs
from pp3shm.gpu.draw import doubling_sum, inverse_cdf
from pp3shm.verify import reference

draw = importlib.import_module("pp3shm.gpu.draw")
LAST = 1.0 - 2.0**-53


def _weights(random, vocab):
    """Some zeros, among them the first and the last, and sizes far apart."""
    weights = random.random(vocab) ** random.choice([1, 30])
    weights[random.random(vocab) < 0.4] = 0.0
    weights[[0, -1]] = 0.0
    weights[vocab // 2] = 0.5
    return weights


@pytest.mark.parametrize("vocab", [32, 111, 129280])
def test_draws_are_the_references_at_the_edges_and_between(device, vocab):
    random = np.random.default_rng(vocab)
    uniforms = np.array([0.0, LAST, 0.5, *random.random(13)])
    weights = np.stack([_weights(random, vocab) for _ in uniforms])
    expected = [
        reference.inverse_cdf(row, float(uniform))
        for row, uniform in zip(weights, uniforms, strict=True)
    ]
    found = inverse_cdf(
        torch.from_numpy(weights).to(device), torch.from_numpy(uniforms).to(device)
    )
    assert found.dtype == torch.int64
    assert expected == found.tolist()


@pytest.mark.parametrize("summed", ["in sequence", "by doubling"])
def test_an_id_of_weight_zero_is_never_drawn(device, summed, monkeypatch):
    """Whatever the order of additions; also where the sums are all but equal."""
    if summed == "by doubling":
        monkeypatch.setattr(draw, "inclusive_sum", doubling_sum)
    random = np.random.default_rng(1)
    for _ in range(50):
        weights = np.stack([_weights(random, 300) for _ in range(8)])
        weights[:4] *= 1e-300
        running = np.cumsum(weights, 1) / weights.sum(1, keepdims=True)
        # Uniforms on the edges of the CDF, and one step to either side.
        at = running[np.arange(8), random.integers(0, 300, 8)]
        for uniform in (at, np.nextafter(at, 0), np.nextafter(at, 1)):
            drawn = inverse_cdf(
                torch.from_numpy(weights).to(device),
                torch.from_numpy(np.clip(uniform, 0, LAST)).to(device),
            )
            assert (weights[np.arange(8), drawn.tolist()] > 0.0).all()


def test_a_point_on_an_edge_belongs_to_the_id_above(device):
    """The cumulative weight must exceed it; an id of weight 0 on the way is passed."""
    weights = torch.tensor([[0.25, 0.25, 0.0, 0.5]], dtype=torch.float64, device=device)
    for uniform, drawn in ((0.0, 0), (0.25, 1), (0.5, 3), (0.75, 3)):
        point = torch.tensor([uniform], dtype=torch.float64, device=device)
        assert inverse_cdf(weights, point).tolist() == [drawn]


def test_a_point_that_no_sum_exceeds_takes_the_last_positive_id(device):
    weights = torch.tensor([[0.0, 1.0, 0.0, 2.0, 0.0]], dtype=torch.float64)
    uniform = torch.ones(1, dtype=torch.float64)  # past every uniform there is
    assert inverse_cdf(weights.to(device), uniform.to(device)).tolist() == [3]


@pytest.mark.parametrize("size", [1, 2, 31, 32, 33, 1000])
def test_doubling_adds_every_weight_once(device, size):
    """Whole numbers are exact in any order; others stay within log2(n) roundings."""
    random = np.random.default_rng(size)
    whole = torch.from_numpy(random.integers(0, 2**30, (3, size))).double().to(device)
    assert torch.equal(doubling_sum(whole), whole.cumsum(1))
    parts = random.random((2, size))
    found = doubling_sum(torch.from_numpy(parts).to(device)).cpu().numpy()
    for row, line in zip(parts, found, strict=True):
        exact = [math.fsum(row[: i + 1]) for i in range(size)]
        assert np.allclose(exact, line, rtol=12 * 2.0**-53, atol=0.0)


def test_doubling_gives_a_row_the_same_bits_in_any_batch(device):
    rows = torch.rand(5, 777, dtype=torch.float64).to(device)
    batch = doubling_sum(rows)
    for i in range(5):
        assert torch.equal(batch[i : i + 1], doubling_sum(rows[i : i + 1]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_target_probs_are_the_references_softmax(device, dtype):
    """-inf is a masked token; each request has its temperature."""
    random = np.random.default_rng(2)
    logits = torch.from_numpy(random.normal(0, 6, (4, 3, 500))).to(device, dtype)
    logits[random.random(logits.shape) < 0.2] = -math.inf
    temperature = [0.3, 0.7, 1.0, 1.5]
    found = target_probs(logits, temperature)
    assert found.dtype == torch.float64
    for b, t in enumerate(temperature):
        for i in range(3):
            row = logits[b, i].double().cpu().numpy()
            expected = reference.softmax_row(row, 500, t, i)
            # Two float64 exponentials of arguments up to 100, each rounded first.
            assert np.allclose(expected, found[b, i].cpu(), rtol=1e-13, atol=1e-300)


def test_temperature_zero_is_one_at_the_lowest_argmax_of_the_raw_logits(device):
    """Also where a division in FP32 would make two logits equal."""
    logits = torch.zeros(2, 1, 64, device=device)
    logits[0, 0, [9, 40]] = 3.0
    logits[1, 0, 5] = 8.0
    logits[1, 0, 50] = 8.0 + 2.0**-20  # the next FP32
    found = target_probs(logits, [0.0, 0.0])
    assert found.argmax(-1).tolist() == [[9], [50]]
    assert found.sum(-1).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_poisoned_logits_make_their_row_nan_and_no_other(device, temperature, poison):
    logits = torch.zeros(2, 2, 40, device=device)
    logits[0, 1, 17] = poison
    logits[1, 0] = -math.inf
    found = target_probs(logits, [temperature] * 2)
    assert found.isnan().all(-1).tolist() == [[False, True], [True, False]]


def test_a_temperature_that_is_none_makes_its_request_nan(device):
    logits = torch.zeros(3, 2, 40, device=device)
    found = target_probs(logits, [-0.5, math.nan, 0.5])
    assert found.isnan().all(-1).all(-1).tolist() == [True, True, False]


def test_logits_or_temperatures_of_another_shape_are_refused():
    for logits, temperature, place in (
        (torch.zeros(2, 40), [1.0, 1.0], "logits"),
        (torch.zeros(2, 2, 40, dtype=torch.int64), [1.0, 1.0], "logits"),
        (torch.zeros(2, 2, 40), [1.0], "temperature"),
    ):
        with pytest.raises(ConfigError) as caught:
            target_probs(logits, temperature)
        assert caught.value.place == place
