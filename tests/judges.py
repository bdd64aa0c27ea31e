"""Both judges of a REPLY, the reference and the C core, side by side."""

import ctypes
import mmap

import strategies as given_

from pp3shm._core import ffi, lib
from pp3shm.errors import ReplyError
from pp3shm.layout.core import c_layout, fault_place
from pp3shm.layout.frames import Step, StepRow, encode_step
from pp3shm.layout.validate import REASONS, check_reply, scatter_reply

SESSION, SEQUENCE = given_.SESSION, 7


class Guarded:
    """Memory that ends where the next byte may not be touched."""

    def __init__(self, size=2**16):
        self.size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        self._map = mmap.mmap(-1, self.size + mmap.PAGESIZE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        end = ctypes.c_void_p(self._start + self.size)
        assert libc.mprotect(end, mmap.PAGESIZE, 0) == 0

    def last(self, size):
        """A C pointer to the last ``size`` bytes before the guard."""
        return ffi.cast("uint8_t *", self._start + self.size - size)


FRAME_ROOM, PAGE_ROOM = Guarded(), Guarded()


def by_reference(profile, step, frame, sequence=SEQUENCE):
    """(reason, place, page) of the readable reference."""
    try:
        check_reply(profile, step, frame, SESSION, sequence)
    except ReplyError as error:
        return error.reason, error.place, None
    return "accepted", "", scatter_reply(profile, step, frame)


def by_core(profile, step, frame, sequence=SEQUENCE):
    """The same of C; nothing may be touched after the frame or after the page."""
    room = FRAME_ROOM.last(len(frame))
    ffi.memmove(room, frame, len(frame))
    page = PAGE_ROOM.last(profile.layout_bytes)
    fault = ffi.new("struct pp3_fault *")
    layout = c_layout(profile)
    asked = ffi.NULL if step is None else step
    reason = lib.pp3_accept(
        layout, asked, room, len(frame), SESSION, sequence, page, fault
    )
    assert reason == fault.reason
    if reason:
        return REASONS[reason - 1], fault_place(fault), None
    return "accepted", "", bytes(ffi.buffer(page, profile.layout_bytes))


def indices(place):
    """``[2, 0, 7]`` of a place in an array; the rest is not C's to name."""
    return place[place.index("[") :] if "[" in place else ""


def agree(profile, step, frame, sequence=SEQUENCE):
    """Asserts that both judge alike, and gives the reason."""
    wanted = by_reference(profile, step, frame, sequence)
    found = by_core(profile, step, frame, sequence)
    assert (wanted[0], indices(wanted[1])) == (found[0], indices(found[1]))
    assert wanted[2] == found[2]
    return wanted[0]


def exchange(seed=0, *, sampled=True, slots=4, depth=5, vocab=129280, failed=0.0):
    """A profile, a STEP of every slot, and an acceptable REPLY."""
    profile = given_.make_profile(slots, depth, vocab, sampled=sampled)
    rows = tuple(
        StepRow(slot, 3 + slot, 40, 9, (1, 2), 5, sampled and slot != 1)
        for slot in reversed(range(slots))
    )
    step = Step(91, rows)
    reply = given_.make_reply(profile, step, seed, failed)
    return profile, encode_step(profile, step), given_.reply_frame(profile, reply)
