"""Rounds as a trace that ui.perfetto.dev and chrome://tracing open.

The format is Chrome's Trace Event JSON. In it every party is a process, and every entry
of the ring a thread of each: rounds of one entry follow one another, so that slices
nest.

- ``rounds``: a slice for each round from submit to its last release, in it its steps;
- ``engine``, ``proxy N``, ``worker of proxy N``, ``rank N``: the steps that each is
  busy with or waited for in, joined by arrows.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pp3shm import __version__
from pp3shm.ring.flights import ROOM, read_flights
from pp3shm.stages import STAGES, Rounds, rounds_of

Event = dict[str, Any]

ROUNDS, ENGINE, RANKS, PROXIES, WORKERS = 1, 2, 10, 100, 400
"""Numbers of the parties; ranks, proxies and their workers have their own added."""

_OF_RANKS = STAGES.index("seen")
_AFTER = ("engine", "proxy", "worker", "proxy", "proxy", "rank", "rank")
"""Who is busy with a round, or is waited for, from each stage on."""


@dataclass(frozen=True, slots=True)
class _Step:
    """From one stage that is known to the next."""

    name: str
    party: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _Round:
    """One round as one rank has it.

    Attributes:
        ticket: the round.
        rank: whose record it is.
        steps: in their order, not empty.
        args: what a viewer shows of it.
    """

    ticket: int
    rank: int
    steps: tuple[_Step, ...]
    args: Event


def read_rounds(fd: int, shape: Any) -> list[Rounds]:
    """What the recorders of all ranks hold.

    Args:
        fd: of the acks segment.
        shape: ``struct pp3_shape`` that was checked.
    """
    return [
        rounds_of(read_flights(fd, shape, rank)) for rank in range(int(shape.ranks))
    ]


def write_trace(
    path: str | Path, found: Sequence[Rounds], shape: Any, name: str, last: int = ROOM
) -> int:
    """Write the last rounds of all ranks.

    Args:
        path: a new file, or one to write over.
        found: of each rank.
        shape: ``struct pp3_shape``, for its entries.
        name: of the region.
        last: at most so many rounds, the newest.

    Returns:
        How many there were to write.

    Raises:
        OSError: the file cannot be written.
    """
    rounds = _newest(found, last)
    base = min((one.steps[0].begin for one in rounds), default=0)
    events = [*_events(rounds, int(shape.rounds), base)]
    number = len({one.ticket for one in rounds})
    told = {
        "region": name,
        "rounds": number,
        "records_missed": {str(one.rank): one.lost for one in found},
        "records_unusable": {str(one.rank): one.unlikely for one in found},
        "clock": "CLOCK_MONOTONIC",
        "zero_ns": base,
        "pp3shm": __version__,
    }
    everything = {
        "displayTimeUnit": "ns",
        "otherData": told,
        "traceEvents": [*_names(events, found), *events],
    }
    Path(path).write_text(json.dumps(everything) + "\n", encoding="ascii")
    return number


# -- rounds ------------------------------------------------------------------------


def _newest(found: Sequence[Rounds], last: int) -> list[_Round]:
    """In the order of their tickets; of one ticket by rank."""
    # What came before a rank saw it is the same for all; the first knows most of it.
    shared: dict[int, list[int]] = {}
    for one in found:
        for ticket, times in zip(one.ticket.tolist(), one.times, strict=True):
            shared.setdefault(ticket, times[:_OF_RANKS].tolist())
    kept = set(sorted(shared)[-last:])
    rounds = [
        _round_of(one, at, shared[ticket])
        for one in found
        for at, ticket in enumerate(one.ticket.tolist())
        if ticket in kept
    ]
    return sorted(
        (one for one in rounds if one.steps), key=lambda one: (one.ticket, one.rank)
    )


def _round_of(found: Rounds, at: int, before: list[int]) -> _Round:
    ticket, owner = int(found.ticket[at]), int(found.owner[at])
    own = found.times[at, _OF_RANKS:].tolist()
    times = [*before, *(time if time < 0 else max(time, *before) for time in own)]
    known = [(stage, time) for stage, time in enumerate(times) if time >= 0]
    steps = tuple(
        _Step(
            f"{STAGES[stage]}->{STAGES[then]}",
            _party(_AFTER[stage], found.rank, owner),
            begin,
            end,
        )
        for (stage, begin), (then, end) in pairwise(known)
    )
    args = {
        "ticket": ticket,
        "status": found.status_of(at),
        "slots": found.rows_of(at),
        "page": int(found.page[at]),
        "owner": owner,
    }
    return _Round(ticket, found.rank, steps, args)


def _party(kind: str, rank: int, owner: int) -> int:
    if kind == "engine":
        return ENGINE
    if kind == "rank":
        return RANKS + rank
    return (PROXIES if kind == "proxy" else WORKERS) + owner


# -- events ------------------------------------------------------------------------


class _Lanes:
    """Makes events of slices, so that none begins before what ended on its lane.

    Args:
        entries: of the ring.
        base: nanoseconds that are zero in the trace.
    """

    def __init__(self, entries: int, base: int) -> None:
        self._entries = entries
        self._base = base
        self._over: dict[tuple[int, int], int] = defaultdict(lambda: base)

    def at(self, ph: str, party: int, ticket: int, ns: int, **more: Any) -> Event:
        """One event; it moves to the lane's last one where it would lie before it."""
        lane = party, ticket % self._entries
        self._over[lane] = ns = max(ns, self._over[lane])
        where = {"ph": ph, "pid": party, "tid": lane[1]}
        return {**where, "ts": round((ns - self._base) * 1e-3, 3), **more}


