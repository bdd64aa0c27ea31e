"""Run a command where there is real soft-RoCE: in a throw-away guest, or in two.

    python3 tools/rdma-lab/lab.py [--pair] [--timeout S] [--folder DIR] -- COMMAND...

A guest is an emulated PC (QEMU without KVM) that boots Debian's kernel and sees this
machine's whole file system read-only under a RAM overlay; what the command writes is
lost, but for DIR (the working folder if not given), which is shared. No disk image, no
network, nothing left behind but a cache.

    one guest    rxe0 = 10.98.0.1 and rxe1 = 10.98.0.2, on the two ends of a veth pair
    --pair       two guests, COMMAND runs in both; rxe0 in each, on a link between them;
                 when the first is done the second is told to end (SIGTERM)

The command sees PP3_LAB=1, PP3_LAB_HOST (0 or 1), PP3_LAB_PAIR, PP3_LAB_IP and
PP3_LAB_PEER. The exit status is the command's (of two: the first that is not 0); 124
after the time-out; 125 where the lab itself failed; 77 where it cannot start here, with
the reason. Root on Debian 12, x86-64. --install gets missing packages by apt-get.
PP3_LAB_KERNEL names another kernel package, such as linux-image-6.12-amd64.
"""

import argparse
import contextlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from kernel import Boot, LabError, archive, boot_files, default_cache

