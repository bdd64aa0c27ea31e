"""The command line as users meet it: real processes, and every way to get it wrong."""

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from commands import END_S, PP3SHM, Command, refused, run

import pp3shm

VECTORS = Path(__file__).parent / "vectors"
SHAPE = ["--vocab=64", "--depth=4", "--max-slots=2", "--max-positions=64"]
DRAFTER = "--drafter=pp3shm.worker.drafters:seeded_table"
LISTEN = "--listen=tcp://127.0.0.1:0"
KEY = b"a key of twenty-four by."

# -- help and version ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ["demo", "worker", "conformance", "fail-closed"]),
        (["demo"], ["--text", "--target", "--kill-worker", "--check-rounds"]),
        (["worker"], ["--listen", "--drafter", "--sampled", "--key-file"]),
        (["conformance"], ["DIR", "known-answer"]),
        (["bench"], ["--only", "--quick", "--list", "--out"]),
        (["ls"], ["--json", "alive or dead"]),
        (["rm"], ["NAME", "--dead", "refused"]),
        (["doctor"], ["--require", "missing"]),
    ],
    ids=["pp3shm", "demo", "worker", "conformance", "bench", "ls", "rm", "doctor"],
)
def test_help_names_what_there_is(words, says):
    done = run(*words, "--help")
    assert (0, "") == (done.status, done.err)
    assert done.out.startswith("usage: pp3shm")
    for part in says:
        assert part in done.out


def test_version_is_the_packages():
    done = run("--version")
    assert (0, f"{pp3shm.__version__}\n", "") == (done.status, done.out, done.err)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ["required: command", "--help"]),
        (["dance"], ["'dance'", "demo"]),
        (["conformance"], ["required: DIR", "pp3shm conformance --help"]),
        (["conformance", "a", "b\nc\x1b[2J"], ["b\\nc\\x1b[2J"]),
        (["worker", "--listen"], ["--listen", "expected one argument"]),
        (["demo", "--proxy=fork"], ["--proxy", "'fork'", "process", "thread"]),
        (["demo", "--link=wire"], ["--link", "'wire'", "socket", "region"]),
        (["demo", "--wait=long"], ["--wait", "'long'", "spin", "hybrid", "futex"]),
        (["demo", "--depth=deep"], ["--depth", "'deep'"]),
        (["demo", "--temperature=warm"], ["--temperature", "'warm'"]),
        (["demo", "--flag\udcff"], ["--flag\\udcff"]),
    ],
)
def test_words_that_are_no_command_are_refused_in_one_line(words, says):
    refused(*words, says=says)


# -- output that cannot be written -----------------------------------------------------

SPEAKING = {
    "conformance": ["conformance", str(VECTORS)],
    "demo": ["demo", "--tokens=4", "--check-rounds=0"],
    "worker": ["worker", LISTEN, DRAFTER, *SHAPE],
}


@pytest.mark.parametrize("words", SPEAKING.values(), ids=SPEAKING)
def test_a_full_disk_under_the_output_is_one_line(words):
    with Path("/dev/full").open("w") as full:
        refused(*words, stdout=full.fileno(), says=["No space left"])


@pytest.mark.parametrize("name", ["conformance", "demo"])
def test_an_output_that_was_closed_is_no_error(name):
    done = run(*SPEAKING[name], prepare=lambda: os.close(1))
    assert (0, "", "") == (done.status, done.out, done.err)


@pytest.mark.parametrize("words", SPEAKING.values(), ids=SPEAKING)
def test_a_reader_that_has_enough_ends_a_command_without_a_word(words):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(*words, stdout=writing)
    finally:
        os.close(writing)
    assert (1, "") == (done.status, done.err)


# -- conformance -----------------------------------------------------------------------


def test_conformance_passes_every_case_of_every_file():
    done = run("conformance", str(VECTORS))
    assert (0, "") == (done.status, done.err)
    expected = [
        f"{path.name}: {len(json.loads(path.read_bytes())['cases'])} passed, 0 failed"
        for path in sorted(VECTORS.glob("*.json"))
    ]
    assert 14 == len(expected)
    assert expected == done.out.splitlines()


