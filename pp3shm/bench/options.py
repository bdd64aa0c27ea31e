"""The options of ``pp3shm bench``, apart: every command's parser is made with them."""

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the options of ``pp3shm bench``."""
    add = parser.add_argument
    add("--list", action="store_true", help="name the subjects, measure nothing")
    add(
        "--only",
        nargs="+",
        metavar="NAME",
        help="these subjects; the beginning of a name stands for all that have it",
    )
    add("--quick", action="store_true", help="little of everything, in some seconds")
    add("--repetitions", type=int, metavar="N", help="of every subject (default: 5)")
    add(
        "--out",
        type=Path,
        default=Path("bench-results"),
        metavar="DIR",
        help="folder for bench.json, .md and .png (default: %(default)s)",
    )
    add("--no-picture", action="store_true", help="no bench.png, no matplotlib")
