"""``pp3shm bench``: it runs, checks what it carries, and names what it cannot measure.

No time is asserted anywhere.
"""

import importlib.util
import json
import os

import pytest
from commands import blocking, refused, run

from pp3shm._core import ffi, lib
from pp3shm.bench import exchange, floors
from pp3shm.bench.floors import KINDS
from pp3shm.bench.goals import GOALS, judged
from pp3shm.bench.measure import Found
from pp3shm.bench.plan import chosen, subjects
from pp3shm.bench.report import HEAD, cells, lines_of, row
from pp3shm.bench.transports import TRANSPORTS
from pp3shm.errors import ConfigError, Pp3Error, ReplyError

US = {"p50", "p90", "p99", "p99.9", "max"}
ONE_OF_EACH = [
    "floor spin",
    "floor relay unix",
    "floor pidfd",
    "ring hybrid, 4 ranks here",
    "tcp thread",
    "posix mq, checked",
    "iceoryx2",
]


def bench(folder, *words, **how):
    return run("bench", "--quick", "--out", str(folder), *words, **how)


# -- the command -----------------------------------------------------------------------


def test_list_names_every_subject_once():
    done = run("bench", "--list")
    assert (0, "") == (done.status, done.err)
    names = [one.name for one in subjects()]
    assert len(names) == len(set(names))
    lines = done.out.splitlines()[1:]
    assert len(names) == len(lines)
    for name, line in zip(names, lines, strict=True):
        assert line.startswith(name)


def test_a_subject_of_each_kind_runs_and_a_missing_peer_is_named(tmp_path):
    env = blocking(tmp_path, "iceoryx2")
    out = tmp_path / "out"
    done = bench(out, "--only", *ONE_OF_EACH, env=env)
    assert (0, "") == (done.status, done.err), done
    content = json.loads((out / "bench.json").read_bytes())
    assert {"machine", "subjects", "missing", "failed", "goals"} == set(content)
    assert {
        "cpu",
        "cores",
        "pinned",
        "kernel",
        "python",
        "packages",
        "date",
        "load",
    } <= (set(content["machine"]))
    gone = {"iceoryx2", "iceoryx2, checked"}
    if importlib.util.find_spec("posix_ipc") is None:
        gone.add("posix mq, checked")
    assert gone == set(content["missing"])
    assert "pip install iceoryx2" in content["missing"]["iceoryx2"]
    assert "iceoryx2: missing: not installed" in done.out
    assert {} == content["failed"]
    found = content["subjects"]
    assert {*ONE_OF_EACH} - gone == set(found)
    for name, one in found.items():
        assert US == set(one["us"]), name
        assert 0 < one["us"]["p50"] <= one["us"]["p99"] <= one["us"]["max"]
        assert one["rounds"] > 0
        assert one["to_floor"] > 0
        assert sorted(one["cdf_us"]) == one["cdf_us"]
        assert any(line.startswith(name) for line in done.out.splitlines())
    for name in ("tcp thread", "ring hybrid, 4 ranks here"):
        stages = ["taken", "sent", "received", "checked", "read"]
        assert stages == list(found[name]["stages_us"])
    assert {"engine", "worker"} == set(found["tcp thread"]["cpu"])
    assert found["tcp thread"]["per_second"] > 0
    tables = (out / "bench.md").read_text()
    for name in found:
        assert f"\n| {name} | " in tables
    picture = (out / "bench.png").read_bytes()
    assert picture.startswith(b"\x89PNG")


def test_one_core_is_enough(tmp_path):
    core = min(os.sched_getaffinity(0))
    done = bench(
        tmp_path,
        *("--no-picture", "--only", "floor spin", "ring futex"),
        prepare=lambda: os.sched_setaffinity(0, {core}),
    )
    assert (0, "") == (done.status, done.err)
    content = json.loads((tmp_path / "bench.json").read_bytes())
    assert [core, core] == content["machine"]["pinned"]
    assert ["floor spin", "ring futex"] == list(content["subjects"])


def test_without_matplotlib_one_line_says_how_to_get_it_before_anything_runs(tmp_path):
    out = tmp_path / "out"
    refused(
        *("bench", "--quick", "--only", "floor spin", "--out", str(out)),
        env=blocking(tmp_path, "matplotlib"),
        says=["matplotlib", "pip install 'pp3shm[bench]'"],
    )
    assert not out.exists()


def test_without_matplotlib_the_figures_are_there_all_the_same(tmp_path):
    env = blocking(tmp_path, "matplotlib")
    done = bench(tmp_path / "out", "--only", "floor tcp", "--no-picture", env=env)
    assert (0, "") == (done.status, done.err)
    found = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"bench.json", "bench.md"} == found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "carrier pigeon"], ["--only", "carrier pigeon", "--list"]),
        (["--only"], ["--only", "expected at least one"]),
        (["--repetitions", "0"], ["--repetitions", "1 or more"]),
        (["--repetitions", "two"], ["--repetitions", "'two'"]),
        (["--quick", "--repetitions", "3"], ["--quick"]),
        (["--out", "/dev/null/x", "--only", "floor spin"], ["/dev/null/x"]),
        (["--fast"], ["--fast"]),
    ],
)
def test_words_that_cannot_be_used_are_one_line(words, says):
    refused("bench", *words, says=says)


