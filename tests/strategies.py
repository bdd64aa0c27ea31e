"""What tests draw from: profiles, STEPs, REPLYs and their faults, from the tables.

Hypothesis chooses the shape and a seed; the thousands of numbers of a REPLY come from
a generator of that seed, which is quicker and prints as one integer.
"""

import struct
import zlib

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from pp3shm.layout.frames import (
    CRC_BYTES,
    HEADER_BYTES,
    MASS,
    SUPPORT,
    Kind,
    Reply,
    Status,
    Step,
    StepRow,
    encode_frame,
    encode_reply,
    encode_step,
    profile_flags,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.record import Record
from pp3shm.layout.tables import (
    FRAME,
    REPLY_BODY,
    STEP_BODY,
    reply_packing,
    step_packing,
)


def examples(number):
    """The same examples in every run, however slow the machine."""
    return settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


VOCABS = (32, 111, 129280)
SHAPES = [
    (slots, depth, vocab) for slots in (1, 2, 3, 4) for depth in (4, 5)
    for vocab in VOCABS
]  # fmt: skip

SPECIAL_FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24, 2.0**-126,
    1e-45, -1e-45, 1.0 + 2.0**-23, 1.0 - 2.0**-24, 2.0**31, 2.0**40, 2.0**63, 2.0**64,
    3e38, -3e38, float("inf"), float("-inf"), float("nan"), 1 / 3,
)  # fmt: skip
# A signaling NaN and one with its sign set, as bits: Python would quieten them.
SPECIAL_BITS = (0x7F800001, 0xFFC00000, 0x80000001, 0x3F800001, 0x337FFFFF, 0x33800001)


def make_profile(slots=4, depth=5, vocab=129280, *, sampled=True, context=0):
    make = Profile.sampled if sampled else Profile.greedy
    return make(
        vocab=vocab, depth=depth, max_slots=slots, max_positions=1 << 20,
        context_bytes=context,
    )  # fmt: skip


@st.composite
def profiles(draw):
    slots, depth, vocab = draw(st.sampled_from(SHAPES))
    return make_profile(
        slots, depth, vocab,
        sampled=draw(st.booleans()), context=draw(st.sampled_from((0, 0, 1, 7))),
    )  # fmt: skip


def u64():
    return st.one_of(st.integers(0, 2**64 - 1), st.sampled_from((0, 1, 2**64 - 1)))


@st.composite
def steps(draw, profile):
    n = draw(st.integers(1, profile.max_slots))
    slots = draw(st.permutations(range(profile.max_slots)))[:n]
    places = profile.depth + 1
    rows = tuple(
        StepRow(
            slot=slot,
            generation=draw(st.integers(0, 2**32 - 1)),
            position=draw(u64()),
            digest=draw(u64()),
            committed=tuple(
                draw(st.lists(st.integers(0, profile.vocab - 1), max_size=places))
            ),
            user_seed=draw(st.integers(-(2**63), 2**63 - 1))
            if profile.is_sampled
            else 0,
            sampled=draw(st.booleans()) and profile.is_sampled,
            context=draw(
                st.binary(
                    min_size=profile.context_bytes, max_size=profile.context_bytes
                )
            ),
        )
        for slot in slots
    )
    return Step(draw(u64()), rows)


def counts(rng, width=SUPPORT):
    """``width`` counts that add up to MASS; some of them 0, some of them large."""
    weights = rng.gamma(rng.choice([0.05, 0.3, 2.0]), size=width) + 1e-12
    share = np.floor(weights / weights.sum() * MASS).astype(np.int64)
    share[int(np.argmax(share))] += MASS - int(share.sum())
    return share


