"""When the demo's process may be ended by a signal, and how."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


def _in_main_thread() -> bool:
    """Only there are signals handled."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def orderly_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: nothing is left behind."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    numbers = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if _in_main_thread() and signal.getsignal(number) is signal.SIG_DFL
    ]  # one that is ignored, as under nohup, stays so
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """What must not be left half-way: a signal that comes meanwhile comes after it."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {
        number: signal.signal(number, note)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if _in_main_thread() and callable(signal.getsignal(number))
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for caught in came:
            signal.raise_signal(caught)
