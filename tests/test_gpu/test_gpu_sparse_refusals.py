"""What the sparse verifier must not use is reported for its request, and yields no id.

Also where the bytes are hostile: nothing they say is an index before it is judged.
"""

import math
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from batches import FAILED, SAMPLED, Batch, bits, same

from pp3shm.errors import ConfigError
from pp3shm.gpu import Fault, Mode, ReplyTensors, SparseVerifier, key_words


def _on(device, array):
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def _run(batch, device, target, page=None, **changes):
    verifier = SparseVerifier(batch.n, batch.depth, batch.vocab, device)
    page = page or batch.tensors(device)
    arguments = batch.arguments(range(batch.n), device) | changes
    return verifier.verify(_on(device, target), page, **arguments)


def test_a_poisoned_row_of_logits_is_its_requests_error_alone(triton_device):
    """NaN or +inf at an id that no draft names, or all -inf; not after the stop.

    In sampled, greedy and failed requests.
    """
    batch = Batch(20, 192, 70, 3)
    logits = batch.logits()
    clean = _run(batch, triton_device, logits)
    expected = bits(clean)
    rows = batch.random.integers(0, 4, 192)
    needed = rows < clean.count.cpu().numpy()
    for slot, row in enumerate(rows):
        poison = (math.nan, math.inf, None)[slot % 3]
        if poison is None:
            logits[slot, row] = -np.inf
        else:
            taken = {*batch.page.tokens[slot].tolist(), *expected["tokens"][slot]}
            free = sorted(set(range(70)) - taken)
            logits[slot, row, batch.random.choice(free)] = poison
    found = _run(batch, triton_device, logits)
    assert np.where(needed, Fault.TARGET, Fault.NONE).tolist() == found.error.tolist()
    tokens = found.tokens.tolist()
    for slot, read in enumerate(needed):
        assert tokens[slot] == ([-1] * 4 if read else expected["tokens"][slot])
    for poison in range(3):
        assert 10 < needed[poison::3].sum() < 60
    with np.errstate(invalid="ignore"):
        same(batch.reference(logits, range(192), logits=True), found.read())


def test_a_bad_row_of_probabilities_is_its_requests_error(triton_device):
    """A NaN, an infinity, a negative, no mass, too much."""
    batch = Batch(21, 100, 70, 3)
    rows = batch.random.integers(0, 2, 100)
    target = batch.p.copy()
    for slot, row in enumerate(rows):
        poison = (math.nan, math.inf, -1e-7, 0.0, 2.0)[slot % 5]
        if poison in (0.0, 2.0):
            target[slot, row] *= poison
        else:
            target[slot, row, batch.random.integers(70)] = poison
    found = _run(batch, triton_device, target, logits=False)
    for poison in range(5):
        assert set(found.error.tolist()[poison::5]) == {Fault.NONE, Fault.TARGET}
    same(batch.reference(target, range(100)), found.read())


def test_a_temperature_that_is_none_is_its_requests_error(triton_device):
    """As a tensor; the host sees a sequence's."""
    batch = Batch(22, 8, 40, 3, modes=[SAMPLED, FAILED])
    batch.temperature[:] = 1.0
    logits = batch.logits()
    clean = bits(_run(batch, triton_device, logits))
    heat = torch.ones(8, dtype=torch.float64, device=triton_device)
    heat[1], heat[4], heat[6] = -0.5, math.nan, math.inf
    found = _run(batch, triton_device, logits, temperature=heat)
    wrong = [slot in {1, 4, 6} for slot in range(8)]
    assert [Fault.TARGET if w else Fault.NONE for w in wrong] == found.error.tolist()
    for slot, tokens in enumerate(found.tokens.tolist()):
        assert tokens == ([-1] * 4 if wrong[slot] else clean["tokens"][slot])
    for value in (-0.5, math.nan, math.inf):
        with pytest.raises(ConfigError, match="temperature"):
            _run(batch, triton_device, logits, temperature=[1.0] * 7 + [value])


