"""``pp3shm demo`` from its first word to its last process, in small form."""

import contextlib
import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import termios
import threading

import pytest
from commands import END_S, Command, blocking, refused, run, tables
from tiny_models import TEXT, save_model, save_tokenizer

from pp3shm.demo.decode import STAGES
from pp3shm.demo.text import load_text

SMALL = ["--tokens=24", "--check-rounds=100"]
BRIEF = ["--tokens=6", "--check-rounds=0"]
LONG = ["--tokens=100000", "--check-rounds=0"]
OUTAGE = {"PEER_DIED", "TIMEOUT"}


def row(cells, first):
    """The rest of the one row that begins so."""
    found = [rest for name, *rest in cells if name == first]
    assert 1 == len(found), (first, cells)
    return found[0]


def number(text):
    return float(re.match(r"[0-9.e+-]+", text).group())


class Report:
    """What the demo's tables say; each must be there, in its form."""

    def __init__(self, out, depth=5):
        cells = tables(out)
        self.requests = {
            int(i) for i in re.findall(r"^\[([0-9])\] ", out, re.MULTILINE)
        }
        self.tokens = int(row(cells, "tokens")[0])
        self.per_round = number(row(cells, "tokens per round")[0])
        self.killed = [c[1] for c in cells if c[0] == "killed on purpose"]
        assert 1 < number(row(cells, "target")[0].split("perplexity ")[1])
        assert 1 < number(row(cells, "draft")[0].split("perplexity ")[1])
        head = next(i for i, c in enumerate(cells) if c[0] == "depth")
        assert "expected: sum min(p, q)" == cells[head][-1]
        self.acceptance = cells[head + 1 : head + 1 + depth]
        assert [str(i + 1) for i in range(depth)] == [c[0] for c in self.acceptance]
        head = next(i for i, c in enumerate(cells) if c[0] == "reason")
        end = next(i for i, c in enumerate(cells) if c[0] == "stage")
        self.failed = {name: int(count) for name, count in cells[head + 1 : end]}
        assert ["stage", "rounds", "p50", "p99", "p99.9"] == cells[end]
        for stage in STAGES:
            rounds, *times = row(cells, stage)
            if int(rounds):
                p50, p99, p999 = map(float, times)
                assert 0 <= p50 <= p99 <= p999
        self.check = {
            name: next((c for c in cells if c[0].startswith(name)), None)
            for name in ("pp3shm, standard-v1", "control")
        }

    def expect_accepted(self):
        """Drafts were judged and accepted, each share beside an expectation."""
        depth, judged, accepted, share, expected = self.acceptance[0]
        assert "1" == depth
        assert 0 < int(accepted) <= int(judged)
        assert f"{int(accepted) / int(judged):.3f}" == share
        assert 0 < float(expected) <= 1

    def expect_checked(self, samples):
        """The law holds, and the wrong verifier is seen through by the same test."""
        for name, passes in (("pp3shm, standard-v1", True), ("control", False)):
            _, count, cells, statistic, degrees, p, verdict = self.check[name]
            assert samples == int(count)
            assert 0 < int(degrees) < int(cells)
            assert 0 < float(statistic)
            assert passes is (float(p) > 1e-3)
            assert ("as the target" if passes else "fails, as it must") == verdict


def reported(*words, depth=5, **how):
    done = run("demo", *words, **how)
    assert (0, "") == (done.status, done.err), done
    return Report(done.out, depth)


