"""``T * log q`` by slot: FP32, -inf off support, and only 32 columns ever written."""

import math

import numpy as np
import pytest
import torch

from pp3shm.errors import ConfigError
from pp3shm.gpu import DraftLogits, DraftProbs, Fault, Mode, Page
from pp3shm.layout.reply import ReplyLayout


def _expected(rows, temperature, slots, depth, vocab):
    """The rows built anew, in float64 and rounded once."""
    dense = np.full((slots, depth, vocab), -np.inf, np.float32)
    for slot, row in rows.items():
        if row.q is not None and not row.status:
            with np.errstate(divide="ignore"):
                logits = temperature[slot] * np.log(row.q.astype(np.float64))
            np.put_along_axis(
                dense[slot], row.ids.astype(np.int64), logits.astype(np.float32), 1
            )
    return dense


@pytest.mark.parametrize("vocab", [32, 60, 1000])
def test_random_rounds_leave_what_a_dense_rebuild_leaves(pages, vocab):
    """Any mixture of rows, another temperature each round, one reused page."""
    random = np.random.default_rng(vocab)
    layout = ReplyLayout(4, 5, sampled=True)
    buffer = bytearray(layout.size)
    page = Page(layout, buffer, pages.device)
    own = torch.full((4, 5, vocab), math.nan, device=pages.device)
    carrier = DraftLogits(4, 5, vocab, draft_logits=own)
    assert carrier.draft_logits.data_ptr() == own.data_ptr()
    for round_ in range(1, 101):
        rows = {}
        for slot, mode in enumerate(random.integers(0, 4, 4)):
            if mode == 0:
                rows[slot] = pages.sampled(random, vocab, 5)
            elif mode == 1:
                rows[slot] = pages.greedy(random, vocab, 5)
            elif mode == 2:
                rows[slot] = pages.failed(5, int(random.integers(2, 9)))
        temperature = random.choice([0.05, 0.7, 1.0, 2.0], 4)
        pages.fill(layout, round_, rows, buffer)
        carrier.scatter_q(page.load(), round_, temperature.tolist())
        expected = torch.from_numpy(_expected(rows, temperature, 4, 5, vocab))
        # torch's logarithm may differ from NumPy's in float64's last place.
        torch.testing.assert_close(own.cpu(), expected, rtol=2e-7, atol=0.0)
        assert torch.equal(own.cpu() == -math.inf, expected == -math.inf), round_


def test_it_says_of_a_slot_what_the_dense_form_says(pages):
    random = np.random.default_rng(2)
    rows = {
        0: pages.sampled(random, 80, 5),
        1: pages.greedy(random, 80, 5),
        2: pages.failed(5),
        3: pages.sampled(random, 80, 5),
    }

    def spoil(views):
        views.q[3, 2, 7] = math.nan

    views = pages.load(rows, 6, spoil=spoil)
    dense, carrier = (
        DraftProbs(4, 5, 80, pages.device),
        DraftLogits(4, 5, 80, pages.device),
    )
    dense.scatter_q(views, 6)
    carrier.scatter_q(views, 6, 0.7)
    for name in ("drafts", "mode_of_slot", "fault_of_slot", "round_of_slot"):
        assert torch.equal(getattr(dense, name), getattr(carrier, name))
    assert carrier.fault_of_slot.tolist() == [0, 0, 0, Fault.MASS]
    assert carrier.mode_of_slot.tolist()[0] == Mode.SAMPLED
    assert torch.equal(dense.draft_logits(0.7), carrier.draft_logits)
    carrier.scatter_q(views, 6, 0.7, stale=[0])
    assert (carrier.draft_logits == -math.inf).all().item()
    carrier.scatter_q(views, 7, 0.7)
    assert (carrier.round_of_slot == -1).all().item()


def test_a_sampler_gets_q_back_from_fp32_and_not_from_bf16(pages):
    """Why the carrier is FP32: 4e-6 of q, and 99 in 100 values changed by bf16."""
    random = np.random.default_rng(3)
    rows = {slot: pages.sampled(random, 500, 5) for slot in range(4)}
    views = pages.load(rows, 1)
    dense, carrier = (
        DraftProbs(4, 5, 500, pages.device),
        DraftLogits(4, 5, 500, pages.device),
    )
    temperature = torch.tensor([0.05, 0.7, 1.0, 2.0], device=pages.device)
    dense.scatter_q(views, 1)
    carrier.scatter_q(views, 1, temperature)
    assert carrier.draft_logits.dtype == torch.float32
    scaled = carrier.draft_logits / temperature[:, None, None]
    found, expected = scaled.softmax(-1).double(), dense.draft_probs.double()
    torch.testing.assert_close(found, expected, rtol=4e-6, atol=0.0)
    rounded = carrier.draft_logits.bfloat16().float() / temperature[:, None, None]
    on = expected > 0
    far = (rounded.softmax(-1).double() / expected - 1)[on].abs() > 4e-6
    assert far.double().mean().item() > 0.99


def test_a_buffer_or_a_temperature_that_does_not_fit_is_refused(pages):
    for make, place in (
        (lambda: torch.zeros(4, 5, 50).bfloat16(), "draft_logits.dtype"),
        (lambda: torch.zeros(4, 5, 51), "draft_logits.shape"),
        (lambda: torch.zeros(4, 50, 5).mT, "draft_logits"),
    ):
        with pytest.raises(ConfigError) as caught:
            DraftLogits(4, 5, 50, draft_logits=make())
        assert caught.value.place == place
    carrier = DraftLogits(4, 5, 50, pages.device)
    views = pages.load({}, 1)
    with pytest.raises(ConfigError, match="temperature"):
        carrier.scatter_q(views, 1, [1.0, 1.0])
