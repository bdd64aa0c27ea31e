"""The map of a round: stamps, flight recorders, histograms, ``pp3shm trace``."""

import json
import os
import random
import struct
import sys
import time
from collections import defaultdict

import numpy as np
import pytest
from commands import refused, run
from interpreter import needs_stages
from rank_process_client import RankProcess

from pp3shm import Engine, Profile, Rank, Row, Worker
from pp3shm._core import lib
from pp3shm.errors import ConfigError, RegionError
from pp3shm.layout.validate import REASONS
from pp3shm.ring import flights
from pp3shm.ring.clock import Clock
from pp3shm.ring.flights import ROOM, epoch_of, place_of, read_flights
from pp3shm.stages import STAGES, STEPS, WHOLE, rounds_of
from pp3shm.tracing import ENGINE, PROXIES, RANKS, ROUNDS, WORKERS, read_rounds
from pp3shm.worker.drafters import TableDrafter

VOCAB, LINK = 64, 5.0
SEED = 20261130
NOWHERE = "tcp://127.0.0.1:1"
PROFILE = Profile.sampled(vocab=VOCAB, depth=5, max_slots=2, max_positions=4096)
RECORD = lib.PP3_FLIGHT_BYTES


@pytest.fixture(scope="module")
def worker():
    table = np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32)
    with Worker(TableDrafter(table), PROFILE, ["tcp://127.0.0.1:0"]) as serving:
        yield serving


@pytest.fixture(params=["thread", "process"])
def engine(request, worker):
    with Engine.create(
        PROFILE, worker=worker.addresses[0], proxy=request.param
    ) as made:
        made.reset(0, [1])
        yield made


def rounds(engine, number, **how):
    """So many rounds of slot 0; their tickets."""
    tickets = []
    for _ in range(number):
        tickets.append(engine.step([Row(0)], timeout_s=LINK))
        with engine.reply(tickets[-1], **how) as reply:
            assert reply.failed is None
    return tickets


def of_rank(engine, rank=0):
    region = engine._ring.region
    return rounds_of(read_flights(region.fd_of("acks"), region.shape, rank))


def scribble(engine, rank, at, data):
    """Write into a recorder, as any rank of the region could."""
    region = engine._ring.region
    os.pwrite(region.fd_of("acks"), data, place_of(region.shape, rank) + at)


def read_back(path):
    """The events of a file, after what every trace has to hold.

    Slices nest on each track, in the order of their times; each arrow begins, goes on
    and ends, inside of a slice; every track has a name.
    """
    whole = json.loads(path.read_text(encoding="ascii"))
    assert {"traceEvents", "displayTimeUnit", "otherData"} == set(whole)
    open_, last = defaultdict(list), defaultdict(float)
    flows, named = defaultdict(list), set()
    for event in whole["traceEvents"]:
        track = event["pid"], event["tid"]
        assert all(isinstance(number, int) for number in track)
        if event["ph"] == "M":
            assert event["args"]
            named.add((event["name"], *track))
            continue
        assert isinstance(event["ts"], float)
        assert event["ts"] >= last[track] >= 0
        last[track] = event["ts"]
        assert ("process_name", track[0], 0) in named
        assert ("thread_name", *track) in named
        if event["ph"] == "B":
            assert event["name"]
            open_[track].append(event)
        elif event["ph"] == "E":
            assert open_[track].pop()["ts"] <= event["ts"]
        else:
            assert open_[track]
            assert "e" == event["bp"]
            flows[event["id"]].append(event["ph"])
    assert not any(open_.values())
    for arrows in flows.values():
        assert ("s", "f") == (arrows[0], arrows[-1])
        assert {"t"} >= set(arrows[1:-1])
    return [event for event in whole["traceEvents"] if event["ph"] == "B"]


# -- stamps ----------------------------------------------------------------------------


