"""The law of the sparse verifier by its breakpoints, in exact rationals.

Where acceptance and the drawn id change with the uniforms' integers is computed from
fractions, and the kernel is asked on both sides of each such place. The law that these
places spell is then compared with the oracle's.
"""

import json
from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from pathlib import Path

import numpy as np
import pytest
import torch

from pp3shm import oracle
from pp3shm.conformance.numbers import conditionals_of
from pp3shm.gpu import ReplyTensors, SparseVerifier
from pp3shm.oracle import Conditional

VECTORS = Path(__file__).parents[1] / "vectors"
EXACT = json.loads((VECTORS / "verify_exact.json").read_text())["cases"]
U, R = 2**29, 2**53
ROUND = 5


class Questions:
    """Drafts with their integers, and the one token that must be emitted last."""

    def __init__(self, models, depth, slack_u=0, slack_r=2):
        self.models, self.depth = models, depth
        self.slack_u, self.slack_r = Fraction(slack_u), Fraction(slack_r)
        self.drafts, self.accept, self.residual, self.expected = [], [], [], []
        self.law = defaultdict(Fraction)
        self.walk((), Fraction(1))

    def ask(self, drafts, u, r, emitted):
        """One verification; drafts after the stop are any that q can draw."""
        path = list(drafts)
        while len(path) < self.depth:
            q = self.models[tuple(path)].q
            path.append(max(range(len(q)), key=q.__getitem__))
        self.drafts.append(path)
        self.accept.append([*u, *[0] * (self.depth - len(u))])
        at = len(emitted) - 1
        self.residual.append([r if i == at else 0 for i in range(self.depth + 1)])
        self.expected.append([*emitted, *[-1] * (self.depth + 1 - len(emitted))])

    def edges(self, drafts, u, prefix, weights, chance):
        """The draw of the last token, asked about at each edge of its CDF."""
        total, low = sum(weights), Fraction(0)
        tokens = [(t, w / total) for t, w in enumerate(weights) if w]
        for (token, share), follower in pairwise([*tokens, None]):
            high = low + share * R
            first, last = ceil(low + self.slack_r), floor(high - self.slack_r) - 1
            if not low:
                first = 0
            if follower is None:
                last = R - 1
            if first <= last:
                for r in {first, last}:
                    self.ask(drafts, u, r, [*prefix, token])
            self.law[*prefix, token] += chance * (high - low) / R
            low = high

    def walk(self, prefix, chance):
        p, q = self.models[prefix]
        if len(prefix) == self.depth:
            self.edges(prefix, [0] * self.depth, prefix, p, chance)
            return
        rest = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
        for draft, share in enumerate(q):
            if not share:
                continue
            drafts, before = (*prefix, draft), [0] * len(prefix)
            # u * q < p for the integers below this one, and for no other.
            taken = min(ceil(p[draft] / share * U), U)
            below, above = floor(taken - self.slack_u) - 1, ceil(taken + self.slack_u)
            if 0 <= below and taken:
                self.ask_accepted(drafts, [*before, below])
                self.walk(drafts, chance * share * taken / U)
            if taken < U and above < U:
                left = chance * share * (1 - Fraction(taken, U))
                self.edges(drafts, [*before, above], prefix, rest, left)

    def ask_accepted(self, drafts, u):
        """Accepted at ``u``: what comes after is the lowest id that can."""
        here = drafts
        while len(here) < self.depth:  # the later drafts of ``ask``, with u = 0
            p, q = self.models[here]
            draft = max(range(len(q)), key=q.__getitem__)
            if not p[draft]:
                rest = [max(a - b, Fraction(0)) for a, b in zip(p, q, strict=True)]
                first = next(t for t, w in enumerate(rest) if w)
                return self.ask(drafts, u, 0, [*here, first])
            here = (*here, draft)
        p = self.models[here].p
        return self.ask(drafts, u, 0, [*here, next(t for t, w in enumerate(p) if w)])

    def answers(self, device, *, logits):
        """What the kernel emits for each of them: one call."""
        n, vocab = len(self.drafts), len(self.models[()].p)

        def rows(name, depth):
            row = {
                prefix: np.array([float(x) for x in getattr(model, name)], np.float32)
                for prefix, model in self.models.items()
                if getattr(model, name) is not None
            }
            table = [
                [row[tuple(path[:i])] for i in range(depth)] for path in self.drafts
            ]
            return torch.from_numpy(np.array(table)).to(device)

        target = rows("p", self.depth + 1)
        page = ReplyTensors(
            round=torch.tensor(ROUND, device=device),
            status=torch.zeros(n, dtype=torch.int32, device=device),
            tokens=torch.tensor(self.drafts, dtype=torch.int32, device=device),
            confidence=torch.zeros(n, self.depth, device=device),
            mask=torch.ones(n, dtype=torch.int32, device=device),
            ids=torch.arange(vocab, dtype=torch.int32, device=device)
            .expand(n, self.depth, vocab)
            .contiguous(),
            q=rows("q", self.depth),
        )
        verifier = SparseVerifier(n, self.depth, vocab, device, support=vocab)
        found = verifier.verify_uniforms(
            target.double().log().float() if logits else target,
            page,
            accept=torch.tensor(self.accept, dtype=torch.float64) / U,
            residual=torch.tensor(self.residual, dtype=torch.float64) / R,
            slots=range(n),
            round_=ROUND,
            temperature=[1.0] * n,
            logits=logits,
        )
        assert not found.error.any().item()
        return found.tokens.tolist()