# -- what it shows ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "requests", "depth", "samples"),
    [
        ([], 4, 5, 400),
        (["--proxy=thread"], 4, 5, 400),
        (["--link=region", "--wait=futex"], 4, 5, 400),
        (["--requests=1", "--check-rounds=300"], 1, 5, 300),
        (["--depth=4"], 4, 4, 400),
        (["--temperature=1.5", "--seed=9", "--check-rounds=300"], 4, 5, 1200),
    ],
    ids=["plain", "thread", "region", "one-request", "depth-4", "warm"],
)
def test_the_demo_shows_all_it_promises_and_its_check_holds(
    words, requests, depth, samples
):
    report = reported(*SMALL, *words, depth=depth)
    assert set(range(requests)) == report.requests
    assert 24 * requests <= report.tokens <= (24 + depth) * requests
    assert 1 <= report.per_round <= depth + 1
    assert [] == report.killed
    assert {} == {k: v for k, v in report.failed.items() if k not in ("none", *OUTAGE)}
    report.expect_accepted()
    report.expect_checked(samples)


@pytest.mark.parametrize(
    ("names", "tokens"),
    [(["worker"], 40), (["proxy"], 40), (["worker", "proxy"], 40), (["worker"], 12)],
    ids=["worker", "proxy", "both", "fewest-tokens"],
)
def test_what_is_killed_mid_way_fails_rounds_and_the_text_goes_on(names, tokens):
    words = [f"--kill-{name}" for name in names]
    report = reported(f"--tokens={tokens}", "--check-rounds=100", *words)
    assert names == report.killed
    assert 4 * tokens <= report.tokens
    assert 1 <= sum(report.failed.values())
    assert OUTAGE >= set(report.failed)
    report.expect_checked(400)


@pytest.mark.parametrize("way", ["--proxy=thread", "--link=region"])
def test_a_killed_worker_without_a_proxy_process_comes_back_too(way):
    words = ["--tokens=40", "--check-rounds=100", "--kill-worker", way]
    report = reported(*words)
    assert ["worker"] == report.killed
    assert 1 <= sum(report.failed.values())
    report.expect_checked(400)


def test_a_text_of_ones_own_is_what_the_words_come_from(tmp_path):
    (tmp_path / "text").write_text(load_text()[:300_000].upper())
    more = "--check-rounds=200"
    done = run("demo", *SMALL, more, f"--text={tmp_path}/text")
    assert (0, "") == (done.status, done.err)
    said = "".join(line for line in done.out.splitlines() if line.startswith("["))
    assert said == said.upper()
    Report(done.out).expect_checked(800)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_text_that_the_output_cannot_show_is_shown_as_far_as_it_can(
    tmp_path, encoding
):
    """Nor does anything in it steer the terminal or mean markup to the printer."""
    line = "Ünïcödé [bold]ω[/red] 🜁 \x1b[31m :smile: {n}\n\n"
    (tmp_path / "text").write_text("".join(line.format(n=n) for n in range(400)))
    done = run(
        *("demo", *BRIEF, f"--text={tmp_path}/text"),
        env={"PYTHONIOENCODING": encoding},
    )
    assert (0, "") == (done.status, done.err)
    assert "\x1b" not in done.out
    assert {0, 1, 2, 3} == Report(done.out).requests


def test_a_long_name_of_the_folder_for_temporary_files_is_no_error(tmp_path):
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    reported(*BRIEF, env={"TMPDIR": str(folder)})
    assert [] == list(folder.iterdir())


# -- terminals and pipes ---------------------------------------------------------------


class Terminal:
    """A terminal of some size, and all that was written to it."""

    def __init__(self, rows, columns):
        self._ours, self.theirs = pty.openpty()
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, size)
        self.seen = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self):
        with contextlib.suppress(OSError):  # EIO: the last writer is gone
            while data := os.read(self._ours, 65536):
                self.seen += data

    def close(self):
        """Call once no command holds it any more; gives what was seen."""
        os.close(self.theirs)
        self._thread.join()
        os.close(self._ours)
        return self.seen.decode(errors="replace")  # it may end inside a character


