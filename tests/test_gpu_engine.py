"""The torch path from a real engine's pages: the same tokens as the NumPy path's."""

import numpy as np
import pytest

from pp3shm import Engine, Profile, Row, Status, Worker
from pp3shm.verify import Request, VerifyKeys
from pp3shm.verify import verify as reference
from pp3shm.worker.drafters import TableDrafter

torch = pytest.importorskip("torch", reason="needs the extra gpu")
gpu = pytest.importorskip("pp3shm.gpu")

VOCAB, DEPTH, SLOTS = 48, 5, 3


@pytest.fixture
def engine():
    profile = Profile.sampled(
        vocab=VOCAB, depth=DEPTH, max_slots=SLOTS, max_positions=512
    )
    table = np.random.default_rng(3).normal(size=(VOCAB, VOCAB)).astype(np.float32)
    with (
        Worker(TableDrafter(table), profile, ["tcp://127.0.0.1:0"]) as worker,
        Engine.create(profile, worker=worker.addresses[0], proxy="thread") as made,
    ):
        yield made


def test_pages_by_place_give_torch_and_numpy_the_same_tokens(engine):
    rng = np.random.default_rng(5)
    target = rng.dirichlet(np.ones(VOCAB), VOCAB).astype(np.float32)
    pages = [gpu.Page(engine.layout, buffer) for buffer in engine.buffers]
    drafts = gpu.DraftProbs(SLOTS, DEPTH, VOCAB)
    texts = [[1 + slot] for slot in range(SLOTS)]
    keys = []
    for slot, text in enumerate(texts):
        generation = engine.reset(slot, text)
        keys.append(VerifyKeys.derive(engine.epoch, slot, generation, 9))
    for _ in range(60):
        ticket = engine.step([Row(slot, 9) for slot in range(SLOTS)], timeout_s=10)
        with engine.reply(ticket) as reply:
            rows = np.stack(
                [target[[texts[s][-1], *reply.tokens[s]]] for s in range(SLOTS)]
            )
            drafts.scatter_q(pages[reply.place].load(), reply.round, reply.stale)
            found = gpu.verify(
                torch.from_numpy(rows),
                drafts,
                slots=range(SLOTS),
                round_=reply.round,
                positions=[len(text) for text in texts],
                keys=keys,
            ).read()
            requests = [Request(s, len(texts[s]), keys[s]) for s in range(SLOTS)]
            expected = reference(reply, rows, requests, round=reply.round, vocab=VOCAB)
        assert expected.tokens.tolist() == found.tokens.tolist()
        assert expected.count.tolist() == found.count.tolist()
        assert (None,) * SLOTS == found.errors
        for slot in range(SLOTS):
            emitted = found.tokens[slot, : found.count[slot]].tolist()
            engine.commit(slot, emitted)
            texts[slot] += emitted


def test_a_slot_opened_anew_is_target_only_in_torch_too(engine):
    pages = [gpu.Page(engine.layout, buffer) for buffer in engine.buffers]
    drafts = gpu.DraftProbs(SLOTS, DEPTH, VOCAB)
    for slot in range(SLOTS):
        engine.reset(slot, [1])
    ticket = engine.step([Row(slot) for slot in range(SLOTS)], timeout_s=10)
    engine.reset(1, [2])
    with engine.reply(ticket) as reply:
        assert (1,) == reply.stale
        assert Status.STALE == reply.status[1]
        drafts.scatter_q(pages[reply.place].load(), reply.round, reply.stale)
    modes = drafts.mode_of_slot.tolist()
    assert [gpu.Mode.SAMPLED, gpu.Mode.TARGET_ONLY, gpu.Mode.SAMPLED] == modes
    assert 0 == drafts.draft_probs[1].count_nonzero()


def test_a_failed_rounds_buffer_is_read_by_its_place(engine):
    pages = [gpu.Page(engine.layout, buffer) for buffer in engine.buffers]
    drafts = gpu.DraftProbs(SLOTS, DEPTH, VOCAB)
    engine.reset(0, [1])
    engine._proxy.close()
    ticket = engine.step([Row(0)], timeout_s=0.01)
    with engine.reply(ticket) as reply:
        assert Status.TIMEOUT == reply.failed
        drafts.scatter_q(pages[reply.place].load(), reply.round)
    assert ticket == drafts.round_of_slot[0]
    assert [gpu.Mode.TARGET_ONLY] * SLOTS == drafts.mode_of_slot.tolist()
