"""The demo with its worker elsewhere: another process stands for another host."""

import signal

import pytest
from commands import END_S, Command, blocking, refused, run
from tiny_models import TEXT

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
