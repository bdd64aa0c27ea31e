"""What a user implements to draft, and how the worker calls it.

A drafter is not trusted with anything but time: what it returns is checked, what it
raises is logged and counted, and both fail rows, never the worker.
"""

import contextlib
import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pp3shm.errors import ConfigError
from pp3shm.layout.profile import Profile
from pp3shm.proposal.markov import Markov
from pp3shm.worker.counts import Counts

logger = logging.getLogger("pp3shm.worker")

EXPECTED = "an object with logits() or parallel_logits()"

Tokens = NDArray[np.int32]
Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class DraftRow:
    """One request that is to be drafted for.

    Attributes:
        slot: the engine's state slot.
        generation: of the slot; a new one is another request.
        position: of the first token to draft, ``len(prefix)``.
        prefix: (position,) int32, read-only: the committed tokens. It may be kept:
            these entries never change.
        context: the request's opaque bytes, empty unless the profile has some.
        session: 16 bytes; with slot and generation they name the request.
    """

    slot: int
    generation: int
    position: int
    prefix: Tokens
    context: bytes
    session: bytes


class Drafter(Protocol):
    """Proposes what may come next. Users implement this.

    Methods looked for once, when the worker starts, and called where present:

    - ``parallel_logits(rows) -> (n, depth, vocab) float32``: all positions at once,
      for drafters whose position i does not depend on the tokens drawn before. With
      an attribute ``markov`` (``pp3shm.proposal.Markov``) the bias of the token drawn
      at i - 1 is added to position i. ``logits`` is then not called.
    - ``reset(session, slot, generation, prefix)``: a request begins, or is restated.
    - ``end(session)``: an engine has left; its requests are gone.

    All calls of one worker are made one at a time.
    """

    def logits(self, rows: Sequence[DraftRow], drafted: Tokens) -> Logits:
        """Logits of the next position.

        Called ``depth`` times for each STEP, i = 0, 1, ....

        Args:
            rows: n requests. A row whose logits could not be used is left out of the
                calls that follow.
            drafted: (n, i) int32, read-only: the tokens drawn for them so far.

        Returns:
            (n, vocab) float32: position i of each row; -inf masks a token.
        """


Factory = Callable[[Profile], Drafter]


class DrafterFault(Exception):
    """The drafter raised, or returned something else than it must: already logged."""


