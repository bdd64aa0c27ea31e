"""One definition: tables, NumPy views and C structs have the same sizes and offsets."""

import numpy as np
import pytest
import strategies as given_

from pp3shm._core import ffi, lib
from pp3shm.errors import FrameError
from pp3shm.layout import tables
from pp3shm.layout.core import c_layout
from pp3shm.layout.frames import Status
from pp3shm.layout.reply import ReplyLayout

STRUCTS = {
    "pp3_frame_head": tables.FRAME,
    "pp3_body_head": tables.STEP_HEADER,
    "pp3_step_draw": tables.STEP_DRAW,
    "pp3_step_row": tables.STEP_ROW,
    "pp3_trailer": tables.TRAILER,
}


@pytest.mark.parametrize("name", STRUCTS)
def test_a_c_struct_has_the_fields_of_its_table(name):
    """Names, order, offsets and size, as the compiler laid them."""
    record, struct = STRUCTS[name], ffi.typeof(f"struct {name}")
    assert dict(record.offset) == {key: part.offset for key, part in struct.fields}
    assert record.size == ffi.sizeof(struct) == record.dtype.itemsize
    ends = {f.name: np.dtype(record.dtype[f.name]).itemsize for f in record.fields}
    assert ends == {key: ffi.sizeof(part.type) for key, part in struct.fields}


@pytest.mark.parametrize(("slots", "depth", "vocab"), given_.SHAPES, ids=str)
@pytest.mark.parametrize("sampled", [True, False], ids=["sampled", "greedy"])
def test_c_finds_every_array_where_the_tables_put_it(slots, depth, vocab, sampled):
    """STEP and REPLY bodies of every n, and the page."""
    profile = given_.make_profile(slots, depth, vocab, sampled=sampled, context=5)
    layout = c_layout(profile)
    assert lib.pp3_layout_ok(layout)
    packings = [(lib.pp3_page_at(layout), tables.page_packing(slots, depth, sampled))]
    for n in range(1, slots + 1):
        step = tables.step_packing(n, depth, sampled, 5)
        packings += [
            (lib.pp3_step_at(layout, n), step),
            (lib.pp3_reply_at(layout, n), tables.reply_packing(n, depth, sampled)),
        ]
    for found, packing in packings:
        for name in set(packing.offset) - {"header", "round"}:  # these stand at 0
            assert packing.offset[name] == getattr(found, name)


def test_a_page_has_5320_bytes_and_a_greedy_one_184():
    """B4 depth 5; round and status are its head."""
    assert ReplyLayout(4, 5, sampled=True).size == 5320
    assert ReplyLayout(4, 5, sampled=False).size == 184
    assert ReplyLayout(4, 5, sampled=True).head_bytes == 8 + 16


def test_views_share_the_page_s_memory():
    """Writing one changes the bytes at its offset, and no other."""
    layout = ReplyLayout(3, 4, sampled=True)
    page = bytearray(layout.size)
    views = layout.views(page)
    for name, view in views._asdict().items():
        view[...] = 1
        assert page[layout.offset[name] : layout.offset[name] + 4] != bytes(4)
        view[...] = 0
        assert not any(page)
    assert views.q.shape == (3, 4, 32)
    assert views.round.shape == ()


def test_views_of_a_short_or_read_only_buffer_are_refused_or_read_only():
    """A page is never viewed beyond its end."""
    layout = ReplyLayout(4, 5, sampled=True)
    with pytest.raises(FrameError, match=r"^page\.bytes: expected at least 5320"):
        layout.views(bytes(5319))
    assert not layout.views(bytes(5320)).q.flags.writeable
    assert layout.views(bytes(65536)).q.shape == (4, 5, 32)


def test_a_greedy_page_has_no_mask_ids_or_q():
    """None, not empty arrays: nobody takes them for a distribution."""
    views = ReplyLayout(4, 5, sampled=False).views(bytes(184))
    assert (views.mask, views.ids, views.q) == (None, None, None)


def test_a_failed_template_names_a_failure_and_slots_of_the_layout():
    """OK is no failure; a slot out of range is refused."""
    layout = ReplyLayout(2, 4, sampled=True)
    page = layout.views(layout.failed(Status.TIMEOUT, [1]))
    assert page.status.tolist() == [Status.ABSENT, Status.TIMEOUT]
    assert (page.ids == np.arange(32)).all()
    for status, slots in ((0, []), (9, []), (2, [2]), (2, [-1])):
        with pytest.raises(FrameError, match=r"^page\.(status|slot): "):
            layout.failed(status, slots)


@pytest.mark.parametrize(("slots", "depth"), [(0, 5), (5, 5), (4, 3), (4, 6)])
def test_a_layout_out_of_range_is_refused_by_tables_and_c(slots, depth):
    """1..4 slots, depth 4 or 5."""
    with pytest.raises(FrameError, match=r"^layout\."):
        ReplyLayout(slots, depth, sampled=True)
    layout = c_layout(given_.make_profile())
    layout.max_slots, layout.depth = slots, depth
    assert not lib.pp3_layout_ok(layout)


@pytest.mark.parametrize("field", ["vocab", "sampled", "context_bytes"])
def test_c_takes_no_layout_that_no_profile_gives(field):
    """Its sizes would not be bounded: every call refuses it."""
    layout = c_layout(given_.make_profile())
    setattr(layout, field, 2**32 - 1)
    size = ffi.new("uint32_t *")
    assert not lib.pp3_layout_ok(layout)
    assert lib.pp3_step_check(layout, bytes(4000), 4000, size) < 0
    fault = ffi.new("struct pp3_fault *")
    session, page = bytes(16), bytearray(65536)
    target = ffi.from_buffer("uint8_t[]", page)
    data = bytes(6000)
    code = lib.pp3_accept(layout, ffi.NULL, data, 6000, session, 0, target, fault)
    assert code == fault.reason == 1


def test_the_round_a_frame_answers_can_be_read_before_it_is_judged():
    """To find its STEP by; a frame too short has none."""
    round_ = ffi.new("uint64_t *")
    frame = bytes(40) + (2**63 + 5).to_bytes(8, "little")
    assert lib.pp3_reply_round(frame, 48, round_) == 0
    assert round_[0] == 2**63 + 5
    assert lib.pp3_reply_round(frame, 47, round_) < 0