def _events(rounds: list[_Round], entries: int, base: int) -> Iterator[Event]:
    lanes = _Lanes(entries, base)
    by_ticket: dict[int, list[_Round]] = defaultdict(list)
    for one in rounds:
        by_ticket[one.ticket].append(one)
    for same in by_ticket.values():
        yield from _map(lanes, same)
        yield from _steps(lanes, same)


def _map(lanes: _Lanes, same: list[_Round]) -> Iterator[Event]:
    """The slice of a round, and its steps in it: those of the first rank."""
    first = same[0]
    ticket, begin = first.ticket, min(one.steps[0].begin for one in same)
    end = max(one.steps[-1].end for one in same)
    args = {**first.args, "ranks": [one.rank for one in same]}
    named = {"name": f"round {ticket}", "cat": first.args["status"], "args": args}
    yield lanes.at("B", ROUNDS, ticket, begin, **named)
    for step in first.steps:
        yield lanes.at("B", ROUNDS, ticket, step.begin, name=step.name, cat="step")
        yield lanes.at("E", ROUNDS, ticket, step.end)
    yield lanes.at("E", ROUNDS, ticket, end)


def _steps(lanes: _Lanes, same: list[_Round]) -> Iterator[Event]:
    """The steps at those who are busy with them, and an arrow through them by rank."""
    ranks_of: dict[_Step, list[_Round]] = defaultdict(list)
    for one in same:
        for step in one.steps:
            ranks_of[step].append(one)
    for step, ranks in ranks_of.items():
        ticket, status = ranks[0].ticket, ranks[0].args["status"]
        args = {"ticket": ticket, "status": status}
        named = {"name": step.name, "cat": "step", "args": args}
        yield lanes.at("B", step.party, ticket, step.begin, **named)
        for one in ranks:
            ph = "s" if step == one.steps[0] else "f" if step == one.steps[-1] else "t"
            flow = {"name": "round", "cat": "round", "id": ticket << 6 | one.rank}
            if len(one.steps) > 1:
                yield lanes.at(ph, step.party, ticket, step.begin, bp="e", **flow)
        yield lanes.at("E", step.party, ticket, step.end)


def _names(events: list[Event], found: Sequence[Rounds]) -> Iterator[Event]:
    pids = {one.rank: one.pid for one in found}
    for party, entry in sorted({(event["pid"], event["tid"]) for event in events}):
        name = f"entry {entry}"
        yield _meta("thread_name", party, entry, name=name)
        yield _meta("thread_sort_index", party, entry, sort_index=entry)
    for party in sorted({event["pid"] for event in events}):
        yield _meta("process_name", party, 0, name=_called(party, pids))
        yield _meta("process_sort_index", party, 0, sort_index=party)


def _meta(what: str, party: int, entry: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": party, "tid": entry, "args": args}


def _called(party: int, pids: dict[int, int]) -> str:
    if party >= WORKERS:
        return f"worker of proxy {party - WORKERS}"
    if party >= PROXIES:
        return f"proxy {party - PROXIES}"
    if party >= RANKS:
        rank = party - RANKS
        return f"rank {rank} (pid {pids.get(rank, 0)})"
    return "rounds" if party == ROUNDS else "engine"
