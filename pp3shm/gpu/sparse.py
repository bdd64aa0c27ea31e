"""``standard-v1`` from sparse q, in Triton: no dense q, one pass over the logits.

The law is that of :mod:`pp3shm.verify`, as in :mod:`pp3shm.gpu.verify`. q is read from
the page's own tensors, and checked on the copy that is used. Three kernels are put on
the current stream (:mod:`pp3shm.gpu.sparse_pass`, :mod:`pp3shm.gpu.sparse_decide`),
and nothing else where every argument is a tensor of its final type: no
synchronisation, no allocation, and thus nothing that a CUDA graph could not hold.

What differs from exact arithmetic: a weight is within 1.1e-7 of ``exp(z / T)``, sums
are FP64 (:mod:`pp3shm.gpu.sparse_common`), and acceptance is the comparison
``u * q < p`` of FP64 numbers with an exact product. A token more than 2**-126 below the
largest of its run of ids has weight 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from pp3shm.errors import ConfigError
from pp3shm.gpu.needs_triton import kernels, on_device_of, power_of_two
from pp3shm.gpu.result import VerifiedTensors
from pp3shm.gpu.sparse_arguments import expand_mask, expect_page, expect_target
from pp3shm.gpu.staging import Staging
from pp3shm.gpu.verify import key_words
from pp3shm.layout.tables import SUPPORT
from pp3shm.rng import MASK64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pp3shm.gpu.views import ReplyTensors
    from pp3shm.verify.keys import VerifyKeys

RUN = 512
"""Ids whose weights are summed as one, and that a draw walks."""

BLOCK = 1024
"""Ids that one program, of one warp, reads on CUDA: a run is reduced within a warp, so
that no program waits for another warp and a third of the instructions go."""

CHUNK = 8
"""Support ids whose runs are summed again at once, on CUDA."""

LARGEST_TILE = 1 << 20
"""Numbers that Triton lets a tensor have."""


class _Call(NamedTuple):
    """The arguments of one call, checked, as the kernels read them."""

    n: int
    slots: Tensor
    round: Tensor
    positions: Tensor
    keys: Tensor
    temperature: Tensor
    accept: Tensor
    residual: Tensor
    given: bool


class SparseVerifier:
    """Verifies requests from their page's sparse q; owns all memory this needs.

    Args:
        max_requests: requests of one call at most; any number, also beyond the wire's
            slots.
        depth: drafts per request.
        vocab: size of the target's vocabulary.
        device: where everything lives; the CPU only where Triton interprets.
        support: ids of a row of q.
        block: ids that one program reads, a multiple of the run of ids that is summed
            as one (512, or less for a small vocabulary); None: 1024, and where Triton
            interprets the whole vocabulary and all rows at once.

    Raises:
        ConfigError: a size that cannot be used, or a device without Triton.
        ImportError: there is no Triton.
    """

    def __init__(
        self,
        max_requests: int,
        depth: int,
        vocab: int,
        device: torch.device | str = "cuda",
        *,
        support: int = SUPPORT,
        block: int | None = None,
    ) -> None:
        if max_requests < 1 or depth < 1 or not 1 <= support <= vocab:
            sizes = (max_requests, depth, support, vocab)
            raise ConfigError("sizes", "1 at least, support within vocab", sizes)
        self.device = torch.empty(0, device=device).device
        self._pass = kernels("sparse_pass", self.device)
        self._decide = kernels("sparse_decide", self.device)
        self.max_requests, self.depth, self.vocab = max_requests, depth, vocab
        self.support = support
        self._run = min(RUN, power_of_two(vocab))
        self._runs = -(-vocab // self._run)
        # Rows, runs and requests of one program; of the last also for the other two
        # kernels, whose largest tile has a run for each id of a support.
        self._rows, self._runs_at_once = 1, max(1, BLOCK // self._run)
        self._sum_requests = self._requests = 1
        self._chunk = min(CHUNK, power_of_two(support))
        if self.device.type == "cpu":
            self._rows = power_of_two(depth + 1)
            self._runs_at_once = power_of_two(self._runs)
        if block is not None:
            if block % self._run or power_of_two(block) != block:
                expected = f"a power of two, at least {self._run}"
                raise ConfigError("block", expected, block)
            self._runs_at_once = block // self._run
        if self.device.type == "cpu":
            most, self._chunk = power_of_two(max_requests), power_of_two(support)
            row = self._runs_at_once * self._run
            self._rows = min(self._rows, max(1, LARGEST_TILE // row))
            self._sum_requests = min(most, max(1, LARGEST_TILE // row // self._rows))
            wide = power_of_two(max(support, depth + 1)) * max(
                self._run, power_of_two(self._runs)
            )
            self._requests = min(most, max(1, LARGEST_TILE // wide))
        self._staging = Staging(max_requests, self.device)
        self._allocate()

    def _allocate(self) -> None:
        n, rows = self.max_requests, self.depth + 1

        def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=self.device)

        # Between the kernels; the first three and the rest below are results too.
        self._mode, self._error, self._found = empty(n), empty(n), empty(n)
        self._drafts = empty(n, self.depth)
        self._ids = empty(n, self.depth, self.support, dtype=torch.int32)
        self._q = empty(n, self.depth, self.support, dtype=torch.float32)
        self._largest = empty(n, rows, self._runs, dtype=torch.float64)
        self._sums = empty(n, rows, self._runs, dtype=torch.float64)
        self._tokens = empty(n, rows)
        self._count, self._accepted = empty(n), empty(n)
        self._no_mass = empty(n, dtype=torch.uint8)
        self._none = empty(1, dtype=torch.float64)  # where no uniforms are given
        self._stale = empty(1, dtype=torch.uint8).zero_()
        self._stale_before: tuple[int, ...] = ()

    def verify(
        self,
        target: Tensor,
        page: ReplyTensors,
        *,
        slots: Sequence[int] | Tensor,
        round_: int | Tensor,
        positions: Sequence[int] | Tensor,
        keys: Sequence[VerifyKeys] | Tensor,
        temperature: Sequence[float] | Tensor,
        logit_mask: Tensor | None = None,
        logits: bool = True,
        stale: Sequence[int] | Tensor = (),
    ) -> VerifiedTensors:
        """Verify any subset of slots. Does not synchronise; no data raises.

        Args:
            target: (B, depth + 1, vocab) float32, bfloat16 or float16 logits after
                the target's own processors, before the temperature; any strides.
                -inf is a masked token. Further rows and columns are not read.
            page: tensors of the page of ``round_`` (:meth:`Page.load`), contiguous;
                a greedy profile's have no mask, ids and q.
            slots: (B,), the slot of each request; one that does not exist is refused
                as a row without a round where the host does not see it.
            round_: the round to verify; or it as an int64 tensor of no axes, which
                a captured graph reads anew each time.
            positions: (B,), absolute position of each request's first draft.
            keys: one per request, or their :func:`key_words`, (B, 4) int64.
            temperature: (B,), float64 as a tensor; 0: greedy.
            logit_mask: a floating tensor that broadcasts to (B, depth + 1, vocab),
                added to the logits in FP32.
            logits: False: ``target`` holds probabilities, float32 or float64, and the
                temperature only says who is greedy.
            stale: slots that were closed or opened anew since the round was asked
                (``Reply.stale``); or (max_slots,) uint8, not 0 where a slot was.

        Returns:
            Tensors of this object, which the next call overwrites. A request whose
            row is refused, or meets a bad target row, emits nothing; the others are
            not touched by it.

        Raises:
            ConfigError: tensors of other types, shapes or devices than these.
        """
        n = self._number(target)
        words = keys if isinstance(keys, torch.Tensor) else key_words(keys)
        take = self._staging.column
        call = _Call(
            n,
            take("slots", slots, n, below=len(page.status)),
            self._staging.round(round_),
            take("positions", positions, n, below=MASK64 + 1),
            take("keys", words, n, width=4),
            self._temperature(temperature, n),
            self._none,
            self._none,
            given=False,
        )
        return self._run_kernels(target, page, call, round_, logit_mask, stale, logits)

    def verify_uniforms(
        self,
        target: Tensor,
        page: ReplyTensors,
        *,
        accept: Tensor,
        residual: Tensor,
        slots: Sequence[int] | Tensor,
        round_: int | Tensor,
        temperature: Sequence[float] | Tensor,
        logit_mask: Tensor | None = None,
        logits: bool = True,
        stale: Sequence[int] | Tensor = (),
    ) -> VerifiedTensors:
        """The same with the uniforms as arguments, to look at the law itself.

        Args:
            target: as in :meth:`verify`, and so are the arguments not named here.
            page: likewise.
            accept: (B, depth) float64, multiples of 2**-29 in [0, 1).
            residual: (B, depth + 1) float64 in [0, 1).
            slots: likewise.
            round_: likewise.
            temperature: likewise.
            logit_mask: likewise.
            logits: likewise.
            stale: likewise.

        Returns:
            As :meth:`verify`.

        Raises:
            ConfigError: likewise.
        """
        n = self._number(target)
        take, real = self._staging.column, torch.float64
        slot = take("slots", slots, n, below=len(page.status))
        call = _Call(
            n,
            slot,
            self._staging.round(round_),
            slot,  # neither positions nor keys are read
            slot,
            self._temperature(temperature, n),
            take("accept", accept, n, real, self.depth),
            take("residual", residual, n, real, self.depth + 1),
            given=True,
        )
        return self._run_kernels(target, page, call, round_, logit_mask, stale, logits)

    def _number(self, target: Tensor) -> int:
        n = len(target)
        if n > self.max_requests:
            raise ConfigError("requests", f"at most {self.max_requests}", n)
        return n

    def _temperature(self, values: Sequence[float] | Tensor, n: int) -> Tensor:
        return self._staging.column("temperature", values, n, torch.float64)

    def _run_kernels(
        self,
        target: Tensor,
        page: ReplyTensors,
        call: _Call,
        round_: int | Tensor,
        added: Tensor | None,
        stale: Sequence[int] | Tensor,
        logits: bool,
    ) -> VerifiedTensors:
        shape = (call.n, self.depth + 1, self.vocab)
        expect_target(target, shape, self.device, logits=logits)
        expect_page(page, self.depth, self.support, self.device)
        flags = self._stale_flags(stale, len(page.status))
        if added is not None:
            added = expand_mask(added, shape, self.device, logits=logits)
        if call.n:
            with on_device_of(target):
                self._launch(target, page, call, added, flags, logits=logits)
        n = call.n
        return VerifiedTensors(
            tokens=self._tokens[:n],
            count=self._count[:n],
            accepted=self._accepted[:n],
            error=self._error[:n],
            no_mass=self._no_mass[:n].view(torch.bool),
            mode=self._mode[:n],
            slots=call.slots,
            round_of_row=self._found[:n],
            round=round_,
        )

    def _launch(
        self,
        target: Tensor,
        page: ReplyTensors,
        call: _Call,
        added: Tensor | None,
        stale: Tensor,
        *,
        logits: bool,
    ) -> None:
        n, depth, support = call.n, self.depth, self.support
        has_q = page.ids is not None
        mask, ids, q = (page.mask, page.ids, page.q) if has_q else (page.tokens,) * 3
        tiles = {"SUPPORT": power_of_two(support), "RUN": self._run}
        options: dict[str, Any] = {"enable_fp_fusion": False}
        programs = -(-n // self._requests)
        self._pass.take_page[programs,](
            call.slots, call.round, call.temperature, n,
            page.round, page.status, page.tokens, mask, ids, q, stale,
            self._mode, self._error, self._found, self._drafts, self._ids, self._q,
            len(page.status), self.vocab, depth, support,
            HAS_Q=has_q, REQS=self._requests, DEPTH=power_of_two(depth),
            SUPPORT=tiles["SUPPORT"], **options,
        )  # fmt: skip
        both = (
            target, *target.stride(),
            *((target, 0, 0, 0) if added is None else (added, *added.stride())),
        )  # fmt: skip
        form = {"LOGITS": logits, "ADDED": added is not None}
        grid = (
            -(-n // self._sum_requests),
            -(-(depth + 1) // self._rows),
            -(-self._runs // self._runs_at_once),
        )
        self._pass.sum_runs[grid](
            *both, call.temperature, self._mode, self._error, n,
            self._largest, self._sums, self.vocab, depth, self._runs,
            **form, REQS=self._sum_requests, ROWS=self._rows,
            RUNS=self._runs_at_once, RUN=self._run,
            num_warps=max(1, min(8, self._runs_at_once * self._run // BLOCK)),
            **options,
        )  # fmt: skip
        self._decide.decide[programs,](
            *both, call.round, call.positions, call.keys,
            call.temperature, n, call.accept, call.residual,
            self._mode, self._error, self._drafts, self._ids, self._q,
            self._largest, self._sums,
            self._tokens, self._count, self._accepted, self._no_mass,
            self.vocab, depth, self._runs, support,
            **form, HAS_Q=has_q, GIVEN=call.given, REQS=self._requests,
            ROWS=power_of_two(depth + 1), CHUNK=self._chunk,
            RUNS=power_of_two(self._runs), **tiles, num_warps=8, **options,
        )  # fmt: skip

    def _stale_flags(self, stale: Sequence[int] | Tensor, slots: int) -> Tensor:
        """(slots,) uint8; written only where it differs from the call before."""
        if isinstance(stale, torch.Tensor):
            if (stale.dtype, tuple(stale.shape)) != (torch.uint8, (slots,)):
                raise ConfigError("stale", f"uint8 ({slots},)", stale.dtype)
            return stale
        if len(self._stale) != slots:
            self._stale = torch.zeros(slots, dtype=torch.uint8, device=self.device)
            self._stale_before = ()
        if tuple(stale) != self._stale_before:
            flags = torch.zeros(slots, dtype=torch.uint8)
            flags[list(stale)] = 1
            self._stale.copy_(flags, non_blocking=True)
            self._stale_before = tuple(stale)
        return self._stale
