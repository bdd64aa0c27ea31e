"""The tables of the wire page: enumerations, records and bodies, nothing else."""

from enum import IntEnum
from functools import lru_cache

from pp3shm.layout.record import Array, Field, Packing, Record, among, between, equals

WIRE_VERSION = 1
FLAG_SAMPLED = 2
SUPPORT = 32
MASS = 2**24
CRC_BYTES = 4
SESSION_BYTES = 16
PAGE_BYTES = 65536
HELLO_JSON_BYTES = 8192
ERROR_TEXT_BYTES = 1024
NO_ROUND = 2**64 - 1
DEPTHS = (4, 5)
MOST_SLOTS = 4
MTUS = (256, 512, 1024, 2048, 4096)
MOST_STAGING_SLOTS = 256
GID_BYTES = 16


class Kind(IntEnum):
    """Kinds of frames (wire page, section 2)."""

    HELLO = 1
    HELLO_ACK = 2
    STEP = 3
    REPLY = 4
    RESET = 5
    ERROR = 6
    BYE = 7
    ENDPOINT = 8


class Status(IntEnum):
    """Status of a row, a slot or an ERROR (wire page, section 5)."""

    OK = 0
    ABSENT = 1
    TIMEOUT = 2
    CORRUPT = 3
    STALE = 4
    INVALID = 5
    WORKER_ERROR = 6
    PEER_DIED = 7
    REFUSED = 8


FRAME = Record(
    "frame",
    #     name        struct  rule
    Field("magic", "4s", equals(b"PP3F")),
    Field("version", "H", equals(WIRE_VERSION)),
    Field("kind", "H", among(*map(int, Kind))),
    Field("flags", "I", among(0, FLAG_SAMPLED)),
    Field("body_bytes", "I"),
    Field("sequence", "Q"),
    Field("session", "16s"),
)
HEADER_BYTES = FRAME.size

# STEP and REPLY begin alike; what n, depth and flags must be is the profile's.
STEP_HEADER = Record(
    "step",
    Field("round", "Q"),
    Field("n", "I"),
    Field("depth", "I"),
    Field("flags", "I"),
    Field("zero", "I", equals(0)),
)
STEP_DRAW = Record(
    "step.draw",
    Field("user_seed", "q"),
    Field("sampled", "I", among(0, 1)),
    Field("zero", "I", equals(0)),
)
STEP_ROW = Record(
    "step.row",
    Field("slot", "I"),
    Field("generation", "I"),
    Field("position", "Q"),
    Field("digest", "Q"),
    Field("count", "I"),
    Field("context_bytes", "I"),
)
STEP_BODY = (
    #     name         type          shape                   meaning
    Array("header", STEP_HEADER, (), "round, n, depth, flags, zero"),
    Array("draws", STEP_DRAW, ("n",), "user seed, T>0", sampled_only=True),
    Array("rows", STEP_ROW, ("n",), "one request each"),
    Array("committed", "i4", ("n", "places"), "tokens since the last STEP, then -1"),
    Array("context", "u1", ("n", "context_bytes"), "opaque to all but the drafter"),
)

RESET_HEADER = Record(
    "reset",
    Field("slot", "I"),
    Field("generation", "I"),
    Field("length", "I"),
    Field("position", "Q"),
    Field("zero", "i", equals(0)),
)
ERROR_HEADER = Record(
    "error",
    Field("code", "I", among(*map(int, Status))),
    Field("text_bytes", "I"),
    Field("round", "Q"),
)
ENDPOINT = Record(
    "endpoint",
    Field("queue_pair", "I", between(0, 2**24 - 1)),
    Field("packet_sequence", "I", between(0, 2**24 - 1)),
    Field("mtu", "H", among(*MTUS)),
    Field("zero", "H", equals(0)),
    Field("gid_index", "I"),
    Field("gid", "16s"),
    Field("address", "Q"),
    Field("rkey", "I"),
    Field("slot_bytes", "I"),
    Field("slots", "I", between(1, MOST_STAGING_SLOTS)),
)

REPLY_HEADER = Record("reply", *STEP_HEADER.fields)
TRAILER = Record(
    "trailer",
    Field("magic", "4s", equals(b"PP3Q")),
    Field("version", "I", equals(1)),
    Field("n", "I"),
    Field("depth", "I"),
)
REPLY_BODY = (
    Array("header", REPLY_HEADER, (), "round, n, depth, flags, zero"),
    Array("status", "i4", ("n",), "Status"),
    Array("generation", "u4", ("n",), "echo"),
    Array("tokens", "i4", ("n", "depth"), "drafts; -1 in a failed row"),
    Array("confidence", "f4", ("n", "depth"), "of 0..1"),
    Array("trailer", TRAILER, (), "semantic version, n, depth", sampled_only=True),
    Array("mask", "i4", ("n",), "1: sampled row", sampled_only=True),
    Array("ids", "i4", ("n", "depth", SUPPORT), "ascending", sampled_only=True),
    Array("q", "f4", ("n", "depth", SUPPORT), "counts / MASS", sampled_only=True),
)

# Indexed by slot, unlike REPLY_BODY: B is the profile's max_slots.
PAGE = (
    Array("round", "u8", (), "the STEP answered"),
    Array("status", "i4", ("B",), "Status"),
    Array("tokens", "i4", ("B", "depth"), "drafts; -1 where there are none"),
    Array("confidence", "f4", ("B", "depth"), "of 0..1"),
    Array("mask", "i4", ("B",), "1: sampled row", sampled_only=True),
    Array("ids", "i4", ("B", "depth", SUPPORT), "ascending", sampled_only=True),
    Array("q", "f4", ("B", "depth", SUPPORT), "counts / MASS", sampled_only=True),
)

# The first message of the key proof goes one way, its answer the other.
KEY_MAGIC = b"PP3K"
KEY_FIRST = Record(
    "keyproof.first", Field("magic", "4s", equals(KEY_MAGIC)), Field("nonce", "32s")
)
KEY_ANSWER = Record(
    "keyproof.answer",
    Field("magic", "4s", equals(KEY_MAGIC)),
    Field("nonce", "32s"),
    Field("tag", "32s"),
)
KEY_SECOND = Record(
    "keyproof.second", Field("magic", "4s", equals(KEY_MAGIC)), Field("tag", "32s")
)


@lru_cache(maxsize=64)
def step_packing(n: int, depth: int, sampled: bool, context_bytes: int) -> Packing:
    """A STEP body of ``n`` rows, without its CRC."""
    return Packing(
        "step",
        STEP_BODY,
        sampled=sampled,
        n=n,
        places=depth + 1,
        context_bytes=context_bytes,
    )


@lru_cache(maxsize=64)
def reply_packing(n: int, depth: int, sampled: bool) -> Packing:
    """A REPLY body of ``n`` rows, without its CRC."""
    return Packing("reply", REPLY_BODY, sampled=sampled, n=n, depth=depth)


@lru_cache(maxsize=64)
def page_packing(max_slots: int, depth: int, sampled: bool) -> Packing:
    """The ReplyLayout of a page."""
    return Packing("page", PAGE, sampled=sampled, B=max_slots, depth=depth)


def frame_bytes(body: Packing) -> int:
    """Bytes of a whole frame around a body without its CRC."""
    return HEADER_BYTES + body.size + CRC_BYTES
