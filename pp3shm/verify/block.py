"""Block verification (Sun et al., arXiv 2403.10444, algorithm 2) with sparse q.

It emits the target's law as the standard rule does, under the same conditions and one
more: the depth of a request was chosen before anything was drawn. It accepts at least
as many drafts in the mean. No profile of version 1 names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pp3shm.verify.reference import (
    RowResult,
    Rows,
    Uniforms,
    inverse_cdf,
    support_row,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def block(
    rows: Rows,
    drafts: Sequence[int] | NDArray[np.int32],
    ids: NDArray[np.int32],
    q: NDArray[np.float32],
    *,
    accept: Uniforms,
    residual: Uniforms,
) -> RowResult:
    """The law itself, for given uniforms; the arguments of ``reference.standard``.

    ``keep`` is P of the paper: ``min(1, keep p / q)`` along the drafts. The block may
    end behind draft i if its uniform is below ``rest / (rest + 1 - keep)``, ``rest``
    being the mass of ``(keep p - q)+`` at the position behind it; it ends at the last
    draft where it may.

    Returns:
        The tokens emitted.

    Raises:
        VerifyError: a row of p or q cannot be used; all of them are needed.
    """
    keep, end, tokens = 1.0, 0, [int(draft) for draft in drafts]
    ends: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for i, draft in enumerate(tokens):
        p = rows(i)
        support, share = support_row(ids[i], q[i], draft, p.size, i)
        weight = keep * p
        weight[support] = np.maximum(weight[support] - share, 0.0)
        ends.append((p, weight))
        if i and _may_end(accept(i - 1), float(weight.sum()), keep):
            end = i
        keep = min(1.0, keep * float(p[draft]) / float(share[support == draft][0]))
    depth = len(tokens)
    if accept(depth - 1) < keep:
        bonus = inverse_cdf(rows(depth), residual(depth))
        return RowResult([*tokens, bonus], depth, "bonus")
    p, weight = ends[end]
    no_mass = not weight.any()
    token = inverse_cdf(p if no_mass else weight, residual(end))
    return RowResult([*tokens[:end], token], end, "correction", no_mass)


def _may_end(uniform: float, rest: float, keep: float) -> bool:
    """``uniform < rest / (rest + 1 - keep)``; 0/0 counts as 1 where keep is 1."""
    other = rest + 1 - keep
    return uniform * other < rest if other > 0 else keep > 0
