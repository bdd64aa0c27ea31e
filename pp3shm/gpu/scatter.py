"""A page's ids and q to full-vocabulary FP32 by slot, erasing only the last 32."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import torch

from pp3shm.errors import ConfigError
from pp3shm.gpu.scatter_core import CoreRows
from pp3shm.gpu.views import signed
from pp3shm.layout.tables import SUPPORT, Status
from pp3shm.rng import MASK64

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from pp3shm.gpu.views import ReplyTensors

NONE = -1  # the round of a slot that holds none: 2**64 - 1, as on the wire


class Mode(IntEnum):
    """How a slot's row is to be verified."""

    TARGET_ONLY = 0  # failed or absent: one draw of p_0
    GREEDY = 1  # mask 0
    SAMPLED = 2  # mask 1


class Fault(IntEnum):
    """Why a request emits nothing; 6 to 10 are numbered as the checks of a reply."""

    NONE = 0
    MASK = 6
    TOKEN = 7
    SUPPORT = 8
    MASS = 10
    STALE = 11  # the row is of another round
    MODE = 12  # greedy where the caller says sampled, or the reverse
    TARGET = 13  # a target row with a NaN, an infinity, a negative, a mass not 1


class _Snapshot(NamedTuple):
    """What one call uses of a page: copied first, so that what is checked is used."""

    ok: Tensor  # (B,) bool: status OK, and the page is of this round
    mask: Tensor  # (B,) int64
    drafts: Tensor  # (B, depth) int64
    ids: Tensor  # (B, depth, 32) int64
    q: Tensor  # (B, depth, 32) float32


def require(
    name: str, tensor: Tensor, shape: tuple[int, ...], device: torch.device
) -> None:
    """The caller's own buffer must be dense FP32 of exactly this shape, here.

    Raises:
        ConfigError: it is not.
    """
    if tensor.dtype != torch.float32:
        raise ConfigError(f"{name}.dtype", torch.float32, tensor.dtype)
    if tuple(tensor.shape) != shape:
        raise ConfigError(f"{name}.shape", shape, tuple(tensor.shape))
    if tensor.device != device:
        raise ConfigError(f"{name}.device", device, tensor.device)
    if not tensor.is_contiguous():
        raise ConfigError(name, "contiguous", f"strides {tensor.stride()}")


class SlotRows:
    """Rows by slot in a dense FP32 buffer, of which only 32 columns are ever written.

    What :class:`DraftProbs` and :class:`pp3shm.gpu.carrier.DraftLogits` share: the
    copy and the checks of a page, and the erasure of what the round before wrote.

    Args:
        buffer: (max_slots, depth, vocab) float32, contiguous; filled here.
        erased: what stands off support.

    Attributes:
        buffer: what was given; it stays where it is.
        ids: (max_slots, depth, 32) int64, the columns written last.
        drafts: (max_slots, depth) int64; -1 for a target-only slot.
        mode_of_slot: (max_slots,) int64 of :class:`Mode`.
        fault_of_slot: (max_slots,) int64 of :class:`Fault`, what was found here.
        round_of_slot: (max_slots,) int64, the round each row is of (two's
            complement), or -1.
    """

    def __init__(self, buffer: Tensor, erased: float) -> None:
        self.buffer = buffer.fill_(erased)
        self._erased = erased
        self.max_slots, self.depth, self.vocab = buffer.shape
        self.device = buffer.device
        slots = buffer.new_zeros(self.max_slots, dtype=torch.int64)
        self.mode_of_slot = slots + Mode.TARGET_ONLY
        self.fault_of_slot = slots + Fault.NONE
        self.round_of_slot = slots + NONE
        self.drafts = (slots[:, None] - 1).repeat(1, self.depth)
        # The support of a slot without q, as in the page: any 32 valid ids do.
        self._no_ids = torch.arange(SUPPORT, device=self.device)
        self.ids = self._no_ids.repeat(self.max_slots, self.depth, 1)

    def _take(
        self,
        views: ReplyTensors,
        round_: int,
        stale: Sequence[int],
        carried: Callable[[Tensor], Tensor],
    ) -> None:
        """Erase the columns written last, and write what ``carried`` makes of q."""
        self.expect(views, round_)
        of_round = views.round == signed(round_)
        page = self._snapshot(views, of_round)
        fault = page_fault(page, self.vocab)
        usable = page.ok & (fault == Fault.NONE) & self._current(stale)
        mode = torch.where(usable, page.mask + Mode.GREEDY, Mode.TARGET_ONLY)
        sampled = (mode == Mode.SAMPLED)[:, None, None]
        ids = torch.where(sampled, page.ids, self._no_ids)

        self.buffer.scatter_(2, self.ids, self._erased)
        written = torch.where(sampled, carried(page.q), self._erased)
        self.buffer.scatter_(2, ids, written)
        self.ids.copy_(ids)
        self.drafts.copy_(
            torch.where((mode == Mode.TARGET_ONLY)[:, None], -1, page.drafts)
        )
        self.mode_of_slot.copy_(mode)
        self.fault_of_slot.copy_(fault)
        self.round_of_slot.copy_(torch.where(of_round, signed(round_), NONE))

    def expect(self, views: ReplyTensors, round_: int) -> None:
        """Raises ``ConfigError`` for views that do not fit, or no round."""
        if not 0 <= round_ < MASK64:
            raise ConfigError("round", "0 to 2**64 - 2", round_)
        if views.tokens.device != self.device:
            raise ConfigError("page.device", self.device, views.tokens.device)
        shape = (self.max_slots, self.depth)
        if tuple(views.tokens.shape) != shape:
            raise ConfigError("page.tokens", shape, tuple(views.tokens.shape))

    def _current(self, stale: Sequence[int]) -> Tensor:
        """(max_slots,) bool, without a read of the device."""
        current = torch.ones(self.max_slots, dtype=torch.bool)
        current[list(stale)] = False
        return current.to(self.device, non_blocking=True)

    def _snapshot(self, views: ReplyTensors, of_round: Tensor) -> _Snapshot:
        ok = (views.status == Status.OK) & of_round
        drafts = views.tokens.to(torch.int64)  # another dtype: always a copy
        if views.mask is None or views.ids is None or views.q is None:
            return _Snapshot(
                ok, torch.zeros_like(self.mode_of_slot), drafts, self.ids, self._zero_q
            )
        return _Snapshot(
            ok,
            views.mask.to(torch.int64),
            drafts,
            views.ids.to(torch.int64),
            views.q.clone(),
        )

    @property
    def _zero_q(self) -> Tensor:
        return self.ids.new_zeros(self.ids.shape, dtype=torch.float32)


