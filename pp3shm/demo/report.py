"""What the demo shows, on a console it is given: texts as they grow, then tables.

Needs ``rich``, which the extra ``demo`` brings.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pp3shm.demo.check import (
    FAIL_BELOW,
    PASS_ABOVE,
    DistributionCheck,
    Goodness,
)
from pp3shm.demo.signals import held

_REFRESH_S = 0.1
_PLAIN_COLUMNS = 76


@dataclass(frozen=True, slots=True)
class DemoReport:
    """Everything the final tables show.

    Attributes:
        target_name: what the target is called.
        draft_name: what the drafter is called.
        target_perplexity: of held-out text.
        draft_perplexity: likewise.
        vocab: number of tokens.
        depth: drafts per round.
        temperature: the target's.
        seconds: the decoding took, without set-up and without the check.
        tokens: emitted over all requests.
        rounds: rounds submitted.
        rows: requests answered for, over all rounds (failed ones too).
        judged: (depth,) int64, how often draft i came to be judged.
        accepted: (depth,) int64, how often it was accepted.
        overlap: (depth,) float64, sum of ``sum min(p, q)`` over those judged.
        failed: rounds failed, by the name of the status.
        stages: int64 nanoseconds of each round by the stage's name, in order.
        killed: what was killed on purpose, for the record.
    """

    target_name: str
    draft_name: str
    target_perplexity: float
    draft_perplexity: float
    vocab: int
    depth: int
    temperature: float
    seconds: float
    tokens: int
    rounds: int
    rows: int
    judged: NDArray[np.int64]
    accepted: NDArray[np.int64]
    overlap: NDArray[np.float64]
    failed: Mapping[str, int]
    stages: Mapping[str, NDArray[np.int64]]
    killed: Sequence[str] = field(default=())


def show(report: DemoReport, console: Console) -> None:
    """Print all tables of a report to a console."""
    for table in tables(report):
        console.print(table)


def tables(report: DemoReport) -> list[RenderableType]:
    """The tables of a report, in the order they are shown in."""
    return [
        _summary(report),
        _acceptance(report),
        _failures(report),
        _latency(report),
    ]


def show_check(check: DistributionCheck, console: Console) -> None:
    """Print the check of the distribution to a console."""
    console.print(_distribution(check))


class Growth:
    """The texts as they grow: redrawn on a terminal, line by line elsewhere.

    A context manager; leaving it shows the texts as they stand. No thread is started,
    so that processes can be forked meanwhile.
    """

    def __init__(self, console: Console, prompts: Sequence[str]) -> None:
        """Begin with the prompts.

        Args:
            console: where to print.
            prompts: what each text begins with.
        """
        self._console = console
        self._prompts = [printable(p) for p in prompts]
        self._texts = [""] * len(prompts)
        self._shown = [0] * len(prompts)
        self._note = ""
        self._drawn_s = 0.0
        self._live: Live | None = None

    def __enter__(self) -> Self:
        """Show the prompts."""
        if self._console.is_terminal:
            self._live = Live(self._panels(), console=self._console, auto_refresh=False)
            try:
                with held():  # a drawing that is left half-way cannot be ended
                    self._live.start(refresh=True)
            except BaseException:
                with held():
                    self._live.stop()
                raise
        else:
            for i, prompt in enumerate(self._prompts):
                self._print_plain(i, f"{prompt} ...")
        return self

    def update(self, texts: Sequence[str], note: str = "") -> None:
        """Take the texts as they are now.

        Args:
            texts: what each request emitted so far, without its prompt.
            note: a line about the state, shown on a terminal below the texts.
        """
        self._texts = [printable(t) for t in texts]
        self._note = printable(note)
        if self._live is None:
            self._print_grown(last=False)
        elif time.monotonic() - self._drawn_s >= _REFRESH_S:
            self._drawn_s = time.monotonic()
            with held():
                self._live.update(self._panels(), refresh=True)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Show what has not been shown yet; restore the terminal."""
        if self._live is None:
            self._print_grown(last=True)
            return
        with held():
            try:
                self._live.update(self._panels(), refresh=True)
            finally:
                self._live.stop()

    def _panels(self) -> Group:
        """One panel per text, as much of its end as the screen has lines for."""
        count = max(1, len(self._texts))
        lines = max(2, (self._console.height - 2) // count - 2)
        width = max(8, self._console.width - 4)
        panels: list[RenderableType] = []
        for i, (prompt, text) in enumerate(
            zip(self._prompts, self._texts, strict=True)
        ):
            whole = Text(prompt, style="dim", overflow="fold").append(text, "not dim")
            end = whole.wrap(self._console, width)[-lines:]
            panels.append(Panel(Text("\n").join(end), title=f"request {i}"))
        return Group(*panels, Text(self._note, style="italic"))

    def _print_grown(self, *, last: bool) -> None:
        """Print the whole lines, or at the end all, that were not printed yet."""
        for i, text in enumerate(self._texts):
            begin = self._shown[i]
            end = len(text) if last else text.rfind("\n") + 1
            if not last and end <= begin and len(text) - begin >= _PLAIN_COLUMNS:
                end = text.rfind(" ", begin) + 1  # a long line: up to its last word
            if end > begin:
                self._print_plain(i, text[begin:end])
                self._shown[i] = end

    def _print_plain(self, request: int, text: str) -> None:
        """Print the lines of a text behind the number of its request."""
        for line in text.splitlines():
            if line.strip():
                self._console.print(
                    f"[{request}] {line}", markup=False, highlight=False, emoji=False
                )


def printable(text: str) -> str:
    """A text that cannot steer a terminal: control characters become middle dots."""
    spaced = text.expandtabs(4)
    return "".join(c if c.isprintable() or c == "\n" else "\u00b7" for c in spaced)


def _summary(report: DemoReport) -> Table:
    """Models and totals."""
    table = Table(title="decoded", show_header=False)
    per_round = report.tokens / report.rows if report.rows else 0.0
    for name, model, perplexity in (
        ("target", report.target_name, report.target_perplexity),
        ("draft", report.draft_name, report.draft_perplexity),
    ):
        table.add_row(
            name, Text(f"{printable(model)}, held-out perplexity {perplexity:.1f}")
        )
    table.add_row("vocabulary", f"{report.vocab} tokens")
    table.add_row("temperature", f"{report.temperature:g}")
    table.add_row("rounds", f"{report.rounds} in {report.seconds:.1f} s")
    table.add_row("tokens", f"{report.tokens}")
    table.add_row(
        "tokens per round",
        f"{per_round:.2f} for each request (1 without drafts, {report.depth + 1} most)",
    )
    for name in report.killed:
        table.add_row("killed on purpose", Text(printable(name)))
    return table


def _acceptance(report: DemoReport) -> Table:
    """Acceptance by depth beside its expectation."""
    table = Table(title="acceptance by depth")
    for name in ("depth", "judged", "accepted", "share", "expected: sum min(p, q)"):
        table.add_column(name, justify="right")
    for i in range(report.depth):
        judged, accepted = int(report.judged[i]), int(report.accepted[i])
        share, expected = ("-", "-")
        if judged:
            share = f"{accepted / judged:.3f}"
            expected = f"{float(report.overlap[i]) / judged:.3f}"
        table.add_row(str(i + 1), str(judged), str(accepted), share, expected)
    return table


def _failures(report: DemoReport) -> Table:
    """Failed rounds by reason; a table of its own when there were none too."""
    table = Table(title="rounds failed")
    table.add_column("reason")
    table.add_column("rounds", justify="right")
    for reason, count in report.failed.items():
        if count:
            table.add_row(Text(printable(reason)), str(count))
    if not table.row_count:
        table.add_row("none", "0")
    return table


def _latency(report: DemoReport) -> Table:
    """Percentiles by stage."""
    table = Table(title="step to reply, microseconds")
    table.add_column("stage")
    for name in ("rounds", "p50", "p99", "p99.9"):
        table.add_column(name, justify="right")
    for stage, times_ns in report.stages.items():
        row = ["-"] * 3
        if len(times_ns):
            found = np.percentile(times_ns, (50, 99, 99.9)) / 1000
            row = [f"{value:.1f}" for value in found]
        table.add_row(Text(stage), str(len(times_ns)), *row)
    return table


def _distribution(check: DistributionCheck) -> Table:
    """The check of the distribution with its negative control."""
    table = Table(
        title=f"first emitted tokens against the target, {check.contexts} contexts",
        caption=(
            f"passes above p = {PASS_ABOVE:g}, fails below p = {FAIL_BELOW:g}; the "
            f"control needs about {check.needed} samples to be seen through"
        ),
    )
    table.add_column("verifier")
    for name in ("samples", "cells", "chi-square", "degrees", "p"):
        table.add_column(name, justify="right")
    table.add_column("verdict")
    good, bad = Text("as the target", "green"), Text("NOT the target", "bold red")
    seen, unseen = Text("fails, as it must", "green"), Text("NOT SEEN", "bold red")
    table.add_row(
        "pp3shm, standard-v1",
        *_numbers(check.emitted),
        good if check.emitted_passes else bad,
    )
    table.add_row(
        "control: q a point mass in the ratio",
        *_numbers(check.control),
        seen if check.control_fails else unseen,
    )
    return table


def _numbers(test: Goodness) -> tuple[str, str, str, str, str]:
    """A test's numbers as a row shows them."""
    return (
        str(test.samples),
        str(test.cells),
        f"{test.statistic:.1f}",
        str(test.degrees),
        f"{test.p_value:.3g}",
    )