def make_reply(profile, step, seed, failed=0.2):
    """An acceptable REPLY; ``failed``: how often a row is a failed one."""
    rng = np.random.default_rng(seed)
    n, depth = len(step.rows), profile.depth
    status = np.where(rng.random(n) < failed, rng.integers(1, 9, n), 0).astype("<i4")
    sampled = np.array([row.sampled for row in step.rows]) & (status == Status.OK)
    tokens = rng.integers(0, profile.vocab, (n, depth)).astype("<i4")
    ids = np.broadcast_to(np.arange(SUPPORT, dtype="<i4"), (n, depth, SUPPORT)).copy()
    q = np.zeros((n, depth, SUPPORT), "<f4")
    for row, place in np.argwhere(np.broadcast_to(sampled[:, None], (n, depth))):
        chosen = rng.choice(profile.vocab, SUPPORT, replace=False)
        share = counts(rng)
        ids[row, place] = np.sort(chosen)
        q[row, place] = share / np.float64(MASS)
        tokens[row, place] = ids[row, place, rng.choice(np.flatnonzero(share))]
    tokens[status != 0] = -1
    confidence = rng.random((n, depth), dtype=np.float32)
    generation = np.array([row.generation for row in step.rows], "<u4")
    parts = (sampled.astype("<i4"), ids, q) if profile.is_sampled else (None,) * 3
    return Reply(step.round, generation, status, tokens, confidence, *parts)


SESSION = bytes(range(16))


def reply_frame(profile, reply, sequence=7, session=SESSION):
    body = encode_reply(profile, reply)
    return encode_frame(Kind.REPLY, session, sequence, body, profile_flags(profile))


@st.composite
def exchanges(draw):
    """(profile, STEP body without CRC, acceptable REPLY frame)."""
    profile = draw(profiles())
    step = draw(steps(profile))
    reply = make_reply(profile, step, draw(st.integers(0, 2**32 - 1)))
    return profile, encode_step(profile, step), reply_frame(profile, reply)


# ---- faults: each changes a bytearray in place, or gives back another ----

WORDS = (0, 1, 2, 3, 4, 5, 6, 8, 9, 31, 32, 110, 111, 129279, 129280,
         2**31 - 1, 2**31, 2**32 - 1, 2**32 - 5)  # fmt: skip


def remake_crc(frame):
    """The frame with the CRC of its body as it now is."""
    crc = zlib.crc32(frame[HEADER_BYTES:-CRC_BYTES])
    frame[-CRC_BYTES:] = crc.to_bytes(CRC_BYTES, "little")
    return frame


def _put_word(rng, data, at, size):
    """A boundary value, or the old one with one bit or one unit changed."""
    old = int.from_bytes(data[at : at + size], "little")
    new = rng.choice((
        rng.choice(WORDS), old ^ (1 << rng.randrange(8 * size)), old + 1, old - 1,
        rng.getrandbits(8 * size),
    ))  # fmt: skip
    data[at : at + size] = (new % 2 ** (8 * size)).to_bytes(size, "little")


def fields_of(record, base):
    """(offset, bytes) of every field of a record that stands at ``base``."""
    ends = [*list(record.offset.values())[1:], record.size]
    return [
        (base + at, min(end - at, 8))
        for at, end in zip(record.offset.values(), ends, strict=True)
    ]


def change_field(rng, frame, table, packing, base):
    """One field or element of a body, chosen by array first, so that none is rare."""
    array = rng.choice([array for array in table if array.name in packing.offset])
    at = base + packing.offset[array.name]
    shape = packing.shape[array.name]
    total = int(np.prod(shape))
    if not total:
        return
    if isinstance(array.type, Record):
        at += rng.randrange(total) * array.type.size
        where, size = rng.choice(fields_of(array.type, at))
        _put_word(rng, frame, where, size)
        return
    size = np.dtype(array.type).itemsize
    at += rng.randrange(total) * size
    if array.type == "f4" and rng.random() < 0.7:
        special = rng.choice(SPECIAL_FLOATS)
        bits = struct.pack("<f", special)
        if rng.random() < 0.2:
            bits = struct.pack("<I", rng.choice(SPECIAL_BITS))
        frame[at : at + 4] = bits
    else:
        _put_word(rng, frame, at, size)


