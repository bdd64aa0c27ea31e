"""What the NumPy verifier emits has the target's law; what others did has not.

Exactly: the verifier's own decisions are enumerated over all its uniforms and compared
with the oracle. Statistically: with the real streams of drafter and verifier. Each way
is also shown faults that it must notice.
"""

from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from pp3shm import oracle
from pp3shm.conformance.numbers import conditionals_of
from pp3shm.errors import VerifyError
from pp3shm.oracle import Conditional
from pp3shm.proposal.proposal import propose_chain
from pp3shm.rng import Purpose, accept_uniform, request_key, residual_uniform
from pp3shm.verify.keys import VerifyKeys
from pp3shm.verify.reference import RowResult, inverse_cdf, standard, verify_row

GRID = Fraction(1, 2**29)  # one step of an acceptance uniform


def models_of(seed, vocab, depth, *, sharp=False):
    """Random models whose chances are multiples of 1/64, exact in float32."""
    g = np.random.default_rng(seed)

    def row():
        weight = g.dirichlet(np.full(vocab, 0.3 if sharp else 1.0))
        counts = np.floor(weight * 64).astype(int)
        counts[weight.argmax()] += 64 - counts.sum()
        return [Fraction(int(count), 64) for count in counts]

    prefixes, found = [()], {}
    for length in range(depth + 1):
        for prefix in prefixes:
            found[prefix] = Conditional(row(), row() if length < depth else None)
        prefixes = [(*prefix, token) for prefix in prefixes for token in range(vocab)]
    return found


def arrays(models, drafts):
    """Rows of p and of q along the drafted path, as a verifier gets them."""
    p = [
        np.array([float(x) for x in models[drafts[:i]].p])
        for i in range(len(drafts) + 1)
    ]
    q = [
        np.array([float(x) for x in models[drafts[:i]].q], np.float32)
        for i in range(len(drafts))
    ]
    return p, np.array(q, np.float32)


def numpy_verifier(models):
    """The library's reference as the oracle asks it."""

    def decide(drafts, accept, residual):
        p, q = arrays(models, drafts)
        ids = np.tile(np.arange(q.shape[1], dtype=np.int32), (len(drafts), 1))
        return standard(
            p.__getitem__, drafts, ids, q,
            accept=lambda i: accept[i] * 2.0**-29,
            residual=lambda i: residual[i] * 2.0**-53,
        ).tokens  # fmt: skip

    return decide


def verifier(rule, correct):
    """A verifier with another acceptance rule or another correction."""

    def made(models):
        def decide(drafts, accept, residual):
            p, q = arrays(models, drafts)
            tokens = []
            for i, draft in enumerate(drafts):
                if rule(accept[i] * 2.0**-29, p[i], q[i], draft):
                    tokens.append(draft)
                    continue
                weight = correct(p[i], q[i], draft)
                tokens.append(
                    inverse_cdf(
                        weight if weight.any() else p[i], residual[i] * 2.0**-53
                    )
                )
                return tokens
            return [*tokens, inverse_cdf(p[-1], residual[len(drafts)] * 2.0**-53)]

        return decide

    return made


def ratio(u, p, q, draft):
    return u * float(q[draft]) < p[draft]


def rest(p, q, _draft):
    return np.maximum(p - q, 0)


def without(p, _q, draft):
    return np.where(np.arange(p.size) == draft, 0, p)


SOUND = {
    "as specified": verifier(ratio, rest),
    # A point mass is a legal q of any draft, if it is used in both places.
    "point mass in ratio and residual": verifier(
        lambda u, p, _q, draft: u < p[draft], without
    ),
}
UNSOUND = {
    "ratio with q, residual of a point mass": verifier(ratio, without),
    "ratio of a point mass, residual with q": verifier(
        lambda u, p, _q, draft: u < p[draft], rest
    ),
    "q of another step in both": verifier(
        lambda u, p, q, draft: u * np.roll(q, 1)[draft] < p[draft],
        lambda p, q, _draft: np.maximum(p - np.roll(q, 1), 0),
    ),
    "uniform hard-coded to 0": verifier(
        lambda _u, p, q, draft: ratio(0, p, q, draft), rest
    ),
    "everything accepted": verifier(lambda *_: True, rest),
    "correction drawn from p": verifier(ratio, lambda p, _q, _draft: p),
    "residual cut to the support of q": verifier(
        ratio, lambda p, q, _draft: np.where(q > 0, np.maximum(p - q, 0), 0)
    ),
    "zero drafts refused afterwards": verifier(
        lambda u, p, q, draft: draft != 0 and ratio(u, p, q, draft), rest
    ),
    "q sharpened by the target's temperature": verifier(
        lambda u, p, q, draft: u * (q**2 / (q**2).sum())[draft] < p[draft], rest
    ),
}


