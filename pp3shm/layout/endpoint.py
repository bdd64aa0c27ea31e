"""ENDPOINT: where a side's staging area lies and how it is reached (section 9)."""

from dataclasses import dataclass

from pp3shm.errors import FrameError
from pp3shm.layout.record import shown
from pp3shm.layout.tables import ENDPOINT, GID_BYTES


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One side of a queue pair, and the memory that the other side may write to.

    Attributes:
        queue_pair: its number, of 24 bits.
        packet_sequence: the first one it sends, of 24 bits.
        mtu: bytes of a packet's payload at most: 256 to 4096, a power of two.
        gid_index: of the side that says it; of use to nobody else.
        gid: 16 bytes, the address on the RDMA network.
        address: of the staging area, as the remote key knows it.
        rkey: the key of exactly that area.
        slot_bytes: from one staging slot to the next.
        slots: how many there are, 1 to 256.
    """

    queue_pair: int
    packet_sequence: int
    mtu: int
    gid_index: int
    gid: bytes
    address: int
    rkey: int
    slot_bytes: int
    slots: int

    def at(self, slot: int) -> int:
        """The remote address of a slot."""
        return self.address + slot * self.slot_bytes


def encode_endpoint(endpoint: Endpoint) -> bytes:
    """The body of an ENDPOINT, without its CRC.

    Raises:
        FrameError: a field out of range.
    """
    if len(endpoint.gid) != GID_BYTES:
        raise FrameError("endpoint.gid", f"{GID_BYTES} bytes", len(endpoint.gid))
    values = {name: getattr(endpoint, name) for name in Endpoint.__dataclass_fields__}
    return ENDPOINT.pack(**values, zero=0)


def decode_endpoint(
    body_without_crc: bytes, frame_bytes: int, slots: int | None = None
) -> Endpoint:
    """The ENDPOINT in a body.

    Args:
        body_without_crc: as it came.
        frame_bytes: the largest frame of the profile that will be written there.
        slots: how many there must be; None: as many as there are.

    Raises:
        FrameError: a field is not what it must be, a slot holds no such frame, or the
            area does not end within 64 bits.
    """
    if len(body_without_crc) != ENDPOINT.size:
        raise FrameError("endpoint.bytes", ENDPOINT.size, len(body_without_crc))
    found = ENDPOINT.unpack(body_without_crc)
    del found["zero"]
    endpoint = Endpoint(**found)
    if endpoint.slot_bytes < frame_bytes:
        raise FrameError(
            "endpoint.slot_bytes", f"at least {frame_bytes}", endpoint.slot_bytes
        )
    if slots is not None and endpoint.slots != slots:
        raise FrameError("endpoint.slots", slots, endpoint.slots)
    if endpoint.at(endpoint.slots) > 2**64:
        raise FrameError(
            "endpoint.address", "an area within 64 bits", shown(endpoint.address)
        )
    return endpoint
