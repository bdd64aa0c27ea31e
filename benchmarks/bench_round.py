"""What does a round cost from step to reply, beside a pipe with pickle?

    engine --- step ---> proxy --- STEP ---> worker: 5 drafts a row, vocab 256
           <-- reply ---       <-- REPLY ---
    |<---------------------------- timed ---------------------------->|

- ``pipe``: the same worker process gets the rows through a ``multiprocessing.Pipe`` and
  sends tokens, ids and q of the same shape back, drafted beforehand;
- ``pipe, drafts``: it drafts them, by the same C call as the worker of the rows below;
- ``process``, ``thread``: pp3shm over a Unix socket with that proxy, all checks;
- ``process, by depth``: with a drafter that is called for each of the five positions;
- ``ring, engine``: a proxy process that answers at once, without a link or a worker;
- ``ring``: the same below ``Engine``, by the ring's calls alone.

Ratios are to ``pipe`` where nothing is drafted, else to ``pipe, drafts``. Subjects take
turns, in three blocks. Between rounds, untimed: three tokens are committed, and now and
then a result is held against the readable reference. The split by stage is that of
``Reply.trace``, p50: from step to taken, sent, received, checked, reply.

This thread is pinned to the first core, the worker and ``ring``'s proxy to the last;
the other proxies run where the kernel puts them.

    python benchmarks/bench_round.py [--json FILE] [--rounds N] [--spin-us US]
"""

import contextlib
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import _harness
import numpy as np
from numpy.typing import NDArray

from pp3shm import Engine, Profile, Row, Worker
from pp3shm.layout.frames import Step, StepRow, encode_step
from pp3shm.layout.reply import ReplyLayout
from pp3shm.parts import Parts
from pp3shm.proposal import reference
from pp3shm.proposal.markov import Markov
from pp3shm.proposal.proposal import Chains, propose_chain
from pp3shm.reply import ReplyReader
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd
from pp3shm.ring.waiting import Waiting
from pp3shm.ring.watchdog import Watchdog
from pp3shm.worker.drafters import ChainDrafter, TableDrafter

VOCAB, DEPTH, ROUNDS_IN_RING = 256, 5, 8
BATCHES = (1, 4)
BLOCKS = 3
CHECK_EVERY = 97
COMMITTED = [3, 1, 4]
TIMEOUT_S = 2.0
STAGES = ("taken", "sent", "received", "checked", "reply")
ANSWER = (sys.executable, str(Path(__file__).with_name("_answer.py")))

TABLE = np.random.default_rng(5).normal(0, 2, (VOCAB, VOCAB)).astype(np.float32)
BASE = np.zeros(VOCAB, np.float32)
MARKOV = Markov.table(TABLE)

Arrays = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]]
"""Tokens, ids and q of the rows asked for."""


def profile_of(slots: int, positions: int = 4096) -> Profile:
    """What engine and worker agree on."""
    return Profile.sampled(
        vocab=VOCAB, depth=DEPTH, max_slots=slots, max_positions=positions
    )


def drafts(rows: list[tuple[int, int, list[int]]], round_: int) -> Chains:
    """Drafts of (slot, position, committed) rows."""
    return propose_chain(
        np.broadcast_to(BASE, (len(rows), DEPTH, VOCAB)),
        keys=[(slot, 1) for slot, _, _ in rows],
        round=round_,
        positions=[position for _, position, _ in rows],
        previous=[committed[-1] for _, _, committed in rows],
        markov=MARKOV,
    )


def check(found: Arrays, last: int) -> None:
    """Tokens, ids and q are the reference's, given the tokens drawn before.

    Args:
        found: of all rows.
        last: the committed token before the first draft, the same in all rows.
    """
    for tokens, ids, q in zip(*found, strict=True):
        before = last
        for token, support, share in zip(tokens.tolist(), ids, q, strict=True):
            expected = reference.categorical(BASE + TABLE[before])
            if (
                support.tolist() != expected.ids.tolist()
                or share.tolist() != expected.q.tolist()
                or not share[support == token].any()
            ):
                sys.exit(f"not the reference's proposal after token {before}")
            before = token


# -- the worker's process ----------------------------------------------------------


def serve(pipe: Connection, positions: int) -> None:
    """Workers for every batch size and drafter, and the other end of the pipe."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with contextlib.ExitStack() as stack:
        addresses: dict[tuple[int, str], str] = {}
        drafter: Any
        for slots in BATCHES:
            for drafter in (ChainDrafter(BASE, TABLE, DEPTH), TableDrafter(TABLE)):
                name = f"unix://@pp3shm-bench-{os.getpid()}-{len(addresses)}"
                worker = Worker(drafter, profile_of(slots, positions), [name])
                stack.enter_context(worker)
                addresses[slots, type(drafter).__name__] = worker.addresses[0]
        pipe.send(addresses)
        canned = {}
        for slots in BATCHES:
            chains = drafts([(slot, 1, COMMITTED) for slot in range(slots)], 1)
            canned[slots] = (chains.tokens, chains.ids, chains.q)
        while (request := pipe.recv()) is not None:
            kind, round_, rows = request
            if kind == "canned":
                pipe.send(canned[len(rows)])
            else:
                chains = drafts(rows, round_)
                pipe.send((chains.tokens, chains.ids, chains.q))


@contextlib.contextmanager
def worker_process(positions: int) -> Iterator[tuple[Connection, dict[Any, str]]]:
    """Our end of the pipe and the workers' addresses."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, positions), daemon=True)
    process.start()
    try:
        yield ours, ours.recv()
    finally:
        ours.send(None)
        process.join()


