"""What the fuzzed C targets start from: layouts, STEPs, real frames, boundary words.

All of it comes from the tables of the layout and the codecs of the package, so that a
change of the format changes the seeds.
"""

import json
import random
import struct
from pathlib import Path

import strategies as given_
from torture.figure import ROOT

from pp3shm.layout.control import ErrorBody, encode_error
from pp3shm.layout.frames import (
    HEADER_BYTES,
    MASS,
    Kind,
    Status,
    Step,
    StepRow,
    encode_frame,
)
from pp3shm.layout.frames import encode_step as encode
from pp3shm.layout.profile import Profile
from pp3shm.layout.record import Record
from pp3shm.layout.tables import CRC_BYTES, FRAME, KEY_MAGIC, REPLY_BODY, STEP_BODY

SEQUENCE = 7
PREFIX = 4  # bytes before the frame in an input of accept.c
STREAMED = 4  # the first shapes: three of their replies fit into an input of pump.c
CALLS = 16  # bytes before the words in an input of region.c
#        slots depth vocab sampled context rows
SHAPES = (
    (2, 4, 111, False, 0, 1),
    (1, 4, 111, True, 0, 1),
    (1, 4, 32, True, 0, 1),
    (1, 5, 129280, True, 7, 1),
    (2, 4, 129280, True, 0, 2),
    (4, 5, 129280, False, 7, 4),
    (4, 4, 111, False, 0, 3),
    (3, 5, 32, True, 1, 2),
    (4, 5, 129280, True, 0, 4),
)
FLOATS = (0x3F800000, 0x3F800001, 0x3F7FFFFF, 0x33800000, 0x337FFFFF, 0x7F800000,
          0x7F800001, 0xFFC00000, 0x80000000, 0xBF800000, 1, 0x4B800000,
          0x5F800000)  # fmt: skip


def words() -> list[int]:
    """Numbers at the edges of what a field may be."""
    found = {0, 1, 2, 3, 4, 5, 6, 8, 9, 31, 32, 33, MASS, MASS - 1, MASS + 1, *FLOATS}
    found |= {*map(int, Kind), *map(int, Status)}
    for vocab in {shape[2] for shape in SHAPES}:
        found |= {vocab - 1, vocab, vocab + 1}
    for power in range(7, 33):
        found |= {(2**power - 1) % 2**32, 2**power % 2**32, (2**power + 1) % 2**32}
    found |= {2**32 - 1, 2**32 - 8, 2**31 - 1}
    return sorted(found)


def profile_of(shape: tuple[int, int, int, bool, int, int]) -> Profile:
    """The profile of one of ``SHAPES``."""
    slots, depth, vocab, sampled, context, _ = shape
    return given_.make_profile(slots, depth, vocab, sampled=sampled, context=context)


def step_of(profile: Profile, n: int, rng: random.Random) -> Step:
    """A STEP of ``n`` rows in slots of any order; one row in four is greedy."""
    slots = rng.sample(range(profile.max_slots), n)
    places = profile.depth + 1

    def row(slot: int) -> StepRow:
        count = rng.randrange(places + 1)
        return StepRow(
            slot=slot,
            generation=rng.getrandbits(32),
            position=rng.getrandbits(20),
            digest=rng.getrandbits(64),
            committed=tuple(rng.randrange(profile.vocab) for _ in range(count)),
            user_seed=rng.getrandbits(60) if profile.is_sampled else 0,
            sampled=profile.is_sampled and rng.random() < 0.75,
            context=rng.randbytes(profile.context_bytes),
        )

    return Step(rng.getrandbits(40), tuple(map(row, slots)))


def exchange_of(index: int, seed: int) -> tuple[Profile, bytes, bytes]:
    """Profile, STEP body and an acceptable REPLY frame; the STEP is the index's."""
    profile = profile_of(SHAPES[index])
    step = step_of(profile, SHAPES[index][5], random.Random(index))
    reply = given_.make_reply(profile, step, seed, 0.3)
    return profile, encode(profile, step), given_.reply_frame(profile, reply)


