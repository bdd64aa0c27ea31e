"""Addresses: ``tcp://host:port``, ``unix:///path`` and ``unix://@name``."""

import ipaddress
import os
import re
import secrets
from dataclasses import dataclass

from pp3shm.errors import ConfigError

# sun_path has 108 bytes: a file's name needs its NUL, an abstract one a NUL before it.
UNIX_NAME_BYTES = 107

EXPECTED = "tcp://host:port, unix:///path or unix://@name"
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


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


Address = TcpAddress | UnixAddress


def parse(text: str, place: str = "address") -> Address:
    """Read an address.

    Args:
        text: the address as the user wrote it.
        place: what to call it in an error, e.g. ``--listen``.

    Raises:
        ConfigError: it is none of the three forms.
    """
    scheme, found, rest = text.partition("://")
    if found and scheme == "tcp":
        return _parse_tcp(rest, text, place)
    if found and scheme == "unix":
        return _parse_unix(rest, text, place)
    if found and scheme == "rdma":
        raise ConfigError(
            place,
            f"{EXPECTED} (rdma:// is not in this version yet, also not with the "
            "extra pp3shm[rdma]: use tcp:// on the RDMA network's IP address)",
            repr(text),
        )
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
    if not colon or not _PORT.fullmatch(port) or int(port) > 65535:
        raise ConfigError(place, "tcp://host:port with a port up to 65535", repr(text))
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
