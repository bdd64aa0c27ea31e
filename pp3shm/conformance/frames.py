"""Known answers about bytes: frames, profile, key proof, layouts, pages, digests.

Wherever the library has two implementations, a case is held against both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pp3shm._core import lib
from pp3shm.conformance.runner import Case, Check, Context
from pp3shm.errors import Mismatch, ReplyError
from pp3shm.layout import keyproof
from pp3shm.layout.core import Core, c_layout, crc32
from pp3shm.layout.digest import PrefixDigest
from pp3shm.layout.frames import (
    CRC_BYTES,
    HEADER_BYTES,
    MASS,
    ErrorBody,
    Kind,
    Reply,
    Reset,
    Step,
    StepRow,
    decode_error,
    decode_header,
    decode_reply,
    decode_reset,
    decode_step,
    encode_error,
    encode_frame,
    encode_reply,
    encode_reset,
    encode_step,
    open_body,
    profile_flags,
)
from pp3shm.layout.profile import MOST_POSITIONS, Profile
from pp3shm.layout.reply import ReplyLayout
from pp3shm.layout.tables import MOST_SLOTS
from pp3shm.layout.validate import check_reply, scatter_reply


def _expect(place: str, expected: object, found: object) -> None:
    if type(expected) is not type(found) or expected != found:
        raise Mismatch(place, expected, found)


def _bytes(case: Case, key: str) -> bytes:
    text = case[key]
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        raise Mismatch(key, "hex digits", text) from None


def _expect_bytes(case: Case, key: str, found: bytes, by: str = "") -> None:
    _expect(key + by, _bytes(case, key).hex(), found.hex())


def _profile(frame: Case, max_slots: int = MOST_SLOTS) -> Profile:
    """A profile in which the frame may stand."""
    make: Callable[..., Profile] = (
        Profile.sampled if frame["sampled"] else Profile.greedy
    )
    return make(
        vocab=frame["vocab"],
        depth=frame["depth"],
        max_slots=max_slots,
        max_positions=MOST_POSITIONS,
    )


def _step(case: Case, sampled: bool) -> Step:
    """What a frames case says of its STEP; a greedy STEP carries no seed."""
    rows = tuple(
        StepRow(
            slot=row["slot"],
            generation=row["gen"],
            position=row["pos"],
            digest=row["digest"],
            committed=tuple(row["committed"]),
            user_seed=row["seed"] if sampled else 0,
            sampled=bool(row["t"]),
        )
        for row in case["step_rows"]
    )
    return Step(case["round"], rows)


def _reply(case: Case, sampled: bool) -> Reply:
    rows = case["reply_rows"]

    def column(key: str, dtype: Any) -> Any:
        return np.array([row[key] for row in rows], dtype)

    return Reply(
        case["round"],
        column("gen", np.uint32),
        column("status", np.int32),
        column("tokens", np.int32),
        column("conf", np.float32),
        column("mask", np.int32) if sampled else None,
        column("ids", np.int32) if sampled else None,
        column("counts", np.float32) / np.float32(MASS) if sampled else None,
    )


def _check_header(frame: bytes, kind: Kind, case: Case, sequence: str) -> bytes:
    """Holds a frame's header against its case; gives its body without CRC."""
    header = decode_header(frame)
    body = frame[HEADER_BYTES:]
    _expect("kind", kind.name, header.kind.name)
    _expect_bytes(case, "session", header.session)
    _expect("sequence", case[sequence], header.sequence)
    _expect("body length", len(body), header.body_bytes)
    inner = open_body(body)
    _expect("crc (C)", int.from_bytes(body[-CRC_BYTES:], "little"), crc32(inner))
    return inner


