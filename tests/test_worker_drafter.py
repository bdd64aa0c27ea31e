"""Drafters that work, and drafters that do not: what the engine gets of either."""

import logging
import sys
import threading

import numpy as np
import pytest
from worker_client import Client, opened, reset_body, row, step_body

from pp3shm.errors import ConfigError
from pp3shm.layout.frames import (
    ErrorBody,
    Kind,
    Status,
    decode_reply,
    encode_error,
    encode_frame,
    profile_flags,
)
from pp3shm.layout.profile import Profile
from pp3shm.layout.validate import check_reply
from pp3shm.proposal.markov import Markov
from pp3shm.proposal.reference import biased, categorical, low_rank_bias, pick
from pp3shm.rng import Purpose, draw24, request_key
from pp3shm.worker import Worker
from pp3shm.worker.counts import Counts
from pp3shm.worker.drafter import DrafterFault, DrafterSource
from pp3shm.worker.drafters import (
    ChainDrafter,
    TableDrafter,
    UniformDrafter,
    seeded_table,
)
from pp3shm.worker.session import Session

ID = bytes(range(16))
V = 48
DEPTH = 4
SHAPE = {"vocab": V, "depth": DEPTH, "max_slots": 4, "max_positions": 40}
SAMPLED = Profile.sampled(**SHAPE)
GREEDY = Profile.greedy(**SHAPE)
STANDARD = Profile.sampled(**SHAPE, semantic="top32/tau.7/dyadic24-standard-v1")
LOCAL = "tcp://127.0.0.1:0"
RNG = np.random.default_rng(20261130)
BASE = RNG.normal(0, 2, V).astype(np.float32)
TABLE = RNG.normal(0, 2, (V, V)).astype(np.float32)
LEFT = RNG.normal(0, 1, (V, 3)).astype(np.float32)
RIGHT = RNG.normal(0, 1, (3, V)).astype(np.float32)


def session_of(drafter, profile=SAMPLED):
    counts = Counts()
    session = Session(profile, ID, DrafterSource(drafter, profile, counts), counts)
    session.counts = counts
    for slot in range(4):
        session.reset(reset_body(profile, slot, 1, (slot, 5)))
    return session


def rows_of(*modes):
    """Four rows with a prefix; True is sampled."""
    return [
        row(slot=slot, prefix=(slot, 5), sampled=mode, user_seed=slot - 2)
        for slot, mode in enumerate(modes)
    ]


def ask(session, round_, *rows):
    """A reply, which all ten checks of section 6 let through."""
    profile = session.profile
    step = step_body(profile, round_, *rows)
    body = session.step(step)
    frame = encode_frame(Kind.REPLY, ID, 0, body, profile_flags(profile))
    check_reply(profile, step, frame, ID, 0)
    return decode_reply(profile, body)


class Scripted:
    """Gives what a function of (rows, drafted) says."""

    def __init__(self, function):
        self._function = function
        self.seen = []

    def logits(self, rows, drafted):
        """What the function says."""
        self.seen.append([r.slot for r in rows])
        return self._function(rows, drafted)


def good(rows, _drafted=None):
    return np.tile(BASE, (len(rows), 1))


# ---- drafts are what section 8 says ----


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


class Parallel:
    """Base logits, and whatever Markov head."""

    def __init__(self, markov=None):
        if markov is not None:
            self.markov = markov

    def parallel_logits(self, rows):
        """The same everywhere."""
        return np.broadcast_to(BASE, (len(rows), DEPTH, V))


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


# ---- drafters that fail ----


def statuses_when_well(session):
    session._guard._drafter._function = good
    return ask(session, 99, row(prefix=(0, 5))).status.tolist()


def raising(error):
    def function(_rows, _drafted):
        raise error

    return function