def _random_models(seed, vocab, depth):
    """Chances that are multiples of 2**-12, some 0; q and p alike, or not at all."""
    random = np.random.default_rng(seed)

    def row(alpha):
        counts = random.multinomial(2**12, random.dirichlet(np.full(vocab, alpha)))
        return [Fraction(int(count), 2**12) for count in counts]

    found, prefixes = {}, [()]
    for length in range(depth + 1):
        for prefix in prefixes:
            alpha = random.choice([0.1, 1.0, 10.0])
            found[prefix] = Conditional(
                row(alpha), row(1.0) if length < depth else None
            )
        prefixes = [(*prefix, token) for prefix in prefixes for token in range(vocab)]
    return found


MODELS = [
    *(
        pytest.param(conditionals_of(case), case["depth"], id=f"vector {i}")
        for i, case in enumerate(EXACT)
    ),
    *(
        pytest.param(_random_models(seed, vocab, depth), depth, id=f"random {seed}")
        for seed, (vocab, depth) in enumerate([(12, 1), (3, 3), (5, 2)])
    ),
]


@pytest.mark.parametrize(("models", "depth"), MODELS)
def test_every_breakpoint_is_where_the_rationals_say(triton_device, models, depth):
    """Acceptance to the integer; a draw to two steps of 2**-53, FP64's rounding."""
    questions = Questions(models, depth)
    assert questions.expected == questions.answers(triton_device, logits=False)
    expected = oracle.emitted_law(models, depth)
    assert sum(questions.law.values()) == 1
    for tokens in questions.law.keys() | expected.keys():
        difference = questions.law.get(tokens, 0) - expected.get(tokens, 0)
        assert abs(difference) <= Fraction(depth + 1, U)


@pytest.mark.parametrize(("models", "depth"), MODELS[::3])
def test_from_logits_every_breakpoint_is_within_rounding_of_the_weights(
    triton_device, models, depth
):
    """FP32 logits of p, and FP32 weights: 3e-7 of p together, asked about at 1e-6."""
    questions = Questions(models, depth, slack_u=U * 1e-6, slack_r=R * 1e-6)
    assert questions.expected == questions.answers(triton_device, logits=True)


def test_a_law_of_another_target_is_noticed(triton_device):
    """A negative control: the same questions, and the target's ids in reverse."""
    models, depth = MODELS[0].values
    questions = Questions(models, depth)
    questions.models = {k: c._replace(p=c.p[::-1]) for k, c in models.items()}
    assert questions.expected != questions.answers(triton_device, logits=False)