def loss(decide, models, depth):
    """Total variation between the target and what is emitted and then continued."""
    law = oracle.implementation_law(decide, models, depth)
    completed = oracle.completed_law(law, models, depth + 1)
    target = oracle.target_law(models, depth + 1)
    return (
        sum(
            abs(completed.get(tokens, Fraction(0)) - target.get(tokens, Fraction(0)))
            for tokens in completed.keys() | target.keys()
        )
        / 2
    )


@pytest.mark.parametrize(
    ("seed", "vocab", "depth"),
    [(1, 2, 1), (2, 4, 1), (3, 6, 1), (4, 3, 2), (5, 2, 3), (6, 4, 2)],
)
@pytest.mark.parametrize("sharp", [False, True], ids=["even", "sharp"])
def test_the_verifiers_own_law_is_the_oracles(seed, vocab, depth, sharp):
    """To within one grid step per decision: uniforms have 29 bits."""
    models = models_of(seed, vocab, depth, sharp=sharp)
    found = oracle.implementation_law(numpy_verifier(models), models, depth)
    expected = oracle.emitted_law(models, depth)
    assert sum(found.values()) == 1
    for tokens in found.keys() | expected.keys():
        difference = found.get(tokens, 0) - expected.get(tokens, 0)
        assert abs(difference) <= (depth + 1) * GRID
    assert loss(numpy_verifier(models), models, depth) <= (depth + 1) * GRID


def test_where_every_chance_is_on_the_grid_the_law_is_exact():
    """Ratios in halves and quarters: no rounding is left anywhere."""
    quarter, half = Fraction(1, 4), Fraction(1, 2)
    models = {(): Conditional([quarter, half, quarter], [half, quarter, quarter])}
    models |= {
        (token,): Conditional([half, quarter, quarter], None) for token in range(3)
    }
    found = oracle.implementation_law(numpy_verifier(models), models, 1)
    assert found == oracle.emitted_law(models, 1)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_verifier_loses_nothing(name):
    models = models_of(11, 3, 2)
    assert loss(SOUND[name](models), models, 2) <= 3 * GRID


def test_a_product_rounded_to_fp32_is_told_from_the_exact_one():
    """NumPy multiplies a Python float by a float32 in FP32: two grid steps too many."""
    models = models_of(11, 3, 2)
    rounded = verifier(lambda u, p, q, d: np.float32(u) * q[d] < p[d], rest)
    assert loss(rounded(models), models, 2) > 3 * GRID


@pytest.mark.parametrize("name", UNSOUND)
def test_a_fault_others_had_is_noticed(name):
    models = models_of(11, 3, 2)
    assert loss(UNSOUND[name](models), models, 2) > Fraction(1, 100)


def test_a_draft_that_q_cannot_draw_is_an_error_never_a_token():
    """Accepting q(d) = 0 wherever p(d) > 0 is what the bare ratio would do."""
    models = models_of(11, 3, 1)
    bare = [Fraction(0), Fraction(1, 2), Fraction(1, 2)]
    models[()] = Conditional(models[()].p, bare)
    assert models[()].p[0] > 0
    fault = SOUND["as specified"](models)
    assert fault((0,), [2**29 - 1], [0, 0])[0] == 0
    with pytest.raises(VerifyError, match=r"drafts\[0\].*a token that q can draw"):
        numpy_verifier(models)((0,), [0], [0, 0])


