"""The C engine of :func:`pp3shm.verify.verify`: one pass over each row needed.

What it verifies against is said in ``sparse.h``: FP32 probabilities as they are, or a
rounding of the softmax of FP32 logits that every step shares.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from pp3shm._core import ffi, lib
from pp3shm.errors import ConfigError, VerifyError
from pp3shm.verify.batch import Modes, Page, Request, Rule, Verified, named

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pp3shm.verify.reference import Last

    Rows = Sequence[NDArray[Any]] | NDArray[Any]

REQUEST = struct.Struct("=QQqqQIIIIdIi")  # struct pp3_verify_request
VERIFIED = np.dtype(
    [
        ("count", "i4"), ("accepted", "i4"), ("last", "i4"), ("no_mass", "i4"),
        ("fault", "i4"), ("row", "i4"), ("id", "i4"), ("zero", "i4"),
        ("value", "f8"),
    ]
)  # fmt: skip

if REQUEST.size != ffi.sizeof("struct pp3_verify_request"):
    raise ImportError("sparse.py: REQUEST is not struct pp3_verify_request")
if VERIFIED.itemsize != ffi.sizeof("struct pp3_verified"):
    raise ImportError("sparse.py: VERIFIED is not struct pp3_verified")
RULES: dict[Rule, int] = {
    "standard": lib.PP3_RULE_STANDARD,
    "block": lib.PP3_RULE_BLOCK,
}
LAST: dict[int, Last | None] = {
    lib.PP3_LAST_NONE: None,
    lib.PP3_LAST_TARGET: "target",
    lib.PP3_LAST_CORRECTION: "correction",
    lib.PP3_LAST_BONUS: "bonus",
}
MOST_THREADS: int = lib.PP3_VERIFY_THREADS


def lacking(page: Page | None, target: Rows) -> tuple[str, object, object] | None:
    """Why this engine cannot take the arguments: place, expectation, finding."""
    for i, rows in enumerate(target[:1] if isinstance(target, np.ndarray) else target):
        if rows.dtype != np.float32:
            return f"target[{i}]", "float32", rows.dtype
    if page is not None and page.tokens.shape[1] > lib.PP3_VERIFY_DEPTH:
        return "depth", f"1 to {lib.PP3_VERIFY_DEPTH}", page.tokens.shape[1]
    if page is not None and page.ids is not None:
        support = page.ids.shape[2]
        if support > lib.PP3_VERIFY_SUPPORT:
            return "support", f"1 to {lib.PP3_VERIFY_SUPPORT}", support
    return None


def verify_sparse(
    page: Page | None,
    target: Rows,
    requests: Sequence[Request],
    *,
    round_: int,
    vocab: int,
    logits: bool,
    masks: Sequence[NDArray[np.float32]] | None,
    rule: Rule,
    threads: int,
) -> Verified:
    """As :func:`pp3shm.verify.verify`, whose arguments have been checked."""
    kept: list[NDArray[Any]] = []  # what C reads lives as long as the call
    errors: list[VerifyError | None] = [None] * len(requests)
    good: list[int] = []
    modes = Modes(page, round_)
    lines = bytearray(len(requests) * REQUEST.size)
    places = _places(target, kept)
    biases = [(0, 0)] * len(requests) if masks is None else _places(masks, kept)
    for i, request in enumerate(requests):
        try:
            mode = modes.of(request)
        except VerifyError as error:
            errors[i] = named(request, error)
            continue
        at, stride = places[i]
        bias, bias_stride = biases[i]
        REQUEST.pack_into(
            lines, len(good) * REQUEST.size, at, bias, stride, bias_stride,
            request.position, *request.keys.accept, *request.keys.residual,
            request.temperature, request.slot, mode,
        )  # fmt: skip
        good.append(i)
    depth = len(target[0]) - 1 if page is None else int(page.tokens.shape[1])
    batch = _batch(page, max(1, depth), vocab, round_, kept)
    batch.target = lib.PP3_TARGET_LOGITS if logits else lib.PP3_TARGET_PROBS
    batch.rule = RULES[rule]
    tokens, out = _run(batch, len(good), lines, threads)
    for row in np.flatnonzero(out["fault"]):
        i = good[row]
        errors[i] = named(requests[i], _error(out[row], page, requests[i], batch))
    if len(good) < len(requests):
        tokens, out = _spread(tokens, out, good, len(requests))
    return Verified(
        tokens[:, : depth + 1],
        out["count"].copy(),
        out["accepted"].copy(),
        tuple(map(LAST.__getitem__, out["last"].tolist())),
        out["no_mass"] != 0,
        tuple(errors),
    )


def _places(
    target: Rows | Sequence[NDArray[np.float32]], kept: list[NDArray[Any]]
) -> list[tuple[int, int]]:
    """Of each request: see :func:`_place`."""
    if not isinstance(target, np.ndarray):
        return [_place(rows, kept) for rows in target]
    step, row, entry = target.strides
    if entry != 4 or step % 4 or row % 4:
        return [_place(rows, kept) for rows in target]
    kept.append(target)
    at = target.__array_interface__["data"][0]
    return [(at + i * step, row // 4) for i in range(len(target))]


def _place(rows: NDArray[Any], kept: list[NDArray[Any]]) -> tuple[int, int]:
    """Address of row 0 and entries from a row to the next; packed if it has to be."""
    if rows.strides[-1] != 4 or rows.strides[0] % 4:
        rows = np.ascontiguousarray(rows)
    kept.append(rows)
    return rows.__array_interface__["data"][0], rows.strides[0] // 4


def _batch(
    page: Page | None, depth: int, vocab: int, round_: int, kept: list[NDArray[Any]]
) -> Any:
    batch = ffi.new("struct pp3_verify_batch *", {"vocab": vocab, "round": round_})
    batch.depth, batch.k = depth, 0
    if page is None:
        return batch
    arrays: list[tuple[str, Any, str]] = [("drafts", page.tokens, "int32_t[]")]
    if page.ids is not None:
        arrays += [("ids", page.ids, "int32_t[]"), ("q", page.q, "float[]")]
        batch.k = page.ids.shape[2]
    for name, array, kind in arrays:
        packed = np.ascontiguousarray(array, "f4" if kind == "float[]" else "i4")
        kept.append(packed)
        setattr(batch, name, ffi.from_buffer(kind, packed))
    return batch


def _run(
    batch: Any, n: int, lines: bytearray, threads: int
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    tokens = np.empty((n, batch.depth + 1), np.int32)
    out = np.empty(n, VERIFIED)
    each = lib.pp3_verify_scratch(batch.vocab, batch.depth)
    scratch = np.empty(threads * each // 8, np.float64)
    code = n and lib.pp3_verify(
        batch, n, ffi.from_buffer("struct pp3_verify_request[]", lines),
        ffi.from_buffer("int32_t[]", tokens),
        ffi.from_buffer("struct pp3_verified[]", out),
        ffi.from_buffer(scratch), threads,
    )  # fmt: skip
    if code:
        raise ConfigError("verify", "arguments in range", f"the core says {code}")
    return tokens, out


def _error(line: Any, page: Page | None, request: Request, batch: Any) -> VerifyError:
    fault, i, at, value = (line[name] for name in ("fault", "row", "id", "value"))
    logits = batch.target == lib.PP3_TARGET_LOGITS
    name = "target_logits" if logits else "target_probs"
    entry = "a number below +inf" if logits else "a finite probability"
    shown: Any = page
    if fault == lib.PP3_FAULT_IDS:
        return VerifyError(
            f"ids[{i}]",
            f"ascending in [0, {batch.vocab})",
            shown.ids[request.slot, i].tolist(),
        )
    if fault == lib.PP3_FAULT_Q:
        found = shown.q[request.slot, i].tolist()
        return VerifyError(f"q[{i}]", "probabilities", found)
    return {
        lib.PP3_FAULT_TARGET: VerifyError(f"{name}[{i}, {at}]", entry, float(value)),
        lib.PP3_FAULT_EMPTY: VerifyError(f"{name}[{i}]", "a finite entry", "only -inf"),
        lib.PP3_FAULT_MASS: VerifyError(f"{name}[{i}]", "a mass of 1", float(value)),
        lib.PP3_FAULT_COUNTS: VerifyError(
            f"q[{i}]", "multiples of 2**-24 adding up to 1", float(value)
        ),
        lib.PP3_FAULT_DRAFT: VerifyError(
            f"drafts[{i}]", "a token that q can draw", int(at)
        ),
    }[int(fault)]


def _spread(
    tokens: NDArray[np.int32], out: NDArray[Any], good: list[int], n: int
) -> tuple[NDArray[np.int32], NDArray[Any]]:
    """Results of the requests that C was given, in their places among all."""
    every = np.zeros(n, VERIFIED)
    every[good] = out
    emitted = np.full((n, tokens.shape[1]), -1, np.int32)
    emitted[good] = tokens
    return emitted, every
