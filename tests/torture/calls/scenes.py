"""What is killed, and what its survivors do: the scenes of kills.py."""

import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from torture.calls.attaching import (
    AttachNamed,
    AttachProxy,
    AttachRank,
    EngineAtTheDoor,
)
from torture.calls.scene import Scene
from torture.calls.trace import mark
from torture.calls.world import (
    expect,
    make_engine,
    names_begin_with_the_process,
    names_of,
    next_create_sweeps,
    until,
)

from pp3shm import Engine, Profile
from pp3shm.ring import segments
from pp3shm.ring.doorstep import Doorstep, sweep_doorsteps
from pp3shm.ring.handover import Doorman

_CHILD_SUBREAPER = 36  # of prctl: orphans of a victim become ours


class Create(Scene):
    """The engine makes a region."""

    def victim(self) -> None:
        mark()
        self.engine = make_engine(self.kind)

    def settle(self) -> str:
        left = len(names_of(self.child.pid))
        next_create_sweeps(self.child.pid)
        return "names left, then swept" if left else "no name left"


class Swept(Create):
    """The same, while another process sweeps: it comes to its end all the same."""

    def stopped(self) -> bool:
        segments.sweep()
        return True

    def resumed(self) -> None:
        names = names_of(self.child.pid)
        wanted = 5 if self.kind == "posix" else 0
        expect(
            f"{wanted} names of a living region: {names}", holds=len(names) == wanted
        )


class Close(Create):
    """The engine closes its region."""

    def victim(self) -> None:
        engine = make_engine(self.kind)
        mark()
        engine.close()


class OpenDoor(Scene):
    """The engine opens a door that is a path, and closes it."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.place = Path(tempfile.mkdtemp())
        tempfile.tempdir = str(self.place)

    def victim(self) -> None:
        engine = make_engine(self.kind)
        mark()
        with Doorman(engine, "path"):
            pass

    def settle(self) -> str:
        left = len(list(self.place.iterdir()))
        Doorstep().close()
        expect("a door left", holds=not list(self.place.iterdir()))
        next_create_sweeps(self.child.pid)
        return "a door left, then swept" if left else "no door left"

    def end(self) -> None:
        tempfile.tempdir = None
        shutil.rmtree(self.place)
        super().end()


class SweptDoor(OpenDoor):
    """The same, while another process sweeps: it comes to its end all the same."""

    def stopped(self) -> bool:
        sweep_doorsteps()
        return True


class WholeEngine(Scene):
    """An engine comes up, with watchdog and proxy process, and is closed again."""

    def victim(self) -> None:
        profile = Profile.sampled(vocab=32, depth=4, max_slots=1, max_positions=8)
        names_begin_with_the_process()
        mark()
        with Engine.create(
            profile,
            worker=f"unix://@pp3shm-nobody-{os.getpid()}",
            kind="posix" if self.kind == "posix" else "memfd",
            connect_timeout_s=0,
        ):
            pass

    def begin(self) -> None:
        ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)

    def settle(self) -> str:
        orphans = 0

        def nobody_left() -> bool:
            nonlocal orphans
            try:
                orphans += os.waitpid(-1, os.WNOHANG)[0] != 0
            except ChildProcessError:
                return True
            return False

        until("no process is left", nobody_left)
        next_create_sweeps(self.child.pid)
        return "a proxy ended by itself" if orphans else "no proxy left"


SCENES: dict[str, Callable[[str], Scene]] = {
    "create": Create,
    "create while swept": Swept,
    "close": Close,
    "attach a rank": AttachRank,
    "attach by name": AttachNamed,
    "attach a proxy": AttachProxy,
    "let a rank in": EngineAtTheDoor,
    "open a door": OpenDoor,
    "open a door while swept": SweptDoor,
    "a whole engine": WholeEngine,
}
