"""Peers: other transports that do the same exchange between two pinned processes.

    this process --- 356 bytes ---> a process that answers at once
                 <-- 5320 bytes, or a REPLY frame of 5412 that is checked here ---

The receiver has bytes of its own, or, where it is checked, reads in place if the peer
allows.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from multiprocessing.process import BaseProcess
from typing import Any

from pp3shm.bench import exchange
from pp3shm.bench.measure import Found, Sizes, cores, flood_of, rounds_of
from pp3shm.bench.transports import IN_FLIGHT, SPAWN, TRANSPORTS, End
from pp3shm.errors import LinkError

STOP = b"stop"
START_S, JOIN_S = 60.0, 10.0


class Peer:
    """One transport.

    Args:
        name: of ``TRANSPORTS``.
        checked: the reply is a frame, and held to the ten checks.
    """

    def __init__(self, name: str, *, checked: bool) -> None:
        self._transport = TRANSPORTS[name]
        self._name = name
        self._checked = checked

    def measure(self, sizes: Sizes) -> Found:
        """One repetition.

        Raises:
            LinkError: whatever went wrong in the peer's code.
        """
        try:
            return self._run(sizes)
        except LinkError:
            raise
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            raise LinkError(f"{self._name}: expected it to run, found {why}") from error

    def _run(self, sizes: Sizes) -> Found:
        with ExitStack() as stack:
            where = self._transport.end.make(stack)
            ready, told = SPAWN.Pipe(duplex=False)
            process = SPAWN.Process(
                target=respond,
                args=(self._name, where, self._checked, told),
                daemon=True,
            )
            process.start()
            told.close()
            stack.callback(_end, process)
            before = os.sched_getaffinity(0)
            os.sched_setaffinity(0, {cores()[0]})
            stack.callback(os.sched_setaffinity, 0, before)
            end: End = self._transport.end(where, asks=True)
            stack.callback(end.close)
            with ready:
                if not ready.poll(START_S):
                    raise LinkError(f"{self._name}: expected the other side to start")
                ready.recv()
            pids = {"asks": os.getpid(), "answers": process.pid or 0}
            return self._measure(end, sizes, pids)

    def _measure(self, end: End, sizes: Sizes, pids: dict[str, int]) -> Found:
        send, receive = end.send, end.receive
        take = self._take()
        self._look(receive, lambda: send(exchange.REQUEST))

        def once() -> int:
            start = time.monotonic_ns()
            send(exchange.REQUEST)
            take(receive())
            return time.monotonic_ns() - start

        found = rounds_of(once, sizes, pids)
        found.per_second = flood_of(
            lambda: send(exchange.REQUEST),
            lambda: take(receive()),
            sizes,
            IN_FLIGHT,
        )
        send(STOP)
        return found

    def _take(self) -> Callable[[Any], object]:
        """What the receiver does with a message: own bytes, or the checks."""
        if self._checked:
            return exchange.Acceptor()
        return bytes  # of bytes: the very same, nothing is copied

    def _look(self, receive: Callable[[], Any], send: Callable[[], object]) -> None:
        """The first message, untimed: its bytes are those that were sent."""
        send()
        if bytes(receive()) != answer(checked=self._checked):
            raise LinkError(f"{self._name}: expected the bytes sent, found others")


def answer(*, checked: bool) -> bytes:
    """What comes back."""
    return exchange.frame() if checked else exchange.REPLY


def respond(name: str, where: Any, checked: bool, told: Any) -> None:
    """In the other process: answer until told to stop."""
    os.sched_setaffinity(0, {cores()[1]})
    end: End = TRANSPORTS[name].end(where, asks=False)
    told.send(None)
    send, receive, data = end.send, end.receive, answer(checked=checked)
    while len(receive()) != len(STOP):
        send(data)
    end.close()


def _end(process: BaseProcess) -> None:
    process.join(JOIN_S)
    if process.is_alive():
        process.kill()
        process.join()
