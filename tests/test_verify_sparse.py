"""The C engine of verification: its law, on every path of the code."""

import json
from fractions import Fraction
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from test_law import GRID, models_of
from test_verify import loaded

from pp3shm import oracle
from pp3shm._core import ffi, lib
from pp3shm.conformance.numbers import conditionals_of
from pp3shm.errors import ConfigError
from pp3shm.proposal.proposal import propose_chain
from pp3shm.rng import Purpose, request_key
from pp3shm.verify import Request, VerifyKeys, verify
from pp3shm.verify.block import block
from pp3shm.verify.reference import inverse_cdf, softmax_row
from pp3shm.verify.sparse import REQUEST, VERIFIED

VECTORS = Path(__file__).parent / "vectors"
PATHS = {"portable": 0, "avx2": 1, "avx512": 2}
ROUND, DEPTH, SLOTS = 9, 5, 4
TOP = 2**53 - 1


@pytest.fixture(params=PATHS)
def path(request):
    """Each way the loops can run on this machine."""
    if lib.pp3_scan_force(PATHS[request.param]):
        pytest.skip(f"this machine has no {request.param}")
    yield request.param
    lib.pp3_scan_force(-1)


def decided(rows, drafts, ids, q, accept, residual, *, logits=0.0, rule="standard"):
    """One request by the C core with its uniforms as integers.

    `logits` is the temperature where rows are logits, 0 where they are probabilities.
    """
    depth, vocab = len(drafts), rows.shape[-1]
    rows = np.ascontiguousarray(rows, np.float32)
    kept = [np.ascontiguousarray(a) for a in (np.array(drafts, "i4"), ids, q)]
    batch = ffi.new(
        "struct pp3_verify_batch *",
        {
            "depth": depth, "k": ids.shape[-1], "vocab": vocab,
            "target": lib.PP3_TARGET_LOGITS if logits else lib.PP3_TARGET_PROBS,
            "rule": {"standard": 0, "block": 1}[rule],
            "drafts": ffi.from_buffer("int32_t[]", kept[0]),
            "ids": ffi.from_buffer("int32_t[]", kept[1]),
            "q": ffi.from_buffer("float[]", kept[2]),
        },
    )  # fmt: skip
    line = bytearray(
        REQUEST.pack(rows.ctypes.data, 0, vocab, 0, 0, 0, 0, 0, 0, logits or 1.0, 0,
                     lib.PP3_MODE_SAMPLED)
    )  # fmt: skip
    tokens, out = np.full(depth + 1, 7777, np.int32), np.empty(1, VERIFIED)
    scratch = ffi.new("char[]", lib.pp3_verify_scratch(vocab, depth) + 64)
    code = lib.pp3_verify_one(
        batch, ffi.from_buffer("struct pp3_verify_request *", line),
        [bits * 2.0**-29 for bits in [*accept, *[0] * (depth - len(accept))]],
        [bits * 2.0**-53 for bits in residual],
        ffi.from_buffer("int32_t[]", tokens),
        ffi.from_buffer("struct pp3_verified *", out), scratch,
    )  # fmt: skip
    assert (code, out["fault"][0]) == (0, 0)
    count = int(out["count"][0])
    assert tokens[count:].tolist() == [-1] * (depth + 1 - count)
    return tokens[:count].tolist()


def arrays(models, drafts):
    """Rows of p and q along a path; all ids are the support."""
    p = np.array(
        [[float(x) for x in models[drafts[:i]].p] for i in range(len(drafts) + 1)],
        np.float32,
    )
    q = np.array(
        [[float(x) for x in models[drafts[:i]].q] for i in range(len(drafts))],
        np.float32,
    )
    ids = np.tile(np.arange(q.shape[1], dtype=np.int32), (len(drafts), 1))
    return p, ids, q


def by_c(models):
    def decide(drafts, accept, residual):
        p, ids, q = arrays(models, drafts)
        return decided(p, drafts, ids, q, accept, residual)

    return decide


def known_laws():
    return json.loads((VECTORS / "verify_exact.json").read_bytes())["cases"]


