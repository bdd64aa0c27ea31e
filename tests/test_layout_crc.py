"""CRC-32 of the core: every way of computing it gives what zlib gives."""

import random
import re
import zlib
from pathlib import Path

import pytest

from pp3shm._core import lib
from pp3shm.errors import ConfigError
from pp3shm.layout.core import crc32, force_crc_path

SOURCE = Path(__file__).parents[1] / "pp3shm" / "layout" / "fold.h"


@pytest.fixture(params=["table", "pclmul", "arm", "wide"])
def path(request):
    before = lib.pp3_crc_path()
    wanted = ["table", "pclmul", "arm", "wide"].index(request.param)
    try:
        force_crc_path(wanted)
    except ConfigError:
        pytest.skip("this CPU has it not")
    yield wanted
    force_crc_path(before)


def test_every_length_gives_the_crc_of_zlib(path):
    """Below, at and beyond a block of 128, in all alignments."""
    data = random.Random(5).randbytes(1500)
    assert lib.pp3_crc_path() == path
    for size in range(700):
        piece = data[size % 17 : size % 17 + size]
        assert zlib.crc32(piece) == crc32(piece)


def test_a_message_in_two_parts_gives_the_crc_of_the_whole(path):
    """Continued from any CRC, at any split."""
    data = random.Random(path).randbytes(600)
    for split in range(len(data)):
        assert zlib.crc32(data) == crc32(data[split:], crc32(data[:split]))


def test_the_fastest_way_of_this_cpu_was_chosen():
    """A CPU flag that the kernel shows decides which one that is."""
    flags = Path("/proc/cpuinfo").read_text(encoding="ascii").split()
    expected = 1 if "pclmulqdq" in flags else 2 if "crc32" in flags else 0
    if {"avx512f", "avx512dq", "vpclmulqdq"} <= set(flags):
        expected = 3
    assert expected == lib.pp3_crc_path()


@pytest.mark.parametrize("unknown", [-1, 4, 99])
def test_a_way_this_cpu_has_not_is_refused(unknown):
    """And the one in use stays."""
    before = lib.pp3_crc_path()
    with pytest.raises(ConfigError, match=f"found {unknown}"):
        force_crc_path(unknown)
    assert before == lib.pp3_crc_path()


def power(exponent):
    """x^exponent modulo the polynomial, reflected in 32 bits, moved left by one."""
    value = 1
    for _ in range(exponent):
        value <<= 1
        if value >> 32:
            value ^= 0x104C11DB7
    return int(f"{value:032b}"[::-1], 2) << 1


@pytest.mark.skipif(not SOURCE.exists(), reason="tests without the source beside them")
def test_the_folding_constants_are_the_powers_they_are_named_for():
    """X544 and its like, each from the polynomial alone."""
    found = re.findall(r"#define PP3_X(\d+) (0x[0-9a-f]+)LL", SOURCE.read_text())
    assert [int(exponent) for exponent, _ in found] == [1056, 992, 544, 480, 160, 96]
    for exponent, value in found:
        assert power(int(exponent)) == int(value, 16)
