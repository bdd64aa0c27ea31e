"""Verification ``standard-v1`` in torch: several requests at once, CPU and CUDA alike.

The law is that of :mod:`pp3shm.verify`, the reference, which the tests compare with:

- a draft is accepted while ``u * q(d) < p(d)`` in float64, where the product of 29
  and 24 bits is exact, on the CPU and on CUDA;
- the draw after the last accepted draft is an inverse CDF in float64 in ascending id.
  The order of its additions differs by device (see :mod:`pp3shm.gpu.draw`), so that a
  CUDA draw can differ from the CPU's where the uniform lies within rounding, some
  1e-16, of an edge. On one device the result of a request does not depend on the rest
  of its batch, nor on the run, nor on the rank.

Nothing here synchronises a device; reading the result does
(:meth:`pp3shm.gpu.result.VerifiedTensors.read`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from pp3shm.errors import ConfigError
from pp3shm.gpu.draw import inverse_cdf
from pp3shm.gpu.philox import accept_uniform, residual_uniform
from pp3shm.gpu.result import VerifiedTensors
from pp3shm.gpu.scatter import NONE, DraftProbs, Fault, Mode
from pp3shm.gpu.views import signed
from pp3shm.rng import MASK64
from pp3shm.verify.reference import MASS_TOLERANCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pp3shm.verify.keys import VerifyKeys


class _Requests(NamedTuple):
    """What is verified of each request, on the target's device."""

    slot: Tensor  # (B,) int64, as the caller says
    row: Tensor  # (B,) int64, the same in range
    found: Tensor  # (B,) int64, the round the row is of
    mode: Tensor  # (B,) int64; TARGET_ONLY where error is not NONE
    error: Tensor  # (B,) int64 of Fault
    greedy: Tensor | None  # (B,) bool: T = 0, whatever the mode; None: nowhere
    position: Tensor  # (B,) int64, of the first draft
    key: Tensor  # (B, 4) int64
    round: int


def key_words(
    keys: Sequence[VerifyKeys], device: torch.device | str | None = None
) -> Tensor:
    """Key words of several requests as a tensor, to be made once per request.

    Returns:
        (B, 4) int64: the two words of ``accept``, then those of ``residual``.
    """
    table = [[*key.accept, *key.residual] for key in keys]
    words = torch.tensor(table, dtype=torch.int64).view(-1, 4)
    return words.to(device or "cpu", non_blocking=True)


def verify(
    target_probs: Tensor,
    drafts: DraftProbs,
    *,
    slots: Sequence[int] | Tensor,
    round_: int,
    positions: Sequence[int] | Tensor,
    keys: Sequence[VerifyKeys] | Tensor,
    sampled: Sequence[bool] | Tensor | None = None,
) -> VerifiedTensors:
    """Verify any subset of slots. Does not synchronise; nothing is raised for data.

    Args:
        target_probs: (B, depth + 1, vocab) float32 or float64, any strides; the
            target's probabilities after its own processors (from logits:
            :func:`pp3shm.gpu.target.target_probs`). Rows after the one that ends a
            request are not used, whatever they hold; neither are further rows, nor
            columns at or above ``vocab`` (padding).
        drafts: what :meth:`DraftProbs.scatter_q` took from the page of ``round_``.
        slots: (B,), the slot each request is in; values of a tensor are not checked
            by the host, and one out of range is refused as a row without a round.
        round_: the round to verify.
        positions: (B,), absolute position of each request's first draft.
        keys: one per request, or their :func:`key_words`, (B, 4) int64.
        sampled: (B,), T > 0 of each request; None: all of them.

    Returns:
        Tensors on the target's device. A request whose row is not of ``round_``, was
        refused when it was scattered, is of the other mode than ``sampled`` says, or
        meets a bad target row, emits nothing; the others are not touched by it.

    Raises:
        ConfigError: tensors of other types, shapes or devices than these.

    Source: Leviathan et al., arXiv:2211.17192, algorithm 1; wire page, section 10.
    """
    _expect(target_probs, drafts, round_)
    target_probs = target_probs[:, : drafts.depth + 1, : drafts.vocab]
    r = _requests(
        target_probs,
        drafts,
        round_,
        slots=slots,
        positions=positions,
        keys=keys,
        sampled=sampled,
    )
    argmax = None if r.greedy is None else target_probs.argmax(-1)  # first of equals
    good = _usable(target_probs)
    accept = _accepts(target_probs, drafts, r, argmax) & good[:, :-1]
    stop = accept.cumprod(-1).sum(-1)
    drawn, no_mass = _draw(target_probs, drafts, r, stop)
    here = stop[:, None]
    if argmax is not None and r.greedy is not None:
        drawn = torch.where(r.greedy, argmax.gather(1, here).squeeze(1), drawn)
    bad = ~good.gather(1, here).squeeze(1) & (r.error == Fault.NONE)
    error = torch.where(bad, Fault.TARGET, r.error)

    emits = error == Fault.NONE
    accepted = torch.where(emits, stop, 0)
    count = torch.where(emits, stop + 1, 0)[:, None]
    tokens = torch.nn.functional.pad(drafts.drafts[r.row], (0, 1), value=-1)
    tokens = tokens.scatter(1, here, drawn[:, None])
    offsets = torch.arange(tokens.shape[1], device=tokens.device)
    return VerifiedTensors(
        tokens=torch.where(offsets < count, tokens, -1),
        count=count.squeeze(1),
        accepted=accepted,
        error=error,
        no_mass=no_mass & emits,
        mode=r.mode,
        slots=r.slot,
        round_of_row=r.found,
        round=round_,
    )


