"""The torch verifier agrees with the vectors and, case by case, with the reference."""

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import bits, same

from pp3shm.gpu import DraftProbs, target_probs, verify
from pp3shm.rng import accept_uniform
from pp3shm.verify.keys import VerifyKeys

VECTORS = Path(__file__).parents[1] / "vectors"
DRAWS = json.loads((VECTORS / "verify_draws.json").read_text())["cases"]


@pytest.mark.parametrize(
    "case", DRAWS, ids=[f"{i} {c['kind']}" for i, c in enumerate(DRAWS)]
)
def test_known_answers_come_out_to_the_token(pages, case):
    slot, depth = case["slot"], case["depth"]
    row = pages.failed(depth)
    if not case["failed"]:
        q = ids = None
        if case["temperature_positive"]:
            ids = np.array(case["ids"], np.int32)
            q = np.array(case["counts"], np.float32) / np.float32(2**24)
        row = type(row)(np.array(case["drafts"], np.int32), ids, q)
    drafts = DraftProbs(4, depth, case["vocab"], pages.device)
    drafts.scatter_q(pages.load({slot: row}, case["round"], depth=depth), case["round"])
    target = [np.frombuffer(bytes.fromhex(p), "<f4") for p in case["target_probs"]]
    key = VerifyKeys.derive(
        bytes.fromhex(case["epoch"]), slot, case["generation"], case["user_seed"]
    )
    found = verify(
        torch.from_numpy(np.stack(target))[None].to(pages.device),
        drafts,
        slots=[slot],
        round_=case["round"],
        positions=[case["position"]],
        keys=[key],
        sampled=[case["temperature_positive"]],
    ).read()
    assert found.errors == (None,)
    expected = case["emitted"] + [-1] * (depth + 1 - len(case["emitted"]))
    assert expected == found.tokens[0].tolist()
    assert len(case["emitted"]) == found.count[0]


@pytest.mark.parametrize("vocab", [32, 33, 111, 517])
def test_thousands_of_mixed_requests_agree_with_the_reference(make_round, vocab):
    """Sampled, greedy, failed and absent together; any subset, in any order."""
    random = np.random.default_rng(vocab)
    accepted, last = [], set()
    for turn in range(200):
        case = make_round(random, vocab, 4 + turn % 2)
        slots = random.permutation(4)[: random.integers(1, 5)].tolist()
        found = case.run(slots).read()
        same(case.reference(slots), found)
        assert found.errors == (None,) * len(slots)
        accepted += found.accepted.tolist()
        last |= set(found.last)
    assert last == {"correction", "bonus", "target"}  # nothing went untested
    assert set(range(6)) == set(accepted)


def test_logits_at_each_requests_temperature_agree_with_the_reference(
    pages, make_round
):
    random = np.random.default_rng(11)
    for _ in range(100):
        case = make_round(random, 120, 5)
        case.temperature = [
            t and float(random.choice([0.3, 1.5])) for t in case.temperature
        ]
        logits = random.normal(0, 3, case.target.shape).astype(np.float32)
        logits[random.random(logits.shape) < 0.1] = -np.inf
        for slot, row in case.rows.items():
            near = (np.arange(5), np.maximum(row.drafts, 0))
            logits[(slot, *near)] = random.normal(9, 3, 5)
        target = target_probs(
            torch.from_numpy(logits).to(pages.device), case.temperature
        )
        found = case.run(target=target).read()
        same(case.reference(target=logits, logits=True), found)


def test_a_request_alone_gets_the_bits_it_gets_in_a_batch(make_round):
    random = np.random.default_rng(12)
    for _ in range(60):
        case = make_round(random, 200, 5, modes=[0, 1, 0, random.integers(4)])
        batch = bits(case.run())
        for slot in range(4):
            alone = bits(case.run([slot]))
            assert {name: [rows[slot]] for name, rows in batch.items()} == alone


def test_greedy_beside_sampled_is_the_argmax_and_leaves_the_sampled_alone(make_round):
    """T = 0, T > 0, T = 0; ties go to the lower id."""
    random = np.random.default_rng(13)
    for _ in range(20):
        case = make_round(random, 64, 4, modes=[1, 0, 1, 3])
        case.target[0, :, 7] = case.target[0, :, 50] = 0.4
        case.target[0] /= case.target[0].sum(1, keepdims=True)
        best = case.target.argmax(-1)
        found = case.run([0, 1, 2])
        for row, slot in ((0, 0), (2, 2)):
            count = int(found.count[row])
            assert best[slot, :count].tolist() == found.tokens[row, :count].tolist()
        alone = bits(case.run([1]))
        assert alone == {name: [rows[1]] for name, rows in bits(found).items()}


def test_one_request_without_q_is_target_only_and_the_others_do_not_notice(make_round):
    random = np.random.default_rng(14)
    for _ in range(30):
        case = make_round(random, 80, 5, modes=[0, 0, 0, 0])
        whole = case.run().read()
        case.views.status[2] = 3
        case.drafts.scatter_q(case.views, case.round)
        found = case.run().read()
        only = case.reference([2], page=False)
        assert found.tokens[2].tolist() == only.tokens[0].tolist()
        assert found.last[2] == "target"
        for slot in (0, 1, 3):
            assert whole.tokens[slot].tolist() == found.tokens[slot].tolist()


def test_strides_dtype_and_padding_of_the_target_change_nothing(pages, make_round):
    """Columns at or above vocab and rows above depth hold NaN and never come out."""
    random = np.random.default_rng(15)
    for _ in range(20):
        case = make_round(random, 97, 4)
        plain = torch.from_numpy(case.target).to(pages.device)
        padded = torch.full((4, 7, 128), math.nan, device=pages.device)
        padded[:, :5, :97] = plain
        expected = bits(case.run())
        for target in (
            plain.double(),
            plain.transpose(1, 2).contiguous().transpose(1, 2),
            plain.repeat_interleave(2, 0)[::2],
            padded,
        ):
            assert expected == bits(case.run(target=target))


def test_no_requests_give_no_results(make_round):
    """An engine's batch may hold none that speculates."""
    case = make_round(np.random.default_rng(27), 40, 4)
    found = case.run([]).read()
    assert found.tokens.shape == (0, 5)
    assert found.errors == ()


def test_acceptance_is_the_exact_comparison_of_rationals(make_round):
    """The target's p is u * q rounded to FP32, or the FP32 next to it."""
    random = np.random.default_rng(28)
    seen = {True: 0, False: 0}
    for _ in range(100):
        case = make_round(random, 64, 4, modes=[0, 0, 0, 0])
        expected = []
        for slot, row in case.rows.items():
            draft, place = int(row.drafts[0]), case.positions[slot]
            q = float(row.q[0, row.ids[0] == draft][0])
            u = accept_uniform(case.keys[slot].accept, case.round, place)
            p = np.nextafter(np.float32(u * q), np.float32(random.integers(0, 2)))
            p = random.choice([p, np.float32(u * q)])
            case.target[slot, 0] = 0.0
            case.target[slot, 0, draft] = p
            case.target[slot, 0, (draft + 1) % 64] = np.float32(1.0) - p
            expected.append(Fraction(u) * Fraction(q) < Fraction(float(p)))
            seen[expected[-1]] += 1
        found = case.run()
        assert expected == (found.accepted > 0).tolist()
    assert min(seen.values()) > 100
