"""STEP: what the engine asks, encoded, decoded and refused whole (section 4)."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat

from pp3shm.errors import FrameError
from pp3shm.layout.digest import token_bytes
from pp3shm.layout.profile import Profile
from pp3shm.layout.record import Packing, shown
from pp3shm.layout.tables import (
    FLAG_SAMPLED,
    STEP_DRAW,
    STEP_HEADER,
    STEP_ROW,
    step_packing,
)


@dataclass(frozen=True, slots=True)
class StepRow:
    """One request of a STEP.

    Attributes:
        slot: the engine's state slot.
        generation: of the slot.
        position: where the first drafted token will stand.
        digest: prefix digest of the ``position`` tokens before it.
        committed: tokens committed since the slot's previous STEP, at most depth + 1.
        user_seed: signed 64-bit; a greedy profile's frames do not carry it.
        sampled: T > 0.
        context: opaque bytes, exactly the profile's ``context_bytes``.
    """

    slot: int
    generation: int
    position: int
    digest: int
    committed: tuple[int, ...]
    user_seed: int = 0
    sampled: bool = False
    context: bytes = b""


@dataclass(frozen=True, slots=True)
class Step:
    """One round's question."""

    round: int
    rows: tuple[StepRow, ...]


def profile_flags(profile: Profile) -> int:
    """The flags every STEP and REPLY of the session carries."""
    return FLAG_SAMPLED if profile.is_sampled else 0


def _packing(profile: Profile, n: int) -> Packing:
    if not 1 <= n <= profile.max_slots:
        raise FrameError("step.n", f"1..{profile.max_slots}", shown(n))
    return step_packing(n, profile.depth, profile.is_sampled, profile.context_bytes)


def encode_step(profile: Profile, step: Step) -> bytes:
    """The body of a STEP, without its CRC; what it gives, ``decode_step`` accepts.

    Raises:
        FrameError: a row the receiver would refuse, by name.
    """
    _packing(profile, len(step.rows))
    parts = [
        STEP_HEADER.pack(
            round=step.round,
            n=len(step.rows),
            depth=profile.depth,
            flags=profile_flags(profile),
            zero=0,
        )
    ]
    if profile.is_sampled:
        parts += [
            STEP_DRAW.pack(user_seed=row.user_seed, sampled=int(row.sampled), zero=0)
            for row in step.rows
        ]
    seen: set[int] = set()
    for index, row in enumerate(step.rows):
        _check_row(profile, row, index, seen)
        parts.append(
            STEP_ROW.pack(
                slot=row.slot,
                generation=row.generation,
                position=row.position,
                digest=row.digest,
                count=len(row.committed),
                context_bytes=len(row.context),
            )
        )
    places = profile.depth + 1
    parts += [
        token_bytes((*row.committed, *(-1,) * (places - len(row.committed))))
        for row in step.rows
    ]
    parts += [row.context for row in step.rows]
    return b"".join(parts)


def decode_step(profile: Profile, body_without_crc: bytes) -> Step:
    """The STEP in a body, or its refusal as a whole.

    Args:
        profile: the negotiated one.
        body_without_crc: exactly the body, its CRC checked and taken off.

    Raises:
        FrameError: what section 4 refuses whole, by name.
    """
    data = bytes(body_without_crc)
    head = STEP_HEADER.unpack(data)
    n: int = head["n"]
    packing = _packing(profile, n)
    for name, expected in (
        ("depth", profile.depth),
        ("flags", profile_flags(profile)),
    ):
        if head[name] != expected:
            raise FrameError(f"step.{name}", expected, head[name])
    if len(data) != packing.size:
        raise FrameError("step.bytes", packing.size, len(data))
    parts = _split(profile, data, packing, n)
    seen: set[int] = set()
    rows = []
    for index, part in enumerate(parts):
        rows.append(_decode_row(profile, index, *part))
        _check_row(profile, rows[-1], index, seen)
    return Step(head["round"], tuple(rows))


_draw_of = STEP_DRAW.pick("user_seed", "sampled")
_row_of = STEP_ROW.pick(
    "slot", "generation", "position", "digest", "count", "context_bytes"
)


def _split(
    profile: Profile, data: bytes, packing: Packing, n: int
) -> Iterable[tuple[Sequence[int], Sequence[int], tuple[int, ...], bytes]]:
    """What stands of each row in the body's arrays: draw, row, committed, context."""
    at = packing.offset
    draws: Iterable[Sequence[int]] = repeat((0, 0), n)
    if profile.is_sampled:
        draws = map(_draw_of, STEP_DRAW.rows(data, at["draws"], n))
    rows = map(_row_of, STEP_ROW.rows(data, at["rows"], n))
    places = profile.depth + 1
    tokens = struct.unpack_from(f"<{n * places}i", data, at["committed"])
    committed = (tokens[i : i + places] for i in range(0, n * places, places))
    size = profile.context_bytes
    starts = (at["context"] + row * size for row in range(n))
    contexts = (data[start : start + size] for start in starts)
    return zip(draws, rows, committed, contexts, strict=True)


def _decode_row(
    profile: Profile,
    index: int,
    draw: Sequence[int],
    fields: Sequence[int],
    places: tuple[int, ...],
    context: bytes,
) -> StepRow:
    """Row ``index``; refuses what a ``StepRow`` has no place for."""
    slot, generation, position, digest, count, size = fields
    if count > len(places):
        raise FrameError(f"step.rows[{index}].count", f"at most {len(places)}", count)
    if size != profile.context_bytes:
        raise FrameError(
            f"step.rows[{index}].context_bytes", profile.context_bytes, size
        )
    for place, token in enumerate(places[count:], count):
        if token != -1:
            raise FrameError(f"step.committed[{index}, {place}]", -1, token)
    user_seed, sampled = draw
    return StepRow(
        slot=slot,
        generation=generation,
        position=position,
        digest=digest,
        committed=places[:count],
        user_seed=user_seed,
        sampled=sampled == 1,
        context=context,
    )


def _check_row(profile: Profile, row: StepRow, index: int, seen: set[int]) -> None:
    """What sender and receiver both refuse in a row; notes its slot in ``seen``."""
    if not 0 <= row.slot < profile.max_slots:
        raise FrameError(
            f"step.rows[{index}].slot", f"0..{profile.max_slots - 1}", shown(row.slot)
        )
    if row.slot in seen:
        raise FrameError(
            f"step.rows[{index}].slot", "a slot of its own", f"{row.slot} again"
        )
    seen.add(row.slot)
    if len(row.committed) > profile.depth + 1:
        raise FrameError(
            f"step.rows[{index}].count",
            f"at most {profile.depth + 1}",
            len(row.committed),
        )
    for place, token in enumerate(row.committed):
        if not 0 <= token < profile.vocab:
            raise FrameError(
                f"step.committed[{index}, {place}]",
                f"0..{profile.vocab - 1}",
                shown(token),
            )
    if len(row.context) != profile.context_bytes:
        raise FrameError(
            f"step.rows[{index}].context_bytes", profile.context_bytes, len(row.context)
        )
    if row.sampled and not profile.is_sampled:
        raise FrameError(
            f"step.rows[{index}].sampled", "T = 0 in a greedy session", "T > 0"
        )
