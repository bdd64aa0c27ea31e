"""What a proxy shows of itself in the region: counters by name and its last words."""

import json
import logging

from pp3shm.errors import Pp3Error, ProfileError, RegionError
from pp3shm.proxy.counters import INDEX, NAMES
from pp3shm.proxy.state import SessionState
from pp3shm.ring.end import NOTE_BYTES, End

log = logging.getLogger("pp3shm.proxy")


class Board:
    """Counters by name, and a note that says why there is no session.

    Args:
        end: any end of the ring; only a proxy writes, one at a time.
    """

    def __init__(self, end: End) -> None:
        self._end = end
        self._said = ""

    def count(self, name: str, n: int = 1) -> None:
        """Add ``n``."""
        self._end.count(INDEX[name], n)

    def get(self, name: str) -> int:
        """The value now."""
        return int(self._end.counter(INDEX[name]))

    def put(self, name: str, value: int) -> None:
        """Set a value that is a state and not a count. One writer at a time."""
        self._end.count(INDEX[name], (value - self.get(name)) % 2**64)

    def put_state(self, owner: int, state: SessionState) -> None:
        """Show where the session stands, and which proxy's word that is."""
        self.put("session_state", owner << 8 | int(state))

    def state_of(self, owner: int) -> SessionState:
        """Where the session of a proxy stands.

        What a proxy that is dead said last does not speak of the one that follows it:
        until that one speaks there is no session.

        Raises:
            RegionError: the word holds no state.
        """
        word = self.get("session_state")
        if word >> 8 != owner or owner == 0:
            return SessionState.WAITING
        if word & 255 not in tuple(SessionState):
            raise RegionError("session_state", "a state of a session", word & 255)
        return SessionState(word & 255)

    def all(self) -> dict[str, int]:
        """Every value by name."""
        return {name: self.get(name) for name in NAMES}

    def ask_reopen(self) -> None:
        """The engine's user wants a session again."""
        self.count("reopen_asked")

    def reopen_pending(self) -> bool:
        """True from the user's asking until the proxy has done it."""
        return self.get("reopen_asked") != self.get("reopen_done")

    def reopen_seen(self) -> None:
        """What was asked before this moment does not speak of this moment."""
        self.put("reopen_done", self.get("reopen_asked"))

    def note(self, why: Exception | None) -> None:
        """Leave word of the last thing that went wrong; None: all is well."""
        if why is None:
            self._said = ""
            self._end.note_write(b"")
            return
        if str(why) != self._said:  # a worker that stays away is told of once
            self._said = str(why)
            log.warning("%s", why)
        said: dict[str, object] = {"kind": type(why).__name__, "text": str(why)}
        if isinstance(why, ProfileError):
            said |= {"field": why.field, "ours": why.ours, "theirs": why.theirs}
        self._end.note_write(_fit(said))

    def noted(self) -> Exception | None:
        """The note as an error: a ProfileError with its parts, else a Pp3Error."""
        try:
            said = json.loads(self._end.note_read() or b"null")
            if said is None:
                return None
            if said["kind"] == "ProfileError" and "field" in said:
                return ProfileError(said["field"], said["ours"], said["theirs"])
            return Pp3Error(str(said["text"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return Pp3Error("note: expected a note of the proxy, found other bytes")


def _fit(said: dict[str, object]) -> bytes:
    """The note as JSON, its text cut to what fits."""
    data = json.dumps(said).encode("ascii")
    if len(data) <= NOTE_BYTES:
        return data
    text = str(said["text"])
    for length in (300, 150, 50):
        data = json.dumps({"kind": said["kind"], "text": text[:length]}).encode("ascii")
        if len(data) <= NOTE_BYTES:
            return data
    return b'{"kind": "Pp3Error", "text": "a reason too long to be told"}'
