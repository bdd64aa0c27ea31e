"""What must not be used is reported for its request, and yields no id."""

import importlib
import math

import numpy as np
import pytest
import torch
from batches import bits, same

from pp3shm.errors import ConfigError, VerifyError
from pp3shm.gpu import DraftProbs, Fault, key_words, target_probs, verify

# The package gives the function the module's name.
module = importlib.import_module("pp3shm.gpu.verify")


POISON = [math.nan, math.inf, -math.inf, -1e-7, 0.0, 2.0]


@pytest.mark.parametrize("poison", POISON)
def test_a_bad_target_row_is_its_requests_error_and_never_an_id(make_round, poison):
    """Each row that a request needs; NaN, infinities, a negative, no mass, too much."""
    random = np.random.default_rng(16)
    for turn in range(40):
        case = make_round(random, 70, 5)
        clean = case.run().read()
        slot = turn % 4
        row = int(random.integers(0, clean.count[slot]))
        if poison in (0.0, 2.0):
            case.target[slot, row] *= poison
        else:
            # At an id that no draft names: only looking at the whole row finds it.
            drafts = {*case.rows[slot].drafts.tolist(), *clean.tokens[slot].tolist()}
            free = sorted(set(range(70)) - drafts)
            case.target[slot, row, random.choice(free)] = poison
        found = case.run()
        assert found.error[slot].item() == Fault.TARGET
        assert found.tokens[slot].tolist() == [-1] * 6
        same(case.reference(), found.read())
        assert "target_probs" in found.read().errors[slot].place
        for other in set(range(4)) - {slot}:
            assert clean.tokens[other].tolist() == found.tokens[other].tolist()


@pytest.mark.parametrize("poison", POISON)
def test_rows_after_the_stop_may_hold_anything(make_round, poison):
    random = np.random.default_rng(17)
    for _ in range(40):
        case = make_round(random, 70, 5)
        clean = case.run()
        for slot in range(4):
            case.target[slot, int(clean.count[slot]) :] = poison
        assert bits(clean) == bits(case.run())


def test_a_row_of_another_round_is_refused_and_the_others_are_not(make_round):
    random = np.random.default_rng(18)
    case = make_round(random, 60, 5, modes=[0, 0, 1, 2])
    clean = case.run().read()
    later = case.run(round_=case.round + 1)
    assert later.error.tolist() == [Fault.STALE] * 4
    assert later.count.tolist() == [0] * 4
    assert (later.tokens == -1).all().item()
    for error in later.read().errors:
        assert isinstance(error, VerifyError)
        assert error.expected == case.round + 1
        assert error.found == case.round
    # One slot's row left over from the round before.
    case.drafts.round_of_slot[1] -= 1
    found = case.run().read()
    assert found.errors[1].place == "slot 1: round"
    assert found.count[1] == 0
    for slot in (0, 2, 3):
        assert found.errors[slot] is None
        assert clean.tokens[slot].tolist() == found.tokens[slot].tolist()


def test_before_any_page_every_slot_is_refused(pages, make_round):
    case = make_round(np.random.default_rng(19), 60, 5)
    case.drafts = DraftProbs(4, 5, 60, pages.device)
    found = case.run().read()
    assert [e.found for e in found.errors] == ["none"] * 4


def test_a_slot_that_does_not_exist_holds_no_round(pages, make_round):
    case = make_round(np.random.default_rng(20), 60, 5)
    target = torch.from_numpy(case.target[:2]).to(pages.device)
    found = verify(
        target,
        case.drafts,
        slots=torch.tensor([4, -1]),
        round_=case.round,
        positions=[0, 0],
        keys=case.keys[:2],
    )
    assert found.error.tolist() == [Fault.STALE] * 2


def test_a_greedy_row_is_never_verified_as_sampled_nor_the_reverse(make_round):
    case = make_round(np.random.default_rng(21), 60, 5, modes=[0, 1, 0, 1])
    found = case.run(sampled=[False, True, True, False])
    assert found.error.tolist() == [Fault.MODE, Fault.MODE, 0, 0]
    assert found.count[:2].tolist() == [0, 0]
    case.temperature = [0.0, 1.0, 1.0, 0.0]
    same(case.reference(), found.read())
    everything = case.run(sampled=None)
    assert everything.error.tolist() == [0, Fault.MODE, 0, Fault.MODE]


SPOILED = {
    "a NaN": ("q", math.nan),
    "a negative": ("q", -0.5),
    "mass beyond 1": ("q", 0.75),
    "an id of 2**31 - 1": ("ids", 2**31 - 1),
    "a negative id": ("ids", -1),
    "a wild draft": ("tokens", 2**31 - 1),
}


