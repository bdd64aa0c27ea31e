"""A worker behind real sockets: engines served, several at once, and the end."""

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from worker_client import (
    GREEDY,
    LOCAL,
    SAMPLED,
    Client,
    opened,
    row,
    serves,
    wait_until,
)

from pp3shm.errors import ConfigError, LinkError
from pp3shm.layout.frames import (
    ErrorBody,
    Kind,
    encode_error,
)
from pp3shm.link import connect
from pp3shm.worker import Worker
from pp3shm.worker.drafters import UniformDrafter, seeded_table


@pytest.fixture
def worker():
    """A sampled worker on TCP."""
    with Worker(seeded_table, SAMPLED, [LOCAL]) as running:
        yield running


@pytest.mark.parametrize("kind", ["tcp", "unix", "abstract"])
@pytest.mark.parametrize("profile", [SAMPLED, GREEDY], ids=["sampled", "greedy"])
def test_engine_is_served_over_every_kind_of_address(tmp_path, kind, profile):
    address = {
        "tcp": LOCAL,
        "unix": f"unix://{tmp_path}/socket",
        "abstract": f"unix://@pp3shm-test-{secrets.token_hex(8)}",
    }[kind]
    with Worker(seeded_table, profile, [address]) as worker:
        assert serves(worker, profile)
    assert list(tmp_path.iterdir()) == []


def test_worker_answers_with_its_own_profile_and_the_same_session(worker):
    with Client(worker.addresses[0], SAMPLED) as engine:
        assert engine.hello() == SAMPLED


def test_sequences_of_both_directions_have_no_gaps(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        for round_ in range(5):
            engine.send_step(round_, row())
            header, _ = engine.receive()
            assert round_ + 1 == header.sequence
            assert (header.kind, header.flags) == (Kind.REPLY, 2)


def test_repeated_step_gets_the_same_body_under_the_next_sequence(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        engine.send_step(9, row())
        first = engine.receive()
        engine.send_step(9, row())
        second = engine.receive()
        assert first[1] == second[1]
        assert [first[0].sequence, second[0].sequence] == [1, 2]


def test_steps_sent_ahead_are_answered_in_their_order(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.reset()
        for round_ in range(30):
            engine.send_step(round_, row())
        assert list(range(30)) == [engine.reply().round for _ in range(30)]


def test_one_worker_serves_several_addresses_and_engines(tmp_path):
    addresses = [LOCAL, f"unix://{tmp_path}/a", LOCAL]
    with Worker(seeded_table, SAMPLED, addresses) as worker:
        engines = [opened(address, SAMPLED) for address in worker.addresses * 2]
        for engine in engines:
            engine.reset(prefix=(1, 2))
        rows = row(prefix=(1, 2)), row(slot=1)
        replies = [engine.step(1, *rows) for engine in engines]
        assert {(0, 1)} == {tuple(reply.status) for reply in replies}
        # The session is part of the key: no two of them share their noise.
        assert len({tuple(reply.tokens[0]) for reply in replies}) > 1
        assert len(engines) == worker.stats()["sessions_open"]
        for engine in engines:
            engine.sock.close()
        wait_until(lambda: worker.stats()["sessions_open"] == 0)


def test_two_engines_at_once_do_not_disturb_each_other(worker):
    def run(session):
        with opened(worker.addresses[0], SAMPLED, session=session) as engine:
            engine.reset()
            return [engine.step(r, row()).tokens.tolist() for r in range(1, 40)]

    def alone(session):
        wait_until(lambda: worker.stats()["sessions_open"] == 0)
        return run(session)

    sessions = [bytes(15) + b"\1", bytes(15) + b"\2"]
    expected = [alone(session) for session in sessions]
    wait_until(lambda: worker.stats()["sessions_open"] == 0)
    with ThreadPoolExecutor(2) as pool:
        assert expected == list(pool.map(run, sessions))


def test_orderly_engine_leaves_with_bye_and_hears_nothing_more(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.send(Kind.BYE, b"")
        assert engine.read(1) == b""
    wait_until(lambda: worker.stats()["sessions_open"] == 0)
    assert "connections_refused" not in worker.stats()


def test_engine_that_ends_with_an_error_is_heard(worker):
    with opened(worker.addresses[0], SAMPLED) as engine:
        engine.send(Kind.ERROR, encode_error(ErrorBody(5, "mass: \x1b[31mwrong", 7)))
        assert engine.read(1) == b""
    wait_until(lambda: worker.stats().get("errors_received") == 1)


def test_closing_worker_says_bye_to_all_and_is_gone():
    worker = Worker(seeded_table, SAMPLED, [LOCAL]).start()
    engines = [opened(worker.addresses[0], SAMPLED) for _ in range(3)]
    worker.close()
    worker.close()
    for engine in engines:
        header, body = engine.receive()
        assert (header.kind, header.sequence, body) == (Kind.BYE, 1, b"")
        assert engine.read(1) == b""
        engine.sock.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("pp3shm")]
    with pytest.raises(LinkError):
        connect(worker.addresses[0])


@pytest.mark.parametrize(
    "arguments",
    [
        {"listen": []},
        {"listen": ["tcp://0.0.0.0:0"]},
        {"listen": ["rdma://0.0.0.0:0"]},
        {"listen": [LOCAL, "nonsense"]},
        {"psk": b"short"},
        {"psk": b"x" * 65},
        {"max_sessions": 0},
        {"drafter": 3},
        {"drafter": object()},
    ],
    ids=str,
)
def test_worker_that_cannot_be_is_refused_and_leaves_nothing(arguments):
    given = {"drafter": UniformDrafter, "profile": SAMPLED, "listen": [LOCAL]}
    with pytest.raises(ConfigError):
        Worker(**(given | arguments)).start()
    assert not [t for t in threading.enumerate() if t.name.startswith("pp3shm")]


def test_address_in_use_leaves_the_others_free(tmp_path):
    with Worker(seeded_table, SAMPLED, [LOCAL]) as first:
        taken = first.addresses[0]
        with pytest.raises(LinkError, match="Address already in use"):
            Worker(seeded_table, SAMPLED, [f"unix://{tmp_path}/s", taken]).start()
    assert list(tmp_path.iterdir()) == []


def test_end_asked_for_before_the_start_is_not_forgotten():
    worker = Worker(seeded_table, SAMPLED, [LOCAL])
    worker.request_stop()
    worker.serve_forever()
    worker.serve_forever()
    with pytest.raises(ConfigError, match="not started yet"):
        worker.start()
