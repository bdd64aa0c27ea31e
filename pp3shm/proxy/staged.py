"""The pump of an ``rdma://`` worker: the same work, by writes into staging areas.

A STEP goes out with one write into the worker's staging slot, its REPLY comes with one
into ours of the same number. All that the C pump keeps of a session stands in the same
struct, and all that it comes back for is come back for here with the same words.
What waits, waits in the core, without the GIL.
"""

import time
from typing import Any, NamedTuple

from pp3shm._core import ffi, lib
from pp3shm.errors import LinkError
from pp3shm.proxy.arrivals import Arrivals
from pp3shm.proxy.board import Board
from pp3shm.proxy.departures import Departures
from pp3shm.proxy.greet import Greeting
from pp3shm.proxy.hands import Hands
from pp3shm.proxy.pump import Pump
from pp3shm.proxy.stage import Stage
from pp3shm.ring.waiting import Waiting

SLEEP_NS = 10_000_000


class _Session(NamedTuple):
    stage: Stage
    arrivals: Arrivals
    departures: Departures


class StagedPump(Pump):
    """The data path of a proxy whose worker writes into its memory.

    Args: as of ``Pump``.
    """

    def __init__(
        self, hands: Hands, control_fd: int, waiting: Waiting, slice_ns: int
    ) -> None:
        super().__init__(hands, control_fd, waiting, slice_ns)
        self._board = Board(hands.end)
        self._session: _Session | None = None
        self._lost = 0  # regions of lanes that could not be closed
        self._waiter: Any = None  # the one that waits now; None: a wait is to begin
        self._since_ns = self._spin_ns = 0  # of that wait: its begin, how long it spins
        self._show()  # what a proxy before us left there is gone with it

    # -- a session -----------------------------------------------------------------

    def open(self, greeting: Greeting) -> None:
        """See ``Pump.open``.

        Raises:
            LinkError: the greeting has no lane.
        """
        stage = Stage(self._hands, self.c, self._board, greeting)
        super().open(greeting)
        self.c.sent = self.c.received = greeting.sequence
        self._session = _Session(stage, Arrivals(stage), Departures(stage, self.behind))
        self._show()

    def close(self) -> None:
        """See ``Pump.close``: the queue pair is destroyed, nothing writes any more."""
        super().close()
        session, self._session = self._session, None
        if session is not None:
            session.stage.poll.close()
            lane = session.stage.lane
            try:
                lane.close()
            except LinkError as error:  # its memory stays where it is, for ever
                self._board.note(error)
            self._lost += lane.regions
        self._show()

    def _show(self) -> None:
        """What of the lane is to be seen from outside."""
        regions, held = 0, 0
        if self._session is not None:
            regions = self._session.stage.lane.regions
            held = self._session.stage.slots.quarantined
        self._board.put("memory_regions", self._lost + regions)
        self._board.put("slots_held", held)

    # -- the turn ------------------------------------------------------------------

    def __call__(self) -> int:
        """Run until something rare happens: a ``PP3_PUMP_...``.

        Raises:
            FrameError: a write that belongs to no round, or a frame on the connection
                that does not belong there.
            LinkError: the lane or the connection is gone.
        """
        session, why = self._session, None
        if session is None:  # not opened: as a link that was lost
            return int(lib.PP3_PUMP_LOST)
        self._waiter = None  # a wait that was given up teaches nothing
        session.arrivals.settle()
        while why is None:
            why = self._turn(session)
        self._board.count("pump_returns")
        return why

    def _turn(self, session: _Session) -> int | None:
        if self.stopped:
            return int(lib.PP3_PUMP_STOPPED)
        self._hands.sweep()
        stage, arrivals, departures = session
        stage.fence()
        for work in (arrivals.take, arrivals.last_words, departures.send):
            why = work()
            if why is not None:
                return why
        return self._rest(session)

    # -- waiting -------------------------------------------------------------------

    def _spin_left(self, stage: Stage) -> int:
        """Nanoseconds; the policy says how long when a wait begins.

        A wait for the worker and one for the engine differ by orders: each is learned
        by itself.
        """
        now = time.monotonic_ns()
        if stage.moved_ns and self._waiter is not None:
            lib.pp3_waiter_end(self._waiter, stage.moved_ns - self._since_ns)
        if stage.moved_ns or self._waiter is None:
            stage.moved_ns = 0
            self._waiter = self.c.waiter + bool(self._hands.c.in_hand)
            self._since_ns = now
            self._spin_ns = lib.pp3_waiter_begin(self._waiter)
        return int(self._spin_ns) - (now - self._since_ns)

    def _rest(self, session: _Session) -> int | None:
        """Spin, then sleep, until there is something to do; some 10 ms at most."""
        stage = session.stage
        left = self._spin_left(stage)
        spin = max(0, min(left, SLEEP_NS))
        sleep = 0 if left > SLEEP_NS else SLEEP_NS  # no sleep before the spin is over
        # What cannot be taken must not keep us awake.
        ring = self._hands.ring if session.departures.waits_for_rounds else ffi.NULL
        wake = lib.pp3_proxy_sleep(
            ring, stage.poll.fileno(), self._control_fd, spin, sleep
        )
        if wake < 0:
            return stage.come_back(lib.PP3_PUMP_RING, error=wake)
        return int(lib.PP3_PUMP_CONTROL) if wake & lib.PP3_WAKE_CONTROL else None
