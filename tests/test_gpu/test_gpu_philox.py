"""Philox in torch gives the words of the reference, whatever the operands."""

import json
from pathlib import Path

import numpy as np
import torch

from pp3shm import rng
from pp3shm.gpu import philox
from pp3shm.gpu.views import signed

VECTORS = Path(__file__).parents[1] / "vectors"


def test_published_answers_come_out_in_one_batch(device):
    cases = json.loads((VECTORS / "philox.json").read_text())["cases"]
    counter = torch.tensor([c["counter"] for c in cases], device=device).unbind(1)
    key = torch.tensor([c["key"] for c in cases], device=device).unbind(1)
    words = torch.stack(philox.philox4x32_10(counter, key), 1)
    assert [c["words"] for c in cases] == words.tolist()


def test_uniforms_are_those_of_the_reference_to_the_bit(device):
    """Rounds and positions at both ends of 64 bits, and at random."""
    random = np.random.default_rng(1)
    edges = [0, 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 6]
    for round_ in [*edges, *random.integers(0, 2**63, 4).tolist()]:
        keys = random.integers(0, 2**32, (len(edges), 2))
        key = torch.tensor(keys, device=device)
        first = torch.tensor([signed(p) for p in edges], device=device)
        position = first[:, None] + torch.arange(6, device=device)
        accept = philox.accept_uniform(key, round_, position)
        residual = philox.residual_uniform(key, round_, position)
        assert accept.dtype == residual.dtype == torch.float64
        for b, start in enumerate(edges):
            name = tuple(keys[b].tolist())
            places = range(start, start + 6)
            expected = [rng.accept_uniform(name, round_, p) for p in places]
            assert expected == accept[b].tolist()
            expected = [rng.residual_uniform(name, round_, p) for p in places]
            assert expected == residual[b].tolist()


def test_no_product_leaves_63_bits():
    """The halves stay below 2**49 for the largest word and either multiplier."""
    word = torch.tensor([0, 1, 0xFFFF, 0x10000, 0xFFFFFFFF])
    for factor in rng.MULTIPLIERS:
        assert int(word.max()) * (factor & 0xFFFF) < 2**49
        assert int(word.max()) * (factor >> 16) + 2**33 < 2**49
        high, low = philox._multiply(word, factor)
        expected = [int(w) * factor for w in word]
        assert expected == ((high << 32) | low).view(torch.uint64).tolist()
