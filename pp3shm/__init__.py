"""Exact draft distributions for speculative decoding, through shared memory.

What an engine and a worker need is named here and loaded when it is first used, so
that a process that needs one part does not pay for all: ``import pp3shm`` alone loads
neither NumPy nor the core, and nothing but ``pp3shm.gpu`` loads torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pp3shm.engine import Engine
    from pp3shm.errors import Pp3Error
    from pp3shm.layout.profile import Profile
    from pp3shm.layout.tables import Status
    from pp3shm.rank import Rank
    from pp3shm.reply import Reply
    from pp3shm.slots import Row
    from pp3shm.worker import Drafter, DraftRow, RegionWorker, Worker

__all__ = [
    "DraftRow",
    "Drafter",
    "Engine",
    "Pp3Error",
    "Profile",
    "Rank",
    "RegionWorker",
    "Reply",
    "Row",
    "Status",
    "Worker",
]
__version__ = "0.1.0"

_HOMES = {
    "DraftRow": "pp3shm.worker",
    "Drafter": "pp3shm.worker",
    "Engine": "pp3shm.engine",
    "Pp3Error": "pp3shm.errors",
    "Profile": "pp3shm.layout.profile",
    "Rank": "pp3shm.rank",
    "RegionWorker": "pp3shm.worker",
    "Reply": "pp3shm.reply",
    "Row": "pp3shm.slots",
    "Status": "pp3shm.layout.tables",
    "Worker": "pp3shm.worker",
}


def __getattr__(name: str) -> object:
    """One of the names above, from its home."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'pp3shm' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """What may be asked for."""
    return sorted((*globals(), *_HOMES))
