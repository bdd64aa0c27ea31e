"""The demo's worker: a process of its own, started, killed and started again."""

import contextlib
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from pp3shm.demo.pair import DRAFTER
from pp3shm.errors import ConfigError, LinkError
from pp3shm.layout.profile import Profile
from pp3shm.link.address import REGION, parse

START_TIMEOUT_S = 600.0
"""A worker that lives and says nothing may still be reading a large model."""


class WorkerProcess:
    """``pp3shm worker`` with a directory of its own, or at a region.

    Args:
        directory: where the socket, the key and the worker's messages go.
        profile: what it is to serve; its drafter says the rest.
        environment: variables the drafter reads.
        address: where to listen; None: a Unix socket in the directory.
        key: that whoever connects must have, or None.
        region: take rounds from the region of an engine that is there already.
        wait: there: how it waits for them; None: as a worker does by itself.

    Attributes:
        address: where it listens, the same after each start; or the engine's door.
        key: as given.
    """

    def __init__(
        self,
        directory: Path,
        profile: Profile,
        environment: Mapping[str, str],
        address: str | None = None,
        key: bytes | None = None,
        *,
        region: bool = False,
        wait: str | None = None,
    ) -> None:
        self.address = address or _address(directory / "worker.sock")
        if region:
            self.address = f"{REGION}@pp3shm-demo-{secrets.token_hex(16)}"
        self.key = key
        self._log = directory / "worker.log"
        self._environment = {**os.environ, **environment}
        # The worker ends with us: it gets EOF on its standard input when we are gone,
        # whatever ended us.
        self._command = [
            *(sys.executable, "-P", "-m", "pp3shm.demo.worker"),
            *("--region" if region else "--listen", self.address, "--sampled"),
            *("--drafter", DRAFTER),
        ]
        if region and wait is not None:
            self._command += ["--wait", wait]
        if key is not None:
            path = directory / "key"
            path.touch(mode=0o600)
            path.write_bytes(key)
            self._command += ["--key-file", str(path)]
        for name, value in _options(profile).items():
            self._command += [f"--{name.replace('_', '-')}", str(value)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens.

        Raises:
            LinkError: it ended or did not listen in time; the text is its last line.
        """
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is ours to pass on
            )
        self._wait_listening(self._process)

    def _wait_listening(self, process: subprocess.Popen[bytes]) -> None:
        limit = time.monotonic() + START_TIMEOUT_S
        output = process.stdout
        poll = select.poll()
        if output is not None:
            poll.register(output, select.POLLIN)
        while output is not None and time.monotonic() < limit:
            if poll.poll(100):
                if output.readline().startswith((b"listening on ", b"attached to ")):
                    return
                break  # EOF, or a line that a worker does not say
        self.kill()
        raise LinkError(f"worker: expected it to listen, found: {self._last_words()}")

    def _last_words(self) -> str:
        said = self._log.read_text("utf-8", "replace").strip().splitlines()
        return said[-1] if said else "nothing"

    def expect_alive(self) -> None:
        """Look after it.

        Raises:
            LinkError: it ended, and nobody here asked it to.
        """
        status = None if self._process is None else self._process.poll()
        if status is not None:
            raise LinkError(
                f"worker: expected it to live, found it ended with status {status}, "
                f"its last words: {self._last_words()}"
            )

    def kill(self) -> None:
        """SIGKILL, and wait for the death."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def close(self) -> None:
        """Ask it to end, and see to it that it does."""
        if self._process is None:
            return
        try:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5.0)
        finally:  # also where a second Ctrl-C ended the wait
            self._process.kill()
            self._reap()

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        process.wait()

    def __enter__(self) -> Self:
        """Start."""
        try:
            self.start()
        except BaseException:  # Ctrl-C, say: nobody else ends what was started
            self.kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.close()


def _address(path: Path) -> str:
    """A socket in a folder of our own; where its path is too long, an abstract one."""
    address = f"unix://{path}"
    try:
        parse(address)
    except ConfigError:
        return f"unix://@pp3shm-demo-{secrets.token_hex(16)}"
    return address


def _options(profile: Profile) -> dict[str, int | str]:
    """The worker's options that make it serve this profile."""
    values = profile.values()
    names = ["vocab", "depth", "max_slots", "max_positions"]
    names += [name for name in values if name.endswith("_sha256")]
    return {name: values[name] for name in names}