# -- subjects ----------------------------------------------------------------------


class Subject(Protocol):
    """One way to have a round answered.

    Attributes:
        name: in the table.
        beside: the name of its baseline.
    """

    name: str
    beside: str

    def round(self, *, checked: bool) -> list[int]:
        """One round: its nanoseconds, then those of each stage where there are."""


class Pipe:
    """Request and reply through the pipe, by ``send`` and ``recv``."""

    def __init__(self, name: str, kind: str, pipe: Connection, slots: int) -> None:
        self.name = self.beside = name
        self._kind = kind
        self._pipe = pipe
        self._slots = slots
        self._rounds = 0

    def round(self, *, checked: bool) -> list[int]:
        """See ``Subject``."""
        self._rounds += 1
        position = 1 + len(COMMITTED) * self._rounds
        rows = [(slot, position, COMMITTED) for slot in range(self._slots)]
        start = time.monotonic_ns()
        self._pipe.send((self._kind, self._rounds, rows))
        found = self._pipe.recv()
        spent = time.monotonic_ns() - start
        if checked:
            check(found, COMMITTED[-1])
        return [spent]


class Rounds:
    """An engine's rounds of all its slots."""

    def __init__(self, name: str, beside: str, engine: Engine) -> None:
        self.name = name
        self.beside = beside
        self._engine = engine
        self._slots = range(engine.profile.max_slots)
        for slot in self._slots:
            engine.reset(slot, COMMITTED)

    def round(self, *, checked: bool) -> list[int]:
        """See ``Subject``."""
        engine, rows = self._engine, [Row(slot, user_seed=7) for slot in self._slots]
        start = time.monotonic_ns()
        reply = engine.reply(engine.step(rows, timeout_s=TIMEOUT_S))
        end = time.monotonic_ns()
        with reply:
            if reply.trace is None or reply.status.any():
                sys.exit(f"{self.name}: {reply.failed}, {reply.status.tolist()}")
            if checked and reply.ids is not None and reply.q is not None:
                check((reply.tokens, reply.ids, reply.q), COMMITTED[-1])
            stages = np.diff([start, *reply.trace, end]).tolist()
        for slot in self._slots:
            engine.commit(slot, COMMITTED)
        return [end - start, *stages]


class Ring:
    """The ring's own calls, with a STEP that was encoded once."""

    def __init__(self, ring: EngineEnd, body: bytes, page: bytes, spin_ns: int) -> None:
        self.name, self.beside = "ring", "pipe"
        self._ring = ring
        self._body = body
        self._page = page
        self._spin_ns = spin_ns

    def round(self, *, checked: bool) -> list[int]:
        """See ``Subject``."""
        ring = self._ring
        start = time.monotonic_ns()
        ticket = ring.step(self._body, start + int(TIMEOUT_S * 1e9))
        found = ring.wait(ticket, spin_ns=self._spin_ns)
        spent = time.monotonic_ns() - start
        page = ticket.to_bytes(8, "little") + self._page[8:]
        if found.status or (checked and found.view[: len(page)] != page):
            sys.exit(f"ring: status {found.status}, or another page")
        ring.release(ticket)
        return [spent]


class Answering:
    """A watchdog that runs ``_answer.py``; in the place of an engine's proxy."""

    def __init__(self, ring: EngineEnd, page: bytes) -> None:
        self._watchdog = Watchdog(ring, ANSWER, config=page)

    def stats(self) -> dict[str, int]:
        """None of interest."""
        return {}

    def close(self) -> None:
        """End the process."""
        self._watchdog.stop()


def ring_of(profile: Profile) -> EngineEnd:
    """A region of its own, as ``Engine.create`` makes it."""
    layout = ReplyLayout(profile.max_slots, DEPTH, sampled=True)
    shape = Shape(
        rounds=ROUNDS_IN_RING,
        ranks=1,
        page_bytes=profile.page_bytes,
        request_bytes=profile.step_bytes,
        failed_bytes=layout.size,
        head_bytes=layout.head_bytes,
        slots=profile.max_slots,
        max_positions=profile.max_positions,
    )
    region = Region.create(shape, layout_id=profile.layout_id)
    return EngineEnd(region, b"".join(layout.failed(cause, ()) for cause in CAUSES))


