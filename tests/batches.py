"""Batches of requests for the sparse verifier, and the NumPy reference on the same.

A Triton kernel is interpreted at some cost per operation, whatever the number of
requests: so these batches are large, beyond the slots of any page of the wire.
"""

from types import SimpleNamespace

import numpy as np
import torch

import pp3shm.verify as reference
from pp3shm.gpu import ReplyTensors, key_words
from pp3shm.verify.keys import VerifyKeys

EPOCH = bytes(range(40, 56))
SAMPLED, GREEDY, FAILED = 0, 1, 2


def supports(random, vocab, shape, k):
    """Ascending ids, some in neighbourhoods, (*shape, k) int32."""
    out = np.empty((*shape, k), np.int32)
    for at in np.ndindex(*shape):
        if random.random() < 0.3:  # next to each other, as one run of ids holds
            first = random.integers(0, vocab - k + 1)
            out[at] = np.arange(first, first + k)
        else:
            out[at] = np.sort(random.choice(vocab, k, replace=False))
    return out


def counts_of(random, shape, k):
    """Whole shares of 2**24, some of them 0, (*shape, k)."""
    share = random.dirichlet(np.full(k, 0.3), shape)
    return random.multinomial(2**24, share / share.sum(-1, keepdims=True))


def probabilities(random, ids, q, drafts, vocab):
    """FP32 rows near q, apart from it, or of their own; some zeros; (depth + 1, V)."""
    depth = len(drafts)
    p = random.dirichlet(np.full(vocab, random.choice([0.05, 0.5, 5.0])), depth + 1)
    dense = np.zeros((depth, vocab))
    np.put_along_axis(dense, ids.astype(np.int64), q.astype(np.float64), 1)
    kind = random.integers(0, 4)
    if kind == 0:
        p[:depth] = 0.9 * dense + 0.1 * p[:depth]
    elif kind == 1:
        p[:depth] = np.where(dense > 0, 0.0, p[:depth] + 1e-9)
    elif kind == 2:
        p[np.arange(depth), drafts] += 1.0
    p[random.random(p.shape) < 0.2] = 0.0
    p[:, random.integers(0, vocab)] += 1e-3
    return (p / p.sum(1, keepdims=True)).astype(np.float32)


class Batch:
    """Random requests: a page of as many slots, their target, and all else.

    Attributes:
        p: (n, depth + 1, vocab) float32 probabilities.
        page: NumPy arrays by slot; ``tensors()`` gives them as the verifier's.
        slots: of the requests, a permutation.
    """

    def __init__(self, seed, n, vocab, depth, k=32, modes=(SAMPLED, GREEDY, FAILED)):
        random = np.random.default_rng(seed)
        self.n, self.vocab, self.depth = n, vocab, depth
        self.round = int(random.integers(1, 2**40))
        mode = random.choice(modes, n, p=None)
        ids = supports(random, vocab, (n, depth), k)
        counts = counts_of(random, (n, depth), k)
        cumulative = counts.cumsum(-1)
        noise = random.integers(0, 2**24, (n, depth, 1))
        at = (cumulative <= noise).sum(-1)
        drafts = np.take_along_axis(ids, at[..., None], -1)[..., 0]
        q = (counts / 2**24).astype(np.float32)
        self.p = np.stack(
            [
                probabilities(random, *row, vocab)
                for row in zip(ids, q, drafts, strict=True)
            ]
        )
        greedy = mode == GREEDY
        follows = self.p[:, :-1].argmax(-1)
        drafts[greedy] = np.where(random.random((n, depth)) < 0.8, follows, drafts)[
            greedy
        ]
        self.page = SimpleNamespace(
            round=np.uint64(self.round),
            status=np.where(mode == FAILED, 3, 0).astype(np.int32),
            tokens=drafts.astype(np.int32),
            mask=(mode == SAMPLED).astype(np.int32),
            ids=ids,
            q=q,
        )
        chosen = random.choice([0.3, 0.7, 1.0, 1.5], n)
        self.temperature = np.where(mode == GREEDY, 0.0, chosen)
        failed = mode == FAILED
        self.temperature[failed & (random.random(n) < 0.5)] = 0.0
        self.positions = random.integers(0, 2**40, n).tolist()
        generations = random.integers(0, 2**32, n)
        self.keys = [
            VerifyKeys.derive(EPOCH, slot, int(generations[slot]), slot - 3)
            for slot in range(n)
        ]
        self.slots = random.permutation(n).tolist()
        self.random = random

    def logits(self, spread=3.0):
        """Logits whose softmax at T = 1 is like ``p``; some masked tokens."""
        with np.errstate(divide="ignore"):
            z = np.log(self.p.astype(np.float64))
        z = np.where(self.p > 0, z + self.random.normal(0, 0.3, z.shape), -np.inf)
        z *= self.random.choice([0.3, 1.0, spread], (self.n, 1, 1))
        return (z + self.random.normal(0, 5, (self.n, self.depth + 1, 1))).astype(
            np.float32
        )

    def tensors(self, device="cpu"):
        """The page as the verifier takes it; memory of its own."""
        given = {
            name: torch.from_numpy(np.array(array)).to(device)
            for name, array in vars(self.page).items()
            if name != "round"
        }
        shown = int(self.page.round)
        shown -= (shown >> 63) << 64
        return ReplyTensors(
            round=torch.tensor(shown, device=device),
            confidence=torch.zeros(self.n, self.depth, device=device),
            **given,
        )

    def arguments(self, slots=None, device="cpu"):
        """What ``verify`` takes by name, for some slots."""
        slots = self.slots if slots is None else slots
        return {
            "slots": slots,
            "round_": self.round,
            "positions": [self.positions[s] for s in slots],
            "keys": key_words([self.keys[s] for s in slots], device),
            "temperature": [float(self.temperature[s]) for s in slots],
        }

    def reference(self, target, slots=None, *, logits=False):
        """The NumPy reference on the same; ``target`` is by slot."""
        slots = self.slots if slots is None else slots
        return reference.verify(
            self.page,
            [target[s] for s in slots],
            [
                reference.Request(
                    s, self.positions[s], self.keys[s], float(self.temperature[s])
                )
                for s in slots
            ],
            round=self.round,
            vocab=self.vocab,
            logits=logits,
        )


def same(expected, found):
    """Asserts equal results; the errors' texts may differ."""
    assert expected.tokens.tolist() == found.tokens.tolist()
    assert expected.count.tolist() == found.count.tolist()
    assert expected.accepted.tolist() == found.accepted.tolist()
    assert expected.last == found.last
    assert expected.no_mass.tolist() == found.no_mass.tolist()
    assert [e is None for e in expected.errors] == [e is None for e in found.errors]


def bits(result):
    """What a request gets, by name, to be compared to the bit."""
    return {
        name: getattr(result, name).tolist()
        for name in ("tokens", "count", "accepted", "error", "no_mass", "mode")
    }