def _expect(target: Tensor, drafts: DraftProbs, round_: int) -> None:
    """The tensors must be of this package's types; values are looked at elsewhere."""
    least = (drafts.depth + 1, drafts.vocab)
    if target.dim() != 3 or target.shape[1] < least[0] or target.shape[2] < least[1]:
        raise ConfigError(
            "target_probs.shape", f"(B, {least[0]}, {least[1]})", tuple(target.shape)
        )
    if target.dtype not in {torch.float32, torch.float64}:
        raise ConfigError("target_probs.dtype", "float32 or float64", target.dtype)
    if target.device != drafts.device:
        raise ConfigError("target_probs.device", drafts.device, target.device)
    if not 0 <= round_ < MASK64:
        raise ConfigError("round", "0 to 2**64 - 2", round_)


def _column(
    values: Sequence[int] | Tensor, name: str, target: Tensor, below: int
) -> Tensor:
    """One integer per request as (B,) int64 on the target's device."""
    if not isinstance(values, torch.Tensor):
        for value in values:
            if not 0 <= value < below:
                raise ConfigError(name, f"0 to {below - 1}", value)
        values = torch.tensor([signed(int(v)) for v in values], dtype=torch.int64)
    if values.shape != target.shape[:1] or values.is_floating_point():
        raise ConfigError(
            name,
            f"integers {tuple(target.shape[:1])}",
            f"{values.dtype} {tuple(values.shape)}",
        )
    return values.to(target.device, torch.int64, non_blocking=True)


def _requests(
    target: Tensor,
    drafts: DraftProbs,
    round_: int,
    *,
    slots: Sequence[int] | Tensor,
    positions: Sequence[int] | Tensor,
    keys: Sequence[VerifyKeys] | Tensor,
    sampled: Sequence[bool] | Tensor | None,
) -> _Requests:
    """Bring the arguments to the device, and find how each row is to be verified."""
    slot = _column(slots, "slots", target, drafts.max_slots)
    # A tensor's values are not known here: a slot outside holds no round.
    row = slot.clamp(0, drafts.max_slots - 1)
    found = torch.where(row == slot, drafts.round_of_slot[row], NONE)
    greedy = None if sampled is None else _column(sampled, "sampled", target, 2) == 0
    key = keys if isinstance(keys, torch.Tensor) else key_words(keys)
    if tuple(key.shape) != (target.shape[0], 4):
        raise ConfigError("keys", (target.shape[0], 4), tuple(key.shape))

    mode, error = drafts.mode_of_slot[row], drafts.fault_of_slot[row]
    other = mode == Mode.GREEDY
    if greedy is not None:
        other = (other & ~greedy) | ((mode == Mode.SAMPLED) & greedy)
    error = torch.where(other, Fault.MODE, error)
    error = torch.where(found == signed(round_), error, Fault.STALE)
    return _Requests(
        slot=slot,
        row=row,
        found=found,
        mode=torch.where(error == Fault.NONE, mode, Mode.TARGET_ONLY),
        error=error,
        greedy=greedy,
        position=_column(positions, "positions", target, MASK64 + 1),
        key=key.to(target.device, torch.int64, non_blocking=True),
        round=round_,
    )


def _usable(target: Tensor) -> Tensor:
    """(B, depth + 1) bool: rows of finite numbers, none negative, with a mass of 1."""
    # NaN and infinities fail both; in float64, as the reference adds them up.
    low, mass = target.amin(-1), target.sum(-1, dtype=torch.float64)
    return (low >= 0.0) & ((mass - 1.0).abs() <= MASS_TOLERANCE)


def _accepts(
    target: Tensor, drafts: DraftProbs, r: _Requests, argmax: Tensor | None
) -> Tensor:
    """(B, depth) bool: each draft judged by itself."""
    draft = drafts.drafts[r.row]
    column = draft.clamp(min=0)  # -1 stands in rows that accept nothing
    offsets = torch.arange(drafts.depth, device=draft.device)
    u = accept_uniform(r.key[:, :2], r.round, r.position[:, None] + offsets)
    q = drafts.draft_probs[r.row[:, None], offsets, column].double()
    p = target[:, :-1].gather(2, column[..., None]).squeeze(2).double()
    accept = (r.mode == Mode.SAMPLED)[:, None] & (u * q < p)
    if argmax is not None:
        greedy = (r.mode == Mode.GREEDY)[:, None]
        accept |= greedy & (argmax[:, :-1] == draft)
    return accept


def _draw(
    target: Tensor, drafts: DraftProbs, r: _Requests, stop: Tensor
) -> tuple[Tensor, Tensor]:
    """(B,) the draw from the row at which acceptance ended, and (B,) ``no_mass``."""
    request = torch.arange(stop.shape[0], device=stop.device)
    p = target[request, stop].double()
    q = drafts.draft_probs[r.row, stop.clamp(max=drafts.depth - 1)].double()
    residual = q.neg_().add_(p).clamp_(min=0.0)  # in place: rows are large
    corrected = (r.mode == Mode.SAMPLED) & (stop < drafts.depth)
    no_mass = corrected & ~(residual.amax(-1) > 0.0)
    weights = torch.where((corrected & ~no_mass)[:, None], residual, p)
    uniform = residual_uniform(r.key[:, 2:], r.round, (r.position + stop)[:, None])
    return inverse_cdf(weights, uniform.squeeze(1)), no_mass