def _numbers(name: str, data: bytes) -> str:
    return f"static const uint8_t {name}[] = {{{','.join(map(str, data))}}};\n"


def _layout(profile: Profile) -> str:
    parts = (profile.vocab, profile.depth, profile.max_slots, profile.max_positions,
             int(profile.is_sampled), profile.context_bytes)  # fmt: skip
    return "{" + ",".join(f"{part}u" for part in parts) + "}"


def header() -> str:
    """The text of inputs.h."""
    exchanges = [exchange_of(index, 0) for index in range(len(SHAPES))]
    bodies = "".join(
        _numbers(f"step_{index}", step) for index, (_, step, _) in enumerate(exchanges)
    )
    layouts = [_layout(profile) for profile, _, _ in exchanges]
    cases = [
        f"{{{layout}, step_{index}, sizeof step_{index}, session, {SEQUENCE}}}"
        for index, layout in enumerate(layouts)
    ]
    # What no profile gives: depths and slots beyond the format, vast contexts.
    odd = [f"{{111u,{depth}u,{4 - depth % 3}u,64u,{depth % 2}u,0u}}"
           for depth in (0, 1, 2, 3, 6, 7, 8)]  # fmt: skip
    odd += ["{111u,4u,5u,64u,0u,0u}", "{31u,4u,1u,64u,0u,0u}", "{111u,4u,4u,9u,2u,0u}",
            "{111u,4u,4u,64u,1u,16777216u}", "{111u,5u,2u,64u,0u,2147483649u}",
            "{4294967295u,4u,4u,64u,1u,0u}"]  # fmt: skip
    layouts += odd
    numbers = words()
    return f"""/* Made by inputs.py. */
#include "layout/accept.h"
struct fuzz_case {{
    struct pp3_layout l;
    const uint8_t *step;
    uint32_t step_bytes;
    const uint8_t *session;
    uint64_t sequence;
}};
enum {{ LAYOUTS = {len(layouts)}, CASES = {len(cases)} }};
{_numbers("session", given_.SESSION)}{bodies}
__attribute__((unused)) static const struct pp3_layout layout[LAYOUTS] =
    {{{",".join(layouts)}}};
__attribute__((unused)) static const struct fuzz_case cases[CASES] =
    {{{",".join(cases)}}};
const uint32_t boundaries = {len(numbers)};
const uint32_t boundary[] = {{{",".join(f"{number}u" for number in numbers)}}};
"""


def dictionary() -> str:
    """Words and magics, in libFuzzer's notation."""
    entries = [struct.pack("<I", word) for word in words()]
    entries += [b"PP3F", b"PP3Q", KEY_MAGIC, given_.SESSION]
    for record in (FRAME, *(a.type for a in (*STEP_BODY, *REPLY_BODY))):
        if isinstance(record, Record):
            entries.append(bytes(record.size))
    quoted = ("".join(f"\\x{byte:02x}" for byte in entry) for entry in entries)
    return "".join(f'"{text}"\n' for text in dict.fromkeys(quoted))


def _vectors() -> list[dict[str, str]]:
    path = ROOT / "tests" / "vectors" / "frames.json"
    cases: list[dict[str, str]] = json.loads(path.read_bytes())["cases"]
    return cases


def step_seeds() -> list[bytes]:
    """Inputs of step.c: each layout's own STEPs, and the vectors'."""
    found = []
    for index in range(len(SHAPES)):
        profile = profile_of(SHAPES[index])
        for n in range(1, profile.max_slots + 1):
            step = step_of(profile, n, random.Random(n))
            found.append(bytes([index]) + encode(profile, step))
    frames = [bytes.fromhex(case["step"]) for case in _vectors()]
    found += [b"\x08" + frame[HEADER_BYTES:-CRC_BYTES] for frame in frames]
    return found


