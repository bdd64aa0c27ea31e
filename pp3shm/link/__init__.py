"""Links: frames from A to B, over sockets and by RDMA, and nothing else."""

from pp3shm.link.address import Address, RdmaAddress, TcpAddress, UnixAddress, parse
from pp3shm.link.base import Link
from pp3shm.link.listen import Listener, listen
from pp3shm.link.reader import FrameReader, read_exactly, wait_for
from pp3shm.link.socket import SocketLink, connect

__all__ = [
    "Address",
    "FrameReader",
    "Link",
    "Listener",
    "RdmaAddress",
    "SocketLink",
    "TcpAddress",
    "UnixAddress",
    "connect",
    "listen",
    "parse",
    "read_exactly",
    "wait_for",
]
