"""Checks of what proposals are made from, before any pointer goes to the C core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pp3shm._core import lib
from pp3shm.errors import ConfigError
from pp3shm.rng import MASK32, MASK64

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MOST_SUPPORT: int = lib.PP3_SUPPORT_MAX
RULES: dict[str, int] = {
    "floor-first": lib.PP3_FLOOR_FIRST,
    "largest-remainder": lib.PP3_LARGEST_REMAINDER,
}


def floats(name: str, array: NDArray[np.float32], axes: int) -> NDArray[np.float32]:
    """The array as C reads it. Another dtype is refused: rounding is the caller's."""
    if array.dtype != np.float32 or array.ndim != axes or 0 in array.shape:
        raise ConfigError(
            name, f"{axes} axes of float32", f"{array.dtype} {array.shape}"
        )
    return np.ascontiguousarray(array)


def bias_row(name: str, row: NDArray[np.float32], vocab: int) -> NDArray[np.float32]:
    """A bias as C reads it: one float32 per logit."""
    checked = floats(name, row, 1)
    if checked.shape[0] != vocab:
        raise ConfigError(name, f"{vocab} entries", checked.shape[0])
    return checked


def check_numbers(vocab: int, k: int, tau_milli: int, rule: str) -> None:
    """Refuses a support, temperature or rule that there is none of."""
    if not 1 <= k <= min(MOST_SUPPORT, vocab):
        raise ConfigError("k", f"1 to {min(MOST_SUPPORT, vocab)}", k)
    if not 1 <= tau_milli <= MASK32:
        raise ConfigError("tau_milli", f"1 to {MASK32}", tau_milli)
    if rule not in RULES:
        raise ConfigError("rule", " or ".join(RULES), rule)


def check_counter(round_: int, positions: Sequence[int], depth: int = 1) -> None:
    """Refuses what no counter can hold, the last of ``depth`` positions included."""
    if not 0 <= round_ <= MASK64:
        raise ConfigError("round", "a number of 64 bits", round_)
    for position in positions:
        if not 0 <= position <= MASK64 - (depth - 1):
            raise ConfigError("position", "a number of 64 bits", position)


def previous_tokens(
    given: Sequence[int | None] | None, n: int, vocab: int
) -> list[int]:
    """The previous tokens as C wants them: -1 where there is none."""
    if given is None:
        return [-1] * n
    if len(given) != n:
        raise ConfigError("previous", f"{n}, one per request", len(given))
    for token in given:
        if token is not None and not 0 <= token < vocab:
            raise ConfigError("previous", f"None, or 0 to {vocab - 1}", token)
    return [-1 if token is None else int(token) for token in given]
