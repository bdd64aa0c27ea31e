"""A further rank: another process that reads every reply."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from pp3shm.attach import expect_layout
from pp3shm.errors import ConfigError
from pp3shm.layout.profile import Profile
from pp3shm.reply import NEVER_NS, Adopted, Reply, ReplyReader, after
from pp3shm.ring.handover import attach_rank
from pp3shm.ring.ring import RankEnd
from pp3shm.ring.waiting import SPIN_NS, Wait, Waiting


class Rank:
    """A reader of the engine's region, in a process of its own.

    It sees the same page, status and q of a round as every other rank, and must
    release each round it is told of. Make one with ``Rank.attach``.

    Attributes:
        profile: what the region was made for.
        rank: its number, 1 or more.
        epoch: 16 bytes, the region's; the same on all ranks.
    """

    def __init__(self, profile: Profile, end: RankEnd, waiting: Waiting) -> None:
        expect_layout(end.region.layout_id, profile)
        self.profile = profile
        self.rank = end.rank
        self.epoch: bytes = end.region.epoch
        self._end = end
        self._reader = ReplyReader(profile, end, waiting)

    @property
    def buffers(self) -> list[memoryview]:
        """Read-only; every page, then every failed buffer (``Reply.place``)."""
        return self._reader.buffers

    def adopt(self, part: Adopted) -> None:
        """Close ``part`` before the mapping goes.

        For what lives on ``buffers``, such as a registration with CUDA
        (``pp3shm.gpu.pin``).
        """
        self._reader.adopted.append(part)

    @classmethod
    def attach(
        cls,
        invitation: str,
        profile: Profile,
        *,
        rank: int | None = None,
        wait: Wait = "hybrid",
        spin_ns: int = SPIN_NS,
        timeout_s: float = 10.0,
    ) -> Self:
        """Take the region that an engine hands over.

        Args:
            invitation: ``Engine.invitation``.
            profile: the engine's profile.
            rank: the number wanted, None: the next free one.
            wait: how it waits; see ``Engine.create``.
            spin_ns: the longest spin of a hybrid.
            timeout_s: for the whole handover.

        Raises:
            ConfigError: no such way to wait.
            RegionError: no engine there, no rank free, or a region of another version
                or layout; the error names what differs.
        """
        waiting = Waiting(wait, spin_ns)
        end = attach_rank(invitation, rank, timeout_s, layout_id=profile.layout_id)
        try:
            return cls(profile, end, waiting)
        except BaseException:
            end.close()
            raise

    def reply(
        self,
        ticket: int,
        *,
        stale: Iterable[int] = (),
        timeout_s: float | None = None,
    ) -> Reply:
        """Wait for a round this rank was told of; see ``Engine.reply``.

        Args:
            ticket: of the round.
            stale: what ``Engine.stale`` said of it.
            timeout_s: own patience; None waits to the round's deadline.

        Raises:
            ConfigError: ``stale`` names what is no slot.
        """
        mask = 0
        for slot in stale:
            if slot not in range(self.profile.max_slots):
                most = self.profile.max_slots - 1
                raise ConfigError("stale", f"slots of 0..{most}", slot)
            mask |= 1 << slot
        limit = NEVER_NS if timeout_s is None else after(timeout_s)
        return self._reader.read(ticket, limit, mask)

    def release(self, ticket: int) -> None:
        """This rank has read the round."""
        self._reader.release(ticket)

    def close(self) -> None:
        """Let go of the region."""
        self._reader.close()
        self._end.close()

    def __enter__(self) -> Self:
        """The rank itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()