GARBAGE = {
    "an exception": raising(RuntimeError("CUDA error: out of memory\n  at line 3")),
    "MemoryError": raising(MemoryError()),
    "SystemExit": raising(SystemExit(3)),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "GeneratorExit": raising(GeneratorExit()),
    "RecursionError": raising(RecursionError()),
    "None": lambda _r, _d: None,
    "a list": lambda r, _d: good(r).tolist(),
    "a scalar": lambda _r, _d: np.float32(1),
    "float64": lambda r, _d: good(r).astype(np.float64),
    "float16": lambda r, _d: good(r).astype(np.float16),
    "int32": lambda r, _d: good(r).astype(np.int32),
    "big-endian": lambda r, _d: good(r).astype(">f4"),
    "objects": lambda r, _d: good(r).astype(object),
    "one axis": lambda r, _d: good(r)[0],
    "three axes": lambda r, _d: good(r)[None],
    "a row too many": lambda r, _d: np.vstack([good(r), good(r)]),
    "a row too few": lambda r, _d: good(r)[1:],
    "a column too few": lambda r, _d: good(r)[:, 1:],
    "nothing": lambda _r, _d: np.empty((0, 0), np.float32),
}


@pytest.mark.parametrize("name", GARBAGE)
@pytest.mark.parametrize("depth", [0, 2])
def test_drafter_that_raises_or_gives_garbage_fails_the_rows_alone(name, depth, caplog):
    def function(rows, drafted):
        if drafted.shape[1] == depth:
            return GARBAGE[name](rows, drafted)
        return good(rows)

    session = session_of(Scripted(function))
    with caplog.at_level(logging.ERROR, "pp3shm.worker"):
        reply = ask(session, 1, *rows_of(True, False), row(slot=2, generation=0))
    assert reply.status.tolist() == [6, 6, 4]
    assert caplog.records
    assert session.counts.snapshot()["drafter_faults"] == 1
    assert statuses_when_well(session) == [0]


@pytest.mark.parametrize("name", GARBAGE)
def test_parallel_drafter_that_fails_fails_the_rows_alone(name):
    class Failing(Parallel):
        def parallel_logits(self, rows):
            """Garbage, with a depth where it has two axes."""
            given = GARBAGE[name](rows, None)
            if isinstance(given, np.ndarray) and given.ndim == 2:
                return np.repeat(given[:, None], DEPTH, axis=1)
            return given

    session = session_of(Failing())
    assert ask(session, 1, *rows_of(True, False)).status.tolist() == [6, 6]


BAD_ROWS = {
    "NaN": {3: np.nan},
    "+inf": {3: np.inf},
    "NaN among masked": dict.fromkeys(range(V), -np.inf) | {47: np.nan},
    "all masked": dict.fromkeys(range(V), -np.inf),
}


@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("depth", range(DEPTH))
@pytest.mark.parametrize("modes", [(True, True), (False, True), (True, False)], ids=str)
def test_logits_that_no_proposal_can_be_made_of_fail_their_row_alone(
    name, depth, modes
):
    def function(rows, drafted):
        z = good(rows)
        for at, r in enumerate(rows):
            if r.slot == 0 and drafted.shape[1] == depth:
                for where, value in BAD_ROWS[name].items():
                    z[at, where] = value
        return z

    drafter = Scripted(function)
    rows = rows_of(*modes)
    reply = ask(session_of(drafter), 1, *rows)
    alone = ask(session_of(Scripted(good)), 1, rows[1])
    assert reply.status.tolist() == [6, 0]
    assert alone.tokens[0].tolist() == reply.tokens[1].tolist()
    # The failed row is not asked about again.
    assert [[0, 1]] * (depth + 1) + [[1]] * (DEPTH - depth - 1) == drafter.seen


@pytest.mark.parametrize("name", BAD_ROWS)
@pytest.mark.parametrize("depth", range(DEPTH))
def test_parallel_logits_that_cannot_be_used_fail_their_row_alone(name, depth):
    class Spoilt(Parallel):
        def parallel_logits(self, rows):
            """One bad position in slots 0 and 3."""
            z = super().parallel_logits(rows).copy()
            for at, r in enumerate(rows):
                if r.slot in (0, 3):
                    for where, value in BAD_ROWS[name].items():
                        z[at, depth, where] = value
            return z

    session = session_of(Spoilt(Markov.table(TABLE)))
    reply = ask(session, 1, *rows_of(True, True, False, False))
    assert reply.status.tolist() == [6, 0, 0, 6]


