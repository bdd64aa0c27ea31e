"""The check of the distribution, made through the real path: how often, and the rounds.

Whether the negative control will be seen is known from the laws alone, so a check that
could not show it is refused before anything is decoded.
"""

import math
import time

import numpy as np
from numpy.typing import NDArray

from pp3shm.demo.check import DistributionCheck, FirstTokens
from pp3shm.demo.decode import Decoder
from pp3shm.errors import ConfigError, LinkError
from pp3shm.layout.tables import Status

MOST_TIMES_MORE = 3
"""Where the usual rounds do not show the control: how many times more are made."""
PATIENCE_S = 60.0


class Proof:
    """The laws, and the rounds it takes.

    Args:
        decoder: of the prompts, with open slots; they are closed here.
        seed: of the control's draws.
        asked: rounds that the user wants, or None.
        usual: rounds that are made where they suffice.

    Raises:
        ConfigError: so many rounds would not show the negative control.
        LinkError: no reply to take q from.
    """

    def __init__(
        self, decoder: Decoder, *, seed: int, asked: int | None, usual: int
    ) -> None:
        self._first = FirstTokens(_target_laws(decoder), _draft_laws(decoder), seed)
        for text in decoder.texts:
            decoder.engine.close_slot(text.slot)
        least = math.ceil(self._first.needed / len(decoder.texts))
        most = usual * MOST_TIMES_MORE
        if asked is not None and asked < least:
            raise ConfigError(
                "--check-rounds",
                f"at least {least} for the negative control to be seen, or 0",
                asked,
            )
        if asked is None and least > most:
            raise ConfigError(
                "text and --temperature",
                f"some at which {most} rounds show the negative control (or "
                f"--check-rounds {least}, or 0)",
                f"too predictable ones: they need {least}",
            )
        self._rounds = asked or max(least, usual)

    def make(self, decoder: Decoder) -> DistributionCheck:
        """Many rounds at the prompts' ends.

        Args:
            decoder: of the same prompts, with open slots.
        """
        drafts: list[list[int]] = [[] for _ in decoder.texts]
        emitted: list[list[int]] = [[] for _ in decoder.texts]

        def see(place: int, draft: int, token: int) -> None:
            drafts[place].append(draft)
            emitted[place].append(token)

        decoder.repeat(self._rounds, see)
        for place, (before, after) in enumerate(zip(drafts, emitted, strict=True)):
            self._first.add(
                place, np.array(before, np.int32), np.array(after, np.int32)
            )
        return self._first.judge()


def _target_laws(decoder: Decoder) -> NDArray[np.float64]:
    """(requests, vocab) the target's law of the first token after each prompt."""
    profile = decoder.engine.profile
    none = np.full(profile.depth, -1, np.int32)
    laws = np.empty((len(decoder.texts), profile.vocab))
    for place, text in enumerate(decoder.texts):
        prefix = np.array(text.tokens, np.int32)
        rows = decoder.target.target_rows(text.slot, text.generation, prefix, none)
        laws[place] = rows[0]
    return laws


def _draft_laws(decoder: Decoder) -> NDArray[np.float64]:
    """(requests, vocab) q of each request's first draft, from one reply.

    Raises:
        LinkError: there is none to be had.
    """
    limit = time.monotonic() + PATIENCE_S
    laws = np.zeros((len(decoder.texts), decoder.engine.profile.vocab))
    while True:
        with decoder.ask() as reply:
            statuses = {int(reply.status[text.slot]) for text in decoder.texts}
            ids, q = reply.ids, reply.q
            if statuses == {Status.OK} and ids is not None and q is not None:
                for place, text in enumerate(decoder.texts):
                    laws[place, ids[text.slot, 0]] = q[text.slot, 0]
                return laws
        if time.monotonic() >= limit:
            found = ", ".join(Status(status).name for status in sorted(statuses))
            raise LinkError(f"check: expected a reply with its q, found {found}")