def test_every_round_is_recorded_with_all_its_stages_in_order(engine):
    """Once each, within the time that the engine itself saw pass."""
    begin = time.monotonic_ns()
    tickets = rounds(engine, 20)
    found = of_rank(engine)
    assert tickets == found.ticket.tolist()
    assert (0, 0) == (found.lost, found.unlikely)
    assert found.times.shape == (20, len(STAGES))
    assert (np.diff(found.times, axis=1) >= 0).all()
    assert found.times.min() >= begin - 1000
    assert found.times.max() <= time.monotonic_ns() + 1000
    assert ["OK", "ABSENT"] == found.rows_of(0)
    assert {"OK"} == {found.status_of(at) for at in range(20)}
    assert found.accepted.all()
    assert (os.getpid(), {1}) == (found.pid, set(found.owner.tolist()))


def test_a_replys_own_trace_is_what_is_recorded(engine):
    ticket = engine.step([Row(0)], timeout_s=LINK)
    with engine.reply(ticket) as reply:
        pass
    told = np.array(reply.trace)
    recorded = of_rank(engine).times[0, 1:5]
    assert np.abs(np.diff(told) - np.diff(recorded)).max() <= 10  # a rate of its own
    assert np.abs(told - recorded).max() < 100_000


def test_a_clock_turns_stamps_into_the_time_of_the_day():
    """Each is between the times before and behind it."""
    begin, stamp, end = time.monotonic_ns(), lib.pp3_tick(), time.monotonic_ns()
    clock = Clock()
    assert begin - 1000 <= clock.ns_of(stamp) <= end + 1000
    stamps = np.array([stamp, 0, 2**64 - 1], np.uint64)
    assert clock.ns_of(stamp) == clock.ns_of_all(stamps)[0]


@pytest.mark.parametrize("read", [True, False])
def test_a_failed_round_is_recorded_with_its_reason_and_how_far_it_came(read):
    """Also one that was let go without a look."""
    with Engine.create(PROFILE, worker=NOWHERE, connect_timeout_s=0) as engine:
        engine.reset(0, [1])
        ticket = engine.step([Row(0)], timeout_s=LINK)
        engine.cancel(ticket, told=True)
        if read:
            with engine.reply(ticket) as reply:
                assert reply.failed is not None
        else:
            engine.release(ticket)
        found = of_rank(engine)
        assert ([ticket], "REFUSED") == (found.ticket.tolist(), found.status_of(0))
        assert not found.accepted.any()
        known = {STAGES[i] for i in np.flatnonzero(found.times[0] >= 0)}
        assert known >= {"submit", "released"} | ({"seen"} if read else set())
        assert not known & {"validated", "sent", "received"}
        assert bool(found.rows_of(0)) == read


@pytest.mark.parametrize("entries", [1, 2])
def test_a_failed_round_never_shows_stamps_of_a_round_long_ago(entries):
    """Laps are told apart by 8 bits: some round after 256 of them has the same."""
    table = np.zeros((VOCAB, VOCAB), np.float32)
    with Worker(TableDrafter(table), PROFILE, ["tcp://127.0.0.1:0"]) as serving:
        engine = Engine.create(PROFILE, worker=serving.addresses[0], rounds=entries)
        engine.reset(0, [1])
        rounds(engine, entries)
    with engine:
        for _ in range(300 * entries):
            ticket = engine.step([Row(0)], timeout_s=LINK)
            with engine.reply(ticket) as reply:
                assert reply.failed is not None or reply.status[0] != 0
                assert reply.trace is None
        assert engine.stats()["records_unusable"] == 0


def test_a_release_again_records_nothing_more(engine):
    (ticket,) = rounds(engine, 1)
    engine.release(ticket)
    assert [ticket] == of_rank(engine).ticket.tolist()


# -- readers ---------------------------------------------------------------------------