@pytest.mark.parametrize("number", range(0, len(known_laws()), 7))
def test_the_known_laws_are_its_own(number):
    """By the places where its decisions change, in exact rationals."""
    case = known_laws()[number]
    models, depth = conditionals_of(case), case["depth"]
    found = oracle.implementation_law(by_c(models), models, depth)
    expected = oracle.emitted_law(models, depth)
    assert sum(found.values()) == 1
    for tokens in found.keys() | expected.keys():
        difference = found.get(tokens, 0) - expected.get(tokens, 0)
        assert abs(difference) <= (depth + 1) * GRID


@pytest.mark.parametrize(
    ("seed", "vocab", "depth"), [(21, 2, 2), (22, 5, 1), (23, 3, 2)]
)
@pytest.mark.parametrize("sharp", [False, True], ids=["even", "sharp"])
@pytest.mark.usefixtures("path")
def test_so_are_those_of_random_models(seed, vocab, depth, sharp):
    models = models_of(seed, vocab, depth, sharp=sharp)
    found = oracle.implementation_law(by_c(models), models, depth)
    expected = oracle.emitted_law(models, depth)
    assert sum(found.values()) == 1
    for tokens in found.keys() | expected.keys():
        difference = found.get(tokens, 0) - expected.get(tokens, 0)
        assert abs(difference) <= (depth + 1) * GRID


@pytest.mark.usefixtures("path")
def test_every_known_draw_comes_out_to_the_token():
    """verify_draws.json, through the public call and by both engines."""
    cases = json.loads((VECTORS / "verify_draws.json").read_bytes())["cases"]
    for case in cases:
        (probs, drafts, ids, q), known = loaded(case)
        sampled, failed = known["sampled"], known["failed"]
        page = SimpleNamespace(
            round=np.uint64(known["round"]),
            status=np.array([2 if failed else 0], np.int32),
            tokens=np.full((1, case["depth"]), -1, np.int32),
            mask=np.array([int(sampled and not failed)], np.int32),
            ids=ids[None] if ids.size else None, q=q[None] if q.size else None,
        )  # fmt: skip
        if drafts.size:
            page.tokens[0] = drafts
        keys = VerifyKeys(known["accept_key"], known["residual_key"])
        asked = Request(0, known["position"], keys, float(sampled))
        for engine in ("numpy", "c"):
            result = verify(page, probs[None], [asked], round=known["round"],
                            vocab=case["vocab"], engine=engine)  # fmt: skip
            assert result.errors == (None,)
            assert result.tokens[0, : result.count[0]].tolist() == case["emitted"]


# ---- logits --------------------------------------------------------------------------


def borders(decide, top):
    """Tokens in the order of their intervals, and how many integers each has."""
    found = {}

    def split(low, high, first, last):
        if first == last:
            found[first] = found.get(first, 0) + high - low + 1
            return
        middle = (low + high) // 2
        left, right = decide(middle), decide(middle + 1)
        split(low, middle, first, left)
        split(middle + 1, high, right, last)

    split(0, top, decide(0), decide(top))
    return found