def test_conformance_names_the_one_case_that_expects_something_else(tmp_path):
    content = json.loads((VECTORS / "prefix.json").read_bytes())
    right = content["cases"][1]["digest"]
    content["cases"][1]["digest"] = right ^ 1
    shutil.copy(VECTORS / "philox.json", tmp_path)
    (tmp_path / "prefix.json").write_text(json.dumps(content))
    done = run("conformance", str(tmp_path))
    assert (1, "") == (done.status, done.err)
    philox, prefix, failure = done.out.splitlines()
    assert philox.endswith(" passed, 0 failed")
    assert f"prefix.json: {len(content['cases']) - 1} passed, 1 failed" == prefix
    assert failure.startswith("  case 1")
    assert failure.endswith(f"expected {right ^ 1}, found {right}")


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"dances.json": '{"cases": [{}]}'}, ["dances.json", "one of bad_replies"]),
        ({"prefix.json": ""}, ["prefix.json", "a readable JSON file"]),
        ({"prefix.json": "{nope"}, ["prefix.json", "a readable JSON file"]),
        ({"prefix.json": '{"cases": []}'}, ["at least one case"]),
        ({"prefix.json": "[]"}, ["at least one case"]),
        ({"read\nme.txt": "hello"}, ["read\\nme.txt"]),
        ({}, ["known-answer files, found none"]),
        (None, ["a readable directory", "No such file"]),
    ],
    ids=[
        "unknown",
        "empty",
        "no-json",
        "no-cases",
        "no-object",
        "text",
        "none",
        "missing",
    ],
)
def test_conformance_fails_what_it_cannot_run_and_says_so(tmp_path, files, says):
    folder = tmp_path / "answers\n\udcff"
    if files is not None:
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text)
    done = run("conformance", str(folder))
    assert (1, "") == (done.status, done.err)
    assert "0 passed, 1 failed" in done.out
    assert all(line.isprintable() for line in done.out.splitlines())
    assert 2 == len(done.out.splitlines())
    for part in says:
        assert part in done.out


# -- worker ----------------------------------------------------------------------------

MODULE = """
class Property:
    @property
    def profile_fields(self):
        raise ValueError("no fields today")

    @property
    def logits(self):
        raise ValueError("no logits today")

class Fields:
    def __init__(self, fields):
        self.profile_fields = fields

    def logits(self, rows, drafted):
        return None

class Nothing:
    pass

both = Property()
nothing = Nothing()
none = None
listed = Fields(["vocab"])
unknown = Fields({"vocal": 64})
odd = Fields({"vocab": "64"})

class Late:
    profile_fields = {}

    @property
    def logits(self):
        raise ValueError("no logits today")

late = Late()

def __getattr__(name):
    raise RuntimeError(f"asked for {name}")
"""


@pytest.fixture
def modules(tmp_path):
    """A folder of drafters that cannot be used."""
    (tmp_path / "broken.py").write_text("x = 1 / 0\n")
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit('I\\nleave')\n")
    (tmp_path / "syntax.py").write_text("def x(:\n")
    (tmp_path / "needs.py").write_text("import no_such_package_anywhere\n")
    (tmp_path / "plain.py").write_text("x = 1\n")
    (tmp_path / "odd.py").write_text(MODULE)
    return tmp_path


