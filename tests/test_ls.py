"""``pp3shm ls`` and ``pp3shm rm``: what there is, who holds it, and what is dead."""

import errno
import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from commands import refused, run
from hypothesis import given, settings
from hypothesis import strategies as st
from rank_process_client import RankProcess

from pp3shm import Engine, Profile, Row
from pp3shm._core import lib
from pp3shm.errors import ConfigError, RegionError
from pp3shm.listing import as_json, as_lines
from pp3shm.ring import segments
from pp3shm.ring.record import HEADER_BYTES, SEGMENTS, Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd, ProxyEnd
from pp3shm.ring.survey import ALIVE, DEAD, UNKNOWN, Found, dead, remove, survey

SHAPE = Shape(
    rounds=4,
    page_bytes=4096,
    request_bytes=256,
    failed_bytes=64,
    head_bytes=24,
    slots=2,
    max_positions=100,
)
FAR = 10**18
NOWHERE = "tcp://127.0.0.1:1"
SEED = 20261201


def _end(kind: str) -> EngineEnd:
    region = Region.create(SHAPE, layout_id=bytes(32), kind=kind)
    return EngineEnd(region, bytes(64 * len(CAUSES)))


def _mine(end: EngineEnd) -> Found:
    """What the survey says of this region."""
    control = os.fstat(end.region._segments.fds["control"])
    prefix = end.region.prefix
    name = f"memfd:{control.st_ino}" if prefix is None else prefix.lstrip("/")
    return next(one for one in survey().regions if one.name == name)


@pytest.fixture
def shm(tmp_path, monkeypatch):
    """A folder in the place of /dev/shm, with nobody else's names."""
    monkeypatch.setattr(segments, "SHM", tmp_path)
    return tmp_path


def _names(shm: Path, number: int, *which: str) -> str:
    prefix = f"pp3shm-{number:032x}"
    for segment in which or SEGMENTS:
        (shm / f"{prefix}-{segment}").touch()
    return prefix


# -- what is there ---------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memfd", "posix"])
def test_a_region_is_listed_with_its_sizes_rounds_and_quarantine(kind):
    """As the engine itself knows them."""
    with _end(kind) as end, ProxyEnd.thread(end) as proxy:
        for _ in range(6):
            end.step(bytes(8), FAR)
            proxy.take()
            end.resolve(end.behind().ticket, 2)
            end.release(end.behind().ticket)
        end.step(bytes(8), FAR)
        found = _mine(end)
        assert (kind, ALIVE, None) == (found.kind, found.life, found.fault)
        assert sum(end.region.shape.bytes) == found.bytes
        assert (4, 1, 7) == (found.rounds, found.open, found.newest)
        assert (8, end.stats().quarantined) == (found.pages, found.quarantined)
        assert found.quarantined > 0
        assert [(os.getpid(), "engine")] == [(p.pid, p.role) for p in found.holders]
        assert found.linked == (kind == "posix")
        end.owner_dead(proxy.owner)


@pytest.mark.parametrize("kind", ["memfd", "posix"])
def test_every_holder_is_named_with_its_role(kind, eventually):
    """Told by what each may write; a memfd has no name and is found all the same."""
    profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=64)
    with (
        Engine.create(
            profile, worker=NOWHERE, connect_timeout_s=0, ranks=2, kind=kind
        ) as engine,
        RankProcess(engine.invitation, profile) as rank,
    ):
        engine.wait_ranks(30)
        eventually(lambda: len(_mine(engine._ring).holders) == 3, "the proxy")
        found = _mine(engine._ring)
        roles = {process.role: process.pid for process in found.holders}
        assert {"engine", "proxy", "rank"} == set(roles)
        assert (os.getpid(), rank.process.pid) == (roles["engine"], roles["rank"])
        assert engine.stats()["proxy_pid"] == roles["proxy"]
        assert not found.linked  # all have attached
        assert found.life == ALIVE