@pytest.mark.parametrize(
    ("vocab", "temperature"), [(3, 1.0), (33, 0.3), (33, 4.0), (530, 1.0)]
)
@pytest.mark.usefixtures("path")
def test_logits_have_one_computed_target_in_every_step(vocab, temperature):
    """Acceptance, residual and bonus draw are of the same p', near the softmax."""
    g = np.random.default_rng(vocab)
    rows = g.normal(0, 2, (2, vocab)).astype(np.float32)
    rows[1, vocab // 2] = -np.inf
    support = np.sort(g.choice(vocab, 3, replace=False)).astype(np.int32)
    q = np.array([[0.5, 0.25, 0.25]], np.float32)
    ids, exact = support[None], softmax_row(rows[1], vocab, temperature, 1)

    def emitted(draft, accept, residual):
        return decided(rows, [draft], ids, q, [accept], residual, logits=temperature)

    never = 2**29 - 1
    likely = next(  # a draft that u = 0 accepts: any with p' > 0
        int(x) for x in support if emitted(int(x), 0, [0, 0])[0] == x
    )
    drawn = borders(lambda bits: emitted(likely, 0, [0, bits])[1], TOP)
    assert list(drawn) == sorted(drawn)
    assert vocab // 2 not in drawn
    chance = np.zeros(vocab)
    chance[list(drawn)] = [count / 2**53 for count in drawn.values()]
    assert np.abs(chance - exact).sum() < 2e-6
    assert np.allclose(chance, exact, rtol=2e-6, atol=1e-12)
    # acceptance of row 0 at its threshold, and the residual behind it
    rows[1] = rows[0]
    p = borders(lambda bits: emitted(likely, 0, [0, bits])[1], TOP)
    for x, share in zip(support, q[0], strict=True):
        limit = min(1.0, p.get(int(x), 0) / 2**53 / share)
        steps = borders(
            lambda bits, x=int(x): int(len(emitted(x, bits, [0, 0])) == 1), never
        )
        assert abs(steps.get(0, 0) / 2**29 - limit) <= 2**-29 * 1.01
    rejected = next(
        (int(x) for x in support if len(emitted(int(x), never, [0, 0])) == 1), None
    )
    if rejected is None:
        return
    rest = {x: count / 2**53 for x, count in p.items()}
    for x, share in zip(support, q[0], strict=True):
        rest[int(x)] = max(0.0, rest.get(int(x), 0.0) - float(share))
    mass = sum(rest.values())
    corrected = borders(lambda bits: emitted(rejected, never, [bits, 0])[0], TOP)
    for x in rest.keys() | corrected.keys():
        assert abs(corrected.get(x, 0) / 2**53 - rest.get(x, 0) / mass) < 1e-12


@pytest.mark.parametrize("scale", [1e-6, 1.0, 300.0, 1e5, 1e36])
@pytest.mark.usefixtures("path")
def test_weights_are_those_of_the_softmax_whatever_the_range(scale):
    """Huge logits, a tiny temperature, a first block far below or above the rest."""
    g = np.random.default_rng(5)
    vocab = 1300
    for shape in ("even", "rising", "falling", "masked start"):
        z = g.normal(0, 1, vocab)
        z += {"even": 0, "rising": np.arange(vocab) / 40, "masked start": 0,
              "falling": -np.arange(vocab) / 40}[shape]  # fmt: skip
        row = (z * scale).astype(np.float32)
        if shape == "masked start":
            row[:600] = -np.inf
        rows = np.stack([row, row])
        exact = softmax_row(row, vocab, 1.0, 0)
        token = int(exact.argmax())
        ids, q = np.array([[token]], np.int32), np.array([[1.0]], np.float32)
        for bits in (0, TOP // 3, TOP // 2, TOP):
            out = decided(rows, [token], ids, q, [0], [0, bits], logits=1.0)[1]
            below = exact[:out].sum()
            assert below - 1e-5 <= bits * 2.0**-53 <= below + exact[out] + 1e-5
            assert exact[out] > 0 or scale > 1e4


@pytest.mark.parametrize("temperature", [1e30, 1e38, 1e40, 1e46, 1e60, 1.7e308])
@pytest.mark.usefixtures("path")
def test_a_mask_holds_at_any_temperature(temperature):
    """Above 1e46 the inverse is 0 in FP32, and -inf times it is NaN."""
    vocab = 700
    z, masks = np.zeros((2, 1, 2, vocab), np.float32)
    z[0, 0, 5::7] = -np.inf
    masks[0, 0, 3::7] = -np.inf
    for position in range(30):
        asked = [Request(0, position, VerifyKeys((1, 2), (3, 4)), temperature)]
        results = [
            verify(None, z[:, :1], asked, round=ROUND, vocab=vocab, logits=True,
                   logit_mask=masks[:, :1], engine=engine)
            for engine in ("numpy", "c")
        ]  # fmt: skip
        assert results[1].errors == (None,)
        assert results[0].tokens.tolist() == results[1].tokens.tolist()
        assert results[1].tokens[0, 0] % 7 not in {3, 5}


def real_page(vocab, seed, *, statuses=(0,) * SLOTS, sampled=(1,) * SLOTS):
    g = np.random.default_rng(seed)
    logits = g.normal(0, 2, (SLOTS, DEPTH, vocab)).astype(np.float32)
    out = propose_chain(
        logits,
        keys=[request_key(Purpose.PROPOSAL, b"s" * 16, s, 1, 0) for s in range(SLOTS)],
        round=ROUND, positions=[10 * s for s in range(SLOTS)], k=min(32, vocab),
    )  # fmt: skip
    page = SimpleNamespace(
        round=np.uint64(ROUND), status=np.array(statuses, np.int32), tokens=out.tokens,
        mask=np.array(sampled, np.int32), ids=out.ids, q=out.q,
    )  # fmt: skip
    target = np.concatenate([logits, logits[:, :1]], axis=1)
    return page, target + g.normal(0, 0.7, target.shape).astype(np.float32)


def requests(slots=range(SLOTS), temperature=1.0):
    return [
        Request(s, 10 * s, VerifyKeys.derive(b"e" * 16, s, 1, 0), temperature)
        for s in slots
    ]


@pytest.mark.parametrize("vocab", [32, 33, 511, 512, 513, 8193])
@pytest.mark.usefixtures("path")
def test_the_two_engines_emit_the_same_tokens(vocab):
    """A uniform within 1e-7 of a border is not met in so few draws."""
    for seed in range(6):
        page, target = real_page(vocab, seed)
        both = [
            verify(page, target, requests(temperature=t), round=ROUND, vocab=vocab,
                   logits=True, engine=engine)
            for t in (0.7, 1.0) for engine in ("numpy", "c")
        ]  # fmt: skip
        for one, other in (both[:2], both[2:]):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.last == other.last


@pytest.mark.usefixtures("path")
def test_what_is_not_needed_is_never_read():
    """Padding, rows after the stop and masked tokens may hold anything."""
    vocab = 600
    page, target = real_page(vocab, 3)
    known = verify(page, target, requests(), round=ROUND, vocab=vocab, logits=True)
    padded = np.full((SLOTS, DEPTH + 1, vocab + 37), np.nan, np.float32)
    for i, count in enumerate(known.count):
        padded[i, :count, :vocab] = target[i, :count]
    again = verify(page, padded, requests(), round=ROUND, vocab=vocab, logits=True)
    assert again.errors == (None,) * SLOTS
    assert again.tokens.tolist() == known.tokens.tolist()


@pytest.mark.usefixtures("path")
def test_strides_do_not_matter():
    """Transposed, reversed, every second column, a list of arrays."""
    vocab = 130
    page, target = real_page(vocab, 4)

    def run(given):
        return verify(page, given, requests(), round=ROUND, vocab=vocab,
                      logits=True).tokens.tolist()  # fmt: skip

    known = run(target)
    wide = np.zeros((SLOTS, DEPTH + 1, 2 * vocab), np.float32)
    wide[..., ::2] = target
    assert run(wide[..., ::2]) == known
    assert run(np.asfortranarray(target)) == known
    assert run(list(target)) == known
    backwards = np.ascontiguousarray(target[:, ::-1])[:, ::-1]
    assert run(backwards) == known
    page.ids = np.asfortranarray(page.ids)
    assert run(target) == known


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.usefixtures("path")
def test_slot_order_batch_and_threads_change_nothing(threads):
    """Request by request, to the bit."""
    vocab = 2000
    page, target = real_page(vocab, 6)
    order = [2, 0, 3, 1]

    def run(slots):
        return verify(
            page, target[slots], requests(slots), round=ROUND, vocab=vocab, logits=True,
            engine="c", threads=threads,
        ).tokens.tolist()  # fmt: skip

    together = run([0, 1, 2, 3])
    assert run(order) == [together[slot] for slot in order]
    assert [run([slot])[0] for slot in range(SLOTS)] == together


def test_256_requests_at_once_are_ordinary():
    """No page of the wire has so many slots; the function has no such bound."""
    vocab, n = 700, 256
    page, target = real_page(vocab, 7)
    many = SimpleNamespace(
        round=page.round,
        **{
            name: np.tile(
                getattr(page, name),
                (n // SLOTS,) + (1,) * (getattr(page, name).ndim - 1),
            )
            for name in ("status", "tokens", "mask", "ids", "q")
        },
    )
    asked = [
        Request(s, 10 * (s % SLOTS), VerifyKeys.derive(b"e" * 16, s % SLOTS, 1, 0))
        for s in range(n)
    ]
    every = np.tile(target, (n // SLOTS, 1, 1))
    found = verify(many, every, asked, round=ROUND, vocab=vocab, logits=True, threads=2)
    few = verify(page, target, requests(), round=ROUND, vocab=vocab, logits=True)
    assert found.tokens.tolist() == few.tokens.tolist() * (n // SLOTS)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.usefixtures("path")
def test_a_logit_mask_is_added_before_anything_else(temperature):
    """A grammar's mask: what it forbids never comes out; it repeats over rows."""
    vocab = 600
    page, target = real_page(vocab, 8, sampled=(int(temperature > 0),) * SLOTS)
    mask = np.zeros((SLOTS, DEPTH + 1, vocab), np.float32)
    mask[..., ::2] = -np.inf

    def run(given, mask, **options):
        return verify(page, given, requests(temperature=temperature), round=ROUND,
                      vocab=vocab, logits=True, logit_mask=mask, **options)  # fmt: skip

    known = run(target + mask, None)
    assert not (known.tokens[known.tokens >= 0] % 2 == 0).any()
    for given in (mask, mask[0], mask[0, 0], list(mask)):
        for engine in ("c", "numpy"):
            found = run(target, given, engine=engine)
            assert found.tokens.tolist() == known.tokens.tolist()


@pytest.mark.parametrize(
    ("mask", "place"),
    [
        (np.zeros((3, 6, 40), np.float32), "logit_mask"),
        (np.zeros((6, 39), np.float32), "logit_mask[0]"),
        (np.zeros((5, 40), np.float32), "logit_mask[0]"),
        (np.zeros(40), "logit_mask[0]"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(mask, place):
    page, target = real_page(40, 1)
    with pytest.raises(ConfigError) as caught:
        verify(page, target, requests(), round=ROUND, vocab=40, logits=True,
               logit_mask=mask)  # fmt: skip
    assert caught.value.place == place


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"engine": "gpu"}, "engine"),
        ({"rule": "typical"}, "rule"),
        ({"threads": 0}, "threads"),
        ({"threads": 65}, "threads"),
        ({"logits": False, "logit_mask": np.zeros(40, np.float32)}, "logit_mask"),
        ({"round": 2**64}, "round"),
    ],
)
def test_a_bad_option_is_named(change, place):
    page, target = real_page(40, 1)
    given = {"round": ROUND, "vocab": 40, "logits": True} | change
    with pytest.raises(ConfigError) as caught:
        verify(page, target, requests(), **given)
    assert caught.value.place == place


@pytest.mark.usefixtures("path")
def test_greedy_requests_equal_the_target_only_loop():
    """100,000 paired requests: drafts change no token of a greedy text."""
    g = np.random.default_rng(11)
    vocab, n = 40, 2000
    for _ in range(50):
        target = np.round(g.normal(0, 1, (n, DEPTH + 1, vocab)) * 4).astype(np.float32)
        best = target.argmax(axis=-1)
        drafts = np.where(g.random((n, DEPTH)) < 0.8, best[:, :DEPTH], 3)
        page = SimpleNamespace(
            round=np.uint64(ROUND), status=np.zeros(n, np.int32),
            tokens=drafts.astype(np.int32), mask=None, ids=None, q=None,
        )  # fmt: skip
        key = VerifyKeys((0, 0), (0, 0))
        asked = [Request(i, 0, key, 0.0) for i in range(n)]
        found = verify(page, target, asked, round=ROUND, vocab=vocab, logits=True,
                       engine="c")  # fmt: skip
        wrong = drafts != best[:, :DEPTH]
        accepted = np.where(wrong.any(axis=1), wrong.argmax(axis=1), DEPTH)
        assert found.accepted.tolist() == accepted.tolist()
        shown = np.arange(DEPTH + 1) <= accepted[:, None]
        assert found.tokens.tolist() == np.where(shown, best, -1).tolist()


# ---- block verification --------------------------------------------------------------


def by_block(p, ids, q, drafts, accept, residual):
    return block(
        [row.astype(np.float64) for row in p].__getitem__, drafts, ids, q,
        accept=lambda i: accept[i] * 2.0**-29,
        residual=lambda i: residual[i] * 2.0**-53,
    ).tokens  # fmt: skip


def by_block_in_c(p, ids, q, drafts, accept, residual):
    return decided(p, drafts, ids, q, accept, residual, rule="block")


def lost(law, models, depth):
    """Total variation between the target and what is emitted and then continued."""
    completed = oracle.completed_law(law, models, depth + 1)
    target = oracle.target_law(models, depth + 1)
    return (
        sum(
            abs(completed.get(t, Fraction(0)) - target.get(t, Fraction(0)))
            for t in completed.keys() | target.keys()
        )
        / 2
    )


def block_law(models, depth, decide):
    """The exact law of the block rule, path by path and threshold by threshold."""
    law, accepted = {}, Fraction(0)
    never = 2**29 - 1
    for drafts, chance in oracle.drafted_law(models, depth).items():
        emit = partial(decide, *arrays(models, drafts), drafts)
        left = Fraction(1)
        for tau in range(depth, -1, -1):
            willing = Fraction(1)
            if tau:
                counts = borders(
                    lambda bits, t=tau, e=emit: int(
                        len(e([never] * (t - 1) + [bits] + [never] * (depth - t),
                                 [0] * (depth + 1))) > t
                    ),
                    never,
                )  # fmt: skip
                willing = Fraction(counts.get(1, 0), 2**29)
            here = left * willing
            left -= here
            if not here:
                continue
            accepted += chance * here * tau
            accept = [never] * depth
            if tau:
                accept[tau - 1] = 0
            spread = borders(
                lambda bits, t=tau, a=tuple(accept), e=emit: tuple(
                    e(a, [0] * t + [bits] + [0] * (depth - t))
                ),
                TOP,
            )
            for tokens, count in spread.items():
                law[tokens] = law.get(tokens, 0) + chance * here * Fraction(
                    count, 2**53
                )
    return law, accepted


@pytest.mark.parametrize("decide", [by_block, by_block_in_c])
@pytest.mark.parametrize(("seed", "vocab", "depth"), [(1, 3, 1), (2, 3, 2), (3, 2, 3)])
def test_block_verification_has_the_targets_law_and_accepts_no_less(
    seed, vocab, depth, decide
):
    """Exactly; at depth 1 it is the standard rule."""
    models = models_of(seed, vocab, depth)
    law, accepted = block_law(models, depth, decide)
    assert lost(law, models, depth) <= 4 * (depth + 1) * GRID
    standard = oracle.emitted_law(models, depth)
    usual = sum((len(t) - 1) * chance for t, chance in standard.items())
    assert accepted >= usual - 4 * depth * GRID
    assert depth == 1 or accepted > usual


def test_a_correction_that_forgets_what_the_block_kept_is_noticed():
    """The plain residual behind a block's end: a fault others had."""
    models = models_of(2, 3, 2)

    def plain(p, ids, q, drafts, accept, residual):
        emitted = by_block(p, ids, q, drafts, accept, residual)
        end = len(emitted) - 1
        if end == len(drafts):
            return emitted
        weight = p[end].astype(np.float64)
        weight[ids[end]] = np.maximum(weight[ids[end]] - q[end], 0)
        drawn = inverse_cdf(weight, residual[end] * 2.0**-53)
        return [*emitted[:-1], drawn]

    law, _ = block_law(models, 2, plain)
    assert lost(law, models, 2) > Fraction(1, 200)