@pytest.mark.parametrize("spoiled", SPOILED)
def test_a_row_refused_on_the_copy_emits_nothing_as_in_the_reference(
    make_round, spoiled
):
    name, value = SPOILED[spoiled]
    case = make_round(np.random.default_rng(22), 60, 5, modes=[0, 0, 0, 0])
    place = (1, 0) if name == "tokens" else (1, 0, 3)
    getattr(case.views, name)[place] = value
    getattr(case.page, name)[place] = value
    case.drafts.scatter_q(case.views, case.round)
    found, expected = case.run().read(), case.reference()
    for verified in (found, expected):
        assert [e is None for e in verified.errors] == [True, False, True, True]
        assert verified.count[1] == 0
        assert verified.tokens[1].tolist() == [-1] * 6
    assert found.tokens.tolist() == expected.tokens.tolist()


def test_a_draft_of_probability_zero_is_not_accepted_even_at_uniform_zero(
    make_round, monkeypatch
):
    case = make_round(np.random.default_rng(23), 60, 4, modes=[0, 0, 0, 0])
    for slot in range(4):
        case.target[slot, 0, case.rows[slot].drafts[0]] = 0.0
        case.target[slot, 0] /= case.target[slot, 0].sum()
    monkeypatch.setattr(
        module, "accept_uniform", lambda _key, _round, p: torch.zeros(p.shape).to(p)
    )
    found = case.run()
    assert found.accepted.tolist() == [0] * 4
    for slot in range(4):
        assert found.tokens[slot, 0].item() != case.rows[slot].drafts[0]


def test_an_empty_computed_residual_draws_from_p_and_is_counted(
    make_round, monkeypatch
):
    """The target a little below q everywhere, as rounding may do; the largest u."""
    case = make_round(np.random.default_rng(24), 60, 4, modes=[0, 0, 0, 0])
    case.target[:, :4] = case.drafts.draft_probs.cpu().numpy() * np.float32(0.9995)
    top = 1.0 - 2.0**-29
    monkeypatch.setattr(
        module,
        "accept_uniform",
        lambda _key, _round, p: torch.full_like(p, top, dtype=torch.float64),
    )
    found = case.run().read()
    assert found.no_mass.tolist() == [True] * 4
    assert found.errors == (None,) * 4
    # The draw is the one that the target alone gives at this place.
    only = case.reference(page=False)
    assert only.tokens[:, 0].tolist() == found.tokens[:, 0].tolist()


def test_uninitialised_memory_reaches_no_result(pages, make_round):
    """Every new buffer of torch is filled with NaN or the largest integer first."""
    if pages.device != "cpu":
        pytest.skip("deterministic mode also changes which CUDA kernels run")
    torch.use_deterministic_algorithms(mode=True)
    assert torch.utils.deterministic.fill_uninitialized_memory
    try:
        for seed in range(5):
            case = make_round(np.random.default_rng(seed), 50, 5)
            same(case.reference(), case.run().read())
    finally:
        torch.use_deterministic_algorithms(mode=False)


def test_nothing_but_read_synchronises(pages, make_round):
    """CUDA refuses every synchronising call meanwhile."""
    if pages.device == "cpu":
        pytest.skip("the CPU has nothing to synchronise")
    case = make_round(np.random.default_rng(25), 50, 5)
    target = torch.from_numpy(case.target).cuda()
    case.run(target=target)
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.drafts.scatter_q(case.views, case.round)
        case.drafts.draft_logits([1.0] * 4)
        target_probs(target, [1.0, 0.0, 0.5, 2.0])
        case.run(target=target)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_results_have_their_types_and_arguments_theirs(pages, make_round):
    case = make_round(np.random.default_rng(26), 50, 5)
    found = case.run(keys=key_words(case.keys, pages.device))
    assert bits(case.run()) == bits(found)
    for name in ("tokens", "count", "accepted", "error", "mode", "round_of_row"):
        assert getattr(found, name).dtype == torch.int64
    assert found.no_mass.dtype == torch.bool
    assert tuple(found.tokens.shape) == (4, 6)
    good = torch.from_numpy(case.target).to(pages.device)
    for name, changes in {
        "target_probs.dtype": {"target": good.bfloat16()},
        "target_probs.shape": {"target": good[..., :49]},
        "target_probs.device": {"target": good.to("meta")},
        "keys": {"keys": case.keys[:3]},
        "slots": {"slots": torch.tensor([0.0, 1.0, 2.0, 3.0])},
        "positions": {"positions": [1, 2, 3]},
        "sampled": {"sampled": [True]},
        "round": {"round_": 2**64 - 1},
    }.items():
        with pytest.raises(ConfigError) as caught:
            case.run(**changes)
        assert caught.value.place == name.strip()