def own_buffer(
    name: str,
    shape: tuple[int, int, int],
    device: torch.device | str | None,
    given: Tensor | None,
) -> Tensor:
    """The caller's buffer, or a new one.

    Raises:
        ConfigError: a size, dtype, shape or layout that cannot be used.
    """
    if shape[0] < 1 or shape[1] < 1 or shape[2] < SUPPORT:
        raise ConfigError(f"{name}.shape", "at least (1, 1, 32)", shape)
    if given is None:
        given = torch.empty(shape, dtype=torch.float32, device=device or "cpu")
    # An empty tensor knows which "cuda" is meant.
    here = given if device is None else torch.empty(0, device=device)
    require(name, given, shape, here.device)
    return given


class DraftProbs(SlotRows):
    """The drafts of each slot and the q they were drawn from, of one round.

    No method synchronises a device, except where it says so.

    Args:
        max_slots: slots, as in the profile.
        depth: drafts per slot.
        vocab: size of the target's vocabulary, at least 32.
        device: where everything lives; None: where ``draft_probs`` does, or the CPU.
        draft_probs: the caller's own buffer, used instead of a new one; erased here.

    Attributes:
        draft_probs: (max_slots, depth, vocab) float32, contiguous; row (s, i) is q
            of draft i in slot s, zero off support; all zero for a slot that is not
            sampled.

    Raises:
        ConfigError: a size, dtype, shape or layout that cannot be used.
    """

    def __init__(
        self,
        max_slots: int,
        depth: int,
        vocab: int,
        device: torch.device | str | None = None,
        draft_probs: Tensor | None = None,
    ) -> None:
        shape = (max_slots, depth, vocab)
        buffer = own_buffer("draft_probs", shape, device, draft_probs)
        super().__init__(buffer, 0.0)
        self.draft_probs = self.buffer
        self._core = CoreRows(self) if self.device.type == "cpu" else None

    def scatter_q(
        self, views: ReplyTensors, round_: int, stale: Sequence[int] = ()
    ) -> None:
        """Take the page of ``round_`` into every slot. Does not synchronise.

        Of each row the 32 columns written last are erased, and the 32 new ones
        written, exactly as they stand in the page. Slots that are failed, absent or
        greedy get rows of zeros. All that is used is copied first and the copy is
        checked (:func:`page_fault`), so that bytes changed meanwhile reach nothing.
        Verification refuses a slot that fails, and ``fault_of_slot`` says why. A page
        of another round leaves all slots without a round, which it refuses too.
        On the CPU the page is no longer needed when this returns.

        Args:
            views: tensors of the page on this object's device; a greedy profile's
                have no mask, ids and q.
            round_: the round that is expected there.
            stale: slots that were closed or opened anew since the round was asked
                (``Reply.stale``): failed, whatever stands in the page.

        Raises:
            ConfigError: views of another device or layout, or an impossible round.
        """
        if self._core is None or not self._core.take(self, views, round_, stale):
            self._take(views, round_, stale, lambda q: q)

    def draft_logits(
        self,
        temperature: float | Sequence[float] | Tensor,
        out: Tensor | None = None,
    ) -> Tensor:
        """``T * log q``, for samplers that take the drafter's logits.

        Such a sampler divides by its temperature and takes its own softmax, and so
        gets q back within a few units of FP32's last place. The carrier must stay
        FP32 (bf16 would change nearly every value), and no verifier of this package
        takes q from it: ``exp(log q)`` is not q. Rows of a slot that is not sampled
        are -inf throughout: no distribution; the sampler's own mask for invalid
        drafts, or a point mass, must stand for them. Does not synchronise.

        Args:
            temperature: T of each slot, (max_slots,), or one for all; above 0
                wherever the slot is sampled.
            out: (max_slots, depth, vocab) float32 to fill; a new one otherwise.

        Returns:
            (max_slots, depth, vocab) float32, -inf off support.

        Raises:
            ConfigError: an ``out`` that does not fit, or a temperature that is not
                one number or one per slot.
        """
        scale = temperature_of(self, temperature)
        if out is None:
            out = torch.empty_like(self.draft_probs)
        require("out", out, tuple(self.draft_probs.shape), self.device)
        q = self.draft_probs.gather(2, self.ids)
        return out.fill_(-torch.inf).scatter_(2, self.ids, log_form(q, scale))