def _spoiled():
    """One request's row, and the fault it is to be refused for."""

    def put(name, value, *at):
        def spoil(page, slot):
            getattr(page, name)[(slot, *at)] = value

        return spoil

    def swap(page, slot):
        page.ids[slot, 1, 4:6] = page.ids[slot, 1, [5, 4]]

    def halves(page, slot):
        """Still adding up to 1, but not in whole shares."""
        page.q[slot, 0] = 1 / 32
        page.q[slot, 0, 3:5] += [-(2.0**-25), 2.0**-25]

    def quarter(page, slot):
        """Whole shares add up to 1, and there is a part of one more."""
        page.q[slot, 0] = 1 / 32
        page.q[slot, 0, 3] += 2.0**-26

    def no_mass(page, slot):
        at = np.flatnonzero(page.ids[slot, 1] == page.tokens[slot, 1])[0]
        page.q[slot, 1, (at + 1) % 32] += page.q[slot, 1, at]
        page.q[slot, 1, at] = 0.0

    return {
        "an id of 2**31 - 1": (put("ids", 2**31 - 1, 0, 31), Fault.SUPPORT),
        "an id of -2**31": (put("ids", -(2**31), 1, 0), Fault.SUPPORT),
        "an id of -1": (put("ids", -1, 2, 0), Fault.SUPPORT),
        "an id of vocab": (put("ids", 60, 2, 31), Fault.SUPPORT),
        "ids out of order": (swap, Fault.SUPPORT),
        "a NaN": (put("q", math.nan, 2, 30), Fault.MASS),
        "an infinity": (put("q", math.inf, 0, 0), Fault.MASS),
        "a negative": (put("q", -0.5, 0, 1), Fault.MASS),
        "mass beyond 1": (put("q", 0.75, 1, 1), Fault.MASS),
        "no mass at all": (put("q", 0.0, 1), Fault.MASS),
        "halves of shares": (halves, Fault.MASS),
        "a quarter of a share": (quarter, Fault.MASS),
        "no mass at the draft": (no_mass, Fault.MASS),
        "a draft of 2**31 - 1": (put("tokens", 2**31 - 1, 0), Fault.TOKEN),
        "a draft of -1": (put("tokens", -1, 2), Fault.TOKEN),
        "a mask of 2": (put("mask", 2), Fault.MASK),
        "a mask of -1": (put("mask", -1), Fault.MASK),
        "a greedy row": (put("mask", 0), Fault.MODE),
        "a failed row": (put("status", 5), Fault.NONE),
    }


def test_a_row_that_fails_a_check_emits_nothing_and_the_others_do(triton_device):
    """Each in a slot of its own, between slots that are well."""
    cases = _spoiled()
    n = 2 * len(cases)
    batch = Batch(23, n, 60, 3, modes=[SAMPLED])
    logits = batch.logits()
    clean = bits(_run(batch, triton_device, logits))
    faults = {}
    for at, (spoil, fault) in enumerate(cases.values()):
        spoil(batch.page, 2 * at)
        faults[2 * at] = fault
    found = _run(batch, triton_device, logits)
    assert [faults.get(s, Fault.NONE) for s in range(n)] == found.error.tolist()
    read = found.read()
    for slot in range(n):
        if slot not in faults:
            assert clean["tokens"][slot] == found.tokens[slot].tolist()
        elif faults[slot]:
            assert found.tokens[slot].tolist() == [-1] * 4
            assert read.count[slot] == 0
    assert read.last[n - 2] == "target"
    masked = [n - 6, n - 8]  # whose other values the reference has no opinion on
    slots = [s for s in range(n) if s not in masked]
    expected = batch.reference(logits, slots, logits=True)
    for at, slot in enumerate(slots):
        # The reference judges a row when it reaches it.
        if expected.errors[at] is not None or slot not in faults:
            assert (expected.errors[at] is None) == (read.errors[slot] is None)
            assert expected.tokens[at].tolist() == read.tokens[slot].tolist()


def test_bytes_of_noise_are_refused_and_index_nothing(triton_device):
    """Random bits for ids, q, drafts, masks and statuses, thousands of rows."""
    batch = Batch(24, 256, 50, 3, modes=[SAMPLED])
    logits = batch.logits()
    for name in ("ids", "q", "tokens", "mask", "status"):
        array = getattr(batch.page, name)
        noise = batch.random.integers(0, 256, array.nbytes, dtype=np.uint8)
        spoiled = batch.random.random(array.shape) < 0.3
        array[spoiled] = noise.view(array.dtype).reshape(array.shape)[spoiled]
    found = _run(batch, triton_device, logits)
    tokens = found.tokens.cpu()
    assert ((tokens >= -1) & (tokens < 50)).all().item()
    refused = found.error != Fault.NONE
    assert (found.count[refused] == 0).all().item()
    failed = torch.from_numpy(batch.page.status != 0).to(triton_device)
    assert (found.error[failed] == Fault.NONE).all().item()
    assert (found.mode[failed] == Mode.TARGET_ONLY).all().item()


def test_rows_of_another_round_stale_slots_and_wild_slots(triton_device):
    batch = Batch(25, 16, 50, 3)
    logits = batch.logits()
    clean = bits(_run(batch, triton_device, logits))
    later = _run(batch, triton_device, logits, round_=batch.round + 1)
    assert later.error.tolist() == [Fault.STALE] * 16
    assert later.read().errors[3].found == batch.round
    wild = torch.arange(16, device=triton_device)
    wild[2], wild[9], wild[15] = -1, 16, 2**62
    found = _run(batch, triton_device, logits, slots=wild)
    for slot in range(16):
        if slot in (2, 9, 15):
            assert found.error[slot].item() == Fault.STALE
            assert found.read().errors[slot].found == "none"
        else:
            assert clean["tokens"][slot] == found.tokens[slot].tolist()
    sampled = int(np.flatnonzero((batch.page.mask == 1) & (batch.page.status == 0))[0])
    flags = torch.zeros(16, dtype=torch.uint8, device=triton_device)
    flags[sampled] = 1
    for stale in ([sampled], flags):
        found = _run(batch, triton_device, logits, stale=stale)
        assert found.mode[sampled].item() == Mode.TARGET_ONLY
        assert found.count[sampled].item() == 1
        assert found.error.tolist() == [Fault.NONE] * 16


