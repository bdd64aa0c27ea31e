"""Proposals of several requests on the device: support, shares and draws, in Triton.

The definition is :mod:`pp3shm.proposal.reference`, and this agrees with it to the bit
but for one thing: ``exp`` in FP64 is the C library's there and the device's here. Where
the two differ in the last place and a share lies that close to a whole number, a count
differs by 1 (some 1e-8 of rows); q is then still what the token was drawn from.

A chain is two or three kernels per depth, one after the other on the current stream:
no synchronisation, no allocation where every argument is a tensor, one CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import torch

from pp3shm.errors import ConfigError, ProposalError
from pp3shm.gpu.needs_triton import kernels, on_device_of, power_of_two
from pp3shm.gpu.staging import Staging
from pp3shm.proposal.arguments import RULES
from pp3shm.proposal.proposal import Chains
from pp3shm.proposal.reference import MASS, SUPPORT, TAU_MILLI, Rule, place_of
from pp3shm.rng import MASK32, MASK64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from pp3shm.rng import Key

MOST_SUPPORT = 256
BLOCK = 4096
"""Ids that one program reads, on CUDA."""

LARGEST_TILE = 1 << 20
"""Numbers that Triton lets a tensor have."""


class Refusal(IntEnum):
    """Why a request has no proposal."""

    NONE = 0
    NOT_A_NUMBER = 1  # a NaN or +inf among its logits
    NOTHING_FINITE = 2
    NO_REST = 3  # shares that do not add up to 2**24
    NO_TOKEN = 4  # a previous token outside the vocabulary


@dataclass(frozen=True, slots=True)
class ChainTensors:
    """The drafts of several requests, on the device.

    Attributes:
        ids: (n, depth, k) int32, ascending.
        q: (n, depth, k) float32.
        tokens: (n, depth) int32.
        confidence: (n, depth) float32, q of the tokens.
        refusal: (n,) int32 of :class:`Refusal`; where it is not NONE, ids are
            ``0..k-1``, q and confidence 0 and tokens -1, at every depth.
        depth: (n,) int32, at which depth it was refused.
        id: (n,) int32, the first id whose logit is of no use, where that is why.
        value: (n,) float32, that logit.
    """

    ids: Tensor
    q: Tensor
    tokens: Tensor
    confidence: Tensor
    refusal: Tensor
    depth: Tensor
    id: Tensor
    value: Tensor

    def read(self) -> Chains:
        """The same on the host, with errors in words; waits for the device."""
        why = zip(
            self.refusal.tolist(),
            self.depth.tolist(),
            self.id.tolist(),
            self.value.tolist(),
            strict=True,
        )
        return Chains(
            ids=self.ids.cpu().numpy().copy(),
            q=self.q.cpu().numpy().copy(),
            tokens=self.tokens.cpu().numpy().copy(),
            confidence=self.confidence.cpu().numpy().copy(),
            errors=tuple(_error(row, *each) for row, each in enumerate(why)),
        )


def _error(
    row: int, refusal: int, depth: int, at: int, value: float
) -> ProposalError | None:
    match Refusal(refusal):
        case Refusal.NONE:
            return None
        case Refusal.NOT_A_NUMBER:
            place = place_of(row, depth, at)
            return ProposalError(place, "a number below +inf", value)
        case Refusal.NOTHING_FINITE:
            return ProposalError(place_of(row, depth), "a finite entry", "only -inf")
        case Refusal.NO_REST:
            expected = f"a rest in [0, {MASS})"
            return ProposalError(place_of(row, depth), expected, "another")
        case Refusal.NO_TOKEN:
            return ProposalError(f"previous[{row}]", "a token or -1", "another")


class Proposer:
    """Drafts chains of tokens from given logits; owns all memory this needs.

    Args:
        max_requests: requests of one call at most.
        depth: drafts per request.
        vocab: size of the vocabulary.
        device: where everything lives; the CPU only where Triton interprets.
        k: size of the support, to 256 (the wire's is 32).
        tau_milli: temperature in thousandths.
        rule: who gets what rounding down leaves over.
        table: (vocab, vocab) float32; row t is the bias after token t.
        low_rank: U (vocab, rank) and V (rank, vocab), float32: bias ``U[t] @ V``.
        block: ids that one program reads, a power of two; None: 4096, and where Triton
            interprets the whole vocabulary.

    Raises:
        ConfigError: a size, rule or bias that cannot be used, a device without Triton.
        ImportError: there is no Triton.
    """

    def __init__(
        self,
        max_requests: int,
        depth: int,
        vocab: int,
        device: torch.device | str = "cuda",
        *,
        k: int = SUPPORT,
        tau_milli: int = TAU_MILLI,
        rule: Rule = "floor-first",
        table: Tensor | None = None,
        low_rank: tuple[Tensor, Tensor] | None = None,
        block: int | None = None,
    ) -> None:
        if max_requests < 1 or depth < 1:
            raise ConfigError("sizes", "1 at least", (max_requests, depth))
        if not 1 <= k <= min(MOST_SUPPORT, vocab):
            raise ConfigError("k", f"1 to {min(MOST_SUPPORT, vocab)}", k)
        if not 1 <= tau_milli <= MASK32:
            raise ConfigError("tau_milli", f"1 to {MASK32}", tau_milli)
        if rule not in RULES:
            raise ConfigError("rule", " or ".join(RULES), rule)
        self.device = torch.empty(0, device=device).device
        self._kernels = kernels("propose_kernels", self.device)
        self.max_requests, self.depth, self.vocab, self.k = (
            max_requests,
            depth,
            vocab,
            k,
        )
        self._largest_remainder = rule == "largest-remainder"
        self._support = power_of_two(k)
        self._choose_tiles(block)
        self._set_bias(table, low_rank)
        self._staging = Staging(max_requests, self.device)
        self._allocate(tau_milli)

    def _choose_tiles(self, block: int | None) -> None:
        whole = power_of_two(self.vocab)
        on_cpu = self.device.type == "cpu"
        chosen = block or (whole if on_cpu else min(BLOCK, whole))
        if power_of_two(chosen) != chosen or chosen < self._support:
            expected = f"a power of two, at least {self._support}"
            raise ConfigError("block", expected, chosen)
        self._block, self._requests = chosen, 1
        self._blocks = -(-self.vocab // chosen)
        if on_cpu:
            merged = power_of_two(self._blocks) * self._support
            widest = max(chosen, merged, self._support**2)
            most = power_of_two(self.max_requests)
            self._requests = min(most, max(1, LARGEST_TILE // widest))

    def _set_bias(
        self, table: Tensor | None, low_rank: tuple[Tensor, Tensor] | None
    ) -> None:
        kinds = self._kernels
        vocab = self.vocab
        self._bias, self._rank = kinds.NO_BIAS.value, 0
        given: list[tuple[str, Tensor, tuple[int, int]]] = []
        if table is not None and low_rank is not None:
            raise ConfigError("bias", "a table or a low-rank pair", "both")
        if table is not None:
            self._bias = kinds.TABLE.value
            given = [("table", table, (vocab, vocab))]
        if low_rank is not None:
            self._bias = kinds.LOW_RANK.value
            self._rank = low_rank[1].shape[0]
            left, right = (vocab, self._rank), (self._rank, vocab)
            given = [("left", low_rank[0], left), ("right", low_rank[1], right)]
        for name, tensor, shape in given:
            kind = (tensor.dtype, tuple(tensor.shape), tensor.device)
            if kind != (torch.float32, shape, self.device) or 0 in shape:
                expected = f"float32 {shape} on {self.device}"
                raise ConfigError(f"markov.{name}", expected, kind)
            if not tensor.is_contiguous():
                raise ConfigError(f"markov.{name}", "contiguous", tensor.stride())
        self._bias_tensors = [tensor for _, tensor, _ in given]

    def _allocate(self, tau_milli: int) -> None:
        n, depth = self.max_requests, self.depth

        def empty(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=self.device)

        real = torch.float32
        self._ids = empty(n, depth, self.k)
        self._q = empty(n, depth, self.k, dtype=real)
        self._tokens = empty(n, depth)
        self._confidence = empty(n, depth, dtype=real)
        self._refusal = empty(n)
        self._fault_depth, self._fault_id = empty(n), empty(n)
        self._fault_value = empty(n, dtype=real)
        # Between the kernels.
        self._found_ids = empty(n, self._blocks, self._support)
        self._found_values = empty(n, self._blocks, self._support, dtype=real)
        self._support_ids = empty(n, self._support)
        self._support_values = empty(n, self._support, dtype=real)
        self._wrong_id = empty(n, self._blocks)
        self._wrong = empty(n, self._blocks, dtype=real)
        self._no_previous = empty(n, dtype=torch.int64).fill_(-1)
        self._tau = torch.tensor(
            [tau_milli / 1000], dtype=torch.float64, device=self.device
        )

    def propose(
        self,
        logits: Tensor,
        *,
        keys: Sequence[Key] | Tensor,
        round_: int | Tensor,
        positions: Sequence[int] | Tensor,
        previous: Sequence[int | None] | Tensor | None = None,
    ) -> ChainTensors:
        """Draft a chain for each request. Does not synchronise; no data raises.

        Args:
            logits: (n, depth, vocab) float32, bfloat16 or float16, without bias, any
                strides; further rows and columns are not read.
            keys: the requests' keys for proposals; as a tensor (n, 2) int64.
            round_: u64; or an int64 tensor of no axes.
            positions: (n,), of each request's first draft.
            previous: (n,), the last committed token, whose bias depth 0 gets; None, or
                -1 in a tensor: none.

        Returns:
            Tensors of this object, which the next call overwrites.

        Raises:
            ConfigError: tensors of other types, shapes or devices than these.
        """
        n = self._number(logits)
        words = keys if isinstance(keys, torch.Tensor) else torch.tensor(keys)
        take = self._staging.column
        return self._run(
            logits,
            take("keys", words.view(n, -1), n, width=2),
            self._staging.round(round_),
            take("positions", positions, n, below=MASK64 + 2 - self.depth),
            self._before(previous, n),
            given=False,
        )

    def propose_draws(
        self,
        logits: Tensor,
        draws: Tensor,
        *,
        previous: Sequence[int | None] | Tensor | None = None,
    ) -> ChainTensors:
        """The same by draws that are given.

        Args:
            logits: as in :meth:`propose`.
            draws: (n, depth) integers in ``[0, 2**24)``.
            previous: as in :meth:`propose`.

        Returns:
            As :meth:`propose`.

        Raises:
            ConfigError: as :meth:`propose`.
        """
        n = self._number(logits)
        taken = self._staging.column("draws", draws, n, width=self.depth)
        before = self._before(previous, n)
        return self._run(logits, taken, taken, taken, before, given=True)

    def _number(self, logits: Tensor) -> int:
        """How many requests, after a look at the tensor's kind."""
        found = tuple(logits.shape)
        least = (self.depth, self.vocab)
        if len(found) != 3 or found[1] < least[0] or found[2] < least[1]:
            raise ConfigError("logits.shape", f"(n, {least[0]}, {least[1]})", found)
        dtypes = (torch.float32, torch.bfloat16, torch.float16)
        if logits.dtype not in dtypes:
            raise ConfigError("logits.dtype", dtypes, logits.dtype)
        if logits.device != self.device:
            raise ConfigError("logits.device", self.device, logits.device)
        if found[0] > self.max_requests:
            raise ConfigError("requests", f"at most {self.max_requests}", found[0])
        return found[0]

    def _before(self, previous: Sequence[int | None] | Tensor | None, n: int) -> Tensor:
        if previous is None:
            return self._no_previous
        if not isinstance(previous, torch.Tensor):
            for token in previous:
                if token is not None and not 0 <= token < self.vocab:
                    raise ConfigError(
                        "previous", f"None, or 0 to {self.vocab - 1}", token
                    )
            previous = torch.tensor([-1 if t is None else t for t in previous])
        return self._staging.column("previous", previous.to(torch.int64), n)

    def _run(
        self,
        logits: Tensor,
        keys: Tensor,
        round_: Tensor,
        positions: Tensor,
        before: Tensor,
        *,
        given: bool,
    ) -> ChainTensors:
        n = len(logits)
        self._refusal.zero_()
        with on_device_of(logits):
            for i in range(self.depth if n else 0):
                row = logits[:, i]
                self._step(i, n, row, before, (keys, round_, positions), given=given)
                before = self._tokens[:, i]
        return ChainTensors(
            self._ids[:n],
            self._q[:n],
            self._tokens[:n],
            self._confidence[:n],
            self._refusal[:n],
            self._fault_depth[:n],
            self._fault_id[:n],
            self._fault_value[:n],
        )

    def _step(
        self,
        i: int,
        n: int,
        row: Tensor,
        before: Tensor,
        noise: tuple[Tensor, Tensor, Tensor],
        *,
        given: bool,
    ) -> None:
        """One depth of all chains: two kernels, three if there are several blocks."""
        programs = -(-n // self._requests)
        tiles = {"REQS": self._requests, "SUPPORT": self._support}
        left = self._bias_tensors[0] if self._bias_tensors else row
        right = self._bias_tensors[-1] if self._bias_tensors else row
        self._kernels.find_candidates[programs, self._blocks](
            row, row.stride(0), row.stride(1), before, before.stride(0),
            left, right, self._rank, self._refusal, n,
            self._found_ids, self._found_values, self._wrong_id, self._wrong,
            self.vocab, self._blocks, self.k,
            BIAS=self._bias, BLOCK=self._block, **tiles,
            num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
        ids, values = self._found_ids, self._found_values
        if self._blocks > 1:
            ids, values = self._support_ids, self._support_values
            self._kernels.merge_candidates[programs,](
                self._found_ids, self._found_values, self._refusal, n, ids, values,
                self.vocab, self._blocks, self.k, self._block,
                BLOCKS=power_of_two(self._blocks), **tiles,
                num_warps=8, enable_fp_fusion=False,
            )  # fmt: skip
        keys, round_, positions = noise
        self._kernels.settle[programs,](
            ids, values, self._support, self._wrong_id, self._wrong, self._blocks,
            before, before.stride(0), keys, round_, positions, keys, self._tau, n,
            self._refusal, self._fault_depth, self._fault_id, self._fault_value,
            self._ids, self._q, self._tokens, self._confidence,
            i, self.vocab, self.depth,
            K=self.k, LARGEST_REMAINDER=self._largest_remainder, GIVEN=given,
            BLOCKS=power_of_two(self._blocks), **tiles,
            num_warps=max(1, min(8, self._support // 32)), enable_fp_fusion=False,
        )  # fmt: skip
