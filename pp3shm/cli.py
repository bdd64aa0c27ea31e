"""The command line."""

import argparse
import io
import logging
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TypeAlias

from pp3shm import __version__
from pp3shm.errors import Pp3Error

FAILED = 1
UNUSABLE = 2
INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: words after the program's name; None takes the process's own.

    Returns:
        The exit status: 0 done, 1 something was found wrong, 2 it could not be done,
        130 interrupted.
    """
    _print_anything()
    command = "pp3shm"
    try:
        args, unknown = _parser().parse_known_args(argv)
        command = f"pp3shm {args.command}"
        if unknown:
            args.error(f"unrecognized arguments: {' '.join(unknown)}")
        status: int = args.run(args)
        if sys.stdout is not None:  # None: it was closed before we began
            sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()  # whoever read it has enough
        return FAILED
    except (Pp3Error, OSError) as error:
        # An OSError is the machine's: a full disk, no descriptor left, no folder.
        print(f"{command}: {one_line(error)}", file=sys.stderr)
        _drop_output()
        return UNUSABLE
    return status


def _print_anything() -> None:
    """A letter that the output's encoding lacks is shown as ``?``, not an error."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """What cannot be written must not be tried again, and fail again, as Python ends.

    What can be written is.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def one_line(error: Exception | str) -> str:
    """The error's text on one line, a peer's control characters escaped."""
    text = str(error) or type(error).__name__
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with the words of a command."""

    def error(self, message: str) -> NoReturn:
        """As every other error, and the way to the help in place of it."""
        text = one_line(f"{message}; see {self.prog} --help")
        self.exit(UNUSABLE, f"{self.prog}: {text}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="pp3shm",
        description="Exact draft distributions for speculative decoding, fail-closed.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_demo(commands)
    _add_worker(commands)
    _add_conformance(commands)
    _add_bench(commands)
    _add_ls(commands)
    _add_rm(commands)
    _add_trace(commands)
    _add_doctor(commands)
    return parser


# argparse has no public name for what add_subparsers returns.
Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"  # noqa: SLF001


def _add_demo(commands: Commands) -> None:
    parser = commands.add_parser(
        "demo",
        help="decode real text speculatively and show that nothing was lost",
        description="Trains two language models on a text, decodes four requests "
        "through a worker process, a proxy process and shared memory, and checks the "
        "distribution of what came out.",
    )
    parser.add_argument("--text", metavar="FILE", help="a text of one's own")
    parser.add_argument("--target", metavar="NAME", help="a Hugging Face causal LM")
    parser.add_argument("--draft", metavar="NAME", help="another with its tokenizer")
    parser.add_argument("--temperature", type=float, help="of the target, T > 0")
    parser.add_argument("--depth", type=int, default=5, help="drafts a round: 4 or 5")
    parser.add_argument("--requests", type=int, default=4, help="at once: 1 to 4")
    parser.add_argument("--tokens", type=int, default=160, help="new tokens a request")
    parser.add_argument("--check-rounds", type=int, help="rounds of the check")
    parser.add_argument("--seed", type=int, default=0, help="of every draw")
    parser.add_argument("--proxy", choices=("process", "thread"), default="process")
    parser.add_argument(
        "--link",
        choices=("socket", "region", "rdma"),
        default="socket",
        help="to a worker behind a proxy, or one that is its own (region); rdma needs "
        "pyverbs and a device (default: %(default)s)",
    )
    parser.add_argument(
        "--wait",
        choices=("spin", "hybrid", "futex"),
        default="hybrid",
        help="how engine and proxy wait (default: %(default)s)",
    )
    parser.add_argument(
        "--serve", metavar="ADDRESS", help="be the worker of a demo on another host"
    )
    parser.add_argument(
        "--worker", metavar="ADDRESS", help="use the one that --serve runs there"
    )
    parser.add_argument("--key-file", metavar="FILE", help="that both hosts have")
    parser.add_argument("--kill-worker", action="store_true", help="mid-way")
    parser.add_argument("--kill-proxy", action="store_true", help="mid-way")
    parser.set_defaults(run=_demo, error=parser.error)


def _demo(args: argparse.Namespace) -> int:
    from pp3shm.demo.optional import require  # noqa: PLC0415 - only when asked

    for module in ("rich", "scipy", "tokenizers"):
        require(module, "demo")
    from pp3shm.demo.main import run_demo  # noqa: PLC0415 - needs what was asked for

    # That a peer is gone is what the report counts; it must not run into the text.
    logging.basicConfig(level=logging.ERROR, format="pp3shm demo: %(message)s")
    return run_demo(args)


def _add_worker(commands: Commands) -> None:
    from pp3shm.worker.main import add_arguments  # noqa: PLC0415 - only when asked

    parser = commands.add_parser("worker", help="serve a drafter to engines")
    add_arguments(parser)
    parser.set_defaults(run=_worker, error=parser.error)


def _worker(args: argparse.Namespace) -> int:
    from pp3shm.worker.main import run  # noqa: PLC0415 - only when asked

    return run(args, lambda line: print(line, flush=True))


def _add_conformance(commands: Commands) -> None:
    parser = commands.add_parser(
        "conformance",
        help="run known-answer files against this library",
        description="Each *.json of DIR is run case by case; a file of another name "
        "or without cases is a failure.",
    )
    parser.add_argument("directory", metavar="DIR", help="of known-answer files")
    parser.set_defaults(run=_conformance, error=parser.error)


def _conformance(args: argparse.Namespace) -> int:
    from pp3shm.conformance.runner import run  # noqa: PLC0415 - only when asked

    report = run(args.directory)
    for line in report.lines():
        print(line)
    return 0 if report.ok else FAILED


def _add_bench(commands: Commands) -> None:
    from pp3shm.bench.options import add_arguments  # noqa: PLC0415 - only when asked

    parser = commands.add_parser(
        "bench",
        help="measure a round beside other transports on this machine",
        description="Times the same exchange, 356 bytes out and 5320 back, in bare C, "
        "by pp3shm and by every other transport that is installed, between processes "
        "pinned to two cores; prints a table and writes it with a picture.",
    )
    add_arguments(parser)
    parser.set_defaults(run=_bench, error=parser.error)


def _bench(args: argparse.Namespace) -> int:
    from pp3shm.bench.main import run  # noqa: PLC0415 - only when asked

    return run(args, lambda line: print(one_line(line), flush=True))


def _add_ls(commands: Commands) -> None:
    parser = commands.add_parser(
        "ls",
        help="list the regions of this machine and who holds them",
        description="Regions by their names in /dev/shm and by the processes that hold "
        "their segments: alive or dead, bytes, rounds in flight, pages in quarantine.",
    )
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parser.set_defaults(run=_ls, error=parser.error)


def _ls(args: argparse.Namespace) -> int:
    from pp3shm.listing import as_json, as_lines  # noqa: PLC0415 - only when asked
    from pp3shm.ring.survey import survey  # noqa: PLC0415

    found = survey()
    if args.json:
        print(as_json(found))
        return 0
    for line in as_lines(found):
        print(one_line(line))
    return 0


def _add_rm(commands: Commands) -> None:
    parser = commands.add_parser(
        "rm",
        help="remove regions whose creator is proved dead",
        description="Takes away the names of regions whose creator's lock is free; one "
        "that lives is refused. What is not there needs no removal.",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="as ls prints it")
    parser.add_argument("--dead", action="store_true", help="every dead one")
    parser.set_defaults(run=_rm, error=parser.error)


def _rm(args: argparse.Namespace) -> int:
    from pp3shm.ring.survey import dead, remove  # noqa: PLC0415 - only when asked

    if not args.names and not args.dead:
        args.error("the following arguments are required: NAME or --dead")
    status = 0
    for name in [*args.names, *(dead() if args.dead else [])]:
        try:
            there = remove(name)
        except Pp3Error as error:  # the others are removed all the same
            print(f"pp3shm rm: {one_line(error)}", file=sys.stderr)
            status = UNUSABLE
        else:
            print(f"{one_line(name)}: {'removed' if there else 'nothing there'}")
    return status


def _add_trace(commands: Commands) -> None:
    parser = commands.add_parser(
        "trace",
        help="write the last rounds of a running engine, stage by stage",
        description="Reads what the ranks of a region recorded of their last rounds "
        "and writes it as a trace for ui.perfetto.dev or chrome://tracing. Nobody is "
        "disturbed by it.",
    )
    parser.add_argument("file", metavar="FILE", help="to write")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--region", metavar="NAME", help="as ls prints it")
    which.add_argument("--pid", type=int, help="a process that holds the region")
    parser.add_argument("--last", type=int, default=1024, help="at most so many rounds")
    parser.set_defaults(run=_trace, error=parser.error)


def _trace(args: argparse.Namespace) -> int:
    from pp3shm.watching import write_last  # noqa: PLC0415 - only when asked

    if args.last < 1:
        args.error(f"argument --last: expected 1 or more, found {args.last}")
    print(one_line(write_last(args.file, args.region, args.pid, args.last)))
    return 0


def _add_doctor(commands: Commands) -> None:
    parser = commands.add_parser(
        "doctor",
        help="say what this machine can do and what it lacks",
        description="One line for each thing that some part of pp3shm can use, and "
        "what to do where it is missing. What is missing is no failure, unless it was "
        "asked for.",
    )
    parser.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="NAME",
        help="exit with status 1 where this is missing; a name of the report, may be "
        "repeated",
    )
    parser.set_defaults(run=_doctor, error=parser.error)


def _doctor(args: argparse.Namespace) -> int:
    from pp3shm.doctor import examine  # noqa: PLC0415 - only when asked

    lacking = examine(args.require, lambda line: print(one_line(line), flush=True))
    if lacking:
        print(f"pp3shm doctor: missing: {', '.join(lacking)}", file=sys.stderr)
    return FAILED if lacking else 0
