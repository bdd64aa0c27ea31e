"""Sending and reading frames: cuts, deadlines, refusals before the body."""

import os
import secrets
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from link_ends import SOON, accepted, admit_all, frame, soon

from pp3shm.errors import FrameError, LinkError, PeerDied
from pp3shm.link import (
    FrameReader,
    SocketLink,
    connect,
    listen,
    read_exactly,
    wait_for,
)


@pytest.fixture
def pair():
    """Two connected links."""
    a, b = socket.socketpair()
    with SocketLink(a, "a") as left, SocketLink(b, "b") as right:
        yield left, right


def test_frame_larger_than_the_kernel_takes_arrives_whole(pair):
    left, right = pair
    body = secrets.token_bytes(4_000_000)
    with ThreadPoolExecutor(1) as pool:
        sending = pool.submit(left.send, frame(body), SOON)
        got = FrameReader(right, admit_all).read(soon(), SOON)
        sending.result()
    assert frame(body) == got


def test_peer_that_does_not_read_is_given_up(pair):
    left, _right = pair
    with pytest.raises(LinkError, match="expected to take a frame"):
        left.send(frame(bytes(4_000_000)), 0.05)


def test_peer_that_is_gone_is_named_when_reading_and_writing(pair):
    left, right = pair
    right.close()
    with pytest.raises(PeerDied):
        FrameReader(left, admit_all).read(soon(), SOON)
    with pytest.raises(PeerDied):
        left.send(frame())


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("step", [1, 7, 39, 40, 41, 144, 145, 200, 288, 720])
def test_reader_gives_frames_however_the_bytes_are_cut(pair, step, ahead):
    left, right = pair
    reader = FrameReader(right, admit_all)
    reader.ahead = ahead
    stream = b"".join(frame(sequence=number) for number in range(5))
    got = []
    for start in range(0, len(stream), step):
        left.send(stream[start : start + step])
        reader._drained = False  # as after a poll
        while (one := reader.feed()) is not None:
            got.append(bytes(one))
    assert [frame(sequence=number) for number in range(5)] == got
    assert reader.feed() is None
    assert reader.began is None


class Counted:
    """A link that counts what is asked of it."""

    def __init__(self, link):
        self.peer, self.fileno, self._link = link.peer, link.fileno, link
        self.looks = 0

    def recv_into(self, view):
        self.looks += 1
        return self._link.recv_into(view)


def test_a_reader_ahead_takes_a_frame_by_one_call(pair):
    left, right = pair
    link = Counted(right)
    reader = FrameReader(link, admit_all, capacity=1024)
    reader.ahead = True
    for number in range(5):
        left.send(frame(sequence=number))
        assert frame(sequence=number) == reader.read(soon(), SOON)
        assert number + 1 == link.looks
    left.send(frame(sequence=5) + frame(sequence=6) + frame(sequence=7)[:50])
    assert frame(sequence=5) == reader.read(soon(), SOON)
    assert frame(sequence=6) == reader.read(soon(), SOON)
    assert reader.feed() is None
    assert reader.began is not None
    left.send(frame(sequence=7)[50:])
    assert frame(sequence=7) == reader.read(soon(), SOON)
    assert reader.began is None


@pytest.mark.parametrize("size", range(1, 90))
def test_a_buffer_may_end_at_every_byte_of_a_frame(pair, size):
    left, right = pair
    reader = FrameReader(right, admit_all, capacity=256)
    reader.ahead = True
    frames = [frame(bytes(size), sequence=number) for number in range(12)]
    left.send(b"".join(frames))
    for one in frames:
        assert one == reader.read(soon(), SOON)


def test_a_longer_frame_behind_another_finds_room(pair):
    left, right = pair
    reader = FrameReader(right, admit_all, capacity=256)
    reader.ahead = True
    long = frame(secrets.token_bytes(5000), sequence=1)
    left.send(frame() + long)
    assert frame() == reader.read(soon(), SOON)
    assert long == reader.read(soon(), SOON)
    left.send(frame() + frame())
    assert frame() == reader.read(soon(), SOON)
    assert frame() == reader.read(soon(), SOON)