def test_when_all_rows_have_failed_the_drafter_is_left_alone():
    drafter = Scripted(lambda rows, _d: np.full((len(rows), V), np.nan, np.float32))
    assert ask(session_of(drafter), 1, *rows_of(True, False)).status.tolist() == [6, 6]
    assert drafter.seen == [[0, 1]]


BIASES = {
    "raises": lambda _t: 1 / 0,
    "exits": lambda _t: sys.exit(1),
    "nothing": lambda _t: None,
    "too short": lambda _t: BASE[1:],
    "float64": lambda _t: BASE.astype(np.float64),
}


@pytest.mark.parametrize("name", BIASES)
@pytest.mark.parametrize("mode", [True, False])
def test_markov_head_that_fails_fails_the_rows_alone(name, mode):
    session = session_of(Parallel(Markov.function(BIASES[name])))
    assert ask(session, 1, *rows_of(mode)).status.tolist() == [6]


@pytest.mark.parametrize("mode", [True, False])
def test_markov_head_that_gives_nan_fails_the_row(mode):
    bad = Markov.function(lambda _t: np.full(V, np.nan, np.float32))
    session = session_of(Parallel(bad))
    assert ask(session, 1, *rows_of(mode)).status.tolist() == [6]


@pytest.mark.parametrize(
    "markov", [Markov.table(np.zeros((9, 9), np.float32)), TABLE, "head"], ids=type
)
def test_unusable_markov_head_is_refused_before_anybody_connects(markov):
    with pytest.raises(ConfigError, match=r"drafter\.markov"):
        Worker(Parallel(markov), SAMPLED, [LOCAL])


# ---- reset, end, factories ----


class Telling(TableDrafter):
    """Raises where it is told to."""

    def __init__(self, fails=()):
        super().__init__(TABLE)
        self.fails = set(fails)

    def reset(self, _session, _slot, generation, _prefix):
        """Raise for some generations."""
        if generation in self.fails:
            raise RuntimeError("no memory for another request")

    def end(self, _session):
        """Raise."""
        raise RuntimeError("already gone")


def test_request_that_the_drafter_could_not_take_fails_until_it_is_restated():
    drafter = Telling(fails=[2])
    session = session_of(drafter)
    session.reset(reset_body(SAMPLED, 0, 2))
    rows = row(generation=2), row(slot=1, prefix=(1, 5))
    assert ask(session, 1, *rows).status.tolist() == [6, 0]
    stale = row(generation=1), row(slot=1, prefix=(1, 5))
    assert ask(session, 2, *stale).status.tolist() == [4, 0]
    drafter.fails.clear()
    session.reset(reset_body(SAMPLED, 0, 2))
    assert ask(session, 3, *rows).status.tolist() == [0, 0]


@pytest.mark.parametrize("how", ["bye", "error", "fault", "vanishes", "worker closes"])
def test_drafter_hears_of_the_end_however_it_came(how):
    ended = []

    class Hearing(TableDrafter):
        def end(self, session):
            """Note."""
            ended.append(session)

    with (
        Worker(Hearing(TABLE), SAMPLED, [LOCAL]) as worker,
        opened(worker.addresses[0], SAMPLED) as engine,
    ):
        engine.reset()
        engine.step(1, row())
        if how == "bye":
            engine.send(Kind.BYE, b"")
        elif how == "error":
            engine.send(Kind.ERROR, encode_error(ErrorBody(5, "no")))
        elif how == "fault":
            engine.send(Kind.BYE, b"", sequence=0)
        elif how == "worker closes":
            worker.request_stop()
        if how != "vanishes":
            engine.read(10_000)
    assert ended == [engine.session]


def test_drafter_that_raises_at_the_end_ends_nothing_else():
    with Worker(Telling(), SAMPLED, [LOCAL]) as worker:
        for _ in range(3):
            with opened(worker.addresses[0], SAMPLED) as engine:
                engine.send(Kind.BYE, b"")
                assert engine.read(1) == b""
        with opened(worker.addresses[0], SAMPLED) as engine:
            engine.reset()
            assert engine.step(1, row()).status.tolist() == [0]


