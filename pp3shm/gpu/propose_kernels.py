"""The three kernels of a proposal; :mod:`pp3shm.gpu.propose` starts them by depth.

1. :func:`find_candidates`: per request and block of the vocabulary, the k largest
   logits with the bias of the token before.
2. :func:`merge_candidates`: of all blocks' candidates the k largest: the support.
3. :func:`settle`: FP64 weights in the support, whole shares of 2**24, one draw.

A selection does not sort. The k-th largest is found by halving an interval of the
logits' bit patterns, which takes 32 counts at most whatever the values are; what is
above it is in, and of what equals it the lowest ids. Candidates are written in the
order of their ids, which is the order the support is to have.

REQS requests go to a program: one on CUDA, many where the interpreter's cost is per
operation.
"""

# ruff: noqa: N803, PLR0124 - constants have capitals; a NaN differs from itself
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

from pp3shm.gpu.kernel_math import philox

# Of propose.Refusal; a test compares them.
NOT_A_NUMBER = tl.constexpr(1)
NOTHING_FINITE = tl.constexpr(2)
NO_REST = tl.constexpr(3)
NO_TOKEN = tl.constexpr(4)

NO_BIAS = tl.constexpr(0)
TABLE = tl.constexpr(1)
LOW_RANK = tl.constexpr(2)

MASS = tl.constexpr(16777216)
NONE = tl.constexpr(2147483647)  # no id, and no vocabulary reaches it
LOWEST = tl.constexpr(-2147483648)  # below the pattern of -inf


@triton.jit
def find_candidates(
    logits_p, logits_b, logits_v,  # of this depth
    before_p, before_b,  # the token before, -1: none
    left_p, right_p, rank,  # the table, or the pair
    faults_p, n,
    ids_p, values_p, wrong_id_p, wrong_p,  # out, by request and block
    vocab, blocks, k,
    BIAS: tl.constexpr, REQS: tl.constexpr, BLOCK: tl.constexpr, SUPPORT: tl.constexpr,
):  # fmt: skip
    """The k largest of a block by ascending id, and its first id of no use."""
    b = (tl.program_id(0) * REQS + tl.arange(0, REQS)).to(tl.int64)
    live = tl.load(faults_p + b, mask=b < n, other=1) == 0
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    here = live[:, None] & (v < vocab)
    at = b[:, None] * logits_b + v.to(tl.int64) * logits_v
    z = tl.load(logits_p + at, mask=here, other=-float("inf")).to(tl.float32)
    if BIAS != NO_BIAS:
        before = tl.load(before_p + b * before_b, mask=live, other=-1).to(tl.int64)
        biased = live & (before >= 0) & (before < vocab)
        row = tl.where(biased, before, 0)
        added = here & biased[:, None]
        if BIAS == TABLE:
            bias = tl.load(left_p + row[:, None] * vocab + v, mask=added, other=0.0)
        else:
            bias = low_rank(left_p, right_p, rank, row, v, added, vocab)
        z = tl.where(added, z + bias, z)

    wrong = here & ((z != z) | (z == float("inf")))
    first = tl.min(tl.where(wrong, v, NONE), 1)
    shown = tl.sum(tl.where(v == first[:, None], z, 0.0), 1)
    block = b * blocks + tl.program_id(1)
    tl.store(wrong_id_p + block, first, mask=live)
    tl.store(wrong_p + block, shown, mask=live)
    z = tl.where(wrong, -float("inf"), z)
    chosen, place = largest(tl.where(here, pattern(z), LOWEST), k)
    to = block[:, None] * SUPPORT + place
    tl.store(ids_p + to, v + (place & 0), mask=chosen & here)
    tl.store(values_p + to, z, mask=chosen & here)


@triton.jit
def low_rank(left_p, right_p, rank, row, v, here, vocab):
    """``left[row] @ right`` as the reference: each product and each sum rounded."""
    factor = tl.load(left_p + row * rank)[:, None]
    bias = factor * tl.load(right_p + v, mask=here, other=0.0)
    wide = row[:, None] * 0 + vocab  # int64, for V outgrows 2**31 entries
    for r in range(1, rank):
        factor = tl.load(left_p + row * rank + r)[:, None]
        at = r * wide + v
        bias += factor * tl.load(right_p + at, mask=here, other=0.0)
    return bias


