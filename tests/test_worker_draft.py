"""Drafts are what section 8 says, whatever kind of drafter they come from."""

import numpy as np
import pytest
from drafting import (
    BASE,
    DEPTH,
    GREEDY,
    ID,
    LEFT,
    RIGHT,
    SAMPLED,
    STANDARD,
    TABLE,
    Parallel,
    Scripted,
    V,
    ask,
    good,
    rows_of,
    session_of,
    statuses_when_well,
)
from worker_client import reset_body, row

from pp3shm.proposal.markov import Markov
from pp3shm.proposal.reference import biased, categorical, low_rank_bias, pick
from pp3shm.rng import Purpose, draw24, request_key
from pp3shm.worker.drafters import (
    ChainDrafter,
    TableDrafter,
    UniformDrafter,
)


def expected_chain(profile, round_, case, bias):
    """Section 8 by the readable reference alone."""
    key = request_key(Purpose.PROPOSAL, ID, case.slot, case.generation, case.user_seed)
    before, out = case.committed[-1] if case.committed else 5, []
    for depth in range(DEPTH):
        z = bias(before)
        near = categorical(z, 700, profile.rule or "floor-first")
        if case.sampled:
            at = pick(near.counts, draw24(key, round_, case.position + depth))
            before = int(near.ids[at])
            out.append((before, near.ids.tolist(), near.q.tolist()))
        else:
            before = int(np.argmax(z))
            out.append((before, list(range(32)), [0.0] * 32))
    return out


def dense(token):
    return biased(BASE, TABLE[token])


def low_rank(token):
    return biased(BASE, low_rank_bias(LEFT[token], RIGHT))


DRAFTERS = {
    "by depth": (TableDrafter(np.stack([dense(t) for t in range(V)])), dense),
    "table": (ChainDrafter(BASE, TABLE, DEPTH), dense),
    "low rank": (Parallel(Markov.low_rank(LEFT, RIGHT)), low_rank),
    "function": (Parallel(Markov.function(lambda t: TABLE[t])), dense),
    "no bias": (Parallel(), lambda _token: BASE),
    "nothing known": (UniformDrafter(SAMPLED), lambda _token: np.zeros_like(BASE)),
}


@pytest.mark.parametrize("name", DRAFTERS)
@pytest.mark.parametrize("profile", [SAMPLED, STANDARD], ids=["floor", "standard"])
@pytest.mark.parametrize(
    "modes", [[True], [True] * 4, [True, False, False, True], [False] * 2], ids=str
)
def test_drafts_are_those_of_the_readable_reference(name, profile, modes):
    drafter, bias = DRAFTERS[name]
    session = session_of(drafter, profile)
    rows = rows_of(*modes)
    for round_ in (1, 2**33 + 5):
        reply = ask(session, round_, *rows)
        assert [0] * len(modes) == reply.status.tolist()
        for index, case in enumerate(rows):
            got = [
                (
                    int(reply.tokens[index, depth]),
                    reply.ids[index, depth].tolist(),
                    reply.q[index, depth].tolist(),
                )
                for depth in range(DEPTH)
            ]
            assert expected_chain(profile, round_, case, bias) == got


@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_session_drafts_the_same_as_greedy_rows(name):
    drafter, bias = DRAFTERS[name]
    rows = rows_of(False, False, False)
    reply = ask(session_of(drafter, GREEDY), 3, *rows)
    for index, case in enumerate(rows):
        chain = expected_chain(GREEDY, 3, case, bias)
        assert [token for token, _, _ in chain] == reply.tokens[index].tolist()
    mixed = ask(session_of(drafter), 3, *rows)
    assert reply.tokens.tolist() == mixed.tokens.tolist()
    assert reply.confidence.tolist() == mixed.confidence.tolist()


@pytest.mark.parametrize(
    ("values", "token"),
    [
        ({7: 3.0, 9: 3.0}, 7),
        ({0: -0.0, 1: 0.0}, 0),
        ({40: np.nextafter(np.float32(1), np.float32(2)), 3: 1.0}, 40),
        ({11: -1e30}, 11),
        ({47: np.float32(3e38)}, 47),
    ],
    ids=str,
)
def test_greedy_draft_is_the_largest_logit_and_ties_go_to_the_lower_id(values, token):
    z = np.full(V, -np.inf, np.float32)
    for at, value in values.items():
        z[at] = value
    session = session_of(Scripted(lambda rows, _d: np.tile(z, (len(rows), 1))), GREEDY)
    reply = ask(session, 1, row(prefix=(0, 5), sampled=False))
    assert [token] * DEPTH == reply.tokens[0].tolist()


def test_first_token_of_all_has_no_bias():
    session = session_of(ChainDrafter(BASE, TABLE, DEPTH), GREEDY)
    session.reset(reset_body(GREEDY, 0, 2))
    reply = ask(session, 1, row(generation=2, sampled=False))
    assert int(np.argmax(BASE)) == reply.tokens[0, 0]
    assert int(np.argmax(dense(int(np.argmax(BASE))))) == reply.tokens[0, 1]


def test_strided_logits_are_read_as_what_they_are():
    wide = np.repeat(BASE, 2)
    session = session_of(Scripted(lambda r, _d: np.tile(wide, (len(r), 1))[:, ::2]))
    straight = session_of(Scripted(good))
    rows = rows_of(True, False)
    assert (
        ask(straight, 1, *rows).tokens.tolist()
        == ask(session, 1, *rows).tokens.tolist()
    )


def test_drawn_tokens_shown_to_a_drafter_cannot_be_changed():
    def vandal(rows, drafted):
        if drafted.size:
            drafted[:] = 0
        return good(rows)

    session = session_of(Scripted(vandal))
    assert ask(session, 1, *rows_of(True)).status.tolist() == [6]
    assert statuses_when_well(session) == [0]
