"""What runs in the second of two guests: a worker, until it is told to end."""

import os
import sys

import numpy as np

from pp3shm import Profile, Worker
from pp3shm.worker.drafters import TableDrafter


def main():
    """Serve."""
    table = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    ours = Profile.sampled(vocab=64, depth=5, max_slots=4, max_positions=512)
    address = f"rdma://{os.environ['PP3_LAB_IP']}:7333"
    worker = Worker(TableDrafter(table), ours, [address], bytes(range(32)))
    print(f"listening at {address}", flush=True)
    worker.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
