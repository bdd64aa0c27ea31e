"""A kernel with soft-RoCE for the lab's guests: fetched once, kept in a cache.

Debian's kernel package is unpacked, never installed. What a boot needs comes out of it:
an uncompressed kernel, since an emulated CPU would take seconds to unpack one; the
modules; and an initramfs of busybox and the few modules by which the host's file system
is reached.
"""

import contextlib
import fcntl
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

PACKAGE = os.environ.get("PP3_LAB_KERNEL", "linux-image-amd64")
WANTED = (
    "drivers/infiniband",
    "drivers/virtio",
    "drivers/char",
    "drivers/net",
    "net",
    "lib",
    "crypto",
    "arch",
    "fs/9p",
    "fs/netfs",
    "fs/fscache",
    "fs/overlayfs",
    "fs/configfs",
)
FIRST = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
"""Modules loaded before the host's file system can be seen."""


class LabError(Exception):
    """The lab itself cannot do what was asked: not the command's fault."""


class Boot(NamedTuple):
    """What a guest is started with.

    Attributes:
        kernel: an uncompressed ELF image.
        base: an initramfs without its ``/init``.
        modules: the folder that holds ``RELEASE/kernel/...``.
    """

    kernel: Path
    base: Path
    modules: Path


def boot_files(cache: Path) -> Boot:
    """What is in the cache; made first where it is not.

    Raises:
        LabError: the package cannot be fetched, or holds no kernel we can read.
    """
    cache.mkdir(parents=True, exist_ok=True)
    made = cache / PACKAGE
    with _locked(cache / "lock"):
        if not (made / "vmlinux").exists():
            with tempfile.TemporaryDirectory(dir=cache, prefix="making-") as folder:
                _make(Path(folder))
                shutil.rmtree(made, ignore_errors=True)
                (Path(folder) / "boot").rename(made)
    return Boot(made / "vmlinux", made / "base.cpio", made / "modules")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(*words: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(
            words, cwd=cwd, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise LabError(f"{words[0]}: {error.strerror}") from error
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        raise LabError(f"{words[0]}: {last[0]}")
    return done.stdout


def _make(folder: Path) -> None:
    """Fill ``folder/boot``."""
    sys.stderr.write("rdma-lab: fetching a kernel, once\n")
    root, boot = folder / "root", folder / "boot"
    root.mkdir()
    boot.mkdir()
    _fetch(folder, root)
    names = [path.name for path in (root / "lib/modules").iterdir()]
    if len(names) != 1:
        raise LabError(f"{PACKAGE}: expected one kernel in it, found {len(names)}")
    release = names[0]
    for vendor in (root / "lib/modules" / release / "kernel/drivers/net").glob("*/*"):
        if vendor.is_dir():  # drivers of cards that no guest has
            shutil.rmtree(vendor)
    _run("depmod", "-b", str(root), release)
    packed = (root / "boot" / f"vmlinuz-{release}").read_bytes()
    (boot / "vmlinux").write_bytes(unpacked(packed))
    (boot / "base.cpio").write_bytes(archive(_initramfs(root, release)))
    (root / "lib/modules").rename(boot / "modules")


def _fetch(folder: Path, root: Path) -> None:
    """The parts of the kernel's package that are wanted, under ``root``."""
    found = re.search(
        r"Depends: (linux-image-\S+)", _run("apt-cache", "depends", PACKAGE)
    )
    package = found.group(1) if found else PACKAGE
    _run(
        *("apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", package),
        cwd=folder,
    )
    (archive_file,) = folder.glob("*.deb")
    _run("dpkg-deb", "--extract", str(archive_file), str(folder / "all"))
    (folder / "all/boot").rename(root / "boot")
    (modules,) = (folder / "all/lib/modules").iterdir()
    to = root / "lib/modules" / modules.name
    to.mkdir(parents=True)
    for path in modules.glob("modules.*"):
        shutil.copy(path, to)
    for name in WANTED:
        source = modules / "kernel" / name
        if source.exists():
            shutil.copytree(source, to / "kernel" / name)
    shutil.rmtree(folder / "all")


def unpacked(image: bytes) -> bytes:
    """The ELF kernel inside a bzImage.

    Raises:
        LabError: none that is packed by xz, gzip or zstd.
    """
    for magic, unpack in (
        (b"\xfd7zXZ\0", lambda data: lzma.LZMADecompressor().decompress(data)),
        (b"\x1f\x8b\x08", lambda data: zlib.decompressobj(31).decompress(data)),
        (b"\x28\xb5\x2f\xfd", _zstd),
    ):
        at = image.find(magic)
        while at >= 0:
            with contextlib.suppress(lzma.LZMAError, zlib.error, OSError):
                kernel = unpack(image[at:])
                if kernel[:4] == b"\x7fELF":
                    return kernel
            at = image.find(magic, at + 1)
    raise LabError("vmlinuz: expected a kernel packed by xz, gzip or zstd, found none")


def _zstd(data: bytes) -> bytes:
    """By the program: Python learns it in 3.14. What stands behind is garbage to it."""
    return subprocess.run(
        ["zstd", "-dcq"], input=data, capture_output=True, check=False
    ).stdout


def _initramfs(root: Path, release: str) -> dict[str, bytes | None]:
    """Path -> content, None for a folder."""
    files: dict[str, bytes | None] = dict.fromkeys(
        ("bin", "modules", "proc", "sys", "dev", "host", "changes", "root")
    )
    try:
        files["bin/busybox"] = Path("/bin/busybox").read_bytes()
    except OSError as error:
        raise LabError(f"/bin/busybox: {error.strerror} (busybox-static)") from error
    told = _run(
        *("modprobe", "-d", str(root), "-S", release, "--show-depends", "-a", *FIRST)
    )
    order = list(
        dict.fromkeys(
            line.split()[1] for line in told.splitlines() if line.startswith("insmod ")
        )
    )
    for place, name in enumerate(order):
        path = Path(name)
        data = path.read_bytes()
        if path.suffix == ".xz":
            data, path = lzma.decompress(data), path.with_suffix("")
        files[f"modules/{place:02}-{path.name}"] = data
    return files


def archive(files: Mapping[str, bytes | None]) -> bytes:
    """A cpio archive of the form that the kernel unpacks."""
    out = bytearray()
    for inode, (name, data) in enumerate([*files.items(), ("TRAILER!!!", b"")], 1):
        mode = stat.S_IFDIR | 0o755 if data is None else stat.S_IFREG | 0o755
        label = name.encode() + b"\0"
        body = data or b""
        numbers = (inode, mode, 0, 0, 1, 0, len(body), 0, 0, 0, 0, len(label), 0)
        out += b"070701" + b"".join(b"%08X" % number for number in numbers) + label
        out += bytes(-len(out) % 4)
        out += body
        out += bytes(-len(out) % 4)
    return bytes(out)


def default_cache() -> Path:
    """``PP3_LAB_CACHE``, or a folder of the user's cache."""
    named = os.environ.get("PP3_LAB_CACHE")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "pp3shm-rdma-lab"
