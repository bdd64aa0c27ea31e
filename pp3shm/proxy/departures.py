"""From the engine to the worker: STEPs, each with one write into its staging slot."""

import errno
from collections.abc import Callable

from pp3shm._core import ffi, lib
from pp3shm.layout.frames import Kind, encode_frame, profile_flags
from pp3shm.proxy.conversation import SEND_TIMEOUT_S
from pp3shm.proxy.hands import Place, Taken
from pp3shm.proxy.stage import Stage


class Departures:
    """What goes out in one session.

    Args:
        stage: the session.
        behind: whether a row's slot has to be restated first.
    """

    def __init__(self, stage: Stage, behind: Callable[[Place], bool]) -> None:
        self._stage = stage
        self._behind = behind
        self._unsent: Taken | None = None  # in hand; its RESETs come first

    @property
    def waits_for_rounds(self) -> bool:
        """Whether the next round would be taken at once."""
        return self._unsent is None and self._may_take()

    def _may_take(self) -> bool:
        """A slot whose last write is under way is not yet to be had.

        So no send waits, and none takes in what has come: a completion of either kind
        makes the lane's descriptor readable until ``Arrivals.take`` sees to it.
        """
        stage = self._stage
        return stage.slots.ready(stage.lane.under_way) and not lib.pp3_hand_full(
            stage.hands.c
        )

    def send(self) -> int | None:
        """Send what was submitted; why the pump has to come back, or None.

        Raises:
            LinkError: the lane failed.
        """
        # Bounded, so that a flood of rounds keeps neither replies nor orders waiting.
        for _ in range(self._stage.slots.count):
            taken = self._unsent
            if taken is not None and not self._in_hand(taken):
                taken = self._unsent = None  # failed meanwhile: it need not be sent
            if taken is None:
                taken, why = self._take()
                if taken is None:
                    return why
                if any(map(self._behind, taken.places(self._stage.profile))):
                    self._unsent = taken
                    return self._stage.come_back(lib.PP3_PUMP_RESET, taken.c)
            self._unsent = None
            self._write(taken)
        return None

    def _take(self) -> tuple[Taken | None, int | None]:
        """The next round, or why the pump has to come back, or neither."""
        hand = self._stage.hands.c
        code = lib.pp3_hand_take(hand) if self._may_take() else 0
        if code > 0:
            return Taken(hand.taken[hand.in_hand - 1]), None
        if code == 0:
            return None, None
        about = hand.taken[hand.in_hand] if code == -errno.EINVAL else ffi.NULL
        return None, self._stage.come_back(lib.PP3_PUMP_REQUEST, about, code)

    def _in_hand(self, taken: Taken) -> bool:
        hand = self._stage.hands.c
        return bool(lib.pp3_hand_find(hand, taken.round) == taken.c)

    def _write(self, taken: Taken) -> None:
        stage, c = self._stage, self._stage.c
        stage.move()
        flags = profile_flags(stage.profile)
        frame = encode_frame(Kind.STEP, bytes(c.session), c.sent, taken.body, flags)
        slot = stage.slots.post(taken.round, stage.lane.under_way)
        c.sent += 1
        stage.lane.send(slot, frame, SEND_TIMEOUT_S)
        lib.pp3_pump_sent(c, taken.c)
