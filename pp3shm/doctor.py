"""``pp3shm doctor``: what this machine can do, what it lacks, what to do about it.

Nothing is changed, and nothing is asked of another machine.
"""

import contextlib
import ctypes
import errno
import fcntl
import importlib
import mmap
import os
import platform
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pp3shm.errors import ConfigError
from pp3shm.link import gids, rdma

CPUINFO = Path("/proc/cpuinfo")
SHM = Path("/dev/shm")  # noqa: S108 - looked at, nothing is made there
ROOM_BYTES = 64 << 20
"""What a machine should let one process pin, and /dev/shm hold: two replies of 10 MB
in flight, both ways, and the region."""

_FUTEX = {"x86_64": 202, "aarch64": 98}
_CPU_FLAGS = {
    "x86_64": ("pclmulqdq", "avx2", "avx512f", "vpclmulqdq"),
    "aarch64": ("crc32", "asimd"),
}
# By the name of the C constant, less PP3_: the core may not be there to be asked.
CRC_PATHS = {
    "CRC_TABLE": "table",
    "CRC_PCLMUL": "pclmulqdq",
    "CRC_ARM": "the crc32 instructions",
    "CRC_WIDE": "vpclmulqdq",
}
SCAN_PATHS = {
    "SCAN_PORTABLE": "portable",
    "SCAN_AVX2": "AVX2",
    "SCAN_AVX512": "AVX-512",
}


class Finding(NamedTuple):
    """What was found of one thing.

    Attributes:
        there: it can be used.
        found: what there is, in words.
        remedy: what to do where it is missing; empty where nothing is to be done.
    """

    there: bool
    found: str
    remedy: str = ""


def there(found: str) -> Finding:
    """It can be used."""
    return Finding(there=True, found=found)


def missing(found: object, remedy: str) -> Finding:
    """It cannot be used."""
    return Finding(False, last_line(found), remedy)


def last_line(found: object) -> str:
    """The last line of an error alone: that of a broken build can be a page long."""
    lines = str(found).strip().splitlines()
    return lines[-1] if lines else type(found).__name__


# -- RDMA ------------------------------------------------------------------------------


def rdma_devices() -> Finding:
    """Devices, ports and GIDs, as the kernel shows them; pyverbs is not needed."""
    told = []
    active = False
    for port in gids.ports():
        listed = ", ".join(
            f"GID {gid.number} {gid.ip} ({gid.kind or 'unknown type'})"
            for gid in port.gids
        )
        state = port.state or "state unknown"
        active |= "ACTIVE" in state and bool(listed)
        told.append(f"{port.device} port {port.number} {state}, {listed or 'no GID'}")
    if not told:
        return missing("no device", "an RDMA network card, or soft-RoCE: docs/rdma.md")
    if not active:
        return missing("; ".join(told), "bring its link up and give it an IP address")
    return there("; ".join(told))


def pyverbs() -> Finding:
    """Whether pyverbs can be imported here, and whether it sees a device."""
    try:
        device = rdma.load()["device"]
    except Exception as error:  # noqa: BLE001 - a broken build may raise anything
        return missing(error, rdma.GET_PYVERBS)
    try:
        names = [entry.name.decode() for entry in device.get_device_list()]
    except Exception as error:  # noqa: BLE001 - without a device it raises its own
        return missing(error, "a device first: see rdma")
    if not names:
        return missing("it sees no device", "a device first: see rdma")
    return there(f"sees {', '.join(names)}")


def memlock() -> Finding:
    """How much one process may pin."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return there("no limit")
    told = f"{soft >> 10} KiB"
    if soft >= ROOM_BYTES:
        return there(told)
    return missing(told, "ulimit -l unlimited, or LimitMEMLOCK=infinity of its unit")


# -- shared memory and the kernel ------------------------------------------------------


def shared_memory() -> Finding:
    """Room in /dev/shm, where named regions and memfds are charged."""
    try:
        found = os.statvfs(SHM)
    except OSError as error:
        return missing(error.strerror, "mount -t tmpfs tmpfs /dev/shm")
    free = found.f_bavail * found.f_frsize
    told = f"{free >> 20} MiB free in {SHM}"
    if not os.access(SHM, os.W_OK | os.X_OK):
        return missing(f"{SHM} is not writable", "chmod 1777 /dev/shm")
    if free < ROOM_BYTES:
        return missing(told, "mount -o remount,size=1G /dev/shm (docker: --shm-size)")
    return there(told)


def seals() -> Finding:
    """A memfd that can be sealed against shrinking."""
    try:
        fd = os.memfd_create("pp3shm-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError as error:
        return missing(error.strerror, KERNEL_REMEDY)
    try:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as error:
        return missing(error.strerror, KERNEL_REMEDY)
    finally:
        os.close(fd)
    return there("memfd_create and F_ADD_SEALS")


KERNEL_REMEDY = "a kernel of 5.4 or newer, and a sandbox that lets the call pass"


def pidfd() -> Finding:
    """A descriptor of a process, by which deaths are seen."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return missing(error.strerror, KERNEL_REMEDY)
    return there("pidfd_open")


