"""The C core's checks of STEP and REPLY, called from Python.

The proxy calls the C functions themselves; this is the way for tests, for
``conformance``, and for a tool that judges single frames.
"""

from typing import Any

from pp3shm._core import ffi, lib
from pp3shm.errors import ConfigError, FrameError, ReplyError
from pp3shm.layout.profile import Profile
from pp3shm.layout.tables import SESSION_BYTES
from pp3shm.layout.validate import REASONS


def c_layout(profile: Profile) -> Any:
    """``struct pp3_layout *`` of a profile; keep it as long as C uses it."""
    return ffi.new(
        "struct pp3_layout *",
        {
            "vocab": profile.vocab,
            "depth": profile.depth,
            "max_slots": profile.max_slots,
            "max_positions": profile.max_positions,
            "sampled": int(profile.is_sampled),
            "context_bytes": profile.context_bytes,
        },
    )


# What the place of a fault counts in, by reason; the rest have none below the frame.
_COUNTED = {
    "echo": "row",
    "mask": "mask",
    "token": "draft",
    "support": "ids",
    "probability": "q",
    "mass": "q",
}


def fault_place(fault: Any) -> str:
    """The place a ``struct pp3_fault`` names: ``ids[2, 0, 7]``, by row, not slot."""
    reason = REASONS[fault.reason - 1]
    parts = [part for part in (fault.row, fault.depth, fault.index) if part >= 0]
    if not parts:
        return "reply"
    return f"{_COUNTED.get(reason, 'reply')}[{', '.join(map(str, parts))}]"


class Core:
    """The C side of one profile; one frame at a time."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.layout = c_layout(profile)
        self._page = bytearray(profile.layout_bytes)
        self._page_c = ffi.from_buffer("uint8_t[]", self._page, require_writable=True)

    def check_step(self, body: bytes) -> int:
        """The true length of the STEP at the start of ``body`` (its CRC not counted).

        Raises:
            FrameError: the receiver would refuse it whole.
        """
        size = ffi.new("uint32_t *")
        if lib.pp3_step_check(self.layout, body, len(body), size) != 0:
            raise FrameError("step", "a STEP of the profile", "one to refuse whole")
        return int(size[0])

    def accept(
        self, step_body: bytes | None, frame: bytes, session: bytes, sequence: int
    ) -> bytes:
        """The page of an acceptable REPLY; arguments as for ``check_reply``.

        Raises:
            ReplyError: the reason, and the place as far as C tells it.
            FrameError: the STEP is none, or the session has not 16 bytes.
        """
        if len(session) != SESSION_BYTES:
            raise FrameError("session", f"{SESSION_BYTES} bytes", len(session))
        if step_body is not None:
            self.check_step(step_body)
        fault = ffi.new("struct pp3_fault *")
        reason = lib.pp3_accept(
            self.layout,
            ffi.NULL if step_body is None else step_body,
            frame,
            len(frame),
            session,
            sequence,
            self._page_c,
            fault,
        )
        if reason:
            raise ReplyError(
                REASONS[reason - 1],
                fault_place(fault),
                "what the wire page says",
                "something else",
            )
        return bytes(self._page)

    def fail_page(self, step_body: bytes, status: int) -> bytes:
        """The page of a STEP that failed whole with ``status``.

        Raises:
            FrameError: the STEP is none.
        """
        self.check_step(step_body)
        lib.pp3_fail_page(self.layout, step_body, status, self._page_c)
        return bytes(self._page)


def crc32(data: bytes, before: int = 0) -> int:
    """The core's CRC-32, by the path in use; as ``zlib.crc32``."""
    return int(lib.pp3_crc32(before, ffi.from_buffer(data), len(data)))


def force_crc_path(path: int) -> None:
    """Makes the core use one way to compute CRCs, for tests.

    Raises:
        ConfigError: this CPU has it not.
    """
    if lib.pp3_crc_force(path) != 0:
        raise ConfigError("crc path", "one this CPU has", path)