def reply_views(profile, frame):
    """Writable views of a REPLY frame's arrays, for the n its length is of."""
    for n in range(1, profile.max_slots + 1):
        packing = reply_packing(n, profile.depth, profile.is_sampled)
        if HEADER_BYTES + packing.size + CRC_BYTES == len(frame):
            return packing, packing.views(memoryview(frame)[HEADER_BYTES:])
    raise AssertionError(len(frame))


def bend_reply(rng, profile, frame):
    """One change that keeps most of a REPLY's sense: the faults a worker could make."""
    _, v = reply_views(profile, frame)
    n, depth = v["tokens"].shape
    row, d = rng.randrange(n), rng.randrange(depth)
    i, j = rng.randrange(SUPPORT), rng.randrange(SUPPORT)
    kind = rng.randrange(10)
    if kind == 0:  # a whole failed row, right or nearly so
        v["status"][row] = rng.choice((1, 2, 6, 8, 9, -1))
        v["tokens"][row] = -1
        if profile.is_sampled:
            v["mask"][row] = 0
            v["ids"][row] = np.arange(SUPPORT)
            v["q"][row] = 0
    elif kind == 1:
        v["status"][row] = rng.choice((0, 1, 8))
    elif kind == 2:
        v["tokens"][row, d] = rng.choice((-1, 0, profile.vocab - 1, profile.vocab))
    if not profile.is_sampled:
        return
    ids, q = v["ids"][row, d], v["q"][row, d]
    if kind == 3:
        v["tokens"][row, d] = ids[i]
    elif kind == 4:
        ids[i], ids[j] = int(ids[j]), int(ids[i])
    elif kind == 5:
        ids[i] = rng.choice((int(ids[j]), -1, profile.vocab - 1, profile.vocab))
    elif kind == 6:
        q[i], q[j] = float(q[j]), float(q[i])
    elif kind == 7:  # mass moved, or made
        q[i] += np.float32(rng.choice((1, -1, 3, 2**20)) / MASS)
        q[j] -= np.float32(rng.choice((0, 1, 3)) / MASS)
    elif kind == 8:
        q[:] = 0
        q[i] = rng.choice((1.0, 2.0, 2.0**40))
        v["tokens"][row, d] = ids[j]
    else:
        v["mask"][row] ^= 1


def mutate_reply(rng, profile, good):
    """One to three faults in a REPLY frame; the CRC remade most times."""
    frame = bytearray(good)
    packing, _ = reply_views(profile, frame)
    for _ in range(rng.choice((1, 1, 2, 3))):
        kind = rng.random()
        if kind < 0.45:
            bend_reply(rng, profile, frame)
        elif kind < 0.85:
            change_field(rng, frame, REPLY_BODY, packing, HEADER_BYTES)
        elif kind < 0.92:
            frame[rng.randrange(HEADER_BYTES, len(frame))] ^= 1 << rng.randrange(8)
        else:
            _put_word(rng, frame, *rng.choice(fields_of(FRAME, 0)))
    if rng.random() < 0.9:
        remake_crc(frame)
    tail = rng.random()
    if tail < 0.03:
        del frame[rng.randrange(len(frame)) :]
    elif tail < 0.05:
        frame += bytes(rng.randrange(1, 40))
    elif tail < 0.06:
        other = rng.randrange(1, 5)
        size = reply_packing(other, profile.depth, profile.is_sampled).size
        frame = bytearray(bytes(frame).ljust(6000, b"\0")[: HEADER_BYTES + size + 4])
    return bytes(frame)


def mutate_step(rng, profile, good):
    """One or two faults in a STEP body without CRC."""
    body = bytearray(good)
    n = int.from_bytes(body[8:12], "little")
    packing = step_packing(n, profile.depth, profile.is_sampled, profile.context_bytes)
    for _ in range(rng.choice((1, 1, 2))):
        change_field(rng, body, STEP_BODY, packing, 0)
    tail = rng.random()
    if tail < 0.05:
        del body[rng.randrange(len(body)) :]
    elif tail < 0.1:
        body += bytes(rng.randrange(1, 40))
    return bytes(body)


def seeds():
    """For ``random.Random``: an integer, so that a failing example can be read."""
    return st.integers(0, 2**32 - 1)
