"""A proxy process: ``python -m pp3shm.proxy``, started by the engine's watchdog.

Descriptor 3 is one end of a socket pair. Over it come the attach record, the plan and
the region's descriptors; its end is the order to end.
"""

import logging
import os
import signal
import socket
import struct
import sys

from pp3shm._core import lib
from pp3shm.errors import Pp3Error
from pp3shm.proxy.loop import ProxyLoop
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.ring.handover import PROXY_FD, attach_proxy

HANDOVER_TIMEOUT_S = 10.0


def main() -> int:
    """Attach, run the loop until told to end, and leave."""
    logging.basicConfig(level=logging.ERROR, format="pp3shm proxy: %(message)s")
    # The engine decides when its proxy ends; a Ctrl-C meant for the engine reaches
    # every process of the terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lib.pp3_die_with_parent()
    control = socket.socket(fileno=PROXY_FD)
    # The parent may have died before the kernel was asked to tell us; a child that it
    # forked would then keep the other end of the socket open.
    credentials = control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    if struct.unpack("3i", credentials)[0] != os.getppid():
        return 1
    try:
        end, plan = attach_proxy(control, HANDOVER_TIMEOUT_S)
        with end:
            return _run(ProxyLoop(end, ProxyPlan.from_bytes(plan), PROXY_FD))
    except Pp3Error as error:
        # One line: the engine's user reads it, not a developer of the proxy.
        sys.stderr.write(f"pp3shm proxy: {error}\n")
        return 1


def _run(loop: ProxyLoop) -> int:
    signal.signal(signal.SIGTERM, lambda _number, _frame: loop.stop())
    loop.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