@pytest.mark.parametrize(
    ("drafter", "says"),
    [
        ("plain", ["module:object", "'plain'"]),
        ("plain:y", ["y in plain", "no y"]),
        ("plain:x", ["logits()", "found int"]),
        ("no_such_module:x", ["no_such_module", "ModuleNotFoundError"]),
        ("broken:x", ["broken", "ZeroDivisionError"]),
        ("leaves:x", ["leaves", "SystemExit: I leave"]),
        ("syntax:x", ["syntax", "SyntaxError"]),
        ("needs:x", ["needs", "no_such_package_anywhere"]),
        ("odd:x", ["x in odd", "RuntimeError: asked for x"]),
        ("odd:both", ["profile_fields", "ValueError: no fields today"]),
        ("odd:late", ["--drafter", "ValueError: no logits today"]),
        ("odd:nothing", ["logits()", "Nothing"]),
        ("odd:none", ["logits()", "NoneType"]),
        ("odd:listed", ["profile_fields", "a dict", "list"]),
        ("odd:unknown", ["profile_fields", "vocal"]),
        ("odd:odd", ["--vocab", "'64'", "found 64"]),
    ],
)
def test_worker_refuses_a_drafter_that_cannot_be_used(modules, drafter, says):
    words = [LISTEN, f"--drafter={drafter}", *SHAPE]
    refused("worker", *words, cwd=modules, says=says)


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("", ["tcp://host:port", "''"]),
        ("127.0.0.1:7333", ["tcp://host:port"]),
        ("http://127.0.0.1:1", ["tcp://host:port"]),
        ("tcp://127.0.0.1", ["a port up to 65535"]),
        ("tcp://127.0.0.1:65536", ["a port up to 65535"]),
        ("tcp://127.0.0.1:-1", ["a port up to 65535"]),
        ("tcp://[::1:1", ["IPv6"]),
        ("tcp://no.such.host.invalid:1", ["a host that resolves"]),
        ("tcp://0.0.0.0:0", ["pre-shared key", "no key"]),
        ("tcp://[::]:0", ["pre-shared key", "no key"]),
        ("unix://relative", ["unix:///absolute/path"]),
        ("unix://", ["unix:///absolute/path"]),
        ("unix:///no/such/folder/socket", ["No such file"]),
        (f"unix:///{'x' * 107}", ["at most 107 bytes", "found 108"]),
        ("unix:///dev/null", ["an unused socket"]),
        ("rdma://127.0.0.1", ["rdma://host:port"]),
    ],
)
def test_worker_refuses_an_address_it_cannot_listen_at(address, says):
    refused("worker", f"--listen={address}", DRAFTER, *SHAPE, says=says)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([DRAFTER, *SHAPE], ["one of the arguments --listen --region is required"]),
        ([LISTEN, *SHAPE], ["required: --drafter"]),
        ([LISTEN, DRAFTER, *SHAPE[1:]], ["--vocab: expected a value, found none"]),
        ([LISTEN, DRAFTER, *SHAPE[:1], *SHAPE[2:]], ["--depth: expected a value"]),
        ([LISTEN, DRAFTER, *SHAPE[:2], *SHAPE[3:]], ["--max-slots: expected a value"]),
        ([LISTEN, DRAFTER, *SHAPE[:3]], ["--max-positions: expected a value"]),
        ([LISTEN, DRAFTER, *SHAPE, "--depth=3"], ["profile.depth", "3"]),
        ([LISTEN, DRAFTER, *SHAPE, "--depth=6"], ["profile.depth", "6"]),
        ([LISTEN, DRAFTER, *SHAPE, "--max-slots=0"], ["profile.max_slots", "0"]),
        ([LISTEN, DRAFTER, *SHAPE, "--max-slots=5"], ["profile.max_slots", "5"]),
        ([LISTEN, DRAFTER, *SHAPE, "--vocab=31"], ["profile.vocab", "31"]),
        ([LISTEN, DRAFTER, *SHAPE, f"--vocab={10**40}"], ["profile.vocab"]),
        ([LISTEN, "--region=region://@x", DRAFTER, *SHAPE], ["not allowed with"]),
        (["--region=unix://@x", DRAFTER, *SHAPE], ["door", "unix://@x"]),
        (["--region=region://", DRAFTER, *SHAPE], ["door", "region://"]),
        (["--region=region://x", DRAFTER, *SHAPE, "--wait=long"], ["--wait", "long"]),
        (
            ["--region=region://@nobody", DRAFTER, *SHAPE, "--attach-timeout=0"],
            ["region://@nobody: expected an engine's door within 0 s, found none"],
        ),
        (
            ["--region=region://@x", DRAFTER, *SHAPE, "--attach-timeout=-1"],
            ["attach_timeout_s"],
        ),
        ([LISTEN, DRAFTER, *SHAPE, "--vocab=64.5"], ["--vocab", "'64.5'"]),
        ([LISTEN, DRAFTER, *SHAPE, "--max-positions=0"], ["profile.max_positions"]),
        ([LISTEN, DRAFTER, *SHAPE, f"--max-positions={2**31}"], ["max_positions"]),
        ([LISTEN, DRAFTER, *SHAPE, "--context-bytes=-1"], ["profile.context_bytes"]),
        ([LISTEN, DRAFTER, *SHAPE, "--target-sha256=ab"], ["profile.target_sha256"]),
        ([LISTEN, DRAFTER, *SHAPE, f"--draft-sha256={'g' * 64}"], ["draft_sha256"]),
        ([LISTEN, DRAFTER, *SHAPE, f"--markov-sha256={'A' * 64}"], ["markov_sha256"]),
        ([LISTEN, DRAFTER, *SHAPE, f"--id-map-sha256={'1' * 65}"], ["id_map_sha256"]),
        ([LISTEN, DRAFTER, *SHAPE, "--sampled", "--semantic=mine"], ["semantic"]),
        ([LISTEN, DRAFTER, *SHAPE, "--ready-fd=77"], ["--ready-fd", "77"]),
        ([LISTEN, DRAFTER, *SHAPE, "--key-file=none"], ["none", "No such file"]),
        ([LISTEN, DRAFTER, *SHAPE, "--key-file=/"], ["Is a directory"]),
        ([LISTEN, DRAFTER, *SHAPE, "--key-file=short"], ["16 to 64 bytes", "15"]),
        ([LISTEN, DRAFTER, *SHAPE, "--key-file=long"], ["64 bytes", "longer"]),
    ],
)
def test_worker_refuses_an_option_that_is_missing_or_out_of_range(
    tmp_path, words, says
):
    (tmp_path / "short").write_bytes(bytes(15))
    (tmp_path / "long").write_bytes(bytes(65))
    refused("worker", *words, cwd=tmp_path, says=says)


