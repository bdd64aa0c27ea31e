"""What a proxy is told when it is started, the same for a thread and a process."""

import json
from dataclasses import dataclass, field
from typing import Self

from pp3shm.errors import ConfigError
from pp3shm.layout.keyproof import check_key
from pp3shm.layout.profile import Profile
from pp3shm.link import rdma
from pp3shm.link.address import RdmaAddress, parse, parse_door
from pp3shm.ring.waiting import Waiting

# What reading anything but a plan may raise; the last two: infinity where an integer is
# wanted, and absurd nesting.
_NO_PLAN = (
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class ProxyPlan:
    """Where the worker is and how to speak with it.

    Attributes:
        profile: what both sides must agree on.
        worker: the worker's address, e.g. ``tcp://127.0.0.1:7333``; or
            ``region://@name``, the door that workers come to by themselves.
        psk: the pre-shared key, or None.
        waiting: how it waits for rounds and replies.
        dial_timeout_s: how long connection, proof and HELLO may take together.
    """

    profile: Profile
    worker: str
    psk: bytes | None = field(default=None, repr=False)
    waiting: Waiting = field(default_factory=Waiting)
    dial_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        """Refuse what could never be dialled, where it is given.

        Raises:
            ConfigError: the address, the key, or a time.
        """
        if self.by_rdma:
            rdma.require("worker")
        if self.psk is not None:
            check_key(self.psk, "psk")
        if not 0 <= self.dial_timeout_s < float("inf"):  # a NaN is neither
            found = self.dial_timeout_s
            raise ConfigError("dial_timeout_s", "seconds, 0 or more", found)

    @property
    def by_rdma(self) -> bool:
        """Whether STEPs and REPLYs go by RDMA.

        Raises:
            ConfigError: the address is none.
        """
        if parse_door(self.worker, "worker") is not None:
            return False
        return isinstance(parse(self.worker, "worker"), RdmaAddress)

    def to_bytes(self) -> bytes:
        """The plan as JSON, for a proxy process. Holds the key: never log it."""
        return json.dumps(
            {
                "profile": self.profile.canonical_json().decode("ascii"),
                "worker": self.worker,
                "psk": None if self.psk is None else self.psk.hex(),
                "wait": self.waiting.wait,
                "spin_ns": self.waiting.spin_ns,
                "dial_timeout_s": self.dial_timeout_s,
            }
        ).encode("ascii")

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The plan that ``to_bytes`` wrote.

        Raises:
            ConfigError: the bytes are no plan.
            ProfileError: its profile is none.
        """
        try:
            parts = json.loads(data)
            psk = parts["psk"]
            return cls(
                profile=Profile.from_json(parts["profile"].encode("ascii")),
                worker=str(parts["worker"]),
                psk=None if psk is None else bytes.fromhex(psk),
                waiting=Waiting(str(parts["wait"]), int(parts["spin_ns"])),
                dial_timeout_s=float(parts["dial_timeout_s"]),
            )
        except _NO_PLAN as error:
            raise ConfigError("proxy plan", "the JSON of a plan", error) from error
