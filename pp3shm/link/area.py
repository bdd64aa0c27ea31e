"""Memory that a device may write to: a shared mapping of its own."""

import ctypes
import mmap
import os

from pp3shm.errors import LinkError


class Area:
    """Shared memory that a device writes to or reads from.

    A mapping of its own, never a part of a region: what a remote key reaches must hold
    nothing that anybody believes. A memfd, so that a fork of this process never makes
    the device's pages another copy than ours.
    """

    def __init__(self, size: int) -> None:
        fd = os.memfd_create("pp3shm-staging", os.MFD_CLOEXEC)
        try:
            os.posix_fallocate(fd, 0, size)
            self.mapping = mmap.mmap(fd, size)
        except OSError as error:
            raise LinkError(
                f"staging area: expected {size} bytes, found: {error.strerror}"
            ) from error
        finally:
            os.close(fd)
        self.mapping.madvise(mmap.MADV_DONTFORK)
        self.size = size
        hold = ctypes.c_char.from_buffer(self.mapping)
        self.address = ctypes.addressof(hold)
        del hold  # the address stays; a view would keep the mapping from being closed

    def fill(self, at: int, data: bytes) -> None:
        """Put bytes there."""
        self.mapping[at : at + len(data)] = data

    def close(self) -> None:
        """Unmap it: no device may know it any more."""
        self.mapping.close()
