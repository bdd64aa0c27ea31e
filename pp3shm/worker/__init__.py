"""The worker: serves the STEPs of engines with a user's drafter."""

from pp3shm.worker.connection import Patience
from pp3shm.worker.drafter import Drafter, DraftRow, Factory
from pp3shm.worker.region import RegionWorker
from pp3shm.worker.server import Worker

__all__ = ["DraftRow", "Drafter", "Factory", "Patience", "RegionWorker", "Worker"]
