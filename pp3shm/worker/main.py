"""``pp3shm worker``: its options, and what it does with them. It prints nothing."""

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pp3shm.errors import ConfigError, Pp3Error
from pp3shm.layout.keyproof import load_key
from pp3shm.layout.profile import SEMANTIC, Profile
from pp3shm.worker.region import RegionWorker
from pp3shm.worker.server import Worker

_HASHES = ("id_map_sha256", "target_sha256", "draft_sha256", "markov_sha256")
_SHAPE = ("depth", "max_slots", "max_positions", "context_bytes")
_FIELDS = ("vocab", *_SHAPE, *_HASHES, "semantic")
_OPTIONAL = (*_HASHES, "context_bytes", "semantic")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``pp3shm worker``."""
    add = parser.add_argument
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--listen",
        action="append",
        metavar="ADDRESS",
        help="tcp://host:port, unix:///path, unix://@name or rdma://host:port; may be "
        "repeated",
    )
    where.add_argument(
        "--region",
        metavar="ADDRESS",
        help="an engine's door on this host, region:///path or region://@name: "
        "rounds are taken from its region, and the worker ends with it",
    )
    add(
        "--drafter",
        required=True,
        metavar="MODULE:OBJECT",
        help="a drafter, or a class or function that makes one for a profile; "
        "modules are also looked for in the current directory",
    )
    add(
        "--sampled",
        action="store_true",
        help="serve sampled engines and refuse greedy ones; else the reverse",
    )
    add("--key-file", metavar="FILE", help="16 to 64 bytes that every peer must have")
    add("--vocab", type=int, help="size of the target's vocabulary")
    add("--depth", type=int, help="tokens drafted per request: 4 or 5")
    add("--max-slots", type=int, help="requests at once: 1 to 4")
    add("--max-positions", type=int, help="longest request, in tokens")
    add("--context-bytes", type=int, help="drafter context per request (default: 0)")
    add("--semantic", help=f"how q is made from logits (default: {SEMANTIC})")
    for name in _HASHES:
        add(f"--{name.replace('_', '-')}", metavar="HEX", help="identity, in hex")
    add(
        "--ready-fd",
        type=int,
        metavar="N",
        help="write the addresses there, one a line, once listening or attached; "
        "then close it",
    )
    add(
        "--wait",
        choices=("spin", "hybrid", "futex"),
        default="hybrid",
        help="with --region: how to wait for rounds (default: %(default)s)",
    )
    add(
        "--attach-timeout",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="with --region: how long to wait for the engine (default: %(default)s)",
    )


def run(
    args: argparse.Namespace, say: Callable[[str], None] = lambda _text: None
) -> int:
    """Serve until SIGTERM or SIGINT, at a region until its engine ends too.

    Args:
        args: of a parser that :func:`add_arguments` prepared.
        say: told ``listening on ADDRESS`` for each address, or ``attached to ADDRESS``.

    Returns:
        The exit status, 0.

    Raises:
        Pp3Error: an option cannot be used, or an address not be had.
    """
    drafter = load_drafter(args.drafter)
    with _users_code("drafter.profile_fields", "a dict"):
        fields = getattr(drafter, "profile_fields", {})
    if isinstance(drafter, type) and isinstance(fields, property):
        fields = {}  # a factory: what its drafters would say, nobody can ask yet
    profile = profile_of(args, fields)
    key = load_key(args.key_file) if args.key_file is not None else None
    worker: Worker | RegionWorker
    with _users_code("--drafter", "a drafter or a factory of one"):
        if args.region is not None:
            worker = RegionWorker(
                drafter,
                profile,
                args.region,
                key,
                wait=args.wait,
                attach_timeout_s=args.attach_timeout,
            )
        else:
            worker = Worker(drafter, profile, args.listen, key)
    verb = "listening on" if args.region is None else "attached to"
    with _writing(args.ready_fd) as tell, _signals_stop(worker), worker:
        for address in worker.addresses:
            say(f"{verb} {address}")
        tell(worker.addresses)
        worker.serve_forever()
    return 0


def load_drafter(name: str) -> Any:
    """Import what ``--drafter`` names.

    Args:
        name: ``package.module:object``; the object may have dots of its own.

    Raises:
        ConfigError: no such module or object, or the module cannot be imported;
            whatever the module's own code raises, an exit included.
    """
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise ConfigError("--drafter", "module:object", repr(name))
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    with _users_code("--drafter", f"a module {module_name} that can be imported"):
        found: Any = importlib.import_module(module_name)
    with _users_code("--drafter", f"{path} in {module_name}"):
        for part in path.split("."):
            if not hasattr(found, part):
                raise ConfigError("--drafter", f"{path} in {module_name}", f"no {part}")
            found = getattr(found, part)
    return found


@contextlib.contextmanager
def _users_code(place: str, expected: str) -> Iterator[None]:
    """Whatever code of the user's raises becomes an error that names the place."""
    try:
        yield
    except Pp3Error:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(
            place, expected, f"{type(error).__name__}: {_one_line(error)}"
        ) from error


def profile_of(args: argparse.Namespace, fields: object) -> Profile:
    """The worker's own profile: from the options, and what the drafter says of itself.

    Args:
        args: the options; None where not given.
        fields: the drafter's ``profile_fields``, a dict by the profile's names.

    Raises:
        ConfigError: a field is missing, unknown, or said twice and differently.
        ProfileError: a value that v1 does not allow.
    """
    if not isinstance(fields, dict):
        raise ConfigError("drafter.profile_fields", "a dict", type(fields).__name__)
    given = dict(fields)
    for name in given:
        if name not in _FIELDS:
            raise ConfigError("drafter.profile_fields", " or ".join(_FIELDS), name)
    for name in _FIELDS:
        option = f"--{name.replace('_', '-')}"
        value = getattr(args, name)
        if value is None:
            if name not in given and name not in _OPTIONAL:
                raise ConfigError(option, "a value", "none")
        elif given.setdefault(name, value) != value:
            raise ConfigError(option, f"the drafter's own {given[name]!r}", repr(value))
    if args.sampled:
        return Profile.sampled(**given)
    if given.pop("semantic", "greedy") != "greedy":
        raise ConfigError("--semantic", "--sampled with it", "a greedy worker")
    return Profile.greedy(**given)


@contextlib.contextmanager
def _signals_stop(worker: Worker | RegionWorker) -> Iterator[None]:
    """SIGTERM and SIGINT end the worker in order, for as long as this lasts."""
    before = {
        number: signal.signal(number, lambda *_: worker.request_stop())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _writing(descriptor: int | None) -> Iterator[Callable[[Sequence[str]], None]]:
    """What writes lines to a descriptor and closes it; looked at before it is needed.

    Raises:
        ConfigError: it cannot be written to.
    """
    if descriptor is None:
        yield lambda _lines: None
        return
    try:
        ready = os.fdopen(descriptor, "w", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            "--ready-fd", "a descriptor to write to", f"{descriptor}: {error}"
        ) from error

    def tell(lines: Sequence[str]) -> None:
        # Whoever asked to be told may have gone meanwhile; others are served.
        with contextlib.suppress(OSError):
            ready.writelines(f"{line}\n" for line in lines)
            ready.close()

    try:
        yield tell
    finally:
        with contextlib.suppress(OSError):
            ready.close()


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