@pytest.mark.parametrize("shared", ["nothing", "accept", "residual"])
def test_noise_that_drew_the_draft_is_not_used_again(shared):
    """With 8 steps for each decision all chances here are exact."""
    steps, eighth = 8, Fraction(1, 8)
    p = [2 * eighth, 3 * eighth, 3 * eighth]
    models = {(): Conditional(p, [4 * eighth, 2 * eighth, 2 * eighth])}
    models |= {(token,): Conditional(p, None) for token in range(3)}
    q = np.cumsum([float(x) for x in models[()].q])
    decide = numpy_verifier(models)
    law = dict.fromkeys(range(3), Fraction(0))
    every = range(steps)
    for noise in every:
        draft = int(np.searchsorted(q, noise / steps, side="right"))
        for accept in [noise] if shared == "accept" else every:
            for residual in [noise] if shared == "residual" else every:
                bits = [accept * 2**29 // steps], [residual * 2**53 // steps, 0]
                law[decide((draft,), *bits)[0]] += 1
    total = sum(law.values())
    assert (p == [law[token] / total for token in range(3)]) == (shared == "nothing")


def play(rounds, p, temperature, judge):
    """First emitted tokens, and accepted drafts, of real rounds."""
    vocab = p.size
    logits = np.random.default_rng(5).normal(0, 1, (1, 1, vocab)).astype(np.float32)
    weight = p ** (1 / temperature)
    rows = np.tile(weight / weight.sum(), (2, 1))
    key = request_key(Purpose.PROPOSAL, b"session" + bytes(9), 2, 3, 4)
    keys = VerifyKeys.derive(b"epoch" + bytes(11), 2, 3, 4)
    seen, accepted = np.zeros(vocab), 0
    for round_ in range(1, rounds + 1):
        out = propose_chain(logits, keys=[key], round=round_, positions=[50])
        result = judge(
            rows, out.tokens[0], out.ids[0], out.q[0], accept_key=keys.accept,
            residual_key=keys.residual, round=round_, position=50,
        )  # fmt: skip
        seen[result.tokens[0]] += 1
        accepted += result.accepted
    dense = np.zeros(vocab)
    dense[out.ids[0, 0]] = out.q[0, 0]
    return seen, accepted, rows[0], dense


def point_mass_in_the_ratio(rows, drafts, ids, q, **keys):
    """The negative control: the same drafts, the ratio taken as if q were 1."""
    at = keys["round"], keys["position"]
    draft = int(drafts[0])
    if accept_uniform(keys["accept_key"], *at) < rows[0, draft]:
        return RowResult([draft], 1, "bonus")
    weight = rows[0].copy()
    weight[ids[0]] = np.maximum(weight[ids[0]] - q[0], 0)
    uniform = residual_uniform(keys["residual_key"], *at)
    return RowResult([inverse_cdf(weight, uniform)], 0, "correction")


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.5])
def test_real_rounds_emit_the_targets_distribution(temperature):
    """The drafter's temperature is its own affair."""
    rounds, seed = 6000, 7
    print("seed", seed)
    p = np.random.default_rng(seed).dirichlet(np.full(40, 0.5))
    seen, accepted, target, q = play(rounds, p, temperature, verify_row)
    expected = target * rounds
    big = expected >= 5
    pooled = [np.append(x[big], x[~big].sum()) for x in (seen, expected)]
    assert stats.chisquare(*pooled).pvalue > 1e-4
    chance = np.minimum(target, q).sum()
    spread = (rounds * chance * (1 - chance)) ** 0.5
    assert abs(accepted - rounds * chance) < 4 * spread
    assert chance > 2 * (target * q).sum()  # a point mass would accept far less


def test_a_point_mass_in_the_ratio_alone_is_noticed():
    rounds = 6000
    p = np.random.default_rng(7).dirichlet(np.full(40, 0.5))
    seen, _, target, _ = play(rounds, p, 1.0, point_mass_in_the_ratio)
    expected = target * rounds
    big = expected >= 5
    pooled = [np.append(x[big], x[~big].sum()) for x in (seen, expected)]
    assert stats.chisquare(*pooled).pvalue < 1e-9


def test_cases_of_the_known_laws_hold_for_the_program_too():
    """A vector's models, decided by NumPy instead of fractions."""
    third = {"p": [1, 1, 2], "q": [2, 1, 1]}
    case = {
        "denominator": 4,
        "conditionals": {"": third} | {str(d): third | {"q": None} for d in range(3)},
    }
    models = conditionals_of(case)
    assert oracle.emitted_law(models, 1) == oracle.implementation_law(
        numpy_verifier(models), models, 1
    )