def accept_seeds() -> list[bytes]:
    """Inputs of accept.c: replies to each case's STEP, awaited or not; the vectors."""
    found = []
    for index in range(len(SHAPES)):
        for seed in range(6):
            frame = exchange_of(index, seed)[2]
            found.append(bytes([index, 2 * (seed == 5), 0, 0]) + frame)
    frames = [bytes.fromhex(case["reply"]) for case in _vectors()]
    found += [bytes([8, 0, 0, 0]) + frame for frame in frames]
    return found


def region_seeds() -> list[bytes]:
    """Inputs of region.c: a claimed and rung round, an exchange, then each call."""
    _, step, frame = exchange_of(0, 1)
    round_ = struct.pack("<Q", 1)
    step, frame = round_ + step[8:], bytearray(frame)
    frame[HEADER_BYTES : HEADER_BYTES + 8] = round_
    frame = given_.remake_crc(frame)
    note = struct.pack("<QQ", 2, 5) + b"words".ljust(8 * 62, b"\0") + bytes(128)
    far = 2**62
    entry = struct.pack("<QQQ", 1 << 24 | 1 << 20 | 1 << 8, 1, far).ljust(256, b"\0")
    done = struct.pack("<QQQ", 2 << 24 | 3 << 20 | 2 << 8 | 1, 2, far).ljust(256, b"\0")
    # entry 0 is the home of tickets 2 and 4, entry 1 that of 1 and 3
    control = note + done + entry + bytes(128)
    slot = struct.pack("<QIIQ", 2, 9, 1, 3).ljust(128, b"\0") + bytes(128)
    rest = control + slot + slot + step.ljust(128, b"\0") + frame
    calls = [bytes([0, 19, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 255, 255])]
    calls += [bytes([call] * 2).ljust(CALLS, b"\xff") for call in range(0, 256, 7)]
    return [call + rest for call in calls]


def _session_frame(kind: Kind, sequence: int, body: bytes, flags: int = 0) -> bytes:
    return encode_frame(kind, given_.SESSION, sequence, body, flags)


def _stream(index: int, seed: int) -> list[bytes]:
    """Good replies to the rounds 1, 2 and 3 of a case's STEP, in that order."""
    profile = profile_of(SHAPES[index])
    step = step_of(profile, SHAPES[index][5], random.Random(index))
    return [
        given_.reply_frame(
            profile,
            given_.make_reply(profile, Step(round_, step.rows), seed + round_, 0.3),
            SEQUENCE + round_ - 1,
        )
        for round_ in (1, 2, 3)
    ]


def _endless() -> bytes:
    """An ERROR that announces more than one may hold, and more than a buffer takes."""
    frame = bytearray(_session_frame(Kind.ERROR, SEQUENCE + 1, bytes(20)))
    struct.pack_into("<I", frame, FRAME.offset["body_bytes"], 2**20)
    return bytes(frame) + bytes(4000)


def pump_seeds() -> list[bytes]:
    """Inputs of pump.c: all replies, one late, one and an ERROR or a BYE, half a frame.

    Each with lengths around those of a header and of a frame.
    """
    text = encode_error(ErrorBody(int(Status.WORKER_ERROR), "out of memory", 2))
    found = []
    for index in range(STREAMED):
        replies = _stream(index, index)
        error = _session_frame(Kind.ERROR, SEQUENCE + 1, text)
        bye = _session_frame(Kind.BYE, SEQUENCE + 3, b"")
        streams = [
            b"".join([*replies, bye]), replies[0] + error, replies[0] + replies[1][:50],
            b"".join(reversed(replies)), replies[0] + _endless(),
        ]  # fmt: skip
        for how, cuts in ((0, b"\0" * 6), (1, bytes([39, 40, 41, 0, 90, 255]))):
            found += [bytes([index, how]) + cuts + stream for stream in streams]
    return found


SEEDS = {
    "step": step_seeds,
    "accept": accept_seeds,
    "region": region_seeds,
    "pump": pump_seeds,
}


def write_seeds(target: str, folder: Path) -> None:
    """Each seed of a target as a file of a corpus."""
    folder.mkdir(parents=True, exist_ok=True)
    for index, seed in enumerate(SEEDS[target]()):
        (folder / f"{index:03}").write_bytes(seed)
