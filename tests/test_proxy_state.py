"""The session's state machine: what it allows, when it dials again."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pp3shm.errors import SessionError
from pp3shm.proxy.state import (
    FIRST_RETRY_NS,
    LAST_RETRY_NS,
    TRANSITIONS,
    Event,
    Session,
    SessionState,
    step,
)

PAIRS = list(itertools.product(SessionState, Event))


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_pair_is_a_transition_or_an_error_that_names_it(state, event):
    session = Session(state)
    if (state, event) in TRANSITIONS:
        assert TRANSITIONS[state, event] is step(session, event, 0).state
        return
    with pytest.raises(SessionError) as caught:
        step(session, event, 0)
    assert (state, event) == (caught.value.state, caught.value.event)


@pytest.mark.parametrize("state", [s for s in SessionState if s.name != "CLOSED"])
def test_stop_closes_from_every_state(state):
    assert step(Session(state), Event.STOP, 5).state is SessionState.CLOSED


def test_closed_is_left_by_nothing():
    assert not [event for state, event in TRANSITIONS if state is SessionState.CLOSED]


@pytest.mark.parametrize("state", [SessionState.INCIDENT, SessionState.REFUSED])
def test_only_the_user_leaves_an_incident_or_a_refusal(state):
    leaving = {event for found, event in TRANSITIONS if found is state}
    assert {Event.REOPEN, Event.STOP} == leaving


def test_a_session_that_answered_and_is_lost_is_dialled_at_once():
    session = step(Session(SessionState.READY), Event.ANSWERED, 1)
    assert step(session, Event.LOST, 100).retry_at_ns == 100


@given(st.integers(1, 80))
def test_the_pause_doubles_with_each_failure_up_to_a_second(times):
    session, pauses = Session(), []
    for now in range(times):
        session = step(session, Event.DIAL, now)
        session = step(session, Event.UNREACHABLE, now)
        pauses.append(session.retry_at_ns - now)
    expected = [min(FIRST_RETRY_NS << i, LAST_RETRY_NS) for i in range(times)]
    assert expected == pauses


def test_a_peer_that_greets_and_never_answers_earns_no_storm_of_dials():
    session, now = Session(), 0
    pauses = []
    for _ in range(10):
        for event in (Event.DIAL, Event.ACCEPTED, Event.LOST):
            session = step(session, event, now)
        pauses.append(session.retry_at_ns - now)
    assert sorted(pauses) == pauses
    assert pauses[-1] == LAST_RETRY_NS


def test_a_good_reply_forgives_all_failures():
    session = Session(SessionState.READY, failures=7, retry_at_ns=3)
    assert step(session, Event.ANSWERED, 9).failures == 0
