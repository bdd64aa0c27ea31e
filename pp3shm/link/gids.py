"""RDMA ports and their GIDs, as the kernel shows them; pyverbs is not needed."""

import ipaddress
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pp3shm.errors import LinkError

INFINIBAND = Path("/sys/class/infiniband")
ROCE_2 = "RoCE v2"


class Gid(NamedTuple):
    """One entry of a port's table that is in use.

    Attributes:
        number: its index in the table.
        text: eight groups of four hex digits.
        kind: ``RoCE v2``, ``IB/RoCE v1``, or empty where the kernel does not say.
    """

    number: int
    text: str
    kind: str

    @property
    def raw(self) -> bytes:
        """Its 16 bytes."""
        return ipaddress.IPv6Address(self.text).packed

    @property
    def ip(self) -> str:
        """The IP address it stands for: an IPv4 one where it is mapped."""
        address = ipaddress.IPv6Address(self.text)
        return str(address.ipv4_mapped or address)


class Port(NamedTuple):
    """A port of a device.

    Attributes:
        device: its name.
        number: from 1.
        state: e.g. ``4: ACTIVE``; empty where the kernel does not say.
        gids: those in use, by index.
    """

    device: str
    number: int
    state: str
    gids: tuple[Gid, ...]


class Place(NamedTuple):
    """Where a queue pair is made."""

    device: str
    port: int
    gid: Gid


def ports(device: str = "") -> Iterator[Port]:
    """Those of a device, or of all, by name, each with its whole table."""
    for path, name, number in _folders(device):
        yield Port(name, number, _read(f"{path}/state"), tuple(_gids(path)))


def _folders(device: str) -> Iterator[tuple[Path, str, int]]:
    """Where the kernel shows each port; its device and number."""
    for path in sorted(INFINIBAND.glob(f"{device or '*'}/ports/*")):
        yield path, path.parents[1].name, int(path.name)


def choose(ip: str, device: str = "", gid_index: int | None = None) -> Place:
    """The device, port and GID for a side of a connection.

    A table is read no further than to the GID that is taken: it has up to a thousand
    entries, each a file, and every session begins here.

    Args:
        ip: this side's address of the connection; empty: none.
        device: its name where the user gave one.
        gid_index: likewise.

    Raises:
        LinkError: no such device, or none whose GID fits; the error says what there is.
    """
    wanted, found = _ip(ip), None
    if gid_index is not None:
        found = _first(device, lambda gid: gid.number == gid_index)
    elif wanted is not None:
        found = _first(device, lambda gid: _ip(gid.ip) == wanted)
    if found is None and device and gid_index is None:
        found = _first(device, lambda gid: "." in gid.ip)
    if found is not None:
        return found
    expected = f"a GID of {ip or 'an IP address'}" if gid_index is None else "that GID"
    there = [(port.device, gid) for port in ports(device) for gid in port.gids]
    there.sort(key=lambda one: _rank(one[1]))
    seen = ", ".join(f"{name} GID {gid.number} {gid.ip}" for name, gid in there)
    raise LinkError(
        f"rdma {device or 'device'}: expected {expected}, found {seen or 'no device'} "
        "(rdma://host:port/device/gid-index names one; pp3shm doctor lists them)"
    )


def _rank(gid: Gid) -> tuple[bool, int]:
    """RoCE v2 before v1, which no router passes; then in the table's order."""
    return gid.kind != ROCE_2, gid.number


def _first(device: str, fits: Callable[[Gid], bool]) -> Place | None:
    """The best GID that fits, of all ports; by name where two are alike."""
    best: Place | None = None
    for path, name, number in _folders(device):
        for gid in filter(fits, _gids(path)):
            if best is None or _rank(gid) < _rank(best.gid):
                best = Place(name, number, gid)
            if gid.kind == ROCE_2:
                break  # none behind it in this table comes before it
    return best


def _ip(text: str) -> object:
    """An address that compares, an IPv4-mapped one as the IPv4 address; None: none."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _gids(port: Path) -> Iterator[Gid]:
    # A table has up to thousands of entries, and an open for each: no paths are built
    # for those that are not in use.
    table = f"{port}/gids/"
    names = os.listdir(table)  # noqa: PTH208 - names, not paths
    for number in sorted(map(int, names)):
        text = _read(f"{table}{number}")
        if text.strip("0:"):
            yield Gid(number, text, _read(f"{port}/gid_attrs/types/{number}"))


def _read(path: str) -> str:
    """A file of sysfs; empty where it cannot be read, as an unused GID's type."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 256).decode("ascii", "replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)
