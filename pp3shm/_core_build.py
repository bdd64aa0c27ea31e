"""Builds ``pp3shm._core``, the C11 core, by cffi in API mode.

Each part is three files of one stem: ``.h`` (the text), ``.c`` (what is not
inline) and ``.cdef`` (what Python sees). No flag ties the result to the CPU it is
built on: code paths are chosen at run time.
"""

import os
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent
# Order matters: a part may use the types of those before it.
PARTS = (
    "ring/atomics",
    "ring/ring",
    "ring/waiter",
    "ring/slots",
    "ring/note",
    "ring/recorder",
    "ring/watchdog",
    "layout/crc",
    "layout/step",
    "layout/page",
    "layout/accept",
    "proposal/scan",
    "proposal/top",
    "proposal/draft",
    "verify/weights",
    "verify/row",
    "verify/sparse",
    "verify/scatter",
    "proxy/exchange",
    "proxy/hand",
    "proxy/pump",
    "proxy/near",
    "rounds/ask",
    "rounds/hear",
    "bench/party",
    "bench/floor",
    "bench/death",
    "bench/fixed",
)

CALLS = [f"pp3shm/rounds/{name}.c" for name in ("asker", "heard", "hearer", "calls")]
"""A module of its own in the same library: ``pp3shm._calls``."""

CFLAGS = [
    "-std=c11",
    "-O3",
    "-fno-strict-aliasing",  # frames and pages are bytes read as words
    "-ffp-contract=off",  # products must round as the specification says
    "-Wall",
    "-Wextra",
    "-pthread",
]

ffi = FFI()
for _part in PARTS:
    ffi.cdef((ROOT / f"{_part}.cdef").read_text(encoding="ascii"))
ffi.set_source(
    "pp3shm._core",
    "\n".join(f'#include "{_part}.h"' for _part in PARTS),
    sources=[*(f"pp3shm/{_part}.c" for _part in PARTS), *CALLS],
    include_dirs=["pp3shm"],
    depends=[
        str(path.relative_to(ROOT.parent))
        for end in ("*/*.h", "*/*.cdef")
        for path in sorted(ROOT.glob(end))
    ],
    # PP3SHM_DEFINE: further macros, such as PP3_NO_TRACE of benchmarks/bench_trace.py
    define_macros=[
        (name, None)
        for name in ("_GNU_SOURCE", *os.environ.get("PP3SHM_DEFINE", "").split())
    ],
    extra_compile_args=CFLAGS,
    libraries=["m"],
    extra_link_args=["-pthread"],
)

if __name__ == "__main__":
    ffi.compile(verbose=True)