def test_a_record_that_is_being_written_or_changes_is_not_taken(engine, monkeypatch):
    """An odd mark, another record's, and words that differ between the two looks."""
    tickets = rounds(engine, 4)
    head = lib.PP3_RECORDER_HEAD
    scribble(engine, 0, head, struct.pack("<Q", 1))
    scribble(engine, 0, head + RECORD, struct.pack("<Q", 4 + 2 * ROOM))
    looks = []
    read = flights._read

    def torn(fd, size, at):
        data = read(fd, size, at)
        looks.append(at)
        if len(looks) == 4:  # head, records, the empty second piece, and again
            return data[: 2 * RECORD + 8] + b"\xff" + data[2 * RECORD + 9 :]
        return data

    monkeypatch.setattr(flights, "_read", torn)
    found = of_rank(engine)
    assert tickets[3:] == found.ticket.tolist()
    assert 3 == found.lost
    monkeypatch.undo()
    assert tickets[2:] == of_rank(engine).ticket.tolist()


@needs_stages
def test_a_hostile_recorder_harms_no_reader(worker, tmp_path):
    """Any bytes in it: numbers come of them, or nothing."""
    print(SEED)
    luck = random.Random(SEED)
    path = tmp_path / "trace.json"
    with Engine.create(PROFILE, worker=worker.addresses[0], proxy="thread") as engine:
        engine.reset(0, [1])
        rounds(engine, 5)
        for _ in range(60):
            for _ in range(8):
                at = luck.choice([0, 8 * luck.randrange(16), 8 * luck.randrange(900)])
                word = luck.choice(
                    [0, 5, ROOM, 2**63, 2**64 - 1, luck.getrandbits(64), 12]
                )
                scribble(engine, 0, at, struct.pack("<Q", word))
            stats = engine.stats()
            assert all(number >= 0 for number in stats.values())
            assert all(one["max"] >= one["p50"] for one in stats.stages.values())
            engine.trace(path)
            read_back(path)


def test_records_that_cannot_be_true_are_left_out_and_counted(engine):
    """A time to come, one before the round before it, no ticket."""
    tickets = rounds(engine, 4)
    at = lib.PP3_RECORDER_HEAD
    scribble(engine, 0, at + 16, struct.pack("<Q", lib.pp3_tick() + 2**50))
    scribble(engine, 0, at + RECORD + 8, struct.pack("<Q", 0))
    # taken 2**31 ticks before the release, so long before the submit
    scribble(engine, 0, at + 2 * RECORD + 28, struct.pack("<I", 2**31))
    found = of_rank(engine)
    assert (tickets[3:], 3) == (found.ticket.tolist(), found.unlikely)


def test_a_segment_that_is_too_short_is_an_error_that_names_it(engine, tmp_path):
    short = tmp_path / "acks"
    short.write_bytes(bytes(130))
    shape = engine._ring.region.shape
    with short.open("rb") as file, pytest.raises(RegionError, match="segment acks"):
        read_flights(file.fileno(), shape, 0)
    with short.open("rb") as file, pytest.raises(RegionError, match="segment acks"):
        epoch_of(file.fileno(), shape)


# -- statistics ------------------------------------------------------------------------


@needs_stages
def test_stats_give_every_stage_by_name(engine):
    """Their sum is the whole, and they go on from call to call."""
    before = engine.stats()
    assert 0 == before.stages[WHOLE]["count"]
    rounds(engine, 30)
    engine.stats()
    rounds(engine, 10)
    stats = engine.stats()
    assert (*STEPS, WHOLE) == tuple(stats.stages)
    for name, stage in stats.stages.items():
        assert 40 == stage["count"], name
        names = ("p50", "p90", "p99", "p99.9", "max")
        values = [stage[one] for one in names]
        assert sorted(values) == values
        assert {*names, "count"} == set(stage)
    times = of_rank(engine).times
    whole = times[:, -1] - times[:, 0]
    assert stats.stages[WHOLE]["max"] == pytest.approx(whole.max(), rel=2e-3)
    middle = np.sort(whole)[19]
    assert stats.stages[WHOLE]["p50"] == pytest.approx(middle, rel=2e-3)
    recorded = {"rounds_recorded": 40, "records_missed": 0, "records_unusable": 0}
    assert recorded == {name: stats[name] for name in recorded}
    # counted behind publish, so that the last may not be yet
    assert stats["replies"] in {39, 40}


