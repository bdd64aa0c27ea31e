"""What whoever attaches to a region checks beyond its bytes: that it is theirs."""

from pp3shm.errors import RegionError
from pp3shm.layout.profile import Profile


def expect_layout(layout_id: bytes, profile: Profile) -> None:
    """Refuse a region that was made for another profile (wire page, section 3).

    Args:
        layout_id: 32 bytes, the region's.
        profile: what was negotiated.

    Raises:
        RegionError: the two do not belong together.
    """
    if layout_id != profile.layout_id:
        raise RegionError("region.layout_id", profile.layout_id.hex(), layout_id.hex())