def check_frames(case: Case, _context: Context) -> None:
    """STEP and REPLY: encoded, decoded, checked and accepted."""
    profile = _profile(case)
    sampled, flags = profile.is_sampled, profile_flags(profile)
    session = _bytes(case, "session")
    step = _step(case, sampled)
    _expect("n", case["n"], len(step.rows))

    body = encode_step(profile, step)
    frame = encode_frame(Kind.STEP, session, case["step_sequence"], body, flags)
    _expect_bytes(case, "step", frame)
    told = _check_header(_bytes(case, "step"), Kind.STEP, case, "step_sequence")
    _expect("step decoded", step, decode_step(profile, told))
    _expect("step length (C)", len(told), Core(profile).check_step(told))

    reply = encode_reply(profile, _reply(case, sampled))
    frame = encode_frame(Kind.REPLY, session, case["reply_sequence"], reply, flags)
    _expect_bytes(case, "reply", frame)
    answer = _check_header(_bytes(case, "reply"), Kind.REPLY, case, "reply_sequence")
    again = encode_reply(profile, decode_reply(profile, answer))
    _expect("reply decoded", reply.hex(), again.hex())
    _pages(profile, case, _bytes(case, "reply"))


def _pages(profile: Profile, base: Case, frame: bytes) -> tuple[bytes, bytes]:
    """The reply's page by the reference and by C.

    Raises:
        ReplyError: the first of the two refused it.
        Mismatch: they differ.
    """
    body = open_body(_bytes(base, "step")[HEADER_BYTES:])
    session, sequence = _bytes(base, "session"), base["reply_sequence"]
    reasons, pages = [], []
    for judge in (_by_reference, _by_core):
        try:
            pages.append(judge(profile, body, frame, session, sequence))
            reasons.append("accepted")
        except ReplyError as error:
            reasons.append(error.reason)
            refusal = error
    _expect("reason by the reference and by C", reasons[0], reasons[1])
    if not pages:
        raise refusal
    _expect("page by the reference and by C", pages[0].hex(), pages[1].hex())
    return pages[0], pages[1]


def _by_reference(
    profile: Profile, body: bytes, frame: bytes, session: bytes, sequence: int
) -> bytes:
    check_reply(profile, body, frame, session, sequence)
    return scatter_reply(profile, body, frame)


def _by_core(
    profile: Profile, body: bytes, frame: bytes, session: bytes, sequence: int
) -> bytes:
    return Core(profile).accept(body, frame, session, sequence)


def check_pages(case: Case, context: Context) -> None:
    """The page a frame's reply becomes."""
    base = context.frame(case["base"])
    profile = _profile(base, case["max_slots"])
    by_reference, by_core = _pages(profile, base, _bytes(base, "reply"))
    _expect_bytes(case, "page", by_reference)
    _expect_bytes(case, "page", by_core, " (C)")


def check_bad_replies(case: Case, context: Context) -> None:
    """A reply that must be refused, for exactly this reason."""
    base = context.frame(case["base"])
    profile, frame = _profile(base), _bytes(case, "reply")
    try:
        _pages(profile, base, frame)
    except ReplyError as error:
        found = error.reason
    else:
        found = "accepted"
    _expect("reason", case["reason"], found)


def check_hello(case: Case, _context: Context) -> None:
    """Canonical JSON, layout id and HELLO frame of a profile."""
    profile = Profile.from_json(case["json"].encode("utf-8"))
    _expect("profile", case["profile"], profile.values())
    _expect("json", case["json"], profile.canonical_json().decode("ascii"))
    _expect_bytes(case, "layout_id", profile.layout_id)
    _check_hello_frame(case, Kind.HELLO, profile)


def _check_hello_frame(case: Case, kind: Kind, profile: Profile) -> None:
    frame = encode_frame(kind, _bytes(case, "session"), 0, profile.canonical_json())
    _expect_bytes(case, "frame", frame)
    told = _check_header(frame, kind, {"sequence": 0, **case}, "sequence")
    _expect("profile decoded", profile, Profile.from_json(told))


