"""How waits wait: the same three words wherever somebody may choose."""

from dataclasses import dataclass
from typing import Any, Literal

from pp3shm._core import lib
from pp3shm.errors import ConfigError

Wait = Literal["spin", "hybrid", "futex"]
"""``spin`` never sleeps and burns its core; ``futex`` sleeps at once; ``hybrid`` spins
as long as its last waits say that it pays, and then sleeps."""

WAITS: dict[str, int] = {
    "spin": lib.PP3_WAIT_SPIN,
    "hybrid": lib.PP3_WAIT_HYBRID,
    "futex": lib.PP3_WAIT_FUTEX,
}
SPIN_NS = 50_000
"""The longest spin of a hybrid, unless the user says otherwise: about a wake-up."""
MOST_SPIN_NS = 10**18
"""Longer ones are this long: 31 years."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """One choice of it.

    Attributes:
        wait: the word.
        spin_ns: the longest spin of a hybrid, nanoseconds.

    Raises:
        ConfigError: another word, or a negative time.
    """

    wait: str = "hybrid"
    spin_ns: int = SPIN_NS

    def __post_init__(self) -> None:
        """Refuse where it is chosen."""
        if self.wait not in WAITS:
            raise ConfigError("wait", " or ".join(map(repr, WAITS)), repr(self.wait))
        if self.spin_ns < 0:
            raise ConfigError("spin_ns", "0 or more", self.spin_ns)

    @property
    def most_ns(self) -> int:
        """``spin_ns`` as the C core takes it."""
        return min(self.spin_ns, MOST_SPIN_NS)

    def tell(self, waiter: Any) -> None:
        """Set a ``struct pp3_waiter *`` of the C core, which then learns by itself."""
        lib.pp3_waiter_set(waiter, WAITS[self.wait], self.most_ns)
