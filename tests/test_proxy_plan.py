"""A proxy's plan and its last words, read from bytes that are none."""

import json
import types

import pytest
import strategies as given_
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.errors import ConfigError, Pp3Error, ProfileError
from pp3shm.proxy.board import Board
from pp3shm.proxy.plan import ProxyPlan

PLAN = ProxyPlan(given_.make_profile(), "unix://@w", bytes(16))
PARTS = json.loads(PLAN.to_bytes())
INFINITE, NAN = float("inf"), float("nan")
ODD = (None, True, -1, 2**80, 1.5, INFINITE, NAN, "", "x", [], {}, "\ud800")


def test_a_plan_is_read_as_it_was_written():
    """Key, times and profile too."""
    assert ProxyPlan.from_bytes(PLAN.to_bytes()) == PLAN


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_any_part_that_is_something_else_is_a_plan_or_a_named_error(name, value):
    """Infinity as an integer, a time that is no number, a profile that is no text."""
    data = json.dumps({**PARTS, name: value}).encode()
    try:
        found = ProxyPlan.from_bytes(data)
    except (ConfigError, ProfileError):
        return
    assert 0 <= found.dial_timeout_s < float("inf")
    assert found.waiting.spin_ns >= 0


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"a":' * 100_000, b"", b"\xff"])
def test_bytes_that_are_no_plan_are_refused_however_deep(data):
    """Absurd nesting is no crash of the proxy's process."""
    with pytest.raises(ConfigError):
        ProxyPlan.from_bytes(data)


@given_.examples(200)
@given(st.binary(max_size=300))
def test_noise_is_no_plan(data):
    """Whatever it is."""
    with pytest.raises((ConfigError, ProfileError)):
        ProxyPlan.from_bytes(data)


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"1", b'"x"', b"[]", b'{"kind": "ProfileError"}', b"\xff"]
)
def test_a_note_that_is_none_is_told_as_such(data):
    """It stands in the region, where anything may stand."""
    found = Board(types.SimpleNamespace(note_read=lambda: data)).noted()
    assert type(found) is Pp3Error
