"""Profile: what both sides must agree on, compared by name (wire page, section 3)."""

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple, NoReturn

from pp3shm.errors import ProfileError
from pp3shm.layout.record import Rule, among, between, equals, shown
from pp3shm.layout.tables import (
    CRC_BYTES,
    DEPTHS,
    HELLO_JSON_BYTES,
    MOST_SLOTS,
    PAGE_BYTES,
    RESET_HEADER,
    SUPPORT,
    WIRE_VERSION,
    frame_bytes,
    page_packing,
    reply_packing,
    step_packing,
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


class _Term(NamedTuple):
    """What one field may be: in the sampled mode, and in the greedy one."""

    sampled: Rule
    greedy: Rule


def _same(rule: Rule) -> _Term:
    return _Term(rule, rule)


_TERMS = {
    "wire_version": _same(equals(WIRE_VERSION)),
    "sample_mode": _same(among(SAMPLED_MODE, GREEDY_MODE)),
    "capability": _Term(equals(CAPABILITY_SAMPLED), equals(0)),
    "semantic": _Term(among(*RULES), equals("greedy")),
    "verifier": _same(equals("standard-v1")),
    "rng_abi": _Term(equals("philox4x32-10/blake2b-v1"), equals("none")),
    "precision": _same(equals("fp32")),
    "vocab": _same(between(SUPPORT, 2**31 - 1)),
    "depth": _same(among(*DEPTHS)),
    "max_slots": _same(between(1, MOST_SLOTS)),
    "max_positions": _same(between(1, MOST_POSITIONS)),
    "support": _Term(equals(SUPPORT), equals(0)),
    "temperature_milli": _Term(equals(700), equals(0)),
    "id_map_sha256": _same(_HEX64),
    "target_sha256": _same(_HEX64),
    "draft_sha256": _same(_HEX64),
    "markov_sha256": _same(_HEX64),
    "context_bytes": _same(between(0, MOST_STEP_BYTES)),
}


@dataclass(frozen=True, slots=True)
class Profile:
    """One side's terms; made by ``Profile.sampled`` or ``Profile.greedy``.

    The names, values and units are those of the wire page, section 3.

    Raises:
        ProfileError: a field is not what v1 allows: name, value, what is allowed.
    """

    wire_version: int
    sample_mode: int
    capability: int
    semantic: str
    verifier: str
    rng_abi: str
    precision: str
    vocab: int
    depth: int
    max_slots: int
    max_positions: int
    support: int
    temperature_milli: int
    id_map_sha256: str
    target_sha256: str
    draft_sha256: str
    markov_sha256: str
    context_bytes: int

    def __post_init__(self) -> None:
        """Refuses what v1 does not allow."""
        for name, rule in self._rules():
            value = getattr(self, name)
            if not rule.holds(value):
                raise ProfileError(name, shown(value), f"(allowed: {rule.wanted})")
        room = (MOST_STEP_BYTES - self.step_bytes) // self.max_slots
        if room < 0:
            raise ProfileError(
                "context_bytes",
                self.context_bytes,
                f"(allowed: at most {self.context_bytes + room})",
            )

    def _rules(self) -> list[tuple[str, Rule]]:
        sampled = self.sample_mode == SAMPLED_MODE
        return [
            (name, term.sampled if sampled else term.greedy)
            for name, term in _TERMS.items()
        ]

    @classmethod
    def sampled(
        cls,
        *,
        vocab: int,
        depth: int,
        max_slots: int,
        max_positions: int,
        context_bytes: int = 0,
        id_map_sha256: str = ZEROS,
        target_sha256: str = ZEROS,
        draft_sha256: str = ZEROS,
        markov_sha256: str = ZEROS,
        semantic: str = SEMANTIC,
    ) -> "Profile":
        """The sampled mode; calling this is how the engine's side switches it on.

        Args:
            vocab: target vocabulary size, at least 32.
            depth: drafted tokens per request, 4 or 5.
            max_slots: requests at once, 1 to 4.
            max_positions: longest request, tokens.
            context_bytes: opaque drafter context per request in a STEP.
            id_map_sha256: hex identity of the vocabulary map.
            target_sha256: hex identity of the target.
            draft_sha256: hex identity of the drafter.
            markov_sha256: hex identity of the Markov head; zeros: none.
            semantic: how q is made from logits, a key of ``RULES``.

        Raises:
            ProfileError: a value that v1 does not allow.
        """
        return cls(
            wire_version=WIRE_VERSION,
            sample_mode=SAMPLED_MODE,
            capability=CAPABILITY_SAMPLED,
            semantic=semantic,
            verifier="standard-v1",
            rng_abi="philox4x32-10/blake2b-v1",
            precision="fp32",
            vocab=vocab,
            depth=depth,
            max_slots=max_slots,
            max_positions=max_positions,
            support=SUPPORT,
            temperature_milli=700,
            id_map_sha256=id_map_sha256,
            target_sha256=target_sha256,
            draft_sha256=draft_sha256,
            markov_sha256=markov_sha256,
            context_bytes=context_bytes,
        )

    @classmethod
    def greedy(
        cls,
        *,
        vocab: int,
        depth: int,
        max_slots: int,
        max_positions: int,
        context_bytes: int = 0,
        id_map_sha256: str = ZEROS,
        target_sha256: str = ZEROS,
        draft_sha256: str = ZEROS,
        markov_sha256: str = ZEROS,
    ) -> "Profile":
        """The greedy mode: no q, no noise. Arguments as in ``Profile.sampled``.

        Raises:
            ProfileError: a value that v1 does not allow.
        """
        return cls(
            wire_version=WIRE_VERSION,
            sample_mode=GREEDY_MODE,
            capability=0,
            semantic="greedy",
            verifier="standard-v1",
            rng_abi="none",
            precision="fp32",
            vocab=vocab,
            depth=depth,
            max_slots=max_slots,
            max_positions=max_positions,
            support=0,
            temperature_milli=0,
            id_map_sha256=id_map_sha256,
            target_sha256=target_sha256,
            draft_sha256=draft_sha256,
            markov_sha256=markov_sha256,
            context_bytes=context_bytes,
        )

    @property
    def is_sampled(self) -> bool:
        """Whether frames carry the sampled extension."""
        return self.sample_mode == SAMPLED_MODE

    @property
    def rule(self) -> str:
        """What becomes of the rest of the mass; empty in the greedy mode."""
        return RULES.get(self.semantic, "")

    @property
    def step_bytes(self) -> int:
        """The largest STEP frame."""
        return frame_bytes(
            step_packing(
                self.max_slots, self.depth, self.is_sampled, self.context_bytes
            )
        )

    @property
    def reply_bytes(self) -> int:
        """The largest REPLY frame."""
        return frame_bytes(reply_packing(self.max_slots, self.depth, self.is_sampled))

    @property
    def layout_bytes(self) -> int:
        """ReplyLayout."""
        return page_packing(self.max_slots, self.depth, self.is_sampled).size

    @property
    def page_bytes(self) -> int:
        """Capacity of a page."""
        return PAGE_BYTES

    def values(self) -> dict[str, int | str]:
        """Every field of the HELLO in the wire page's order, derived ones last."""
        return {name: getattr(self, name) for name in NAMES}

    def canonical_json(self) -> bytes:
        """The one spelling of this profile, ASCII."""
        return _canonical(self.values())

    @property
    def layout_id(self) -> bytes:
        """SHA-256 of the canonical JSON, 32 bytes."""
        return sha256(self.canonical_json()).digest()

    @classmethod
    def from_json(cls, data: bytes) -> "Profile":
        """The profile that canonical bytes spell.

        Args:
            data: as a peer sent them, at most 8 KiB.

        Raises:
            ProfileError: not canonical, a key unknown, missing or repeated, or a value
                v1 does not allow; ``ours`` says what is allowed.
        """
        values = _parse(data)
        for name in NAMES:
            if name not in values:
                raise ProfileError(name, "a value", "none")
        for name, value in values.items():
            if name not in NAMES:
                raise ProfileError(str(shown(name)), "no such field", shown(value))
        ours: dict[str, Any] = {name: values[name] for name in _TERMS}
        try:
            profile = cls(**ours)
        except ProfileError as error:
            raise ProfileError(error.field, error.theirs, error.ours) from None
        for name in DERIVED:
            if values[name] != getattr(profile, name):
                raise ProfileError(name, getattr(profile, name), shown(values[name]))
        return profile

    def expect_same(self, theirs: "Profile") -> None:
        """Refuses a peer's profile that differs from ours.

        Raises:
            ProfileError: names the first field that differs, our value and theirs.
        """
        other = theirs.values()
        for name, value in self.values().items():
            if value != other[name]:
                raise ProfileError(name, value, other[name])


DERIVED = ("step_bytes", "reply_bytes", "layout_bytes", "page_bytes")
NAMES = (*_TERMS, *DERIVED)


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(
        values, sort_keys=True, separators=(",", ":"), ensure_ascii=True
    ).encode("ascii")


def _refuse(found: object) -> NoReturn:
    raise ProfileError("json", "canonical JSON of integers and strings", shown(found))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ProfileError(str(shown(twice)), "one value", "a repeated key")
    return values


def _parse(data: bytes) -> dict[str, int | str]:
    """A flat object of integers and strings, spelled canonically."""
    if len(data) > HELLO_JSON_BYTES:
        raise ProfileError("json", f"at most {HELLO_JSON_BYTES} bytes", len(data))
    try:
        values = json.loads(
            data.decode("ascii"),
            object_pairs_hook=_once,
            parse_float=_refuse,
            parse_constant=_refuse,
        )
    except (ValueError, RecursionError):  # no JSON, absurd numbers, absurd nesting
        _refuse(data)
    if type(values) is not dict:
        _refuse(values)
    for name, value in values.items():
        if type(value) not in (int, str):
            raise ProfileError(
                str(shown(name)), "an integer or a string", shown(type(value).__name__)
            )
    if _canonical(values) != data:
        raise ProfileError("json", "its canonical spelling", "another spelling")
    return values