def temperature_of(
    rows: SlotRows, temperature: float | Sequence[float] | Tensor
) -> Tensor:
    """One temperature or one per slot, float64, on the rows' device.

    Raises:
        ConfigError: it is neither.
    """
    scale = torch.as_tensor(temperature, dtype=torch.float64)
    scale = scale.to(rows.device, non_blocking=True)
    if scale.shape not in {(), (rows.max_slots,)}:
        raise ConfigError("temperature", (rows.max_slots,), tuple(scale.shape))
    return scale


def log_form(q: Tensor, scale: Tensor) -> Tensor:
    """``T * log q`` rounded to FP32 once; -inf where q is 0."""
    wide = q.double()
    # A product with log 0 is NaN at T = 0, where nobody reads the row.
    logits = torch.where(wide > 0.0, scale.view(-1, 1, 1) * wide.log(), -torch.inf)
    return logits.float()


def page_fault(page: _Snapshot, vocab: int) -> Tensor:
    """Why each row must not be used, by the words of the wire page's section 6.

    The proxy has checked the whole frame. Here, on the copy that is used, stands what
    would reach outside (a wild id or draft) or be laundered in silence (a NaN, a
    negative, a row without mass, a draft that q gives nothing); whether q is a
    multiple of 2**-24 changes neither.

    Returns:
        (B,) int64 of :class:`Fault`; NONE where the row is not OK and thus unused.
    """
    # Ascending from above -1, a row is in range if its last id is.
    before = torch.nn.functional.pad(page.ids[..., :-1], (1, 0), value=-1)
    support = (page.ids > before).all(-1) & (page.ids[..., -1] < vocab)
    drawn = torch.where(page.ids == page.drafts[..., None], page.q, 0.0).amax(-1)
    mass = page.q.sum(-1, dtype=torch.float64) == 1.0  # exact for dyadic q
    mass &= (page.q.amin(-1) >= 0.0) & (drawn > 0.0)
    token = ((page.drafts >= 0) & (page.drafts < vocab)).all(-1)

    fault = torch.where(mass.all(-1), Fault.NONE, Fault.MASS)
    fault = torch.where(support.all(-1), fault, Fault.SUPPORT)
    fault = torch.where(page.mask == 1, fault, Fault.NONE)
    fault = torch.where(token, fault, Fault.TOKEN)
    fault = torch.where(page.mask >> 1 == 0, fault, Fault.MASK)
    return torch.where(page.ok, fault, Fault.NONE)