HERE = Path(__file__).resolve().parent
PACKAGES = {
    "qemu-system-x86_64": "qemu-system-x86",
    "/bin/busybox": "busybox-static",
    "modprobe": "kmod",
    "rdma": "iproute2",
    "/usr/lib/python3/dist-packages/pyverbs": "python3-pyverbs",
    "/usr/lib/x86_64-linux-gnu/libibverbs": "ibverbs-providers",
}
"""What must be there, and the package it comes from."""
HANDED_ON = ("PATH", "HOME", "LANG", "CI", "VIRTUAL_ENV", "PYTHONPATH")
TIMED_OUT, BROKEN, CANNOT_START = 124, 125, 77
BOOT_LINE = (
    "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off nokaslr no_timer_check "
    "lab.host={host} lab.pair={pair}"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the lab; its exit status."""
    args = _arguments(argv)
    reason, boot = why_not(install=args.install), None
    if not reason:
        try:
            boot = boot_files(default_cache())
        except LabError as error:
            reason = str(error)
    if boot is None:
        sys.stderr.write(f"rdma-lab: cannot start here: {reason}\n")
        return CANNOT_START
    if not args.command:
        return 0
    try:
        with tempfile.TemporaryDirectory(prefix="pp3-lab-") as job:
            return Lab(Path(job), boot, args).run()
    except LabError as error:
        sys.stderr.write(f"rdma-lab: {error}\n")
        return BROKEN


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lab.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--pair", action="store_true", help="two guests")
    parser.add_argument("--install", action="store_true", help="get what is missing")
    parser.add_argument("--timeout", type=float, default=600, metavar="S")
    parser.add_argument("--folder", type=Path, default=Path(), metavar="DIR")
    parser.add_argument("--memory", type=int, default=1536, metavar="MIB")
    parser.add_argument("command", nargs="*", metavar="COMMAND")
    return parser.parse_args(argv)


def lacking() -> list[str]:
    """Packages of which something is not there."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

    def there(what: str) -> bool:
        if what.startswith("/"):
            return any(Path(what).parent.glob(f"{Path(what).name}*"))
        return shutil.which(what, path=path) is not None

    return [package for what, package in PACKAGES.items() if not there(what)]


def why_not(*, install: bool) -> str:
    """Why the lab cannot start on this machine; empty where it can."""
    if platform.machine() != "x86_64":
        return f"its guests are x86-64, this machine is {platform.machine()}"
    if os.geteuid() != 0:
        return "a guest must be able to read every file: run it as root"
    packages = lacking()
    if packages and install and shutil.which("apt-get"):
        for words in (["update"], ["install", "-y", "--no-install-recommends"]):
            subprocess.run(
                ["apt-get", "-qq", *words, *(packages if words[1:] else [])],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                stdout=subprocess.DEVNULL,
                check=False,
            )
        packages = lacking()
    return f"missing packages: {' '.join(packages)}" if packages else ""


class Lab:
    """One run of one command.

    Args:
        job: an empty folder for what passes between host and guests.
        boot: kernel, initramfs, modules.
        args: of the command line.
    """

    def __init__(self, job: Path, boot: Boot, args: argparse.Namespace) -> None:
        self._job = job
        self._boot = boot
        self._args = args
        self._folder = args.folder.resolve()
        if not self._folder.is_dir():
            raise LabError(f"--folder: expected a folder, found {self._folder}")
        self._guests: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []

    def run(self) -> int:
        """Boot, wait, collect; no guest outlives this."""
        limit = time.monotonic() + self._args.timeout
        init = {"init": (HERE / "init.sh").read_bytes()}
        whole = self._boot.base.read_bytes() + archive(init)
        (self._job / "initrd").write_bytes(whole)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            for host in range(2 if self._args.pair else 1):
                self._start(host, limit)
            return self._wait(limit)
        finally:
            for guest in self._guests:
                guest.kill()
                guest.wait()

    def _start(self, host: int, limit: float) -> None:
        share = self._job / str(host)
        share.mkdir()
        (share / "folder").write_text(str(self._folder))
        (share / "modules").write_text(str(self._boot.modules))
        (share / "command").write_text(self._script())
        link = self._job / "link"
        if host == 1:
            while not link.exists() and time.monotonic() < limit:
                time.sleep(0.05)
        guest = subprocess.Popen(
            self._qemu(host, share, link),
            stdin=subprocess.PIPE,  # never written, never closed: no end of file
            stdout=subprocess.PIPE,
        )
        self._guests.append(guest)
        reader = threading.Thread(target=self._pass_on, args=(host, guest), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _script(self) -> str:
        lines = [
            f"export {name}={shlex.quote(os.environ[name])}"
            for name in (*HANDED_ON, *os.environ.get("PP3_LAB_PASS", "").split())
            if name in os.environ
        ]
        lines += [
            'export PYTHONPATH="/run/lab/python${PYTHONPATH:+:$PYTHONPATH}"',
            f"cd {shlex.quote(str(self._folder))} || exit 125",
            f"exec {shlex.join(self._args.command)}",
        ]
        return "\n".join(lines) + "\n"

    def _qemu(self, host: int, share: Path, link: Path) -> list[str]:
        pair = self._args.pair
        line = BOOT_LINE.format(host=host, pair=int(pair))
        words = [
            *("qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot"),
            *("-display", "none", "-machine", "q35", "-cpu", "max"),
            *("-accel", os.environ.get("PP3_LAB_ACCEL", "tcg,thread=multi")),
            *("-smp", "1" if pair else "2", "-m", str(self._args.memory)),
            *("-kernel", str(self._boot.kernel), "-initrd", str(self._job / "initrd")),
            *("-append", line, "-serial", f"file:{share / 'console'}"),
            *("-device", "virtio-serial-pci"),
            *("-chardev", "stdio,id=out,signal=off"),
            *("-device", "virtserialport,chardev=out,name=out"),
        ]
        for tag, path, more in (
            ("host", "/", ",readonly=on,multidevs=remap"),
            ("folder", self._folder, ",multidevs=remap"),
            ("job", share, ""),
        ):
            words += ["-fsdev", f"local,id={tag},path={path},security_model=none{more}"]
            words += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        if pair:
            side = "on" if host == 0 else "off"
            at = f"stream,id=link,server={side},addr.type=unix,addr.path={link}"
            card = f"virtio-net-pci,netdev=link,romfile=,mac=52:54:00:98:00:0{host + 1}"
            words += ["-netdev", at, "-device", card]
        return words

    def _pass_on(self, host: int, guest: subprocess.Popen[bytes]) -> None:
        """What the guest says, line by line, marked where there are two."""
        mark = f"[host {host}] ".encode() if self._args.pair else b""
        for said in guest.stdout or ():
            sys.stdout.buffer.write(mark + said)
            sys.stdout.buffer.flush()

    def _wait(self, limit: float) -> int:
        """The exit status of the whole."""
        statuses = []
        for host, guest in enumerate(self._guests):
            if host == 1:
                (self._job / "1" / "stop").touch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                guest.wait(max(0.0, limit - time.monotonic()))
            statuses.append(self._status(host, guest))
        for guest in self._guests:
            guest.kill()
        for reader in self._readers:
            reader.join(5)
        if self._args.pair and statuses[1] == 128 + signal.SIGTERM:
            statuses[1] = 0  # a server that was told to end
        return next((status for status in statuses if status != 0), 0)

    def _status(self, host: int, guest: subprocess.Popen[bytes]) -> int:
        share = self._job / str(host)
        told = share / "status"
        if told.exists() and told.read_text().strip().isdecimal():
            return int(told.read_text())
        if guest.poll() is None:
            limit = f"{self._args.timeout:g} s"
            sys.stderr.write(f"rdma-lab: guest {host} still runs after {limit}\n")
            return TIMED_OUT
        sys.stderr.write(f"rdma-lab: guest {host} died; the end of its console:\n")
        with contextlib.suppress(OSError):
            lines = (share / "console").read_text(errors="replace").splitlines()
            sys.stderr.write("\n".join(lines[-30:]) + "\n")
        return BROKEN


if __name__ == "__main__":
    sys.exit(main())