def check_control(case: Case, _context: Context) -> None:
    """RESET, ERROR, BYE and HELLO_ACK frames."""
    kind = case["kind"]
    if kind in ("HELLO", "HELLO_ACK"):
        profile = Profile.from_json(_canonical(case["profile"]))
        _check_hello_frame(case, Kind[kind], profile)
        return
    if kind not in _CONTROL:
        known = ", ".join((*_CONTROL, "HELLO", "HELLO_ACK"))
        raise Mismatch("kind", f"one of {known}", kind)
    body = _CONTROL[kind](case)
    frame = encode_frame(Kind[kind], _bytes(case, "session"), case["sequence"], body)
    _expect_bytes(case, "frame", frame)
    told = _check_header(_bytes(case, "frame"), Kind[kind], case, "sequence")
    _expect("body", body.hex(), told.hex())


def _canonical(profile: Any) -> bytes:
    return Profile(
        **{name: profile[name] for name in Profile.__slots__}
    ).canonical_json()


def _reset(case: Case) -> bytes:
    # The case names no profile: the widest one takes every token and slot.
    profile = Profile.sampled(
        vocab=2**31 - 1, depth=5, max_slots=MOST_SLOTS, max_positions=MOST_POSITIONS
    )
    prefix = np.array(case["prefix"], np.int32)
    body = encode_reset(profile, Reset(case["slot"], case["generation"], prefix))
    told = decode_reset(profile, body)
    _expect("prefix decoded", case["prefix"], told.prefix.tolist())
    _expect("slot decoded", case["slot"], told.slot)
    _expect("generation decoded", case["generation"], told.generation)
    return body


def _error(case: Case) -> bytes:
    error = ErrorBody(case["code"], case["text"], case["round"])
    body = encode_error(error)
    _expect("error decoded", error, decode_error(body))
    return body


def _bye(_case: Case) -> bytes:
    return b""


_CONTROL: dict[str, Callable[[Case], bytes]] = {
    "RESET": _reset,
    "ERROR": _error,
    "BYE": _bye,
}


def check_keyproof(case: Case, _context: Context) -> None:
    """The three messages, made and checked."""
    psk, nonce_p, nonce_w = (_bytes(case, key) for key in ("psk", "nonce_p", "nonce_w"))
    first = keyproof.first(nonce_p)
    answer = keyproof.answer(psk, nonce_p, nonce_w)
    second = keyproof.second(psk, nonce_p, nonce_w)
    _expect_bytes(case, "proxy_first", first)
    _expect_bytes(case, "worker", answer)
    _expect_bytes(case, "proxy_second", second)
    _expect("nonce read", nonce_p, keyproof.read_first(first))
    _expect("nonce answered", nonce_w, keyproof.check_answer(psk, nonce_p, answer))
    keyproof.check_second(psk, nonce_p, nonce_w, second)


def check_layouts(case: Case, _context: Context) -> None:
    """Offsets of ReplyLayout, from the tables and from C."""
    max_slots, depth = case["max_slots"], case["depth"]
    layout = ReplyLayout(max_slots, depth, case["sampled"])
    _expect("offsets", case["offsets"], dict(layout.offset))
    profile = _profile({**case, "vocab": 32}, max_slots)
    at = lib.pp3_page_at(c_layout(profile))
    found = {name: getattr(at, name) for name in layout.offset if name != "round"}
    _expect("offsets (C)", case["offsets"], {"round": 0, **found})


def check_prefix(case: Case, _context: Context) -> None:
    """The digest of a prefix, hashed at once and token by token."""
    tokens = case["tokens"]
    _expect("digest", case["digest"], PrefixDigest(tokens).value)
    grown = PrefixDigest()
    for token in tokens:
        grown.update([token])
    _expect("digest, token by token", case["digest"], grown.value)


FORMATS: dict[str, Check] = {
    "bad_replies": check_bad_replies,
    "control": check_control,
    "frames": check_frames,
    "hello": check_hello,
    "keyproof": check_keyproof,
    "layouts": check_layouts,
    "pages": check_pages,
    "prefix": check_prefix,
}
