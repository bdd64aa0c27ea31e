"""Figure 11: bounds, overflow and alignment of every decoder, for all inputs, by ESBMC.

The product's text with small numbers (small.h): n and depth up to 2, support 4; the CRC
any value, every word of the region another at each look. Loops are unwound completely:
that no turn is left out is one of the conditions.
"""

from collections.abc import Callable
from pathlib import Path

from torture.bounds import prover
from torture.bounds.harnesses import FAULTS, HARNESSES
from torture.changed import plant
from torture.figure import Batch, Figure, Form


def _step(_: Path, index: int, form: Form) -> Batch:
    del form
    return prover.prove(HARNESSES[index])


def _planted(name: str) -> Callable[[Path], Batch]:
    def run(where: Path) -> Batch:
        harness, changes = FAULTS[name]
        core = plant(where / name.replace(" ", "-"), *changes)
        return prover.refute(harness, core)

    return run


FIGURES = (
    Figure(
        number=11,
        name="bounds",
        unit="proofs",
        claim="an input that makes a decoder leave its memory, overflow or misalign",
        steps={"short": 10, "medium": 19, "long": len(HARNESSES)},
        step=_step,
        planted={name: _planted(name) for name in FAULTS},
        missing=prover.missing,
        random=False,
    ),
)
