"""The form of q for samplers that take a drafter's logits: ``T * log q`` by slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pp3shm.gpu.scatter import SlotRows, log_form, own_buffer, temperature_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from pp3shm.gpu.views import ReplyTensors


class DraftLogits(SlotRows):
    """The drafts of each slot, and their q as logits that such a sampler divides by T.

    It divides by its temperature, takes its own softmax, and has q within a few units
    of FP32's last place. The buffer must stay FP32: bf16 would change nearly every
    value, and with it the law. No verifier of this package takes q from here, for
    ``exp(log q)`` is not q. No method synchronises a device.

    Args:
        max_slots: slots, as in the profile.
        depth: drafts per slot.
        vocab: size of the target's vocabulary, at least 32.
        device: where everything lives; None: where ``draft_logits`` does, or the CPU.
        draft_logits: the caller's own buffer, used instead of a new one; erased here.

    Attributes:
        draft_logits: (max_slots, depth, vocab) float32, contiguous; -inf off support,
            and throughout for a slot that is not sampled: no distribution, so that
            the sampler's own mask for invalid drafts, or a point mass, must stand
            for it.

    Raises:
        ConfigError: a size, dtype, shape or layout that cannot be used.
    """

    def __init__(
        self,
        max_slots: int,
        depth: int,
        vocab: int,
        device: torch.device | str | None = None,
        draft_logits: Tensor | None = None,
    ) -> None:
        shape = (max_slots, depth, vocab)
        buffer = own_buffer("draft_logits", shape, device, draft_logits)
        super().__init__(buffer, float("-inf"))
        self.draft_logits = self.buffer

    def scatter_q(
        self,
        views: ReplyTensors,
        round_: int,
        temperature: float | Sequence[float] | Tensor,
        stale: Sequence[int] = (),
    ) -> None:
        """As :meth:`DraftProbs.scatter_q`, erasing and writing 32 columns of a row.

        Args:
            views: tensors of the page on this object's device.
            round_: the round that is expected there.
            temperature: T that the sampler divides by, of this round: one per slot,
                or one for all; above 0 wherever the slot is sampled.
            stale: slots that were closed or opened anew since the round was asked.

        Raises:
            ConfigError: views of another device or layout, an impossible round, or a
                temperature that is not one number or one per slot.
        """
        scale = temperature_of(self, temperature)
        self._take(views, round_, stale, lambda q: log_form(q, scale))
