"""The worker as a process of its own: options, signals, kills and restarts."""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from worker_client import opened, row

from pp3shm.errors import ConfigError, Pp3Error
from pp3shm.layout.frames import Kind
from pp3shm.layout.profile import ZEROS, Profile
from pp3shm.link import connect
from pp3shm.worker.main import add_arguments, load_drafter, profile_of, run

SHAPE = {"vocab": 64, "depth": 4, "max_slots": 3, "max_positions": 40}
SAMPLED = Profile.sampled(**SHAPE)
NAMED = [f"--{name.replace('_', '-')}={value}" for name, value in SHAPE.items()]
DRAFTER = "--drafter=pp3shm.worker.drafters:seeded_table"
KEY = b"a key of twenty-four by."

SCRIPT = """
import argparse, sys
from pp3shm.errors import Pp3Error
from pp3shm.worker.main import add_arguments, run
parser = argparse.ArgumentParser()
add_arguments(parser)
try:
    sys.exit(run(parser.parse_args(), lambda text: print(text, flush=True)))
except Pp3Error as error:
    sys.exit(f"pp3shm worker: {error}")
"""


def arguments(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


class Process:
    """A worker process that listens."""

    def __init__(self, *options, listen="tcp://127.0.0.1:0"):
        self.child = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, DRAFTER, f"--listen={listen}", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        said = self.child.stdout.readline()
        assert said.startswith("listening on "), said
        self.address = said.removeprefix("listening on ").strip()

    def __enter__(self):
        """A context manager ends it."""
        return self

    def __exit__(self, *_):
        """Kill it, if it lives."""
        self.child.kill()
        self.child.wait()
        self.child.stdout.close()


def test_killed_worker_is_whole_again_after_restart_and_reset(tmp_path):
    listen = f"unix://{tmp_path}/socket"
    session, prefix = bytes(range(16)), (1, 2, 3)
    replies = []
    for _ in range(3):
        with (
            Process("--sampled", *NAMED, listen=listen) as worker,
            opened(worker.address, SAMPLED, session=session) as engine,
        ):
            # It forgot everything: the slot was never reset.
            assert engine.step(90, row(prefix=prefix)).status.tolist() == [1]
            engine.reset(prefix=prefix)
            reply = engine.step(91, row(prefix=prefix, count=2))
            assert reply.status.tolist() == [0]
            replies.append((reply.tokens.tolist(), reply.q.tolist()))
            worker.child.send_signal(signal.SIGKILL)
            assert engine.read(1) == b""
    # Draws are named, not remembered: the same question has the same answer.
    assert replies[0] == replies[1] == replies[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_worker_in_order(tmp_path, number):
    with Process("--sampled", *NAMED, listen=f"unix://{tmp_path}/socket") as worker:
        with opened(worker.address, SAMPLED) as engine:
            engine.reset()
            engine.step(1, row())
            worker.child.send_signal(number)
            header, _ = engine.receive()
            assert (header.kind, header.sequence) == (Kind.BYE, 2)
            assert engine.read(1) == b""
        assert worker.child.wait(30) == 0
    assert list(tmp_path.iterdir()) == []


def test_signal_that_another_thread_receives_is_not_lost(tmp_path):
    args = arguments(DRAFTER, f"--listen=unix://{tmp_path}/s", *NAMED)

    def signal_this_thread():
        time.sleep(0.3)  # by now the main thread sleeps, and nothing wakes it
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    thread = threading.Thread(target=signal_this_thread)
    assert run(args, lambda _text: thread.start()) == 0
    thread.join()
    assert list(tmp_path.iterdir()) == []


def test_signals_mean_what_they_meant_before_once_it_has_run(tmp_path):
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    args = arguments(DRAFTER, f"--listen=unix://{tmp_path}/s", *NAMED)
    said = []

    def say(text):
        said.append(text)
        os.kill(os.getpid(), signal.SIGTERM)

    assert run(args, say) == 0
    assert [f"listening on unix://{tmp_path}/s"] == said
    assert before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))


def test_ready_descriptor_gets_the_addresses_and_ends(tmp_path):
    reading, writing = os.pipe()
    options = [f"--listen=unix://{tmp_path}/s", f"--ready-fd={writing}", *NAMED]
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, DRAFTER, "--listen=tcp://127.0.0.1:0", *options],
        pass_fds=[writing],
        stdout=subprocess.DEVNULL,
    )
    os.close(writing)
    try:
        with os.fdopen(reading) as ready:
            tcp, unix = ready.read().splitlines()
        assert unix == f"unix://{tmp_path}/s"
        connect(tcp).close()
        child.terminate()
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()


def test_keyed_worker_of_another_host_address_takes_the_key_file(tmp_path):
    (tmp_path / "key").write_bytes(KEY)
    options = [f"--key-file={tmp_path}/key", "--sampled", *NAMED]
    with Process(*options, listen="tcp://0.0.0.0:0") as worker:
        address = worker.address.replace("0.0.0.0", "127.0.0.1")
        connect(address, 30.0, KEY).close()
        with pytest.raises(Pp3Error):
            connect(address, 30.0, KEY + b"?")


