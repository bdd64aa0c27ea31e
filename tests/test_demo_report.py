"""What the demo prints: all that was asked, and nothing that steers a terminal."""

import contextlib
import io
import signal
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pp3shm.demo.check import DistributionCheck, Goodness
from pp3shm.demo.report import DemoReport, Growth, printable, show, show_check

RIGHT = Goodness(12345, 60, 58, 55.5, 0.57)
WRONG = Goodness(12345, 60, 58, 4321.0, 1e-300)
REPORT = DemoReport(
    target_name="5-gram",
    draft_name="2-gram",
    target_perplexity=53.26,
    draft_perplexity=87.84,
    vocab=2048,
    depth=3,
    temperature=0.8,
    seconds=4.25,
    tokens=2300,
    rounds=250,
    rows=1000,
    judged=np.array([990, 500, 0]),
    accepted=np.array([495, 200, 0]),
    overlap=np.array([498.3, 205.0, 0.0]),
    failed={"TIMEOUT": 0, "PEER_DIED": 7},
    stages={
        "take": np.arange(1, 1001) * 1000,
        "accept": np.array([], np.int64),
    },
    killed=("worker at round 100",),
)
CHECK = DistributionCheck(8, RIGHT, WRONG, 256)


def shown(report: DemoReport, check: DistributionCheck = CHECK) -> list[str]:
    console = Console(file=io.StringIO(), width=120)
    show(report, console)
    show_check(check, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def line(lines: list[str], *parts: str) -> str:
    """The one line that holds all parts."""
    found = [text for text in lines if all(part in text for part in parts)]
    assert len(found) == 1, (parts, found)
    return found[0]


def test_every_number_of_the_report_is_shown() -> None:
    lines = shown(REPORT)
    line(lines, "target", "5-gram", "53.3")
    line(lines, "draft", "2-gram", "87.8")
    line(lines, "tokens per round", "2.30", "4 most")
    line(lines, "rounds", "250 in 4.2 s")
    line(lines, "killed", "worker at round 100")
    line(lines, " 990 ", " 495 ", "0.500", "0.503")
    line(lines, " 500 ", " 200 ", "0.400", "0.410")
    line(lines, " 3 ", " 0 ", " - ")
    line(lines, "PEER_DIED", " 7 ")
    assert not [text for text in lines if "TIMEOUT" in text]
    line(lines, "take", "1000", "500.5", "990.0", "999.0")
    line(lines, "accept", " 0 ", " - ")
    line(lines, "standard-v1", "12345", "55.5", "58", "0.57", "as the target")
    line(lines, "control", "4321.0", "1e-300", "fails, as it must")
    line(lines, "256 samples")


def test_a_check_that_failed_says_so() -> None:
    swapped = DistributionCheck(8, WRONG, RIGHT, 256)
    lines = shown(REPORT, swapped)
    line(lines, "standard-v1", "NOT the target")
    line(lines, "control", "NOT SEEN")


def test_a_report_without_failures_or_rounds_is_shown_too() -> None:
    lines = shown(replace(REPORT, failed={}, rows=0, tokens=0))
    line(lines, "none", "0")


def test_elsewhere_than_on_a_terminal_whole_lines_are_printed_once() -> None:
    console = Console(file=io.StringIO(), width=200)
    with Growth(console, ["Once", "[bold]Twice"]) as growth:
        growth.update(["a b", "x"], "note")
        growth.update(["a b c\nd", "x" + " y" * 60])
        growth.update(["a b c\nd e", "x" + " y" * 60])
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[:3] == ["[0] Once ...", "[1] [bold]Twice ...", "[0] a b c"]
    assert lines[3].startswith("[1] x y y")
    assert lines[4:] == ["[0] d e", "[1] y"]


@given(st.lists(st.text(alphabet="ab \n[", max_size=90), max_size=8))
def test_every_character_of_a_text_is_printed_in_order(pieces: list[str]) -> None:
    console = Console(file=io.StringIO(), width=1000)
    text = ""
    with Growth(console, [""]) as growth:
        for piece in pieces:
            text += piece
            growth.update([text])
    assert isinstance(console.file, io.StringIO)
    lines = [row.removeprefix("[0] ") for row in console.file.getvalue().splitlines()]
    assert "".join("".join(lines[1:]).split()) == "".join(text.split())


def test_on_a_terminal_the_end_of_each_text_is_seen() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=20)
    with Growth(console, ["Begin", "Other"]) as growth:
        growth.update(["x " * 2000 + "the end", "short"], "round 7")
    assert isinstance(console.file, io.StringIO)
    screen = console.file.getvalue()
    assert "the end" in screen
    assert "request 1" in screen
    assert "round 7" in screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l")  # cursor is back


def test_an_error_inside_leaves_the_terminal_as_it_was() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, height=20)
    with pytest.raises(KeyError), Growth(console, ["Begin"]):
        raise KeyError
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().rindex("\x1b[?25h") > 0


class Interrupting(io.StringIO):
    """A terminal at which somebody types Ctrl-C while something is written."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def write(self, text: str) -> int:
        self.left -= 1
        written = super().write(text)
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)
        return written


@pytest.mark.parametrize("at", range(1, 9))
def test_ctrl_c_at_any_write_gives_the_cursor_back(at: int) -> None:
    file = Interrupting(at)
    console = Console(file=file, force_terminal=True, width=60, height=20)
    with contextlib.suppress(KeyboardInterrupt), Growth(console, ["Begin"]) as growth:
        growth.update(["some"])
        growth.update(["some more"])
    screen = file.getvalue()
    assert screen.rfind("\x1b[?25h") >= screen.rfind("\x1b[?25l")


@given(st.text())
def test_no_text_steers_the_terminal(text: str) -> None:
    clean = printable(f"\x1b[31m\x9b2J\r\x07\t{text}")
    assert all(c.isprintable() or c == "\n" for c in clean)