def test_each_session_gets_a_drafter_of_its_own_from_a_factory():
    made = []

    def factory(profile):
        made.append((profile, seeded_table(profile)))
        return made[-1][1]

    with Worker(factory, SAMPLED, [LOCAL]) as worker:
        engines = [opened(worker.addresses[0], SAMPLED) for _ in range(2)]
        for engine in engines:
            engine.reset()
            engine.step(1, row())
            engine.sock.close()
    assert [profile for profile, _ in made] == [SAMPLED, SAMPLED]
    assert made[0][1] is not made[1][1]


@pytest.mark.parametrize(
    "factory",
    [
        lambda _profile: None,
        lambda _profile: object(),
        lambda _profile: Parallel("head"),
        lambda _profile: 1 / 0,
        lambda: seeded_table(SAMPLED),
    ],
)
def test_factory_that_fails_is_an_error_to_that_engine(factory):
    with Worker(factory, SAMPLED, [LOCAL]) as worker:
        for _ in range(2):
            with Client(worker.addresses[0], SAMPLED) as engine:
                engine.send(Kind.HELLO, SAMPLED.canonical_json())
                assert engine.receive_error().code == Status.WORKER_ERROR
        assert worker.stats()["drafter_faults"] == 2
        assert worker.stats()["sessions_open"] == 0


def test_source_with_a_failing_factory_raises_its_own_error():
    source = DrafterSource(lambda _profile: 1 / 0, SAMPLED, Counts())
    with pytest.raises(DrafterFault):
        source.open()


def test_drafter_is_called_by_one_session_at_a_time():
    inside = []
    most = []

    def function(rows, _drafted):
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.001)
        inside.pop()
        return good(rows)

    def run(address):
        with opened(address, SAMPLED) as engine:
            engine.reset()
            for round_ in range(5):
                engine.step(round_, row())

    with Worker(Scripted(function), SAMPLED, [LOCAL]) as worker:
        threads = [
            threading.Thread(target=run, args=worker.addresses) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(most) == 4 * 5 * DEPTH
    assert set(most) == {1}


def test_worker_closes_although_its_drafter_does_not_come_back():
    release, entered = threading.Event(), threading.Event()

    def stuck(rows, _drafted):
        entered.set()
        release.wait(30)
        return good(rows)

    worker = Worker(Scripted(stuck), SAMPLED, [LOCAL]).start()
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        engine.send_step(1, row())
        assert entered.wait(30)
        worker.close(timeout_s=0.05)
        release.set()
        assert engine.reply().status.tolist() == [0]
        assert engine.receive()[0].kind == Kind.BYE
    worker.close()


def test_statistics_tell_what_became_of_rows():
    with (
        Worker(Scripted(good), SAMPLED, [LOCAL]) as worker,
        opened(worker.addresses[0], SAMPLED) as engine,
    ):
        engine.reset()
        engine.step(1, row(), row(slot=1))
        engine.step(2, row(generation=0), row(slot=2))
        engine.step(2, row(generation=0), row(slot=2))
        counted = worker.stats()
    assert counted == {
        "connections": 1,
        "repeats": 1,
        "resets": 1,
        "rows_absent": 2,
        "rows_ok": 1,
        "rows_stale": 1,
        "sessions": 1,
        "sessions_open": 1,
        "steps": 2,
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: TableDrafter(TABLE[1:]),
        lambda: TableDrafter(BASE),
        lambda: TableDrafter(TABLE.astype(np.float64)),
        lambda: ChainDrafter(BASE[1:], TABLE, 4),
        lambda: ChainDrafter(BASE, TABLE[1:], 4),
        lambda: seeded_table(Profile.greedy(**(SHAPE | {"vocab": 5000}))),
    ],
)
def test_built_in_drafters_refuse_what_they_cannot_use(make):
    with pytest.raises(ConfigError):
        make()


def test_seeded_table_is_the_same_everywhere():
    table = seeded_table(SAMPLED)._table
    # By hand: (7919 * row + 104729 * column + 12345) % 65521 % 512 / 64.
    found = [table[0, 0], table[0, 1], table[1, 0]]
    assert found == [57 / 64, 353 / 64, 296 / 64]