@pytest.mark.parametrize(
    ("kind", "rows", "columns"),
    [("xterm-256color", 40, 200), ("dumb", 24, 200), ("xterm", 2, 4), ("linux", 0, 0)],
    ids=["usual", "dumb", "tiny", "unknown"],
)
def test_on_a_terminal_the_text_grows_in_place_and_the_cursor_comes_back(
    kind, rows, columns
):
    terminal = Terminal(rows, columns)
    env = {"TERM": kind, "COLUMNS": "", "LINES": ""}
    done = run("demo", *SMALL, stdout=terminal.theirs, env=env)
    screen = terminal.close()
    assert (0, "") == (done.status, done.err)
    assert screen.rfind("\x1b[?25h") >= screen.rfind("\x1b[?25l")
    if kind.startswith("xterm-"):
        report = Report(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen))
        report.expect_checked(400)
        assert "request 3" in screen


def test_a_reader_that_leaves_mid_way_ends_the_demo_without_a_word():
    with Command("demo", *LONG) as demo:
        demo.read_until("ready in")
        demo.process.stdout.close()
        assert 1 == demo.process.wait(120)
        assert "" == demo.process.stderr.read()
        demo.expect_nothing_left()


# -- however it ends -------------------------------------------------------------------

MOMENTS = {"start": None, "set-up": "ready in", "text": "[0] "}


def at(demo, moment):
    """Wait until the demo has come so far."""
    if moment is None:
        demo.find("pp3shm")
    else:
        demo.read_until(moment)


@pytest.mark.parametrize(
    ("number", "status", "moment", "proxy"),
    [
        (signal.SIGINT, 130, "set-up", "process"),
        (signal.SIGINT, 130, "text", "process"),
        (signal.SIGINT, 130, "text", "thread"),
        (signal.SIGTERM, 143, "set-up", "process"),
        (signal.SIGTERM, 143, "text", "thread"),
        (signal.SIGHUP, 129, "text", "process"),
    ],
)
def test_a_signal_to_all_of_its_group_ends_it_in_order(
    tmp_path, number, status, moment, proxy
):
    """No traceback, no process, no file: as a terminal sends it."""
    env = {"TMPDIR": str(tmp_path)}
    with Command("demo", *LONG, f"--proxy={proxy}", env=env) as demo:
        at(demo, MOMENTS[moment])
        os.killpg(demo.process.pid, number)
        done = demo.finish()
        assert (status, "") == (done.status, done.err)
        demo.expect_nothing_left()
    assert [] == list(tmp_path.iterdir())


def test_a_signal_that_is_ignored_from_the_start_stays_ignored():
    """As under nohup."""
    with Command(
        *("demo", *LONG),
        prepare=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    ) as demo:
        demo.read_until("[0] ")
        demo.process.send_signal(signal.SIGHUP)
        demo.read_until("[0] ")
        demo.process.send_signal(signal.SIGTERM)
        assert 143 == demo.finish().status
        demo.expect_nothing_left()


@pytest.mark.parametrize("seen", [b"\x1b[?25l", b"request 0", b" tokens, "])
def test_on_a_terminal_ctrl_c_gives_the_cursor_back(seen):
    terminal = Terminal(40, 100)
    with Command("demo", *LONG, stdout=terminal.theirs, env={"TERM": "xterm"}) as demo:
        while seen not in terminal.seen:
            assert demo.process.poll() is None
        os.killpg(demo.process.pid, signal.SIGINT)
        done = demo.finish()
        demo.expect_nothing_left()
    screen = terminal.close()
    assert (130, "") == (done.status, done.err)
    assert screen.rfind("\x1b[?25h") > screen.rfind("\x1b[?25l") > 0


@pytest.mark.parametrize(
    ("moment", "proxy"),
    [*((moment, "process") for moment in MOMENTS), ("text", "thread")],
)
def test_sigkill_of_the_demo_leaves_neither_worker_nor_proxy(tmp_path, moment, proxy):
    env = {"TMPDIR": str(tmp_path)}
    with Command("demo", *LONG, f"--proxy={proxy}", env=env) as demo:
        at(demo, MOMENTS[moment])
        demo.process.kill()
        assert -9 == demo.finish().status
        demo.expect_nothing_left(END_S)


