"""The emitted law through every real part: 200,000 verified rounds, chi-square.

Worker process, process proxy, shared region; four requests, each with a round of its
own in flight. What is emitted must be the target's Markov chain, transition by
transition; three wrong verifiers that see the very same drafts must be seen to fail.
"""

import subprocess
import sys
from pathlib import Path

import chain_drafter
import numpy as np
import pytest
from scipy import stats

from pp3shm import Engine, Profile, Row, Status
from pp3shm.verify import Request, VerifyKeys, verify

ROUNDS = 200_000
SLOTS = 4
RESET_AT = 2000
VOCAB = chain_drafter.VOCAB
HERE = Path(__file__).parent


def profile_of():
    return Profile.sampled(
        vocab=VOCAB, depth=5, max_slots=SLOTS, max_positions=RESET_AT + 16
    )


@pytest.fixture
def worker_address(tmp_path):
    profile = profile_of().values()
    address = f"unix://{tmp_path / 'worker'}"
    options = ["depth", "vocab", "max_slots", "max_positions"]
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "pp3shm", "worker", "--listen", address),
            *("--sampled", "--drafter", "chain_drafter:DRAFTER"),
            *(f"--{name.replace('_', '-')}={profile[name]}" for name in options),
        ],
        stdout=subprocess.PIPE,
        cwd=HERE,
    )
    assert b"listening" in process.stdout.readline()
    yield address
    process.terminate()
    assert process.wait(10) == 0
    process.stdout.close()


class Chain:
    """One request that decodes on and on."""

    def __init__(self, engine, slot):
        self.engine = engine
        self.slot = slot
        self.restart(0)

    def restart(self, token):
        self.last = token
        self.position = 1
        generation = self.engine.reset(self.slot, [token])
        self.keys = VerifyKeys.derive(self.engine.epoch, self.slot, generation, 3)

    def step(self):
        self.ticket = self.engine.step([Row(self.slot, 3)], timeout_s=10)

    def take(self):
        """The context, first draft and its q, and what was emitted."""
        with self.engine.reply(self.ticket) as reply:
            assert Status.OK == reply.status[self.slot]
            drafts = reply.tokens[self.slot].copy()
            q = np.zeros(VOCAB)
            q[reply.ids[self.slot, 0]] = reply.q[self.slot, 0]
            rows = chain_drafter.TARGET[[self.last, *drafts]]
            request = Request(self.slot, self.position, self.keys)
            done = verify(reply, [rows], [request], round=reply.round, vocab=VOCAB)
        assert done.errors == (None,)
        context, emitted = self.last, done.tokens[0, : done.count[0]].tolist()
        self.position += len(emitted)
        self.last = emitted[-1]
        if self.position >= RESET_AT:
            self.restart(self.last)
        else:
            self.engine.commit(self.slot, emitted)
        return context, int(drafts[0]), q, emitted, int(done.accepted[0])


def p_value(counts):
    """Chi-square of transitions against the target, cells of 5 expected or more."""
    statistic = degrees = 0
    for seen, law in zip(counts, chain_drafter.TARGET, strict=True):
        fair = law / law.sum() * seen.sum()
        small = fair < 5
        cells = [*fair[~small], fair[small].sum()]
        found = [*seen[~small], seen[small].sum()]
        if cells[-1] < 5:  # too little even together: to the smallest that is enough
            cells[-2:] = [cells[-2] + cells[-1]]
            found[-2:] = [found[-2] + found[-1]]
        statistic += sum((f - e) ** 2 / e for f, e in zip(found, cells, strict=True))
        degrees += len(cells) - 1
    return float(stats.chi2.sf(statistic, degrees))


def controls(rng, p, q, draft):
    """First tokens of three wrong verifiers that see this draft."""
    residual = np.maximum(p - q, 0)
    residual /= residual.sum()
    without = p.copy()
    without[draft] = 0
    without /= without.sum()
    ratio = min(1.0, p[draft] / q[draft])
    u, v = rng.random(2)

    def draw(law):
        return int(np.searchsorted(np.cumsum(law), v * law.sum(), side="right"))

    return {
        "q a point mass in the ratio alone": draft if u < p[draft] else draw(residual),
        "q's ratio, a point mass's residual": draft if u < ratio else draw(without),
        "q uniform over the vocabulary": (
            draft if u < p[draft] * VOCAB else draw(np.maximum(p - 1 / VOCAB, 0))
        ),
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_200000_verified_rounds_emit_the_target_and_wrong_verifiers_are_seen(
    worker_address,
):
    rng = np.random.default_rng(20261130)
    emitted_counts = np.zeros((VOCAB, VOCAB))
    wrong_counts = {}
    overlap = accepted = 0.0
    with Engine.create(profile_of(), worker=worker_address, wait="futex") as engine:
        chains = [Chain(engine, slot) for slot in range(SLOTS)]
        for chain in chains:
            chain.step()
        for done in range(ROUNDS):
            chain = chains[done % SLOTS]
            context, draft, q, emitted, count = chain.take()
            chain.step()
            p = chain_drafter.TARGET[context]
            overlap += np.minimum(p, q).sum()
            accepted += count > 0
            wrong_tokens = {} if done % 10 else controls(rng, p, q, draft)
            for name, token in wrong_tokens.items():
                wrong = wrong_counts.setdefault(name, np.zeros((VOCAB, VOCAB)))
                wrong[context, min(token, VOCAB - 1)] += 1
            for token in emitted:
                emitted_counts[context, token] += 1
                context = token
        counted = engine.stats()
    found = p_value(emitted_counts)
    wrong_values = {name: p_value(counts) for name, counts in wrong_counts.items()}
    print(f"{ROUNDS} rounds, {emitted_counts.sum():.0f} tokens, p = {found:.3g}")
    print("controls", wrong_values, "lost wakes", counted["lost_wakes"])
    assert counted["replies"] >= ROUNDS
    assert found > 1e-4
    assert max(wrong_values.values()) < 1e-9
    # Acceptance equals its expectation, sum min(p, q), within 4 sigma.
    expected = overlap / ROUNDS
    sigma = np.sqrt(expected * (1 - expected) / ROUNDS)
    assert abs(accepted / ROUNDS - expected) < 4 * sigma
