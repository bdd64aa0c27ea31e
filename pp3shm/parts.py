"""What an engine is made of, and how it is made and undone."""

import contextlib
from dataclasses import dataclass

from pp3shm.errors import ConfigError
from pp3shm.layout.profile import Profile
from pp3shm.layout.reply import ReplyLayout
from pp3shm.link.address import REGION
from pp3shm.proxy.door import Door
from pp3shm.proxy.plan import ProxyPlan
from pp3shm.proxy.proxy import ProcessProxy, ThreadProxy
from pp3shm.reply import ReplyReader
from pp3shm.ring.handover import Doorman
from pp3shm.ring.record import Shape
from pp3shm.ring.region import Region
from pp3shm.ring.ring import CAUSES, EngineEnd

MOST_ROUNDS, MOST_RANKS = 1024, 16


@dataclass(frozen=True, slots=True)
class Choices:
    """What ``Engine.create`` lets its user choose of the region and the proxy.

    Raises:
        ConfigError: one is out of range, by its name there.
    """

    rounds: int
    ranks: int
    kind: str
    proxy: str

    def __post_init__(self) -> None:
        """Refuse before anything is made."""
        for place, number, most in (
            ("rounds", self.rounds, MOST_ROUNDS),
            ("ranks", self.ranks, MOST_RANKS),
        ):
            if not isinstance(number, int) or not 1 <= number <= most:
                raise ConfigError(place, f"1..{most}", repr(number))
        for place, word, choices in (
            ("proxy", self.proxy, ("process", "thread")),
            ("kind", self.kind, ("memfd", "posix")),
        ):
            if word not in choices:
                raise ConfigError(place, " or ".join(map(repr, choices)), repr(word))


@dataclass(frozen=True, slots=True)
class Parts:
    """An engine's parts, in the order they are made in.

    Attributes:
        ring: its end of the ring, which owns the region.
        doorman: lets further ranks in; None where there are none.
        proxy: runs from the start, beside its watchdog; or lets a worker in.
        reader: rank 0's views.
    """

    ring: EngineEnd
    doorman: Doorman | None
    proxy: ProcessProxy | ThreadProxy | Door
    reader: ReplyReader

    @classmethod
    def make(cls, profile: Profile, plan: ProxyPlan, choices: Choices) -> "Parts":
        """Make all of them; what is half made when one fails is undone.

        Raises:
            RegionError: the region cannot be made.
            OSError: no descriptors or memory.
        """
        with contextlib.ExitStack() as undo:
            ring = undo.enter_context(_make_ring(profile, choices))
            doorman = None
            if choices.ranks > 1:
                doorman = undo.enter_context(Doorman(ring))
            else:
                ring.region.unlink()  # nobody else attaches by name
            proxy = _start_proxy(ring, plan, choices)
            undo.callback(proxy.close)
            parts = cls(ring, doorman, proxy, ReplyReader(profile, ring, plan.waiting))
            undo.pop_all()
        return parts

    def close(self) -> None:
        """Undo all of it, the last first, each whatever became of the others."""
        with contextlib.ExitStack() as last_to_first:
            last_to_first.callback(self.ring.close)
            last_to_first.callback(self.reader.close)
            if self.doorman is not None:
                last_to_first.callback(self.doorman.close)
            last_to_first.callback(self.proxy.close)


def _start_proxy(
    ring: EngineEnd, plan: ProxyPlan, choices: Choices
) -> ProcessProxy | ThreadProxy | Door:
    if plan.worker.startswith(REGION):
        return Door(ring, plan)  # the worker is its own proxy
    return (ProcessProxy if choices.proxy == "process" else ThreadProxy)(ring, plan)


def _make_ring(profile: Profile, choices: Choices) -> EngineEnd:
    layout = ReplyLayout(profile.max_slots, profile.depth, profile.is_sampled)
    shape = Shape(
        rounds=choices.rounds,
        ranks=choices.ranks,
        page_bytes=profile.page_bytes,
        request_bytes=profile.step_bytes,
        failed_bytes=layout.size,
        head_bytes=layout.head_bytes,
        slots=profile.max_slots,
        max_positions=profile.max_positions,
    )
    region = Region.create(shape, layout_id=profile.layout_id, kind=choices.kind)
    return EngineEnd(region, b"".join(layout.failed(cause, ()) for cause in CAUSES))