def futex() -> Finding:
    """A wait on a word that has another value must come back at once with EAGAIN."""
    number = _FUTEX.get(platform.machine())
    if number is None:
        return missing(platform.machine(), "x86-64 or aarch64")
    word = ctypes.c_uint32(1)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(number), ctypes.byref(word), 0, 0, None, None, 0)
    if ctypes.get_errno() != errno.EAGAIN:
        return missing(os.strerror(ctypes.get_errno()), KERNEL_REMEDY)
    return there("FUTEX_WAIT")


def cpu() -> Finding:
    """What the CPU has, and which loops run on it."""
    machine = platform.machine()
    wanted = _CPU_FLAGS.get(machine)
    if wanted is None:
        return missing(machine, "x86-64 or aarch64")
    said: list[str] = []
    with contextlib.suppress(OSError):  # a sandbox may hide it
        said = CPUINFO.read_text("ascii", "replace").split()
    flags = " ".join(flag for flag in wanted if flag in said) or "no flag of interest"
    try:
        from pp3shm._core import lib  # noqa: PLC0415 - a broken build is a finding
    except ImportError as error:
        return missing(error, "install pp3shm again, with a C compiler")
    crc = _named(lib, CRC_PATHS, lib.pp3_crc_path())
    rows = _named(lib, SCAN_PATHS, lib.pp3_scan_path())
    return there(f"{machine}, {flags}; CRC by {crc}, rows by {rows}")


def _named(lib: Any, paths: dict[str, str], path: int) -> str:
    """What the path with this number is called."""
    return next(
        (said for name, said in paths.items() if getattr(lib, f"PP3_{name}") == path),
        f"path {path}",
    )


# -- GPU -------------------------------------------------------------------------------


def _package(name: str) -> Finding:
    try:
        module = importlib.import_module(name)
    except Exception as error:  # noqa: BLE001 - a broken build may raise anything
        return missing(error, "pip install 'pp3shm[gpu]'")
    return there(str(getattr(module, "__version__", "of unknown version")))


def torch() -> Finding:
    """The package."""
    return _package("torch")


def triton() -> Finding:
    """The package."""
    return _package("triton")


def _cuda() -> Any:
    """The torch module if it has a CUDA device, else why not, in words."""
    try:
        found = importlib.import_module("torch")
        if found.cuda.is_available():
            return found
    except Exception as error:  # noqa: BLE001 - a broken driver may raise anything
        return last_line(error)
    return "no CUDA device that torch can use"


def cuda() -> Finding:
    """A device that torch can use."""
    found = _cuda()
    if isinstance(found, str):
        return missing(found, "an NVIDIA driver, and a torch built for CUDA")
    return there(
        ", ".join(
            found.cuda.get_device_name(index)
            for index in range(found.cuda.device_count())
        )
    )


def pinned() -> Finding:
    """Whether a shared mapping can be registered with CUDA, as a region would be."""
    found = _cuda()
    if isinstance(found, str):
        return missing(found, "a CUDA device first: see cuda")
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        held = ctypes.c_char.from_buffer(page)
        at = ctypes.addressof(held)
        runtime = found.cuda.cudart()
        code = int(runtime.cudaHostRegister(at, mmap.PAGESIZE, 0))
        if code == 0:
            runtime.cudaHostUnregister(at)
        del held  # else the mapping could not be closed
    if code != 0:
        return missing(f"cudaHostRegister: error {code}", "raise memlock; see cuda")
    return there("cudaHostRegister takes a shared mapping")


# -- all of them -----------------------------------------------------------------------

CHECKS: dict[str, Callable[[], Finding]] = {
    "rdma": rdma_devices,
    "pyverbs": pyverbs,
    "memlock": memlock,
    "shm": shared_memory,
    "seals": seals,
    "pidfd": pidfd,
    "futex": futex,
    "cpu": cpu,
    "torch": torch,
    "triton": triton,
    "cuda": cuda,
    "pinned": pinned,
}
"""In the order of the report; the names are those of ``--require``."""


def examine(
    required: Sequence[str], say: Callable[[str], None], checks: Any = None
) -> list[str]:
    """Look at everything, one line each.

    Args:
        required: names that must be there.
        say: told each line.
        checks: name -> function, ``CHECKS`` if None.

    Returns:
        Those of ``required`` that are missing.

    Raises:
        ConfigError: a name that is none.
    """
    table: dict[str, Callable[[], Finding]] = CHECKS if checks is None else checks
    for name in required:
        if name not in table:
            raise ConfigError("--require", " or ".join(table), repr(name))
    lacking = []
    for name, check in table.items():
        finding = check()
        word = "ok" if finding.there else "missing"
        remedy = f": {finding.remedy}" if finding.remedy else ""
        say(f"{word:<8}{name:<9}{finding.found}{remedy}")
        if name in required and not finding.there:
            lacking.append(name)
    return lacking
