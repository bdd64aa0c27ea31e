"""Every error of the library: each names the place, what was expected, what was found.

The parts stay available as attributes, so that a caller need not parse a text.
"""

import re
from typing import Any, Self

_TOLD = re.compile(r"profile\.(\w{1,40}): ours (.{0,400}), theirs (.{0,400})")


class Pp3Error(Exception):
    """The base of all errors raised on purpose by pp3shm."""


class Mismatch(Pp3Error):
    """Something at ``place`` is not what it must be.

    Attributes:
        place: dotted or indexed name of the thing, e.g. ``ids[2, 0, 7]``.
        expected: what would have been accepted, in words or as a value.
        found: what was there.
    """

    def __init__(self, place: str, expected: object, found: object) -> None:
        super().__init__(f"{place}: expected {expected}, found {found}")
        self.place = place
        self.expected = expected
        self.found = found


class FrameError(Mismatch):
    """A frame or body other than a REPLY that is not as the wire page says."""


class ReplyError(Mismatch):
    """A REPLY that fails a check of the wire page, section 6.

    Attributes:
        reason: the check's word: ``frame``, ``crc``, ``header``, ``echo``,
            ``trailer``, ``mask``, ``token``, ``support``, ``probability``, ``mass``.
        round: the round the check was made for, or None.
    """

    def __init__(
        self,
        reason: str,
        place: str,
        expected: object,
        found: object,
        round_: int | None = None,
    ) -> None:
        super().__init__(place, expected, found)
        self.reason = reason
        self.round = round_

    def __str__(self) -> str:
        """``support: ids[2, 0, 7]: expected > 511, found 498 (round 91)``."""
        tail = "" if self.round is None else f" (round {self.round})"
        return f"{self.reason}: {super().__str__()}{tail}"


class ProfileError(Pp3Error):
    """Two profiles differ, or one is impossible.

    Attributes:
        field: the first field that differs.
        ours: our value.
        theirs: the peer's value, or what is allowed.
    """

    def __init__(self, field: str, ours: object, theirs: object) -> None:
        super().__init__(f"profile.{field}: ours {ours}, theirs {theirs}")
        self.field = field
        self.ours = ours
        self.theirs = theirs

    @classmethod
    def told(cls, text: str) -> Self | None:
        """The error a peer told us of in its own words, seen from our side.

        Args:
            text: of the peer's ERROR.

        Returns:
            The error with the two sides changed; None where the text is another.
        """
        found = _TOLD.fullmatch(text)
        if found is None:
            return None
        field, theirs, ours = found.groups()
        return cls(field, ours, theirs)


class ConfigError(Mismatch):
    """An argument, option or file given by the user cannot be used."""


class RegionError(Mismatch):
    """A shared region that cannot be made or attached to."""


class RingError(Mismatch):
    """An operation of the ring was refused."""


class Held(RingError):
    """A claim was refused because somebody still holds an older round.

    Attributes:
        behind: who, which round and since when (``pp3shm.ring.behind.Behind``); None:
            not a claim's refusal, or nobody in particular.
    """

    def __init__(
        self, place: str, expected: object, found: object, behind: Any = None
    ) -> None:
        super().__init__(place, expected, found)
        self.behind = behind


class Exhausted(Held):
    """A claim found no page: the quarantine holds them; the error names its owners."""


class Busy(Held):
    """A claim found the next entry still in use: round open or rank behind."""


class Stale(RingError):
    """The ticket names a round that is no longer in its entry."""


class WaitTimeout(Pp3Error):
    """The caller's own patience ended; the round is not failed by it."""


class LinkError(Pp3Error):
    """A connection could not be made or kept."""


class PeerDied(LinkError):
    """The other side is gone."""


class SessionError(Pp3Error):
    """An event that the session's state does not allow.

    Attributes:
        state: the state it met.
        event: the event.
    """

    def __init__(self, state: object, event: object) -> None:
        super().__init__(f"session: expected an event of {state}, found {event}")
        self.state = state
        self.event = event


class ProposalError(Mismatch):
    """Logits that no proposal can be made from."""


class VerifyError(Mismatch):
    """A target row, draft or q that verification must not use."""
