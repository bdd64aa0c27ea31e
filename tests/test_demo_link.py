"""The demo with its worker elsewhere: another process stands for another host."""

import signal
from pathlib import Path

import pytest
from commands import END_S, Command, blocking, refused, run
from tiny_models import TEXT

from pp3shm.cli import _parser
from pp3shm.demo.main import _connected, _profile
from pp3shm.demo.pair import build_ngram_pair

SMALL = ["--tokens=12", "--check-rounds=0"]


@pytest.fixture
def text(tmp_path):
    """A small text, the same for both."""
    path = tmp_path / "text"
    path.write_text(TEXT)
    return f"--text={path}"


def test_a_worker_that_another_demo_serves_drafts_for_this_one(tmp_path, text):
    at = f"unix://{tmp_path}/socket"
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    words = [text, *SMALL, f"--key-file={key}"]
    with Command("demo", f"--serve={at}", *words) as other:
        other.read_until("serving at")
        for _ in range(2):
            done = run("demo", f"--worker={at}", *words)
            assert (0, "") == (done.status, done.err)
            assert "tokens per round" in done.out
        other.process.send_signal(signal.SIGTERM)
        assert 128 + signal.SIGTERM == other.finish().status
        other.expect_nothing_left(END_S)


def test_a_worker_of_other_models_is_refused_by_name(tmp_path, text):
    at = f"unix://{tmp_path}/socket"
    with Command("demo", f"--serve={at}", text, *SMALL) as other:
        other.read_until("serving at")
        done = run("demo", f"--worker={at}", *SMALL)  # the usual text
        assert 2 == done.status
        assert "profile." in done.err
        other.process.send_signal(signal.SIGTERM)
        other.finish()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--worker=unix://@x", "--kill-worker"], ["--kill-worker", "of the demo's"]),
        (["--worker=unix://@x", "--serve=unix://@y"], ["one of them", "both"]),
        (["--worker=nonsense"], ["--worker", "tcp://host:port"]),
        (["--serve=rdma://h:1"], ["--serve", "--link socket"]),
        (["--link=rdma", "--worker=tcp://h:1"], ["--worker", "--link rdma"]),
        (["--link=carrier"], ["--link", "'carrier'"]),
    ],
)
def test_options_that_do_not_go_together_are_refused(words, says):
    refused("demo", *words, *SMALL, says=says)


@pytest.fixture(scope="module")
def pair():
    """Models of a small text."""
    return build_ngram_pair(TEXT)


@pytest.mark.parametrize("wait", ["spin", "hybrid", "futex"])
@pytest.mark.parametrize("link", ["socket", "region"])
def test_how_to_wait_and_the_key_reach_both_ends(link, wait, pair, tmp_path):
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    words = ["demo", f"--link={link}", f"--wait={wait}", f"--key-file={key}"]
    args = _parser().parse_args([*words, "--proxy=thread"])
    directory = tmp_path / "demo"
    directory.mkdir()
    profile = _profile(args, pair, 8)
    with _connected(args, directory, pair, profile) as (engine, worker):
        plan = engine._proxy._plan
        assert (b"k" * 32, wait) == (plan.psk, plan.waiting.wait)
        told = Path(f"/proc/{worker._process.pid}/cmdline").read_text().split("\0")
        theirs = Path(told[told.index("--key-file") + 1])
        assert b"k" * 32 == theirs.read_bytes()
        if link == "region":  # the worker is the proxy: nobody else waits there
            assert wait == told[told.index("--wait") + 1]


@pytest.mark.parametrize("link", ["socket", "region"])
def test_a_key_file_that_is_none_is_refused_over_every_link(link, tmp_path):
    words = [f"--link={link}", f"--key-file={tmp_path}/none"]
    refused("demo", *words, *SMALL, says=["none", "No such file"])


def test_rdma_without_pyverbs_says_how_to_get_it(tmp_path):
    environment = blocking(tmp_path, "pyverbs")
    refused(
        *("demo", "--link=rdma", *SMALL),
        says=["python3-pyverbs", "No module named 'pyverbs'"],
        env=environment,
    )
    refused(
        *("worker", "--listen=rdma://127.0.0.1:0", "--vocab=64", "--depth=4"),
        *("--max-slots=1", "--max-positions=64"),
        "--drafter=pp3shm.worker.drafters:seeded_table",
        says=["python3-pyverbs", "No module named 'pyverbs'"],
        env=environment,
    )
