"""``pp3shm ...`` in real processes, and what they leave behind."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARK = "PP3SHM_TEST_MARK"
"""Every process that descends from a command carries this variable with its value."""
PP3SHM = (sys.executable, "-P", "-m", "pp3shm")
COMMANDS = {
    "demo", "worker", "conformance", "bench", "ls", "rm", "trace", "doctor"
}  # fmt: skip
LIMIT_S = 120.0  # a watchdog, not a promise
END_S = 30.0  # likewise, for what a killed process leaves to end by itself

BLOCKER = """
import os, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["PP3SHM_TEST_BLOCKED"].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def heed_signals() -> None:
    """As a terminal starts a command, whoever runs the tests: `nohup` ignores some."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def names() -> set[str]:
    """What stands in /dev/shm of any region now."""
    return {path.name for path in Path("/dev/shm").glob("pp3shm-*")}


@dataclass(frozen=True)
class Done:
    """What became of a command."""

    status: int
    out: str
    err: str


class Command:
    """One running ``pp3shm`` command, with its descendants.

    Args:
        words: after the program's name.
        env: variables beside this process's own.
        stdout: as for ``subprocess.Popen``.
        cwd: where to run.
        program: what to run in place of ``python -P -m pp3shm``.
        prepare: called in the process before it begins, while it has one thread.
    """

    def __init__(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        stdout: int = subprocess.PIPE,
        cwd: Path | None = None,
        program: Sequence[str] = PP3SHM,
        prepare=None,
    ) -> None:
        self.mark = uuid.uuid4().hex

        def begin() -> None:
            heed_signals()
            if prepare is not None:
                prepare()

        self._names = names()
        self.process = subprocess.Popen(
            [*program, *words],
            env={**os.environ, "COLUMNS": "200", **(env or {}), MARK: self.mark},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            cwd=cwd,
            text=True,
            encoding="utf-8",
            errors="surrogateescape",
            start_new_session=True,  # a group of its own: signals reach no other
            preexec_fn=begin,  # noqa: PLW1509
        )

    def finish(self) -> Done:
        """Wait for its end and all that it says."""
        out, err = self.process.communicate(timeout=LIMIT_S)
        return Done(self.process.returncode, out or "", err)

    def read_until(self, part: str) -> str:
        """Output up to the line that holds ``part``; the command must say it."""
        said = ""
        for line in self.process.stdout:
            said += line
            if part in line:
                return said
        raise AssertionError((part, said, self.finish()))

    def alive(self) -> dict[int, str]:
        """Its live processes, by process id, with their command lines."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if self.mark.encode() in (folder / "environ").read_bytes():
                    line = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                    found[int(folder.name)] = line.decode(errors="replace").strip()
        return found

    def find(self, part: str) -> int:
        """The process whose command line holds ``part``; it must come."""
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit:
            for pid, line in self.alive().items():
                if part in line:
                    return pid
            time.sleep(0.002)
        raise AssertionError((part, self.alive()))

    def expect_nothing_left(self, within_s: float = 0.0) -> None:
        """Neither a process of it nor a name in /dev/shm."""
        limit = time.monotonic() + within_s
        while (left := self.alive()) and time.monotonic() < limit:
            time.sleep(0.01)
        assert {} == left
        limit = time.monotonic() + END_S  # names that others make come and go
        while (new := names() - self._names) and time.monotonic() < limit:
            time.sleep(0.01)
        assert set() == new

    def __enter__(self):
        """A context manager leaves nothing of it."""
        return self

    def __exit__(self, *_):
        """Kill what is left, if a test failed."""
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


def run(*words: str, **how) -> Done:
    """Run a command to its end; nothing of it may be left."""
    with Command(*words, **how) as command:
        done = command.finish()
        command.expect_nothing_left()
    return done


def refused(*words: str, says: Sequence[str], **how) -> None:
    """Run a command that cannot be done: one line says so, and nothing is left."""
    done = run(*words, **how)
    name = f"pp3shm {words[0]}" if {*words[:1]} & COMMANDS else "pp3shm"
    assert 2 == done.status, done
    assert done.err.startswith(f"{name}: "), done.err
    assert done.err.endswith("\n")
    assert [done.err[:-1]] == done.err.splitlines()
    assert done.err[:-1].isprintable()
    assert "Traceback" not in done.out
    for part in says:
        assert part in done.err


def blocking(folder: Path, *packages: str) -> dict[str, str]:
    """Variables under which these packages are not installed."""
    (folder / "sitecustomize.py").write_text(BLOCKER)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PP3SHM_TEST_BLOCKED": ",".join(packages),
    }


def tables(text: str) -> list[list[str]]:
    """Cells of all rows of all tables in a command's output."""
    lines = [line.replace("┃", "│").replace("|", "│") for line in text.splitlines()]
    return [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in (line.strip() for line in lines)
        if line.startswith("│") and not set(line) <= set("│-+")
    ]
