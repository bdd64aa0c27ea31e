"""The engines under judgement: rounds of depth 1, the real streams of both sides."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from qualify.families import M, Pair

from pp3shm._core import ffi, lib
from pp3shm.gpu import (
    DraftProbs,
    ReplyTensors,
    SparseVerifier,
    VerifiedTensors,
    key_words,
    verify,
)
from pp3shm.rng import MASK32, Purpose, philox4x32_10_array, request_key
from pp3shm.verify.keys import VerifyKeys
from pp3shm.verify.sparse import REQUEST, VERIFIED

torch.set_num_threads(1)  # its threads spin at barriers; the rows are short
EPOCH, SESSION = b"qualify epoch 16", b"qualify sessions"
REQUESTS = np.dtype(
    [
        ("target", "u8"), ("bias", "u8"), ("target_stride", "i8"),
        ("bias_stride", "i8"), ("position", "u8"), ("accept", "u4", 2),
        ("residual", "u4", 2), ("temperature", "f8"), ("slot", "u4"), ("mode", "i4"),
    ]
)  # fmt: skip
if REQUESTS.itemsize != REQUEST.size:
    raise ImportError("engines.py: REQUESTS is not struct pp3_verify_request")


@dataclass(frozen=True)
class Emitted:
    """What n rounds emitted.

    Attributes:
        first: (n,) the first token of each.
        accepted: (n,) bool.
        bonus: (accepted,) the second tokens.
    """

    first: NDArray[np.int64]
    accepted: NDArray[np.bool_]
    bonus: NDArray[np.int64]


def philox(key: tuple[int, int], round_: int, first: int, n: int) -> NDArray[np.uint64]:
    """(n, 2) words 0 and 1 of the blocks at positions first, first + 1, ..."""
    counters = np.empty((n, 4), np.uint32)
    counters[:, :2] = round_ & MASK32, round_ >> 32
    counters[:, 2:] = np.arange(first, first + n, dtype="<u8").view("<u4").reshape(n, 2)
    blocks = philox4x32_10_array(counters, np.array(key, np.uint32))
    return blocks[:, :2].astype(np.uint64)


def drafted(
    pair: Pair, slot: int, first: int, n: int, round_: int = 1
) -> NDArray[np.int32]:
    """The drafter's own draws: by 24 bits, from the counts."""
    key = request_key(Purpose.PROPOSAL, SESSION, slot, 1, 0)
    bits = philox(key, round_, first, n)[:, 0] >> np.uint64(8)
    at = np.searchsorted(np.cumsum(pair.counts), bits.astype(np.int64), side="right")
    return pair.ids[at]


def spans(n: int, size: int) -> list[tuple[int, int]]:
    """[0, n) in parts of at most `size`."""
    edges = [*range(0, n, size), n]
    return list(pairwise(edges))


Verify = Callable[[Pair, NDArray[np.int32], int, int], Emitted]


