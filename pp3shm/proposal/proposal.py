"""Proposals by the C core: one row, or the chains of several requests in one call."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from pp3shm._core import ffi, lib
from pp3shm.errors import ConfigError, ProposalError
from pp3shm.proposal.arguments import (
    RULES,
    bias_row,
    check_counter,
    check_numbers,
    floats,
    previous_tokens,
)
from pp3shm.proposal.reference import MASS, SUPPORT, TAU_MILLI, Rule, place_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from pp3shm.proposal.markov import Bias, Markov
    from pp3shm.rng import Key


class Proposal(NamedTuple):
    """One drafted token and the exact distribution it was drawn from.

    Attributes:
        ids: (k,) int32, strictly ascending: the support.
        q: (k,) float32, each a multiple of 2**-24, adding up to exactly 1.
        token: the id drawn.
        confidence: its q.
    """

    ids: NDArray[np.int32]
    q: NDArray[np.float32]
    token: int
    confidence: float


class Chains(NamedTuple):
    """The drafts of several requests.

    Attributes:
        ids: (n, depth, k) int32.
        q: (n, depth, k) float32.
        tokens: (n, depth) int32.
        confidence: (n, depth) float32, q of the tokens.
        errors: per request None, or why it was given up: then its ids are ``0..k-1``,
            its q and confidence 0 and its tokens -1, at every depth.
    """

    ids: NDArray[np.int32]
    q: NDArray[np.float32]
    tokens: NDArray[np.int32]
    confidence: NDArray[np.float32]
    errors: tuple[ProposalError | None, ...]


def propose_row(
    logits: NDArray[np.float32],
    *,
    key: Key,
    round: int,  # noqa: A002 (the wire page's word)
    position: int,
    tau_milli: int = TAU_MILLI,
    rule: Rule = "floor-first",
    bias: NDArray[np.float32] | None = None,
    k: int = SUPPORT,
) -> Proposal:
    """Drafts one token.

    Args:
        logits: (vocab,) float32; -inf masks a token.
        key: the request's key for proposals.
        round: u64.
        position: the drafted token's own, u64.
        tau_milli: temperature in thousandths, at least 1.
        rule: who gets what rounding down leaves over.
        bias: (vocab,) float32, added in FP32 while the logits are read; or None.
        k: size of the support, 1 to 256; the wire of version 1 carries 32.

    Returns:
        The proposal.

    Raises:
        ConfigError: an argument of another type, shape or range.
        ProposalError: the logits hold a NaN or +inf, or nothing finite.
    """
    row = floats("logits", logits, 1)
    check_numbers(row.shape[0], k, tau_milli, rule)
    check_counter(round, [position])
    added = None if bias is None else bias_row("bias", bias, row.shape[0])
    one = _One(k)
    if lib.pp3_draft_row(
        _in(row), ffi.NULL if added is None else _in(added), row.shape[0], k,
        tau_milli, RULES[rule], key, round, position, *one.out,
    ):  # fmt: skip
        raise _error(one.fault)
    return one.proposal()


def propose_draw24(
    logits: NDArray[np.float32],
    draw24: int,
    *,
    tau_milli: int = TAU_MILLI,
    rule: Rule = "floor-first",
    k: int = SUPPORT,
) -> Proposal:
    """Drafts one token by a draw that is given.

    Args:
        logits: (vocab,) float32; -inf masks a token.
        draw24: integer in ``[0, 2**24)``.
        tau_milli: temperature in thousandths, at least 1.
        rule: who gets what rounding down leaves over.
        k: size of the support, 1 to 256; the wire of version 1 carries 32.

    Returns:
        The proposal.

    Raises:
        ConfigError: an argument of another type, shape or range.
        ProposalError: the logits hold a NaN or +inf, or nothing finite.
    """
    row = floats("logits", logits, 1)
    check_numbers(row.shape[0], k, tau_milli, rule)
    if not 0 <= draw24 < MASS:
        raise ConfigError("draw24", f"0 to {MASS - 1}", draw24)
    one = _One(k)
    if lib.pp3_propose(
        _in(row), ffi.NULL, row.shape[0], k, tau_milli, RULES[rule], draw24, *one.out
    ):
        raise _error(one.fault)
    return one.proposal()


def propose_chain(
    logits: NDArray[np.float32],
    *,
    keys: Sequence[Key],
    round: int,  # noqa: A002 (the wire page's word)
    positions: Sequence[int],
    previous: Sequence[int | None] | None = None,
    markov: Markov | None = None,
    tau_milli: int = TAU_MILLI,
    rule: Rule = "floor-first",
    k: int = SUPPORT,
    on_error: Literal["raise", "report"] = "raise",
) -> Chains:
    """Drafts ``depth`` tokens for each of n requests.

    With a table, a low-rank pair or no bias this is one C call; a function is called
    between the depths. The bias is added in FP32, as one addition ``logit + bias`` per
    entry; the low-rank row is summed in ascending rank, each product and each sum
    rounded to FP32 (``reference.low_rank_bias``).

    Args:
        logits: (n, depth, vocab) float32, without bias; -inf masks a token.
        keys: n keys for proposals, one per request.
        round: u64.
        positions: n positions (u64) of the first drafted token; draft i of a request
            is drawn at its position + i.
        previous: n last committed tokens, whose bias position 0 gets; None for a
            request, or in all, leaves its position 0 without bias.
        markov: the bias of each next position by the token drawn before it.
        tau_milli: temperature in thousandths, at least 1.
        rule: who gets what rounding down leaves over.
        k: size of the support, 1 to 256; the wire of version 1 carries 32.
        on_error: ``raise`` the first request's error, or ``report`` errors in the
            result and draft the other requests.

    Returns:
        The drafts.

    Raises:
        ConfigError: an argument of another type, shape or range.
        ProposalError: logits hold a NaN or +inf, or nothing finite.
    """
    base = floats("logits", logits, 3)
    n, depth, vocab = base.shape
    check_numbers(vocab, k, tau_milli, rule)
    check_counter(round, positions, depth)
    before = previous_tokens(previous, n, vocab)
    for name, given in (("keys", keys), ("positions", positions)):
        if len(given) != n:
            raise ConfigError(name, f"{n}, one per request", len(given))
    out = Chains(
        np.empty((n, depth, k), np.int32), np.empty((n, depth, k), np.float32),
        np.empty((n, depth), np.int32), np.empty((n, depth), np.float32), (),
    )  # fmt: skip
    work = _Work(base, keys, round, positions, before, tau_milli, rule, k, out)
    if markov is None or markov.left is not None:
        errors = work.in_one_call(markov)
    else:
        errors = work.by_depth(markov.row)
    if on_error == "raise":
        for error in errors:
            if error is not None:
                raise error
    return out._replace(errors=errors)


class _One:
    """Where the C core puts one proposal; ``out`` are its last arguments."""

    def __init__(self, k: int) -> None:
        self.ids = np.empty(k, np.int32)
        self.q = np.empty(k, np.float32)
        self.token = ffi.new("int32_t *")
        self.confidence = ffi.new("float *")
        self.fault = ffi.new("struct pp3_draft_fault *")
        self.out = (
            _out("int32_t[]", self.ids),
            _out("float[]", self.q),
            self.token,
            self.confidence,
            self.fault,
        )

    def proposal(self) -> Proposal:
        return Proposal(self.ids, self.q, self.token[0], self.confidence[0])


@dataclass(frozen=True, slots=True)
class _Work:
    """The arguments of one call of :func:`propose_chain`, checked."""

    logits: NDArray[np.float32]
    keys: Sequence[Key]
    round: int
    positions: Sequence[int]
    previous: list[int]
    tau_milli: int
    rule: Rule
    k: int
    out: Chains

    def in_one_call(self, markov: Markov | None) -> tuple[ProposalError | None, ...]:
        """Table, low-rank pair or no bias: everything in C."""
        n, depth, vocab = self.logits.shape
        if markov is not None and markov.vocab != vocab:
            raise ConfigError("markov.vocab", vocab, markov.vocab)
        rank = 0 if markov is None else markov.rank
        chain = ffi.new(
            "struct pp3_chain *",
            (
                n,
                depth,
                vocab,
                self.k,
                self.tau_milli,
                RULES[self.rule],
                self.round,
                rank,
            ),
        )
        faults = ffi.new("struct pp3_draft_fault[]", n)
        scratch = np.empty((n, vocab), np.float32) if rank else None
        left = ffi.NULL if markov is None else markov.left_pointer
        right = ffi.NULL if markov is None else markov.right_pointer
        code = lib.pp3_draft_chain(
            chain, _in(self.logits), [int(word) for key in self.keys for word in key],
            [int(position) for position in self.positions], self.previous, left, right,
            ffi.NULL if scratch is None else _out("float[]", scratch),
            _out("int32_t[]", self.out.ids), _out("float[]", self.out.q),
            _out("int32_t[]", self.out.tokens), _out("float[]", self.out.confidence),
            faults,
        )  # fmt: skip
        if code:
            raise ConfigError("propose_chain", "arguments in range", code)
        return tuple(
            _error(faults[row], row, faults[row].depth) if faults[row].kind else None
            for row in range(n)
        )

    def by_depth(self, bias: Bias) -> tuple[ProposalError | None, ...]:
        """A function gives the bias: one C call per request and depth."""
        n = self.logits.shape[0]
        return tuple(self._one_by_depth(row, bias) for row in range(n))

    def _one_by_depth(self, row: int, bias: Bias) -> ProposalError | None:
        _, depth, vocab = self.logits.shape
        ids, q, tokens, confidence, _ = self.out
        fault = ffi.new("struct pp3_draft_fault *")
        before = self.previous[row]
        for i in range(depth):
            added = None
            if before >= 0:
                added = bias_row(f"markov({before})", bias(before), vocab)
            kind = lib.pp3_draft_row(
                _in(self.logits[row, i]), ffi.NULL if added is None else _in(added),
                vocab, self.k, self.tau_milli, RULES[self.rule], self.keys[row],
                self.round, self.positions[row] + i, _out("int32_t[]", ids[row, i]),
                _out("float[]", q[row, i]), _out("int32_t[]", tokens[row, i : i + 1]),
                _out("float[]", confidence[row, i : i + 1]), fault,
            )  # fmt: skip
            if kind:
                ids[row], q[row] = np.arange(self.k), 0
                tokens[row], confidence[row] = -1, 0
                return _error(fault, row, i)
            before = int(tokens[row, i])
        return None


def _error(fault: Any, *where: int) -> ProposalError:
    """What a fault of the C core says, in words; ``where`` are the row's indices."""
    if fault.kind == -errno.EDOM:
        place = place_of(*where, fault.id)
        return ProposalError(place, "a number below +inf", fault.value)
    if fault.kind == -errno.ENODATA:
        return ProposalError(place_of(*where), "a finite entry", "only -inf")
    return ProposalError(place_of(*where), "shares of 2**24", f"error {fault.kind}")


def _in(array: NDArray[np.float32]) -> Any:
    return ffi.from_buffer("float[]", array)


def _out(kind: str, array: NDArray[Any]) -> Any:
    return ffi.from_buffer(kind, array, require_writable=True)