def test_a_memfd_whose_engine_is_gone_is_dead_and_says_who_keeps_it():
    """Its memory goes when they do."""
    with _end("memfd") as end:
        found = _mine(end)
        fd = os.dup(end.region._segments.fds["control"])
    seen = [one for one in survey().regions if one.name == found.name]
    os.close(fd)
    assert [(DEAD, "holder")] == [(one.life, one.holders[0].role) for one in seen] or (
        survey().unseen and seen[0].life == UNKNOWN
    )


@pytest.mark.parametrize("kind", ["memfd", "posix"])
def test_what_a_process_is_to_one_region_says_nothing_of_another(kind):
    """An engine that also holds what is left of a dead one does not revive it."""
    with _end(kind) as living:
        with _end("memfd") as end:
            name = _mine(end).name
            fd = os.dup(end.region._segments.fds["control"])
        del end  # its views keep what they show mapped
        found = {one.name: one for one in survey().regions}
        os.close(fd)
        assert ["holder"] == [one.role for one in found[name].holders]
        assert found[name].life in (DEAD, UNKNOWN)  # unknown: some are not to be seen
        assert ["engine"] == [one.role for one in found[_mine(living).name].holders]


def test_lines_and_json_say_the_same():
    """For eyes and for programs."""
    with _end("posix") as end:
        end.step(bytes(8), FAR)
        name = end.region.prefix.lstrip("/")
        done, told = run("ls"), run("ls", "--json")
        assert (0, "", 0, "") == (done.status, done.err, told.status, told.err)
        line = next(one for one in done.out.splitlines() if one.startswith(name))
        for part in ("posix, alive", "1 of 4 rounds in flight", "0 of 8 pages in qua"):
            assert part in line
        assert f"engine  pid {os.getpid()}" in done.out
        regions = {one["name"]: one for one in json.loads(told.out)["regions"]}
        found = regions[name]
        assert (1, 1, 0) == (
            found["rounds_in_flight"],
            found["newest_ticket"],
            found["pages_in_quarantine"],
        )
        assert f"{found['bytes']:,} bytes" in line
        assert os.getpid() in [one["pid"] for one in found["holders"]]


def test_where_there_is_nothing_it_says_so(shm, monkeypatch):
    """Not an empty page."""
    monkeypatch.setattr("pp3shm.ring.survey.processes", lambda: iter([None]))
    assert [] == list(shm.iterdir())
    lines = list(as_lines(survey()))
    assert lines[0] == "no regions"
    assert "looked into: 1" in lines[1]


