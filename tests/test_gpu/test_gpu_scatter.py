"""Dense q by slot: exact, erased exactly, checked on the copy that is used."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from pp3shm.errors import ConfigError
from pp3shm.gpu import DraftProbs, Fault, Mode, Page, ReplyTensors, scatter
from pp3shm.layout.reply import ReplyLayout
from pp3shm.layout.tables import Status

SHAPES = [
    pytest.param(slots, depth, vocab, id=f"B{slots} depth {depth} vocab {vocab}")
    for slots in (1, 4)
    for depth in (4, 5)
    for vocab in (32, 111, 129280)
]


def _dense(rows, slots, depth, vocab):
    """The rows built anew: what erasing and writing must come to."""
    dense = np.zeros((slots, depth, vocab), np.float32)
    for slot, row in rows.items():
        if row.q is not None:
            np.put_along_axis(dense[slot], row.ids.astype(np.int64), row.q, axis=1)
    return dense


def _equal(expected, found):
    """Bitwise, for FP32."""
    assert found.dtype == torch.float32
    return expected.tobytes() == found.cpu().numpy().tobytes()


@pytest.mark.parametrize(("slots", "depth", "vocab"), SHAPES)
def test_q_comes_back_to_the_bit_and_nothing_else_is_there(pages, slots, depth, vocab):
    random = np.random.default_rng(2)
    rows = {s: pages.sampled(random, vocab, depth) for s in range(slots)}
    drafts = DraftProbs(slots, depth, vocab, pages.device)
    drafts.scatter_q(pages.load(rows, 9, depth=depth, max_slots=slots), 9)
    assert _equal(_dense(rows, slots, depth, vocab), drafts.draft_probs)
    for slot, row in rows.items():
        ids = torch.from_numpy(row.ids.astype(np.int64)).to(pages.device)
        assert _equal(row.q, drafts.draft_probs[slot].gather(1, ids))
        assert row.drafts.tolist() == drafts.drafts[slot].tolist()
    assert drafts.mode_of_slot.tolist() == [Mode.SAMPLED] * slots
    assert drafts.round_of_slot.tolist() == [9] * slots


@pytest.mark.parametrize("vocab", [32, 60, 1000])
def test_hundreds_of_random_rounds_leave_what_a_dense_rebuild_leaves(pages, vocab):
    """Any mixture of sampled, greedy, failed and absent, in one reused page."""
    random = np.random.default_rng(vocab)
    layout = ReplyLayout(4, 5, sampled=True)
    buffer = bytearray(layout.size)
    page = Page(layout, buffer, pages.device)
    drafts = DraftProbs(4, 5, vocab, pages.device)
    for round_ in range(1, 301):
        rows = {}
        for slot, mode in enumerate(random.integers(0, 4, 4)):
            if mode == 0:
                rows[slot] = pages.sampled(random, vocab, 5)
            elif mode == 1:
                rows[slot] = pages.greedy(random, vocab, 5)
            elif mode == 2:
                rows[slot] = pages.failed(5, int(random.integers(2, 9)))
        pages.fill(layout, round_, rows, buffer)
        drafts.scatter_q(page.load(), round_)
        assert _equal(_dense(rows, 4, 5, vocab), drafts.draft_probs), round_
        expected = [
            Mode.TARGET_ONLY
            if slot not in rows or rows[slot].status
            else (Mode.GREEDY if rows[slot].q is None else Mode.SAMPLED)
            for slot in range(4)
        ]
        assert expected == drafts.mode_of_slot.tolist(), round_
        assert drafts.round_of_slot.tolist() == [round_] * 4
        assert drafts.fault_of_slot.tolist() == [Fault.NONE] * 4


def test_the_callers_buffer_is_used_whatever_it_held(pages):
    """Poisoned before: NaN everywhere."""
    random = np.random.default_rng(3)
    buffer = torch.full((4, 5, 200), math.nan, device=pages.device)
    drafts = DraftProbs(4, 5, 200, draft_probs=buffer)
    assert drafts.draft_probs.data_ptr() == buffer.data_ptr()
    rows = {1: pages.sampled(random, 200, 5)}
    drafts.scatter_q(pages.load(rows, 1), 1)
    assert _equal(_dense(rows, 4, 5, 200), buffer)


def test_a_page_of_another_round_leaves_no_round_and_no_q(pages):
    random = np.random.default_rng(4)
    drafts = DraftProbs(4, 5, 50, pages.device)
    rows = {s: pages.sampled(random, 50, 5) for s in range(4)}
    drafts.scatter_q(pages.load(rows, 7), 7)
    drafts.scatter_q(pages.load(rows, 7), 8)
    assert drafts.round_of_slot.tolist() == [scatter.NONE] * 4
    assert drafts.mode_of_slot.tolist() == [Mode.TARGET_ONLY] * 4
    assert not drafts.draft_probs.any().item()


@pytest.mark.parametrize("round_", [0, 2**63 - 1, 2**63, 2**64 - 2])
def test_rounds_of_64_bits_are_told_apart(pages, round_):
    rows = {0: pages.greedy(np.random.default_rng(0), 50, 5)}
    drafts = DraftProbs(4, 5, 50, pages.device)
    drafts.scatter_q(pages.load(rows, round_), round_)
    assert drafts.mode_of_slot.tolist() == [Mode.GREEDY, 0, 0, 0]
    drafts.scatter_q(pages.load(rows, round_), (round_ + 2**32) % 2**64)
    assert drafts.mode_of_slot.tolist() == [0, 0, 0, 0]


def _change(field, index, value):
    def spoil(views):
        getattr(views, field)[(1, *index)] = value

    return spoil


def _draft_without_mass(views):
    """The draft stays in the support, its q goes to a neighbour."""
    at = int(np.flatnonzero(views.ids[1, 4] == views.tokens[1, 4])[0])
    views.q[1, 4, (at + 1) % 32] += views.q[1, 4, at]
    views.q[1, 4, at] = 0.0


def _negative_but_whole(views):
    """The row still adds up to 1, exactly."""
    at = int(views.q[1, 0].argmax())
    beside = (at + 1) % 32
    views.q[1, 0, at] += views.q[1, 0, beside] + np.float32(2.0**-24)
    views.q[1, 0, beside] = -(2.0**-24)
    assert views.q[1, 0].astype(np.float64).sum() == 1.0


SPOILED = [
    *(
        pytest.param(_change("ids", (i, k), value), Fault.SUPPORT, id=f"id {value}")
        for i, k, value in (
            (0, 0, -1),
            (4, 31, 50),
            (2, 5, 2**31 - 1),
            (3, 0, -(2**31)),
            (1, 31, 129280),
        )
    ),
    pytest.param(_change("ids", (2, slice(None)), 7), Fault.SUPPORT, id="equal ids"),
    pytest.param(
        _change("ids", (3,), np.arange(31, -1, -1)), Fault.SUPPORT, id="descending ids"
    ),
    *(
        pytest.param(_change("tokens", (i,), value), Fault.TOKEN, id=f"draft {value}")
        for i, value in ((0, -1), (4, 50), (2, 2**31 - 1), (3, -(2**31)))
    ),
    *(
        pytest.param(_change("mask", (), value), Fault.MASK, id=f"mask {value}")
        for value in (2, -1, 2**31 - 1)
    ),
    *(
        pytest.param(_change("q", (i, k), value), Fault.MASS, id=f"q {value}")
        for i, k, value in (
            (0, 0, math.nan),
            (4, 31, math.inf),
            (2, 3, -math.inf),
            (1, 1, 3.0),
        )
    ),
    pytest.param(_change("q", (), 0.0), Fault.MASS, id="q all zero"),
    pytest.param(_draft_without_mass, Fault.MASS, id="draft without mass"),
    pytest.param(_negative_but_whole, Fault.MASS, id="a negative in a mass of 1"),
]


@pytest.mark.parametrize(("spoil", "fault"), SPOILED)
def test_a_row_spoiled_after_the_proxy_fails_alone_and_says_why(pages, spoil, fault):
    """Hostile words reach nothing outside, and no other slot."""
    random = np.random.default_rng(5)
    guard = torch.full((6, 5, 50), 3.0, device=pages.device)
    drafts = DraftProbs(4, 5, 50, draft_probs=guard[1:5])
    rows = {s: pages.sampled(random, 50, 5) for s in range(4)}
    drafts.scatter_q(pages.load(rows, 6), 6)
    drafts.scatter_q(pages.load(rows, 7, spoil=spoil), 7)
    del rows[1]
    assert _equal(_dense(rows, 4, 5, 50), drafts.draft_probs)
    assert (guard[0] == 3.0).all().item()
    assert (guard[5] == 3.0).all().item()
    assert drafts.fault_of_slot.tolist() == [0, fault, 0, 0]
    assert drafts.mode_of_slot.tolist() == [2, Mode.TARGET_ONLY, 2, 2]
    assert drafts.drafts[1].tolist() == [-1] * 5


def test_pages_of_random_bytes_never_reach_outside(pages):
    random = np.random.default_rng(6)
    layout = ReplyLayout(4, 5, sampled=True)
    guard = torch.zeros((6, 5, 64), device=pages.device)
    drafts = DraftProbs(4, 5, 64, draft_probs=guard[1:5])
    buffer = bytearray(layout.size)
    page = Page(layout, buffer, pages.device)
    for _ in range(300):
        buffer[:] = random.bytes(layout.size)
        views = layout.views(buffer)
        views.round[()], views.status[:] = 1, random.integers(0, 2, 4)
        views.mask[:] = random.integers(0, 2, 4)
        drafts.scatter_q(page.load(), 1)
        assert not guard.any().item()


def test_what_is_checked_is_what_is_used(pages, monkeypatch):
    """The page changes right after the check: the checked copy is written.

    In torch; the C text copies into memory of its own first.
    """
    random = np.random.default_rng(7)
    rows = {s: pages.sampled(random, 50, 5) for s in range(4)}
    views = pages.load(rows, 1)
    check = scatter.page_fault

    def check_then_spoil(page, vocab):
        fault = check(page, vocab)
        for field in (views.ids, views.tokens, views.mask, views.q):
            field.fill_(2**30)
        return fault

    monkeypatch.setattr(scatter, "page_fault", check_then_spoil)
    drafts = DraftProbs(4, 5, 50, pages.device)
    monkeypatch.setattr(drafts, "_core", None)
    drafts.scatter_q(views, 1)
    assert _equal(_dense(rows, 4, 5, 50), drafts.draft_probs)
    assert [rows[s].drafts.tolist() for s in range(4)] == drafts.drafts.tolist()


def _spoilt(random, views):
    """One word of one array set to something, as likely wrong as right."""
    arrays = [views.status, views.tokens, views.mask, views.ids, views.q, views.round]
    array = arrays[random.integers(len(arrays))].reshape(-1)
    at = int(random.integers(array.numel()))
    if array.dtype == torch.float32:
        wild = [0.0, -0.0, 1.0, 2.0**-24, -1.0, np.nan, np.inf, 0.5]
    else:
        wild = [-(2**31), -2, -1, 0, 1, 2, 31, 32, 49, 50, 2**31 - 1]
        wild.append(int(array[at]) % 2**30 + 1)
    array[at] = wild[random.integers(len(wild))]


def test_the_core_and_torch_do_the_same_with_any_page(pages):
    """Hundreds of pages, most of them spoilt; and by turns on the same rows."""
    if pages.device != "cpu":
        pytest.skip("the core's scatter is for the CPU")
    random = np.random.default_rng(11)
    by_core, by_torch = (DraftProbs(4, 5, 50) for _ in range(2))
    by_turns = DraftProbs(4, 5, 50)
    core = by_turns._core
    by_torch._core = None
    seen = set()
    for round_ in range(1, 601):
        rows = {}
        for slot, mode in enumerate(random.integers(0, 5, 4)):
            if mode < 3:
                rows[slot] = pages.sampled(random, 50, 5)
            elif mode == 3:
                rows[slot] = pages.greedy(random, 50, 5)
        views = pages.load(rows, round_)
        for _ in range(random.integers(0, 3)):
            _spoilt(random, views)
        stale = [s for s in range(4) if random.random() < 0.1]
        by_turns._core = core if random.random() < 0.5 else None
        if by_turns._core is None:  # as where a page lies otherwise
            strange = replace(views, tokens=views.tokens.T.clone().T)
            by_turns._core = core
            by_turns.scatter_q(strange, round_, stale)
        else:
            by_turns.scatter_q(views, round_, stale)
        for drafts in (by_core, by_torch):
            drafts.scatter_q(views, round_, stale)
        for drafts in (by_core, by_turns):
            assert _equal(by_torch.draft_probs.numpy(), drafts.draft_probs), round_
            for name in ("drafts", "mode_of_slot", "fault_of_slot", "round_of_slot"):
                expected, found = getattr(by_torch, name), getattr(drafts, name)
                assert expected.tolist() == found.tolist(), (round_, name)
        seen |= set(by_core.fault_of_slot.tolist())
    assert {Fault.NONE, Fault.MASK, Fault.TOKEN, Fault.SUPPORT, Fault.MASS} == seen


def test_a_greedy_profiles_page_has_drafts_and_no_q(pages):
    random = np.random.default_rng(8)
    layout = ReplyLayout(4, 5, sampled=False)
    buffer = bytearray(layout.failed(Status.TIMEOUT, [2]))
    layout.views(buffer).round[()] = 3
    layout.views(buffer).status[0] = 0
    layout.views(buffer).tokens[0] = random.integers(0, 50, 5)
    drafts = DraftProbs(4, 5, 50, pages.device)
    drafts.scatter_q(pages.load({0: pages.sampled(random, 50, 5)}, 2), 2)
    drafts.scatter_q(Page(layout, buffer, pages.device).load(), 3)
    assert drafts.mode_of_slot.tolist() == [Mode.GREEDY, 0, 0, 0]
    assert drafts.drafts[0].tolist() == layout.views(buffer).tokens[0].tolist()
    assert not drafts.draft_probs.any().item()


def test_draft_logits_give_q_back_after_a_samplers_own_softmax(pages):
    """``T * log q`` in FP32: within the error that FP32 logits can have."""
    random = np.random.default_rng(9)
    rows = {0: pages.sampled(random, 300, 5), 2: pages.sampled(random, 300, 5)}
    drafts = DraftProbs(4, 5, 300, pages.device)
    drafts.scatter_q(pages.load(rows, 1), 1)
    temperature = [0.7, 0.0, 1.5, 0.0]
    poisoned = torch.full((4, 5, 300), math.nan, device=pages.device)
    logits = drafts.draft_logits(temperature, out=poisoned)
    assert logits.data_ptr() == poisoned.data_ptr()
    assert logits.dtype == torch.float32
    off = drafts.draft_probs == 0.0
    assert (logits[off] == -math.inf).all().item()
    assert torch.isfinite(logits[~off]).all().item()
    for slot in rows:
        scaled = logits[slot] / temperature[slot]
        found, expected = scaled.softmax(-1).double(), drafts.draft_probs[slot]
        # |log q| < 17, half a unit in FP32's last place of it is below 1e-6, and the
        # division and the softmax add as much each.
        torch.testing.assert_close(found, expected.double(), rtol=4e-6, atol=0.0)
    assert torch.equal(
        drafts.draft_logits(0.7)[0].cpu(), drafts.draft_logits([0.7] * 4)[0].cpu()
    )


def test_two_ranks_hold_the_same_bits_of_one_page(pages):
    random = np.random.default_rng(10)
    ranks = [DraftProbs(4, 5, 90, pages.device) for _ in range(2)]
    for round_ in range(1, 20):
        rows = {s: pages.sampled(random, 90, 5) for s in range(round_ % 5)}
        for rank in ranks:
            rank.scatter_q(pages.load(rows, round_), round_)
        assert torch.equal(ranks[0].draft_probs, ranks[1].draft_probs)
        assert torch.equal(ranks[0].drafts, ranks[1].drafts)


def _other(views, **changes):
    fields = {name: getattr(views, name) for name in ReplyTensors.__slots__}
    return ReplyTensors(**(fields | changes))


@pytest.mark.parametrize(
    ("place", "make"),
    [
        ("draft_probs.dtype", lambda: torch.zeros(4, 5, 50, dtype=torch.bfloat16)),
        ("draft_probs.dtype", lambda: torch.zeros(4, 5, 50, dtype=torch.float64)),
        ("draft_probs.shape", lambda: torch.zeros(4, 4, 50)),
        ("draft_probs", lambda: torch.zeros(5, 4, 50).transpose(0, 1)),
    ],
)
def test_a_buffer_of_another_kind_is_refused_by_name(place, make):
    with pytest.raises(ConfigError) as caught:
        DraftProbs(4, 5, 50, draft_probs=make())
    assert caught.value.place == place
    with pytest.raises(ConfigError) as caught:
        DraftProbs(4, 5, 50).draft_logits(1.0, out=make())
    assert caught.value.place == place.replace("draft_probs", "out")


def test_sizes_devices_and_rounds_out_of_range_are_refused(pages):
    for sizes in ((0, 5, 50), (4, 0, 50), (4, 5, 31)):
        with pytest.raises(ConfigError, match="at least"):
            DraftProbs(*sizes)
    with pytest.raises(ConfigError, match=r"draft_probs\.device"):
        DraftProbs(4, 5, 50, device="meta", draft_probs=torch.zeros(4, 5, 50))
    with pytest.raises(ConfigError, match=r"out\.device"):
        DraftProbs(4, 5, 50).draft_logits(1.0, torch.zeros(4, 5, 50, device="meta"))
    drafts = DraftProbs(4, 5, 50, pages.device)
    views = pages.load({}, 1)
    for round_ in (-1, 2**64 - 1, 2**64):
        with pytest.raises(ConfigError, match="round"):
            drafts.scatter_q(views, round_)
    with pytest.raises(ConfigError, match=r"page\.device"):
        drafts.scatter_q(_other(views, tokens=views.tokens.to("meta")), 1)
    with pytest.raises(ConfigError, match=r"page\.tokens"):
        drafts.scatter_q(pages.load({}, 1, depth=4), 1)
    with pytest.raises(ConfigError, match="temperature"):
        drafts.draft_logits([1.0, 1.0])
