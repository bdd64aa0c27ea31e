"""The Markov head: what the previous token adds to the next position's logits.

Three forms. The dense table and the low-rank pair live in memory that the C core reads
by itself; a function is asked by Python once per drafted token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp3shm._core import ffi
from pp3shm.errors import ConfigError
from pp3shm.proposal.reference import low_rank_bias

Bias = Callable[[int], NDArray[np.float32]]
"""Token to its (vocab,) float32 row."""


class Markov:
    """A bias by previous token; made by one of the three class methods.

    Attributes:
        vocab: length of a row; None for a function, whose rows are checked one by one.
        rank: of a low-rank pair, else 0.
        left: what the C core reads: the table, or U; None for a function.
        right: V of a low-rank pair, else None.
    """

    def __init__(
        self,
        row: Bias,
        left: NDArray[np.float32] | None = None,
        right: NDArray[np.float32] | None = None,
    ) -> None:
        self.row = row
        self.rank = 0 if right is None else right.shape[0]
        self.vocab = None if left is None else left.shape[0]
        self.left = left
        self.right = right
        # The buffers keep their arrays alive.
        self.left_pointer: Any = ffi.NULL if left is None else _pointer(left)
        self.right_pointer: Any = ffi.NULL if right is None else _pointer(right)

    @classmethod
    def function(cls, row: Bias) -> Markov:
        """A bias that is computed.

        Args:
            row: gives the (vocab,) float32 row of a token. It is called between the
                depths of a chain, once per request and depth.
        """
        return cls(row)

    @classmethod
    def table(cls, table: NDArray[np.float32]) -> Markov:
        """A bias that is looked up.

        Args:
            table: (vocab, vocab) float32; row t is the bias after token t. It is used
                where it lies if it is C-contiguous.

        Raises:
            ConfigError: another shape or dtype.
        """
        _check("table", table)
        if table.shape[0] != table.shape[1]:
            raise ConfigError("markov.table", "as many rows as columns", table.shape)
        rows = np.ascontiguousarray(table)
        return cls(lambda token: rows[token], rows)

    @classmethod
    def low_rank(cls, left: NDArray[np.float32], right: NDArray[np.float32]) -> Markov:
        """A bias of low rank, ``left[token] @ right``.

        Args:
            left: (vocab, rank) float32, U.
            right: (rank, vocab) float32, V.

        Raises:
            ConfigError: another shape or dtype.
        """
        _check("left", left)
        _check("right", right)
        if left.shape != right.shape[::-1]:
            raise ConfigError("markov.right", f"shape {left.shape[::-1]}", right.shape)
        u, v = np.ascontiguousarray(left), np.ascontiguousarray(right)
        return cls(lambda token: low_rank_bias(u[token], v), u, v)


def _check(name: str, array: NDArray[np.float32]) -> None:
    if array.dtype != np.float32 or array.ndim != 2 or 0 in array.shape:
        raise ConfigError(
            f"markov.{name}", "two axes of float32", f"{array.dtype} {array.shape}"
        )


def _pointer(array: NDArray[np.float32]) -> Any:
    return ffi.from_buffer("float[]", array)
