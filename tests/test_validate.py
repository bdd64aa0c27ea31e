"""The ten checks: reference and C core against each other, on faults of every kind."""

import random
import threading
from collections import Counter

import numpy as np
import pytest
import strategies as given_
from hypothesis import given
from hypothesis import strategies as st
from judges import SEQUENCE, SESSION, agree, by_core, exchange

from pp3shm._core import ffi, lib
from pp3shm.errors import FrameError, ReplyError
from pp3shm.layout.core import Core, c_layout
from pp3shm.layout.frames import Step, StepRow, encode_step
from pp3shm.layout.reply import ReplyLayout
from pp3shm.layout.validate import (
    CHECKS,
    INCIDENTS,
    REASON_STATUS,
    REASONS,
    check_reply,
    scatter_reply,
)


@given_.examples(150)
@given(given_.exchanges())
def test_an_acceptable_reply_becomes_the_same_page_by_reference_and_by_c(case):
    """Any shape, any subset of slots, failed and greedy rows."""
    assert agree(*case) == "accepted"


@given_.examples(400)
@given(given_.exchanges(), given_.seeds())
def test_reference_and_c_give_the_same_reason_for_any_faulty_reply(case, seed):
    """Sixty faulty replies an example: 24,000 in all, page bytes and places too."""
    profile, step, good = case
    rng = random.Random(seed)
    for _ in range(60):
        agree(profile, step, given_.mutate_reply(rng, profile, good))


@given_.examples(60)
@given(given_.exchanges(), given_.seeds())
def test_a_reply_nobody_awaits_is_frame_crc_or_header_for_both(case, seed):
    """Well-formed is ``header``, which the proxy counts as late or stale."""
    profile, _, good = case
    rng = random.Random(seed)
    assert agree(profile, None, good) == "header"
    for _ in range(40):
        faulty = given_.mutate_reply(rng, profile, good)
        assert agree(profile, None, faulty) in {"frame", "crc", "header"}


@given_.examples(200)
@given(given_.profiles(), st.binary(max_size=6000), st.booleans())
def test_bytes_that_are_no_frame_at_all_are_refused_alike(profile, data, awaited):
    """Nothing but noise, with and without a STEP."""
    row = StepRow(0, 0, 0, 0, (), context=bytes(profile.context_bytes))
    step = encode_step(profile, Step(1, (row,)))
    assert agree(profile, step if awaited else None, data) == "frame"


@pytest.mark.parametrize(("slots", "depth", "vocab"), given_.SHAPES, ids=str)
@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "greedy"])
def test_every_reason_of_a_shape_is_reached_by_faults(slots, depth, vocab, sampled):
    """The faults are not all of one kind: each check refuses some, in any shape."""
    profile, step, good = exchange(
        sampled=sampled, slots=slots, depth=depth, vocab=vocab
    )
    rng = random.Random(17)
    seen = Counter()
    wanted = set(REASONS) | {"accepted"}
    if not sampled:
        wanted -= {"trailer", "mask", "support", "probability", "mass"}
    for _ in range(4000):
        seen[agree(profile, step, given_.mutate_reply(rng, profile, good))] += 1
        if wanted <= set(seen):
            break
    assert wanted == set(seen)


@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "greedy"])
def test_one_changed_byte_is_refused_wherever_it_stands(sampled):
    """CRC not remade: the header's bytes are ``frame``, all others ``crc``."""
    profile, step, good = exchange(sampled=sampled)
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 0x10
        assert agree(profile, step, bytes(bad)) == ("frame" if at < 40 else "crc")


@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "greedy"])
def test_any_other_length_is_refused_as_frame(sampled):
    """Also lengths that another n would have, and an empty frame."""
    profile, step, good = exchange(sampled=sampled)
    for size in [*range(len(good)), len(good) + 1, len(good) + 4096]:
        cut = good[:size].ljust(size, b"\0")
        assert by_core(profile, step, cut)[0] == "frame"
    for size in (0, 39, 40, 63, 64, 67, 68, len(good) - 1, len(good) + 1):
        assert agree(profile, step, good[:size].ljust(size, b"\0")) == "frame"


def test_session_and_sequence_of_another_connection_are_refused_as_frame():
    """A replayed frame is not of this session or not at this number."""
    profile, step, good = exchange()
    assert agree(profile, step, good, SEQUENCE + 1) == "frame"
    assert agree(profile, step, good, SEQUENCE + 2**32) == "frame"
    stolen = bytearray(good)
    stolen[24:40] = bytes(16)
    assert agree(profile, step, bytes(stolen)) == "frame"


def faults(profile, good, reasons):
    """One frame with a fault for each reason, all at once."""
    frame = bytearray(good)
    packing, views = given_.reply_views(profile, frame)
    if "header" in reasons:
        frame[40] ^= 1
    if "echo" in reasons:
        views["generation"][0] += 1
    if "trailer" in reasons:
        frame[40 + packing.offset["trailer"]] ^= 1
    if "mask" in reasons:
        views["mask"][-1] ^= 1
    if "token" in reasons:
        views["confidence"][0, 1] = 2
    if "support" in reasons:
        views["ids"][-1, -1, 5] = -1
    if "probability" in reasons:
        views["q"][0, 0, 0] = -0.0
    if "mass" in reasons:
        views["q"][0, 1, 3] = 2
    given_.remake_crc(frame)
    if "crc" in reasons:
        frame[-1] ^= 1
    if "frame" in reasons:
        frame[4] = 2
    return bytes(frame)


