"""A thread of an engine's process that kills its proxy again and again."""

import contextlib
import os
import random
import signal
import time

from torture.kills.plan import STOP, Plan
from torture.kills.processes import Board, eventually, parent_of

from pp3shm import Engine
from pp3shm.proxy.state import SessionState


def kill_proxies(engine: Engine, plan: Plan, board: Board) -> None:
    """At any moment, also while the next one starts; until the storm is over."""
    rng = random.Random(plan.seed + 1)
    orphaned = 0

    def is_ready_or_over() -> bool:
        return engine.session_state is SessionState.READY or bool(board.flag(STOP))

    while plan.proxy == "process" and not board.flag(STOP):
        if rng.random() < 0.7:  # else it may not even have started
            eventually(is_ready_or_over, 2)
        time.sleep(rng.random() * 0.1)
        if board.flag(STOP) or not _kill_proxy(engine, plan):
            continue
        board.add("proxy kills")
        now = engine.stats()["rounds_orphaned"]
        board.add("rounds taken by a proxy as it was killed", now - orphaned)
        orphaned = now


def _kill_proxy(engine: Engine, plan: Plan) -> bool:
    pid = engine.stats()["proxy_pid"]
    if not pid:
        return False
    with contextlib.suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            # A pid that was read may be another's by now, a pidfd may not.
            if parent_of(pid) != os.getpid():
                return False
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            eventually(lambda: engine.stats()["proxy_pid"] != pid, plan.slack_s)
            return True
        finally:
            os.close(pidfd)
    return False
