"""Rounds at a door while no worker has the region: they fail at once."""

import time
from collections.abc import Callable

from pp3shm._core import lib
from pp3shm.errors import RingError
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import Status
from pp3shm.proxy.board import Board
from pp3shm.proxy.hands import Hands
from pp3shm.ring.ring import EngineEnd, ProxyEnd

SLEEP_NS = 500_000_000
PAUSE_S = 0.01


def fail_rounds(
    ring: EngineEnd,
    profile: Profile,
    board: Board,
    fds: tuple[int, int],
    heed: Callable[[bool], bool],
) -> None:
    """Fail every round, as a proxy does without a session.

    Args:
        ring: the engine's end; the calling thread is an owner until this returns.
        profile: the engine's.
        board: where they are counted.
        fds: of the listener, and of what else wakes the thread.
        heed: told between rounds whether somebody waits at the listener; False ends
            this.

    Raises:
        RingError: the descriptors cannot be waited for, or the region's bytes.
    """
    with ProxyEnd.thread(ring) as end:
        try:
            hands = Hands(end, profile)
            waiting = False
            while heed(waiting):
                waiting = False
                if _failed_one(hands, board):
                    continue
                wake = lib.pp3_proxy_sleep(end.handle, *fds, 0, SLEEP_NS)
                if wake < 0:
                    end.refuse(wake)
                waiting = bool(wake & lib.PP3_WAKE_LINK)
        finally:
            # This thread is the owner, and from here on it touches nothing.
            ring.owner_dead(end.owner)


def _failed_one(hands: Hands, board: Board) -> bool:
    """Fail the next round, if there is one."""
    hands.sweep()
    try:
        if hands.take() is None:
            return False
    except RingError as error:
        board.count("bad_request")
        board.note(error)
        time.sleep(PAUSE_S)  # a word that steers nowhere stays as it is
        return True
    board.count("peer_died", hands.fail_all(Status.PEER_DIED))
    return True
