"""The C core's pump: one call carries rounds and replies until something is rare."""

from typing import Any

from pp3shm._core import ffi, lib
from pp3shm.errors import RingError
from pp3shm.proxy.counters import INDEX
from pp3shm.proxy.greet import Greeting
from pp3shm.proxy.hands import Hands, Place, Taken
from pp3shm.ring.waiting import WAITS, Waiting


class Pump:
    """The data path of one proxy.

    Args:
        hands: the rounds it takes and resolves.
        control_fd: readable when whoever started us wants attention; -1: none.
        waiting: how it waits, for rounds and for replies.
        slice_ns: how long one call may take; 0: for ever. A thread that takes part in
            nobody's signals has no reason to come back, and each time it does it may
            wait for an interpreter that is busy.

    Attributes:
        c: ``struct pp3_pump *``, for calls of the C core.
    """

    def __init__(
        self, hands: Hands, control_fd: int, waiting: Waiting, slice_ns: int
    ) -> None:
        self._hands = hands
        tally = ffi.new(
            "struct pp3_tally *",
            {
                "steps_sent": INDEX["steps_sent"],
                "replies": INDEX["replies"],
                "late": INDEX["late"],
                "returns": INDEX["pump_returns"],
                "row_status": INDEX["row_status_1"],
            },
        )
        pump = lib.pp3_pump_new(hands.c, tally)
        if pump == ffi.NULL:
            raise RingError("pump", "memory for its buffer", "none")
        self.c: Any = ffi.gc(pump, lib.pp3_pump_free)
        self._control_fd = control_fd
        lib.pp3_pump_waits(self.c, WAITS[waiting.wait], waiting.most_ns)
        self._slice_ns = slice_ns

    def open(self, greeting: Greeting) -> None:
        """A session begins; its frames pass through here."""
        lib.pp3_pump_open(self.c, greeting.link.fileno(), greeting.session)

    def close(self) -> None:
        """It is over: no reply of it can come any more."""
        lib.pp3_pump_close(self.c)

    def behind(self, place: Place) -> bool:
        """True where the worker could not append this row's tokens."""
        row = ffi.new(
            "struct pp3_step_row *",
            {
                "slot": place.slot,
                "generation": place.generation,
                "position": place.position,
                "count": place.committed,
            },
        )
        return bool(lib.pp3_pump_behind(self.c, row))

    def __call__(self) -> int:
        """Run until something rare happens: a ``PP3_PUMP_...``."""
        return int(lib.pp3_pump(self.c, self._control_fd, self._slice_ns))

    @property
    def subject(self) -> Taken | None:
        """The round that the last call came back about."""
        subject = self.c.subject
        return None if subject == ffi.NULL else Taken(subject)

    @property
    def error(self) -> int:
        """The reason or -errno of the last call."""
        return int(self.c.error)

    def stop(self) -> None:
        """Ask for the end, from any thread and any signal handler."""
        lib.pp3_pump_stop(self.c)

    @property
    def stopped(self) -> bool:
        """True from the first ``stop`` on."""
        return bool(lib.pp3_pump_stopped(self.c))
