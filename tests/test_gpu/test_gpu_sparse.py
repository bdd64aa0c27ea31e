"""The sparse verifier agrees with the vectors and, request by request, the reference.

The interpreter's cost is per operation: one call with many requests is cheap, many
calls are not.
"""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from batches import FAILED, GREEDY, SAMPLED, Batch, bits, same

from pp3shm.gpu import Fault, ReplyTensors, SparseVerifier
from pp3shm.rng import accept_uniform, residual_uniform
from pp3shm.verify.keys import VerifyKeys

VECTORS = Path(__file__).parents[1] / "vectors"
DRAWS = json.loads((VECTORS / "verify_draws.json").read_text())["cases"]


def _on(device, array):
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _run(batch, device, target, slots=None, verifier=None, page=None, **changes):
    slots = batch.slots if slots is None else slots
    verifier = verifier or SparseVerifier(
        batch.n, batch.depth, batch.vocab, device, support=batch.page.q.shape[-1]
    )
    page = page or batch.tensors(device)
    arguments = batch.arguments(slots, device) | changes
    if isinstance(target, np.ndarray):
        target = _on(device, target[slots])
    return verifier.verify(target, page, **arguments)


def _answers(device, cases, depth, *, logits, streams):
    """What the verifier emits for vectors of one depth, wider ones filled with zeros.

    ``streams``: by the keys, for vectors of one round; else by given uniforms.
    """
    n, vocab = len(cases), 100
    ids = np.tile(np.arange(32, dtype=np.int32), (n, depth, 1))
    q = np.zeros((n, depth, 32), np.float32)
    drafts = np.full((n, depth), -1, np.int32)
    target = np.zeros((n, depth + 1, vocab), np.float32)
    for at, case in enumerate(cases):
        for i, row in enumerate(case["target_probs"]):
            target[at, i, : case["vocab"]] = np.frombuffer(bytes.fromhex(row), "<f4")
        if not case["failed"]:
            drafts[at] = case["drafts"]
            if case["temperature_positive"]:
                ids[at], q[at] = case["ids"], np.array(case["counts"]) / 2**24
    if logits:
        with np.errstate(divide="ignore"):
            target = np.log(target.astype(np.float64)).astype(np.float32)
    keys = [
        VerifyKeys.derive(
            bytes.fromhex(c["epoch"]), c["slot"], c["generation"], c["user_seed"]
        )
        for c in cases
    ]
    round_ = cases[0]["round"]
    page = ReplyTensors(
        round=torch.tensor(round_, device=device),
        status=_on(device, np.array([3 * c["failed"] for c in cases], np.int32)),
        tokens=_on(device, drafts),
        confidence=torch.zeros(n, depth, device=device),
        mask=_on(device, q.any((1, 2)).astype(np.int32)),
        ids=_on(device, ids),
        q=_on(device, q),
    )
    verifier = SparseVerifier(n, depth, vocab, device)
    arguments = {
        "slots": range(n),
        "round_": round_,
        "temperature": [float(c["temperature_positive"]) for c in cases],
        "logits": logits,
    }
    if streams:
        positions = [case["position"] for case in cases]
        return verifier.verify(
            _on(device, target), page, positions=positions, keys=keys, **arguments
        )
    for name, draw, rows in (
        ("accept", accept_uniform, depth),
        ("residual", residual_uniform, depth + 1),
    ):
        table = [
            [
                draw(getattr(key, name), case["round"], case["position"] + i)
                for i in range(rows)
            ]
            for key, case in zip(keys, cases, strict=True)
        ]
        arguments[name] = torch.tensor(table, dtype=torch.float64)
    return verifier.verify_uniforms(_on(device, target), page, **arguments)


def _expect_answers(cases, depth, found):
    assert found.error.tolist() == [Fault.NONE] * len(cases)
    for case, tokens in zip(cases, found.tokens.tolist(), strict=True):
        emitted = case["emitted"]
        assert emitted + [-1] * (depth + 1 - len(emitted)) == tokens, case["kind"]


@pytest.mark.parametrize("form", ["probabilities", "logits"])
@pytest.mark.parametrize("depth", [4, 5])
def test_known_answers_come_out_to_the_token(triton_device, form, depth):
    """Logits are FP32 logarithms of the vector's FP32 probabilities."""
    cases = [case for case in DRAWS if case["depth"] == depth]
    logits = form == "logits"
    found = _answers(triton_device, cases, depth, logits=logits, streams=False)
    _expect_answers(cases, depth, found)


