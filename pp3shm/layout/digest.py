"""The prefix digest of a request, kept incrementally (wire page, section 4)."""

import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import FrameError
from pp3shm.layout.record import shown

_PERSON = b"pp3shm.prefix.v1"
_LOWEST, _HIGHEST = -(2**31), 2**31 - 1


def token_bytes(tokens: Sequence[int] | NDArray[Any]) -> bytes:
    """Tokens as ``<i``, refused where one is no 32-bit integer.

    Raises:
        FrameError: a token does not fit, or is no integer.
    """
    if isinstance(tokens, np.ndarray):
        whole = tokens.dtype.kind in "iu" and tokens.ndim == 1
        if whole and tokens.size and tokens.dtype != np.int32:
            whole = int(tokens.min()) >= _LOWEST and int(tokens.max()) <= _HIGHEST
        if not whole and tokens.size:
            raise FrameError("tokens", "a row of 32-bit integers", tokens.dtype)
        return tokens.astype("<i4").tobytes()
    try:
        return struct.pack(f"<{len(tokens)}i", *tokens)
    except struct.error:
        raise FrameError("tokens", "32-bit integers", shown(list(tokens))) from None


class PrefixDigest:
    """BLAKE2b-64 over a committed prefix; appending never hashes it again.

    Attributes:
        length: tokens hashed so far.
    """

    __slots__ = ("_hash", "length")

    def __init__(self, tokens: Sequence[int] | NDArray[Any] = ()) -> None:
        self._hash = blake2b(digest_size=8, person=_PERSON)
        self.length = 0
        self.update(tokens)

    def update(self, tokens: Sequence[int] | NDArray[Any]) -> None:
        """Appends tokens.

        Raises:
            FrameError: a token is no 32-bit integer; nothing was appended.
        """
        data = token_bytes(tokens)
        self._hash.update(data)
        self.length += len(data) // 4

    @property
    def value(self) -> int:
        """The digest as ``<Q``."""
        return int.from_bytes(self._hash.digest(), "little")

    def longer(self, data: bytes) -> "PrefixDigest":
        """An independent digest, with these tokens appended.

        Args:
            data: of ``token_bytes``.
        """
        twin = object.__new__(PrefixDigest)
        twin._hash = self._hash.copy()
        twin._hash.update(data)
        twin.length = self.length + len(data) // 4
        return twin

    def copy(self) -> "PrefixDigest":
        """An independent digest of the same prefix."""
        return self.longer(b"")

    __copy__ = copy  # a plain shallow copy would share the running hash