def test_a_worker_that_somebody_else_killed_is_named_after_the_tables():
    with Command("demo", "--tokens=400", "--check-rounds=100") as demo:
        said = demo.read_until("[0] ")
        os.kill(demo.find("pp3shm.demo.worker"), signal.SIGKILL)
        done = demo.finish()
        demo.expect_nothing_left()
    assert 2 == done.status
    assert done.err.startswith("pp3shm demo: worker: expected it to live, found")
    assert "status -9" in done.err
    assert 1 == len(done.err.splitlines())
    report = Report(said + done.out)
    assert 1600 <= report.tokens
    assert 1 <= report.failed["PEER_DIED"]


def test_a_proxy_that_somebody_else_killed_is_started_again():
    with Command("demo", "--tokens=300", "--check-rounds=100") as demo:
        said = demo.read_until("[0] ")
        os.kill(demo.find("-m pp3shm.proxy"), signal.SIGKILL)
        done = demo.finish()
        demo.expect_nothing_left()
    assert (0, "") == (done.status, done.err)
    report = Report(said + done.out)
    assert 1200 <= report.tokens
    report.expect_checked(400)


# -- bad input -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, ["readable file", "No such file"]),
        (b"", ["empty file"]),
        (b"tiny", ["at least 4096 characters", "4 characters"]),
        (b" \n" * 5000, ["at least 4096 characters", "0 characters"]),
        (b"text \0 " * 1000, ["NUL", "byte 5"]),
        (b"\xff\xfe" * 5000, ["UTF-8", "0xff at offset 0"]),
        (b"caf\xe9 " * 2000, ["UTF-8", "0xe9 at offset 3"]),
        (b"y" * (4 * 2**20 + 1), ["at most 4194304 bytes", "4194305"]),
    ],
    ids=["missing", "empty", "tiny", "blank", "nul", "binary", "latin-1", "huge"],
)
def test_a_text_that_cannot_be_learnt_from_is_refused(tmp_path, content, says):
    path = tmp_path / "te\nxt"
    if content is not None:
        path.write_bytes(content)
    refused("demo", f"--text={path}", *BRIEF, says=says)


def test_a_text_without_a_choice_shows_no_control_and_says_so_at_once(tmp_path):
    (tmp_path / "text").write_text("x" * 5000)
    text = f"--text={tmp_path}/text"
    refused("demo", text, "--tokens=6", says=["text and --temperature: expected some"])
    reported(text, *BRIEF)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--depth=3"], ["--depth: expected 4..5, found 3"]),
        (["--depth=6"], ["--depth: expected 4..5, found 6"]),
        (["--requests=0"], ["--requests: expected 1..4, found 0"]),
        (["--requests=5"], ["--requests: expected 1..4, found 5"]),
        (["--tokens=0"], ["--tokens: expected 1..100000, found 0"]),
        (["--tokens=100001"], ["--tokens: expected 1..100000"]),
        (["--check-rounds=-1"], ["--check-rounds: expected 0..", "found -1"]),
        (["--check-rounds=10000001"], ["--check-rounds: expected 0.."]),
        (["--check-rounds=3"], ["--check-rounds: expected at least", "found 3"]),
        (["--seed=-1"], ["--seed: expected 0..", "found -1"]),
        ([f"--seed={2**62 + 1}"], ["--seed: expected 0.."]),
        (["--temperature=0"], ["--temperature: expected 0.001..1000, found 0.0"]),
        (["--temperature=-0.8"], ["--temperature: expected", "found -0.8"]),
        (["--temperature=nan"], ["--temperature: expected", "found nan"]),
        (["--temperature=inf"], ["--temperature: expected", "found inf"]),
        (["--temperature=1e-9"], ["--temperature: expected", "found 1e-09"]),
        (["--temperature=0.02"], ["text and --temperature: expected some at which"]),
        (["--temperature=0.001"], ["laws: expected two that differ"]),
        (["--kill-proxy", "--proxy=thread"], ["--kill-proxy", "--proxy thread"]),
        (["--kill-proxy", "--link=region"], ["--kill-proxy", "--link region"]),
        (["--kill-worker", "--tokens=11"], ["--tokens: expected 12 or more"]),
        (
            ["--kill-worker", "--kill-proxy", "--depth=4", "--tokens=14"],
            ["--tokens: expected 15 or more"],
        ),
        (["--target=x"], ["--target, --draft: expected both", "--target alone"]),
        (["--draft=x"], ["--target, --draft: expected both", "--draft alone"]),
    ],
)
def test_an_option_out_of_range_is_refused_by_its_name(words, says):
    refused("demo", "--tokens=6", *words, says=says)