@pytest.mark.parametrize("at", range(4))
def test_known_answers_come_out_by_their_keys(triton_device, at):
    """One call per vector, for each has a round of its own."""
    case = DRAWS[at]
    found = _answers(triton_device, [case], case["depth"], logits=False, streams=True)
    _expect_answers([case], case["depth"], found)


SHAPES = [
    pytest.param(32, 5, 32, 128, id="vocab 32"),
    pytest.param(33, 4, 32, 128, id="vocab 33"),
    pytest.param(512, 1, 16, 32, id="vocab 512, support 16"),
    pytest.param(513, 5, 64, 16, id="vocab 513, support 64"),
    pytest.param(1300, 3, 256, 4, id="vocab 1300, support 256"),
    pytest.param(8193, 5, 32, 8, id="vocab 8193"),
]


@pytest.mark.parametrize(("vocab", "depth", "k", "n"), SHAPES)
def test_mixed_requests_agree_with_the_reference(triton_device, vocab, depth, k, n):
    """Sampled, greedy and failed together, as probabilities and as logits."""
    batch = Batch(vocab, n, vocab, depth, k)
    found = _run(batch, triton_device, batch.p, logits=False).read()
    same(batch.reference(batch.p), found)
    logits = batch.logits()
    found = _run(batch, triton_device, logits).read()
    same(batch.reference(logits, logits=True), found)
    assert found.errors == (None,) * n


def test_nothing_went_untested(triton_device):
    """Every kind of last token, every number accepted, an empty residual."""
    batch = Batch(1, 192, 40, 5)
    found = _run(batch, triton_device, batch.p, logits=False).read()
    same(batch.reference(batch.p), found)
    assert set(found.last) == {"correction", "bonus", "target"}
    assert set(range(6)) == set(found.accepted.tolist())


@pytest.mark.parametrize("block", [1024, 8192, None])
def test_the_vocabulary_of_a_real_model(triton_device, block):
    """129280, in one block and in the blocks of CUDA."""
    if block == 1024 and triton_device == "cpu":
        pytest.skip("760 interpreted programs show no more than 100 do")
    batch = Batch(2, 1, 129280, 5, modes=[SAMPLED])
    verifier = SparseVerifier(1, 5, 129280, triton_device, block=block)
    logits = batch.logits()
    found = _run(batch, triton_device, logits, verifier=verifier).read()
    same(batch.reference(logits, logits=True), found)


def test_blocks_change_no_bit(triton_device):
    batch = Batch(3, 8, 2100, 2)
    logits = batch.logits()
    results = [
        bits(
            _run(
                batch,
                triton_device,
                logits,
                verifier=SparseVerifier(8, 2, 2100, triton_device, block=block),
            )
        )
        for block in (None, 512, 2048)
    ]
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype_is_read_as_the_numbers_it_holds(triton_device, dtype):
    batch = Batch(4, 32, 120, 4)
    logits = _on("cpu", batch.logits()).to(dtype)
    found = _run(batch, triton_device, logits[batch.slots].to(triton_device)).read()
    same(batch.reference(logits.float().numpy(), logits=True), found)


def test_strides_padding_and_rows_after_the_last_change_nothing(triton_device):
    """Columns at or above vocab and rows above depth hold NaN and never come out."""
    batch = Batch(5, 32, 97, 4)
    plain = _on(triton_device, batch.logits()[batch.slots])
    padded = torch.full((32, 7, 128), math.nan, device=triton_device)
    padded[:, :5, :97] = plain
    expected = bits(_run(batch, triton_device, plain))
    assert not any(expected["error"])
    for target in (
        plain.transpose(1, 2).contiguous().transpose(1, 2),
        plain.transpose(0, 2).contiguous().transpose(0, 2),
        plain.repeat_interleave(2, 0)[::2],
        padded,
    ):
        assert expected == bits(_run(batch, triton_device, target))


