"""Where the demo's worker is: beside it, over which link, or on another host."""

import argparse
import contextlib
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn, Protocol

from pp3shm.demo.pair import ModelPair
from pp3shm.demo.process import WorkerProcess
from pp3shm.errors import ConfigError
from pp3shm.layout.keyproof import load_key
from pp3shm.layout.profile import Profile
from pp3shm.link import rdma
from pp3shm.link.address import RdmaAddress, parse
from pp3shm.link.gids import ports

KEY_BYTES = 32
LOOK_S = 0.5
"""How often ``--serve`` looks whether its worker lives."""


class DemoWorker(Protocol):
    """What the demo needs of its worker."""

    @property
    def address(self) -> str:
        """Where it listens."""

    @property
    def key(self) -> bytes | None:
        """The pre-shared key, or None."""

    def start(self) -> None:
        """Start it again after a kill."""

    def kill(self) -> None:
        """SIGKILL."""

    def expect_alive(self) -> None:
        """Raise where it ended by itself."""


class DistantWorker:
    """A worker that somebody else started, with ``pp3shm demo --serve``.

    Args:
        address: where it listens.
        key: that both sides have.
    """

    def __init__(self, address: str, key: bytes | None) -> None:
        self.address = address
        self.key = key

    def start(self) -> None:
        """Not ours to start: it runs."""

    def kill(self) -> None:
        """Not ours to kill; ``check`` refuses what would ask for it."""

    def expect_alive(self) -> None:
        """Whether it lives is seen by its replies alone."""


def check(args: argparse.Namespace) -> None:
    """Refuse options that do not go together, before anything is trained.

    Raises:
        ConfigError: as said; or RDMA was asked for and cannot be had.
    """
    if args.worker is not None and args.kill_worker:
        found = "--worker, whose process is another host's"
        raise ConfigError("--kill-worker", "a worker of the demo's own", found)
    if args.worker is not None and args.serve is not None:
        raise ConfigError("--worker, --serve", "one of them", "both")
    for place, text in (("--worker", args.worker), ("--serve", args.serve)):
        if text is None:
            continue
        if args.link == "region":
            raise ConfigError(place, "another link than region, of this host", text)
        by_rdma = isinstance(parse(text, place), RdmaAddress)
        if by_rdma != (args.link == "rdma"):
            expected = f"an address of --link {args.link}"
            raise ConfigError(place, expected, repr(text))
    if args.link == "rdma":
        rdma.require("--link rdma")


@contextlib.contextmanager
def worker_of(
    args: argparse.Namespace, directory: Path, pair: ModelPair, profile: Profile
) -> Iterator[DemoWorker]:
    """The demo's worker, running.

    Args:
        args: of ``pp3shm demo``.
        directory: for its files.
        pair: the models.
        profile: what it serves.

    Raises:
        ConfigError: no address that the link could use.
        LinkError: it did not start.
    """
    key = load_key(args.key_file) if args.key_file is not None else None
    if args.worker is not None:
        yield DistantWorker(args.worker, key)
        return
    environment = pair.save_drafter(directory)
    address = args.serve
    if address is None and args.link == "rdma":
        address = _own_address()
        key = key or secrets.token_bytes(KEY_BYTES)
    with WorkerProcess(directory, profile, environment, address, key) as worker:
        yield worker


def serve(
    args: argparse.Namespace,
    directory: Path,
    pair: ModelPair,
    profile: Profile,
    say: Callable[[str], None],
) -> NoReturn:
    """Be the other host's worker until a signal ends it.

    Raises:
        LinkError: the worker did not start, or ended.
    """
    with worker_of(args, directory, pair, profile) as worker:
        say(f"serving at {worker.address}, until Ctrl-C")
        while True:
            worker.expect_alive()
            time.sleep(LOOK_S)


def _own_address() -> str:
    """A free port on the IPv4 address of the first RDMA device that has one.

    Raises:
        ConfigError: none has.
    """
    for port in ports():
        for gid in port.gids:
            if "." in gid.ip:
                with socket.create_server((gid.ip, 0)) as free:
                    number = free.getsockname()[1]
                return f"rdma://{gid.ip}:{number}/{port.device}"
    raise ConfigError(
        "--link rdma", "a device with an IPv4 address (pp3shm doctor)", "none"
    )
