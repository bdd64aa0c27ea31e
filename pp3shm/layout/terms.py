"""The terms of a profile: every field and what v1 allows it to be."""

from typing import NamedTuple

from pp3shm.layout.record import Rule, among, between, equals
from pp3shm.layout.tables import (
    CRC_BYTES,
    DEPTHS,
    MOST_SLOTS,
    RESET_HEADER,
    SUPPORT,
    WIRE_VERSION,
)

ZEROS = "0" * 64
SEMANTIC = "top32/tau.7/dyadic24-floor-first-v1"
RULES = {
    SEMANTIC: "floor-first",
    "top32/tau.7/dyadic24-standard-v1": "largest-remainder",
}
CAPABILITY_SAMPLED = 8
SAMPLED_MODE, GREEDY_MODE = 2, 0
# A RESET states a whole prefix, and its body length is a u32.
MOST_POSITIONS = (2**32 - 1 - CRC_BYTES - RESET_HEADER.size) // 4
MOST_STEP_BYTES = 2**24  # a STEP is copied whole each step; offsets stay in 32 bits

_HEX64 = Rule(
    "64 lower-case hex digits",
    lambda found: (
        type(found) is str
        and len(found) == 64
        and set(found) <= set("0123456789abcdef")
    ),
)


class Term(NamedTuple):
    """What one field may be: in the sampled mode, and in the greedy one."""

    sampled: Rule
    greedy: Rule


def _same(rule: Rule) -> Term:
    return Term(rule, rule)


TERMS = {
    "wire_version": _same(equals(WIRE_VERSION)),
    "sample_mode": _same(among(SAMPLED_MODE, GREEDY_MODE)),
    "capability": Term(equals(CAPABILITY_SAMPLED), equals(0)),
    "semantic": Term(among(*RULES), equals("greedy")),
    "verifier": _same(equals("standard-v1")),
    "rng_abi": Term(equals("philox4x32-10/blake2b-v1"), equals("none")),
    "precision": _same(equals("fp32")),
    "vocab": _same(between(SUPPORT, 2**31 - 1)),
    "depth": _same(among(*DEPTHS)),
    "max_slots": _same(between(1, MOST_SLOTS)),
    "max_positions": _same(between(1, MOST_POSITIONS)),
    "support": Term(equals(SUPPORT), equals(0)),
    "temperature_milli": Term(equals(700), equals(0)),
    "id_map_sha256": _same(_HEX64),
    "target_sha256": _same(_HEX64),
    "draft_sha256": _same(_HEX64),
    "markov_sha256": _same(_HEX64),
    "context_bytes": _same(between(0, MOST_STEP_BYTES)),
}

# Derived from the terms, stated in the HELLO all the same, and compared like them.
DERIVED = ("step_bytes", "reply_bytes", "layout_bytes", "page_bytes")
NAMES = (*TERMS, *DERIVED)
