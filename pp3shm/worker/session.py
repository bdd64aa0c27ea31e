"""One session: RESETs and STEPs in, REPLY bodies out. No sockets, no clock.

Sections 4 and 5 of the wire page stand here; the connection keeps sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pp3shm.errors import FrameError
from pp3shm.layout.frames import (
    Reply,
    Status,
    Step,
    StepRow,
    decode_reset,
    decode_step,
    encode_reply,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.replies import unused_support
from pp3shm.layout.tables import NO_ROUND, STEP_HEADER, SUPPORT
from pp3shm.worker.counts import Counts
from pp3shm.worker.draft import Task, draft
from pp3shm.worker.drafter import DrafterSource, DraftRow, Guard
from pp3shm.worker.slots import Slot

COUNTED = [f"rows_{status.name.lower()}" for status in Status]
"""Counters of rows, by their status."""


class Refusal(Exception):
    """What the peer sent ends the session with an ERROR.

    Attributes:
        code: a status of section 5.
        text: names the place, what was expected and what was found.
        round: the round it is about, ``NO_ROUND`` if none.
    """

    def __init__(self, code: Status, text: str, round_: int = NO_ROUND) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.round = round_


@dataclass(frozen=True, slots=True)
class Answer:
    """A round that was answered: what came, what was said, for which slots."""

    step: bytes
    reply: bytes
    slots: tuple[int, ...]


class Session:
    """The worker's end of one session.

    Args:
        profile: the agreed one.
        session: its 16 bytes.
        source: where its drafter comes from.
        counts: the worker's.

    Raises:
        DrafterFault: no drafter could be made for it.
    """

    def __init__(
        self, profile: Profile, session: bytes, source: DrafterSource, counts: Counts
    ) -> None:
        self.profile = profile
        self.id = session
        self._lock = source.lock
        self._guard: Guard = source.open()
        self._counts = counts
        self._slots = [Slot(profile.max_positions) for _ in range(profile.max_slots)]
        self._newest = -1
        self._answers: dict[int, Answer] = {}

    def reset(self, body: bytes) -> None:
        """Take a RESET.

        Args:
            body: without its CRC.

        Raises:
            Refusal: it is malformed, or its generation is older than the slot's.
        """
        try:
            reset = decode_reset(self.profile, body)
        except FrameError as error:
            raise Refusal(Status.INVALID, str(error)) from error
        slot = self._slots[reset.slot]
        if slot.generation is not None and reset.generation < slot.generation:
            raise Refusal(
                Status.STALE,
                f"reset.generation: expected at least {slot.generation}, "
                f"found {reset.generation}",
            )
        slot.reset(reset)
        self._counts.add("resets")
        with self._lock:
            slot.broken = not self._guard.reset(
                self.id, reset.slot, reset.generation, slot.prefix
            )

    def step(self, body: bytes) -> bytes:
        """Answer a STEP.

        Args:
            body: without its CRC.

        Returns:
            The REPLY's body without its CRC; the very same one for a repeated STEP.

        Raises:
            Refusal: it is malformed, or its round has been and cannot be repeated.
        """
        try:
            step = decode_step(self.profile, body)
        except FrameError as error:
            raise Refusal(Status.INVALID, str(error), round_of(body)) from error
        if step.round <= self._newest:
            return self._repeat(step.round, body)
        self._newest = step.round
        reply = encode_reply(self.profile, self._answer(step))
        self._remember(step, body, reply)
        return reply

    def end(self) -> None:
        """The engine has left."""
        with self._lock:
            self._guard.end(self.id)

    def _repeat(self, round_: int, body: bytes) -> bytes:
        """The answer given before, or a refusal; never a new draw."""
        answer = self._answers.get(round_)
        if answer is None or any(
            round_ not in self._slots[slot].rounds for slot in answer.slots
        ):
            raise Refusal(
                Status.STALE,
                f"step.round: expected above {self._newest} or one of the last two of "
                f"each of its slots, found {round_}",
                round_,
            )
        if answer.step != body:
            raise Refusal(
                Status.INVALID,
                f"step: expected the same content as before in round {round_}, "
                "found other",
                round_,
            )
        self._counts.add("repeats")
        return answer.reply

    def _remember(self, step: Step, body: bytes, reply: bytes) -> None:
        slots = tuple(row.slot for row in step.rows)
        for slot in slots:
            self._slots[slot].rounds.append(step.round)
        self._answers[step.round] = Answer(body, reply, slots)
        kept = {round_ for slot in self._slots for round_ in slot.rounds}
        for round_ in self._answers.keys() - kept:
            del self._answers[round_]

    def _answer(self, step: Step) -> Reply:
        statuses = [self._take(row) for row in step.rows]
        reply = blank_reply(self.profile, step, statuses)
        tasks = [
            Task.of(
                index,
                self._draft_row(row),
                sampled=row.sampled,
                user_seed=row.user_seed,
            )
            for index, row in enumerate(step.rows)
            if statuses[index] is Status.OK
        ]
        if tasks:
            with self._lock:
                self._draft(tasks, reply)
        self._count(reply)
        return reply

    def _draft(self, tasks: Sequence[Task], reply: Reply) -> None:
        draft(self.profile, self._guard, tasks, reply)

    def _take(self, row: StepRow) -> Status:
        slot = self._slots[row.slot]
        status = slot.take(row)
        if status is Status.OK and slot.broken:
            return Status.WORKER_ERROR
        return status

    def _draft_row(self, row: StepRow) -> DraftRow:
        return DraftRow(
            slot=row.slot,
            generation=row.generation,
            position=row.position,
            prefix=self._slots[row.slot].prefix,
            context=row.context,
            session=self.id,
        )

    def _count(self, reply: Reply) -> None:
        self._counts.add("steps")
        for status in reply.status.tolist():
            self._counts.add(COUNTED[status])


def round_of(body: bytes) -> int:
    """The round a STEP body names, where it is long enough to name one."""
    if len(body) < STEP_HEADER.size:
        return NO_ROUND
    round_: int = STEP_HEADER.read(body)["round"]
    return round_


def blank_reply(profile: Profile, step: Step, statuses: list[Status]) -> Reply:
    """A reply in which nothing is drafted: every row is filled as a failed one."""
    n, depth = len(step.rows), profile.depth
    sampled = profile.is_sampled
    return Reply(
        round=step.round,
        status=np.array(statuses, np.int32),
        generation=np.array([row.generation for row in step.rows], np.uint32),
        tokens=np.full((n, depth), -1, np.int32),
        confidence=np.zeros((n, depth), np.float32),
        mask=np.zeros(n, np.int32) if sampled else None,
        ids=unused_support(n, depth) if sampled else None,
        q=np.zeros((n, depth, SUPPORT), np.float32) if sampled else None,
    )
