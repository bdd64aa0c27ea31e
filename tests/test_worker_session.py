"""Sections 4 and 5 of the wire page, without a socket."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from worker_client import digest_of, reset_body, row, step_body

from pp3shm.layout.frames import (
    Reset,
    Status,
    Step,
    decode_reply,
    encode_step,
)
from pp3shm.layout.profile import Profile
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import DrafterSource
from pp3shm.worker.drafters import TableDrafter, seeded_table
from pp3shm.worker.session import Refusal, Session
from pp3shm.worker.slots import Slot

ID = bytes(range(16))
SHAPE = {"vocab": 64, "depth": 4, "max_slots": 3, "max_positions": 40}
SAMPLED = Profile.sampled(**SHAPE)
GREEDY = Profile.greedy(**SHAPE)


class Noting(TableDrafter):
    """Notes every call, and what it was shown."""

    def __init__(self):
        super().__init__(seeded_table(SAMPLED)._table)
        self.calls = []
        self.told = []

    def logits(self, rows, drafted):
        """Note, then answer."""
        self.calls.append((rows, drafted.copy()))
        return super().logits(rows, drafted)

    def reset(self, session, slot, generation, prefix):
        """Note."""
        self.told.append((session, slot, generation, prefix.tolist()))

    def end(self, session):
        """Note."""
        self.told.append(session)


def session_of(profile=SAMPLED, drafter=None):
    counts = Counts()
    source = DrafterSource(drafter or seeded_table(profile), profile, counts)
    session = Session(profile, ID, source, counts)
    session.counts = counts
    return session


def ask(session, round_, *rows):
    body = session.step(step_body(session.profile, round_, *rows))
    return decode_reply(session.profile, body)


def statuses(session, round_, *rows):
    return ask(session, round_, *rows).status.tolist()


# ---- rows: refusals and their precedence ----

HELD = (1, 2, 3, 4, 5)


def wrong_digest(**more):
    return row(prefix=HELD, digest=digest_of(HELD) ^ 1, **more)


ROWS = {
    "the prefix held": (row(prefix=HELD), Status.OK),
    "committed again": (row(prefix=HELD, count=3), Status.OK),
    "all committed again": (row(prefix=HELD, count=5), Status.OK),
    "one more": (row(prefix=(*HELD, 6), count=1), Status.OK),
    "overlap and more": (row(prefix=(*HELD, 6, 7), count=4), Status.OK),
    "full count": (row(prefix=(*HELD, 6, 7, 8, 9, 10), count=5), Status.OK),
    "another slot": (row(slot=1, prefix=HELD), Status.ABSENT),
    "another slot, all wrong": (
        row(slot=2, generation=0, prefix=HELD, digest=0, position=2**63),
        Status.ABSENT,
    ),
    "older generation": (row(generation=6, prefix=HELD), Status.STALE),
    "older generation, all wrong": (
        row(generation=0, prefix=HELD, digest=0, position=2**64 - 1),
        Status.STALE,
    ),
    "generation that was not opened": (row(generation=8, prefix=HELD), Status.REFUSED),
    "digest of something else": (wrong_digest(), Status.REFUSED),
    "digest of less": (row(prefix=HELD, digest=digest_of(HELD[:4])), Status.REFUSED),
    "tokens but the old digest": (
        row(prefix=(*HELD, 6), count=1, digest=digest_of(HELD)),
        Status.REFUSED,
    ),
    "a gap": (row(prefix=(*HELD, 6, 7), count=1), Status.REFUSED),
    "a gap without tokens": (row(prefix=(*HELD, 6)), Status.REFUSED),
    "another overlap": (row(prefix=(1, 2, 3, 9, 5, 6), count=3), Status.REFUSED),
    "going back": (row(prefix=HELD[:4]), Status.REFUSED),
    "going back with tokens": (row(prefix=HELD[:4], count=2), Status.REFUSED),
    "more tokens than positions": (
        row(prefix=(1, 2), committed=(1, 2, 3), digest=digest_of(HELD)),
        Status.REFUSED,
    ),
    "position 0": (row(position=0), Status.REFUSED),
    "position of 2**64 - 1": (row(prefix=HELD, position=2**64 - 1), Status.REFUSED),
}


def opened():
    drafter = Noting()
    session = session_of(drafter=drafter)
    session.reset(reset_body(SAMPLED, 0, 7, HELD))
    return session, drafter


def at_7(case):
    """The tables speak of generation 1; the slot is at 7."""
    return case if case.generation != 1 else replace(case, generation=7)


def replace(case, **changed):
    return type(case)(**{f: getattr(case, f) for f in case.__slots__} | changed)


@pytest.mark.parametrize("name", ROWS)
def test_row_has_the_status_that_section_4_gives(name):
    session, drafter = opened()
    case, expected = ROWS[name]
    reply = ask(session, 1, at_7(case))
    assert [expected] == reply.status.tolist()
    assert [at_7(case).generation] == reply.generation.tolist()
    assert (expected is Status.OK) == bool(drafter.calls)


@pytest.mark.parametrize("name", [n for n, (_, s) in ROWS.items() if s != Status.OK])
def test_refused_row_leaves_what_is_held_as_it_was(name):
    session, _ = opened()
    ask(session, 1, at_7(ROWS[name][0]))
    assert statuses(session, 2, row(generation=7, prefix=(*HELD, 9), count=1)) == [
        Status.OK
    ]


@pytest.mark.parametrize("name", [n for n, (_, s) in ROWS.items() if s != Status.OK])
def test_failed_row_carries_nothing(name):
    session, _ = opened()
    reply = ask(session, 1, at_7(ROWS[name][0]))
    assert (reply.tokens == -1).all()
    assert (reply.confidence == 0).all()
    assert (reply.mask == 0).all()
    assert (reply.ids == np.arange(32)).all()
    assert (reply.q == 0).all()
    assert not np.signbit(reply.q).any()


def test_refused_rows_do_not_touch_the_others():
    alone, _ = opened()
    expected = ask(alone, 5, row(generation=7, prefix=HELD, user_seed=3))
    session, _ = opened()
    reply = ask(
        session,
        5,
        row(slot=1),
        row(generation=7, prefix=HELD, user_seed=3),
        row(slot=2, generation=0),
    )
    assert reply.status.tolist() == [1, 0, 1]
    assert expected.tokens[0].tolist() == reply.tokens[1].tolist()
    assert (expected.q[0] == reply.q[1]).all()


def test_wrong_tail_then_the_right_one_is_taken():
    session, _ = opened()
    good = row(generation=7, prefix=(*HELD, 6, 7), count=2)
    bad = replace(good, committed=(6, 8))
    assert [statuses(session, 1, bad), statuses(session, 2, good)] == [[8], [0]]


def test_prefix_grows_to_max_positions_and_not_beyond():
    session = session_of()
    session.reset(reset_body(SAMPLED))
    prefix = ()
    for round_ in range(8):
        prefix += tuple(range(5))
        assert statuses(session, round_ + 1, row(prefix=prefix, count=5)) == [0]
    assert SAMPLED.max_positions == len(prefix)
    assert statuses(session, 20, row(prefix=(*prefix, 1), count=1)) == [8]
    assert statuses(session, 21, row(prefix=prefix, count=5)) == [0]
    assert len(session._slots[0]._tokens) == SAMPLED.max_positions


def test_prefix_is_never_hashed_again(monkeypatch):
    hashed = []
    slot = Slot(10**6)
    slot.reset(Reset(0, 1, np.arange(10**5, dtype=np.int32)))
    digest = type(slot._digest)
    original = digest.update
    monkeypatch.setattr(
        digest, "update", lambda self, t: (hashed.append(len(t)), original(self, t))
    )
    prefix = list(range(10**5))
    for token in range(100):
        prefix.append(token)
        slot.take(row(prefix=prefix[-5:], count=1, position=len(prefix)))
    assert max(hashed, default=0) <= 1


def test_prefix_vectors_are_taken_in_pieces():
    path = Path(__file__).parent / "vectors" / "prefix.json"
    for case in json.loads(path.read_text())["cases"]:
        slot = Slot(1000)
        slot.reset(Reset(0, 1, np.empty(0, np.int32)))
        tokens = case["tokens"]
        for end in [*range(0, len(tokens), 3), len(tokens)]:
            digest = case["digest"] if end == len(tokens) else digest_of(tokens[:end])
            piece = row(prefix=tokens[:end], count=min(end, 6), digest=digest)
            assert slot.take(piece) == Status.OK


# ---- RESET ----


def test_generation_only_grows():
    session, _ = opened()
    session.reset(reset_body(SAMPLED, 0, 7, HELD[:2]))
    session.reset(reset_body(SAMPLED, 0, 9, ()))
    with pytest.raises(Refusal) as caught:
        session.reset(reset_body(SAMPLED, 0, 8, ()))
    assert caught.value.code == Status.STALE
    assert "reset.generation: expected at least 9, found 8" in str(caught.value)


def test_reset_restates_a_generation_after_a_refusal():
    session, _ = opened()
    longer = (*HELD, 6, 7, 8)
    assert statuses(session, 1, row(generation=7, prefix=longer, count=1)) == [8]
    session.reset(reset_body(SAMPLED, 0, 7, longer))
    assert statuses(session, 2, row(generation=7, prefix=longer, count=1)) == [0]


def test_new_generation_makes_rows_of_the_old_one_stale():
    session, _ = opened()
    session.reset(reset_body(SAMPLED, 0, 8, ()))
    assert statuses(session, 1, row(generation=7, prefix=HELD)) == [4]
    assert statuses(session, 2, row(generation=8)) == [0]


def spoil(body, at, form, value):
    data = bytearray(body)
    struct.pack_into(form, data, at, value)
    return bytes(data)


GOOD_RESET = reset_body(SAMPLED, 0, 1, (1, 2))


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("slot", spoil(GOOD_RESET, 0, "<I", 3)),
        ("slot", spoil(GOOD_RESET, 0, "<I", 2**32 - 1)),
        ("bytes", spoil(spoil(GOOD_RESET, 8, "<I", 3), 12, "<Q", 3)),
        ("position", spoil(GOOD_RESET, 12, "<Q", 1)),
        ("position", spoil(GOOD_RESET, 12, "<Q", 2 + 2**32)),
        ("zero", spoil(GOOD_RESET, 20, "<i", 1)),
        ("prefix", spoil(GOOD_RESET, 24, "<i", 64)),
        ("prefix", spoil(GOOD_RESET, 28, "<i", -1)),
        ("bytes", GOOD_RESET + bytes(4)),
        ("reset.bytes", GOOD_RESET[:20]),
        ("reset.bytes", b""),
        ("length", struct.pack("<IIIQi", 0, 1, 41, 41, 0) + bytes(4 * 41)),
    ],
)
def test_malformed_reset_is_refused_whole(place, body):
    session, _ = opened()
    with pytest.raises(Refusal, match=place) as caught:
        session.reset(body)
    assert caught.value.code == Status.INVALID


def test_handed_out_prefix_never_changes_and_cannot_be_written():
    session, drafter = opened()
    ask(session, 1, row(generation=7, prefix=HELD))
    kept = drafter.calls[0][0][0].prefix
    ask(session, 2, row(generation=7, prefix=(*HELD, 9), count=1))
    session.reset(reset_body(SAMPLED, 0, 8, (60, 61, 62, 63, 60, 61)))
    ask(session, 3, row(generation=8, prefix=(60, 61, 62, 63, 60, 61, 62), count=1))
    assert list(HELD) == kept.tolist()
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 5


# ---- STEP: refused whole ----

CONTEXT = Profile.sampled(**SHAPE, context_bytes=4)
GOOD = step_body(
    CONTEXT,
    91,
    row(prefix=HELD, count=2, context=b"abcd"),
    row(slot=1, context=b"efgh"),
)
# 24 header, 2 x 16 draws, 2 x 32 rows, 2 x 20 committed, 2 x 4 context
DRAWS, TABLE, TOKENS = 24, 24 + 32, 24 + 32 + 64


@pytest.mark.parametrize(
    ("place", "body"),
    [
        ("step.n", spoil(GOOD, 8, "<I", 0)),
        ("step.n", spoil(GOOD, 8, "<I", 4)),
        ("step.n", spoil(GOOD, 8, "<I", 2**32 - 1)),
        ("step.bytes", spoil(GOOD, 8, "<I", 1)),
        ("step.bytes", spoil(GOOD, 8, "<I", 3)),
        ("step.depth", spoil(GOOD, 12, "<I", 5)),
        ("step.flags", spoil(GOOD, 16, "<I", 0)),
        ("step.flags", spoil(GOOD, 16, "<I", 3)),
        ("zero", spoil(GOOD, 20, "<I", 1)),
        ("sampled", spoil(GOOD, DRAWS + 8, "<I", 2)),
        ("sampled", spoil(GOOD, DRAWS + 16 + 8, "<I", 2**31)),
        ("zero", spoil(GOOD, DRAWS + 12, "<I", 1)),
        ("slot", spoil(GOOD, TABLE, "<I", 3)),
        ("slot", spoil(GOOD, TABLE, "<I", 1)),
        ("count", spoil(GOOD, TABLE + 24, "<I", 6)),
        ("count", spoil(GOOD, TABLE + 24, "<I", 2**31)),
        ("committed", spoil(GOOD, TABLE + 24, "<I", 1)),
        ("committed", spoil(GOOD, TABLE + 24, "<I", 3)),
        ("context_bytes", spoil(GOOD, TABLE + 28, "<I", 0)),
        ("context_bytes", spoil(GOOD, TABLE + 28, "<I", 2**32 - 1)),
        ("committed", spoil(GOOD, TOKENS, "<i", 64)),
        ("committed", spoil(GOOD, TOKENS, "<i", -1)),
        ("committed", spoil(GOOD, TOKENS + 8, "<i", 0)),
        ("committed", spoil(GOOD, TOKENS + 8, "<i", -2)),
        ("step.bytes", GOOD + b"\0"),
        ("step.bytes", GOOD[:-1]),
    ],
)
def test_malformed_step_is_refused_whole_and_names_the_place(place, body):
    session = session_of(CONTEXT)
    session.reset(reset_body(CONTEXT, 0, 1, HELD))
    session.reset(reset_body(CONTEXT, 1))
    with pytest.raises(Refusal, match=place) as caught:
        session.step(body)
    assert (caught.value.code, caught.value.round) == (Status.INVALID, 91)
    assert decode_reply(CONTEXT, session.step(GOOD)).status.tolist() == [0, 0]


def test_context_reaches_the_drafter():
    drafter = Noting()
    session = session_of(CONTEXT, drafter)
    session.reset(reset_body(CONTEXT, 0, 1, HELD))
    session.reset(reset_body(CONTEXT, 1))
    session.step(GOOD)
    assert [r.context for r in drafter.calls[0][0]] == [b"abcd", b"efgh"]


# ---- repeated and older rounds ----


def resets(session):
    for slot in range(3):
        session.reset(reset_body(session.profile, slot))
    return session


def bodies(profile, *rounds):
    return [
        step_body(profile, round_, *(row(slot=slot) for slot in slots))
        for round_, slots in rounds
    ]


def test_repeated_step_gets_the_identical_body_and_no_new_draw():
    drafter = Noting()
    session = resets(session_of(drafter=drafter))
    first, second = bodies(SAMPLED, (10, (0, 1)), (11, (1, 0)))
    answers = [session.step(first), session.step(second)]
    calls = len(drafter.calls)
    for _ in range(3):
        assert answers == [session.step(first), session.step(second)]
    assert calls == len(drafter.calls)
    assert session.counts.snapshot()["repeats"] == 6


def test_repeated_step_is_answered_also_after_its_slot_was_reset():
    session = resets(session_of())
    (first,) = bodies(SAMPLED, (10, (0,)))
    answer = session.step(first)
    session.reset(reset_body(SAMPLED, 0, 2, (5, 6)))
    assert answer == session.step(first)


def test_repeated_failure_is_answered_as_before_although_all_is_well_now():
    session = session_of()
    (first,) = bodies(SAMPLED, (10, (0,)))
    answer = session.step(first)
    resets(session)
    assert answer == session.step(first)
    assert decode_reply(SAMPLED, answer).status.tolist() == [1]


@pytest.mark.parametrize(
    ("then", "repeatable"),
    [
        ([], True),
        ([(11, (0,))], True),
        ([(11, (0,)), (12, (1,)), (13, (2,))], True),
        ([(11, (2,)), (12, (2,)), (13, (2,))], True),
        ([(11, (0,)), (12, (0,))], False),
        ([(11, (0, 1)), (12, (0,))], False),
        ([(11, (1,)), (12, (2, 1))], False),
    ],
)
def test_round_is_repeatable_while_it_is_one_of_the_last_two_of_each_slot(
    then, repeatable
):
    session = resets(session_of())
    first, *others = bodies(SAMPLED, (10, (0, 1)), *then)
    answer = session.step(first)
    for other in others:
        session.step(other)
    if repeatable:
        assert answer == session.step(first)
        return
    with pytest.raises(Refusal) as caught:
        session.step(first)
    assert (caught.value.code, caught.value.round) == (Status.STALE, 10)


OTHERS = {
    "another seed": lambda: row(user_seed=1),
    "greedy now": lambda: row(sampled=False),
    "another slot": lambda: row(slot=1),
    "another generation": lambda: row(generation=2),
    "another position": lambda: row(position=1),
    "another digest": lambda: row(digest=1),
}


@pytest.mark.parametrize("name", OTHERS)
def test_repeated_round_with_other_content_is_refused(name):
    session = resets(session_of())
    session.step(step_body(SAMPLED, 10, row()))
    with pytest.raises(Refusal) as caught:
        session.step(step_body(SAMPLED, 10, OTHERS[name]()))
    assert (caught.value.code, caught.value.round) == (Status.INVALID, 10)


@pytest.mark.parametrize("round_", [0, 1, 8, 9])
def test_round_below_the_newest_that_never_was_is_refused(round_):
    session = resets(session_of())
    session.step(step_body(SAMPLED, 10, row()))
    with pytest.raises(Refusal) as caught:
        session.step(step_body(SAMPLED, round_, row()))
    assert (caught.value.code, caught.value.round) == (Status.STALE, round_)


def test_rounds_may_leave_gaps_and_use_all_64_bits():
    session = resets(session_of())
    for round_ in (0, 7, 2**32, 2**64 - 2, 2**64 - 1):
        reply = ask(session, round_, row())
        assert (round_, [0]) == (reply.round, reply.status.tolist())


def test_answers_that_cannot_be_repeated_are_forgotten():
    session = resets(session_of())
    for round_ in range(50):
        ask(session, round_, row(slot=round_ % 3), row(slot=(round_ + 1) % 3))
    assert len(session._answers) <= 2 * SAMPLED.max_slots


def test_slot_in_two_unresolved_rounds_gets_a_draw_for_each():
    session = resets(session_of())
    ask(session, 1, row(prefix=HELD, count=5))
    later = [ask(session, round_, row(prefix=HELD)) for round_ in range(2, 12)]
    assert {0} == {int(reply.status[0]) for reply in later}
    assert len({tuple(reply.tokens[0]) for reply in later}) > 1


# ---- what the drafter is told ----


def test_drafter_hears_of_resets_and_of_the_end():
    session, drafter = opened()
    session.reset(reset_body(SAMPLED, 2, 4))
    session.end()
    assert [(ID, 0, 7, list(HELD)), (ID, 2, 4, []), ID] == drafter.told


def test_drafter_sees_the_rows_and_the_tokens_drawn_so_far():
    session, drafter = opened()
    session.reset(reset_body(SAMPLED, 1, 3, (9,)))
    reply = ask(
        session, 1, row(slot=1, generation=3, prefix=(9,)), row(0, 7, (*HELD, 6), 1)
    )
    assert SAMPLED.depth == len(drafter.calls)
    for depth, (rows, drafted) in enumerate(drafter.calls):
        assert [(r.slot, r.generation, r.position) for r in rows] == [
            (1, 3, 1),
            (0, 7, 6),
        ]
        assert [[9], [*HELD, 6]] == [r.prefix.tolist() for r in rows]
        assert {ID} == {r.session for r in rows}
        assert reply.tokens[:, :depth].tolist() == drafted.tolist()


def test_greedy_session_has_no_sampled_rows_and_no_q():
    session = resets(session_of(GREEDY))
    body = session.step(encode_step(GREEDY, Step(1, (row(sampled=False),))))
    reply = decode_reply(GREEDY, body)
    assert reply.q is None
    assert reply.status.tolist() == [0]