def test_reader_tells_when_a_frame_began(pair):
    left, right = pair
    reader = FrameReader(right, admit_all)
    assert reader.feed() is None
    assert reader.began is None
    left.send(frame()[:50])
    assert reader.feed() is None
    began = reader.began
    assert began is not None
    left.send(frame()[50:60])
    assert reader.feed() is None
    assert began == reader.began


def test_reader_keeps_its_buffer_for_frames_it_was_made_for(pair):
    left, right = pair
    reader = FrameReader(right, admit_all, capacity=len(frame()))
    view = reader._view
    for number in range(3):
        left.send(frame(sequence=number))
        assert reader.feed() is not None
    assert view is reader._view


def test_refused_header_leaves_its_body_unread_and_unallocated(pair):
    left, right = pair

    def admit(header):
        raise FrameError("frame.body_bytes", "less", header.body_bytes)

    reader = FrameReader(right, admit)
    size = len(reader._view)
    left.send(frame(bytes(5000)))
    with pytest.raises(FrameError, match="body_bytes"):
        reader.feed()
    assert size == len(reader._view)
    assert len(right._sock.recv(10000)) == 5004


@pytest.mark.parametrize(
    ("place", "at", "value"),
    [
        ("magic", 0, b"X"),
        ("version", 4, b"\2"),
        ("kind", 6, b"\x09"),
        ("flags", 8, b"\1"),
    ],
)
def test_header_that_is_none_is_refused_before_admission(pair, place, at, value):
    left, right = pair
    spoilt = bytearray(frame())
    spoilt[at : at + 1] = value
    left.send(spoilt)

    def admit(_header):
        pytest.fail("asked to admit a header that is none")

    with pytest.raises(FrameError, match=place):
        FrameReader(right, admit).feed()


@pytest.mark.parametrize("size", [0, 1, 39, 40, 60])
def test_half_a_frame_is_not_waited_for_beyond_its_deadline(pair, size):
    left, right = pair
    left.send(frame()[:size])
    idle = time.monotonic() + (0.05 if size == 0 else SOON)
    with pytest.raises(LinkError, match="expected a frame in time"):
        FrameReader(right, admit_all).read(idle, 0.05)


def test_trickling_does_not_stretch_a_deadline(pair):
    left, right = pair
    stop = threading.Event()

    def trickle():
        for byte in frame():
            if stop.wait(0.01):
                return
            left.send(bytes([byte]))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(trickle)
        with pytest.raises(LinkError, match="expected a frame in time"):
            FrameReader(right, admit_all).read(soon(), 0.2)
        stop.set()


def test_waiting_reader_is_woken_by_the_stop_descriptor(pair):
    _left, right = pair
    stop = os.eventfd(0)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(FrameReader(right, admit_all).read, soon(), SOON, stop)
        os.eventfd_write(stop, 1)
        assert reading.result(SOON) is None
    with pytest.raises(LinkError):
        read_exactly(right, 1, soon(), stop)
    os.close(stop)


def test_waiting_ends_when_another_thread_aborts(pair):
    _left, right = pair
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(FrameReader(right, admit_all).read, soon(), SOON)
        right.abort()
        with pytest.raises(PeerDied):
            reading.result(SOON)
    right.close()
    right.abort()


def test_last_words_arrive_although_the_peer_kept_talking():
    listener = listen("tcp://127.0.0.1:0")
    with connect(listener.address) as near, accepted(listener) as far:
        near.send(bytes(50_000))
        assert wait_for(far, select.POLLIN, soon())
        far.send(frame())
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(far.finish, SOON)
            assert frame() == FrameReader(near, admit_all).read(soon(), SOON)
            near.close()
            ending.result(SOON)
    listener.close()