def by_c(
    pair: Pair,
    drafts: NDArray[np.int32],
    slot: int,
    first: int,
    *,
    threads: int = 1,
    q: NDArray[np.float32] | None = None,
    ids: NDArray[np.int32] | None = None,
    keys: VerifyKeys | None = None,
) -> Emitted:
    """The C engine, on logits; target and bonus rows are the same row."""
    n = drafts.size
    with np.errstate(divide="ignore"):
        row = np.log(pair.p).astype(np.float32)
    keys = keys or VerifyKeys.derive(EPOCH, slot, 1, 0)
    asked = np.zeros(n, REQUESTS)
    asked["target"] = row.ctypes.data
    asked["position"] = np.arange(first, first + n, dtype=np.uint64)
    asked["accept"], asked["residual"] = keys.accept, keys.residual
    asked["temperature"], asked["mode"] = 1, lib.PP3_MODE_SAMPLED
    asked["slot"] = np.arange(n)
    given = np.ascontiguousarray(drafts, np.int32)
    one = (pair.counts / M).astype(np.float32) if q is None else q
    every_q = np.ascontiguousarray(np.broadcast_to(one, (n, one.shape[-1])))
    one_ids = pair.ids if ids is None else ids
    every_ids = np.ascontiguousarray(np.broadcast_to(one_ids, every_q.shape))
    batch = ffi.new(
        "struct pp3_verify_batch *",
        {
            "depth": 1, "k": every_q.shape[1], "vocab": pair.vocab,
            "target": lib.PP3_TARGET_LOGITS, "round": 1,
            "drafts": ffi.from_buffer("int32_t[]", given),
            "ids": ffi.from_buffer("int32_t[]", every_ids),
            "q": ffi.from_buffer("float[]", every_q),
        },
    )  # fmt: skip
    tokens, out = np.empty((n, 2), np.int32), np.empty(n, VERIFIED)
    scratch = np.empty(threads * lib.pp3_verify_scratch(pair.vocab, 1) // 8)
    code = lib.pp3_verify(
        batch, n, ffi.from_buffer("struct pp3_verify_request[]", asked),
        ffi.from_buffer("int32_t[]", tokens),
        ffi.from_buffer("struct pp3_verified[]", out),
        ffi.from_buffer(scratch), threads,
    )  # fmt: skip
    wrong = np.flatnonzero(out["fault"])
    if code or wrong.size:
        raise RuntimeError(f"C: {code}, faults {out[wrong[:3]]}")
    accepted = out["accepted"] == 1
    return Emitted(
        tokens[:, 0].astype(np.int64), accepted, tokens[accepted, 1].astype(np.int64)
    )


def _page(pair: Pair, drafts: NDArray[np.int32]) -> ReplyTensors:
    """A page with a slot for each round."""
    n = drafts.size
    q = torch.from_numpy((pair.counts / M).astype(np.float32))
    return ReplyTensors(
        round=torch.tensor(1), status=torch.zeros(n, dtype=torch.int32),
        tokens=torch.from_numpy(drafts.astype(np.int32))[:, None],
        confidence=torch.zeros(n, 1), mask=torch.ones(n, dtype=torch.int32),
        ids=torch.from_numpy(pair.ids).expand(n, 1, -1).contiguous(),
        q=q.expand(n, 1, -1).contiguous(),
    )  # fmt: skip


def _read(result: VerifiedTensors) -> Emitted:
    found = result.read()
    if any(found.errors):
        raise RuntimeError(next(str(error) for error in found.errors if error))
    accepted = found.accepted == 1
    tokens = found.tokens.astype(np.int64)
    return Emitted(tokens[:, 0], accepted, tokens[accepted, 1])


def by_torch(pair: Pair, drafts: NDArray[np.int32], slot: int, first: int) -> Emitted:
    """Dense torch on the CPU: scatter, then verify."""
    n = drafts.size
    dense = DraftProbs(n, 1, pair.vocab)
    dense.scatter_q(_page(pair, drafts), 1)
    return _read(
        verify(
            torch.from_numpy(pair.p).expand(n, 2, -1), dense,
            slots=torch.arange(n), round_=1, positions=torch.arange(first, first + n),
            keys=key_words([VerifyKeys.derive(EPOCH, slot, 1, 0)]).expand(n, 4),
        )
    )  # fmt: skip


def by_triton(pair: Pair, drafts: NDArray[np.int32], slot: int, first: int) -> Emitted:
    """The sparse kernels, on logits: on CUDA, or in Triton's interpreter."""
    n = drafts.size
    device = "cuda" if torch.cuda.is_available() else "cpu"
    page = _page(pair, drafts)
    moved = {f.name: getattr(page, f.name).to(device) for f in fields(page)}
    target = torch.from_numpy(pair.p).log().float().to(device).expand(n, 2, -1)
    result = SparseVerifier(n, 1, pair.vocab, device).verify(
        target, ReplyTensors(**moved), slots=torch.arange(n), round_=1,
        positions=torch.arange(first, first + n),
        keys=key_words([VerifyKeys.derive(EPOCH, slot, 1, 0)]).expand(n, 4),
        temperature=torch.ones(n, dtype=torch.float64),
    )  # fmt: skip
    return _read(result)


def run(
    verify: Verify, pair: Pair, slot: int, rounds: int, size: int
) -> tuple[NDArray[np.int64], int, NDArray[np.int64]]:
    """Counts of first tokens, of acceptances and of bonus tokens of many rounds."""
    first = np.zeros(pair.vocab, np.int64)
    bonus = np.zeros(pair.vocab, np.int64)
    accepted = 0
    for start, end in spans(rounds, size):
        drafts = drafted(pair, slot, start, end - start)
        out = verify(pair, drafts, slot, start)
        first += np.bincount(out.first, minlength=pair.vocab)
        bonus += np.bincount(out.bonus, minlength=pair.vocab)
        accepted += int(out.accepted.sum())
    return first, accepted, bonus
