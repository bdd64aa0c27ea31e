"""Checks 9 and 10: what is a q, and what adds up, by the reference and by C."""

import ctypes
import os
import sys

import numpy as np
import pytest
import strategies as given_
from judges import SEQUENCE, SESSION, agree, by_core, exchange

from pp3shm.layout.core import Core
from pp3shm.layout.frames import MASS, Status
from pp3shm.layout.reply import ReplyLayout


def with_q(row_q, token=None, ids=None):
    """A frame of one row and depth 4 whose first draft has this q."""
    profile, step, good = exchange(slots=1, depth=4)
    frame = bytearray(good)
    _, views = given_.reply_views(profile, frame)
    if ids is not None:
        views["ids"][0, 0] = ids
    views["q"][0, 0] = row_q
    views["tokens"][0, 0] = views["ids"][0, 0, 0] if token is None else token
    return profile, step, bytes(given_.remake_crc(frame))


def test_every_class_of_float_is_judged_alike_as_a_q():
    """All exponents and signs, with mantissas of one bit, all bits and none."""
    for high in range(2**9):
        for low in (0, 1, 2, 0x400000, 0x3FFFFF, 0x7FFFFF, 0x100, 0x7FFF00):
            q = np.zeros(32, np.uint32)
            q[0] = (high << 23) | low
            agree(*with_q(q.view(np.float32)))


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (1.0, "accepted"), (np.nextafter(np.float32(1), np.float32(0)), "mass"),
        (np.nextafter(np.float32(1), np.float32(2)), "mass"), (2.0, "mass"),
        (2.0**40, "mass"), (2.0**64, "mass"), (3e38, "mass"), (0.0, "mass"),
        (-0.0, "probability"), (-1.0, "probability"), (float("nan"), "probability"),
        (float("inf"), "probability"), (2.0**-25, "probability"),
        (1e-45, "probability"), (2.0**-24, "mass"),
    ],
)  # fmt: skip
def test_a_lone_q_is_accepted_only_where_it_is_one(entry, reason):
    """Huge values are compared as floats; tiny ones are no counts."""
    q = np.zeros(32, np.float32)
    q[0] = entry
    assert agree(*with_q(q)) == reason


def test_counts_that_would_wrap_around_are_mass():
    """32 counts whose sum is M modulo 2^32 or 2^64, or modulo what a float holds."""
    q = np.full(32, 1 / 32, np.float32)
    q[0] += 2**8  # 2^32 counts too many
    assert agree(*with_q(q)) == "mass"
    q[0] = 1 / 32 + 2.0**17
    assert agree(*with_q(q)) == "mass"


def test_a_token_without_mass_or_off_the_support_is_mass():
    """It cannot have been drawn from this q."""
    q = np.zeros(32, np.float32)
    q[1] = 1
    assert agree(*with_q(q)) == "mass"
    assert agree(*with_q(np.roll(q, -1), token=40, ids=np.arange(32))) == "mass"
    assert agree(*with_q(np.roll(q, -1), token=0, ids=np.arange(32))) == "accepted"


@pytest.mark.skipif(
    os.uname().machine != "x86_64" or sys.platform != "linux",
    reason="sets the MXCSR word of x86-64 through glibc's fenv_t",
)
def test_a_denormal_q_is_refused_where_the_thread_flushes_denormals():
    """torch.set_flush_denormal leaves a process in this state; 1e-40 is no count."""
    libm = ctypes.CDLL("libm.so.6")
    saved, flushing = (ctypes.create_string_buffer(32) for _ in range(2))
    q = np.zeros(32, np.float32)
    q[0], q[1:2].view(np.uint32)[0] = 1, 0x00010000
    profile, step, frame = with_q(q)
    assert libm.fegetenv(saved) == 0
    flushing[:] = saved[:]
    mxcsr = int.from_bytes(flushing[28:32], "little") | 0x8040  # FTZ, DAZ
    flushing[28:32] = mxcsr.to_bytes(4, "little")
    try:
        assert libm.fesetenv(flushing) == 0
        found = by_core(profile, step, frame)
    finally:
        assert libm.fesetenv(saved) == 0
    assert found[:2] == ("probability", "q[0, 0, 1]")


def test_the_full_mass_on_one_id_is_a_proposal_like_any_other():
    """A count of M: q = 1.0 is the largest there is."""
    q = np.zeros(32, np.float32)
    q[31] = 1.0
    profile, step, frame = with_q(q, token=131, ids=np.arange(100, 132))
    assert agree(profile, step, frame) == "accepted"
    page = Core(profile).accept(step, frame, SESSION, SEQUENCE)
    views = ReplyLayout(1, 4, sampled=True).views(page)
    assert views.q[0, 0].sum() * MASS == MASS
    assert views.status[0] == Status.OK