class Guard:
    """A drafter behind checks.

    Args:
        drafter: the user's object.
        vocab: width of its logits.
        depth: positions of a proposal.
        counts: where faults are counted.

    Raises:
        ConfigError: its Markov head is none, or of another vocabulary.
    """

    def __init__(self, drafter: object, vocab: int, depth: int, counts: Counts) -> None:
        self._drafter = drafter
        self._vocab = vocab
        self._depth = depth
        self._counts = counts
        self.parallel = callable(getattr(drafter, "parallel_logits", None))
        self.markov = _markov_of(drafter, vocab) if self.parallel else None
        self._has_reset = callable(getattr(drafter, "reset", None))
        self._has_end = callable(getattr(drafter, "end", None))

    def logits(self, rows: Sequence[DraftRow], drafted: Tokens) -> Logits:
        """(n, vocab) float32 of one position.

        Raises:
            DrafterFault: as its name says.
        """
        given = self._call("logits", tuple(rows), drafted)
        return self._checked(given, (len(rows), self._vocab))

    def parallel_logits(self, rows: Sequence[DraftRow]) -> Logits:
        """(n, depth, vocab) float32 of all positions.

        Raises:
            DrafterFault: as its name says.
        """
        given = self._call("parallel_logits", tuple(rows))
        return self._checked(given, (len(rows), self._depth, self._vocab))

    def bias(self, token: int) -> Logits | None:
        """(vocab,) float32: what the Markov head adds after ``token``.

        Raises:
            DrafterFault: it raised, or gave something else.
        """
        if self.markov is None:
            return None
        with self.watching("markov"):
            row: object = self.markov.row(token)
        return self._checked(row, (self._vocab,))

    def reset(self, session: bytes, slot: int, generation: int, prefix: Tokens) -> bool:
        """Tell of a request; False where the drafter could not take it."""
        if not self._has_reset:
            return True
        try:
            self._call("reset", session, slot, generation, prefix)
        except DrafterFault:
            return False
        return True

    def end(self, session: bytes) -> None:
        """Tell that a session is over."""
        if self._has_end:
            try:
                self._call("end", session)
            except DrafterFault:
                return

    def _call(self, name: str, *args: object) -> object:
        with self.watching(name):
            result: object = getattr(self._drafter, name)(*args)
        return result

    def watching(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Whatever the drafter's code raises inside becomes a fault of it.

        Raises:
            DrafterFault: it raised.
        """
        return watching(f"the drafter's {name}", self._counts)

    def _checked(self, given: object, shape: tuple[int, ...]) -> Logits:
        if (
            isinstance(given, np.ndarray)
            and given.dtype == np.float32
            and given.shape == shape
        ):
            return given
        found = (
            f"{given.dtype}{list(given.shape)}"
            if isinstance(given, np.ndarray)
            else type(given).__name__
        )
        self._counts.add("drafter_faults")
        logger.error("logits: expected float32%s, found %s", list(shape), found)
        raise DrafterFault("logits")


class DrafterSource:
    """Gives each session its guarded drafter, and all of them one lock.

    Args:
        drafter: an object with ``logits`` or ``parallel_logits``; or a class or
            function that takes the profile and makes one for each session.
        profile: the worker's.
        counts: where faults are counted.

    Raises:
        ConfigError: it is neither.
    """

    def __init__(
        self, drafter: Drafter | Factory, profile: Profile, counts: Counts
    ) -> None:
        self.lock = threading.Lock()
        self._profile = profile
        self._counts = counts
        self._factory: Factory | None = None
        self._drafter: object = None
        if not isinstance(drafter, type) and drafts(drafter):
            self._guard(drafter)  # refuses an unusable one now
            self._drafter = drafter
        elif callable(drafter):
            self._expect_factory(drafter)
            self._factory = drafter
        else:
            raise ConfigError(
                "drafter", f"{EXPECTED}, or a factory of one", type(drafter).__name__
            )

    def _expect_factory(self, factory: Factory) -> None:
        """Refuse now what no session could call; an odd signature is tried later."""
        try:
            signature = inspect.signature(factory)
        except (TypeError, ValueError):
            return
        try:
            signature.bind(self._profile)
        except TypeError as error:
            name = getattr(factory, "__name__", type(factory).__name__)
            raise ConfigError(
                f"drafter {name}", "one argument, the profile", f"{signature}: {error}"
            ) from error

    def open(self) -> Guard:
        """A drafter for one session.

        Raises:
            DrafterFault: the factory raised or made something else.
        """
        if self._factory is None:
            return self._guard(self._drafter)
        with self.lock, watching("the drafter's factory", self._counts):
            drafter = self._factory(self._profile)
            if not drafts(drafter):
                raise ConfigError("drafter", EXPECTED, type(drafter).__name__)
            return self._guard(drafter)

    def _guard(self, drafter: object) -> Guard:
        return Guard(drafter, self._profile.vocab, self._profile.depth, self._counts)


@contextlib.contextmanager
def watching(what: str, counts: Counts) -> Iterator[None]:
    """Log, count and turn into ``DrafterFault`` whatever is raised inside."""
    try:
        yield
    except BaseException as error:
        # Also a drafter's sys.exit(): it fails rows, never the worker. Signals are not
        # among these, for they never reach a connection's thread.
        faults = counts.add("drafter_faults")
        if faults & (faults - 1) == 0:  # 1, 2, 4, 8, ...: a flood of them fills no disk
            logger.exception("%s raised (fault %d)", what, faults)
        raise DrafterFault(what) from error


def drafts(thing: object) -> bool:
    """True for an object that has one of the two methods a drafter needs."""
    return any(
        callable(getattr(thing, name, None)) for name in ("logits", "parallel_logits")
    )


def _markov_of(drafter: object, vocab: int) -> Markov | None:
    markov = getattr(drafter, "markov", None)
    if markov is None:
        return None
    if not isinstance(markov, Markov):
        raise ConfigError("drafter.markov", "a Markov", type(markov).__name__)
    if markov.vocab not in (None, vocab):
        raise ConfigError("drafter.markov", f"rows of {vocab}", markov.vocab)
    return markov
