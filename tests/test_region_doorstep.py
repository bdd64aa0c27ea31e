"""The directory of a door that is a path: swept if of the dead, never of the living."""

import fcntl
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pp3shm.errors import RegionError
from pp3shm.ring import doorstep
from pp3shm.ring.doorstep import Doorstep, sweep_doorsteps

KILLED = """
import os, signal, socket
from pp3shm.ring.doorstep import Doorstep
step = Doorstep()
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.bind(str(step.socket))
print(step.socket, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    """Where no other test's doors are."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def _killed() -> Path:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, check=False
    )
    return Path(done.stdout.strip()).parent


def test_the_next_door_takes_that_of_a_killed_one_away():
    """Socket and directory; its own stays until it is closed."""
    left = _killed()
    assert (left / "ranks").is_socket()
    step = Doorstep()
    assert not left.exists()
    assert step.socket.parent.is_dir()
    step.close()
    assert not step.socket.parent.exists()


def test_a_living_ones_directory_stays():
    """However many others are made."""
    one = Doorstep()
    other = Doorstep()
    sweep_doorsteps()
    assert one.socket.parent.is_dir()
    assert other.socket.parent.is_dir()
    one.close()
    other.close()


def test_a_directory_with_anything_else_in_it_stays(tmp_path):
    """Only what a doorman makes is taken away; links are not followed."""
    full = tmp_path / "pp3shm-door-full"
    full.mkdir()
    (full / "notes").touch()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "pp3shm-door-link").symlink_to(elsewhere)
    sweep_doorsteps()
    assert (full / "notes").exists()
    assert elsewhere.is_dir()


def test_one_swept_before_it_was_locked_is_made_again(monkeypatch):
    """A sweeper may come between creation and lock."""
    lock, seen = fcntl.flock, []

    def swept_first(fd: int, operation: int) -> None:
        if not seen:
            seen.append(fd)
            Path(f"/proc/self/fd/{fd}").readlink().rmdir()
        lock(fd, operation)

    monkeypatch.setattr(doorstep.fcntl, "flock", swept_first)
    step = Doorstep()
    assert seen
    assert step.socket.parent.is_dir()
    step.close()


def test_one_that_is_swept_each_time_is_an_error(monkeypatch):
    """It names the directory."""
    usual = doorstep._opened

    def gone(path: Path) -> int:
        path.rmdir()
        return usual(path)

    monkeypatch.setattr(doorstep, "_opened", gone)
    with pytest.raises(RegionError, match="pp3shm-door-"):
        Doorstep()


def test_no_descriptor_to_be_had_leaves_nothing(monkeypatch, tmp_path):
    """The directory goes with the failure."""

    def refused(path: Path) -> int:
        raise OSError(24, "Too many open files", str(path))

    monkeypatch.setattr(doorstep, "_opened", refused)
    with pytest.raises(OSError, match="Too many"):
        Doorstep()
    assert not list(tmp_path.iterdir())
