"""``python -m pp3shm.demo.worker``: a worker that ends with whoever started it."""

import argparse
import os
import signal
import sys
import threading

from pp3shm.errors import Pp3Error
from pp3shm.worker.main import add_arguments, run


def _end_with_parent() -> None:
    """Standard input ends when the demo's process does, by whatever death."""
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Serve; a fault is one line on standard error, for the demo to show."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        return run(parser.parse_args(), _say)
    except Pp3Error as error:
        sys.stderr.write(f"{error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
