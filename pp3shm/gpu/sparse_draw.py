"""Sparse verification, third: one id from the row at which acceptance ended."""

# ruff: noqa: N803 - compile-time constants have capitals
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from pp3shm.gpu.sparse_common import chances, entries, masses, place


@triton.jit
def draw(
    target_p, target_b, target_i, target_v, added_p, added_b, added_i, added_v,
    ids_p, q_p, largest_p, sums_p, b, stop, r, drawing, corrected, scale, total,
    rate, high, low, vocab, depth, runs, support,
    LOGITS: tl.constexpr, ADDED: tl.constexpr, HAS_Q: tl.constexpr,
    REQS: tl.constexpr, SUPPORT: tl.constexpr, CHUNK: tl.constexpr,
    RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """One id of row ``stop`` by the inverse CDF, and whether a residual had no mass.

    The run is found among the runs' masses, the id by walking that run. The residual
    is p, but in the runs that hold ids of the support (:func:`residual_masses`) and at
    these ids.
    """
    run = tl.arange(0, RUNS)[None, :]
    row = (b * (depth + 1) + stop) * runs
    here = drawing[:, None] & (run < runs)
    largest = tl.load(largest_p + row[:, None] + run, mask=here, other=-float("inf"))
    sums = tl.load(sums_p + row[:, None] + run, mask=here, other=0.0)
    mass, _ = masses(largest, sums, rate[:, None], 1, LOGITS)
    if LOGITS:
        mass = mass / total[:, None]
    line = mass
    no_mass = tl.full((REQS,), 0, tl.int32)
    if HAS_Q:  # noqa: SIM102 - known to the compiler; the next is not
        if tl.max(corrected.to(tl.int32), 0) > 0:
            again, held = residual_masses(
                target_p, target_b, target_i, target_v,
                added_p, added_b, added_i, added_v,
                ids_p, q_p, largest_p + row, b, stop, corrected, scale, total,
                rate, high, low, vocab, depth, support,
                LOGITS, ADDED, REQS, SUPPORT, CHUNK, RUNS, RUN,
            )  # fmt: skip
            line = tl.where(held > 0, again, mass)
            empty = corrected & (tl.max((line > 0.0).to(tl.int32), 1) == 0)
            no_mass = empty.to(tl.int32)
            line = tl.where(empty[:, None], mass, line)

    sums_to = tl.cumsum(line, 1)
    point = r * tl.max(sums_to, 1)
    at = first_or_last(line > 0.0, sums_to > point[:, None], run, RUNS)
    point -= tl.max(tl.where(run < at[:, None], sums_to, 0.0), 1)

    step = tl.arange(0, RUN)[None, :]
    v = at[:, None] * RUN + step
    found = drawing & (at >= 0)
    z = entries(
        target_p, place(b[:, None], stop[:, None], v, target_b, target_i, target_v),
        added_p, place(b[:, None], stop[:, None], v, added_b, added_i, added_v),
        found[:, None] & (v < vocab), LOGITS, ADDED,
    )  # fmt: skip
    of_run = tl.load(largest_p + row + at, mask=found, other=-float("inf"))
    p = chances(
        z, of_run[:, None], scale[:, None], total[:, None],
        rate[:, None], high[:, None], low[:, None], LOGITS,
    )  # fmt: skip
    if HAS_Q:
        reduced = corrected & (no_mass == 0)
        if tl.max(reduced.to(tl.int32), 0) > 0:
            row = (b * depth + stop) * support
            q = q_at(v, ids_p, q_p, row, reduced, support, REQS, SUPPORT, CHUNK, RUN)
            p = tl.maximum(p - q, 0.0)
    walked = first_or_last(p > 0.0, tl.cumsum(p, 1) > point[:, None], step, RUN)
    token = tl.where(found & (walked >= 0), at * RUN + walked, -1)
    return token.to(tl.int64), no_mass


@triton.jit
def residual_masses(
    target_p, target_b, target_i, target_v, added_p, added_b, added_i, added_v,
    ids_p, q_p, largest_p, b, stop, corrected, scale, total, rate, high, low,
    vocab, depth, support,
    LOGITS: tl.constexpr, ADDED: tl.constexpr, REQS: tl.constexpr,
    SUPPORT: tl.constexpr, CHUNK: tl.constexpr,
    RUNS: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """``(p - q)+`` summed over each run that holds support ids, and which these are.

    The runs are summed again from their entries, without the ids of the support, whose
    ``(p - q)+`` is added: nothing is subtracted from a sum. Each id of the support
    answers for the entries of its run between itself and the next, the first in a run
    also for those before, so that each entry is read by exactly one. CHUNK ids are
    done at once.
    """
    run = tl.arange(0, RUNS)[None, None, :]
    row = (b * depth + stop)[:, None] * support
    again = tl.zeros((REQS, RUNS), tl.float64)
    held = tl.zeros((REQS, RUNS), tl.int32)
    b_2, stop_2 = b[:, None], stop[:, None]
    b_3, stop_3 = b[:, None, None], stop[:, None, None]
    for s in range(0, SUPPORT, CHUNK):
        j = s + tl.arange(0, CHUNK)[None, :]
        inside = corrected[:, None] & (j < support)
        ids = tl.load(ids_p + row + j, mask=inside, other=-1)
        q = tl.load(q_p + row + j, mask=inside, other=0.0).to(tl.float64)
        before = tl.load(ids_p + row + j - 1, mask=inside & (j > 0), other=-RUN)
        after = tl.load(
            ids_p + row + j + 1, mask=inside & (j + 1 < support), other=vocab
        )
        home = ids // RUN
        first = inside & (before // RUN != home)
        of_run = tl.load(largest_p[:, None] + home, mask=inside, other=-float("inf"))
        z = entries(
            target_p, place(b_2, stop_2, ids, target_b, target_i, target_v),
            added_p, place(b_2, stop_2, ids, added_b, added_i, added_v),
            inside, LOGITS, ADDED,
        )  # fmt: skip
        p = chances(
            z, of_run, scale[:, None], total[:, None],
            rate[:, None], high[:, None], low[:, None], LOGITS,
        )  # fmt: skip
        v = home[:, :, None] * RUN + tl.arange(0, RUN)[None, None, :]
        here = inside[:, :, None] & (v < after[:, :, None]) & (v != ids[:, :, None])
        here = here & ((v > ids[:, :, None]) | first[:, :, None]) & (v < vocab)
        z = entries(
            target_p, place(b_3, stop_3, v, target_b, target_i, target_v),
            added_p, place(b_3, stop_3, v, added_b, added_i, added_v),
            here, LOGITS, ADDED,
        )  # fmt: skip
        rest = chances(
            z, of_run[:, :, None], scale[:, None, None], total[:, None, None],
            rate[:, None, None], high[:, None, None], low[:, None, None], LOGITS,
        )  # fmt: skip
        part = tl.maximum(p - q, 0.0) + tl.sum(rest, 2)
        holds = inside[:, :, None] & (home[:, :, None] == run)
        again += tl.sum(tl.where(holds, part[:, :, None], 0.0), 1)
        held = tl.maximum(held, tl.max(holds.to(tl.int32), 1))
    return again, held


@triton.jit
def q_at(v, ids_p, q_p, row, wanted, support, REQS: tl.constexpr,
         SUPPORT: tl.constexpr, CHUNK: tl.constexpr, RUN: tl.constexpr):  # fmt: skip
    """What q gives the ids v, (REQS, RUN) float64; 0 where it is not wanted."""
    found = tl.zeros((REQS, RUN), tl.float64)
    for s in range(0, SUPPORT, CHUNK):
        j = s + tl.arange(0, CHUNK)[None, :]
        inside = wanted[:, None] & (j < support)
        ids = tl.load(ids_p + row[:, None] + j, mask=inside, other=-1)
        q = tl.load(q_p + row[:, None] + j, mask=inside, other=0.0).to(tl.float64)
        here = ids[:, :, None] == v[:, None, :]
        found += tl.sum(tl.where(here, q[:, :, None], 0.0), 1)
    return found


@triton.jit
def first_or_last(inside, after, index, END: tl.constexpr):
    """Along axis 1: the first index inside and after; where none is, the last inside.

    -1 where nothing is inside.
    """
    first = tl.min(tl.where(inside & after, index, END), 1)
    last = tl.max(tl.where(inside, index, -1), 1)
    return tl.where(first < END, first, last)
