"""A drafter for worker processes of tests: the same table each time."""

import numpy as np

from pp3shm.worker.drafters import TableDrafter

DRAFTER = TableDrafter(
    np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
)
