"""Drafters that raise or give garbage: rows fail, and nothing else."""

import logging
import sys

import numpy as np
import pytest
from drafting import (
    BASE,
    DEPTH,
    LOCAL,
    SAMPLED,
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
from worker_client import row

from pp3shm.errors import ConfigError
from pp3shm.proposal.markov import Markov
from pp3shm.worker import Worker


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
