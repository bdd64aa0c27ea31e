"""The C checker and the Python reference on the same faulty replies.

Run as a program it judges `count` replies drawn from one seed and prints JSON; a step
of the figure is one such process, so that a crash of the C side ends only that.
`library` names another build of the layout's C text, with a fault in it.
"""

import argparse
import json
import random
from collections import Counter
from typing import Any

import strategies as given_
from cffi import FFI
from judges import Guarded, by_reference, indices
from torture.figure import CORE
from torture.fuzz import inputs

from pp3shm._core import ffi as product_ffi
from pp3shm._core import lib as product
from pp3shm.errors import FrameError
from pp3shm.layout.core import fault_place
from pp3shm.layout.frames import decode_step, encode_step
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import STEP_ROW, step_packing
from pp3shm.layout.validate import REASONS

A_CASE = 50  # faulty replies to one STEP
STEPS_A_CASE = 5
PARTS = ("crc", "step", "page", "accept")


class Core:
    """The C side, the product's own or another build's, beside guarded memory."""

    def __init__(self, library: str = "") -> None:
        self.ffi: Any = product_ffi
        self.lib: Any = product
        if library:
            self.ffi = FFI()
            for part in PARTS:
                self.ffi.cdef((CORE / "layout" / f"{part}.cdef").read_text("ascii"))
            self.lib = self.ffi.dlopen(library)
        self._frame, self._page = Guarded(), Guarded()
        self._fault = self.ffi.new("struct pp3_fault *")
        every = range(product.PP3_CRC_WIDE + 1)  # the last one checks in registers, too
        self.paths = [path for path in every if self.lib.pp3_crc_force(path) == 0]

    def layout(self, profile: Profile) -> Any:
        """``struct pp3_layout *``."""
        values = (profile.vocab, profile.depth, profile.max_slots,
                  profile.max_positions, int(profile.is_sampled),
                  profile.context_bytes)  # fmt: skip
        return self.ffi.new("struct pp3_layout *", values)

    def judge(
        self, layout: Any, step: bytes | None, frame: bytes, room: int
    ) -> tuple[str, str, bytes | None]:
        """(reason, place, page); nothing may be read or written behind either."""
        ffi = self.ffi
        at = ffi.cast("uint8_t *", int(product_ffi.cast(
            "uintptr_t", self._frame.last(len(frame)))))  # fmt: skip
        page = ffi.cast("uint8_t *", int(product_ffi.cast(
            "uintptr_t", self._page.last(room))))  # fmt: skip
        ffi.memmove(at, frame, len(frame))
        reason = self.lib.pp3_accept(
            layout, ffi.NULL if step is None else step, at, len(frame),
            given_.SESSION, inputs.SEQUENCE, page, self._fault,
        )  # fmt: skip
        if reason != self._fault.reason:
            return "none of the ten", "", None
        if reason:
            return REASONS[reason - 1], fault_place(self._fault), None
        return "accepted", "", bytes(ffi.buffer(page, room))


def _spoilt_step(rng: random.Random, profile: Profile, step: bytes) -> bytes:
    """By ``strategies.mutate_step``; or one row over another, so that slots repeat."""
    n = int.from_bytes(step[8:12], "little")
    if n == 1 or rng.random() < 0.8:
        return given_.mutate_step(rng, profile, step)
    packing = step_packing(n, profile.depth, profile.is_sampled, profile.context_bytes)
    body, size = bytearray(step), STEP_ROW.size
    to, of = (packing.offset["rows"] + size * row for row in rng.sample(range(n), 2))
    body[to : to + 4] = body[of : of + 4]
    return bytes(body)


def steps_alike(
    core: Core, layout: Any, profile: Profile, body: bytes
) -> tuple[bool, bool]:
    """Whether C lets a STEP pass, and whether the reference thinks the same of it."""
    size = core.ffi.new("uint32_t *")
    ours = core.lib.pp3_step_check(layout, body, len(body), size) == 0
    try:
        decode_step(profile, body[: size[0]] if ours else body)
    except FrameError:
        # C is given a capacity, so what stands behind a STEP is no fault to it
        return ours, not ours
    return ours, ours


def drawn_profile(rng: random.Random) -> Profile:
    """Any shape; three of four carry the sampled extension."""
    slots, depth, vocab = rng.choice(given_.SHAPES)
    sampled, context = rng.random() < 0.75, rng.choice((0, 0, 1, 7))
    return given_.make_profile(slots, depth, vocab, sampled=sampled, context=context)


def judge_many(core: Core, seed: int, count: int) -> dict[str, Any]:
    """Faulty replies by ``strategies.mutate_reply``: one to three fields at once.

    Returns:
        How many, how many disagreed, the first of them, and the reasons' counts.
    """
    rng = random.Random(seed)
    reasons: Counter[str] = Counter()
    tried = bad = 0
    first = ""
    while tried < count:
        profile = drawn_profile(rng)
        asked = inputs.step_of(profile, rng.randint(1, profile.max_slots), rng)
        step = encode_step(profile, asked)
        reply = given_.make_reply(profile, asked, rng.getrandbits(32), 0.25)
        good = given_.reply_frame(profile, reply)
        layout = core.layout(profile)
        core.lib.pp3_crc_force(rng.choice(core.paths))
        for _ in range(STEPS_A_CASE):
            body = _spoilt_step(rng, profile, step)
            passed, alike = steps_alike(core, layout, profile, body)
            reasons["STEPs passed" if passed else "STEPs refused"] += 1
            if not alike:
                bad += 1
                first = first or f"seed {seed}: {profile}: STEP {body.hex()}"
        for _ in range(min(A_CASE, count - tried)):
            frame = given_.mutate_reply(rng, profile, good)
            awaited = None if rng.random() < 0.03 else step
            wanted = by_reference(profile, awaited, frame)
            found = core.judge(layout, awaited, frame, profile.layout_bytes)
            tried += 1
            reasons[wanted[0]] += 1
            if (wanted[0], indices(wanted[1]), wanted[2]) != (
                found[0], indices(found[1]), found[2],
            ):  # fmt: skip
                bad += 1
                first = first or (
                    f"seed {seed}, input {tried}: reference {wanted[:2]}, C "
                    f"{found[:2]}; {profile.canonical_json().decode()}; "
                    f"step {step.hex()}; frame {frame.hex()}"
                )
    return {"tried": tried, "bad": bad, "first": first, "reasons": dict(reasons)}


def main() -> None:
    """One process's part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("library", nargs="?", default="")
    arguments = parser.parse_args()
    found = judge_many(Core(arguments.library), arguments.seed, arguments.count)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