def failing(tmp_path, *options):
    """Standard error of a worker that does not come up."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    return done.stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--listen=tcp://10.0.0.1:1", DRAFTER, *NAMED], "pre-shared key"),
        (["--listen=udp://127.0.0.1:1", DRAFTER, *NAMED], "expected tcp://host:port"),
        (["--listen=unix:///none/s", DRAFTER, *NAMED], "No such file"),
        (["--listen=unix://@x", "--drafter=broken:it", *NAMED], "ZeroDivisionError"),
        (["--listen=unix://@x", DRAFTER, *NAMED, "--key-file=none"], "none"),
        (["--listen=unix://@x", DRAFTER, *NAMED, "--ready-fd=99"], "--ready-fd"),
    ],
)
def test_worker_that_cannot_start_says_why_in_one_line(tmp_path, options, expected):
    (tmp_path / "broken.py").write_text("x = 1 / 0\n")
    assert expected in failing(tmp_path, *options)


# ---- --drafter and the profile ----


def test_drafter_is_found_in_the_current_directory(tmp_path, monkeypatch):
    name = f"module_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text("class Some:\n    inner = 'found'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    assert load_drafter(f"{name}:Some.inner") == "found"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("module", "'module'"),
        (":thing", "':thing'"),
        ("module:", "'module:'"),
        ("", "''"),
        ("no_such_module_anywhere:x", "ModuleNotFoundError"),
        ("pp3shm.worker.drafters:Nothing", "no Nothing"),
        ("pp3shm.worker.drafters:TableDrafter.nothing", "no nothing"),
        ("..:x", "TypeError"),
        ("a b:x", "ModuleNotFoundError"),
    ],
)
def test_drafter_that_is_not_there_is_named(name, found):
    with pytest.raises(ConfigError) as caught:
        load_drafter(name)
    assert caught.value.place == "--drafter"
    assert found in str(caught.value)


def options(*words):
    return arguments(DRAFTER, "--listen=unix://@x", *words)


def test_profile_is_made_of_options_alone():
    assert profile_of(options("--sampled", *NAMED), {}) == SAMPLED
    assert Profile.greedy(**SHAPE) == profile_of(options(*NAMED), {})
    every = {
        "context_bytes": 8,
        "id_map_sha256": "1" * 64,
        "target_sha256": "2" * 64,
        "draft_sha256": "3" * 64,
        "markov_sha256": "4" * 64,
    }
    words = [f"--{name.replace('_', '-')}={value}" for name, value in every.items()]
    assert Profile.greedy(**SHAPE, **every) == profile_of(options(*NAMED, *words), {})


def test_profile_takes_what_the_drafter_says_of_itself():
    fields = {"vocab": 64, "draft_sha256": "3" * 64}
    expected = Profile.sampled(**SHAPE, draft_sha256="3" * 64)
    assert expected == profile_of(options("--sampled", *NAMED[1:]), fields)
    assert expected == profile_of(options("--sampled", *NAMED), fields)
    assert expected.target_sha256 == ZEROS


@pytest.mark.parametrize(
    ("words", "fields", "place"),
    [
        (NAMED[1:], {}, "--vocab"),
        (NAMED[:1] + NAMED[2:], {}, "--depth"),
        (NAMED[:2] + NAMED[3:], {}, "--max-slots"),
        (NAMED[:3], {}, "--max-positions"),
        (NAMED, {"vocab": 65}, "--vocab"),
        (NAMED, {"vocal": 64}, "drafter.profile_fields"),
        (NAMED, {"sample_mode": 2}, "drafter.profile_fields"),
        (NAMED, ["vocab"], "drafter.profile_fields"),
        (NAMED, None, "drafter.profile_fields"),
        ([*NAMED, "--semantic=greedy", "--context-bytes=x"], {}, None),
        ([*NAMED, "--semantic=top32/tau.7/dyadic24-standard-v1"], {}, "--semantic"),
        ([*NAMED, "--sampled", "--semantic=other"], {}, "profile.semantic"),
        ([*NAMED, "--depth=6"], {}, "profile.depth"),
        ([*NAMED, "--vocab=31"], {}, "profile.vocab"),
        ([*NAMED, "--max-slots=5"], {}, "profile.max_slots"),
        ([*NAMED, "--max-positions=0"], {}, "profile.max_positions"),
        ([*NAMED, "--context-bytes=-1"], {}, "profile.context_bytes"),
        ([*NAMED, "--target-sha256=abc"], {}, "profile.target_sha256"),
        (NAMED[1:], {"vocab": "64"}, "profile.vocab"),
    ],
)
def test_profile_that_cannot_be_is_refused_by_the_options_name(words, fields, place):
    if place is None:
        with pytest.raises(SystemExit):
            options(*words)
        return
    with pytest.raises(Pp3Error) as caught:
        profile_of(options(*words), fields)
    assert str(caught.value).startswith(f"{place}:")