def test_a_draft_of_probability_zero_is_not_accepted_even_at_uniform_zero(
    triton_device,
):
    batch = Batch(26, 64, 60, 2, modes=[SAMPLED])
    logits = batch.logits()
    slots = np.arange(64)
    logits[slots, 0, batch.page.tokens[:, 0]] = -np.inf
    found = SparseVerifier(64, 2, 60, triton_device).verify_uniforms(
        _on(triton_device, logits),
        batch.tensors(triton_device),
        accept=torch.zeros(64, 2, dtype=torch.float64),
        residual=torch.full((64, 3), 1 - 2.0**-53, dtype=torch.float64),
        slots=range(64),
        round_=batch.round,
        temperature=[1.0] * 64,
    )
    assert found.accepted.tolist() == [0] * 64
    assert (found.tokens[:, 0].cpu().numpy() != batch.page.tokens[:, 0]).all()
    # At the largest uniform the last id that has a weight, and no later one.
    p = np.exp(logits[:, 0].astype(np.float64) - logits[:, 0].max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    q = np.zeros_like(p)
    np.put_along_axis(q, batch.page.ids[:, 0].astype(np.int64), batch.page.q[:, 0], 1)
    for slot, drawn in enumerate(found.tokens[:, 0].tolist()):
        assert p[slot, drawn] > q[slot, drawn]
        assert (p[slot, drawn + 1 :] - q[slot, drawn + 1 :] < 1e-9).all()


def test_an_empty_computed_residual_draws_from_p_and_is_counted(triton_device):
    """The target a little below q everywhere, as rounding may do; the largest u."""
    batch = Batch(27, 32, 60, 2, modes=[SAMPLED])
    target = np.zeros_like(batch.p)
    np.put_along_axis(target[:, :2], batch.page.ids.astype(np.int64), batch.page.q, 2)
    target[:, :2] *= np.float32(0.9995)
    target[:, 2] = batch.p[:, 2]
    uniform = batch.random.random((32, 3))
    found = SparseVerifier(32, 2, 60, triton_device).verify_uniforms(
        _on(triton_device, target),
        batch.tensors(triton_device),
        accept=torch.full((32, 2), 1 - 2.0**-29, dtype=torch.float64),
        residual=torch.from_numpy(uniform),
        slots=range(32),
        round_=batch.round,
        temperature=[1.0] * 32,
        logits=False,
    )
    assert found.no_mass.tolist() == [True] * 32
    assert found.accepted.tolist() == [0] * 32
    running = target[:, 0].astype(np.float64).cumsum(1)
    point = uniform[:, :1] * running[:, -1:]
    assert (running > point).argmax(1).tolist() == found.tokens[:, 0].tolist()


def test_arguments_of_another_kind_are_refused_by_name(triton_device):
    batch = Batch(28, 4, 50, 3)
    good, page = batch.logits(), batch.tensors(triton_device)
    views = {name: getattr(page, name) for name in ReplyTensors.__slots__}
    for place, changes in {
        "target_logits.dtype": {"target": good.astype(np.float64)},
        "target_probs.dtype": {"target": good.astype(np.float16), "logits": False},
        "target_logits.shape": {"target": good[..., :49]},
        "keys": {"keys": key_words(batch.keys[:3], triton_device)},
        "slots": {"slots": [0, 1, 2, 4]},
        "positions": {"positions": torch.zeros(4)},
        "temperature": {"temperature": [1.0]},
        "round": {"round_": 2**64 - 1},
        "logit_mask.shape": {"logit_mask": torch.zeros(3, device=triton_device)},
        "logit_mask": {"logit_mask": torch.zeros(50, device=triton_device).double()},
        "page.q": {"page": ReplyTensors(**views | {"q": page.q.double()})},
        "page.ids": {"page": ReplyTensors(**views | {"ids": page.ids.mT})},
        "requests": {"target": np.zeros((5, 4, 50), np.float32)},
    }.items():
        given = {"target": good} | changes
        with pytest.raises(ConfigError) as caught:
            _run(batch, triton_device, **given)
        assert caught.value.place == place
    for block in (50, 3000):
        with pytest.raises(ConfigError, match="block"):
            SparseVerifier(4, 3, 5000, triton_device, block=block)


def test_without_triton_the_package_imports_and_the_engine_names_the_extra():
    code = (
        "import sys; sys.modules['triton'] = None; import pp3shm.gpu as gpu\n"
        "gpu.SparseVerifier(1, 1, 32, 'cpu')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stderr.strip().splitlines()[-1] == (
        "ImportError: pp3shm.gpu: expected triton, found none: "
        "pip install 'pp3shm[gpu]'"
    )


def test_the_cpu_without_the_interpreter_is_refused():
    code = (
        "import pp3shm.gpu as gpu\n"
        "try: gpu.SparseVerifier(1, 1, 32, 'cpu')\n"
        "except gpu.sparse.ConfigError as error: print(error)\n"
        "import sys; print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TRITON_INTERPRET": "0"},
    )
    assert done.stdout.startswith("device: expected cuda, or TRITON_INTERPRET=1")
