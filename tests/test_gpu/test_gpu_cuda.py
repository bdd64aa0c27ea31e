"""On a CUDA device alone: nothing waits for it, and a graph repeats a call.

Everything else that these engines promise is asked in the other files, whose tests run
on CUDA as they do in the interpreter.
"""

import numpy as np
import pytest
import torch
from batches import Batch, bits, same

from pp3shm.gpu import Proposer, SparseVerifier
from pp3shm.rng import Purpose, request_key

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device, torch finds none", allow_module_level=True)


def _tensors(batch, slots):
    """The arguments of a call as what the kernels read."""
    given = batch.arguments(slots, "cuda")
    return {
        "slots": torch.tensor(list(given["slots"]), device="cuda"),
        "round_": torch.tensor(given["round_"], device="cuda"),
        "positions": torch.tensor(given["positions"], device="cuda"),
        "keys": given["keys"],
        "temperature": torch.tensor(
            given["temperature"], dtype=torch.float64, device="cuda"
        ),
    }


def _proposals(n, depth, vocab):
    random = np.random.default_rng(3)
    logits = random.normal(0, 3, (n, depth, vocab)).astype(np.float32)
    keys = [request_key(Purpose.PROPOSAL, bytes(16), slot, 1, 0) for slot in range(n)]
    arguments = {
        "keys": torch.tensor(keys, device="cuda"),
        "round_": torch.tensor(7, device="cuda"),
        "positions": torch.arange(n, device="cuda"),
        "previous": torch.arange(n, device="cuda"),
    }
    return torch.from_numpy(logits).cuda(), arguments


def test_neither_engine_synchronises_or_allocates():
    batch = Batch(1, 16, 5000, 5)
    logits = torch.from_numpy(batch.logits()[batch.slots]).cuda()
    page, arguments = batch.tensors("cuda"), _tensors(batch, batch.slots)
    verifier = SparseVerifier(16, 5, 5000)
    table = torch.randn(5000, 5000, device="cuda")
    proposer = Proposer(16, 5, 5000, table=table)
    rows, drafting = _proposals(16, 5, 5000)
    verifier.verify(logits, page, **arguments)
    proposer.propose(rows, **drafting)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        verifier.verify(logits, page, **arguments)
        proposer.propose(rows, **drafting)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert before == torch.cuda.memory_stats()["allocation.all.allocated"]


def test_a_captured_verification_follows_its_tensors():
    """Captured once, replayed on another round's page, logits and positions."""
    first, second = (Batch(seed, 16, 5000, 5) for seed in (2, 3))
    z = [torch.from_numpy(b.logits()[b.slots]).cuda() for b in (first, second)]
    verifier = SparseVerifier(16, 5, 5000)
    page, arguments = first.tensors("cuda"), _tensors(first, first.slots)
    logits = z[0].clone()
    expected = bits(verifier.verify(logits, page, **arguments))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = verifier.verify(logits, page, **arguments)
    graph.replay()
    assert expected == bits(captured)
    logits.copy_(z[1])
    for name, tensor in _tensors(second, second.slots).items():
        arguments[name].copy_(tensor)
    other = second.tensors("cuda")
    for name in ("round", "status", "tokens", "mask", "ids", "q"):
        getattr(page, name).copy_(getattr(other, name))
    graph.replay()
    target = np.empty((16, 6, 5000), np.float32)
    target[second.slots] = z[1].cpu().numpy()
    same(second.reference(target, logits=True), captured.read())


def test_a_captured_chain_of_five_follows_its_tensors():
    proposer = Proposer(16, 5, 5000, table=torch.randn(5000, 5000, device="cuda"))
    logits, arguments = _proposals(16, 5, 5000)
    proposer.propose(logits, **arguments)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = proposer.propose(logits, **arguments)
    arguments["round_"] += 1
    logits.mul_(0.5)
    graph.replay()
    found = captured.read()
    expected = proposer.propose(logits, **arguments).read()
    for name in ("ids", "q", "tokens", "confidence"):
        assert np.array_equal(getattr(expected, name), getattr(found, name))
