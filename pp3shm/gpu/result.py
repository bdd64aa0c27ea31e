"""What verification in torch gives: tensors, and one way to read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from pp3shm.errors import VerifyError
from pp3shm.gpu.scatter import NONE, Fault, Mode
from pp3shm.rng import MASK64
from pp3shm.verify.batch import Verified

if TYPE_CHECKING:
    from torch import Tensor

    from pp3shm.verify.reference import Last


@dataclass(frozen=True, slots=True)
class VerifiedTensors:
    """Results of one call, on the target's device; row b is that of ``slots[b]``.

    Attributes:
        tokens: (B, depth + 1) int64; accepted drafts, one drawn token, then -1.
        count: (B,) int64, tokens emitted: ``accepted + 1``, or 0 where nothing is.
        accepted: (B,) int64.
        error: (B,) int64 of :class:`Fault`; nothing is emitted where it is not NONE.
        no_mass: (B,) bool, corrections drawn from p because the residual had no mass.
        mode: (B,) int64 of :class:`Mode`, how the request was verified.
        slots: (B,) int64.
        round_of_row: (B,) int64, the round the slot's row is of, or -1.
        round: the round that was verified, an int64 tensor where it was given as one.
    """

    tokens: Tensor
    count: Tensor
    accepted: Tensor
    error: Tensor
    no_mass: Tensor
    mode: Tensor
    slots: Tensor
    round_of_row: Tensor
    round: int | Tensor

    def read(self) -> Verified:
        """The results on the host, as the reference gives them.

        One copy, which waits for the device: the only point that does.
        """
        columns = (
            self.count,
            self.accepted,
            self.error,
            self.no_mass,
            self.mode,
            self.slots,
            self.round_of_row,
        )
        table = torch.cat([torch.stack(columns, 1).to(torch.int64), self.tokens], 1)
        host = table.cpu().numpy()
        depth = self.tokens.shape[1] - 1
        round_ = int(self.round) & MASK64
        return Verified(
            tokens=host[:, len(columns) :].astype(np.int32),
            count=host[:, 0].astype(np.int32),
            accepted=host[:, 1].astype(np.int32),
            last=tuple(
                _last(count, accepted, mode, depth)
                for count, accepted, mode in host[:, (0, 1, 4)].tolist()
            ),
            no_mass=host[:, 3] != 0,
            errors=tuple(
                _error(error, slot, found, round_)
                for error, slot, found in host[:, (2, 5, 6)].tolist()
            ),
        )


def _last(count: int, accepted: int, mode: int, depth: int) -> Last | None:
    """What the last token of a request is, in the reference's words."""
    if count == 0:
        return None
    if mode == Mode.TARGET_ONLY:
        return "target"
    return "bonus" if accepted == depth else "correction"


def _error(code: int, slot: int, found: int, round_: int) -> VerifyError | None:
    """A code as the error that the reference reports (without the values)."""
    place = f"slot {slot}: "
    match Fault(code):
        case Fault.NONE:
            return None
        case Fault.STALE:
            shown = "none" if found == NONE else found & MASK64
            return VerifyError(f"{place}round", round_, shown)
        case Fault.MODE:
            return VerifyError(f"{place}mask", "1 exactly where T > 0", "the other")
        case Fault.TARGET:
            expected = "no NaN, no infinity, no negative, a mass of 1"
            return VerifyError(f"{place}target_probs", expected, "another row")
        case refused:
            name = f"{place}page.{refused.name.lower()}"
            return VerifyError(name, "a row as the proxy lets pass", "another")
