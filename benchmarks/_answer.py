"""A proxy without a worker: answers each round at once with the same page.

Started by a watchdog, like ``python -m pp3shm.proxy``; bench_round.py gives it the page
as its configuration. What is left of a round is the ring: take, fill, publish.
"""

import os
import socket

from pp3shm._core import ffi, lib
from pp3shm.ring.handover import PROXY_FD, attach_proxy

SPIN_NS, SLEEP_NS = 50_000, 10_000_000


def main() -> None:
    """Answer until the engine is gone."""
    lib.pp3_die_with_parent()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    control = socket.socket(fileno=PROXY_FD)
    end, page = attach_proxy(control)
    with end:
        ring = end.handle
        mine, round_ = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        while True:
            if lib.pp3_take(ring, mine) == 1:
                taken = lib.pp3_tick()
                for stage in (lib.PP3_TAKEN, lib.PP3_SENT, lib.PP3_RECEIVED):
                    lib.pp3_trace_put(ring, mine[0], stage, taken)
                to = lib.pp3_page(ring, mine[0])
                ffi.memmove(to, page, len(page))
                round_[0] = mine[0] >> 24
                ffi.memmove(to, round_, 8)
                lib.pp3_trace_put(ring, mine[0], lib.PP3_CHECKED, lib.pp3_tick())
                lib.pp3_publish(ring, mine[0])
                continue
            wake = lib.pp3_proxy_sleep(ring, -1, PROXY_FD, SPIN_NS, SLEEP_NS)
            if wake < 0 or wake & lib.PP3_WAKE_CONTROL:
                return


if __name__ == "__main__":
    main()
