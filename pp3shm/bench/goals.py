"""What the figures should be, and what a run says of each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure.

    Attributes:
        text: what it is.
        wanted: "at most" or "at least".
        limit: of its value.
        value: from the rows by name; None where one of its rows is missing.
        unit: of value and limit.
    """

    text: str
    wanted: str
    limit: float
    value: Callable[[Mapping[str, Row]], float | None]
    unit: str = "x"

    def judge(self, rows: Mapping[str, Row]) -> dict[str, Any] | None:
        """Its line of the report; None: not measured."""
        found = self.value(rows)
        if found is None:
            return None
        met = found <= self.limit if self.wanted == "at most" else found >= self.limit
        return {
            "figure": self.text,
            "goal": f"{self.wanted} {self.limit:g} {self.unit}",
            "found": found,
            "unit": self.unit,
            "met": met,
        }


def _figure(name: str, of: str) -> Callable[[Mapping[str, Row]], float | None]:
    def value(rows: Mapping[str, Row]) -> float | None:
        found: Any = rows.get(name)
        for part in of.split("/"):
            found = None if found is None else found.get(part)
        return None if found is None else float(found)

    return value


def _ratio(
    name: str, beside: str, of: str = "us/p50", below: str | None = None
) -> Callable[[Mapping[str, Row]], float | None]:
    """Of one row's figure to that of another, ``below`` naming it there if it differs.

    Over the C probes that were run at once with each, if it is a time: the cores'
    distance moves between subjects, and with it all their microseconds.
    """

    def value(rows: Mapping[str, Row]) -> float | None:
        above_, below_ = _figure(name, of)(rows), _figure(beside, below or of)(rows)
        return above_ / below_ if above_ is not None and below_ else None

    return value


FLOOR = "to_floor"  # p50 over the p50 of the C probes beside it
OURS = "ring spin"

GOALS = (
    Goal("round at the ring, spin: to the C floor", "at most", 2.0,
         _ratio(OURS, "floor spin", FLOOR)),
    Goal("iceoryx2, unchecked, to that round", "at least", 3.0,
         _ratio("iceoryx2", OURS, FLOOR)),
    Goal("vLLM MessageQueue, unchecked, to that round", "at least", 8.0,
         _ratio("vLLM MessageQueue", OURS, FLOOR)),
    Goal("Pipe, unchecked, to that round", "at least", 10.0,
         _ratio("Pipe", OURS, FLOOR)),
    Goal("p99 to p50 of that round", "at most", 2.0,
         _ratio(OURS, OURS, "us/p99", "us/p50")),
    Goal("round at the ring, futex: to the C futex floor", "at most", 1.2,
         _ratio("ring futex", "floor futex")),
    Goal("rounds a second, 8 in flight: to iceoryx2's, unchecked", "at least", 1.0,
         _ratio(OURS, "iceoryx2", "per_second")),
    Goal("unix, process: to the C ping-pong over the socket", "at most", 1.25,
         _ratio("unix process", "floor unix")),
    Goal("unix, thread: to the same", "at most", 1.25,
         _ratio("unix thread", "floor unix")),
    Goal("tcp, process: to the C ping-pong over the socket", "at most", 1.25,
         _ratio("tcp process", "floor tcp")),
    Goal("tcp, thread: to the same", "at most", 1.25,
         _ratio("tcp thread", "floor tcp")),
    Goal("4 ranks in one process to 1", "at most", 1.3,
         _ratio("ring hybrid, 4 ranks here", "ring hybrid", FLOOR)),
    Goal("4 ranks in four processes to 1", "at most", 1.3,
         _ratio("ring hybrid, 4 ranks", "ring hybrid", FLOOR)),
    Goal("thread proxy: p99 to the checked page, busy engine to idle", "at most", 2.0,
         _ratio("unix thread, busy", "unix thread", "notes/checked_p99_us")),
    Goal("10 ms before each round: CPU of the engine", "at most", 2.0,
         lambda rows: _percent(rows, "engine"), "%"),
    Goal("10 ms before each round: CPU of the proxy", "at most", 2.0,
         lambda rows: _percent(rows, "proxy"), "%"),
    Goal("10 ms before each round: round to the C futex floor", "at most", 1.5,
         _ratio("ring hybrid 10 ms", "floor futex 10 ms")),
    Goal("p99 from SIGKILL to the failed reply: to a bare pidfd", "at most", 1.5,
         _ratio("kill", "floor pidfd", "us/p99")),
)  # fmt: skip


def _percent(rows: Mapping[str, Row], process: str) -> float | None:
    share = _figure("unix process 10 ms", f"cpu/{process}")(rows)
    return None if share is None else 100 * share


def judged(rows: Mapping[str, Row]) -> list[dict[str, Any]]:
    """Every figure that was measured."""
    found = (goal.judge(rows) for goal in GOALS)
    return [line for line in found if line is not None]
