"""A proxy without a worker: answers each round at once with the same page.

Started by a watchdog, like ``python -m pp3shm.proxy``; bench_round.py gives it the page
as its configuration. What is left of a round is the ring: take, fill, publish.
"""

import os
import socket
import time

from pp3shm._core import ffi, lib
from pp3shm.ring.handover import PROXY_FD, attach_proxy

SPIN_NS, SLEEP_NS = 50_000, 10_000_000
TRACE_BYTES = 32


def main() -> None:
    """Answer until the engine is gone."""
    lib.pp3_die_with_parent()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    control = socket.socket(fileno=PROXY_FD)
    end, page = attach_proxy(control)
    with end:
        ring, page_bytes = end.handle, end.region.shape.page_bytes
        mine, trace = ffi.new("uint64_t *"), ffi.new("struct pp3_trace *")
        round_ = ffi.new("uint64_t *")
        while True:
            if lib.pp3_take(ring, mine) == 1:
                now = time.monotonic_ns()
                trace.taken_ns = trace.sent_ns = trace.received_ns = now
                to = lib.pp3_page(ring, mine[0])
                ffi.memmove(to, page, len(page))
                round_[0] = mine[0] >> 24
                ffi.memmove(to, round_, 8)
                trace.checked_ns = lib.pp3_now()
                ffi.memmove(to + page_bytes - TRACE_BYTES, trace, TRACE_BYTES)
                lib.pp3_publish(ring, mine[0])
                continue
            wake = lib.pp3_proxy_sleep(ring, -1, PROXY_FD, SPIN_NS, SLEEP_NS)
            if wake < 0 or wake & lib.PP3_WAKE_CONTROL:
                return


if __name__ == "__main__":
    main()