@needs_stages
def test_stats_say_how_many_rounds_they_missed(worker):
    """Those that were written over since the last call."""
    with Engine.create(PROFILE, worker=worker.addresses[0], proxy="thread") as engine:
        engine.reset(0, [1])
        rounds(engine, 3)
        engine.stats()
        rounds(engine, ROOM + 7)
        stats = engine.stats()
        assert (ROOM + 10, 7) == (stats["rounds_recorded"], stats["records_missed"])
        assert ROOM + 3 == stats.stages[WHOLE]["count"]


@needs_stages
def test_failed_rounds_are_in_no_histogram(engine):
    rounds(engine, 2)
    ticket = engine.step([Row(0)], timeout_s=0.0)
    with engine.reply(ticket) as reply:
        failed = (
            reply.failed is not None
        )  # a busy proxy may be faster than its deadline
    stats = engine.stats()
    assert 3 - failed == stats.stages[WHOLE]["count"]
    assert failed == stats["rounds_expired"]


def test_every_reason_has_a_counter(engine):
    """The ten of the wire page, and the counters of before."""
    stats = engine.stats()
    assert isinstance(stats, dict)
    assert dict.fromkeys(REASONS, 0) == {name: stats[name] for name in REASONS}
    assert 10 == len(REASONS)


def test_without_the_package_there_are_counters_alone(worker, monkeypatch):
    monkeypatch.setitem(sys.modules, "hdrh.histogram", None)
    monkeypatch.setitem(sys.modules, "pyhdrh", None)  # nobody asks for the GIL
    with Engine.create(PROFILE, worker=worker.addresses[0]) as engine:
        engine.reset(0, [1])
        rounds(engine, 2)
        stats = engine.stats()
        assert (2, 2) == (stats["steps_sent"], stats["rounds_recorded"])
        with pytest.raises(ConfigError, match="pp3shm\\[stats\\]"):
            _ = stats.stages


# -- the trace -------------------------------------------------------------------------


def test_a_trace_shows_each_round_with_its_steps_at_their_parties(engine, tmp_path):
    """One slice a round with seven in it, and each of these where it belongs."""
    path = tmp_path / "trace.json"
    tickets = rounds(engine, 12)
    assert 10 == engine.trace(path, last=10)
    events = read_back(path)
    whole = [e for e in events if e["pid"] == ROUNDS and e["name"].startswith("round ")]
    assert [f"round {ticket}" for ticket in tickets[2:]] == [e["name"] for e in whole]
    assert {"OK"} == {event["args"]["status"] for event in whole}
    parties = defaultdict(list)
    for event in events:
        if event["pid"] != ROUNDS and event["args"]["ticket"] == tickets[-1]:
            parties[event["pid"]].append(event["name"])
    assert {
        ENGINE: [STEPS[0]],
        PROXIES + 1: [STEPS[1], STEPS[3], STEPS[4]],
        WORKERS + 1: [STEPS[2]],
        RANKS: [STEPS[5], STEPS[6]],
    } == dict(parties)
    inner = [e["name"] for e in events if e["pid"] == ROUNDS and e["name"] in STEPS]
    assert [*STEPS] * 10 == inner
    with pytest.raises(ConfigError, match="last"):
        engine.trace(path, last=0)


def test_ranks_have_tracks_of_their_own_and_a_dead_ones_stays(
    worker, tmp_path, eventually
):
    """Here and in another process; what they saw of a round is joined by its ticket."""
    path = tmp_path / "trace.json"
    with (
        Engine.create(PROFILE, worker=worker.addresses[0], ranks=3) as engine,
        RankProcess(engine.invitation, PROFILE) as there,
        Rank.attach(engine.invitation, PROFILE) as here,
    ):
        engine.wait_ranks(30)
        engine.reset(0, [1])
        for _ in range(5):
            ticket = engine.step([Row(0)], timeout_s=LINK)
            there.tell(ticket)
            there.answer()
            for rank in (here, engine):
                with rank.reply(ticket) as reply:
                    assert reply.failed is None
        region = engine._ring.region
        acks = region.fd_of("acks")
        eventually(lambda: len(of_rank(engine, there.rank).ticket) == 5, "its releases")
        there.kill()
        found = read_rounds(acks, region.shape)
        assert [there.process.pid, os.getpid()] == [found[there.rank].pid, found[0].pid]
        assert [0, 1, 2] == [one.rank for one in found]
        assert 5 == engine.trace(path)
        events = read_back(path)
        lanes = {event["pid"] for event in events}
        assert {ROUNDS, ENGINE, RANKS, RANKS + 1, RANKS + 2} <= lanes
        for rank in range(3):
            names = [e["name"] for e in events if e["pid"] == RANKS + rank]
            assert [STEPS[5], STEPS[6]] * 5 == names
        whole = [e for e in events if e["name"].startswith("round ")]
        assert {(0, 1, 2)} == {tuple(event["args"]["ranks"]) for event in whole}