def test_a_strangers_words_are_escaped():
    """A command line is anybody's."""
    code = "import sys; print('go', flush=True); sys.stdin.read()"
    with _end("memfd") as end:
        fd = os.dup(end.region._segments.fds["control"])
        with subprocess.Popen(
            [sys.executable, "-c", code, "\x1b[2J\nx"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=[fd],
        ) as stranger:
            assert stranger.stdout.readline() == b"go\n"
            said = run("ls").out
            stranger.communicate()
        os.close(fd)
    assert f"holder  pid {stranger.pid}" in said
    assert "\\x1b[2J\\nx" in said
    assert "\x1b" not in said


# -- bytes of a stranger's region ------------------------------------------------------


def _image() -> bytearray:
    """A whole control segment."""
    with _end("memfd") as end:
        end.step(bytes(8), FAR)
        return bytearray(end.region.view("control"))


IMAGE = _image()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    at=st.integers(0, len(IMAGE) - 8),
    word=st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
    | st.integers(0, 2**64 - 1),
    size=st.just(len(IMAGE)) | st.integers(0, 2 * len(IMAGE)),
)
def test_any_words_in_a_header_are_a_fault_or_a_result(
    tmp_path_factory, at, word, size
):
    """Nothing in it steers further than its own copy."""
    shm = tmp_path_factory.mktemp("shm")
    image = bytearray(IMAGE)
    image[at : at + 8] = struct.pack("<Q", word)
    prefix = f"pp3shm-{1:032x}"
    (shm / f"{prefix}-control").write_bytes(image[:size].ljust(size, b"\xff"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SHM", shm)
        patch.setattr("pp3shm.ring.survey.processes", lambda: iter(()))
        found = survey()
        (one,) = found.regions
        assert (prefix, DEAD) == (one.name, one.life)
        assert one.open <= one.rounds <= lib.PP3_MAX_ROUNDS
        assert one.fault is not None or size == len(IMAGE)
        json.loads(as_json(found))
        assert next(iter(as_lines(found))).isprintable()


@pytest.mark.parametrize("size", [0, 1, 7, HEADER_BYTES - 1, HEADER_BYTES, 1 << 40])
def test_a_control_segment_of_any_size_is_read_within_bounds(shm, size):
    """A terabyte, too, of which nothing is there."""
    prefix = _names(shm, 2)
    os.truncate(shm / f"{prefix}-control", size)
    (found,) = [one for one in survey().regions if one.name == prefix]
    assert found.fault is not None
    assert (found.rounds, found.bytes, found.quarantined) == (0, 0, None)


def test_a_quarantine_that_no_region_can_have_is_unknown(shm):
    """A counter is anybody's word."""
    image = bytearray(IMAGE)
    at = lib.PP3_COUNTERS_AT + 8 * lib.PP3_COUNT_QUARANTINED
    image[at : at + 8] = struct.pack("<Q", 2**64 - 1)
    prefix = _names(shm, 3)
    (shm / f"{prefix}-control").write_bytes(image)
    (found,) = [one for one in survey().regions if one.name == prefix]
    assert (found.fault, found.quarantined) == (None, None)
    assert "? of 8 pages" in "\n".join(as_lines(survey()))


@pytest.mark.parametrize("what", ["link", "dangling", "folder", "fifo", "socketless"])
def test_what_is_no_segment_is_neither_opened_nor_removed(shm, tmp_path_factory, what):
    """Whatever somebody put there under a segment's name."""
    path = shm / f"pp3shm-{4:032x}-control"
    target = tmp_path_factory.mktemp("elsewhere") / "file"
    target.write_text("mine")
    if what == "link":
        path.symlink_to(target)
    elif what == "dangling":
        path.symlink_to("/nowhere/at/all")
    elif what == "folder":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.with_name(f"pp3shm-{4:031x}-control").touch()  # 31 digits: no name of ours
        assert [] == [one for one in survey().regions if one.linked]
        return
    assert [] == [one for one in survey().regions if one.linked]
    with pytest.raises(RegionError):
        remove(path.name)
    assert os.path.lexists(path)
    assert target.read_text() == "mine"


# -- removal ---------------------------------------------------------------------------

HOLDER = """
import sys
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
shape = Shape(rounds=4, page_bytes=4096, request_bytes=256, failed_bytes=64,
              head_bytes=24, slots=2, max_positions=100)
region = Region.create(shape, layout_id=bytes(32), kind="posix")
print(region.prefix.lstrip("/"), flush=True)
sys.stdin.read()
"""


def _holder(*before: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, "-c", HOLDER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _in_dev_shm(prefix: str) -> int:
    return len(list(Path("/dev/shm").glob(f"{prefix}-*")))


def test_the_living_are_refused_by_name_and_the_dead_removed():
    """Once more changes nothing."""
    with _holder() as holder:
        name = holder.stdout.readline().strip()
        refused("rm", name, says=[name, f"held by engine {holder.pid}", "lives"])
        assert _in_dev_shm(name) == 5
        holder.send_signal(signal.SIGSTOP)  # not dead, only silent
        refused("rm", name, says=["lives"])
        holder.kill()
        holder.wait()
        path = f"/dev/shm/{name}-control"
        done = run("rm", path)
        assert (0, "") == (done.status, done.err)
        # Another creator may have swept it a moment ago.
        assert done.out in (f"{path}: removed\n", f"{path}: nothing there\n")
        assert _in_dev_shm(name) == 0
        for _ in range(2):
            done = run("rm", name)
            assert (0, f"{name}: nothing there\n", "") == (
                done.status,
                done.out,
                done.err,
            )


def test_what_has_no_name_is_refused_while_it_is_there():
    """A memfd goes with its last holder, so there is nothing to remove."""
    with _end("memfd") as end:
        name = _mine(end).name
        refused("rm", name, says=[name, "goes with its holders", f"{os.getpid()}"])
    assert run("rm", name).out == f"{name}: nothing there\n"


@pytest.mark.parametrize("words", [(), ("x",), ("",), ("../etc/passwd",), ("memfd",)])
def test_words_that_name_no_region_are_refused(words):
    """Nothing is guessed."""
    refused("rm", *words, says=["NAME" if not words else "name: expected one that"])


def test_one_that_is_refused_does_not_keep_the_others():
    """Each is judged by itself; the status says that not all could be done."""
    with _end("posix") as end:
        name = end.region.prefix.lstrip("/")
        gone = f"pp3shm-{5:032x}"
        done = run("rm", name, gone)
        assert (2, f"{gone}: nothing there\n") == (done.status, done.out)
        assert len(done.err.splitlines()) == 1


def test_only_what_is_proved_dead_is_removed_at_once(shm):
    """All names of a region have to be free; one that is held proves life."""
    free, half, held = _names(shm, 1), _names(shm, 2, "acks"), _names(shm, 3)
    with (shm / f"{held}-pages").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        life = {one.name: one.life for one in survey().regions if one.linked}
        assert (DEAD, DEAD) == (life[free], life[half])
        assert not [remove(name) for name in dead() if name in (free, half)].count(
            False
        )
        with pytest.raises(RegionError, match="lives"):
            remove(held)
        assert {path.name.rpartition("-")[0] for path in shm.iterdir()} == {held}
        assert len(list(shm.iterdir())) == 5
    assert remove(held)
    assert [] == list(shm.iterdir())


def test_no_process_id_is_a_proof(shm, monkeypatch):
    """Who holds it is told by /proc, that it is dead by the lock alone."""
    prefix = _names(shm, 6)
    monkeypatch.setattr(os, "kill", lambda *_: None)  # everybody lives
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert remove(prefix)


def test_names_that_may_not_be_opened_are_said_to_be_so(monkeypatch, request):
    """Another user's are neither judged nor removed."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    shm = Path(tempfile.mkdtemp(prefix="pp3shm-test-"))
    request.addfinalizer(lambda: shutil.rmtree(shm))
    shm.chmod(0o755)  # as /dev/shm, others may look
    monkeypatch.setattr(segments, "SHM", shm)
    prefix = _names(shm, 7)
    for path in shm.iterdir():
        path.chmod(0o600)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            (found,) = [one for one in survey().regions if one.name == prefix]
            assert (found.life, found.fault) == (UNKNOWN, "control: Permission denied")
            assert survey().unseen > 0
            try:
                remove(prefix)
            except RegionError as error:
                code = 0 if os.strerror(errno.EACCES) in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(shm.iterdir())) == 5


def test_a_creator_in_another_pid_namespace_is_alive_though_nobody_sees_it():
    """Its lock is the kernel's, whatever the numbers are."""
    inside = ["unshare", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs a PID namespace")
    with _holder() as holder:
        name = holder.stdout.readline().strip()
        program = [*inside, sys.executable, "-P", "-m", "pp3shm"]
        refused("rm", name, program=program, says=["lives", "cannot be seen from"])
        done = run("ls", program=program)
        assert f"{name}  posix, alive" in done.out
        holder.communicate()
    assert _in_dev_shm(name) == 0


def test_a_name_of_another_kind_is_no_name():
    """Only what ls prints."""
    with pytest.raises(ConfigError):
        remove("pp3shm-xyz")


def test_an_engine_shows_its_rounds_while_they_are_in_flight():
    """A round that nobody answers is in flight until it is over."""
    profile = Profile.sampled(vocab=64, depth=5, max_slots=2, max_positions=64)
    with Engine.create(
        profile, worker=NOWHERE, connect_timeout_s=0, proxy="thread"
    ) as engine:
        engine._proxy.close()
        engine.reset(0, [1])
        tickets = [engine.step([Row(0)], timeout_s=60) for _ in range(3)]
        assert _mine(engine._ring).open == 3
        for ticket in tickets:
            engine.cancel(ticket)
        assert _mine(engine._ring).open == 0
