"""From logits to drafts: the proposals of one STEP's rows (sections 5 and 8)."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from pp3shm.errors import ProposalError
from pp3shm.layout.frames import Reply
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import SUPPORT, Status
from pp3shm.proposal.proposal import propose_chain, propose_row
from pp3shm.proposal.reference import Rule, biased
from pp3shm.rng import Key, Purpose, request_key
from pp3shm.worker.drafter import DrafterFault, DraftRow, Guard, Logits

logger = logging.getLogger("pp3shm.worker")

# A greedy draft has no temperature; its confidence is read at this one.
_GREEDY_TAU_MILLI = 1000


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """One row to draft.

    Attributes:
        index: its place in STEP and REPLY.
        row: what the drafter sees.
        sampled: T > 0.
        key: of its draws.
    """

    index: int
    row: DraftRow
    sampled: bool
    key: Key

    @classmethod
    def of(cls, index: int, row: DraftRow, *, sampled: bool, user_seed: int) -> "Task":
        """The task of a row with this seed."""
        key = request_key(
            Purpose.PROPOSAL, row.session, row.slot, row.generation, user_seed
        )
        return cls(index, row, sampled, key)


def draft(profile: Profile, guard: Guard, tasks: Sequence[Task], reply: Reply) -> None:
    """Draft all tasks into a reply.

    Args:
        profile: the agreed one.
        guard: the drafter.
        tasks: rows that nothing refused.
        reply: a blank one; a row that cannot be drafted is blank again afterwards,
            with status WORKER_ERROR.
    """
    try:
        if guard.parallel:
            _draft_at_once(profile, guard, tasks, reply)
        else:
            _draft_by_depth(profile, guard, tasks, reply)
    except DrafterFault:
        for task in tasks:
            _fail(reply, task.index)


def _draft_by_depth(
    profile: Profile, guard: Guard, tasks: Sequence[Task], reply: Reply
) -> None:
    live = list(tasks)
    for depth in range(profile.depth):
        if not live:
            return
        drafted = reply.tokens[[task.index for task in live], :depth]
        drafted.flags.writeable = False
        logits = guard.logits([task.row for task in live], drafted)
        live = [
            task
            for task, z in zip(live, logits, strict=True)
            if _drew(profile, task, depth, z, reply)
        ]


def _drew(profile: Profile, task: Task, depth: int, z: Logits, reply: Reply) -> bool:
    """Draft one position; False where its logits are refused, which fails the row."""
    at = (task.index, depth)
    try:
        if not task.sampled:
            reply.tokens[at], reply.confidence[at] = _best(z)
            return True
        drawn = propose_row(
            z,
            key=task.key,
            round=reply.round,
            position=task.row.position + depth,
            tau_milli=profile.temperature_milli,
            rule=cast("Rule", profile.rule),
        )
    except ProposalError as error:
        _refuse(reply, task, error)
        return False
    reply.tokens[at], reply.confidence[at] = drawn.token, drawn.confidence
    _put_q(reply, at, drawn.ids, drawn.q)
    return True


def _best(z: Logits) -> tuple[int, float]:
    """The largest logit's id (ties: the lower), and its share of the 32 largest.

    Raises:
        ProposalError: a NaN or +inf, or nothing finite.
    """
    near = propose_row(z, key=(0, 0), round=0, position=0, tau_milli=_GREEDY_TAU_MILLI)
    token = int(np.argmax(z))
    return token, float(near.q[np.searchsorted(near.ids, token)])


def _draft_at_once(
    profile: Profile, guard: Guard, tasks: Sequence[Task], reply: Reply
) -> None:
    logits = guard.parallel_logits([task.row for task in tasks])
    drawn = [k for k, task in enumerate(tasks) if task.sampled]
    if drawn:
        # All of them, as a rule; then nothing is copied.
        chosen = logits if len(drawn) == len(tasks) else logits[drawn]
        _draw_chains(profile, guard, [tasks[k] for k in drawn], chosen, reply)
    for task, z in zip(tasks, logits, strict=True):
        if not task.sampled:
            _follow(guard, task, z, reply)


def _draw_chains(
    profile: Profile, guard: Guard, tasks: list[Task], logits: Logits, reply: Reply
) -> None:
    with guard.watching("markov"):
        chains = propose_chain(
            logits,
            keys=[task.key for task in tasks],
            round=reply.round,
            positions=[task.row.position for task in tasks],
            previous=[_last(task.row) for task in tasks],
            markov=guard.markov,
            tau_milli=profile.temperature_milli,
            rule=cast("Rule", profile.rule),
            on_error="report",
        )
    for k, (task, error) in enumerate(zip(tasks, chains.errors, strict=True)):
        if error is not None:
            _refuse(reply, task, error)
            continue
        reply.tokens[task.index] = chains.tokens[k]
        reply.confidence[task.index] = chains.confidence[k]
        _put_q(reply, task.index, chains.ids[k], chains.q[k])


def _follow(guard: Guard, task: Task, logits: Logits, reply: Reply) -> None:
    """A greedy chain: the best token of each position, biased by the one before."""
    before = _last(task.row)
    for depth, z in enumerate(logits):
        bias = None if before is None else guard.bias(before)
        try:
            before, confidence = _best(z if bias is None else biased(z, bias))
        except ProposalError as error:
            _refuse(reply, task, error)
            return
        reply.tokens[task.index, depth] = before
        reply.confidence[task.index, depth] = confidence


def _last(row: DraftRow) -> int | None:
    return int(row.prefix[-1]) if row.position else None


def _put_q(
    reply: Reply, at: int | tuple[int, int], ids: np.ndarray, q: np.ndarray
) -> None:
    # Only rows with T > 0 come here, and a greedy profile has none.
    if reply.mask is not None and reply.ids is not None and reply.q is not None:
        reply.mask[at if isinstance(at, int) else at[0]] = 1
        reply.ids[at] = ids
        reply.q[at] = q


def _refuse(reply: Reply, task: Task, error: ProposalError) -> None:
    # At most one in a thousand rounds: a drafter that gives nothing usable gives it
    # at every round, and each is counted by the status of its row.
    if reply.round % 1000 == 1 or reply.round < 10:
        logger.warning(
            "slot %d, round %d: no proposal: %s", task.row.slot, reply.round, error
        )
    _fail(reply, task.index)


def _fail(reply: Reply, index: int) -> None:
    """Blank a row again, as section 5 has a failed one."""
    reply.status[index] = Status.WORKER_ERROR
    reply.tokens[index] = -1
    reply.confidence[index] = 0
    if reply.mask is not None and reply.ids is not None and reply.q is not None:
        reply.mask[index] = 0
        reply.ids[index] = np.arange(SUPPORT)
        reply.q[index] = 0