def test_a_logit_mask_is_added_in_fp32_and_broadcasts(triton_device):
    batch = Batch(6, 32, 60, 3)
    logits = batch.logits()[batch.slots]
    mask = np.where(batch.random.random((32, 1, 60)) < 0.3, -np.inf, 0.1)
    mask = mask.astype(np.float32)
    mask[:, :, 0] = 0.0
    mask[:16] = mask[:1]  # what one row for all would be, in the first half
    added = _on(triton_device, logits + mask)
    given = {"target": _on(triton_device, logits)}
    expected = bits(_run(batch, triton_device, added))
    full = _on(triton_device, np.broadcast_to(mask, logits.shape))
    for each in (_on(triton_device, mask), full.transpose(1, 2).contiguous().mT):
        found = bits(_run(batch, triton_device, **given, logit_mask=each))
        assert expected == found
    each = _on(triton_device, mask[0])
    one = bits(_run(batch, triton_device, **given, logit_mask=each))
    for name, values in one.items():
        assert expected[name][:16] == values[:16]


@pytest.mark.parametrize("temperature", [1e-30, 1e-4, 0.05, 40.0, 1e30])
def test_any_temperature_agrees_with_the_reference(triton_device, temperature):
    batch = Batch(7, 32, 60, 2, modes=[SAMPLED])
    batch.temperature[:] = temperature
    logits = (batch.logits() * 30).astype(np.float32)
    logits[:, :, 3] = -1e30  # finite, as some engines mask
    found = _run(batch, triton_device, logits).read()
    same(batch.reference(logits, logits=True), found)


def test_composition_and_order_of_a_batch_change_no_bit(triton_device):
    """Each request alone, in a subset, and among others in other slots."""
    batch = Batch(8, 32, 120, 3)
    logits = batch.logits()
    whole = bits(_run(batch, triton_device, logits, slots=range(32)))
    for slots in ([7], batch.slots[:11]):
        found = bits(_run(batch, triton_device, logits, slots=list(slots)))
        for name, values in found.items():
            assert [whole[name][s] for s in slots] == values
    # The same rows in other slots of another page.
    turned = np.roll(np.arange(32), 5)
    page = batch.tensors(triton_device)
    rows = _on(triton_device, turned)
    moved = ReplyTensors(
        round=page.round,
        **{
            name: getattr(page, name)[rows]
            for name in ("status", "tokens", "confidence", "mask", "ids", "q")
        },
    )
    arguments = batch.arguments(range(32), triton_device)
    arguments["slots"] = np.argsort(turned).tolist()
    verifier = SparseVerifier(32, 3, 120, triton_device)
    assert whole == bits(
        verifier.verify(_on(triton_device, logits), moved, **arguments)
    )


def test_what_memory_held_before_reaches_no_result(triton_device):
    """Every buffer of the verifier is filled with 0xA5, then with NaN, before."""
    batch = Batch(9, 48, 60, 4)
    logits = batch.logits()
    verifier = SparseVerifier(48, 4, 60, triton_device)
    results = []
    for fill in (0xA5, 0xFF):  # 0xFF: NaN as floats, -1 as integers
        for buffer in vars(verifier).values():
            if isinstance(buffer, torch.Tensor) and buffer is not verifier._stale:
                buffer.view(torch.uint8).fill_(fill)
        results.append(bits(_run(batch, triton_device, logits, verifier=verifier)))
    assert results[0] == results[1]
    assert results[0] == bits(_run(batch, triton_device, logits))


def test_greedy_ties_go_to_the_lower_id(triton_device):
    """Also between 0.0 and -0.0, and between blocks."""
    batch = Batch(10, 16, 1100, 2, modes=[GREEDY, FAILED])
    batch.temperature[:] = 0.0
    logits = np.full((16, 3, 1100), -5.0, np.float32)
    for at in np.ndindex(16, 3):
        ids = np.sort(batch.random.choice(1100, 3, replace=False))
        logits[at][ids] = [[-0.0, 0.0, 0.0], [2.0, 2.0, 2.0]][at[0] % 2]
    batch.page.tokens[:] = np.where(
        batch.random.random((16, 2)) < 0.7, logits[:, :2].argmax(-1), 9
    )
    found = _run(batch, triton_device, logits).read()
    same(batch.reference(logits, logits=True), found)
    assert set(found.accepted.tolist()) == {0, 1, 2}