def test_a_failed_round_is_shown_with_its_reason(tmp_path):
    path = tmp_path / "trace.json"
    with Engine.create(PROFILE, worker=NOWHERE, connect_timeout_s=0) as engine:
        engine.reset(0, [1])
        ticket = engine.step([Row(0)], timeout_s=LINK)
        engine.cancel(ticket, told=True)
        with engine.reply(ticket):
            pass
        assert 1 == engine.trace(path)
        shown = read_back(path)[0]
        assert (f"round {ticket}", "REFUSED") == (shown["name"], shown["cat"])


def test_an_engine_without_rounds_has_an_empty_trace(tmp_path):
    path = tmp_path / "trace.json"
    with Engine.create(PROFILE, worker=NOWHERE, connect_timeout_s=0) as engine:
        assert 0 == engine.trace(path)
        assert [] == read_back(path)


# -- pp3shm trace ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memfd", "posix"])
def test_the_command_reads_another_process_and_disturbs_nobody(worker, tmp_path, kind):
    """By the process; by the region's name; of several regions of one process."""
    path = tmp_path / "trace.json"
    with (
        Engine.create(
            PROFILE, worker=worker.addresses[0], kind=kind, ranks=2
        ) as engine,
        Engine.create(PROFILE, worker=NOWHERE, connect_timeout_s=0),
        RankProcess(engine.invitation, PROFILE) as rank,
    ):
        engine.wait_ranks(30)
        engine.reset(0, [1])
        tickets = []
        for _ in range(9):
            tickets.append(engine.step([Row(0)], timeout_s=LINK))
            rank.tell(tickets[-1])
            rank.answer()
            engine.release(tickets[-1])
        region = engine._ring.region
        inode = os.fstat(region.fd_of("control")).st_ino
        name = f"memfd:{inode}" if kind == "memfd" else region.prefix.lstrip("/")
        done = run("trace", str(path), "--region", name, "--last", "7")
        assert (0, "") == (done.status, done.err)
        assert f"7 rounds of {name}, 2 ranks" in done.out
        shown = [e["name"] for e in read_back(path) if e["pid"] == ROUNDS]
        assert [f"round {t}" for t in tickets[2:]] == [
            name for name in shown if name.startswith("round ")
        ]
        words = ["trace", str(path), "--pid"]
        refused(*words, str(os.getpid()), says=["pid: expected a region", name])
        done = run(*words, str(rank.process.pid))
        assert (0, True) == (done.status, f"9 rounds of {name}" in done.out)
        assert 9 == engine.stats()["rounds_recorded"]


def test_the_command_says_what_it_cannot_do(worker, tmp_path):
    """Words, regions, and files."""
    path = str(tmp_path / "trace.json")
    refused("trace", says=["FILE"])
    refused("trace", path, "--last", "0", says=["--last", "1 or more"])
    refused("trace", path, "--region", "x", says=["pp3shm ls", "'x'"])
    refused("trace", path, "--pid", "1", says=["pid", "pp3shm ls"])
    with Engine.create(PROFILE, worker=worker.addresses[0]) as engine:
        inode = os.fstat(engine._ring.region.fd_of("control")).st_ino
        mine = ["--region", f"memfd:{inode}"]
        refused("trace", str(tmp_path / "no" / "x"), *mine, says=["No such file"])
