"""Sparse verification, second: judge the copied q, accept, stop, draw."""

# ruff: noqa: N803, PLR0124 - constants have capitals; a NaN differs from itself
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from pp3shm.gpu.kernel_math import accept_uniform, rate_of, residual_uniform
from pp3shm.gpu.sparse_common import (
    BAD_MASS,
    BAD_SUPPORT,
    BAD_TARGET,
    GOOD,
    OTHER_MODE,
    SAMPLED,
    STALE,
    TARGET_ONLY,
    TOLERANCE,
    UNITS,
    chances,
    entries,
    masses,
    place,
)
from pp3shm.gpu.sparse_draw import draw


@triton.jit
def decide(  # noqa: PLR0915 - a kernel cannot return early from a part of itself
    target_p, target_b, target_i, target_v,
    added_p, added_b, added_i, added_v,
    round_p, positions_p, keys_p, temperature_p, n,
    accept_p, residual_p,  # uniforms (B, depth) and (B, depth + 1), where GIVEN
    mode_p, error_p, drafts_p, ids_p, q_p, largest_p, sums_p,
    tokens_p, count_p, accepted_p, no_mass_p,  # out; mode and error are updated
    vocab, depth, runs, support,
    LOGITS: tl.constexpr, ADDED: tl.constexpr, HAS_Q: tl.constexpr,
    GIVEN: tl.constexpr, REQS: tl.constexpr, ROWS: tl.constexpr,
    SUPPORT: tl.constexpr, CHUNK: tl.constexpr,
    RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Accept, stop, draw: everything that the requests emit."""
    b = (tl.program_id(0) * REQS + tl.arange(0, REQS)).to(tl.int64)
    live = b < n
    mode = tl.load(mode_p + b, mask=live, other=TARGET_ONLY)
    error = tl.load(error_p + b, mask=live, other=STALE)
    temperature = tl.load(temperature_p + b, mask=live, other=-1.0)
    i = tl.arange(0, ROWS)[None, :]
    at_draft = b[:, None] * depth + i
    is_draft = live[:, None] & (i < depth)
    drafts = tl.load(drafts_p + at_draft, mask=is_draft, other=-1)
    q = tl.zeros((REQS, ROWS), tl.float64)
    if HAS_Q:
        judged = (mode == SAMPLED) & ((error == GOOD) | (error == OTHER_MODE))
        if tl.max(judged.to(tl.int32), 0) > 0:
            fault, q = judge_q(
                ids_p, q_p, drafts, b, judged, vocab, depth, support, ROWS, SUPPORT
            )
            error = tl.where(fault != GOOD, fault.to(tl.int64), error)

    good = error == GOOD
    greedy = good & (temperature == 0.0)
    sampled = good & (temperature > 0.0) & (temperature < float("inf"))
    rows = tl.where(mode == TARGET_ONLY, 1, depth + 1)
    rows = tl.where(greedy | sampled, rows, 0)
    rate, high, low = rate_of(tl.where(sampled, temperature, 1.0))
    top, scale, total, fine = read_rows(
        largest_p, sums_p, b, rows, rate, depth, runs, LOGITS, ROWS, RUNS
    )

    best = tl.full((REQS, ROWS), -1, tl.int32)
    accept = fine & (i < 0)
    if tl.max(greedy.to(tl.int32), 0) > 0:
        best = argmaxes(
            target_p, target_b, target_i, target_v,
            added_p, added_b, added_i, added_v, largest_p,
            b, top, fine & greedy[:, None], vocab, depth, runs,
            LOGITS, ADDED, ROWS, RUNS, RUN,
        )  # fmt: skip
        accept = accept | (fine & greedy[:, None] & (best == drafts))
    if tl.max(sampled.to(tl.int32), 0) > 0:
        asked = fine & (sampled & (mode == SAMPLED))[:, None] & (i < depth)
        p = chances_of_drafts(
            target_p, target_b, target_i, target_v,
            added_p, added_b, added_i, added_v, largest_p,
            b, drafts, asked, scale, total, rate, high, low, depth, runs,
            LOGITS, ADDED, ROWS, RUN,
        )  # fmt: skip
        if GIVEN:
            u = tl.load(accept_p + at_draft, mask=is_draft, other=1.0)
        else:
            key = key_of(keys_p, b, 0, live)
            first = tl.load(positions_p + b, mask=live, other=0)
            u = accept_uniform(key[:, None], tl.load(round_p), first[:, None] + i)
        accept = accept | (asked & (u * q < p))

    last = tl.where(mode == TARGET_ONLY, 0, depth)[:, None]
    stop = tl.min(tl.where((i < last) & (accept == 0), i, last), 1)
    at_stop = i == stop[:, None]
    fine_stop = tl.max((at_stop & fine).to(tl.int32), 1) > 0
    token = tl.sum(tl.where(at_stop, best, 0), 1).to(tl.int64)
    no_mass = tl.full((REQS,), 0, tl.int32)
    drawing = fine_stop & sampled
    if tl.max(drawing.to(tl.int32), 0) > 0:
        if GIVEN:
            r = tl.load(residual_p + b * (depth + 1) + stop, mask=live, other=0.0)
        else:
            key = key_of(keys_p, b, 2, live)
            first = tl.load(positions_p + b, mask=live, other=0)
            r = residual_uniform(key, tl.load(round_p), first + stop)
        drawn, no_mass = draw(
            target_p, target_b, target_i, target_v,
            added_p, added_b, added_i, added_v, ids_p, q_p, largest_p, sums_p,
            b, stop, r, drawing, drawing & (mode == SAMPLED) & (stop < depth),
            tl.sum(tl.where(at_stop, scale, 0.0), 1),
            tl.sum(tl.where(at_stop, total, 0.0), 1),
            rate, high, low, vocab, depth, runs, support,
            LOGITS, ADDED, HAS_Q, REQS, SUPPORT, CHUNK, RUNS, RUN,
        )  # fmt: skip
        token = tl.where(drawing, drawn, token)
    emits = good & fine_stop & (token >= 0)
    error = tl.where(good & (emits == 0), BAD_TARGET, error)

    out = tl.where(i < stop[:, None], drafts, tl.where(at_stop, token[:, None], -1))
    out = tl.where(emits[:, None], out, -1)
    tl.store(
        tokens_p + b[:, None] * (depth + 1) + i, out, mask=live[:, None] & (i <= depth)
    )
    tl.store(count_p + b, tl.where(emits, stop + 1, 0).to(tl.int64), mask=live)
    tl.store(accepted_p + b, tl.where(emits, stop, 0).to(tl.int64), mask=live)
    tl.store(no_mass_p + b, tl.where(emits, no_mass, 0).to(tl.uint8), mask=live)
    tl.store(mode_p + b, tl.where(emits, mode, TARGET_ONLY), mask=live)
    tl.store(error_p + b, error, mask=live)


@triton.jit
def read_rows(
    largest_p, sums_p, b, rows, rate, depth, runs,
    LOGITS: tl.constexpr, ROWS: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """What the first ``rows`` rows are judged by; all (REQS, ROWS).

    Their largest entry, the exponent that their weights are brought to, the sum of
    these (1 where there is none), and whether the row can be used.
    """
    run = tl.arange(0, RUNS)[None, None, :]
    i = tl.arange(0, ROWS)[None, :]
    needed = i < rows[:, None]
    here = needed[:, :, None] & (run < runs)
    at = (b[:, None] * (depth + 1) + i)[:, :, None] * runs + run
    largest = tl.load(largest_p + at, mask=here, other=-float("inf"))
    sums = tl.load(sums_p + at, mask=here, other=0.0)
    wrong = largest != largest
    largest = tl.where(wrong, -float("inf"), largest)
    mass, scale = masses(largest, sums, rate[:, None, None], 2, LOGITS)
    total = tl.sum(mass, 2)
    top = tl.max(largest, 2)
    bad = tl.max(wrong.to(tl.int32), 2) > 0
    if LOGITS:
        bad = bad | (top == -float("inf"))
    else:
        bad = bad | (tl.abs(total - 1.0) > TOLERANCE)
    return top, scale, tl.where(total > 0.0, total, 1.0), needed & (bad == 0)


@triton.jit
def argmaxes(
    target_p, target_b, target_i, target_v, added_p, added_b, added_i, added_v,
    largest_p, b, top, wanted, vocab, depth, runs,
    LOGITS: tl.constexpr, ADDED: tl.constexpr,
    ROWS: tl.constexpr, RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """The first id of each row's largest entry: in the first run that has it."""
    run = tl.arange(0, RUNS)[None, None, :]
    i = tl.arange(0, ROWS)[None, :]
    at = (b[:, None] * (depth + 1) + i)[:, :, None] * runs + run
    here = wanted[:, :, None] & (run < runs)
    largest = tl.load(largest_p + at, mask=here, other=float("nan"))
    home = tl.min(tl.where(largest == top[:, :, None], run, RUNS - 1), 2)
    v = home[:, :, None] * RUN + tl.arange(0, RUN)[None, None, :]
    b_3, i_3 = b[:, None, None], i[:, :, None]
    z = entries(
        target_p, place(b_3, i_3, v, target_b, target_i, target_v),
        added_p, place(b_3, i_3, v, added_b, added_i, added_v),
        wanted[:, :, None] & (v < vocab), LOGITS, ADDED,
    )  # fmt: skip
    is_top = z.to(tl.float64) == top[:, :, None]
    return tl.min(tl.where(is_top, v, 2147483647), 2)


@triton.jit
def chances_of_drafts(
    target_p, target_b, target_i, target_v, added_p, added_b, added_i, added_v,
    largest_p, b, drafts, asked, scale, total, rate, high, low, depth, runs,
    LOGITS: tl.constexpr, ADDED: tl.constexpr, ROWS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """What p gives each draft that is asked for, (REQS, ROWS) float64."""
    i = tl.arange(0, ROWS)[None, :]
    at = (b[:, None] * (depth + 1) + i) * runs + drafts // RUN
    of_run = tl.load(largest_p + at, mask=asked, other=-float("inf"))
    z = entries(
        target_p, place(b[:, None], i, drafts, target_b, target_i, target_v),
        added_p, place(b[:, None], i, drafts, added_b, added_i, added_v),
        asked, LOGITS, ADDED,
    )  # fmt: skip
    return chances(
        z, of_run, scale, total, rate[:, None], high[:, None], low[:, None], LOGITS
    )


@triton.jit
def judge_q(ids_p, q_p, drafts, b, judged, vocab, depth, support,
            ROWS: tl.constexpr, SUPPORT: tl.constexpr):  # fmt: skip
    """GOOD, BAD_SUPPORT or BAD_MASS of the copied rows of each request that is judged.

    Also q of its drafts, (REQS, ROWS) float64.
    """
    i, j = tl.arange(0, ROWS)[None, :, None], tl.arange(0, SUPPORT)[None, None, :]
    here = judged[:, None, None] & (i < depth) & (j < support)
    at = (b[:, None, None] * depth + i) * support + j
    ids = tl.load(ids_p + at, mask=here, other=2147483647)
    before = tl.load(ids_p + at - 1, mask=here & (j > 0), other=-1)
    q = tl.load(q_p + at, mask=here, other=0.0)
    disorder = here & ((ids <= before) | (ids >= vocab))
    inside = (q >= 0.0) & (q <= 1.0)  # a NaN is not
    count = tl.where(inside, q, 0.0) * UNITS
    units = count.to(tl.int32)
    wrong = here & ((inside == 0) | (units.to(tl.float32) != count))
    mine = here & (ids == drafts[:, :, None])
    drawn = tl.sum(tl.where(mine, count, 0.0), 2)
    row = judged[:, None] & (tl.arange(0, ROWS) < depth)[None, :]
    short = row & ((tl.sum(units, 2) != 16777216) | (drawn <= 0.0))
    short = short | (tl.max(wrong.to(tl.int32), 2) > 0)
    bad_ids = tl.max(tl.max(disorder.to(tl.int32), 2), 1) > 0
    bad_mass = tl.max(short.to(tl.int32), 1) > 0
    error = tl.where(bad_ids, BAD_SUPPORT, tl.where(bad_mass, BAD_MASS, GOOD))
    return error, drawn.to(tl.float64) / UNITS


@triton.jit
def key_of(keys_p, b, FIRST: tl.constexpr, live):
    """The Philox key in words FIRST and FIRST + 1 of a request's four, as one int64."""
    low = tl.load(keys_p + b * 4 + FIRST, mask=live, other=0)
    high = tl.load(keys_p + b * 4 + FIRST + 1, mask=live, other=0)
    return (high << 32) | (low & 0xFFFFFFFF)


ANY_KERNEL = decide
