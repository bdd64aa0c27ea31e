"""The engine's own table of its slots, as the C core keeps it, and their digests."""

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from pp3shm._core import ffi, lib
from pp3shm.calls import Asker, address
from pp3shm.errors import Busy, ConfigError, RingError
from pp3shm.layout.core import c_layout
from pp3shm.layout.digest import PrefixDigest, token_bytes
from pp3shm.layout.frames import Step, StepRow, encode_step
from pp3shm.layout.profile import Profile
from pp3shm.layout.reply import ReplyLayout
from pp3shm.ring.ring import CAUSES, EngineEnd


@dataclass(frozen=True, slots=True)
class Row:
    """One request's part of a round.

    Attributes:
        slot: its state slot.
        user_seed: signed 64-bit seed of its proposal noise.
        sampled: True for T > 0, False for T = 0; None: as the profile is.
        context: opaque bytes for the drafter, exactly the profile's ``context_bytes``.
    """

    slot: int
    user_seed: int = 0
    sampled: bool | None = None
    context: bytes = b""


class SlotTable:
    """Slots of one engine, in step with the region's, and the rows asked for.

    Args:
        profile: gives their number and bounds.
        ring: the engine's end.
        layout: of a page.

    Attributes:
        c: ``struct pp3_ask *``, for calls of the C core.
        asker: asks for ``rows``, once a step; to be closed before the ring.
        rows: those that ``asker`` asks for; None: none yet, or none that
            could be compared with others.
    """

    def __init__(self, profile: Profile, ring: EngineEnd, layout: ReplyLayout) -> None:
        self._profile = profile
        self._ring = ring
        self._layout = layout
        self._heads: dict[frozenset[int], bytes] = {}
        self._digests = [PrefixDigest() for _ in range(profile.max_slots)]
        self.rows: tuple[Row, ...] | None = None
        asking = lib.pp3_ask_new(ring.handle, c_layout(profile))
        if asking == ffi.NULL:
            raise RingError("slots", "memory for their table", "none")
        self.c = ffi.gc(asking, lib.pp3_ask_free)
        self.asker = Asker(address(asking), address(ring.handle), (self.c, ring.handle))

    # -- slots ---------------------------------------------------------------------

    def expect(self, slot: int, *, live: bool = True) -> None:
        """Refuse what is no slot.

        Raises:
            ConfigError: there is no such slot, or it is closed and ``live`` is asked.
        """
        if not 0 <= slot < len(self._digests):
            raise ConfigError("slot", f"0..{len(self._digests) - 1}", slot)
        if live and not lib.pp3_ask_life(self.c, slot) & 1:
            raise ConfigError(f"slots[{slot}]", "one opened by reset", "a closed one")

    def generation(self, slot: int) -> int:
        """The slot's last generation; 0: none yet."""
        return int(lib.pp3_ask_life(self.c, slot)) >> 1

    def position(self, slot: int) -> int:
        """Tokens committed in the slot."""
        return int(self.c.slot[slot].position)

    def tokens(self, tokens: Sequence[int]) -> NDArray[np.int32]:
        """Token ids as int32.

        Raises:
            ConfigError: an id outside the vocabulary.
            FrameError: no 32-bit integers.
        """
        found = np.frombuffer(token_bytes(tokens), "<i4")
        wrong = np.flatnonzero((found < 0) | (found >= self._profile.vocab))
        if wrong.size:
            place = int(wrong[0])
            raise ConfigError(
                f"tokens[{place}]", f"0..{self._profile.vocab - 1}", int(found[place])
            )
        return found

    def opened(self, slot: int, tokens: NDArray[np.int32]) -> int:
        """A new generation with this prefix; which one."""
        digest = self._digests[slot] = PrefixDigest(tokens)
        generation = self.generation(slot) + 1
        lib.pp3_ask_open(self.c, slot, generation, digest.length, digest.value)
        return generation

    def closed(self, slot: int) -> None:
        """The request in the slot is over."""
        lib.pp3_ask_close(self.c, slot)

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """Append tokens to the slot's prefix, here and in the region.

        Raises:
            Busy: it stands in an open round, which is named.
            ConfigError: no such slot, a closed one, or a token outside the vocabulary.
            FrameError: tokens that are no 32-bit integers.
            RingError: the request would grow beyond max_positions.
        """
        data = token_bytes(tokens)
        try:
            longer = self._digests[slot].longer(data)
            code = self.asker.append(slot, data, longer.value)
        except (IndexError, OverflowError, TypeError):
            self.expect(slot)
            raise
        if code:
            self._append_refused(code, slot, tokens)
        self._digests[slot] = longer

    def _append_refused(self, code: int, slot: int, tokens: Sequence[int]) -> NoReturn:
        handle = self._ring.handle  # says so of a closed ring
        self.expect(slot)
        if code == -errno.EBUSY:
            ticket = lib.pp3_ask_busy(self.c, handle, slot)
            raise Busy(f"slots[{slot}]", f"round {ticket} resolved", "it is open")
        found = self.tokens(tokens)  # names the one that is none
        self._ring.slot_refused(code, slot, len(found))

    # -- rounds --------------------------------------------------------------------

    def ask_for(self, rows: tuple[Row, ...]) -> None:
        """These are the rows of the steps to come.

        Raises:
            ConfigError: a slot that is closed or does not exist.
            FrameError: a row that is no STEP row, by name.
        """
        self.rows = None
        for row in rows:
            self.expect(row.slot)
        body = encode_step(self._profile, Step(0, tuple(map(self._blank, rows))))
        heads = self._heads_of(frozenset(row.slot for row in rows))
        if lib.pp3_ask_rows(self.c, body, len(body), heads) < 0:
            raise RingError("rows", "both encoders to agree", "one refused them")
        # A context that can be changed is not known by what it was.
        if all(type(row.context) is bytes for row in rows):
            self.rows = rows

    def _blank(self, row: Row) -> StepRow:
        """The STEP's row, without what the slot's own state adds at each step."""
        return StepRow(
            slot=row.slot,
            generation=0,
            position=0,
            digest=0,
            committed=(),
            user_seed=row.user_seed,
            sampled=self._profile.is_sampled if row.sampled is None else row.sampled,
            context=row.context,
        )

    def _heads_of(self, slots: frozenset[int]) -> bytes:
        """Round (the ring stamps it) and statuses, for each status the core can give.

        Made once for each set of slots: there are at most 15.
        """
        heads = self._heads.get(slots)
        if heads is None:
            pages = (self._layout.failed(cause, slots) for cause in CAUSES)
            heads = b"".join(page[: self._layout.head_bytes] for page in pages)
            self._heads[slots] = heads
        return heads

    def stale(self, ticket: int) -> list[int]:
        """Slots of a round that were closed or opened anew since it was asked."""
        return slots_of(lib.pp3_ask_stale(self.c, ticket))


def slots_of(mask: int) -> list[int]:
    """The slots of a mask, a bit each."""
    return [slot for slot in range(mask.bit_length()) if mask >> slot & 1]