# -- the floor -------------------------------------------------------------------------


@pytest.mark.parametrize("spin_ns", [floors.SPIN_NS, floors.HYBRID_NS, 0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_floor_carries_every_byte_both_ways(kind, spin_ns):
    # run() compares the bytes of the last round on both sides.
    ns, result = floors.run(kind, 20, warm=3, spin_ns=spin_ns)
    assert 20 == len(ns)
    assert all(one > 0 for one in ns)
    assert result.wall_ns >= sum(ns)


@pytest.mark.parametrize("in_flight", [2, 8])
def test_the_floor_carries_them_with_several_under_way(in_flight):
    ns, result = floors.run("shm", 100, spin_ns=0, in_flight=in_flight)
    assert [] == ns
    assert result.wall_ns > 0


def test_other_bytes_than_those_sent_are_an_error(monkeypatch):
    class Lib:
        def __getattr__(self, name):
            return getattr(lib, name)

        def pp3_floor(self, *arguments):
            code = lib.pp3_floor(*arguments)
            ffi.buffer(arguments[-1])[7:8] = b"\0"  # it is 77
            return code

    monkeypatch.setattr(floors, "lib", Lib())
    with pytest.raises(Pp3Error, match="the bytes that were sent"):
        floors.run("shm", 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": 5},
        {"rounds": 0},
        {"in_flight": 0},
        {"in_flight": 9},
        {"in_flight": 2, "kind": lib.PP3_FLOOR_UNIX},
        {"request_bytes": 65537},
        {"reply_bytes": 65537},
    ],
    ids=str,
)
def test_a_plan_out_of_range_is_refused(wrong):
    right = {"rounds": 1, "in_flight": 1, "request_bytes": 8, "reply_bytes": 8}
    plan = ffi.new("struct pp3_floor_plan *", {**right, "core": [-1, -1], **wrong})
    buffers = [ffi.new("uint8_t[]", 65536) for _ in range(4)]
    ns, result = ffi.new("uint64_t[]", 1), ffi.new("struct pp3_floor_result *")
    code = lib.pp3_floor(plan, *buffers[:2], ns, result, *buffers[2:])
    assert -22 == code


def test_a_floor_that_pauses_counts_no_pause_as_a_round():
    ns, result = floors.run("shm", 3, spin_ns=0, pause_ns=2_000_000)
    assert result.wall_ns >= sum(ns) + 3 * 2_000_000


# -- the exchange ----------------------------------------------------------------------


def test_sizes_are_those_of_the_product():
    profile = exchange.profile_of()
    assert exchange.REQUEST_BYTES == profile.step_bytes == len(exchange.REQUEST)
    assert exchange.REPLY_BYTES == profile.layout_bytes == len(exchange.REPLY)
    assert exchange.FRAME_BYTES == len(exchange.frame())


def test_the_checks_of_a_peer_are_the_products():
    accept = exchange.Acceptor()
    accept(exchange.frame())
    spoiled = bytearray(exchange.frame())
    spoiled[1000] ^= 1
    with pytest.raises(ReplyError) as error:
        accept(spoiled)
    assert "crc" == error.value.reason


def test_every_peer_has_a_row_with_and_one_without_checks():
    names = {one.name for one in subjects()}
    for name in TRANSPORTS:
        assert {name, f"{name}, checked"} <= names


def test_a_name_chooses_all_that_begin_with_it():
    assert {"Pipe", "Pipe, checked"} == {one.name for one in chosen(["Pipe"])}
    assert len(subjects()) == len(chosen(None))
    with pytest.raises(ConfigError, match="--only"):
        chosen(["floor spin", "nothing"])


# -- the report ------------------------------------------------------------------------


def fake(p50_us, **more):
    found = Found([p50_us * 1000] * 10, **more)
    return row([(found, 2000.0), (found, 4000.0)])


def test_a_row_is_the_median_of_its_repetitions_beside_the_floor_of_the_same_time():
    one = fake(12, cpu={"asks": 0.5}, per_second=3000.0)
    assert 12.0 == one["us"]["p50"] == one["us"]["max"]
    assert 4.5 == one["to_floor"]
    assert [3.0, 6.0] == one["to_floor_range"]
    assert 20 == one["rounds"]
    assert ["x", "12.00", "12.00", "12.00", "12.00", "12.00", "4.50", "3.0"] == (
        cells("x", one)[:-1]
    )
    assert "asks 50" == cells("x", one)[-1]
    head, line = lines_of(HEAD, [cells("x", one)])
    assert len(head.split()) == len(HEAD) + 3  # "p50 us", "to floor", "CPU %"
    assert line.startswith("x ")


def test_goals_are_judged_where_their_rows_are_there_and_nowhere_else():
    assert [] == judged({})
    rows = {"ring spin": fake(12), "floor spin": fake(4), "Pipe": fake(60)}
    said = {line["figure"]: line for line in judged(rows)}
    assert len(said) < len(GOALS)
    first = said["round at the ring, spin: to the C floor"]
    assert (3.0, False) == (first["found"], first["met"])
    tail = said["p99 to p50 of that round"]
    assert (1.0, True) == (tail["found"], tail["met"])
    pipe = said["Pipe, unchecked, to that round"]
    assert (5.0, False) == (pipe["found"], pipe["met"])
