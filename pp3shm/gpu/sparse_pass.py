"""Sparse verification, first: the page's rows are copied, the logits read once.

1. :func:`take_page`: per request, copies its slot's row of the page and judges its
   head.
2. :func:`sum_runs`: per request, row and block of the vocabulary, the largest logit and
   the sum of weights of every *run*, a fixed stretch of ids. The only pass over logits.
"""

# ruff: noqa: N803, PLR0124 - constants have capitals; a NaN differs from itself
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from pp3shm.gpu.kernel_math import rate_of, run_of, weights
from pp3shm.gpu.sparse_common import (
    BAD_MASK,
    BAD_TOKEN,
    GOOD,
    GREEDY,
    NO_ROUND,
    OTHER_MODE,
    SAMPLED,
    STALE,
    TARGET_ONLY,
    entries,
    place,
)


@triton.jit
def take_page(
    slots_p, round_p, temperature_p, n,  # the call
    page_round_p, status_p, tokens_p, mask_p, ids_p, q_p, stale_p,  # the page, by slot
    mode_p, error_p, found_p, drafts_p, own_ids_p, own_q_p,  # out, by request
    max_slots, vocab, depth, support,
    HAS_Q: tl.constexpr,
    REQS: tl.constexpr, DEPTH: tl.constexpr, SUPPORT: tl.constexpr,
):  # fmt: skip
    """Copy the requests' rows of the page, each word read once; judge all but q."""
    b = tl.program_id(0) * REQS + tl.arange(0, REQS)
    live = b < n
    slot = tl.load(slots_p + b, mask=live, other=-1)
    known = (slot >= 0) & (slot < max_slots)
    row = tl.where(known, slot, 0)
    asked = tl.load(round_p)
    found = tl.where(known, tl.load(page_round_p, volatile=True), NO_ROUND)
    status = tl.load(status_p + row, mask=live, other=1, volatile=True)
    alive = (status == 0) & (tl.load(stale_p + row, mask=live, other=1) == 0)

    i = tl.arange(0, DEPTH)
    ours = b.to(tl.int64)[:, None] * depth + i[None, :]
    theirs = row[:, None] * depth + i[None, :]
    here = live[:, None] & (i < depth)[None, :]
    drafts = tl.load(tokens_p + theirs, mask=here, other=0, volatile=True)
    wild = tl.max(((drafts < 0) | (drafts >= vocab)).to(tl.int32), 1) > 0
    tl.store(drafts_p + ours, drafts.to(tl.int64), mask=here)
    mask = tl.full((REQS,), 0, tl.int32)
    if HAS_Q:
        mask = tl.load(mask_p + row, mask=live, other=0, volatile=True)
        j = tl.arange(0, SUPPORT)
        here = here[:, :, None] & (j < support)[None, None, :]
        theirs = theirs[:, :, None] * support + j[None, None, :]
        ours = ours[:, :, None] * support + j[None, None, :]
        ids = tl.load(ids_p + theirs, mask=here, volatile=True)
        q = tl.load(q_p + theirs, mask=here, volatile=True)
        tl.store(own_ids_p + ours, ids, mask=here)
        tl.store(own_q_p + ours, q, mask=here)

    error = tl.where(wild, BAD_TOKEN, GOOD)
    error = tl.where((mask != 0) & (mask != 1), BAD_MASK, error)
    error = tl.where(alive, error, GOOD)
    mode = tl.where(alive & (error == GOOD), mask + GREEDY, TARGET_ONLY)
    sampled = tl.load(temperature_p + b, mask=live, other=0.0) != 0.0
    other = tl.where(sampled, GREEDY, SAMPLED)
    error = tl.where(mode == other, OTHER_MODE, error)
    error = tl.where(known & (found == asked), error, STALE)
    tl.store(mode_p + b, mode.to(tl.int64), mask=live)
    tl.store(error_p + b, error.to(tl.int64), mask=live)
    tl.store(found_p + b, found, mask=live)


@triton.jit
def sum_runs(
    target_p, target_b, target_i, target_v,
    added_p, added_b, added_i, added_v,
    temperature_p, mode_p, error_p, n,
    largest_p, sums_p,  # out, (B, depth + 1, runs) float64
    vocab, depth, runs,
    LOGITS: tl.constexpr, ADDED: tl.constexpr, REQS: tl.constexpr,
    ROWS: tl.constexpr, RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Largest entry (NaN: a bad one is there) and sum of weights of runs of ids."""
    line = tl.arange(0, REQS * ROWS * RUNS)
    b = (tl.program_id(0) * REQS + line // (ROWS * RUNS)).to(tl.int64)
    i = tl.program_id(1) * ROWS + line // RUNS % ROWS
    run = tl.program_id(2) * RUNS + line % RUNS
    error = tl.load(error_p + b, mask=b < n, other=STALE)
    mode = tl.load(mode_p + b, mask=b < n, other=TARGET_ONLY)
    rows = tl.where(mode == TARGET_ONLY, 1, depth + 1)
    needed = (error == GOOD) & (i < rows) & (run < runs)
    if tl.max(needed.to(tl.int32), 0) > 0:
        temperature = tl.load(temperature_p + b, mask=b < n, other=0.0)
        v = run[:, None] * RUN + tl.arange(0, RUN)[None, :]
        here = needed[:, None] & (v < vocab)
        z = entries(
            target_p, place(b[:, None], i[:, None], v, target_b, target_i, target_v),
            added_p, place(b[:, None], i[:, None], v, added_b, added_i, added_v),
            here, LOGITS, ADDED,
        )  # fmt: skip
        wrong = (z != z) | (z == float("inf"))
        if not LOGITS:
            wrong = wrong | (here & (z < 0.0))
        z = tl.where(wrong, -float("inf"), z)
        largest = tl.max(z, 1)
        total = tl.zeros((REQS * ROWS * RUNS,), tl.float64)
        if LOGITS:
            sampled = (temperature > 0.0) & (temperature < float("inf"))
            if tl.max(sampled.to(tl.int32), 0) > 0:
                rate, high, low = rate_of(tl.where(sampled, temperature, 1.0))
                base, shift, whole, _ = run_of(largest, rate)
                w = weights(
                    z, largest[:, None], high[:, None], low[:, None],
                    base[:, None], shift[:, None], whole[:, None],
                )  # fmt: skip
                total = tl.sum(w.to(tl.float64), 1)
        else:
            total = tl.sum(tl.where(z > 0.0, z, 0.0), 1)
        bad = tl.max(wrong.to(tl.int32), 1) > 0
        at = (b * (depth + 1) + i) * runs + run
        shown = tl.where(bad, float("nan"), largest.to(tl.float64))
        tl.store(largest_p + at, shown, mask=needed)
        tl.store(sums_p + at, total, mask=needed)


ANY_KERNEL = sum_runs
