"""A fast drafter for worker processes of tests: one C call drafts a whole chain."""

import numpy as np

from pp3shm.proposal.markov import Markov

VOCAB = 40
SEED = 7
_rng = np.random.default_rng(SEED)
TARGET = _rng.dirichlet(np.full(VOCAB, 0.4), VOCAB)
"""(V, V) the target: row t is the law of the token after t."""
BIAS = (np.log(TARGET + 1e-4) * 0.5 + _rng.normal(0, 0.6, (VOCAB, VOCAB))).astype("f4")
"""(V, V) the drafter's logits: related to the target, and clearly not it."""


class ChainDrafter:
    """Base logits 0, everything in the Markov table: previous token to next."""

    markov = Markov.table(BIAS)

    def logits(self, rows, drafted):
        last = [
            d[-1] if len(d) else row.prefix[-1]
            for row, d in zip(rows, drafted, strict=True)
        ]
        return BIAS[last]

    def parallel_logits(self, rows):
        return np.zeros((len(rows), 5, VOCAB), np.float32)


DRAFTER = ChainDrafter()