@pytest.mark.parametrize("first", REASONS)
def test_the_earliest_check_names_the_error_whatever_else_is_wrong(first):
    """A fault of this check and of all later ones: this one is the reason."""
    profile, step, good = exchange(slots=1)
    later = REASONS[REASONS.index(first) :]
    assert agree(profile, step, faults(profile, good, later)) == first
    assert agree(profile, step, faults(profile, good, (first,))) == first


def test_checks_stand_in_the_order_of_the_page():
    """Order, statuses and incidents, as section 6 gives them."""
    order = "frame crc header echo trailer mask token support probability mass"
    assert tuple(order.split()) == tuple(reason for reason, _ in CHECKS)
    statuses = {3: "frame crc trailer", 4: "header echo"}
    statuses[5] = "mask token support probability mass"
    expected = {w: s for s, words in statuses.items() for w in words.split()}
    assert expected == {reason: int(s) for reason, s in REASON_STATUS.items()}
    assert set(statuses[5].split()) == INCIDENTS


@pytest.mark.parametrize("path", range(4))
def test_every_crc_path_of_the_core_judges_alike(path):
    """PCLMUL, wide or not, the ARM instructions, and the table."""
    before = lib.pp3_crc_path()
    if lib.pp3_crc_force(path) != 0:
        pytest.skip("this CPU has it not")
    try:
        rng = random.Random(path)
        for seed in range(60):
            profile, step, good = exchange(seed, failed=0.2)
            assert agree(profile, step, good) == "accepted"
            agree(profile, step, given_.mutate_reply(rng, profile, good))
            bad = bytearray(good)
            bad[rng.randrange(40, len(good))] ^= 1
            assert agree(profile, step, bytes(bad)) == "crc"
    finally:
        assert lib.pp3_crc_force(before) == 0


def test_a_step_that_was_never_checked_leads_nowhere_outside():
    """Slots and n beyond the layout: refused as ``header``, nothing is written."""
    profile, step, good = exchange()
    for at, value in ((8, 0), (8, 5), (8, 2**32 - 1), (88, 4), (88, 2**31)):
        bad = bytearray(step)
        bad[at : at + 4] = value.to_bytes(4, "little")
        assert by_core(profile, bytes(bad), good)[0] == "header"
        with pytest.raises(FrameError):
            check_reply(profile, bytes(bad), good, SESSION, SEQUENCE)


def test_what_is_accepted_is_one_whole_reply_even_while_the_source_changes():
    """Two replies take turns in one buffer; a page is either's, never a mixture."""
    profile, step, first = exchange(1)
    second = exchange(2)[2]
    pages = {scatter_reply(profile, step, frame) for frame in (first, second)}
    source = bytearray(first)
    stop = threading.Event()

    def alternate():
        while not stop.is_set():
            source[:] = second
            source[:] = first

    core, layout = ffi.from_buffer("uint8_t[]", source), c_layout(profile)
    page = bytearray(profile.layout_bytes)
    target = ffi.from_buffer("uint8_t[]", page)
    fault = ffi.new("struct pp3_fault *")
    writer = threading.Thread(target=alternate)
    writer.start()
    try:
        for _ in range(3000):
            refused = lib.pp3_accept(
                layout, step, core, len(source), SESSION, SEQUENCE, target, fault
            )
            assert refused or bytes(page) in pages
    finally:
        stop.set()
        writer.join()


@given_.examples(100)
@given(st.data())
def test_a_failed_page_is_the_same_from_the_tables_and_from_c(data):
    """Every status, any subset of slots; the C page knows its round as well."""
    profile = data.draw(given_.profiles())
    step = data.draw(given_.steps(profile))
    status = data.draw(st.integers(1, 8))
    layout = ReplyLayout(profile.max_slots, profile.depth, profile.is_sampled)
    template = bytearray(layout.failed(status, [row.slot for row in step.rows]))
    template[:8] = step.round.to_bytes(8, "little")
    page = Core(profile).fail_page(encode_step(profile, step), status)
    assert bytes(template) == page


def test_a_page_of_failed_rows_holds_what_an_absent_slot_holds():
    """Confidence of a failed row is not copied, whatever the worker sent."""
    profile, step, good = exchange(failed=1.0)
    page = Core(profile).accept(step, good, SESSION, SEQUENCE)
    views = ReplyLayout(4, 5, sampled=True).views(page)
    assert (views.status > 0).all()
    assert (views.tokens == -1).all()
    assert not views.confidence.any()
    assert not views.q.any()
    assert not views.mask.any()
    assert (views.ids == np.arange(32)).all()
    assert int(views.round) == 91


def test_core_raises_the_reason_and_the_place():
    """The one-line error of a refused reply, by row, draft and entry."""
    profile, step, good = exchange(slots=1)
    with pytest.raises(ReplyError, match=r"support: ids\[0, 4, 5\]"):
        Core(profile).accept(step, faults(profile, good, ("support",)), SESSION, 7)
    with pytest.raises(ReplyError, match=r"support: ids\[0, 4, 5\].*found -1 \(round"):
        check_reply(profile, step, faults(profile, good, ("support",)), SESSION, 7)
    with pytest.raises(FrameError, match="session"):
        Core(profile).accept(step, good, b"short", 7)