@pytest.mark.parametrize(
    ("packages", "words", "says"),
    [
        (["rich"], [], ["package rich", "pip install 'pp3shm[demo]'"]),
        (["scipy"], [], ["package scipy", "pip install 'pp3shm[demo]'"]),
        (["tokenizers"], [], ["package tokenizers", "pip install 'pp3shm[demo]'"]),
        (["torch"], ["--target=a", "--draft=b"], ["torch", "pp3shm[hf]"]),
        (["transformers"], ["--target=a", "--draft=b"], ["transformers", "[hf]"]),
    ],
    ids=lambda value: value[0] if value else "",
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_brings_it(
    tmp_path, packages, words, says
):
    if "transformers" in packages:
        pytest.importorskip("torch")  # it is asked for first
    refused("demo", *BRIEF, *words, env=blocking(tmp_path, *packages), says=says)


def test_the_demo_of_ngrams_needs_neither_torch_nor_transformers(tmp_path):
    blocked = ("torch", "transformers", "triton", "pyverbs")
    reported(*BRIEF, env=blocking(tmp_path, *blocked))


# -- two Hugging Face models -----------------------------------------------------------

OFFLINE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with two models of one tokenizer, and others that do not fit."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    root = tmp_path_factory.mktemp("models") / "[models][" / "red]"
    root.mkdir(parents=True)
    save_model(root / "big", 1)
    shutil.copytree(root / "big", root / "small")  # the same but for some noise
    model = transformers.AutoModelForCausalLM.from_pretrained(root / "big")
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(torch.randn_like(weights), alpha=0.02)
    model.save_pretrained(root / "small")
    shutil.copytree(root / "small", root / "other")
    save_tokenizer(root / "other", TEXT.upper())
    shutil.copytree(root / "small", root / "spoilt")
    (root / "spoilt" / "model.safetensors").write_bytes(b"no weights")
    (root / "text").write_text(TEXT)
    return root


def of(models, target, draft):
    return [
        *(f"--target={models / target}", f"--draft={models / draft}"),
        *(f"--text={models / 'text'}", "--tokens=16", "--check-rounds=100"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kill", [[], ["--kill-worker"]], ids=["plain", "kill-worker"])
def test_two_hugging_face_models_go_all_the_way(models, kill):
    """The worker, a process of its own, loads the drafter; the check holds."""
    report = reported(*of(models, "big", "small"), *kill, env=OFFLINE)
    assert 64 <= report.tokens
    assert [word.removeprefix("--kill-") for word in kill] == report.killed
    assert bool(kill) == ("PEER_DIED" in report.failed)
    report.expect_accepted()
    report.expect_checked(400)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "draft", "words", "says"),
    [
        ("big", "other", [], ["--draft", "vocabulary", "expected that of --target"]),
        ("big", "spoilt", [], ["--draft", "a causal language model"]),
        ("big", "small", ["--tokens=99"], ["--tokens: expected at most 34", "99"]),
    ],
    ids=["other", "spoilt", "tokens"],
)
def test_models_that_do_not_fit_are_refused_in_one_line(
    models, target, draft, words, says
):
    refused("demo", *of(models, target, draft), *words, env=OFFLINE, says=says)
