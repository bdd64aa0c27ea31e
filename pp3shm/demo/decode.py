"""The decoding loop: step, reply, target, verify, commit, for several requests."""

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pp3shm.demo.target import TargetModel
from pp3shm.engine import Engine
from pp3shm.layout.tables import Status
from pp3shm.reply import Reply
from pp3shm.slots import Row
from pp3shm.verify import Request, Verified, VerifyKeys, verify

STAGES = (
    "step: claim, write, submit, take",
    "send",
    "link and worker",
    "check and scatter",
    "publish and wake",
    "step to reply, all of it",
)


@dataclass(slots=True)
class Text:
    """One request: its slot, what it has and how it draws."""

    slot: int
    tokens: list[int]
    prompt: int
    keys: VerifyKeys
    seed: int
    generation: int

    @property
    def emitted(self) -> list[int]:
        """Tokens after the prompt."""
        return self.tokens[self.prompt :]


@dataclass(slots=True)
class Tally:
    """What is counted on the way; the report's numbers.

    Attributes:
        judged: (depth,) how often draft i came to be judged.
        accepted: (depth,) how often it was accepted.
        overlap: (depth,) float64, sum of ``sum min(p, q)`` over those judged.
        failed: rounds failed, by the name of the status.
        times: nanoseconds of each published round by stage.
    """

    depth: int
    rounds: int = 0
    rows: int = 0
    tokens: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    judged: NDArray[np.int64] = field(init=False)
    accepted: NDArray[np.int64] = field(init=False)
    overlap: NDArray[np.float64] = field(init=False)
    times: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Zeros of the right depth."""
        self.judged = np.zeros(self.depth, np.int64)
        self.accepted = np.zeros(self.depth, np.int64)
        self.overlap = np.zeros(self.depth)

    def stages(self) -> dict[str, NDArray[np.int64]]:
        """Nanoseconds of each published round by stage."""
        table = np.array(self.times, np.int64).reshape(-1, len(STAGES))
        return {name: table[:, i] for i, name in enumerate(STAGES)}

    def time(self, reply: Reply, begun_ns: int, had_ns: int) -> None:
        """Split one round's time by where it was; a failed round has no trace.

        When it was submitted is in no mark: the proxy may have taken it before our own
        call has returned.
        """
        trace = reply.trace
        if trace is None:
            return
        marks = (begun_ns, *trace, had_ns)
        parts = [after - before for before, after in itertools.pairwise(marks)]
        self.times.append((*parts, had_ns - begun_ns))

    def judge(
        self, reply: Reply, slot: int, rows: NDArray[np.float32], accepted: int
    ) -> None:
        """Count a request's judged drafts beside what was to be expected."""
        if reply.status[slot] != Status.OK or reply.ids is None or reply.q is None:
            return
        for i in range(min(accepted + 1, self.depth)):
            p = rows[i][reply.ids[slot, i]].astype(np.float64)
            self.judged[i] += 1
            self.accepted[i] += i < accepted
            self.overlap[i] += np.minimum(p, reply.q[slot, i]).sum()