def test_worker_refuses_an_address_in_use_and_leaves_it_alone(tmp_path):
    words = [f"--listen=unix://{tmp_path}/socket", LISTEN, DRAFTER, *SHAPE]
    with Command("worker", *words) as first:
        first.read_until("listening on unix://")
        tcp = first.read_until("listening on tcp://").split()[-1]
        for address in (f"unix://{tmp_path}/socket", tcp):
            refused("worker", f"--listen={address}", DRAFTER, *SHAPE, says=["address"])
        host, port = tcp.removeprefix("tcp://").split(":")
        socket.create_connection((host, int(port)), 30).close()
        first.process.terminate()
        assert 0 == first.finish().status
    assert [] == list(tmp_path.iterdir())


def test_worker_that_cannot_have_its_second_address_gives_back_the_first(tmp_path):
    words = [f"--listen=unix://{tmp_path}/socket", "--listen=tcp://127.0.0.1"]
    refused("worker", *words, DRAFTER, *SHAPE, says=["a port up to 65535"])
    assert [] == list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("mode", [[], ["--sampled"]], ids=["greedy", "sampled"])
def test_a_signal_ends_the_worker_and_its_socket_file(tmp_path, number, mode):
    (tmp_path / "key").write_bytes(KEY)
    words = [f"--listen=unix://{tmp_path}/socket", DRAFTER, *SHAPE, *mode]
    with Command("worker", *words, f"--key-file={tmp_path}/key") as worker:
        said = worker.read_until("listening on")
        assert f"listening on unix://{tmp_path}/socket\n" == said
        assert (tmp_path / "socket").is_socket()
        worker.process.send_signal(number)
        done = worker.finish()
        assert (0, "", "") == (done.status, done.out, done.err)
        worker.expect_nothing_left()
    assert [tmp_path / "key"] == list(tmp_path.iterdir())


def test_a_worker_that_was_killed_is_followed_by_one_at_the_same_address(tmp_path):
    words = [f"--listen=unix://{tmp_path}/socket", DRAFTER, *SHAPE]
    for _ in range(2):
        with Command("worker", *words) as worker:
            worker.read_until("listening on")
            worker.process.kill()
            assert -9 == worker.finish().status
            worker.expect_nothing_left(END_S)


# -- a machine that has no more to give ------------------------------------------------


@pytest.mark.parametrize(
    ("words", "limit", "value", "says"),
    [
        (["--tokens=4"], resource.RLIMIT_FSIZE, 20_000, ["drafter", "File too large"]),
        (["--tokens=100000"], resource.RLIMIT_FSIZE, 10**6, ["segment slots", "bytes"]),
        (["--tokens=4"], resource.RLIMIT_NOFILE, 8, []),
        (["--tokens=4"], resource.RLIMIT_NOFILE, 14, []),
    ],
    ids=["file", "memory", "files", "more-files"],
)
def test_a_limit_of_the_machine_is_one_line(words, limit, value, says):
    refused(
        *("demo", *words, "--check-rounds=0"),
        prepare=lambda: resource.setrlimit(limit, (value, value)),
        says=says,
    )


CAN_MOUNT = (
    os.geteuid() == 0
    and shutil.which("unshare") is not None
    and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0
)


@pytest.mark.skipif(not CAN_MOUNT, reason="needs a mount name space of its own")
@pytest.mark.parametrize(
    ("mounts", "says"),
    [
        (["-o size=64k tmpfs /tmp"], ["drafter file", "No space left"]),
        (
            ["-o ro tmpfs /tmp", "-o ro tmpfs /var/tmp", "-o ro tmpfs /mnt"],
            ["No usable temporary directory"],
        ),
    ],
    ids=["full", "read-only"],
)
def test_a_folder_that_cannot_be_written_is_one_line(mounts, says):
    script = "; ".join([*(f"mount -t tmpfs {mount}" for mount in mounts), "cd /mnt"])
    shell = ("unshare", "-m", "sh", "-ec", f'{script}; exec "$@"', "sh")
    refused(
        *("demo", "--tokens=4", "--check-rounds=0"),
        program=(*shell, *PP3SHM),
        env={"TMPDIR": ""},
        says=says,
    )
