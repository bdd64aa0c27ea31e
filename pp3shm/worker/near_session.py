"""A session whose STEPs come checked, and whose REPLYs are written where they are sent.

It says the same as ``Session`` says to the same STEPs. What is left out is what no peer
can make necessary here: rounds come in order and once each, the C core has checked the
STEP, and the REPLY's arrays are views of its body, made once for each number of rows.
"""

import struct

from pp3shm.errors import FrameError
from pp3shm.layout.frames import Reply, Step, StepRow, encode_reply
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import (
    STEP_DRAW,
    STEP_HEADER,
    STEP_ROW,
    Status,
    reply_packing,
    step_packing,
)
from pp3shm.rng import Key, Purpose, request_key
from pp3shm.worker.counts import Counts
from pp3shm.worker.draft import Task
from pp3shm.worker.drafter import DrafterSource, DraftRow
from pp3shm.worker.session import COUNTED, Session, blank_reply

_MOST_KEYS = 64

_row_of = STEP_ROW.pick("slot", "generation", "position", "digest", "count")
_draw_of = STEP_DRAW.pick("user_seed", "sampled")


class _Form:
    """STEPs of n rows, and their REPLY in its room.

    Args:
        profile: the session's.
        n: rows.
        room: writable, at least as long as the body of the REPLY.
    """

    def __init__(self, profile: Profile, n: int, room: memoryview) -> None:
        sampled, places = profile.is_sampled, profile.depth + 1
        parts = [STEP_HEADER.format, *([STEP_DRAW.format] * n if sampled else [])]
        parts += [STEP_ROW.format] * n
        fields = "".join(part.removeprefix("<") for part in parts)
        self._unpack = struct.Struct(f"<{fields}{n * places}i").unpack_from
        self._n = n
        self._draws = len(STEP_HEADER.fields)
        self._rows = self._draws + (n * len(STEP_DRAW.fields) if sampled else 0)
        self._committed = self._rows + n * len(STEP_ROW.fields)
        self._places = places
        self._sampled = sampled
        self._context = step_packing(n, profile.depth, sampled, profile.context_bytes)
        self._context_bytes = profile.context_bytes
        packing = reply_packing(n, profile.depth, sampled)
        self.size = packing.size
        views = packing.views(room[: packing.size])
        self._arrays = {
            name: view
            for name, view in views.items()
            if name not in ("header", "trailer")
        }
        self._head = views["header"]
        row = StepRow(0, 0, 0, 0, (), context=bytes(profile.context_bytes))
        blank = blank_reply(profile, Step(0, (row,) * n), [Status.OK] * n)
        self._blank = encode_reply(profile, blank)
        self._room = room[: packing.size]

    def open(self, body: bytes) -> tuple[Reply, list[StepRow]]:
        """A blank REPLY to a STEP, whose arrays are those in the room, and its rows."""
        values = self._unpack(body)
        self._room[:] = self._blank
        self._head["round"] = values[0]
        rows = [self._row(values, i, body) for i in range(self._n)]
        self._arrays["generation"][:] = [row.generation for row in rows]
        return Reply(values[0], **self._arrays), rows

    def _row(self, values: tuple[int, ...], i: int, body: bytes) -> StepRow:
        at = self._rows + i * len(STEP_ROW.fields)
        slot, generation, position, digest, count = _row_of(values[at:])
        seed, sampled = 0, 0
        if self._sampled:
            seed, sampled = _draw_of(values[self._draws + i * len(STEP_DRAW.fields) :])
        first = self._committed + i * self._places
        size = self._context_bytes
        context = b""
        if size:
            start = self._context.offset["context"] + i * size
            context = body[start : start + size]
        committed = values[first : first + count]
        return StepRow(
            slot, generation, position, digest, committed, seed, sampled == 1, context
        )


class NearSession(Session):
    """As ``Session``, for STEPs that were checked where they were taken.

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
        super().__init__(profile, session, source, counts)
        self._forms: dict[int, _Form] = {}
        self._keys: dict[tuple[int, int, int], Key] = {}

    def write_into(self, room: memoryview) -> None:
        """Where the bodies of its REPLYs go from now on.

        Args:
            room: writable, as long as the longest of them.
        """
        self._forms = {
            n: _Form(self.profile, n, room)
            for n in range(1, self.profile.max_slots + 1)
        }

    def answer(self, body: bytes, n: int) -> int:
        """Draft for a STEP, into the room.

        Args:
            body: without its CRC, checked.
            n: its rows.

        Returns:
            Bytes of the REPLY's body, without its CRC.
        """
        form = self._forms.get(n)
        if form is None:
            raise FrameError("step.n", f"1..{self.profile.max_slots}", n)
        reply, rows = form.open(body)
        tasks = []
        for index, row in enumerate(rows):
            status = self._take(row)
            if status is Status.OK:
                tasks.append(self._task(index, row))
            else:
                reply.status[index] = status
        if tasks:
            with self._lock:
                self._draft(tasks, reply)
        self._counts.add("steps")
        statuses = reply.status.tolist()
        if not any(statuses):
            self._counts.add("rows_ok", n)
        else:
            for status in statuses:
                self._counts.add(COUNTED[status])
        return form.size

    def _task(self, index: int, row: StepRow) -> Task:
        name = row.slot, row.generation, row.user_seed
        key = self._keys.get(name)
        if key is None:
            if len(self._keys) >= _MOST_KEYS:
                self._keys.clear()
            key = request_key(Purpose.PROPOSAL, self.id, *name)
            self._keys[name] = key
        prefix = self._slots[row.slot].prefix
        drafted = DraftRow(
            row.slot, row.generation, row.position, prefix, row.context, self.id
        )
        return Task(index, drafted, row.sampled, key)
