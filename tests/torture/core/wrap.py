"""Figure 14: every counter started near every power of two that it can reach.

The C part is the tests of `c/wrap_tests.c`: tickets, rounds, generations, versions,
wake words, counters, owner ids and the clock, with threads across the boundary. The
Python part holds the C core against the reference: Philox, drafts, verification, STEP
and REPLY.
"""

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from torture.compiler import missing
from torture.core import program
from torture.figure import Batch, Figure, Form

from pp3shm import rng
from pp3shm.layout.core import Core
from pp3shm.layout.frames import decode_step, encode_step
from pp3shm.layout.profile import Profile
from pp3shm.layout.step import Step, StepRow
from pp3shm.proposal import reference
from pp3shm.proposal.proposal import propose_chain
from pp3shm.verify import Request, VerifyKeys, verify

TOOLS = program.Toolchain(("-O0",))
EFFORT = {"short": 1, "medium": 2, "long": 20}
SAMPLES = {"short": 3, "medium": 20, "long": 60}
AROUND = range(-3, 4)


@dataclass(frozen=True)
class Fault:
    """An expression of the text that a switch replaces.

    Attributes:
        name: What is wrong then.
        file: Where it stands.
        old: The expression, there exactly once.
        new: What it is while planted.
        tests: A part of the sentence of the test that has to see it.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str


FAULTS = (
    Fault(
        "a ticket cut to 32 bits",
        "ring/words.h",
        "w >> 24",
        "(w >> 24 & UINT32_MAX)",
        "a ticket passes",
    ),
    Fault(
        "tickets compared as signed numbers",
        "ring/wait.h",
        "PP3_LOAD(ack, relaxed) >= t",
        "(int32_t)PP3_LOAD(ack, relaxed) >= (int32_t)t",
        "a ticket passes",
    ),
    Fault(
        "generations compared as signed numbers",
        "ring/slots.c",
        "generation <= own->generation",
        "(int32_t)generation <= (int32_t)own->generation",
        "generations go up",
    ),
    Fault(
        "an order by < on a wake word that wraps",
        "ring/wait.h",
        "PP3_LOAD(&n->seq, relaxed) == seen",
        "PP3_LOAD(&n->seq, relaxed) <= seen",
        "a wake across the end",
    ),
    Fault(
        "the last ticket given",
        "ring/engine.h",
        "t >= PP3_LAST_TICKET",
        "t > PP3_LAST_TICKET",
        "a ticket passes",
    ),
    Fault(
        "a round read in 32 bits",
        "proxy/exchange.c",
        "round << 8 | step[i]",
        "(uint32_t)(round << 8 | step[i])",
        "a step of another round",
    ),
    Fault(
        "a draw without the upper half of the round",
        "proposal/draft.c",
        "(uint32_t)(round >> 32)",
        "0",
        "draws take every bit",
    ),
    Fault(
        "a verification without the upper half of the round",
        "verify/sparse.c",
        "(uint32_t)(round >> 32)",
        "0",
        "verification takes every bit",
    ),
    Fault(
        "a position that wraps at 32 bits",
        "verify/sparse.c",
        "q->position + i",
        "(uint32_t)(q->position + i)",
        "verification takes every bit",
    ),
    Fault(
        "a clock compared as signed numbers of 32 bits",
        "ring/watch.h",
        "now >= deadline",
        "(int32_t)now >= (int32_t)deadline",
        "clocks and counters",
    ),
    Fault(
        "an owner's id given twice where its counter wraps",
        "ring/watch.h",
        "life == PP3_LIVING",
        "0",
        "owner ids stay apart",
    ),
)


def near(bits: int) -> list[int]:
    """Every number of so many bits that is near a power of two, both ends included."""
    top = 1 << bits
    every = {(1 << k) + by for k in range(bits + 1) for by in AROUND}
    return sorted(number for number in every if 0 <= number < top)


U64, U32 = near(64), near(32)
LOGITS = np.random.default_rng(14).normal(0, 3, (1, 4, 40)).astype(np.float32)
TARGET = LOGITS[:, [0, 1, 2, 3, 0]] + np.sin(np.arange(40, dtype=np.float32))
DRAFTED = propose_chain(LOGITS, keys=[(1, 2)], round=3, positions=[4])
PAGE = {
    "status": np.zeros(1, np.int32), "mask": np.ones(1, np.int32),
    "tokens": DRAFTED.tokens, "ids": DRAFTED.ids, "q": DRAFTED.q,
}  # fmt: skip
PROFILE = Profile.sampled(vocab=129280, depth=5, max_slots=4, max_positions=1 << 20)


def _draws(dice: random.Random, round_: int) -> str:
    """Philox by the reference, by NumPy and by C; a draft by the reference and by C."""
    position = dice.choice(U64)
    seed = dice.choice(U64) - (1 << 63)
    slot, generation = dice.choice(U32), dice.choice(U32)
    for purpose in rng.Purpose:
        key = rng.request_key(purpose, bytes(16), slot, generation, seed)
        counter = rng.counter_of(round_, position)
        one = rng.philox4x32_10(counter, key)
        arrays = (np.array([counter], np.uint32), np.array([key], np.uint32))
        many = tuple(int(word) for word in rng.philox4x32_10_array(*arrays)[0])
        if not one == rng.philox4x32_10_c(counter, key) == many:
            return f"Philox of round {round_}, position {position}, key {key}"
    key = rng.request_key(rng.Purpose.PROPOSAL, bytes(16), slot, generation, seed)
    return _draft(key, round_, min(position, U64[-1] - LOGITS.shape[1]))


def _draft(key: rng.Key, round_: int, position: int) -> str:
    got = propose_chain(LOGITS, keys=[key], round=round_, positions=[position])
    wanted = reference.chain(LOGITS[0], None, key=key, round_=round_, position=position)
    tokens = [int(shown.ids[at]) for shown, at in wanted]
    if got.tokens[0].tolist() != tokens:
        return f"drafts of round {round_}, position {position}, key {key}"
    return ""


def _verification(dice: random.Random, round_: int) -> str:
    """A request by NumPy and by C. Logits, and a uniform is not met at a border."""
    position = min(dice.choice(U64), U64[-1] - LOGITS.shape[1])
    keys = VerifyKeys((dice.choice(U32), dice.choice(U32)), (dice.choice(U32), 7))
    asked = [Request(0, position, keys)]
    page = SimpleNamespace(round=np.uint64(round_), **PAGE)
    emitted = [
        verify(page, TARGET, asked, round=round_, vocab=40, logits=True,
               engine=engine).tokens.tolist()
        for engine in ("numpy", "c")
    ]  # fmt: skip
    if emitted[0] != emitted[1]:
        return f"verification of round {round_}, position {position}, keys {keys}"
    return ""


def _wire(dice: random.Random, round_: int) -> str:
    """A STEP of such numbers, by the reference and by C."""
    row = StepRow(
        slot=dice.randrange(4),
        generation=dice.choice(U32),
        position=dice.choice(U64),
        digest=dice.choice(U64),
        user_seed=dice.choice(U64) - (1 << 63),
        sampled=bool(dice.randrange(2)),
        committed=(1, 2, 3),
        context=b"",
    )
    step = Step(round_, (row,))
    body = encode_step(PROFILE, step)
    if decode_step(PROFILE, body) != step or Core(PROFILE).check_step(body) != len(
        body
    ):
        return f"STEP {step}"
    if int.from_bytes(Core(PROFILE).fail_page(body, 7)[:8], "little") != round_:
        return f"page of round {round_}"
    return ""


def _python(index: int, form: Form) -> Batch:
    dice = random.Random(index)
    wrong, tried = [], 0
    for round_ in U64:
        for _ in range(SAMPLES[form]):
            checks = (_draws, _verification, _wire)
            found = [check(dice, round_) for check in checks]
            wrong += [f"seed {index}: {text}" for text in found if text]
            tried += 1
    facts = {"rounds against the reference": tried}
    return Batch(tried, len(wrong), facts, wrong[0] if wrong else "")


def _step(where: Path, index: int, form: Form) -> Batch:
    if index % 2:
        return _python(index, form)
    core = program.build(where / "native", TOOLS)
    options = ("--seed", str(index), "--effort", str(EFFORT[form]), "--only", "wrap:")
    done = program.run(core, *options)
    facts = {"starts and steps in C": done.tries}
    return Batch(done.tries, int(bool(done.first)), facts, done.first)


def _fault(number: int) -> Callable[[Path], Batch]:
    def run_it(where: Path) -> Batch:
        text = where / "text"
        program.copy(text)
        for at, fault in enumerate(FAULTS, 1):
            switch = f"(planted == {at} ? {fault.new} : {fault.old})"
            program.replace(text, fault.file, fault.old, switch)
        core = program.build(where / "planted", dataclasses.replace(TOOLS, core=text))
        only = ("--only", FAULTS[number - 1].tests)
        clean = program.run(core, *only)
        done = program.run(core, *only, "--plant", str(number), patience=60)
        seen = not clean.first and bool(done.first)
        return Batch(1, int(seen), {}, done.first or clean.first)

    return run_it


FIGURE = Figure(
    number=14,
    name="wrap-around",
    unit="starts and steps near a power of two",
    claim="a wrong round, owner, generation or wake across a power of two",
    steps={"short": 2, "medium": 8, "long": 60},
    step=_step,
    planted={fault.name: _fault(number) for number, fault in enumerate(FAULTS, 1)},
    missing=lambda: missing("gcc"),
)