def canned_page(slots: int) -> bytes:
    """A page of valid drafts."""
    layout = ReplyLayout(slots, DEPTH, sampled=True)
    page = bytearray(layout.size)
    views = layout.views(page)._asdict()
    rows = drafts([(slot, 3, COMMITTED) for slot in range(slots)], 1)
    for name in ("tokens", "confidence", "ids", "q"):
        views[name][...] = getattr(rows, name)
    views["mask"][...] = 1
    return bytes(page)


def subjects(
    stack: contextlib.ExitStack,
    pipe: Connection,
    addresses: dict[Any, str],
    profile: Profile,
    spin_ns: int,
) -> list[Subject]:
    """All of them, ready; the stack ends them."""
    slots = profile.max_slots
    found: list[Subject] = [
        Pipe("pipe", "canned", pipe, slots),
        Pipe("pipe, drafts", "drafts", pipe, slots),
    ]
    for name, drafter in (
        ("process", "ChainDrafter"),
        ("thread", "ChainDrafter"),
        ("process, by depth", "TableDrafter"),
    ):
        engine = Engine.create(
            profile,
            worker=addresses[slots, drafter],
            proxy="thread" if name == "thread" else "process",
            rounds=ROUNDS_IN_RING,
            wait="hybrid",
            spin_ns=spin_ns,
        )
        stack.enter_context(engine)
        found.append(Rounds(name, "pipe, drafts", engine))
    page = canned_page(slots)
    ring = ring_of(profile)
    proxy: Any = Answering(ring, page)
    parts = Parts(
        ring, None, proxy, ReplyReader(profile, ring, Waiting("hybrid", spin_ns))
    )
    answered = Engine(profile, parts)
    stack.enter_context(answered)
    found.append(Rounds("ring, engine", "pipe", answered))
    ring = stack.enter_context(ring_of(profile))
    stack.callback(Answering(ring, page).close)
    rows = tuple(StepRow(slot, 1, 3, 0, (3, 1, 4)) for slot in range(slots))
    body = encode_step(profile, Step(0, rows))
    found.append(Ring(ring, body, page, spin_ns))
    return found


# -- the table ---------------------------------------------------------------------


def measure(all_of_them: list[Subject], rounds: int) -> dict[str, list[list[int]]]:
    """Every subject's rounds, in blocks; the first tenth of a block warms up."""
    spent: dict[str, list[list[int]]] = {one.name: [] for one in all_of_them}
    for _ in range(BLOCKS):
        for one in all_of_them:
            for i in range(-(rounds // 10), rounds):
                found = one.round(checked=i % CHECK_EVERY == 0)
                if i >= 0:
                    spent[one.name].append(found)
    return spent


def report(slots: int, found: list[Subject], spent: dict[str, Any]) -> list[Any]:
    """Print one group; its rows."""
    rows: list[dict[str, Any]] = []
    p50: dict[str, float] = {}
    for one in found:
        times = np.array(spent[one.name])
        row: dict[str, Any] = {"group": f"B{slots} depth {DEPTH}", "subject": one.name}
        row |= _harness.quantiles(times[:, 0].tolist())
        p50[one.name] = row["p50_us"]
        row["beside"] = one.beside
        row["ratio"] = row["p50_us"] / p50[one.beside]
        stages = np.median(times[:, 1:], axis=0) * 1e-3
        if len(stages):
            row["stages_us"] = dict(zip(STAGES, stages.tolist(), strict=True))
        rows.append(row)
        split = "".join(f"{us:9.1f}" for us in stages)
        print(f"{row['group']:12}{one.name:18}{_harness.shown(row)}"
              f"{row['ratio']:7.2f}  {split}")  # fmt: skip
    return rows


def main() -> None:
    """Both groups."""
    parser = _harness.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=1000, help="in each block")
    parser.add_argument("--spin-us", type=int, default=50, help="before a wait sleeps")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    where = _harness.machine(
        pinned=f"engine {cores[0]}, worker and ring's proxy {cores[-1]}",
        spin_us=options.spin_us,
        vocab=VOCAB,
    )
    print(f"{'':30}{_harness.HEAD}{'ratio':>7}  "
          + "".join(f"{stage:>9}" for stage in STAGES))  # fmt: skip
    results: list[Any] = []
    positions = 64 + len(COMMITTED) * BLOCKS * (options.rounds + options.rounds // 10)
    with worker_process(positions) as (pipe, addresses):
        for slots in BATCHES:
            with contextlib.ExitStack() as stack:
                profile = profile_of(slots, positions)
                spin_ns = options.spin_us * 1000
                found = subjects(stack, pipe, addresses, profile, spin_ns)
                # Only now, and this thread only: the proxies keep all cores.
                os.sched_setaffinity(0, {cores[0]})
                results += report(slots, found, measure(found, options.rounds))
                os.sched_setaffinity(0, cores)
    _harness.write(options.json, where, results)


if __name__ == "__main__":
    main()
