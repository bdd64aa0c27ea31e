"""Addresses: ``tcp://host:port``, ``unix:///path``, ``unix://@name``.

And ``rdma://host:port``, with ``/device`` or ``/device/gid-index`` behind it where the
device is not the one that has the connection's own IP address.
"""

import ipaddress
import os
import re
import secrets
from dataclasses import dataclass

from pp3shm.errors import ConfigError

# sun_path has 108 bytes: a file's name needs its NUL, an abstract one a NUL before it.
UNIX_NAME_BYTES = 107

EXPECTED = "tcp://host:port, unix:///path, unix://@name or rdma://host:port"
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
_DEVICE = re.compile(r"([A-Za-z0-9_-]{1,63})(?:/([0-9]{1,5}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class TcpAddress:
    """A host name or IP address (IPv6 without brackets) and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        """The form that :func:`parse` takes."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tcp://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class RdmaAddress(TcpAddress):
    """A TCP address over which a queue pair is set up.

    Attributes:
        device: of this side, e.g. ``mlx5_0``; empty: the one whose GID is the IP
            address that this side of the connection has.
        gid_index: of the device; None: the one of that IP address, or the first that
            stands for an IPv4 address.
    """

    device: str = ""
    gid_index: int | None = None

    def __str__(self) -> str:
        """The form that :func:`parse` takes."""
        tcp = TcpAddress(self.host, self.port)
        index = "" if self.gid_index is None else f"/{self.gid_index}"
        device = f"/{self.device}{index}" if self.device else ""
        return f"rdma://{str(tcp).removeprefix('tcp://')}{device}"


@dataclass(frozen=True, slots=True)
class UnixAddress:
    """A Unix socket: a file, or a name of the abstract name space.

    An abstract socket has no mode: like a loopback port, every user of the machine
    (and of its network name space) can connect to it.
    """

    name: str
    abstract: bool = False

    def __str__(self) -> str:
        """The form that :func:`parse` takes."""
        return f"unix://{'@' if self.abstract else ''}{self.name}"

    @property
    def native(self) -> str:
        """What the kernel takes."""
        return f"\0{self.name}" if self.abstract else self.name


Address = TcpAddress | UnixAddress  # an RdmaAddress is a TcpAddress


def parse(text: str, place: str = "address") -> Address:
    """Read an address.

    Args:
        text: the address as the user wrote it.
        place: what to call it in an error, e.g. ``--listen``.

    Raises:
        ConfigError: it is none of these forms.
    """
    scheme, found, rest = text.partition("://")
    if found and scheme == "tcp":
        return _parse_tcp(rest, text, place)
    if found and scheme == "unix":
        return _parse_unix(rest, text, place)
    if found and scheme == "rdma":
        return _parse_rdma(rest, text, place)
    raise ConfigError(place, EXPECTED, repr(text))


REGION = "region://"
"""What the address of an engine's door begins with."""


def parse_door(text: str, place: str = "address") -> UnixAddress | None:
    """The Unix socket of an engine's door, ``region:///path`` or ``region://@name``.

    Args:
        text: the address; ``region://`` alone takes a random abstract name.
        place: what to call it in an error.

    Returns:
        None for an address of another kind.

    Raises:
        ConfigError: a door without a usable name.
    """
    if not text.startswith(REGION):
        return None
    rest = text.removeprefix(REGION) or f"@pp3shm-{secrets.token_hex(16)}"
    try:
        return _parse_unix(rest, text, place)
    except ConfigError as error:
        wanted = str(error.expected).replace("unix://", REGION)
        raise ConfigError(place, wanted, error.found) from None


def is_loopback(host: str) -> bool:
    """True where a numeric IP address stays on this machine, whatever its family."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _parse_tcp(rest: str, text: str, place: str) -> TcpAddress:
    host, colon, port = rest.rpartition(":")
    scheme = text.partition("://")[0]
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        expected = f"{scheme}://host:port with a port up to 65535"
        raise ConfigError(place, expected, repr(text))
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ConfigError(
                place, "an IPv6 address in the brackets", repr(text)
            ) from None
    elif not _HOST.fullmatch(host):
        raise ConfigError(
            place, "a host name, an IPv4 or a bracketed IPv6 address", repr(text)
        )
    return TcpAddress(host, int(port))


def _parse_rdma(rest: str, text: str, place: str) -> RdmaAddress:
    where, slash, device = rest.partition("/")
    named = _DEVICE.fullmatch(device)
    if slash and not named:
        raise ConfigError(place, "rdma://host:port/device/gid-index", repr(text))
    tcp = _parse_tcp(where, text, place)
    if named is None:
        return RdmaAddress(tcp.host, tcp.port)
    name, index = named.groups()
    return RdmaAddress(tcp.host, tcp.port, name, None if index is None else int(index))


def _parse_unix(rest: str, text: str, place: str) -> UnixAddress:
    abstract = rest.startswith("@")
    name = rest.removeprefix("@")
    if not name or "\0" in name or not (abstract or name.startswith("/")):
        raise ConfigError(place, "unix:///absolute/path or unix://@name", repr(text))
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        raise ConfigError(place, "a name that can be encoded", ascii(text)) from None
    if size > UNIX_NAME_BYTES:
        raise ConfigError(
            place, f"a socket name of at most {UNIX_NAME_BYTES} bytes", size
        )
    return UnixAddress(name, abstract)
