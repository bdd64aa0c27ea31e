"""What is emitted has the target's law; three wrong verifiers and a shared stream fail.

The drafts come from the real streams: Philox under proposal keys, picked by integer
counts. Target and drafter both depend on the token before, so that a law that is
only right by marginals would be seen.
"""

import importlib

import numpy as np
import pytest
import torch
from scipy import stats

from pp3shm.gpu import DraftProbs, ReplyTensors, philox, target_probs, verify
from pp3shm.rng import Purpose, request_key

# The package gives the function the module's name.
module = importlib.import_module("pp3shm.gpu.verify")

VOCAB, DEPTH, SLOTS, ROUNDS = 40, 2, 4096, 50
SALT = bytes(range(100, 116))
POSITION = 1000


def _keys(purpose, device):
    """(SLOTS, 2), the real keys of 4096 requests."""
    words = [request_key(purpose, SALT, slot, 7, -slot) for slot in range(SLOTS)]
    return torch.tensor(words, device=device)


class Law:
    """A drafter and a target over 40 tokens, each a chain of first order.

    Row 0 of ``p`` and ``ids``, ``q`` begins; row 1 + x follows token x.
    """

    def __init__(self, seed, device):
        random = np.random.default_rng(seed)
        rows = 1 + VOCAB
        p = random.dirichlet(np.full(VOCAB, 0.4), rows).astype(np.float32)
        ids = [np.sort(random.choice(VOCAB, 32, replace=False)) for _ in range(rows)]
        near = np.take_along_axis(p.astype(np.float64), np.stack(ids), 1) + 1e-4
        share = near / near.sum(1, keepdims=True)
        share = 0.6 * share + 0.4 * random.dirichlet(np.full(32, 0.4), rows)
        counts = random.multinomial(2**24, share / share.sum(1, keepdims=True))
        self.p = torch.from_numpy(p).to(device)
        self.ids = torch.from_numpy(np.stack(ids).astype(np.int32)).to(device)
        self.counts = torch.from_numpy(counts).to(device)
        self.device = device
        self.accept = _keys(Purpose.ACCEPT, device)
        self.residual = _keys(Purpose.RESIDUAL, device)
        self.proposal = _keys(Purpose.PROPOSAL, device)

    @property
    def q(self):
        """(41, 32) float32."""
        return (self.counts.double() * 2.0**-24).float()

    def draw(self, round_, key):
        """The drafts and the rows they came from, (SLOTS, DEPTH) each."""
        row = torch.zeros(SLOTS, dtype=torch.int64, device=self.device)
        drafts, rows = [], []
        for i in range(DEPTH):
            place = torch.full((SLOTS, 1), POSITION + i, device=self.device)
            draw24 = philox.words(key, round_, place)[0] >> 8
            at = (self.counts[row].cumsum(1) <= draw24).sum(1, keepdim=True)
            rows.append(row)
            drafts.append(self.ids[row].gather(1, at).squeeze(1).to(torch.int64))
            row = 1 + drafts[-1]
        return torch.stack(drafts, 1), torch.stack(rows, 1)

    def emitted(self, *, shared_stream=False, reported=None, spoil=None, rounds=20):
        """Counts (VOCAB, VOCAB) of the first two tokens, and drafts accepted.

        Where only one token is emitted, the second is a draw of the target given the
        first, which is what the next round would begin with.
        """
        q = self.q if reported is None else reported
        drafts = DraftProbs(SLOTS, DEPTH, VOCAB, self.device)
        zeros = torch.zeros(SLOTS, dtype=torch.int32, device=self.device)
        random = torch.Generator(self.device).manual_seed(5)
        table = torch.zeros(VOCAB * VOCAB, dtype=torch.int64, device=self.device)
        accepted = 0
        for round_ in range(1, rounds + 1):
            key = self.accept if shared_stream else self.proposal
            tokens, rows = self.draw(round_, key)
            views = ReplyTensors(
                round=torch.tensor(round_, device=self.device),
                status=zeros,
                tokens=tokens.int(),
                confidence=torch.zeros_like(tokens).float(),
                mask=zeros + 1,
                ids=self.ids[rows],
                q=q[rows],
            )
            drafts.scatter_q(views, round_)
            if spoil is not None:
                spoil(drafts)
            target = self.p[torch.cat([rows, 1 + tokens[:, -1:]], 1)]
            found = verify(
                target,
                drafts,
                slots=range(SLOTS),
                round_=round_,
                positions=[POSITION] * SLOTS,
                keys=torch.cat([self.accept, self.residual], 1),
            )
            assert not found.error.any().item()
            first = found.tokens[:, 0]
            follow = self.p[1 + first].multinomial(1, generator=random).squeeze(1)
            second = torch.where(found.count > 1, found.tokens[:, 1], follow)
            table += torch.bincount(first * VOCAB + second, minlength=VOCAB**2)
            accepted += (found.accepted > 0).sum().item()
        return table.view(VOCAB, VOCAB).cpu().numpy(), accepted

    def joint(self):
        """(VOCAB, VOCAB), what the first two tokens are to have."""
        p = self.p.double().cpu().numpy()
        p /= p.sum(1, keepdims=True)
        return p[0][:, None] * p[1:]