def test_paired_greedy_requests_equal_the_target_only_loop(triton_device):
    """2,000 requests of 12 tokens: drafts by a worse copy of the target.

    The target's logits are a function of the last token; a loop without drafts emits
    its argmax one by one.
    """
    random = np.random.default_rng(11)
    vocab, depth, n, length = 40, 3, 2000, 12
    table = random.normal(0, 2, (vocab, vocab)).astype(np.float32)
    worse = (table + random.normal(0, 0.7, table.shape)).argmax(-1)
    start = random.integers(0, vocab, n)
    alone = [start]
    for _ in range(length):
        alone.append(table[alone[-1]].argmax(-1))
    expected = np.stack(alone[1:], 1)

    verifier = SparseVerifier(n, depth, vocab, triton_device)
    emitted = [[token] for token in start.tolist()]
    rounds = 0
    while min(map(len, emitted)) <= length:
        rounds += 1
        path = [np.array([tokens[-1] for tokens in emitted])]
        for _ in range(depth):
            path.append(worse[path[-1]])
        rows = np.stack(path, 1)
        page = ReplyTensors(
            round=torch.tensor(rounds, device=triton_device),
            status=torch.zeros(n, dtype=torch.int32, device=triton_device),
            tokens=_on(triton_device, rows[:, 1:].astype(np.int32)),
            confidence=torch.zeros(n, depth, device=triton_device),
        )
        found = verifier.verify(
            _on(triton_device, table[rows]),
            page,
            slots=range(n),
            round_=rounds,
            positions=[0] * n,
            keys=torch.zeros(n, 4, dtype=torch.int64, device=triton_device),
            temperature=[0.0] * n,
        ).read()
        assert found.errors == (None,) * n
        for tokens, new, count in zip(
            emitted, found.tokens.tolist(), found.count.tolist(), strict=True
        ):
            tokens.extend(new[:count])
    assert expected.tolist() == [tokens[1 : length + 1] for tokens in emitted]
    assert rounds < length


def test_a_round_as_a_tensor_is_read_by_the_kernels(triton_device):
    """What a captured graph needs: every argument a tensor that may change."""
    batch = Batch(12, 16, 64, 3)
    logits = _on(triton_device, batch.logits()[batch.slots])
    page = batch.tensors(triton_device)
    verifier = SparseVerifier(16, 3, 64, triton_device)
    arguments = batch.arguments(None, triton_device)
    expected = bits(verifier.verify(logits, page, **arguments))
    round_ = torch.tensor(batch.round, device=triton_device)
    tensors = {
        "slots": torch.tensor(batch.slots, device=triton_device),
        "positions": torch.tensor(arguments["positions"], device=triton_device),
        "keys": arguments["keys"],
        "temperature": torch.tensor(
            arguments["temperature"], dtype=torch.float64, device=triton_device
        ),
        "round_": round_,
    }
    assert expected == bits(verifier.verify(logits, page, **tensors))
    round_ += 1
    later = verifier.verify(logits, page, **tensors)
    assert later.error.tolist() == [Fault.STALE] * 16
    assert later.read().errors[0].expected == batch.round + 1
    assert later.read().errors[0].found == batch.round


def test_a_page_without_q_verifies_greedy_rows_and_failed_ones_at_any_temperature(
    triton_device,
):
    """A greedy profile has no mask, ids and q."""
    batch = Batch(15, 32, 50, 2, modes=[GREEDY, FAILED])
    page = batch.tensors(triton_device)
    bare = ReplyTensors(page.round, page.status, page.tokens, page.confidence)
    logits = batch.logits()
    found = _run(batch, triton_device, logits, page=bare).read()
    batch.page.mask = batch.page.ids = batch.page.q = None
    same(batch.reference(logits, logits=True), found)
    assert {"target", "correction"} <= set(found.last)
    assert any(batch.temperature > 0)


def test_without_requests_nothing_is_done(triton_device):
    batch = Batch(13, 4, 40, 4)
    found = _run(batch, triton_device, batch.logits(), slots=[]).read()
    assert found.tokens.shape == (0, 5)


def test_words_of_the_two_streams_are_those_of_the_reference(triton_device):
    """Positions and rounds of 64 bits: the reference would emit others otherwise."""
    batch = Batch(14, 64, 40, 4, modes=[SAMPLED])
    batch.round = 2**63 + 12345
    batch.page.round = np.uint64(batch.round)
    batch.positions = [2**64 - 10, 2**63 - 2, 2**32 - 3, 0] * 16
    found = _run(batch, triton_device, batch.p, logits=False).read()
    same(batch.reference(batch.p), found)