@triton.jit
def pattern(z):
    """FP32 as int32 in the same order; 0.0 and -0.0 are equal."""
    bits = tl.where(z == 0.0, 0.0, z).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def largest(key, k):
    """Along axis 1: which are the k largest, ties to the left, and their places."""
    low = tl.min(key, 1)  # k keys at least are not below
    high = tl.max(key, 1) + 1  # fewer are not below this
    open_ = (tl.sum((key >= low[:, None]).to(tl.int32), 1) > k) & (low + 1 < high)
    while tl.max(open_.to(tl.int32), 0) > 0:
        middle = (low & high) + ((low ^ high) >> 1)
        count = tl.sum((key >= middle[:, None]).to(tl.int32), 1)
        low = tl.where(open_ & (count >= k), middle, low)
        high = tl.where(open_ & (count < k), middle, high)
        open_ = open_ & (count != k) & (low + 1 < high)
    above = key > low[:, None]
    equal = key == low[:, None]
    left = k - tl.sum(above.to(tl.int32), 1)
    equal = equal & (tl.cumsum(equal.to(tl.int32), 1) <= left[:, None])
    chosen = above | equal
    return chosen, tl.cumsum(chosen.to(tl.int32), 1) - 1


@triton.jit
def merge_candidates(
    found_ids_p, found_values_p, faults_p, n,
    ids_p, values_p,  # out, (B, SUPPORT)
    vocab, blocks, k, block_size,
    REQS: tl.constexpr, BLOCKS: tl.constexpr, SUPPORT: tl.constexpr,
):  # fmt: skip
    """The k largest of all blocks, by ascending id: blocks and candidates are."""
    b = (tl.program_id(0) * REQS + tl.arange(0, REQS)).to(tl.int64)
    live = tl.load(faults_p + b, mask=b < n, other=1) == 0
    slot = tl.arange(0, BLOCKS * SUPPORT)[None, :]
    in_block = tl.minimum(vocab - slot // SUPPORT * block_size, k)  # below 0: none
    here = live[:, None] & (slot % SUPPORT < in_block)
    at = b[:, None] * (blocks * SUPPORT) + slot
    z = tl.load(found_values_p + at, mask=here, other=-float("inf"))
    ids = tl.load(found_ids_p + at, mask=here, other=0)
    chosen, place = largest(tl.where(here, pattern(z), LOWEST), k)
    to = b[:, None] * SUPPORT + place
    tl.store(ids_p + to, ids, mask=chosen & here)
    tl.store(values_p + to, z, mask=chosen & here)


@triton.jit
def settle(
    support_p, values_p, support_b,  # (B, SUPPORT): ids and logits of this depth
    wrong_id_p, wrong_p, blocks,
    before_p, before_b, keys_p, round_p, positions_p, draws_p, tau_p, n,
    faults_p, fault_depth_p, fault_id_p, fault_value_p,  # out
    ids_p, q_p, tokens_p, confidence_p,  # out, (B, depth, ...)
    i, vocab, depth,
    K: tl.constexpr, LARGEST_REMAINDER: tl.constexpr, GIVEN: tl.constexpr,
    REQS: tl.constexpr, BLOCKS: tl.constexpr, SUPPORT: tl.constexpr,
):  # fmt: skip
    """Whole shares of 2**24 for the support, and a draw; or why there are none."""
    b = (tl.program_id(0) * REQS + tl.arange(0, REQS)).to(tl.int64)
    live = tl.load(faults_p + b, mask=b < n, other=1) == 0
    j = tl.arange(0, SUPPORT)[None, :]
    here = live[:, None] & (j < K)
    ids = tl.load(support_p + b[:, None] * support_b + j, mask=here, other=0)
    z = tl.load(values_p + b[:, None] * support_b + j, mask=here, other=-float("inf"))
    top = tl.max(z, 1)

    wrong, shown = first_wrong(wrong_id_p, wrong_p, b, blocks, live, BLOCKS)
    before = tl.load(before_p + b * before_b, mask=live, other=-1)

    counts, rest = shares(z, top, here, tl.load(tau_p), K, LARGEST_REMAINDER, SUPPORT)
    fault = tl.where((rest < 0) | (rest >= MASS), NO_REST, 0)
    fault = tl.where(top == -float("inf"), NOTHING_FINITE, fault)
    fault = tl.where(wrong != NONE, NOT_A_NUMBER, fault)
    fault = tl.where(before >= vocab, NO_TOKEN, fault)
    good = live & (fault == 0)

    if GIVEN:
        draw = tl.load(draws_p + b * depth + i, mask=live, other=0).to(tl.int32)
    else:
        low = tl.load(keys_p + b * 2, mask=live, other=0)
        high = tl.load(keys_p + b * 2 + 1, mask=live, other=0)
        position = tl.load(positions_p + b, mask=live, other=0) + i
        key = (high << 32) | (low & 0xFFFFFFFF)
        word, _, _, _ = philox(key, tl.load(round_p), position)
        draw = (word >> 8).to(tl.int32)
    after = (tl.cumsum(counts, 1) > draw[:, None]) & (j < K)
    place = tl.min(tl.where(after, j, SUPPORT), 1)
    drawn = j == place[:, None]
    token = tl.sum(tl.where(drawn, ids, 0), 1)
    q = counts.to(tl.float32) * (1.0 / MASS)
    row = b * depth + i
    out = good[:, None] & (j < K)
    tl.store(ids_p + row[:, None] * K + j, ids, mask=out)
    tl.store(q_p + row[:, None] * K + j, q, mask=out)
    tl.store(tokens_p + row, token, mask=good)
    tl.store(confidence_p + row, tl.sum(tl.where(drawn, q, 0.0), 1), mask=good)

    refused = live & (fault != 0)
    if tl.max(refused.to(tl.int32), 0) > 0:
        tl.store(faults_p + b, fault, mask=refused)
        tl.store(fault_depth_p + b, tl.zeros((REQS,), tl.int32) + i, mask=refused)
        tl.store(fault_id_p + b, wrong, mask=refused)
        tl.store(fault_value_p + b, shown, mask=refused)
        withdraw(
            ids_p, q_p, tokens_p, confidence_p, b, depth, refused, K, REQS, SUPPORT
        )


@triton.jit
def first_wrong(wrong_id_p, wrong_p, b, blocks, live, BLOCKS: tl.constexpr):
    """The first id of no use among all blocks, NONE if there is none; and its logit."""
    block = tl.arange(0, BLOCKS)[None, :]
    here = live[:, None] & (block < blocks)
    at = b[:, None] * blocks + block
    ids = tl.load(wrong_id_p + at, mask=here, other=NONE)
    first = tl.min(ids, 1)
    shown = tl.load(wrong_p + at, mask=here & (ids == first[:, None]), other=0.0)
    return first, tl.sum(shown, 1)


@triton.jit
def withdraw(
    ids_p, q_p, tokens_p, confidence_p, b, depth, refused,
    K: tl.constexpr, REQS: tl.constexpr, SUPPORT: tl.constexpr,
):  # fmt: skip
    """No proposal at any depth: what was drafted before is of no use either."""
    j = tl.arange(0, SUPPORT)[None, :]
    ids = (j + b[:, None] * 0).to(tl.int32)
    zeros = ids.to(tl.float32) * 0.0
    out = refused[:, None] & (j < K)
    for d in range(depth):
        row = b * depth + d
        tl.store(ids_p + row[:, None] * K + j, ids, mask=out)
        tl.store(q_p + row[:, None] * K + j, zeros, mask=out)
        tl.store(tokens_p + row, tl.full((REQS,), -1, tl.int32), mask=refused)
        tl.store(confidence_p + row, tl.zeros((REQS,), tl.float32), mask=refused)


@triton.jit
def shares(z, top, here, tau, K: tl.constexpr, LARGEST_REMAINDER: tl.constexpr,
           SUPPORT: tl.constexpr):  # fmt: skip
    """Counts adding up to 2**24, (REQS, SUPPORT) int32, and what was left over.

    FP64 throughout; the sum of weights by ascending id, one addition after the other.
    """
    j = tl.arange(0, SUPPORT)[None, :]
    finite = tl.where(top > -float("inf"), top, 0.0).to(tl.float64)
    weight = tl.exp((z.to(tl.float64) - finite[:, None]) / tau)
    weight = tl.where(here, weight, 0.0)
    total = tl.sum(weight, 1)[:, None] * 0.0
    for at in range(K):
        total += tl.gather(weight, (total * 0.0).to(tl.int32) + at, 1)
    share = weight / tl.where(total > 0.0, total, 1.0) * 16777216.0
    whole = tl.floor(share)
    counts = whole.to(tl.int32)
    rest = MASS - tl.sum(counts, 1)
    if LARGEST_REMAINDER:
        fraction = tl.where(here, share - whole, -1.0)
        mine, other = fraction[:, :, None], fraction[:, None, :]
        left = (j[:, None, :] < j[:, :, None]) & (other == mine)
        rank = tl.sum(((other > mine) | left).to(tl.int32), 2)
        counts += (rank < rest[:, None]).to(tl.int32)
    else:
        first = tl.min(tl.where(here & (z == top[:, None]), j, SUPPORT), 1)
        counts += tl.where(j == first[:, None], rest[:, None], 0)
    return counts, rest


ANY_KERNEL = settle