def _p_value(observed, law):
    """Chi-square; cells expected less than five times are put together."""
    expected = law.ravel() * observed.sum()
    rare = expected < 5.0
    cells = np.append(observed.ravel()[~rare], observed.ravel()[rare].sum())
    means = np.append(expected[~rare], expected[rare].sum())
    assert means[-1] > 0.0 or cells[-1] == 0
    keep = means > 0.0
    statistic = ((cells - means)[keep] ** 2 / means[keep]).sum()
    return stats.chi2.sf(statistic, keep.sum() - 1)


@pytest.fixture
def law(device):
    return Law(3, device)


def _uniform(law):
    return {"reported": torch.full_like(law.q, 1.0 / 32.0)}


def _stale(_law):
    """The dense rows of another step, under this round's stamp."""
    return {"spoil": lambda d: d.draft_probs.copy_(d.draft_probs.roll(1, 1))}


def _shared(_law):
    return {"shared_stream": True}


def _point_mass(target, drafts, r, _argmax):
    """The ratio as if the drafts were certain; the residual keeps q."""
    draft = drafts.drafts[r.row]
    offsets = torch.arange(drafts.depth, device=draft.device)
    u = philox.accept_uniform(r.key[:, :2], r.round, r.position[:, None] + offsets)
    return u < target[:, :-1].gather(2, draft[..., None]).squeeze(2).double()


def test_two_emitted_tokens_have_the_targets_joint_law(law):
    """204,800 rounds; acceptance is sum min(p, q), from both sides."""
    observed, accepted = law.emitted(rounds=ROUNDS)
    total = SLOTS * ROUNDS
    assert observed.sum() == total
    assert _p_value(observed, law.joint()) > 1e-3
    q = torch.zeros(VOCAB, dtype=torch.float64)
    q[law.ids[0].cpu().long()] = law.q[0].cpu().double()
    expected = torch.minimum(law.p[0].cpu().double(), q).sum().item()
    assert 0.2 < expected < 0.95
    sigma = (expected * (1.0 - expected) * total) ** 0.5
    assert abs(accepted - expected * total) < 4.0 * sigma


@pytest.mark.parametrize("wrong", [_stale, _uniform, _shared])
def test_a_wrong_q_or_a_shared_stream_is_seen_to_bias(law, wrong):
    """Negative controls: the check above can fail."""
    observed, _ = law.emitted(**wrong(law))
    assert _p_value(observed, law.joint()) < 1e-9


def test_a_point_mass_in_the_ratio_alone_is_seen_to_bias(law, monkeypatch):
    """The mixed form: lossless with its own residual, wrong with that of q."""
    monkeypatch.setattr(module, "_accepts", _point_mass)
    observed, _ = law.emitted()
    assert _p_value(observed, law.joint()) < 1e-9


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_the_law_holds_at_every_temperature_of_the_target(law, temperature):
    """The drafter's own temperature stays what it is."""
    logits = law.p.clamp(min=1e-6).log()[None]
    law.p = target_probs(logits, [temperature])[0]
    observed, _ = law.emitted()
    assert _p_value(observed, law.joint()) > 1e-3


def test_drafts_the_target_cannot_emit_are_never_accepted(law):
    """Disjoint supports: acceptance is 0, and the law is still the target's."""
    p = law.p.scatter(1, law.ids.long(), 0.0)
    law.p = p / p.sum(1, keepdim=True)
    observed, accepted = law.emitted()
    assert accepted == 0
    assert _p_value(observed, law.joint()) > 1e-3
