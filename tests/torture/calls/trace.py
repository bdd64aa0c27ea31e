"""A forked child under ptrace, stopped at the entry and exit of each system call.

All its threads are followed. The child says where counting begins and ends by stopping
itself, so that every call between the two is a point, whatever libraries make it.
"""

import ctypes
import os
import select
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress

_TRACEME, _CONT, _SYSCALL, _SETOPTIONS = 0, 7, 24, 0x4200
_GOOD, _CLONE, _EXITKILL = 0x1, 0x8, 0x100000
_WALL = 0x40000000
_TRAP = signal.SIGTRAP | 0x80  # a stop at a call, and no trap of another kind
_HANG_S = 120.0  # far above what a loaded machine takes

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


class Victim:
    """A child that runs up to its first mark, and is there.

    Args:
        body: What it does, in the child. It calls ``mark`` where the points begin, and
            once more where they end; it does not return before the first.

    Attributes:
        pid: Its process.
        pidfd: Readable when it is gone.
        stops: How many there were on the last walk.
        hung: It did not come to a point within a minute, and was killed.
    """

    def __init__(self, body: Callable[[], None]) -> None:
        self.hung = False
        self.stops = 0
        self.pid = os.fork()
        if self.pid == 0:
            _be_victim(body)
        self.pidfd = os.pidfd_open(self.pid)
        os.waitpid(self.pid, _WALL)
        self._at = self.pid  # the thread that stands still
        self._ptrace(_SETOPTIONS, self.pid, _GOOD | _CLONE | _EXITKILL)

    @staticmethod
    def _ptrace(request: int, pid: int, data: int = 0) -> None:
        with suppress(ProcessLookupError):
            if _libc.ptrace(request, pid, None, data) < 0 and ctypes.get_errno() != 3:
                raise OSError(ctypes.get_errno(), "ptrace")

    def prepare(self) -> bool:
        """Lets it come to its first mark; False if it ended before."""
        return self._run(_CONT, None)[1]

    def walk(self, limit: int | None) -> bool:
        """On to a point.

        Args:
            limit: How many stops; None: to the end.

        Returns:
            Whether it stands at its second mark.
        """
        if limit == 0:
            return False
        self.stops, ended = self._run(_SYSCALL, limit)
        return ended

    def finish(self) -> bool:
        """From where it stands to its second mark."""
        return self._run(_CONT, None)[1]

    def _run(self, request: int, limit: int | None) -> tuple[int, bool]:
        timer = threading.Timer(_HANG_S, self._hang)
        timer.start()
        try:
            return self._follow(request, limit)
        finally:
            timer.cancel()
            timer.join()

    def _hang(self) -> None:
        self.hung = True
        signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def _follow(self, request: int, limit: int | None) -> tuple[int, bool]:
        stops = 0
        self._ptrace(request, self._at)
        while True:
            pid, status = os.waitpid(-1, _WALL)
            self._at = pid
            if not os.WIFSTOPPED(status):
                if pid == self.pid:
                    return stops, False
                continue
            stopped, deliver = os.WSTOPSIG(status), 0
            if stopped == _TRAP:
                stops += 1
                if stops == limit:
                    return stops, False
            elif stopped == signal.SIGSTOP and pid == self.pid:
                return stops, True
            elif stopped not in (signal.SIGTRAP, signal.SIGSTOP):
                deliver = stopped
            self._ptrace(request, pid, deliver)

    def kill(self) -> bool:
        """SIGKILL where it stands; True once its pidfd says that it is gone."""
        with suppress(ProcessLookupError, ChildProcessError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            while True:  # each of its threads is reported, the process last
                pid, status = os.waitpid(-1, _WALL)
                if pid == self.pid and not os.WIFSTOPPED(status):
                    break
        return bool(select.select([self.pidfd], [], [], _HANG_S)[0])

    def close(self) -> None:
        """Lets go of the pidfd."""
        os.close(self.pidfd)


def mark() -> None:
    """In the child: here the points begin, or end."""
    signal.raise_signal(signal.SIGSTOP)  # this thread, none of the others


def _be_victim(body: Callable[[], None]) -> None:
    try:
        if _libc.ptrace(_TRACEME, 0, None, None) == 0:
            mark()
            body()
            mark()
    except BaseException:  # noqa: BLE001  # it ends here, whatever it was
        traceback.print_exc()
    finally:
        os._exit(3)