class Decoder:
    """Decodes several requests at once through an engine.

    Args:
        engine: a connected one.
        target: the model whose distribution the text has.
        prompts: one array of ids per request; at most the profile's max_slots.
        seed: of every draw.
        timeout_s: each round's deadline.
    """

    def __init__(
        self,
        engine: Engine,
        target: TargetModel,
        prompts: Sequence[NDArray[np.int32]],
        *,
        seed: int,
        timeout_s: float,
    ) -> None:
        self.engine = engine
        self.target = target
        self.tally = Tally(engine.profile.depth)
        self._timeout_s = timeout_s
        self.texts = [
            self._open(slot, prompt.tolist(), seed + slot)
            for slot, prompt in enumerate(prompts)
        ]

    def _open(self, slot: int, prompt: list[int], seed: int) -> Text:
        generation = self.engine.reset(slot, prompt)
        keys = VerifyKeys.derive(self.engine.epoch, slot, generation, seed)
        return Text(slot, prompt, len(prompt), keys, seed, generation)

    def decode(self, tokens: int) -> Iterator[None]:
        """Decode until every request has ``tokens`` new ones; yields after a round."""
        open_ = list(self.texts)
        while open_:
            self._round(open_)
            for text in [one for one in open_ if len(one.emitted) >= tokens]:
                self.engine.close_slot(text.slot)
                open_.remove(text)
            yield

    def _round(self, texts: Sequence[Text]) -> None:
        with self._reply(texts) as reply:
            verified, rows = self._verify(reply, texts)
            for i, text in enumerate(texts):
                accepted = int(verified.accepted[i])
                self.tally.judge(reply, text.slot, rows[i], accepted)
        for i, text in enumerate(texts):
            emitted = verified.tokens[i, : verified.count[i]].tolist()
            self.engine.commit(text.slot, emitted)
            text.tokens += emitted
            self.tally.tokens += len(emitted)

    def _reply(self, texts: Sequence[Text]) -> Reply:
        asked = [Row(text.slot, text.seed) for text in texts]
        begun = time.monotonic_ns()
        ticket = self.engine.step(asked, timeout_s=self._timeout_s)
        reply = self.engine.reply(ticket)
        self.tally.time(reply, begun, time.monotonic_ns())
        self.tally.rounds += 1
        self.tally.rows += len(texts)
        self._count_failure(reply, texts)
        return reply

    def _count_failure(self, reply: Reply, texts: Sequence[Text]) -> None:
        statuses = {int(reply.status[text.slot]) for text in texts}
        for status in statuses - {int(Status.OK)}:
            self.tally.failed[Status(status).name] += 1

    def _verify(
        self, reply: Reply, texts: Sequence[Text]
    ) -> tuple[Verified, list[NDArray[np.float32]]]:
        rows = [
            self.target.target_rows(
                text.slot,
                text.generation,
                np.array(text.tokens, np.int32),
                self._drafts(reply, text.slot),
            )
            for text in texts
        ]
        requests = [Request(text.slot, len(text.tokens), text.keys) for text in texts]
        verified = verify(
            reply, rows, requests, round=reply.round, vocab=self.engine.profile.vocab
        )
        for error in verified.errors:
            if error is not None:  # our own target's row: nothing sensible goes on
                raise error
        return verified, rows

    def _drafts(self, reply: Reply, slot: int) -> NDArray[np.int32]:
        """The drafts to score; a failed request's are the placeholder -1."""
        if reply.status[slot] != Status.OK:
            return np.full(self.engine.profile.depth, -1, np.int32)
        drafts: NDArray[np.int32] = reply.tokens[slot].copy()
        return drafts

    def ask(self) -> Reply:
        """One round of all texts, not verified; release it."""
        return self._reply(self.texts)

    # -- many rounds of the same positions -------------------------------------------

    def repeat(self, rounds: int, see: Callable[[int, int, int], None]) -> None:
        """Verify many rounds without committing: new draws at the same positions.

        Args:
            rounds: how many; several are in flight.
            see: told of each request of each round: its place among the texts, the
                first draft (-1: failed), the first emitted token.
        """
        rows = [Row(text.slot, text.seed) for text in self.texts]
        tickets: list[int] = []
        for left in range(rounds, -self.engine.rounds_in_flight, -1):
            if left > 0:
                tickets.append(self.engine.step(rows, timeout_s=self._timeout_s))
            if tickets and (left <= 0 or len(tickets) == self.engine.rounds_in_flight):
                self._see(tickets.pop(0), see)

    def _see(self, ticket: int, see: Callable[[int, int, int], None]) -> None:
        with self.engine.reply(ticket) as reply:
            verified, _rows = self._verify(reply, self.texts)
            for i, text in enumerate(self.texts):
                first = int(self._drafts(reply, text.slot)[0])
                see(i, first, int(verified.tokens[i, 0]))
